-- What a run's head leaves to do, what comes to the run from outside, and what its commits have told.

ALTER TABLE runs ADD COLUMN status TEXT NOT NULL DEFAULT 'running';

ALTER TABLE runs ADD COLUMN wake_at TEXT;

-- Over what is told of the run; null until it is written again.
ALTER TABLE runs ADD COLUMN checksum TEXT;

-- The number of the newest event.
ALTER TABLE runs ADD COLUMN events INTEGER NOT NULL DEFAULT 0;

-- The number of the last event that the retention has removed.
ALTER TABLE runs ADD COLUMN forgotten INTEGER NOT NULL DEFAULT 0;

-- How many rows of the other tables are of the run, so that one which is not found is missed.
ALTER TABLE runs ADD COLUMN checkpoints INTEGER NOT NULL DEFAULT 0;

ALTER TABLE runs ADD COLUMN records INTEGER NOT NULL DEFAULT 0;

ALTER TABLE runs ADD COLUMN commands INTEGER NOT NULL DEFAULT 0;

-- The token of the first claim: the order in which runs began. No token was ever lower than the number of runs.
ALTER TABLE runs ADD COLUMN began INTEGER NOT NULL DEFAULT 0;

ALTER TABLE checkpoints ADD COLUMN status TEXT NOT NULL DEFAULT 'running';

ALTER TABLE checkpoints ADD COLUMN wake_at TEXT;

UPDATE runs SET began = rowid;

UPDATE runs SET
    checkpoints = (SELECT count(*) FROM checkpoints WHERE checkpoints.run_id = runs.run_id),
    records = (SELECT count(*) FROM journal WHERE journal.run_id = runs.run_id);

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

CREATE TRIGGER checkpoints_gain AFTER INSERT ON checkpoints BEGIN
    UPDATE runs SET checkpoints = checkpoints + 1 WHERE run_id = NEW.run_id;
END;

CREATE TRIGGER checkpoints_loss AFTER DELETE ON checkpoints BEGIN
    UPDATE runs SET checkpoints = checkpoints - 1 WHERE run_id = OLD.run_id;
END;

CREATE TRIGGER journal_gain AFTER INSERT ON journal BEGIN
    UPDATE runs SET records = records + 1 WHERE run_id = NEW.run_id;
END;

CREATE TRIGGER journal_loss AFTER DELETE ON journal BEGIN
    UPDATE runs SET records = records - 1 WHERE run_id = OLD.run_id;
END;

CREATE TRIGGER inbox_gain AFTER INSERT ON inbox BEGIN
    UPDATE runs SET commands = commands + 1 WHERE run_id = NEW.run_id;
END;

CREATE TRIGGER inbox_loss AFTER DELETE ON inbox BEGIN
    UPDATE runs SET commands = commands - 1 WHERE run_id = OLD.run_id;
END;

CREATE TRIGGER events_loss AFTER DELETE ON events BEGIN
    UPDATE runs SET forgotten = max(forgotten, OLD.first + OLD.count - 1) WHERE run_id = OLD.run_id;
END;
