-- What a run's head leaves to do, what comes to the run from outside, and what its commits have told.

ALTER TABLE runs ADD COLUMN status TEXT NOT NULL DEFAULT 'running';

ALTER TABLE runs ADD COLUMN wake_at TEXT;

-- Over what is told of the run; null until it is written again.
ALTER TABLE runs ADD COLUMN checksum TEXT;

-- The number of the newest event.
ALTER TABLE runs ADD COLUMN events INTEGER NOT NULL DEFAULT 0;

-- The token of the first claim: the order in which runs began. No token was ever lower than the number of runs.
ALTER TABLE runs ADD COLUMN began INTEGER NOT NULL DEFAULT 0;

ALTER TABLE checkpoints ADD COLUMN status TEXT NOT NULL DEFAULT 'running';

ALTER TABLE checkpoints ADD COLUMN wake_at TEXT;

UPDATE runs SET began = rowid;

UPDATE runs SET status = 'idle' WHERE settled = 1;

UPDATE checkpoints SET status = 'idle' WHERE settled = 1;

CREATE INDEX runs_in_order ON runs (began);

CREATE INDEX runs_of_workflow ON runs (workflow_name, began);

CREATE INDEX runs_of_status ON runs (status, began);

CREATE INDEX runs_to_wake ON runs (wake_at) WHERE wake_at IS NOT NULL;

CREATE TABLE inbox (
    number INTEGER PRIMARY KEY,       -- from a counter of the store, never used twice
    run_id TEXT NOT NULL REFERENCES runs (run_id) ON DELETE CASCADE,
    id TEXT NOT NULL,                 -- a JSON string: the ids of users may be text that has no UTF-8
    kind TEXT NOT NULL,               -- a JSON string
    expects TEXT,                     -- a JSON array: a path and a hash
    checksum TEXT NOT NULL,
    refs TEXT NOT NULL,               -- a JSON array of hashes
    data BLOB NOT NULL
);

CREATE UNIQUE INDEX inbox_by_id ON inbox (run_id, id);

CREATE INDEX inbox_in_order ON inbox (run_id, number);

INSERT INTO counters (name, value) VALUES ('command', 0);

CREATE TABLE events (
    batch INTEGER PRIMARY KEY,
    run_id TEXT NOT NULL REFERENCES runs (run_id) ON DELETE CASCADE,
    first INTEGER NOT NULL,           -- the number of the first event of the batch
    count INTEGER NOT NULL,
    checkpoint_id TEXT NOT NULL,      -- the commit that told them; it may be forgotten
    moment REAL,                      -- of the commit, in seconds since the epoch
    checksum TEXT NOT NULL,
    refs TEXT NOT NULL,               -- a JSON array of hashes
    data BLOB NOT NULL
);

CREATE UNIQUE INDEX events_of_run ON events (run_id, first);
