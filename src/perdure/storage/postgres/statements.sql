-- The statements of the PostgreSQL store, by name. All but the last few concern the rows of one tenant.

-- name: hold_run
-- Prevent others from creating a run of that id until the transaction ends.
SELECT pg_advisory_xact_lock(hashtextextended(current_schema() || ' ' || %(tenant)s || ' ' || %(run_id)s, 1));

-- name: run
SELECT * FROM runs WHERE tenant = %(tenant)s AND run_id = %(run_id)s;

-- name: run_for_change
-- Lock the run until the transaction ends.
SELECT * FROM runs WHERE tenant = %(tenant)s AND run_id = %(run_id)s FOR UPDATE;

-- name: runs
-- Runs that have begun. The names of further lines, joined by "+", add their conditions and the order.
SELECT * FROM runs WHERE tenant = %(tenant)s AND head IS NOT NULL;

-- name: status_counts
-- Takes the same further lines as `runs`.
SELECT coalesce((halt::JSON ->> 'kind'), status) AS status, count(*) AS number
FROM runs WHERE tenant = %(tenant)s AND head IS NOT NULL;

-- name: +workflow
AND hashtextextended(workflow_name, 0) = hashtextextended(%(workflow_name)s, 0) AND workflow_name = %(workflow_name)s

-- name: +status
AND halt IS NULL AND status = %(status)s

-- name: +halt
AND halt IS NOT NULL AND (halt::JSON ->> 'kind') = %(status)s

-- name: +statuses
AND coalesce((halt::JSON ->> 'kind'), status) IN (SELECT json_array_elements_text(%(statuses)s::JSON))

-- name: +tag
AND run_id IN (SELECT run_id FROM run_tags WHERE tenant = %(tenant)s AND name = %(tag_name)s AND value = %(tag_value)s)

-- name: +tags
AND NOT EXISTS (
    SELECT 1 FROM json_each_text(%(tags)s::JSON) AS wanted
    WHERE NOT EXISTS (
        SELECT 1 FROM run_tags
        WHERE tenant = %(tenant)s AND name = wanted.key AND run_tags.value = wanted.value
            AND run_tags.run_id = runs.run_id
    )
)

-- name: +created_after
AND created_at >= %(created_after)s

-- name: +created_before
AND created_at < %(created_before)s

-- name: +updated_after
AND moment >= %(updated_after)s

-- name: +updated_before
AND moment < %(updated_before)s

-- name: +error
AND (halt::JSON ->> 'reason') ILIKE %(error)s ESCAPE '!'

-- name: +parent
AND parent_run_id = %(parent)s

-- name: +requests
AND NOT settled AND (requests IS NULL OR requests > 0 OR described_at IS DISTINCT FROM position)

-- name: +ids
AND run_id = ANY(%(run_ids)s::TEXT[])

-- name: +candidates
-- Runs that have work, or a timer that is due, and no owner or one that is gone. Indexes lead to all of them.
AND run_id IN (
    SELECT run_id FROM runs
    WHERE tenant = %(tenant)s AND halt IS NULL AND owner_id IS NULL
        AND status <> 'cancelled' AND (status = 'running' OR commands > 0)
    UNION ALL
    SELECT run_id FROM runs
    WHERE tenant = %(tenant)s AND halt IS NULL AND wake_at IS NOT NULL AND wake_at <= %(at)s
    UNION ALL
    SELECT run_id FROM runs
    WHERE tenant = %(tenant)s AND owner_id IS NOT NULL AND owner_id = ANY(%(owners)s::TEXT[])
)

-- name: +blocked
-- The run can go on, has no living owner, and each living host that registers its workflow could not load it. A host
-- with an older version of the workflow does not count.
AND halt IS NULL AND status <> 'cancelled' AND (status = 'running' OR commands > 0 OR wake_at <= %(at)s)
AND (owner_id IS NULL OR owner_id = ANY(%(owners)s::TEXT[]))
AND NOT EXISTS (
    SELECT 1 FROM host_workflows AS candidate
    WHERE candidate.tenant = %(tenant)s AND candidate.host_id = ANY(%(hosts)s::TEXT[])
        AND candidate.workflow_name = runs.workflow_name
        AND candidate.version >= coalesce(runs.version, candidate.version)
        AND NOT EXISTS (
            SELECT 1 FROM run_blocks
            WHERE run_blocks.tenant = %(tenant)s AND run_blocks.run_id = runs.run_id
                AND run_blocks.host_id = candidate.host_id AND run_blocks.head = runs.head
        )
)

-- name: +after_oldest
AND began > (SELECT began FROM runs WHERE tenant = %(tenant)s AND run_id = %(after)s)

-- name: +after_newest
AND began < (SELECT began FROM runs WHERE tenant = %(tenant)s AND run_id = %(after)s)

-- name: +after_updated
AND (coalesce(moment, 0), began) < (
    SELECT coalesce(moment, 0), began FROM runs WHERE tenant = %(tenant)s AND run_id = %(after)s
)

-- name: +oldest
ORDER BY began LIMIT %(limit)s

-- name: +newest
ORDER BY began DESC LIMIT %(limit)s

-- name: +updated
ORDER BY coalesce(moment, 0) DESC, began DESC LIMIT %(limit)s

-- name: +oldest_of_few
ORDER BY +began LIMIT %(limit)s

-- name: +newest_of_few
ORDER BY +began DESC LIMIT %(limit)s

-- name: +by_status
GROUP BY 1

-- name: put_tag
INSERT INTO run_tags (tenant, name, value, run_id) VALUES (%(tenant)s, %(name)s, %(value)s, %(run_id)s);

-- name: checkpoints_at
-- The checkpoints with these runs and positions.
SELECT checkpoints.* FROM json_array_elements(%(places)s::JSON) AS place (value)
JOIN checkpoints ON checkpoints.tenant = %(tenant)s AND checkpoints.run_id = place.value ->> 0
    AND checkpoints.position = (place.value ->> 1)::BIGINT;

-- name: count_by_status
SELECT status, count(*) AS number FROM runs WHERE tenant = %(tenant)s AND halt IS NULL GROUP BY status;

-- name: count_by_halt
SELECT (halt::JSON ->> 'kind') AS status, count(*) AS number FROM runs WHERE tenant = %(tenant)s AND halt IS NOT NULL GROUP BY 1;

-- name: put_run
-- Insert or update a run. Replacing the row would delete its checkpoints. Columns that never change are not updated,
-- so that their indexes are not touched.
INSERT INTO runs (
    tenant, run_id, workflow_name, created_at, nonce, input_digest, parent_checkpoint_id, head, position, settled,
    status, wake_at, events, checksum, moment, token, began, owner_id, owner_host, owner_boot, owner_pid, attempts, halt,
    parent_run_id, tags, version, supersteps, spent, requests, described_at,
    facts_checksum
) VALUES (
    %(tenant)s, %(run_id)s, %(workflow_name)s, %(created_at)s, %(nonce)s, %(input_digest)s, %(parent_checkpoint_id)s, %(head)s, %(position)s,
    %(settled)s, %(status)s, %(wake_at)s, %(events)s, %(checksum)s, %(moment)s, %(token)s, %(token)s, %(owner_id)s, %(owner_host)s, %(owner_boot)s,
    %(owner_pid)s, %(attempts)s, %(halt)s, %(parent_run_id)s, %(tags)s, %(version)s, %(supersteps)s,
    %(spent)s, %(requests)s, %(described_at)s, %(facts_checksum)s
)
ON CONFLICT (tenant, run_id) DO UPDATE SET
    nonce = excluded.nonce, head = excluded.head, position = excluded.position, settled = excluded.settled,
    status = excluded.status, wake_at = excluded.wake_at, events = excluded.events, checksum = excluded.checksum,
    moment = excluded.moment, token = excluded.token, owner_id = excluded.owner_id, owner_host = excluded.owner_host,
    owner_boot = excluded.owner_boot, owner_pid = excluded.owner_pid, attempts = excluded.attempts,
    halt = excluded.halt, requests = excluded.requests, described_at = excluded.described_at,
    facts_checksum = excluded.facts_checksum;

-- name: hand_run_over
-- Change the owner and the halt of an existing run. Indexes of other columns are not touched.
UPDATE runs SET
    token = %(token)s, owner_id = %(owner_id)s, owner_host = %(owner_host)s, owner_boot = %(owner_boot)s,
    owner_pid = %(owner_pid)s, attempts = %(attempts)s, halt = %(halt)s
WHERE tenant = %(tenant)s AND run_id = %(run_id)s;

-- name: release_run
-- Release a run, if the lease still holds. Return its head.
UPDATE runs SET
    owner_id = NULL, owner_host = NULL, owner_boot = NULL, owner_pid = NULL, attempts = 0, halt = %(halt)s
WHERE tenant = %(tenant)s AND run_id = %(run_id)s AND token = %(token)s AND owner_id IS NOT NULL
RETURNING head;

-- name: commit_run
-- Commit to a run, if it is as expected and the checkpoint id is free. Return how many journal records and commands
-- the run has.
UPDATE runs SET
    head = %(head)s, position = %(position)s, settled = %(settled)s, status = %(status)s, wake_at = %(wake_at)s,
    events = %(events)s, checksum = %(checksum)s, moment = %(moment)s, attempts = 0, checkpoints = checkpoints + 1,
    version = %(version)s,
    supersteps = %(supersteps)s, spent = %(spent)s, requests = %(requests)s, described_at = %(described_at)s,
    facts_checksum = %(facts_checksum)s
WHERE tenant = %(tenant)s AND run_id = %(run_id)s AND token = %(token)s AND owner_id = %(owner_id)s
    AND head IS NOT DISTINCT FROM %(before)s
    AND NOT EXISTS (SELECT 1 FROM checkpoints WHERE tenant = %(tenant)s AND checkpoint_id = %(head)s)
RETURNING records, commands;

-- name: advance_run
-- Commit to a run whose status does not change.
UPDATE runs SET
    head = %(head)s, position = %(position)s, events = %(events)s, checksum = %(checksum)s, moment = %(moment)s,
    attempts = 0, checkpoints = checkpoints + 1,
    version = %(version)s,
    supersteps = %(supersteps)s, spent = %(spent)s, requests = %(requests)s, described_at = %(described_at)s,
    facts_checksum = %(facts_checksum)s
WHERE tenant = %(tenant)s AND run_id = %(run_id)s AND token = %(token)s AND owner_id = %(owner_id)s
    AND head IS NOT DISTINCT FROM %(before)s
    AND NOT EXISTS (SELECT 1 FROM checkpoints WHERE tenant = %(tenant)s AND checkpoint_id = %(head)s)
RETURNING records, commands;

-- name: hold_run_at
-- Lock a run for a write to its journal, if it is as expected. Return how many records it has.
UPDATE runs SET attempts = %(attempts)s
WHERE tenant = %(tenant)s AND run_id = %(run_id)s AND token = %(token)s AND owner_id = %(owner_id)s
    AND head IS NOT DISTINCT FROM %(before)s
RETURNING records;

-- name: count_checkpoints_in
UPDATE runs SET checkpoints = checkpoints + %(by)s WHERE tenant = %(tenant)s AND run_id = %(run_id)s;

-- name: count_blob_users
-- How many rows of a run refer to blobs.
SELECT
    (SELECT count(*) FROM checkpoints WHERE tenant = %(tenant)s AND run_id = %(run_id)s)
    + (SELECT count(*) FROM journal WHERE tenant = %(tenant)s AND run_id = %(run_id)s AND refs <> '[]')
    + (SELECT count(*) FROM inbox WHERE tenant = %(tenant)s AND run_id = %(run_id)s AND refs <> '[]')
    + (SELECT count(*) FROM events WHERE tenant = %(tenant)s AND run_id = %(run_id)s AND refs <> '[]') AS number;

-- name: drop_run
-- Its checkpoints, journal, inbox and events are deleted with it.
DELETE FROM runs WHERE tenant = %(tenant)s AND run_id = %(run_id)s;

-- name: mark
SELECT head, events, owner_id, owner_host, owner_boot, owner_pid, status, wake_at, halt IS NOT NULL AS is_halted,
    (
        SELECT coalesce(max(number), 0) FROM inbox WHERE inbox.tenant = %(tenant)s AND inbox.run_id = %(run_id)s
    ) AS commands
FROM runs WHERE tenant = %(tenant)s AND run_id = %(run_id)s AND head IS NOT NULL;

-- name: owners
-- All owners of runs.
SELECT DISTINCT owner_id, owner_host, owner_boot, owner_pid FROM runs
WHERE tenant = %(tenant)s AND owner_id IS NOT NULL;

-- name: due
-- Runs of these workflows that can go on and have no living owner, longest waiting first, each with the number of its
-- newest command. The candidates are runs without an owner that have work, runs without an owner whose timer is due,
-- and both kinds of runs of owners that can be replaced.
WITH candidate AS (
    (
        SELECT run_id, moment, began FROM runs
        WHERE tenant = %(tenant)s AND halt IS NULL AND owner_id IS NULL
            AND status <> 'cancelled' AND (status = 'running' OR commands > 0)
            AND head IS NOT NULL AND workflow_name = ANY(%(workflow_names)s::TEXT[])
        ORDER BY moment NULLS FIRST, began LIMIT %(limit)s
    )
    UNION ALL
    SELECT run_id, moment, began FROM runs
    WHERE tenant = %(tenant)s AND halt IS NULL AND wake_at IS NOT NULL AND wake_at <= %(at)s
        AND owner_id IS NULL AND status <> 'cancelled' AND NOT (status = 'running' OR commands > 0)
        AND head IS NOT NULL AND workflow_name = ANY(%(workflow_names)s::TEXT[])
    UNION ALL
    SELECT run_id, moment, began FROM runs
    WHERE tenant = %(tenant)s AND owner_id = ANY(%(owners)s::TEXT[])
        AND halt IS NULL AND status <> 'cancelled' AND (status = 'running' OR commands > 0 OR wake_at <= %(at)s)
        AND head IS NOT NULL AND workflow_name = ANY(%(workflow_names)s::TEXT[])
)
SELECT runs.*,
    (
        SELECT coalesce(max(number), 0) FROM inbox WHERE inbox.tenant = %(tenant)s AND inbox.run_id = runs.run_id
    ) AS newest_command
FROM (SELECT * FROM candidate ORDER BY moment NULLS FIRST, began LIMIT %(limit)s) AS chosen
JOIN runs ON runs.tenant = %(tenant)s AND runs.run_id = chosen.run_id
ORDER BY chosen.moment NULLS FIRST, chosen.began;

-- name: next_wake
-- Runs of these workflows with a later timer, earliest first.
SELECT * FROM runs
WHERE tenant = %(tenant)s AND halt IS NULL AND wake_at IS NOT NULL AND wake_at > %(after)s
    AND head IS NOT NULL AND status <> 'cancelled' AND workflow_name = ANY(%(workflow_names)s::TEXT[])
ORDER BY wake_at LIMIT %(limit)s;

-- name: forks_that_rest
-- Forks that have only a checkpoint of this run.
SELECT fork.run_id, fork.parent_checkpoint_id
FROM runs AS fork
JOIN checkpoints ON checkpoints.tenant = %(tenant)s AND checkpoints.checkpoint_id = fork.parent_checkpoint_id
WHERE fork.tenant = %(tenant)s AND fork.position = -1 AND fork.parent_checkpoint_id IS NOT NULL
    AND checkpoints.run_id = %(run_id)s AND fork.run_id <> %(run_id)s;

-- name: next_token
-- Larger than all former tokens, and than this one.
SELECT next_above('tokens', %(above)s) AS number;

-- name: note_token
-- Note a token from elsewhere, so that later ones are larger.
SELECT next_above('tokens', %(token)s);

-- name: next_command
-- Larger than all former numbers.
SELECT nextval('command_numbers') AS number;

-- name: count_pruned
INSERT INTO pruned (tenant, number) VALUES (%(tenant)s, %(by)s);

-- name: pruned
SELECT coalesce(sum(number), 0)::BIGINT AS number FROM pruned WHERE tenant = %(tenant)s;

-- name: reset_pruned
DELETE FROM pruned WHERE tenant = %(tenant)s;

-- name: put_part
-- Add a blob, or mark an existing one with the present epoch, so that a running collection keeps it.
INSERT INTO parts (tenant, hash, epoch, kind, refs, data)
VALUES (%(tenant)s, %(hash)s, (SELECT epoch FROM collections), %(kind)s, %(refs)s, %(data)s)
ON CONFLICT (tenant, hash) DO UPDATE SET epoch = excluded.epoch WHERE parts.epoch < excluded.epoch;

-- name: put_checkpoint
INSERT INTO checkpoints (
    tenant, checkpoint_id, run_id, workflow_name, position, previous_id, timestamp, moment, iteration_count, settled,
    status, wake_at, checksum, header, toc, pieces
) VALUES (
    %(tenant)s, %(checkpoint_id)s, %(run_id)s, %(workflow_name)s, %(position)s, %(previous_id)s, %(timestamp)s, %(moment)s, %(iteration_count)s,
    %(settled)s, %(status)s, %(wake_at)s, %(checksum)s, %(header)s, %(toc)s, %(pieces)s
);

-- name: put_record
-- The caller has locked the run, so nobody else writes to this journal.
WITH replaced AS (
    UPDATE journal SET head = %(head)s, checksum = %(checksum)s, refs = %(refs)s, data = %(data)s
    WHERE tenant = %(tenant)s AND run_id = %(run_id)s
        AND hashtextextended(key, 0) = hashtextextended(%(key)s, 0) AND key = %(key)s
    RETURNING 1
)
INSERT INTO journal (tenant, run_id, key, head, checksum, refs, data)
SELECT %(tenant)s, %(run_id)s, %(key)s, %(head)s, %(checksum)s, %(refs)s, %(data)s
WHERE NOT EXISTS (SELECT 1 FROM replaced);

-- name: count_replaced_with_parts
-- How many records of these keys refer to blobs.
SELECT count(*) AS number FROM journal
WHERE tenant = %(tenant)s AND run_id = %(run_id)s AND key = ANY(%(keys)s::TEXT[]) AND refs <> '[]';

-- name: journal
-- With the run's head and the number of its records. The head differs only if an old version without journals wrote
-- since. A run without records is a row without a record.
SELECT journal.*, runs.head AS run_head, runs.records AS due
FROM runs LEFT JOIN journal ON journal.tenant = %(tenant)s AND journal.run_id = runs.run_id
WHERE runs.tenant = %(tenant)s AND runs.run_id = %(run_id)s ORDER BY journal.ordinal;

-- name: drop_journal
DELETE FROM journal WHERE tenant = %(tenant)s AND run_id = %(run_id)s RETURNING refs <> '[]' AS has_parts;

-- name: count_no_records
UPDATE runs SET records = 0 WHERE tenant = %(tenant)s AND run_id = %(run_id)s;

-- name: drop_journals_of_forks
-- The journals of forks that have only this checkpoint.
DELETE FROM journal WHERE tenant = %(tenant)s AND run_id IN (
    SELECT run_id FROM runs WHERE tenant = %(tenant)s AND position = -1 AND parent_checkpoint_id = %(checkpoint_id)s
);

-- name: count_no_records_of_forks
UPDATE runs SET records = 0
WHERE tenant = %(tenant)s AND position = -1 AND parent_checkpoint_id = %(checkpoint_id)s;

-- name: put_command
INSERT INTO inbox (number, tenant, run_id, id, kind, expects, checksum, refs, data)
VALUES (%(number)s, %(tenant)s, %(run_id)s, %(id)s, %(kind)s, %(expects)s, %(checksum)s, %(refs)s, %(data)s);

-- name: command
SELECT inbox.*, runs.head AS run_head
FROM inbox JOIN runs ON runs.tenant = %(tenant)s AND runs.run_id = inbox.run_id
WHERE inbox.tenant = %(tenant)s AND inbox.run_id = %(run_id)s
    AND hashtextextended(inbox.id, 0) = hashtextextended(%(id)s, 0) AND inbox.id = %(id)s;

-- name: commands
-- With the number of the run's commands. A run without commands is a row without a command.
SELECT inbox.*, runs.head AS run_head, runs.commands AS due
FROM runs LEFT JOIN inbox ON inbox.tenant = %(tenant)s AND inbox.run_id = runs.run_id
WHERE runs.tenant = %(tenant)s AND runs.run_id = %(run_id)s ORDER BY inbox.number;

-- name: newest_command
SELECT coalesce(max(number), 0) AS number FROM inbox WHERE tenant = %(tenant)s AND run_id = %(run_id)s;

-- name: has_command
SELECT 1 FROM inbox WHERE tenant = %(tenant)s AND run_id = %(run_id)s
    AND hashtextextended(id, 0) = hashtextextended(%(id)s, 0) AND id = %(id)s;

-- name: drop_command
DELETE FROM inbox WHERE tenant = %(tenant)s AND run_id = %(run_id)s
    AND hashtextextended(id, 0) = hashtextextended(%(id)s, 0) AND id = %(id)s
RETURNING refs <> '[]' AS has_parts;

-- name: drop_expecting_commands
DELETE FROM inbox WHERE tenant = %(tenant)s AND run_id = %(run_id)s AND expects IS NOT NULL
RETURNING refs <> '[]' AS has_parts;

-- name: put_batch
INSERT INTO events (tenant, run_id, first, count, checkpoint_id, moment, checksum, refs, data)
VALUES (%(tenant)s, %(run_id)s, %(first)s, %(count)s, %(checkpoint_id)s, %(moment)s, %(checksum)s, %(refs)s, %(data)s);

-- name: batches
-- From the batch with the next event on, with the numbers of the run's newest event and of the last one that was
-- removed. A run without events is a row without a batch.
SELECT events.*, runs.head AS run_head, runs.events AS newest, runs.forgotten AS forgotten
FROM runs LEFT JOIN events ON events.tenant = %(tenant)s AND events.run_id = runs.run_id
    AND events.first >= coalesce(
        (SELECT max(first) FROM events WHERE tenant = %(tenant)s AND run_id = %(run_id)s AND first <= %(after)s + 1), 0
    )
WHERE runs.tenant = %(tenant)s AND runs.run_id = %(run_id)s
ORDER BY events.first LIMIT %(limit)s;

-- name: forget_events
-- Earlier events were removed in the store from which the run comes.
UPDATE runs SET forgotten = %(last)s WHERE tenant = %(tenant)s AND run_id = %(run_id)s;

-- name: prune_events_but_newest
-- All but the newest batches of a run.
DELETE FROM events WHERE tenant = %(tenant)s AND run_id = %(run_id)s AND first IN (
    SELECT first FROM events
    WHERE tenant = %(tenant)s AND run_id = %(run_id)s
        AND first < (
            SELECT first FROM events
            WHERE tenant = %(tenant)s AND run_id = %(run_id)s ORDER BY first DESC LIMIT 1 OFFSET %(keep)s - 1
        )
    ORDER BY first LIMIT %(limit)s
)
RETURNING refs <> '[]' AS has_parts;

-- name: prune_events_older
-- The batches of a run before the first one that is young enough, so that the rest has no gap.
DELETE FROM events WHERE tenant = %(tenant)s AND run_id = %(run_id)s AND first IN (
    SELECT first FROM events
    WHERE tenant = %(tenant)s AND run_id = %(run_id)s
        AND first < coalesce(
            (
                SELECT first FROM events
                WHERE tenant = %(tenant)s AND run_id = %(run_id)s AND (moment IS NULL OR moment >= %(cutoff)s)
                ORDER BY first LIMIT 1
            ),
            9223372036854775807
        )
    ORDER BY first LIMIT %(limit)s
)
RETURNING refs <> '[]' AS has_parts;

-- name: checkpoint
SELECT * FROM checkpoints WHERE tenant = %(tenant)s AND checkpoint_id = %(checkpoint_id)s;

-- name: hold_checkpoint
-- Lock the checkpoint until the transaction ends.
SELECT 1 FROM checkpoints WHERE tenant = %(tenant)s AND checkpoint_id = %(checkpoint_id)s FOR KEY SHARE;

-- name: checkpoints
SELECT * FROM checkpoints WHERE tenant = %(tenant)s ORDER BY sequence;

-- name: checkpoints_of_workflow
SELECT * FROM checkpoints
WHERE tenant = %(tenant)s AND hashtextextended(workflow_name, 0) = hashtextextended(%(workflow_name)s, 0)
    AND workflow_name = %(workflow_name)s
ORDER BY sequence;

-- name: checkpoints_of_run
-- With the number of the run's checkpoints. A run without checkpoints is a row without a checkpoint.
SELECT checkpoints.*, runs.head AS run_head, runs.checkpoints AS due
FROM runs LEFT JOIN checkpoints ON checkpoints.tenant = %(tenant)s AND checkpoints.run_id = runs.run_id
WHERE runs.tenant = %(tenant)s AND runs.run_id = %(run_id)s ORDER BY checkpoints.sequence;

-- name: ids
SELECT checkpoint_id FROM checkpoints WHERE tenant = %(tenant)s ORDER BY sequence;

-- name: run_ids
SELECT run_id FROM runs WHERE tenant = %(tenant)s ORDER BY run_id;

-- name: ids_of_run
SELECT checkpoint_id FROM checkpoints WHERE tenant = %(tenant)s AND run_id = %(run_id)s ORDER BY position;

-- name: ids_of_workflow
SELECT checkpoint_id FROM checkpoints
WHERE tenant = %(tenant)s AND hashtextextended(workflow_name, 0) = hashtextextended(%(workflow_name)s, 0)
    AND workflow_name = %(workflow_name)s
ORDER BY sequence;

-- name: latest_of_workflow
SELECT * FROM checkpoints
WHERE tenant = %(tenant)s AND hashtextextended(workflow_name, 0) = hashtextextended(%(workflow_name)s, 0)
    AND workflow_name = %(workflow_name)s
ORDER BY sequence DESC LIMIT 1;

-- name: newest_of_run
SELECT * FROM checkpoints WHERE tenant = %(tenant)s AND run_id = %(run_id)s ORDER BY position DESC LIMIT 1;

-- name: drop_checkpoint
DELETE FROM checkpoints
WHERE tenant = %(tenant)s AND run_id = %(run_id)s AND position = %(position)s AND checkpoint_id = %(checkpoint_id)s
RETURNING 1 AS found;

-- name: prune_checkpoints_but_newest
-- All but the newest checkpoints of a run, except its head and those that a fork needs.
DELETE FROM checkpoints WHERE sequence IN (
    SELECT sequence FROM checkpoints
    WHERE tenant = %(tenant)s AND run_id = %(run_id)s
        AND position < (
            SELECT position FROM checkpoints
            WHERE tenant = %(tenant)s AND run_id = %(run_id)s ORDER BY position DESC LIMIT 1 OFFSET %(keep)s - 1
        )
        AND checkpoint_id <> %(head)s
        AND checkpoint_id NOT IN (
            SELECT parent_checkpoint_id FROM runs
            WHERE tenant = %(tenant)s AND position = -1 AND parent_checkpoint_id IS NOT NULL
        )
    ORDER BY position LIMIT %(limit)s
)
RETURNING 1 AS has_parts;

-- name: prune_checkpoints_older
-- The older checkpoints of a run, except its head and those that a fork needs. Positions grow with time.
DELETE FROM checkpoints WHERE sequence IN (
    SELECT sequence FROM checkpoints
    WHERE tenant = %(tenant)s AND run_id = %(run_id)s
        AND position < coalesce(
            (
                SELECT position FROM checkpoints
                WHERE tenant = %(tenant)s AND run_id = %(run_id)s AND moment >= %(cutoff)s ORDER BY position LIMIT 1
            ),
            9223372036854775807
        )
        AND moment < %(cutoff)s
        AND checkpoint_id <> %(head)s
        AND checkpoint_id NOT IN (
            SELECT parent_checkpoint_id FROM runs
            WHERE tenant = %(tenant)s AND position = -1 AND parent_checkpoint_id IS NOT NULL
        )
    ORDER BY position LIMIT %(limit)s
)
RETURNING 1 AS has_parts;

-- name: finished_runs
-- Runs that are settled and old and have no waiting command, except the committing run, those that a fork needs, and
-- those that somebody is changing.
SELECT * FROM runs
WHERE tenant = %(tenant)s
    AND settled
    AND moment < %(cutoff)s
    AND run_id <> %(besides)s
    AND commands = 0
    AND NOT EXISTS (
        SELECT 1 FROM runs AS fork
        JOIN checkpoints ON checkpoints.tenant = %(tenant)s AND checkpoints.checkpoint_id = fork.parent_checkpoint_id
        WHERE fork.tenant = %(tenant)s AND fork.position = -1 AND fork.parent_checkpoint_id IS NOT NULL
            AND checkpoints.run_id = runs.run_id
    )
ORDER BY moment LIMIT %(limit)s
FOR UPDATE SKIP LOCKED;

-- name: parts
-- Blobs with all that they refer to.
WITH RECURSIVE wanted (hash) AS (
    SELECT unnest(%(roots)s::TEXT[]) COLLATE "C"
    UNION
    SELECT unnest(string_to_array(translate(parts.refs, '[]" ', ''), ',')) COLLATE "C"
    FROM wanted JOIN parts ON parts.tenant = %(tenant)s AND parts.hash = wanted.hash
)
SELECT parts.hash, parts.kind, parts.refs, parts.data, parts.refs ~ '^\[("\w+"(, ?"\w+")*)?\]$' AS has_refs
FROM wanted JOIN parts ON parts.tenant = %(tenant)s AND parts.hash = wanted.hash;

-- name: begin_collection
-- The epoch of a new collection. Blobs that are put from now on have at least this epoch.
UPDATE collections SET epoch = epoch + 1 RETURNING epoch AS number;

-- name: unreachable
-- Some of the blobs that no checkpoint, journal, inbox or event refers to, directly or not, and that were not put
-- since the collection began. Damaged JSON is an error, not a reason to remove anything. Paths may contain escapes
-- that the server does not accept, such as \u0000, so all escapes are removed before they are read; hashes contain
-- none.
WITH RECURSIVE needed (hash) AS (
    (
        SELECT (json_each_text(regexp_replace(toc::JSON::TEXT, '\\.', '', 'g')::JSON)).value COLLATE "C"
        FROM checkpoints WHERE tenant = %(tenant)s
        UNION
        SELECT json_array_elements_text(refs::JSON) FROM journal WHERE tenant = %(tenant)s
        UNION
        SELECT json_array_elements_text(refs::JSON) FROM inbox WHERE tenant = %(tenant)s
        UNION
        SELECT json_array_elements_text(refs::JSON) FROM events WHERE tenant = %(tenant)s
    )
    UNION
    SELECT json_array_elements_text(parts.refs::JSON) COLLATE "C"
    FROM needed JOIN parts ON parts.tenant = %(tenant)s AND parts.hash = needed.hash
)
SELECT hash FROM parts
WHERE tenant = %(tenant)s AND epoch < %(epoch)s AND NOT EXISTS (SELECT 1 FROM needed WHERE needed.hash = parts.hash)
LIMIT %(limit)s;

-- name: drop_parts
-- These blobs, unless they were put since.
DELETE FROM parts WHERE tenant = %(tenant)s AND hash = ANY(%(hashes)s::TEXT[]) AND epoch < %(epoch)s
RETURNING hash;

-- name: count_checkpoints
SELECT count(*) AS number FROM checkpoints WHERE tenant = %(tenant)s;

-- name: snapshot
SELECT pg_current_snapshot()::TEXT AS snapshot;

-- name: owner
-- The state of a process: whether all its sessions since the start of the server have ended, whether one has not, and
-- whether its lease has expired. After a restart of the server, a lease expires only when living processes had the
-- time to renew theirs. An unknown process has ended long ago.
WITH seen AS MATERIALIZED (
    SELECT server_started = pg_postmaster_start_time() AS is_same_server,
        greatest(renewed_at, pg_postmaster_start_time()) + make_interval(secs => lease_seconds) < clock_timestamp()
            AS is_over,
        -- Whoever looks lets go at once, and does not hinder others who look.
        CASE
            WHEN pg_try_advisory_lock_shared(session_key(session)) THEN pg_advisory_unlock_shared(session_key(session))
            ELSE FALSE
        END AS is_free
    FROM owners WHERE id = %(id)s
)
SELECT coalesce(bool_and(is_free AND is_same_server), TRUE) AS is_dead,
    coalesce(bool_or(NOT is_free), FALSE) AS is_held,
    coalesce(bool_and(is_over), TRUE) AS is_over
FROM seen;

-- name: hold_session
SELECT pg_advisory_lock(session_key(%(session)s));

-- name: enter_owner
INSERT INTO owners (id, heartbeat, session, host, boot, pid, lease_seconds, renewed_at, server_started)
VALUES (
    %(id)s, %(heartbeat)s, %(session)s, %(host)s, %(boot)s, %(pid)s, %(lease_seconds)s, clock_timestamp(),
    pg_postmaster_start_time()
)
ON CONFLICT (id, heartbeat) DO UPDATE SET
    session = excluded.session, renewed_at = excluded.renewed_at, server_started = excluded.server_started;

-- name: leave_owner
DELETE FROM owners WHERE id = %(id)s AND heartbeat = %(heartbeat)s;

-- name: drop_old_owners
-- Processes without a sign of life for a day beyond their lease.
DELETE FROM owners
WHERE greatest(renewed_at, pg_postmaster_start_time()) + make_interval(secs => lease_seconds)
    < clock_timestamp() - INTERVAL '1 day';

-- name: hosts
-- All hosts, a row for each workflow of a host.
SELECT hosts.*, host_workflows.workflow_name, host_workflows.version
FROM hosts LEFT JOIN host_workflows ON host_workflows.tenant = %(tenant)s AND host_workflows.host_id = hosts.id
WHERE hosts.tenant = %(tenant)s ORDER BY hosts.started_at, hosts.id, host_workflows.workflow_name;

-- name: put_host
INSERT INTO hosts (tenant, id, started_at, owner_id, owner_host, owner_boot, owner_pid)
VALUES (%(tenant)s, %(id)s, %(started_at)s, %(owner_id)s, %(owner_host)s, %(owner_boot)s, %(owner_pid)s);

-- name: put_host_workflow
INSERT INTO host_workflows (tenant, host_id, workflow_name, version)
VALUES (%(tenant)s, %(host_id)s, %(workflow_name)s, %(version)s);

-- name: drop_hosts
DELETE FROM hosts WHERE tenant = %(tenant)s AND id = ANY(%(hosts)s::TEXT[]);

-- name: put_block
-- Note why a host could not load a run, if both still exist.
INSERT INTO run_blocks (tenant, run_id, host_id, head, reason)
SELECT runs.tenant, runs.run_id, hosts.id, runs.head, %(reason)s::TEXT
FROM runs JOIN hosts ON hosts.tenant = %(tenant)s AND hosts.id = %(host_id)s
WHERE runs.tenant = %(tenant)s AND runs.run_id = %(run_id)s AND runs.head = %(head)s
ON CONFLICT (tenant, run_id, host_id) DO UPDATE SET head = excluded.head, reason = excluded.reason
WHERE run_blocks.head <> excluded.head OR run_blocks.reason <> excluded.reason;

-- name: blocks
-- Why these hosts could not load these runs from their present heads.
SELECT run_blocks.run_id, run_blocks.host_id, run_blocks.reason
FROM run_blocks JOIN runs ON runs.tenant = %(tenant)s AND runs.run_id = run_blocks.run_id AND runs.head = run_blocks.head
WHERE run_blocks.tenant = %(tenant)s AND run_blocks.run_id = ANY(%(run_ids)s::TEXT[])
    AND run_blocks.host_id = ANY(%(hosts)s::TEXT[])
ORDER BY run_blocks.run_id, run_blocks.host_id;

-- name: begin_upkeep
-- Note the time of a collection, if the last one is old enough.
UPDATE upkeep SET moment = %(at)s WHERE tenant = %(tenant)s AND moment <= %(before)s RETURNING 1 AS found;

-- name: note_upkeep
INSERT INTO upkeep (tenant, moment) VALUES (%(tenant)s, %(at)s) ON CONFLICT DO NOTHING;

-- name: heartbeat
SELECT extract(epoch FROM max(renewed_at))::DOUBLE PRECISION AS moment FROM owners WHERE id = %(id)s;
