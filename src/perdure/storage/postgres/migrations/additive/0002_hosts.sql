-- Hosts, the workflows that each registers, and why a host could not load a run. Processes of an earlier release go on:
-- they neither register nor note reasons, and removing a run removes its reasons.

CREATE TABLE hosts (
    tenant TEXT COLLATE "C" NOT NULL,
    id TEXT COLLATE "C" NOT NULL,
    started_at TEXT COLLATE "C" NOT NULL,
    owner_id TEXT COLLATE "C" NOT NULL,  -- its process, as in runs
    owner_host TEXT COLLATE "C" NOT NULL,
    owner_boot TEXT COLLATE "C" NOT NULL,
    owner_pid BIGINT NOT NULL,
    PRIMARY KEY (tenant, id)
);

CREATE TABLE host_workflows (
    tenant TEXT COLLATE "C" NOT NULL,
    host_id TEXT COLLATE "C" NOT NULL,
    workflow_name TEXT COLLATE "C" NOT NULL,
    version BIGINT NOT NULL,
    PRIMARY KEY (tenant, host_id, workflow_name),
    FOREIGN KEY (tenant, host_id) REFERENCES hosts (tenant, id) ON DELETE CASCADE
);

CREATE TABLE run_blocks (
    tenant TEXT COLLATE "C" NOT NULL,
    run_id TEXT COLLATE "C" NOT NULL,
    host_id TEXT COLLATE "C" NOT NULL,
    head TEXT COLLATE "C" NOT NULL,  -- the reason counts while this is the run's head
    reason TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (tenant, run_id, host_id),
    FOREIGN KEY (tenant, run_id) REFERENCES runs (tenant, run_id) ON DELETE CASCADE,
    FOREIGN KEY (tenant, host_id) REFERENCES hosts (tenant, id) ON DELETE CASCADE
);

CREATE INDEX run_blocks_of_host ON run_blocks (tenant, host_id);

CREATE TABLE upkeep (
    tenant TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    moment TEXT COLLATE "C" NOT NULL  -- the time of the newest collection by a host
);
