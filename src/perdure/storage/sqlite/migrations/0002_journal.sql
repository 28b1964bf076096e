-- What the superstep in progress of each run has finished.

CREATE TABLE journal (
    ordinal INTEGER PRIMARY KEY,      -- the order of first recording
    run_id TEXT NOT NULL REFERENCES runs (run_id) ON DELETE CASCADE,
    key TEXT NOT NULL,                -- a JSON string: the keys of users may be text that has no UTF-8
    head TEXT,                        -- the checkpoint that the superstep follows; null before the first one
    checksum TEXT NOT NULL,
    refs TEXT NOT NULL,               -- a JSON array of hashes
    data BLOB NOT NULL
);

CREATE UNIQUE INDEX journal_of_run ON journal (run_id, key);
