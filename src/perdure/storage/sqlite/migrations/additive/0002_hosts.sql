-- Hosts, the workflows that each registers, and why a host could not load a run. Processes of an earlier release go on:
-- they neither register nor note reasons, and removing a run removes its reasons.

CREATE TABLE hosts (
    tenant TEXT NOT NULL,
    id TEXT NOT NULL,
    started_at TEXT NOT NULL,
    owner_id TEXT NOT NULL,  -- its process, as in runs
    owner_host TEXT NOT NULL,
    owner_boot TEXT NOT NULL,
    owner_pid INTEGER NOT NULL,
    PRIMARY KEY (tenant, id)
) WITHOUT ROWID;

CREATE TABLE host_workflows (
    tenant TEXT NOT NULL,
    host_id TEXT NOT NULL,
    workflow_name TEXT NOT NULL,
    version INTEGER NOT NULL,
    PRIMARY KEY (tenant, host_id, workflow_name),
    FOREIGN KEY (tenant, host_id) REFERENCES hosts (tenant, id) ON DELETE CASCADE
) WITHOUT ROWID;

CREATE TABLE run_blocks (
    tenant TEXT NOT NULL,
    run_id TEXT NOT NULL,
    host_id TEXT NOT NULL,
    head TEXT NOT NULL,  -- the reason counts while this is the run's head
    reason TEXT NOT NULL,
    PRIMARY KEY (tenant, run_id, host_id),
    FOREIGN KEY (tenant, run_id) REFERENCES runs (tenant, run_id) ON DELETE CASCADE,
    FOREIGN KEY (tenant, host_id) REFERENCES hosts (tenant, id) ON DELETE CASCADE
) WITHOUT ROWID;

CREATE INDEX run_blocks_of_host ON run_blocks (tenant, host_id);

CREATE TABLE upkeep (
    tenant TEXT NOT NULL PRIMARY KEY,
    moment TEXT NOT NULL  -- the time of the newest collection by a host
) WITHOUT ROWID;
