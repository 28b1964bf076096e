-- The statements of the SQLite store, by name. Each concerns the rows of one tenant.

-- name: hold_run
-- Prevent others from creating a run of that id until the transaction ends. In SQLite the transaction locks the file.
SELECT :tenant, :run_id;

-- name: run
SELECT * FROM runs WHERE tenant = :tenant AND run_id = :run_id;

-- name: run_for_change
-- Lock the run until the transaction ends.
SELECT * FROM runs WHERE tenant = :tenant AND run_id = :run_id;

-- name: runs
-- Runs that have begun. The names of further lines, joined by "+", add their conditions and the order.
SELECT * FROM runs WHERE tenant = :tenant AND head IS NOT NULL;

-- name: status_counts
-- Takes the same further lines as `runs`.
SELECT coalesce(json_extract(halt, '$.kind'), status) AS status, count(*) AS number
FROM runs WHERE tenant = :tenant AND head IS NOT NULL;

-- name: +workflow
AND workflow_name = :workflow_name

-- name: +status
AND halt IS NULL AND status = :status

-- name: +halt
AND halt IS NOT NULL AND json_extract(halt, '$.kind') = :status

-- name: +statuses
AND coalesce(json_extract(halt, '$.kind'), status) IN (SELECT value FROM json_each(:statuses))

-- name: +tag
AND run_id IN (SELECT run_id FROM run_tags WHERE tenant = :tenant AND name = :tag_name AND value = :tag_value)

-- name: +tags
AND NOT EXISTS (
    SELECT 1 FROM json_each(:tags) AS wanted
    WHERE NOT EXISTS (
        SELECT 1 FROM run_tags
        WHERE tenant = :tenant AND name = wanted.key AND value = wanted.value AND run_tags.run_id = runs.run_id
    )
)

-- name: +created_after
AND created_at >= :created_after

-- name: +created_before
AND created_at < :created_before

-- name: +updated_after
AND moment >= :updated_after

-- name: +updated_before
AND moment < :updated_before

-- name: +error
AND json_extract(halt, '$.reason') LIKE :error ESCAPE '!'

-- name: +parent
AND parent_run_id = :parent

-- name: +requests
AND settled = 0 AND (requests IS NULL OR requests > 0 OR described_at IS NOT position)

-- name: +ids
AND run_id IN (SELECT value FROM json_each(:run_ids))

-- name: +candidates
-- Runs that have work, or a timer that is due, and no owner or one that is gone. Indexes lead to all of them.
AND run_id IN (
    SELECT run_id FROM runs
    WHERE tenant = :tenant AND halt IS NULL AND owner_id IS NULL
        AND status <> 'cancelled' AND (status = 'running' OR commands > 0)
    UNION ALL
    SELECT run_id FROM runs
    WHERE tenant = :tenant AND halt IS NULL AND wake_at IS NOT NULL AND wake_at <= :at
    UNION ALL
    SELECT run_id FROM runs
    WHERE tenant = :tenant AND owner_id IS NOT NULL AND owner_id IN (SELECT value FROM json_each(:owners))
)

-- name: +blocked
-- The run can go on, has no living owner, and each living host that registers its workflow could not load it. A host
-- with an older version of the workflow does not count.
AND halt IS NULL AND status <> 'cancelled' AND (status = 'running' OR commands > 0 OR wake_at <= :at)
AND (owner_id IS NULL OR owner_id IN (SELECT value FROM json_each(:owners)))
AND NOT EXISTS (
    SELECT 1 FROM host_workflows AS candidate
    WHERE candidate.tenant = :tenant AND candidate.host_id IN (SELECT value FROM json_each(:hosts))
        AND candidate.workflow_name = runs.workflow_name
        AND candidate.version >= coalesce(runs.version, candidate.version)
        AND NOT EXISTS (
            SELECT 1 FROM run_blocks
            WHERE run_blocks.tenant = :tenant AND run_blocks.run_id = runs.run_id
                AND run_blocks.host_id = candidate.host_id AND run_blocks.head = runs.head
        )
)

-- name: +after_oldest
AND began > (SELECT began FROM runs WHERE tenant = :tenant AND run_id = :after)

-- name: +after_newest
AND began < (SELECT began FROM runs WHERE tenant = :tenant AND run_id = :after)

-- name: +after_updated
AND (coalesce(moment, 0), began) < (
    SELECT coalesce(moment, 0), began FROM runs WHERE tenant = :tenant AND run_id = :after
)

-- name: +oldest
ORDER BY began LIMIT :limit

-- name: +newest
ORDER BY began DESC LIMIT :limit

-- name: +updated
ORDER BY coalesce(moment, 0) DESC, began DESC LIMIT :limit

-- name: +oldest_of_few
ORDER BY +began LIMIT :limit

-- name: +newest_of_few
ORDER BY +began DESC LIMIT :limit

-- name: +by_status
GROUP BY 1

-- name: put_tag
INSERT INTO run_tags (tenant, name, value, run_id) VALUES (:tenant, :name, :value, :run_id);

-- name: checkpoints_at
-- The checkpoints with these runs and positions.
SELECT checkpoints.* FROM json_each(:places) AS place
CROSS JOIN checkpoints ON checkpoints.tenant = :tenant AND checkpoints.run_id = json_extract(place.value, '$[0]')
    AND checkpoints.position = json_extract(place.value, '$[1]');

-- name: count_by_status
SELECT status, count(*) AS number FROM runs WHERE tenant = :tenant AND halt IS NULL GROUP BY status;

-- name: count_by_halt
SELECT json_extract(halt, '$.kind') AS status, count(*) AS number FROM runs WHERE tenant = :tenant AND halt IS NOT NULL GROUP BY 1;

-- name: put_run
-- Insert or update a run. Replacing the row would delete its checkpoints. Columns that never change are not updated,
-- so that their indexes are not touched.
INSERT INTO runs (
    tenant, run_id, workflow_name, created_at, nonce, input_digest, parent_checkpoint_id, head, position, settled,
    status, wake_at, events, checksum, moment, token, began, owner_id, owner_host, owner_boot, owner_pid, attempts, halt,
    parent_run_id, tags, version, supersteps, spent, requests, described_at,
    facts_checksum
) VALUES (
    :tenant, :run_id, :workflow_name, :created_at, :nonce, :input_digest, :parent_checkpoint_id, :head, :position,
    :settled, :status, :wake_at, :events, :checksum, :moment, :token, :token, :owner_id, :owner_host, :owner_boot,
    :owner_pid, :attempts, :halt, :parent_run_id, :tags, :version, :supersteps,
    :spent, :requests, :described_at, :facts_checksum
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
    token = :token, owner_id = :owner_id, owner_host = :owner_host, owner_boot = :owner_boot, owner_pid = :owner_pid,
    attempts = :attempts, halt = :halt
WHERE tenant = :tenant AND run_id = :run_id;

-- name: release_run
-- Release a run, if the lease still holds. Return its head.
UPDATE runs SET
    owner_id = NULL, owner_host = NULL, owner_boot = NULL, owner_pid = NULL, attempts = 0, halt = :halt
WHERE tenant = :tenant AND run_id = :run_id AND token = :token AND owner_id IS NOT NULL
RETURNING head;

-- name: commit_run
-- Commit to a run, if it is as expected and the checkpoint id is free. `of_run` and `at` are the run and the position
-- in that id. Return how many journal records and commands the run has.
UPDATE runs SET
    head = :head, position = :position, settled = :settled, status = :status, wake_at = :wake_at, events = :events,
    checksum = :checksum, moment = :moment, attempts = 0, checkpoints = checkpoints + 1,
    version = :version,
    supersteps = :supersteps, spent = :spent, requests = :requests, described_at = :described_at,
    facts_checksum = :facts_checksum
WHERE tenant = :tenant AND run_id = :run_id AND token = :token AND owner_id = :owner_id AND head IS :before
    AND NOT EXISTS (
        SELECT 1 FROM checkpoints
        WHERE tenant = :tenant AND run_id = :of_run AND position = :at AND checkpoint_id = :head
    )
    AND NOT EXISTS (
        SELECT 1 FROM checkpoints INDEXED BY checkpoints_by_name
        WHERE tenant = :tenant AND checkpoint_id = :head AND checkpoint_id <> run_id || '@' || position
    )
RETURNING records, commands;

-- name: advance_run
-- Commit to a run whose status does not change. Indexes of the status are not touched.
UPDATE runs SET
    head = :head, position = :position, events = :events, checksum = :checksum, moment = :moment, attempts = 0,
    checkpoints = checkpoints + 1,
    version = :version,
    supersteps = :supersteps, spent = :spent, requests = :requests, described_at = :described_at,
    facts_checksum = :facts_checksum
WHERE tenant = :tenant AND run_id = :run_id AND token = :token AND owner_id = :owner_id AND head IS :before
    AND NOT EXISTS (
        SELECT 1 FROM checkpoints
        WHERE tenant = :tenant AND run_id = :of_run AND position = :at AND checkpoint_id = :head
    )
    AND NOT EXISTS (
        SELECT 1 FROM checkpoints INDEXED BY checkpoints_by_name
        WHERE tenant = :tenant AND checkpoint_id = :head AND checkpoint_id <> run_id || '@' || position
    )
RETURNING records, commands;

-- name: hold_run_at
-- Lock a run for a write to its journal, if it is as expected. Return how many records it has.
UPDATE runs SET attempts = :attempts
WHERE tenant = :tenant AND run_id = :run_id AND token = :token AND owner_id = :owner_id AND head IS :before
RETURNING records;

-- name: count_checkpoints_in
UPDATE runs SET checkpoints = checkpoints + :by WHERE tenant = :tenant AND run_id = :run_id;

-- name: count_blob_users
-- How many rows of a run refer to blobs.
SELECT
    (SELECT count(*) FROM checkpoints WHERE tenant = :tenant AND run_id = :run_id)
    + (SELECT count(*) FROM journal WHERE tenant = :tenant AND run_id = :run_id AND refs <> '[]')
    + (SELECT count(*) FROM inbox WHERE tenant = :tenant AND run_id = :run_id AND refs <> '[]')
    + (SELECT count(*) FROM events WHERE tenant = :tenant AND run_id = :run_id AND refs <> '[]') AS number;

-- name: drop_run
-- Its checkpoints, journal, inbox and events are deleted with it.
DELETE FROM runs WHERE tenant = :tenant AND run_id = :run_id;

-- name: mark
SELECT head, events, owner_id, owner_host, owner_boot, owner_pid, status, wake_at, halt IS NOT NULL AS is_halted,
    (
        SELECT coalesce(max(number), 0) FROM inbox WHERE inbox.tenant = :tenant AND inbox.run_id = :run_id
    ) AS commands
FROM runs WHERE tenant = :tenant AND run_id = :run_id AND head IS NOT NULL;

-- name: owners
-- All owners of runs.
SELECT DISTINCT owner_id, owner_host, owner_boot, owner_pid FROM runs
WHERE tenant = :tenant AND owner_id IS NOT NULL;

-- name: due
-- Runs of these workflows that can go on and have no living owner, longest waiting first, each with the number of its
-- newest command. The candidates are runs without an owner that have work, runs without an owner whose timer is due,
-- and both kinds of runs of owners that can be replaced.
WITH candidate (run_id, moment, began) AS (
    SELECT run_id, moment, began FROM (
        SELECT run_id, moment, began FROM runs
        WHERE tenant = :tenant AND halt IS NULL AND owner_id IS NULL
            AND status <> 'cancelled' AND (status = 'running' OR commands > 0)
            AND head IS NOT NULL
            AND workflow_name IN (SELECT value FROM json_each(:workflow_names))
        ORDER BY moment, began LIMIT :limit
    )
    UNION ALL
    SELECT run_id, moment, began FROM runs INDEXED BY runs_to_wake
    WHERE tenant = :tenant AND halt IS NULL AND wake_at IS NOT NULL AND wake_at <= :at
        AND owner_id IS NULL AND status <> 'cancelled' AND NOT (status = 'running' OR commands > 0)
        AND head IS NOT NULL
        AND workflow_name IN (SELECT value FROM json_each(:workflow_names))
    UNION ALL
    SELECT run_id, moment, began FROM runs INDEXED BY runs_owned
    WHERE tenant = :tenant AND owner_id IN (SELECT value FROM json_each(:owners))
        AND halt IS NULL AND status <> 'cancelled' AND (status = 'running' OR commands > 0 OR wake_at <= :at)
        AND head IS NOT NULL
        AND workflow_name IN (SELECT value FROM json_each(:workflow_names))
)
SELECT runs.*,
    (
        SELECT coalesce(max(number), 0) FROM inbox WHERE inbox.tenant = :tenant AND inbox.run_id = runs.run_id
    ) AS newest_command
FROM (SELECT run_id, moment, began FROM candidate ORDER BY moment, began LIMIT :limit) AS chosen
CROSS JOIN runs ON runs.tenant = :tenant AND runs.run_id = chosen.run_id
ORDER BY chosen.moment, chosen.began;

-- name: next_wake
-- Runs of these workflows with a later timer, earliest first.
SELECT * FROM runs
WHERE tenant = :tenant AND halt IS NULL AND wake_at IS NOT NULL AND wake_at > :after
    AND head IS NOT NULL AND status <> 'cancelled'
    AND workflow_name IN (SELECT value FROM json_each(:workflow_names))
ORDER BY wake_at LIMIT :limit;

-- name: forks_that_rest
-- Forks that have only a checkpoint of this run. Its id contains its position, or not.
SELECT fork.run_id, fork.parent_checkpoint_id
FROM runs AS fork
CROSS JOIN checkpoints ON checkpoints.tenant = :tenant AND checkpoints.run_id = :run_id
    AND checkpoints.position = CAST(substr(fork.parent_checkpoint_id, length(:run_id) + 2) AS INTEGER)
    AND checkpoints.checkpoint_id = fork.parent_checkpoint_id
WHERE fork.tenant = :tenant AND fork.position = -1 AND fork.parent_checkpoint_id IS NOT NULL AND fork.run_id <> :run_id
UNION
SELECT fork.run_id, fork.parent_checkpoint_id
FROM runs AS fork
CROSS JOIN checkpoints INDEXED BY checkpoints_by_name
    ON checkpoints.tenant = :tenant AND checkpoints.checkpoint_id = fork.parent_checkpoint_id
    AND checkpoints.checkpoint_id <> checkpoints.run_id || '@' || checkpoints.position AND checkpoints.run_id = :run_id
WHERE fork.tenant = :tenant AND fork.position = -1 AND fork.parent_checkpoint_id IS NOT NULL AND fork.run_id <> :run_id;

-- name: next_token
-- Larger than all former tokens, and than this one.
INSERT INTO counters (tenant, name, value) VALUES ('', 'token', :above + 1)
ON CONFLICT (tenant, name) DO UPDATE SET value = max(value, :above) + 1
RETURNING value AS number;

-- name: note_token
-- Note a token from elsewhere, so that later ones are larger.
UPDATE counters SET value = max(value, :token) WHERE tenant = '' AND name = 'token';

-- name: next_command
-- Larger than all former numbers.
INSERT INTO counters (tenant, name, value) VALUES ('', 'command', 1)
ON CONFLICT (tenant, name) DO UPDATE SET value = value + 1
RETURNING value AS number;

-- name: count_pruned
INSERT INTO counters (tenant, name, value) VALUES (:tenant, 'pruned', :by)
ON CONFLICT (tenant, name) DO UPDATE SET value = value + :by;

-- name: pruned
SELECT coalesce(sum(value), 0) AS number FROM counters WHERE tenant = :tenant AND name = 'pruned';

-- name: reset_pruned
UPDATE counters SET value = 0 WHERE tenant = :tenant AND name = 'pruned';

-- name: put_part
-- Add a blob, or mark an existing one with the present epoch, so that a running collection keeps it.
INSERT INTO parts (tenant, hash, epoch, kind, refs, data)
VALUES (
    :tenant, :hash, coalesce((SELECT value FROM counters WHERE tenant = '' AND name = 'epoch'), 0), :kind, :refs, :data
)
ON CONFLICT (tenant, hash) DO UPDATE SET epoch = excluded.epoch WHERE epoch < excluded.epoch;

-- name: put_checkpoint
INSERT INTO checkpoints (
    tenant, checkpoint_id, run_id, workflow_name, position, previous_id, timestamp, moment, iteration_count, settled,
    status, wake_at, checksum, header, toc, pieces
) VALUES (
    :tenant, :checkpoint_id, :run_id, :workflow_name, :position, :previous_id, :timestamp, :moment, :iteration_count,
    :settled, :status, :wake_at, :checksum, :header, :toc, :pieces
);

-- name: put_record
INSERT INTO journal (tenant, run_id, key, head, checksum, refs, data)
VALUES (:tenant, :run_id, :key, :head, :checksum, :refs, :data)
ON CONFLICT (tenant, run_id, key) DO UPDATE SET
    head = excluded.head, checksum = excluded.checksum, refs = excluded.refs, data = excluded.data;

-- name: count_replaced_with_parts
-- How many records of these keys refer to blobs.
SELECT count(*) AS number FROM journal
WHERE tenant = :tenant AND run_id = :run_id AND key IN (SELECT value FROM json_each(:keys)) AND refs <> '[]';

-- name: journal
-- With the run's head and the number of its records. The head differs only if an old version without journals wrote
-- since. A run without records is a row without a record.
SELECT journal.*, runs.head AS run_head, runs.records AS due
FROM runs LEFT JOIN journal ON journal.tenant = :tenant AND journal.run_id = runs.run_id
WHERE runs.tenant = :tenant AND runs.run_id = :run_id ORDER BY journal.ordinal;

-- name: drop_journal
DELETE FROM journal WHERE tenant = :tenant AND run_id = :run_id RETURNING refs <> '[]' AS has_parts;

-- name: count_no_records
UPDATE runs SET records = 0 WHERE tenant = :tenant AND run_id = :run_id;

-- name: drop_journals_of_forks
-- The journals of forks that have only this checkpoint.
DELETE FROM journal WHERE tenant = :tenant AND run_id IN (
    SELECT run_id FROM runs WHERE tenant = :tenant AND position = -1 AND parent_checkpoint_id = :checkpoint_id
);

-- name: count_no_records_of_forks
UPDATE runs SET records = 0
WHERE tenant = :tenant AND position = -1 AND parent_checkpoint_id = :checkpoint_id;

-- name: put_command
INSERT INTO inbox (number, tenant, run_id, id, kind, expects, checksum, refs, data)
VALUES (:number, :tenant, :run_id, :id, :kind, :expects, :checksum, :refs, :data);

-- name: command
SELECT inbox.*, runs.head AS run_head
FROM inbox JOIN runs ON runs.tenant = :tenant AND runs.run_id = inbox.run_id
WHERE inbox.tenant = :tenant AND inbox.run_id = :run_id AND inbox.id = :id;

-- name: commands
-- With the number of the run's commands. A run without commands is a row without a command.
SELECT inbox.*, runs.head AS run_head, runs.commands AS due
FROM runs LEFT JOIN inbox ON inbox.tenant = :tenant AND inbox.run_id = runs.run_id
WHERE runs.tenant = :tenant AND runs.run_id = :run_id ORDER BY inbox.number;

-- name: newest_command
SELECT coalesce(max(number), 0) AS number FROM inbox WHERE tenant = :tenant AND run_id = :run_id;

-- name: has_command
SELECT 1 FROM inbox WHERE tenant = :tenant AND run_id = :run_id AND id = :id;

-- name: drop_command
DELETE FROM inbox WHERE tenant = :tenant AND run_id = :run_id AND id = :id
RETURNING refs <> '[]' AS has_parts;

-- name: drop_expecting_commands
DELETE FROM inbox WHERE tenant = :tenant AND run_id = :run_id AND expects IS NOT NULL
RETURNING refs <> '[]' AS has_parts;

-- name: put_batch
INSERT INTO events (tenant, run_id, first, count, checkpoint_id, moment, checksum, refs, data)
VALUES (:tenant, :run_id, :first, :count, :checkpoint_id, :moment, :checksum, :refs, :data);

-- name: batches
-- From the batch with the next event on, with the numbers of the run's newest event and of the last one that was
-- removed. A run without events is a row without a batch.
SELECT events.*, runs.head AS run_head, runs.events AS newest, runs.forgotten AS forgotten
FROM runs LEFT JOIN events ON events.tenant = :tenant AND events.run_id = runs.run_id
    AND events.first >= coalesce(
        (SELECT max(first) FROM events WHERE tenant = :tenant AND run_id = :run_id AND first <= :after + 1), 0
    )
WHERE runs.tenant = :tenant AND runs.run_id = :run_id
ORDER BY events.first LIMIT :limit;

-- name: forget_events
-- Earlier events were removed in the store from which the run comes.
UPDATE runs SET forgotten = :last WHERE tenant = :tenant AND run_id = :run_id;

-- name: prune_events_but_newest
-- All but the newest batches of a run.
DELETE FROM events WHERE tenant = :tenant AND run_id = :run_id AND first IN (
    SELECT first FROM events
    WHERE tenant = :tenant AND run_id = :run_id
        AND first < (
            SELECT first FROM events
            WHERE tenant = :tenant AND run_id = :run_id ORDER BY first DESC LIMIT 1 OFFSET :keep - 1
        )
    ORDER BY first LIMIT :limit
)
RETURNING refs <> '[]' AS has_parts;

-- name: prune_events_older
-- The batches of a run before the first one that is young enough, so that the rest has no gap.
DELETE FROM events WHERE tenant = :tenant AND run_id = :run_id AND first IN (
    SELECT first FROM events
    WHERE tenant = :tenant AND run_id = :run_id
        AND first < coalesce(
            (
                SELECT first FROM events
                WHERE tenant = :tenant AND run_id = :run_id AND (moment IS NULL OR moment >= :cutoff)
                ORDER BY first LIMIT 1
            ),
            9223372036854775807
        )
    ORDER BY first LIMIT :limit
)
RETURNING refs <> '[]' AS has_parts;

-- name: checkpoint
-- `of_run` and `at` are the run and the position in the checkpoint id, if it has this form.
SELECT * FROM checkpoints
WHERE tenant = :tenant AND run_id = :of_run AND position = :at AND checkpoint_id = :checkpoint_id
UNION ALL
SELECT * FROM checkpoints INDEXED BY checkpoints_by_name
WHERE tenant = :tenant AND checkpoint_id = :checkpoint_id AND checkpoint_id <> run_id || '@' || position;

-- name: hold_checkpoint
-- Find a checkpoint. Nobody else writes until the transaction ends.
SELECT 1 FROM checkpoints
WHERE tenant = :tenant AND run_id = :of_run AND position = :at AND checkpoint_id = :checkpoint_id
UNION ALL
SELECT 1 FROM checkpoints INDEXED BY checkpoints_by_name
WHERE tenant = :tenant AND checkpoint_id = :checkpoint_id AND checkpoint_id <> run_id || '@' || position;

-- name: checkpoints
SELECT * FROM checkpoints WHERE tenant = :tenant ORDER BY sequence;

-- name: checkpoints_of_workflow
SELECT * FROM checkpoints WHERE tenant = :tenant AND workflow_name = :workflow_name ORDER BY sequence;

-- name: checkpoints_of_run
-- With the number of the run's checkpoints. A run without checkpoints is a row without a checkpoint.
SELECT checkpoints.*, runs.head AS run_head, runs.checkpoints AS due
FROM runs LEFT JOIN checkpoints ON checkpoints.tenant = :tenant AND checkpoints.run_id = runs.run_id
WHERE runs.tenant = :tenant AND runs.run_id = :run_id ORDER BY checkpoints.sequence;

-- name: ids
SELECT checkpoint_id FROM checkpoints WHERE tenant = :tenant ORDER BY sequence;

-- name: run_ids
SELECT run_id FROM runs WHERE tenant = :tenant ORDER BY run_id;

-- name: ids_of_run
SELECT checkpoint_id FROM checkpoints WHERE tenant = :tenant AND run_id = :run_id ORDER BY position;

-- name: ids_of_workflow
SELECT checkpoint_id FROM checkpoints
WHERE tenant = :tenant AND workflow_name = :workflow_name ORDER BY sequence;

-- name: latest_of_workflow
SELECT * FROM checkpoints
WHERE tenant = :tenant AND workflow_name = :workflow_name ORDER BY sequence DESC LIMIT 1;

-- name: newest_of_run
SELECT * FROM checkpoints WHERE tenant = :tenant AND run_id = :run_id ORDER BY position DESC LIMIT 1;

-- name: drop_checkpoint
DELETE FROM checkpoints WHERE tenant = :tenant AND run_id = :run_id AND checkpoint_id = :checkpoint_id
    AND position = :position
RETURNING 1 AS found;

-- name: prune_checkpoints_but_newest
-- All but the newest checkpoints of a run, except its head and those that a fork needs.
DELETE FROM checkpoints WHERE sequence IN (
    SELECT sequence FROM checkpoints
    WHERE tenant = :tenant AND run_id = :run_id
        AND position < (
            SELECT position FROM checkpoints
            WHERE tenant = :tenant AND run_id = :run_id ORDER BY position DESC LIMIT 1 OFFSET :keep - 1
        )
        AND checkpoint_id <> :head
        AND checkpoint_id NOT IN (
            SELECT parent_checkpoint_id FROM runs
            WHERE tenant = :tenant AND position = -1 AND parent_checkpoint_id IS NOT NULL
        )
    ORDER BY position LIMIT :limit
)
RETURNING 1 AS has_parts;

-- name: prune_checkpoints_older
-- The older checkpoints of a run, except its head and those that a fork needs. Positions grow with time.
DELETE FROM checkpoints WHERE sequence IN (
    SELECT sequence FROM checkpoints
    WHERE tenant = :tenant AND run_id = :run_id
        AND position < coalesce(
            (
                SELECT position FROM checkpoints
                WHERE tenant = :tenant AND run_id = :run_id AND moment >= :cutoff ORDER BY position LIMIT 1
            ),
            9223372036854775807
        )
        AND moment < :cutoff
        AND checkpoint_id <> :head
        AND checkpoint_id NOT IN (
            SELECT parent_checkpoint_id FROM runs
            WHERE tenant = :tenant AND position = -1 AND parent_checkpoint_id IS NOT NULL
        )
    ORDER BY position LIMIT :limit
)
RETURNING 1 AS has_parts;

-- name: finished_runs
-- Runs that are settled and old and have no waiting command, except the committing run and those that a fork needs.
SELECT * FROM runs
WHERE tenant = :tenant
    AND settled = 1
    AND moment < :cutoff
    AND run_id <> :besides
    AND NOT EXISTS (SELECT 1 FROM inbox WHERE inbox.tenant = :tenant AND inbox.run_id = runs.run_id)
    AND NOT EXISTS (
        SELECT 1 FROM runs AS fork
        CROSS JOIN checkpoints ON checkpoints.tenant = :tenant AND checkpoints.run_id = runs.run_id
            AND checkpoints.position = CAST(substr(fork.parent_checkpoint_id, length(runs.run_id) + 2) AS INTEGER)
            AND checkpoints.checkpoint_id = fork.parent_checkpoint_id
        WHERE fork.tenant = :tenant AND fork.position = -1 AND fork.parent_checkpoint_id IS NOT NULL
    )
    AND NOT EXISTS (
        SELECT 1 FROM runs AS fork
        CROSS JOIN checkpoints INDEXED BY checkpoints_by_name
            ON checkpoints.tenant = :tenant AND checkpoints.checkpoint_id = fork.parent_checkpoint_id
            AND checkpoints.checkpoint_id <> checkpoints.run_id || '@' || checkpoints.position
            AND checkpoints.run_id = runs.run_id
        WHERE fork.tenant = :tenant AND fork.position = -1 AND fork.parent_checkpoint_id IS NOT NULL
    )
ORDER BY moment LIMIT :limit;

-- name: parts
-- Blobs with all that they refer to.
WITH RECURSIVE wanted (hash) AS (
    SELECT value FROM json_each(:roots)
    UNION
    SELECT ref.value
    FROM wanted JOIN parts ON parts.tenant = :tenant AND parts.hash = wanted.hash,
        json_each(CASE WHEN json_valid(parts.refs) THEN parts.refs ELSE '[]' END) AS ref
)
SELECT parts.hash, parts.kind, parts.refs, parts.data, json_valid(parts.refs) AS has_refs
FROM wanted JOIN parts ON parts.tenant = :tenant AND parts.hash = wanted.hash;

-- name: begin_collection
-- The epoch of a new collection. Blobs that are put from now on have at least this epoch.
INSERT INTO counters (tenant, name, value) VALUES ('', 'epoch', 1)
ON CONFLICT (tenant, name) DO UPDATE SET value = value + 1
RETURNING value AS number;

-- name: unreachable
-- Some of the blobs that no checkpoint, journal, inbox or event refers to, directly or not, and that were not put
-- since the collection began.
WITH RECURSIVE needed (hash) AS (
    SELECT root.value FROM checkpoints, json_each(checkpoints.toc) AS root WHERE checkpoints.tenant = :tenant
    UNION
    SELECT root.value FROM journal, json_each(journal.refs) AS root WHERE journal.tenant = :tenant
    UNION
    SELECT root.value FROM inbox, json_each(inbox.refs) AS root WHERE inbox.tenant = :tenant
    UNION
    SELECT root.value FROM events, json_each(events.refs) AS root WHERE events.tenant = :tenant
    UNION
    SELECT ref.value
    FROM needed JOIN parts ON parts.tenant = :tenant AND parts.hash = needed.hash, json_each(parts.refs) AS ref
)
SELECT hash FROM parts
WHERE tenant = :tenant AND epoch < :epoch AND hash NOT IN (SELECT hash FROM needed WHERE hash IS NOT NULL)
LIMIT :limit;

-- name: drop_parts
-- These blobs, unless they were put since.
DELETE FROM parts
WHERE tenant = :tenant AND hash IN (SELECT value FROM json_each(:hashes)) AND epoch < :epoch
RETURNING hash;

-- name: count_checkpoints
SELECT count(*) AS number FROM checkpoints WHERE tenant = :tenant;

-- name: hosts
-- All hosts, a row for each workflow of a host.
SELECT hosts.*, host_workflows.workflow_name, host_workflows.version
FROM hosts LEFT JOIN host_workflows ON host_workflows.tenant = :tenant AND host_workflows.host_id = hosts.id
WHERE hosts.tenant = :tenant ORDER BY hosts.started_at, hosts.id, host_workflows.workflow_name;

-- name: put_host
INSERT INTO hosts (tenant, id, started_at, owner_id, owner_host, owner_boot, owner_pid)
VALUES (:tenant, :id, :started_at, :owner_id, :owner_host, :owner_boot, :owner_pid);

-- name: put_host_workflow
INSERT INTO host_workflows (tenant, host_id, workflow_name, version)
VALUES (:tenant, :host_id, :workflow_name, :version);

-- name: drop_hosts
DELETE FROM hosts WHERE tenant = :tenant AND id IN (SELECT value FROM json_each(:hosts));

-- name: put_block
-- Note why a host could not load a run, if both still exist.
INSERT INTO run_blocks (tenant, run_id, host_id, head, reason)
SELECT runs.tenant, runs.run_id, hosts.id, runs.head, :reason
FROM runs JOIN hosts ON hosts.tenant = :tenant AND hosts.id = :host_id
WHERE runs.tenant = :tenant AND runs.run_id = :run_id AND runs.head = :head
ON CONFLICT (tenant, run_id, host_id) DO UPDATE SET head = excluded.head, reason = excluded.reason
WHERE run_blocks.head <> excluded.head OR run_blocks.reason <> excluded.reason;

-- name: blocks
-- Why these hosts could not load these runs from their present heads.
SELECT run_blocks.run_id, run_blocks.host_id, run_blocks.reason
FROM run_blocks JOIN runs ON runs.tenant = :tenant AND runs.run_id = run_blocks.run_id AND runs.head = run_blocks.head
WHERE run_blocks.tenant = :tenant AND run_blocks.run_id IN (SELECT value FROM json_each(:run_ids))
    AND run_blocks.host_id IN (SELECT value FROM json_each(:hosts))
ORDER BY run_blocks.run_id, run_blocks.host_id;

-- name: begin_upkeep
-- Note the time of a collection, if the last one is old enough.
UPDATE upkeep SET moment = :at WHERE tenant = :tenant AND moment <= :before RETURNING 1 AS found;

-- name: note_upkeep
INSERT INTO upkeep (tenant, moment) VALUES (:tenant, :at) ON CONFLICT DO NOTHING;
