"""The rows of one tenant: statements, reading, and the changes that several operations share.

A method that changes something is called inside a transaction. Methods that remove rows return how many of them
referred to blobs: the number decides when a collection is worthwhile.
"""

from __future__ import annotations

import itertools
import json
from operator import attrgetter
from typing import TYPE_CHECKING, get_args

from perdure.errors import BlobDamagedError, CheckpointDamagedError, CheckpointNotFoundError
from perdure.records import Blob, Command, EventBatch, HaltKind, JournalRecord, Manifest, RunQuery, RunRecord, RunStatus
from perdure.storage import rules
from perdure.storage.retention import REMOVED_RUNS_PER_COMMIT_MAX
from perdure.storage.sql import rows

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from perdure.storage.rules import RunState
    from perdure.storage.sql.database import OwnerWatch, Row, Rows, SqlDatabase

_HALTED = frozenset(get_args(HaltKind))
_NO_LIMIT = 2**62
_EXAMINED_RUNS_MAX = 50
"""Number of finished runs that one transaction examines at most."""


class Tables:
    """The rows of one tenant. Reading raises CheckpointDamagedError if something is not what was written."""

    def __init__(self, database: SqlDatabase, tenant: str) -> None:
        self._database = database
        self._tenant = tenant
        self._has_pruned = False
        """Anything was removed whose blobs may be unused now."""

    def execute(self, name: str, /, **values: object) -> Rows:
        """Run a statement."""
        return self._database.execute(name, tenant=self._tenant, **values)

    def number(self, name: str, /, **values: object) -> int:
        """Run a statement that returns a number."""
        (row,) = self.execute(name, **values).fetchall()
        return int(row["number"])

    def delete_rows(self, name: str, /, **values: object) -> int:
        """Run a statement that removes rows. Return how many of them referred to blobs."""
        return sum(row["has_parts"] for row in self.execute(name, **values).fetchall())

    def put(self, name: str, new: Sequence[dict[str, object]]) -> None:
        """Run a statement once for each row of values."""
        if new:
            for row in new:
                row["tenant"] = self._tenant
            self._database.execute_many(name, new)

    def commit_runs(self, changes: Sequence[tuple[RunState, RunState]]) -> Sequence[Row | None]:
        """Store runs after commits, if each is still as it was before and has no checkpoint of the new id.

        Return for each how many journal records and commands it has, or None if it was not changed.
        """
        names: list[str] = []
        new: list[dict[str, object]] = []
        for before, after in changes:
            old, record = before.record, after.record
            is_same = (old.settled, old.status, old.wake_at) == (record.settled, record.status, record.wake_at)
            names.append("advance_run" if is_same else "commit_run")
            new.append(rows.commit_columns(after, before=old.head, tenant=self._tenant))
        return self._database.execute_each(names, new)

    def run(self, run_id: str) -> RunRecord | None:
        """Return the record of a run that has begun."""
        row = self.execute("run", run_id=run_id).fetchone()
        record = rows.read_run(row).record if row else None
        return record if record and record.head is not None else None

    def lock_run(self, run_id: str) -> RunState | None:
        """Return a run, begun or only leased, and let nobody else change it until the transaction ends."""
        row = self.execute("run_for_change", run_id=run_id).fetchone()
        return rows.read_run(row) if row else None

    def runs(self, *, workflow_name: str | None, status: RunStatus | None) -> Sequence[RunRecord]:
        """Return runs in the order in which they began. A damaged one has a halt that says so."""
        return self.list_runs(RunQuery(workflow_name, None if status is None else (status,)))

    def list_runs(self, query: RunQuery, *lines: str, **values: object) -> Sequence[RunRecord]:
        """Return the runs that a query selects, and further lines with their values. A damaged one has a halt."""
        names, chosen = _conditions(query)
        names += lines
        values |= chosen
        if query.after is not None:
            names.append(f"after_{query.order}")
            values["after"] = query.after
        limit = _NO_LIMIT if query.limit is None else query.limit
        # Few runs have a tag or are blocked: sort them, instead of reading all runs in order.
        has_few = (query.tags or lines) and query.order != "updated"
        order = f"{query.order}_of_few" if has_few else query.order
        found = self.execute("+".join(["runs", *names, order]), limit=limit, **values).fetchall()
        return [rows.listed_run(row) for row in found]

    def count_runs(self, query: RunQuery) -> Mapping[str, int]:
        """Return how many of the selected runs have which status."""
        names, values = _conditions(query)
        if not names:
            # Without conditions, an index counts the runs that are not halted.
            found = [*self.execute("count_by_status").fetchall(), *self.execute("count_by_halt").fetchall()]
        else:
            found = self.execute("+".join(["status_counts", *names, "by_status"]), **values).fetchall()
        return {row["status"]: row["number"] for row in found}

    def manifests_of(self, checkpoint_ids: Collection[str]) -> Mapping[str, Manifest]:
        """Return several checkpoints by id."""
        places = [(each, rows.name_columns(each)) for each in checkpoint_ids]
        usual = [[place["of_run"], place["at"]] for _, place in places if place["at"] is not None]
        found = {
            row["checkpoint_id"]: row for row in self.execute("checkpoints_at", places=json.dumps(usual)).fetchall()
        }
        for checkpoint_id in checkpoint_ids:
            # Only ids that users chose have another form.
            row = found.get(checkpoint_id) or self.find_checkpoint(checkpoint_id)
            if row is not None:
                found[checkpoint_id] = row
        return {each: rows.read_manifest(found[each]) for each in checkpoint_ids if each in found}

    def put_tags(self, record: RunRecord) -> None:
        """Make a new run searchable by its tags."""
        tags: dict[str, str] = json.loads(record.tags or "{}")
        self.put("put_tag", [{"run_id": record.run_id, "name": name, "value": tags[name]} for name in tags])

    def readable_runs(self, name: str, *, limit: int, **values: object) -> Sequence[tuple[RunRecord, Row]]:
        """Return the first undamaged runs of a statement. A damaged one is an error for whoever asks for it by id."""
        asked_for = limit
        while True:
            found = self.execute(name, limit=asked_for, **values).fetchall()
            readable = list(rows.readable_runs(found))
            if len(readable) >= limit or len(found) < asked_for:
                return readable[:limit]
            # Damaged runs must not take the places of others.
            asked_for *= 2

    def dependent_forks(self, run_id: str) -> Mapping[str, str]:
        """Return forks that have only a checkpoint of this run, each with that checkpoint."""
        found = self.execute("forks_that_rest", run_id=run_id).fetchall()
        return {row["run_id"]: row["parent_checkpoint_id"] for row in found}

    def drop_run(self, run_id: str) -> None:
        """Remove a run with everything that belongs to it. Its blobs are left to the next collection."""
        self.count_pruned(self.number("count_blob_users", run_id=run_id))
        self.execute("drop_run", run_id=run_id)

    def drop_finished(self, cutoff: float, owners: OwnerWatch, *, but: str = "") -> tuple[str, ...]:
        """Remove some finished runs that are older than the cutoff. Return their ids."""
        found = self.execute("finished_runs", besides=but, cutoff=cutoff, limit=_EXAMINED_RUNS_MAX).fetchall()
        finished = [run for run, _ in rows.readable_runs(found)]
        free = (run.run_id for run in finished if run.owner is None or owners.is_dead(run.owner))
        # They are locked by now, but somebody may have forked one of them since the search began.
        alone = (run_id for run_id in free if not self.dependent_forks(run_id))
        removed = tuple(itertools.islice(alone, REMOVED_RUNS_PER_COMMIT_MAX))
        for run_id in removed:
            self.drop_run(run_id)
        return removed

    def count_pruned(self, number: int) -> None:
        """Count removed rows whose blobs may be unused now."""
        if number:
            self._has_pruned = True
            self.execute("count_pruned", by=number)

    def find_checkpoint(self, checkpoint_id: str | None, *, statement: str = "checkpoint") -> Row | None:
        """Return the row of a checkpoint. With the statement `hold_checkpoint` nobody removes it for now."""
        if checkpoint_id is None:
            return None
        return self.execute(statement, checkpoint_id=checkpoint_id, **rows.name_columns(checkpoint_id)).fetchone()

    def manifest(self, checkpoint_id: str) -> Manifest:
        """Return a checkpoint. Raises CheckpointNotFoundError."""
        row = self.find_checkpoint(checkpoint_id)
        if row is None:
            raise CheckpointNotFoundError(checkpoint_id)
        return rows.read_manifest(row)

    def manifests(self, *, workflow_name: str | None, run_id: str | None) -> Sequence[Manifest]:
        """Return checkpoints in commit order. A list of everything leaves damaged ones out."""
        if run_id is not None:
            found = self.checkpoints_of_run(run_id)
        elif workflow_name is not None:
            # Programs resume the last one of this list: it must not be an older one silently.
            found = self.execute("checkpoints_of_workflow", workflow_name=workflow_name).fetchall()
        else:
            return list(rows.readable_manifests(self.execute("checkpoints").fetchall()))
        return [rows.read_manifest(row) for row in found if workflow_name in {None, row["workflow_name"]}]

    def checkpoints_of_run(self, run_id: str) -> Sequence[Row]:
        """Return the rows of a run's checkpoints in commit order."""
        found = self.execute("checkpoints_of_run", run_id=run_id).fetchall()
        return rows.require_count(found, run_id, key="sequence", kind="checkpoints")

    def run_ids(self) -> Sequence[str]:
        """Return the ids of all runs."""
        return [row["run_id"] for row in self.execute("run_ids").fetchall()]

    def checkpoint_ids(self, run_id: str) -> Sequence[str]:
        """Return the ids of a run's checkpoints, damaged ones included."""
        return [row["checkpoint_id"] for row in self.execute("ids_of_run", run_id=run_id).fetchall()]

    def ids(self, *, workflow_name: str | None) -> Sequence[str]:
        """Return the ids of checkpoints in commit order."""
        statement = "ids" if workflow_name is None else "ids_of_workflow"
        return [row["checkpoint_id"] for row in self.execute(statement, workflow_name=workflow_name).fetchall()]

    def latest(self, *, workflow_name: str) -> Manifest | None:
        """Return the newest checkpoint of a workflow."""
        row = self.execute("latest_of_workflow", workflow_name=workflow_name).fetchone()
        return rows.read_manifest(row) if row else None

    def journal(self, run_id: str) -> Sequence[JournalRecord]:
        """Return the records since a run's head, in the order of their first recording."""
        found = self.execute("journal", run_id=run_id).fetchall()
        # Verify every record, also those of another head: the head may be what is damaged.
        records = [
            (row["head"] == row["run_head"], rows.read_journal_record(row))
            for row in rows.require_count(found, run_id, key="ordinal", kind="records in its journal")
        ]
        return [record for is_current, record in records if is_current]

    def put_records(self, run_id: str, records: Sequence[JournalRecord], *, head: str | None, is_empty: bool) -> int:
        """Add journal records, or replace those with the same keys. `is_empty` says that there are none yet."""
        new = [rows.record_columns(run_id, record, head=head) for record in records]
        replaced = 0
        if not is_empty:
            keys = json.dumps([row["key"] for row in new])
            replaced = self.number("count_replaced_with_parts", run_id=run_id, keys=keys)
        self.put("put_record", new)
        return replaced

    def drop_journal(self, run_id: str) -> int:
        """Remove the journal of a run."""
        removed = self.delete_rows("drop_journal", run_id=run_id)
        self.execute("count_no_records", run_id=run_id)
        return removed

    def inbox(self, run_id: str) -> Sequence[Command]:
        """Return the commands that wait for a run, oldest first."""
        found = self.execute("commands", run_id=run_id).fetchall()
        return [rows.read_command(row) for row in rows.require_count(found, run_id, key="number", kind="commands")]

    def put_command(self, run_id: str, command: Command) -> Command:
        """Add a command. Return it with its number."""
        waiting = rules.number_command(command, number=self.number("next_command"))
        self.execute("put_command", **rows.command_columns(run_id, waiting))
        return waiting

    def events(self, run_id: str, *, after: int = 0, limit: int = _NO_LIMIT) -> Sequence[EventBatch]:
        """Return batches with events beyond number `after`."""
        limit = max(0, limit)
        found = self.execute("batches", run_id=run_id, after=after, limit=limit).fetchall()
        if not found:
            return []
        batches = [rows.read_batch(row) for row in found if row["batch"] is not None]
        forgotten, newest = found[0]["forgotten"], found[0]["newest"]
        first = batches[0].first if batches else newest + 1
        # The first batch follows the removed ones, or is the one that holds the event after `after`.
        is_later = 0 <= forgotten < after and forgotten + 1 < first <= after + 1
        if first != forgotten + 1 and not is_later:
            where = str(found[0]["run_head"] or run_id)
            raise CheckpointDamagedError(where, f"events of its run are missing before number {first}")
        for earlier, later in itertools.pairwise(batches):
            if later.first != earlier.last + 1:
                raise CheckpointDamagedError(later.checkpoint_id, "events are missing before its own")
        if batches and len(batches) < limit and batches[-1].last != newest:
            raise CheckpointDamagedError(batches[-1].checkpoint_id, "events are missing after its own")
        return [batch for batch in batches if batch.last > after]

    def put_blobs(self, blobs: Iterable[Blob]) -> None:
        """Add blobs that are not there yet, and mark the others as needed again."""
        # All writers use the same order, so that no two of them wait for each other.
        ordered = sorted(blobs, key=attrgetter("hash"))
        self.put(
            "put_part",
            [
                {"hash": blob.hash, "kind": blob.kind, "refs": json.dumps(blob.refs), "data": blob.data}
                for blob in ordered
            ],
        )

    def blob_rows(self, roots: Iterable[str]) -> Sequence[Row]:
        """Return the rows of blobs with all that they refer to. Raises BlobDamagedError."""
        found = self.execute("parts", roots=json.dumps(list(roots))).fetchall()
        damaged = next((row["hash"] for row in found if not row["has_refs"]), None)
        if damaged is not None:
            raise BlobDamagedError(f"the references of blob {damaged!r} are not what was written")
        return found

    def blobs(self, roots: Iterable[str]) -> Mapping[str, bytes]:
        """Return blobs with all that they refer to."""
        # A damaged cell may hold anything; as bytes it fails the comparison of hashes.
        return {
            row["hash"]: row["data"]
            if isinstance(row["data"], bytes)
            else str(row["data"]).encode("utf-8", "surrogateescape")
            for row in self.blob_rows(roots)
        }


def _conditions(query: RunQuery) -> tuple[list[str], dict[str, object]]:
    """Return the names of the lines that a query adds to a statement, and their values."""
    names: list[str] = []
    values: dict[str, object] = {}
    for name, value in (
        ("workflow", query.workflow_name),
        ("created_after", query.created_after),
        ("created_before", query.created_before),
        ("updated_after", query.updated_after),
        ("updated_before", query.updated_before),
        ("parent", query.parent_run_id),
    ):
        if value is not None:
            names.append(name)
            values["workflow_name" if name == "workflow" else name] = value
    if query.statuses is not None and len(query.statuses) == 1:
        values["status"] = query.statuses[0]
        names.append("halt" if query.statuses[0] in _HALTED else "status")
    elif query.statuses is not None:
        names.append("statuses")
        values["statuses"] = json.dumps(query.statuses)
    if len(query.tags) == 1:
        names.append("tag")
        [(values["tag_name"], values["tag_value"])] = query.tags.items()
    elif query.tags:
        names.append("tags")
        values["tags"] = json.dumps(dict(query.tags))
    if query.error is not None:
        names.append("error")
        escaped = query.error
        for character in "!%_":
            escaped = escaped.replace(character, f"!{character}")
        values["error"] = f"%{escaped}%"
    if query.has_requests:
        names.append("requests")
    return names, values
