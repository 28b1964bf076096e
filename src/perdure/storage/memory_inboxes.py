"""The inboxes of all runs, in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.storage import rules

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from perdure.records import Command


class MemoryInboxes:
    """By run the commands that wait, by id and in the order in which they came.

    What removes some of them says how many of those had parts.
    """

    def __init__(self) -> None:
        self._last_number = 0
        self._of_run: dict[str, dict[str, Command]] = {}

    def of(self, run_id: str) -> dict[str, Command]:
        """The commands that wait for a run."""
        return self._of_run.get(run_id, {})

    def newest(self, run_id: str) -> int:
        """The number of the newest that waits, 0 if none does."""
        newest = next(reversed(self.of(run_id).values()), None)
        return newest.number if newest else 0

    def put(self, run_id: str, command: Command) -> Command:
        """Add a command whose id does not wait yet; the command with its number."""
        self._last_number += 1
        waiting = rules.posted(command, number=self._last_number)
        self._of_run.setdefault(run_id, {})[command.id] = waiting
        return waiting

    def consume(self, run_id: str, ids: Iterable[str]) -> int:
        """Remove those with these ids."""
        waiting = self.of(run_id)
        return self._remove(run_id, [waiting[each] for each in dict.fromkeys(ids) if each in waiting])

    def drop_expecting(self, run_id: str) -> int:
        """Remove those that expect something of the head."""
        return self._remove(run_id, [command for command in self.of(run_id).values() if command.expects is not None])

    def drop(self, run_id: str) -> int:
        """Remove all of a run."""
        return self._remove(run_id, list(self.of(run_id).values()))

    def refs(self) -> Iterator[tuple[str, ...]]:
        """What commands refer to."""
        return (command.refs for inbox in self._of_run.values() for command in inbox.values())

    def _remove(self, run_id: str, commands: Iterable[Command]) -> int:
        removed = 0
        for command in commands:
            del self._of_run[run_id][command.id]
            removed += bool(command.refs)
        if not self.of(run_id):
            self._of_run.pop(run_id, None)
        return removed
