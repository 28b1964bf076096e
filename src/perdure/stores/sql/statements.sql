-- The statements of the SQLite store, each under its name.

-- name: run
SELECT * FROM runs WHERE run_id = :run_id;

-- name: runs
SELECT * FROM runs WHERE head IS NOT NULL ORDER BY began;

-- name: runs_of_workflow
SELECT * FROM runs WHERE workflow_name = :workflow_name AND head IS NOT NULL ORDER BY began;

-- name: runs_of_status
SELECT * FROM runs WHERE status = :status AND head IS NOT NULL ORDER BY began;

-- name: put_run
-- A run as it is now, new or not. An upsert, since replacing the row would take its checkpoints with it.
INSERT INTO runs (
    run_id, workflow_name, created_at, nonce, input_digest, parent_checkpoint_id, head, position, settled, status,
    wake_at, events, checksum, moment, token, began, owner_id, owner_host, owner_boot, owner_pid
) VALUES (
    :run_id, :workflow_name, :created_at, :nonce, :input_digest, :parent_checkpoint_id, :head, :position, :settled,
    :status, :wake_at, :events, :checksum, :moment, :token, :token, :owner_id, :owner_host, :owner_boot, :owner_pid
)
ON CONFLICT (run_id) DO UPDATE SET
    workflow_name = excluded.workflow_name, created_at = excluded.created_at, nonce = excluded.nonce,
    input_digest = excluded.input_digest, parent_checkpoint_id = excluded.parent_checkpoint_id,
    head = excluded.head, position = excluded.position, settled = excluded.settled, status = excluded.status,
    wake_at = excluded.wake_at, events = excluded.events, checksum = excluded.checksum, moment = excluded.moment,
    token = excluded.token, owner_id = excluded.owner_id, owner_host = excluded.owner_host,
    owner_boot = excluded.owner_boot, owner_pid = excluded.owner_pid;

-- name: drop_run
-- Its checkpoints, its journal, its inbox and its events go with it.
DELETE FROM runs WHERE run_id = :run_id;

-- name: mark
SELECT head, events, owner_id, owner_host, owner_boot, owner_pid,
    (SELECT coalesce(max(number), 0) FROM inbox WHERE inbox.run_id = :run_id) AS commands
FROM runs WHERE run_id = :run_id AND head IS NOT NULL;

-- name: count_checkpoints_of_run
SELECT count(*) FROM checkpoints WHERE run_id = :run_id;

-- name: count
UPDATE counters SET value = value + :by WHERE name = :name;

-- name: counted
SELECT value FROM counters WHERE name = :name;

-- name: reset_pruned
UPDATE counters SET value = 0 WHERE name = 'pruned';

-- name: put_part
INSERT INTO parts (hash, kind, refs, data) VALUES (:hash, :kind, :refs, :data) ON CONFLICT (hash) DO NOTHING;

-- name: put_checkpoint
INSERT INTO checkpoints (
    checkpoint_id, run_id, workflow_name, position, previous_id, timestamp, moment, iteration_count, settled, status,
    wake_at, checksum, header, toc
) VALUES (
    :checkpoint_id, :run_id, :workflow_name, :position, :previous_id, :timestamp, :moment, :iteration_count, :settled,
    :status, :wake_at, :checksum, :header, :toc
);

-- name: put_record
INSERT INTO journal (run_id, key, head, checksum, refs, data)
VALUES (:run_id, :key, :head, :checksum, :refs, :data)
ON CONFLICT (run_id, key) DO UPDATE SET
    head = excluded.head, checksum = excluded.checksum, refs = excluded.refs, data = excluded.data;

-- name: has_record_with_parts
SELECT 1 FROM journal WHERE run_id = :run_id AND key = :key AND refs <> '[]';

-- name: journal
-- With the head that the run has, which is the one that it was recorded on unless a perdure without journals wrote since,
-- and how many there are. A run that has none is a row without a record.
SELECT journal.*, runs.head AS run_head, runs.records AS due
FROM runs LEFT JOIN journal ON journal.run_id = runs.run_id
WHERE runs.run_id = :run_id ORDER BY journal.ordinal;

-- name: count_records_with_parts
SELECT count(*) FROM journal WHERE run_id = :run_id AND refs <> '[]';

-- name: drop_journal
DELETE FROM journal WHERE run_id = :run_id;

-- name: drop_journals_of_forks
-- Those of the forks that have nothing but this checkpoint.
DELETE FROM journal WHERE run_id IN (
    SELECT run_id FROM runs WHERE position = -1 AND parent_checkpoint_id = :checkpoint_id
);

-- name: put_command
INSERT INTO inbox (number, run_id, id, kind, expects, checksum, refs, data)
VALUES (:number, :run_id, :id, :kind, :expects, :checksum, :refs, :data);

-- name: command
SELECT inbox.*, runs.head AS run_head FROM inbox JOIN runs ON runs.run_id = inbox.run_id
WHERE inbox.run_id = :run_id AND inbox.id = :id;

-- name: commands
-- With how many there are. A run that has none is a row without a command.
SELECT inbox.*, runs.head AS run_head, runs.commands AS due
FROM runs LEFT JOIN inbox ON inbox.run_id = runs.run_id
WHERE runs.run_id = :run_id ORDER BY inbox.number;

-- name: newest_command
SELECT coalesce(max(number), 0) FROM inbox WHERE run_id = :run_id;

-- name: has_command
SELECT 1 FROM inbox WHERE run_id = :run_id AND id = :id;

-- name: has_command_with_parts
SELECT 1 FROM inbox WHERE run_id = :run_id AND id = :id AND refs <> '[]';

-- name: drop_command
DELETE FROM inbox WHERE run_id = :run_id AND id = :id;

-- name: count_expecting_commands_with_parts
SELECT count(*) FROM inbox WHERE run_id = :run_id AND expects IS NOT NULL AND refs <> '[]';

-- name: drop_expecting_commands
DELETE FROM inbox WHERE run_id = :run_id AND expects IS NOT NULL;

-- name: count_commands_with_parts
SELECT count(*) FROM inbox WHERE run_id = :run_id AND refs <> '[]';

-- name: put_batch
INSERT INTO events (run_id, first, count, checkpoint_id, moment, checksum, refs, data)
VALUES (:run_id, :first, :count, :checkpoint_id, :moment, :checksum, :refs, :data);

-- name: batches
-- From the one on that holds the next event, with the numbers of the newest event of the run and of the last one that
-- was removed. A run that has none is a row without a batch.
SELECT events.*, runs.head AS run_head, runs.events AS newest, runs.forgotten AS forgotten
FROM runs LEFT JOIN events ON events.run_id = runs.run_id
    AND events.first >= coalesce((SELECT max(first) FROM events WHERE run_id = :run_id AND first <= :after + 1), 0)
WHERE runs.run_id = :run_id
ORDER BY events.first LIMIT :limit;

-- name: count_batches_with_parts
SELECT count(*) FROM events WHERE run_id = :run_id AND refs <> '[]';

-- name: batches_but_newest
-- All but the newest so many of a run.
SELECT first, refs <> '[]' AS has_parts FROM events
WHERE run_id = :run_id
    AND first < (SELECT first FROM events WHERE run_id = :run_id ORDER BY first DESC LIMIT 1 OFFSET :keep - 1)
ORDER BY first LIMIT :limit;

-- name: batches_older
-- Those of a run before the first that is young enough, so that what stays has no gap.
SELECT first, refs <> '[]' AS has_parts FROM events
WHERE run_id = :run_id
    AND first < coalesce(
        (
            SELECT first FROM events
            WHERE run_id = :run_id AND (moment IS NULL OR moment >= :cutoff) ORDER BY first LIMIT 1
        ),
        9223372036854775807
    )
ORDER BY first LIMIT :limit;

-- name: drop_batches
-- The oldest ones of a run, up to this one.
DELETE FROM events WHERE run_id = :run_id AND first <= :last;

-- name: is_checkpoint
SELECT 1 FROM checkpoints WHERE checkpoint_id = :checkpoint_id;

-- name: checkpoint
SELECT * FROM checkpoints WHERE checkpoint_id = :checkpoint_id;

-- name: checkpoints
SELECT * FROM checkpoints ORDER BY sequence;

-- name: checkpoints_of_workflow
SELECT * FROM checkpoints WHERE workflow_name = :workflow_name ORDER BY sequence;

-- name: checkpoints_of_run
-- With how many there are. A run that has none is a row without a checkpoint.
SELECT checkpoints.*, runs.head AS run_head, runs.checkpoints AS due
FROM runs LEFT JOIN checkpoints ON checkpoints.run_id = runs.run_id
WHERE runs.run_id = :run_id ORDER BY checkpoints.sequence;

-- name: ids
SELECT checkpoint_id FROM checkpoints ORDER BY sequence;

-- name: ids_of_workflow
SELECT checkpoint_id FROM checkpoints WHERE workflow_name = :workflow_name ORDER BY sequence;

-- name: latest_of_workflow
SELECT * FROM checkpoints WHERE workflow_name = :workflow_name ORDER BY sequence DESC LIMIT 1;

-- name: newest_of_run
SELECT * FROM checkpoints WHERE run_id = :run_id ORDER BY position DESC LIMIT 1;

-- name: drop_checkpoint
DELETE FROM checkpoints WHERE checkpoint_id = :checkpoint_id;

-- name: prune_but_newest
-- All but the newest so many of a run; never its head, nor what a fork rests on.
DELETE FROM checkpoints WHERE sequence IN (
    SELECT sequence FROM checkpoints
    WHERE run_id = :run_id
        AND position < (
            SELECT position FROM checkpoints
            WHERE run_id = :run_id ORDER BY position DESC LIMIT 1 OFFSET :keep - 1
        )
        AND checkpoint_id <> :head
        AND checkpoint_id NOT IN (
            SELECT parent_checkpoint_id FROM runs WHERE position = -1 AND parent_checkpoint_id IS NOT NULL
        )
    ORDER BY position LIMIT :limit
);

-- name: prune_older
-- Those of a run that are older; never its head, nor what a fork rests on.
DELETE FROM checkpoints WHERE sequence IN (
    SELECT sequence FROM checkpoints
    WHERE run_id = :run_id
        AND moment < :cutoff
        AND checkpoint_id <> :head
        AND checkpoint_id NOT IN (
            SELECT parent_checkpoint_id FROM runs WHERE position = -1 AND parent_checkpoint_id IS NOT NULL
        )
    ORDER BY moment LIMIT :limit
);

-- name: finished_runs
-- Settled and old, with no command that waits; not the run that commits, nor one that a fork rests on.
SELECT * FROM runs
WHERE settled = 1
    AND moment < :cutoff
    AND run_id <> :besides
    AND NOT EXISTS (SELECT 1 FROM inbox WHERE inbox.run_id = runs.run_id)
    AND NOT EXISTS (
        SELECT 1 FROM runs AS fork JOIN checkpoints ON checkpoints.checkpoint_id = fork.parent_checkpoint_id
        WHERE fork.position = -1 AND fork.parent_checkpoint_id IS NOT NULL AND checkpoints.run_id = runs.run_id
    )
ORDER BY moment LIMIT :limit;

-- name: parts
-- Parts with all that they refer to.
WITH RECURSIVE wanted (hash) AS (
    SELECT value FROM json_each(:roots)
    UNION
    SELECT ref.value
    FROM wanted JOIN parts ON parts.hash = wanted.hash,
        json_each(CASE WHEN json_valid(parts.refs) THEN parts.refs ELSE '[]' END) AS ref
)
SELECT parts.hash, parts.data, json_valid(parts.refs) AS has_refs FROM wanted JOIN parts ON parts.hash = wanted.hash;

-- name: sweep
-- Remove some of the parts that no checkpoint, journal, inbox or event refers to, directly or not.
DELETE FROM parts WHERE hash IN (
    WITH RECURSIVE needed (hash) AS (
        SELECT root.value FROM checkpoints, json_each(checkpoints.toc) AS root
        UNION
        SELECT root.value FROM journal, json_each(journal.refs) AS root
        UNION
        SELECT root.value FROM inbox, json_each(inbox.refs) AS root
        UNION
        SELECT root.value FROM events, json_each(events.refs) AS root
        UNION
        SELECT ref.value FROM needed JOIN parts ON parts.hash = needed.hash, json_each(parts.refs) AS ref
    )
    SELECT hash FROM parts WHERE hash NOT IN (SELECT hash FROM needed WHERE hash IS NOT NULL) LIMIT :limit
);

-- name: count_checkpoints
SELECT count(*) FROM checkpoints;
