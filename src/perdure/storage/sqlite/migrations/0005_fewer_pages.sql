-- A checkpoint may hold small things itself, a commit touches as few pages as it can, and each part knows in which epoch
-- of collections it was put last.
--
-- Checkpoints are found by their run and position. Only those that are not named after these have an index of their
-- names. What a run has is counted by the statements that add to it, and by triggers where something is removed.

DROP TRIGGER checkpoints_gain;

DROP TRIGGER checkpoints_loss;

DROP TRIGGER journal_loss;

ALTER TABLE checkpoints RENAME TO former_checkpoints;

ALTER TABLE parts RENAME TO former_parts;

CREATE TABLE checkpoints (
    sequence INTEGER PRIMARY KEY,     -- the order of all commits
    tenant TEXT NOT NULL DEFAULT '',
    checkpoint_id TEXT NOT NULL,
    run_id TEXT NOT NULL,
    workflow_name TEXT NOT NULL,
    position INTEGER NOT NULL,
    previous_id TEXT,
    timestamp TEXT NOT NULL,
    moment REAL,                      -- the timestamp, in seconds since the epoch
    iteration_count INTEGER NOT NULL,
    settled INTEGER NOT NULL,
    status TEXT NOT NULL DEFAULT 'running',
    wake_at TEXT,
    checksum TEXT NOT NULL,
    header BLOB NOT NULL,
    toc TEXT NOT NULL,                -- a JSON object: by path the hash of the part
    pieces BLOB,                      -- what stands in the checkpoint itself: a JSON object by path
    FOREIGN KEY (tenant, run_id) REFERENCES runs (tenant, run_id) ON DELETE CASCADE
);

INSERT INTO checkpoints (
    sequence, tenant, checkpoint_id, run_id, workflow_name, position, previous_id, timestamp, moment, iteration_count,
    settled, status, wake_at, checksum, header, toc
)
SELECT
    sequence, tenant, checkpoint_id, run_id, workflow_name, position, previous_id, timestamp, moment, iteration_count,
    settled, status, wake_at, checksum, header, toc
FROM former_checkpoints;

CREATE TABLE parts (
    tenant TEXT NOT NULL DEFAULT '',
    hash TEXT NOT NULL,
    epoch INTEGER NOT NULL DEFAULT 0, -- how many collections had begun when it was put last
    kind TEXT NOT NULL,
    refs TEXT NOT NULL,               -- a JSON array of hashes
    data BLOB NOT NULL,               -- last, so that following refs does not read it
    PRIMARY KEY (tenant, hash)
);

INSERT INTO parts (tenant, hash, kind, refs, data) SELECT tenant, hash, kind, refs, data FROM former_parts;

DROP TABLE former_checkpoints;

DROP TABLE former_parts;

CREATE UNIQUE INDEX checkpoints_of_run ON checkpoints (tenant, run_id, position);

CREATE INDEX checkpoints_of_workflow ON checkpoints (tenant, workflow_name, sequence);

CREATE UNIQUE INDEX checkpoints_by_name ON checkpoints (tenant, checkpoint_id)
WHERE checkpoint_id <> run_id || '@' || position;

CREATE TRIGGER checkpoints_loss AFTER DELETE ON checkpoints BEGIN
    UPDATE runs SET checkpoints = checkpoints - 1 WHERE tenant = OLD.tenant AND run_id = OLD.run_id;
END;
