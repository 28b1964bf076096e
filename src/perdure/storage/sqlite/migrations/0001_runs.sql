-- Runs, their checkpoints, and the parts that checkpoints share.

CREATE TABLE runs (
    run_id TEXT PRIMARY KEY,
    workflow_name TEXT NOT NULL,
    created_at TEXT NOT NULL,
    nonce TEXT NOT NULL,
    input_digest TEXT,
    parent_checkpoint_id TEXT,
    head TEXT,
    position INTEGER NOT NULL,
    settled INTEGER NOT NULL,
    moment REAL,                      -- of the newest commit, in seconds since the epoch
    token INTEGER NOT NULL,
    owner_id TEXT,
    owner_host TEXT,
    owner_boot TEXT,
    owner_pid INTEGER
);

-- Which runs rest on a checkpoint of another: forks before their first commit.
CREATE INDEX runs_that_rest ON runs (parent_checkpoint_id) WHERE position = -1;

CREATE INDEX runs_finished ON runs (moment) WHERE settled = 1;

CREATE TABLE checkpoints (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT,  -- the order of all commits; a number is never used twice
    checkpoint_id TEXT NOT NULL UNIQUE,
    run_id TEXT NOT NULL REFERENCES runs (run_id) ON DELETE CASCADE,
    workflow_name TEXT NOT NULL,
    position INTEGER NOT NULL,
    previous_id TEXT,
    timestamp TEXT NOT NULL,
    moment REAL,                      -- the timestamp, in seconds since the epoch
    iteration_count INTEGER NOT NULL,
    settled INTEGER NOT NULL,
    checksum TEXT NOT NULL,
    header BLOB NOT NULL,
    toc TEXT NOT NULL                 -- a JSON object: by path the hash of the part
);

CREATE UNIQUE INDEX checkpoints_of_run ON checkpoints (run_id, position);

CREATE INDEX checkpoints_of_workflow ON checkpoints (workflow_name, sequence);

CREATE INDEX checkpoints_by_age ON checkpoints (run_id, moment);

CREATE TABLE parts (
    hash TEXT PRIMARY KEY,
    kind TEXT NOT NULL,
    refs TEXT NOT NULL,               -- a JSON array of hashes
    data BLOB NOT NULL                -- last, so that following refs does not read it
);

CREATE TABLE counters (
    name TEXT PRIMARY KEY,
    value INTEGER NOT NULL
);

INSERT INTO counters (name, value) VALUES ('token', 0), ('pruned', 0);
