"""The rows of runs in a SQL store. Whoever changes something is inside of a transaction."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, get_args

from perdure.records import Due, HaltKind
from perdure.storage.sql import rows

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from perdure.records import Owner, RunRecord, RunStatus
    from perdure.storage.rules import RunState
    from perdure.storage.sql.database import OfTenant, Row

_HALTED = frozenset(get_args(HaltKind))


class RunTable:
    """The runs, each under its id."""

    def __init__(self, database: OfTenant) -> None:
        self._database = database

    def find(self, run_id: str) -> RunState | None:
        """A run, known or only claimed."""
        row = self._database.execute("run", run_id=run_id).fetchone()
        return rows.run_state(row) if row else None

    def find_for_change(self, run_id: str) -> RunState | None:
        """The same, and nobody else changes it before the transaction ends."""
        row = self._database.execute("run_for_change", run_id=run_id).fetchone()
        return rows.run_state(row) if row else None

    def hold(self, run_id: str) -> None:
        """Let nobody else make a run of that id before the transaction ends."""
        self._database.execute("hold_run", run_id=run_id)

    def put(self, state: RunState) -> None:
        """Keep a run as it is now."""
        self._database.execute("put_run", **rows.of_run_state(state))

    def hand_over(self, state: RunState) -> None:
        """Keep who has a run that there is, and whether it is halted. Nothing else of it has changed."""
        self._database.execute("hand_run_over", run_id=state.record.run_id, **rows.of_holder(state))

    def commit(self, changes: Sequence[tuple[RunState, RunState]]) -> Sequence[Row | None]:
        """Keep runs as commits leave them, if they are as they were before and have no such checkpoint yet.

        Of each how many records and commands it has; None if it was left as it is.
        """
        names = ["advance_run" if _is_as_it_was(before, after) else "commit_run" for before, after in changes]
        new = [rows.of_commit(after, before=before.record.head) for before, after in changes]
        return self._database.execute_each(names, new)

    def hold_at(self, state: RunState, *, is_progress: bool) -> Row | None:
        """Hold a run for its journal, if it is as it is known: then how many records it has."""
        record = state.record
        return self._database.execute(
            "hold_run_at",
            run_id=record.run_id,
            token=state.token,
            owner_id=record.owner.id if record.owner else None,
            before=record.head,
            attempts=0 if is_progress else record.attempts,
        ).fetchone()

    def count_checkpoints(self, run_id: str, number: int) -> None:
        """Note that a run has so many more."""
        self._database.execute("count_checkpoints_in", run_id=run_id, by=number)

    def finished(self, cutoff: float, *, besides: str, limit: int) -> Sequence[RunRecord]:
        """Runs that have settled before that moment, and that nothing waits for or rests on."""
        found = self._database.execute("finished_runs", besides=besides, cutoff=cutoff, limit=limit).fetchall()
        return [record for record, _ in rows.sound_runs(found)]

    def next_token(self, *, above: int) -> int:
        """A token that was never given, and that is larger than that one."""
        return self._database.number("next_token", above=above)

    def note_token(self, token: int) -> None:
        """From now on give larger ones than this, which was made elsewhere."""
        self._database.execute("note_token", token=token)

    def those(self, *, workflow_name: str | None, status: RunStatus | None) -> Sequence[RunRecord]:
        """All that are known, or some, in the order in which they began."""
        records = [rows.run_state(row).record for row in self._rows(workflow_name, status)]
        return [
            record
            for record in records
            if workflow_name in {None, record.workflow_name} and status in {None, record.standing}
        ]

    def _rows(self, workflow_name: str | None, status: RunStatus | None) -> Sequence[Row]:
        if status in _HALTED:
            return self._database.execute("runs_halted").fetchall()
        if workflow_name is not None:
            return self._database.execute("runs_of_workflow", workflow_name=workflow_name).fetchall()
        if status is not None:
            return self._database.execute("runs_of_status", status=status).fetchall()
        return self._database.execute("runs").fetchall()

    def owners(self) -> Sequence[Owner]:
        """Each who has claimed any run."""
        found = (rows.owner(row) for row in self._database.execute("owners").fetchall())
        return [owner for owner in found if owner is not None]

    def due(self, *, at: str, workflow_names: Collection[str], owners: Collection[str], limit: int) -> Sequence[Due]:
        """Those that can go on, of runs that nobody owns, or one of these owners."""
        names, ids = json.dumps(list(workflow_names)), json.dumps(list(owners))
        found = self._sound("due", limit=max(0, limit), at=at, workflow_names=names, owners=ids)
        return [Due(record, row["newest_command"]) for record, row in found]

    def next_wake(self, *, after: str, workflow_names: Collection[str]) -> str | None:
        """The first time after that one to which a timer is set."""
        found = self._sound("next_wake", limit=1, after=after, workflow_names=json.dumps(list(workflow_names)))
        return found[0][0].wake_at if found else None

    def _sound(self, name: str, *, limit: int, **values: object) -> Sequence[tuple[RunRecord, Row]]:
        """The first runs of a statement that can be read. Of the others is told whoever asks for them."""
        asked_for = limit
        while True:
            found = self._database.execute(name, limit=asked_for, **values).fetchall()
            sound = list(rows.sound_runs(found))
            if len(sound) >= limit or len(found) < asked_for:
                return sound[:limit]
            # Those that can't be read must not take the places of the others.
            asked_for *= 2

    def forks_that_rest(self, run_id: str) -> Mapping[str, str]:
        """The forks that have nothing but a checkpoint of this run, each with that checkpoint."""
        found = self._database.execute("forks_that_rest", run_id=run_id).fetchall()
        return {row["run_id"]: row["parent_checkpoint_id"] for row in found}


def _is_as_it_was(before: RunState, after: RunState) -> bool:
    old, new = before.record, after.record
    return (old.settled, old.status, old.wake_at) == (new.settled, new.status, new.wake_at)
