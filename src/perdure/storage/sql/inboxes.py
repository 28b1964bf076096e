"""The inboxes of all runs of a SQL store. Whoever calls this is inside of a transaction, or only reads."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from perdure.storage import rules
from perdure.storage.sql import rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from perdure.records import Command
    from perdure.storage.sql.database import OfTenant


class InboxTable:
    """The commands that wait. What removes some of them says how many of those had parts."""

    def __init__(self, database: OfTenant) -> None:
        self._database = database

    def of(self, run_id: str) -> Sequence[Command]:
        """The commands that wait for a run, oldest first. Raises CheckpointDamagedError."""
        found = self._database.execute("commands", run_id=run_id).fetchall()
        return [rows.command(row) for row in rows.those_of_run(found, run_id, key="number", kind="commands")]

    def find(self, run_id: str, command_id: str) -> Command | None:
        """The command of that id, if it waits."""
        row = self._database.execute("command", run_id=run_id, id=json.dumps(command_id)).fetchone()
        return rows.command(row) if row else None

    def among(self, run_id: str, ids: Iterable[str]) -> set[str]:
        """Of these ids those under which a command waits."""
        execute = self._database.execute
        return {each for each in ids if execute("has_command", run_id=run_id, id=json.dumps(each)).fetchone()}

    def newest(self, run_id: str) -> int:
        """The number of the newest that waits, 0 if none does."""
        return self._database.number("newest_command", run_id=run_id)

    def put(self, run_id: str, command: Command) -> Command:
        """Add a command whose id does not wait yet; the command with its number."""
        waiting = rules.posted(command, number=self._database.number("next_command"))
        self._database.execute(
            "put_command",
            number=waiting.number,
            run_id=run_id,
            id=json.dumps(waiting.id),
            kind=json.dumps(waiting.kind),
            expects=None if waiting.expects is None else json.dumps(waiting.expects),
            checksum=waiting.checksum(run_id=run_id),
            refs=rows.of_refs(waiting.refs),
            data=waiting.data,
        )
        return waiting

    def consume(self, run_id: str, ids: Iterable[str]) -> int:
        """Remove those with these ids."""
        removed = 0
        for each in ids:
            row: dict[str, object] = {"run_id": run_id, "id": json.dumps(each)}
            removed += self._database.execute("has_command_with_parts", **row).fetchone() is not None
            self._database.execute("drop_command", **row)
        return removed

    def drop_expecting(self, run_id: str) -> int:
        """Remove those that expect something of the head."""
        removed = self._database.number("count_expecting_commands_with_parts", run_id=run_id)
        self._database.execute("drop_expecting_commands", run_id=run_id)
        return removed

    def with_parts(self, run_id: str) -> int:
        """How many commands of a run have parts."""
        return self._database.number("count_commands_with_parts", run_id=run_id)
