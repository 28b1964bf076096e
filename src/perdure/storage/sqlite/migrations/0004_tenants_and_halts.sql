-- Every row belongs to a tenant, the empty name being nobody's. Runs can halt, and are found when they are due.
--
-- A key can't be changed in place: each table is built anew, and the former one is dropped, those that refer to runs
-- first, since with a run go all rows that refer to it.

DROP TRIGGER checkpoints_gain;

DROP TRIGGER checkpoints_loss;

DROP TRIGGER journal_gain;

DROP TRIGGER journal_loss;

DROP TRIGGER inbox_gain;

DROP TRIGGER inbox_loss;

DROP TRIGGER events_loss;

ALTER TABLE runs RENAME TO former_runs;

ALTER TABLE checkpoints RENAME TO former_checkpoints;

ALTER TABLE parts RENAME TO former_parts;

ALTER TABLE counters RENAME TO former_counters;

ALTER TABLE journal RENAME TO former_journal;

ALTER TABLE inbox RENAME TO former_inbox;

ALTER TABLE events RENAME TO former_events;

CREATE TABLE runs (
    tenant TEXT NOT NULL DEFAULT '',
    run_id TEXT NOT NULL,
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
    owner_pid INTEGER,
    status TEXT NOT NULL DEFAULT 'running',
    wake_at TEXT,
    checksum TEXT,                    -- over what is told of the run; null until it is written again
    events INTEGER NOT NULL DEFAULT 0,       -- the number of the newest event
    forgotten INTEGER NOT NULL DEFAULT 0,    -- the number of the last event that the retention has removed
    checkpoints INTEGER NOT NULL DEFAULT 0,  -- how many rows of the other tables are of the run, so that one which
    records INTEGER NOT NULL DEFAULT 0,      -- is not found is missed
    commands INTEGER NOT NULL DEFAULT 0,
    began INTEGER NOT NULL DEFAULT 0,        -- the token of the first claim: the order in which runs began
    attempts INTEGER NOT NULL DEFAULT 0,     -- claims since it was last given free, or has last made progress
    halt TEXT,                        -- a JSON object: why nobody goes on with it unasked, and a digest of that
    PRIMARY KEY (tenant, run_id)
);

INSERT INTO runs (
    run_id, workflow_name, created_at, nonce, input_digest, parent_checkpoint_id, head, position, settled, moment, token,
    owner_id, owner_host, owner_boot, owner_pid, status, wake_at, checksum, events, forgotten, checkpoints, records,
    commands, began
)
SELECT
    run_id, workflow_name, created_at, nonce, input_digest, parent_checkpoint_id, head, position, settled, moment, token,
    owner_id, owner_host, owner_boot, owner_pid, status, wake_at, checksum, events, forgotten, checkpoints, records,
    commands, began
FROM former_runs ORDER BY rowid;

CREATE TABLE checkpoints (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT,  -- the order of all commits; a number is never used twice
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
    UNIQUE (tenant, checkpoint_id),
    FOREIGN KEY (tenant, run_id) REFERENCES runs (tenant, run_id) ON DELETE CASCADE
);

INSERT INTO checkpoints (
    sequence, checkpoint_id, run_id, workflow_name, position, previous_id, timestamp, moment, iteration_count, settled,
    status, wake_at, checksum, header, toc
)
SELECT
    sequence, checkpoint_id, run_id, workflow_name, position, previous_id, timestamp, moment, iteration_count, settled,
    status, wake_at, checksum, header, toc
FROM former_checkpoints;

-- The newest may be gone already, and their numbers are not used again.
DELETE FROM sqlite_sequence WHERE name = 'checkpoints';

INSERT INTO sqlite_sequence (name, seq)
SELECT 'checkpoints', seq FROM sqlite_sequence WHERE name = 'former_checkpoints';

CREATE TABLE parts (
    tenant TEXT NOT NULL DEFAULT '',
    hash TEXT NOT NULL,
    kind TEXT NOT NULL,
    refs TEXT NOT NULL,               -- a JSON array of hashes
    data BLOB NOT NULL,               -- last, so that following refs does not read it
    PRIMARY KEY (tenant, hash)
);

INSERT INTO parts (hash, kind, refs, data) SELECT hash, kind, refs, data FROM former_parts;

CREATE TABLE counters (
    tenant TEXT NOT NULL DEFAULT '',  -- empty also for the numbers that all tenants share
    name TEXT NOT NULL,
    value INTEGER NOT NULL,
    PRIMARY KEY (tenant, name)
);

INSERT INTO counters (name, value) SELECT name, value FROM former_counters;

CREATE TABLE journal (
    ordinal INTEGER PRIMARY KEY,      -- the order of first recording
    tenant TEXT NOT NULL DEFAULT '',
    run_id TEXT NOT NULL,
    key TEXT NOT NULL,                -- a JSON string: the keys of users may be text that has no UTF-8
    head TEXT,                        -- the checkpoint that the superstep follows; null before the first one
    checksum TEXT NOT NULL,
    refs TEXT NOT NULL,               -- a JSON array of hashes
    data BLOB NOT NULL,
    FOREIGN KEY (tenant, run_id) REFERENCES runs (tenant, run_id) ON DELETE CASCADE
);

INSERT INTO journal (ordinal, run_id, key, head, checksum, refs, data)
SELECT ordinal, run_id, key, head, checksum, refs, data FROM former_journal;

CREATE TABLE inbox (
    number INTEGER PRIMARY KEY,       -- from a counter of the store, never used twice
    tenant TEXT NOT NULL DEFAULT '',
    run_id TEXT NOT NULL,
    id TEXT NOT NULL,                 -- a JSON string: the ids of users may be text that has no UTF-8
    kind TEXT NOT NULL,               -- a JSON string
    expects TEXT,                     -- a JSON array: a path and a hash
    checksum TEXT NOT NULL,
    refs TEXT NOT NULL,               -- a JSON array of hashes
    data BLOB NOT NULL,
    FOREIGN KEY (tenant, run_id) REFERENCES runs (tenant, run_id) ON DELETE CASCADE
);

INSERT INTO inbox (number, run_id, id, kind, expects, checksum, refs, data)
SELECT number, run_id, id, kind, expects, checksum, refs, data FROM former_inbox;

CREATE TABLE events (
    batch INTEGER PRIMARY KEY,
    tenant TEXT NOT NULL DEFAULT '',
    run_id TEXT NOT NULL,
    first INTEGER NOT NULL,           -- the number of the first event of the batch
    count INTEGER NOT NULL,
    checkpoint_id TEXT NOT NULL,      -- the commit that told them; it may be forgotten
    moment REAL,                      -- of the commit, in seconds since the epoch
    checksum TEXT NOT NULL,
    refs TEXT NOT NULL,               -- a JSON array of hashes
    data BLOB NOT NULL,
    FOREIGN KEY (tenant, run_id) REFERENCES runs (tenant, run_id) ON DELETE CASCADE
);

INSERT INTO events (batch, run_id, first, count, checkpoint_id, moment, checksum, refs, data)
SELECT batch, run_id, first, count, checkpoint_id, moment, checksum, refs, data FROM former_events;

DROP TABLE former_checkpoints;

DROP TABLE former_journal;

DROP TABLE former_inbox;

DROP TABLE former_events;

DROP TABLE former_runs;

DROP TABLE former_parts;

DROP TABLE former_counters;

-- Which runs rest on a checkpoint of another: forks before their first commit.
CREATE INDEX runs_that_rest ON runs (tenant, parent_checkpoint_id) WHERE position = -1;

CREATE INDEX runs_finished ON runs (tenant, moment) WHERE settled = 1;

CREATE INDEX runs_in_order ON runs (tenant, began);

CREATE INDEX runs_of_workflow ON runs (tenant, workflow_name, began);

CREATE INDEX runs_of_status ON runs (tenant, status, began) WHERE halt IS NULL;

CREATE INDEX runs_halted ON runs (tenant, began) WHERE halt IS NOT NULL;

-- Which can go on, and nobody has claimed them, longest waiting first.
CREATE INDEX runs_ready ON runs (tenant, moment, began)
WHERE halt IS NULL AND owner_id IS NULL AND status <> 'cancelled' AND (status = 'running' OR commands > 0);

CREATE INDEX runs_to_wake ON runs (tenant, wake_at) WHERE halt IS NULL AND wake_at IS NOT NULL;

CREATE INDEX runs_owned ON runs (tenant, owner_id, owner_host, owner_boot, owner_pid) WHERE owner_id IS NOT NULL;

CREATE UNIQUE INDEX checkpoints_of_run ON checkpoints (tenant, run_id, position);

CREATE INDEX checkpoints_in_order ON checkpoints (tenant, sequence);

CREATE INDEX checkpoints_of_workflow ON checkpoints (tenant, workflow_name, sequence);

CREATE INDEX checkpoints_by_age ON checkpoints (tenant, run_id, moment);

CREATE UNIQUE INDEX journal_of_run ON journal (tenant, run_id, key);

CREATE UNIQUE INDEX inbox_by_id ON inbox (tenant, run_id, id);

CREATE INDEX inbox_in_order ON inbox (tenant, run_id, number);

CREATE UNIQUE INDEX events_of_run ON events (tenant, run_id, first);

CREATE TRIGGER checkpoints_gain AFTER INSERT ON checkpoints BEGIN
    UPDATE runs SET checkpoints = checkpoints + 1 WHERE tenant = NEW.tenant AND run_id = NEW.run_id;
END;

CREATE TRIGGER checkpoints_loss AFTER DELETE ON checkpoints BEGIN
    UPDATE runs SET checkpoints = checkpoints - 1 WHERE tenant = OLD.tenant AND run_id = OLD.run_id;
END;

CREATE TRIGGER journal_gain AFTER INSERT ON journal BEGIN
    UPDATE runs SET records = records + 1 WHERE tenant = NEW.tenant AND run_id = NEW.run_id;
END;

CREATE TRIGGER journal_loss AFTER DELETE ON journal BEGIN
    UPDATE runs SET records = records - 1 WHERE tenant = OLD.tenant AND run_id = OLD.run_id;
END;

CREATE TRIGGER inbox_gain AFTER INSERT ON inbox BEGIN
    UPDATE runs SET commands = commands + 1 WHERE tenant = NEW.tenant AND run_id = NEW.run_id;
END;

CREATE TRIGGER inbox_loss AFTER DELETE ON inbox BEGIN
    UPDATE runs SET commands = commands - 1 WHERE tenant = OLD.tenant AND run_id = OLD.run_id;
END;

CREATE TRIGGER events_loss AFTER DELETE ON events BEGIN
    UPDATE runs SET forgotten = max(forgotten, OLD.first + OLD.count - 1)
    WHERE tenant = OLD.tenant AND run_id = OLD.run_id;
END;
