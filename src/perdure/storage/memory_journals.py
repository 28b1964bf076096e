"""The journals of all runs, in memory."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from perdure.records import JournalRecord


class MemoryJournals:
    """By run its records, by key and in the order of their first recording.

    What removes some of them says how many of those had parts.
    """

    def __init__(self) -> None:
        self._of_run: dict[str, dict[str, JournalRecord]] = {}

    def of(self, run_id: str) -> Sequence[JournalRecord]:
        """The records of a run."""
        return tuple(self._of_run.get(run_id, {}).values())

    def add(self, run_id: str, records: Iterable[JournalRecord]) -> int:
        """Add records, which replace those of their keys."""
        journal = self._of_run.setdefault(run_id, {})
        removed = 0
        for record in records:
            replaced = journal.get(record.key)
            removed += replaced is not None and bool(replaced.refs)
            journal[record.key] = replace(record, parts=())
        return removed

    def drop(self, run_id: str) -> int:
        """Remove all of a run."""
        return sum(bool(record.refs) for record in self._of_run.pop(run_id, {}).values())

    def refs(self) -> Iterator[tuple[str, ...]]:
        """What records refer to."""
        return (record.refs for journal in self._of_run.values() for record in journal.values())
