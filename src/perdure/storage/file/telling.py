"""What the file store knows of a run's events: in the files of its checkpoints, and in one for those forgotten."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from perdure.records import FullHistory
from perdure.storage import retention as keep
from perdure.storage.file.placing import closure
from perdure.storage.file.runevents import Forgotten, Span

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from perdure.clock import Clock
    from perdure.records import EventBatch, Retention
    from perdure.storage.file.document import Document, LogEntry
    from perdure.storage.file.documents import Documents
    from perdure.storage.file.protecting import Protection
    from perdure.storage.file.runevents import RunEvents
    from perdure.storage.file.runfiles import RunFiles
    from perdure.storage.file.runline import RunLine
    from perdure.storage.file.runlog import RunLog


@dataclass(frozen=True, slots=True, kw_only=True)
class Telling:
    """Reads events, keeps those of checkpoints that go, and says which are to be forgotten themselves."""

    retention: Retention
    clock: Clock
    documents: Documents
    files: RunFiles[RunEvents]
    protection: Protection

    def batches(self, log: RunLog, run: RunLine, *, after: int, limit: int) -> list[EventBatch]:
        """The first batches with events behind that number. Raises CheckpointDamagedError."""
        after = max(after, run.forgotten)
        found = self._in_documents(log, after=after, limit=limit)
        end = found[max(found)].last if 0 < len(found) == limit else run.state.record.events
        if not _cover(((batch.first, batch.last) for batch in found.values()), after=after, end=end):
            file = self.files.named(log.path.name)
            found |= file.batches(run, after=after, end=end, limit=limit)
        return [found[first] for first in sorted(found)[:limit]]

    def _in_documents(self, log: RunLog, *, after: int, limit: int) -> dict[int, EventBatch]:
        """The same, as far as their checkpoints are there, by their first numbers."""
        found: dict[int, EventBatch] = {}
        for entry in log.entries():
            if len(found) >= limit:
                break
            if entry.told and entry.events > after:
                document = self.documents.find(entry.checkpoint_id)
                if document and document.sequence == entry.sequence and document.batch:
                    found[document.batch.first] = document.batch
        return found

    def forgotten_with(self, log: RunLog, run: RunLine, newest: LogEntry) -> int:
        """The number of the last event that the retention removes with this commit."""
        if isinstance(self.retention.events, FullHistory):
            return run.forgotten
        spans = self._spans(log, run)
        if newest.told:
            spans.append(_span(newest))
        prunable = keep.prunable_batches(self.retention, [span.moment for span in spans], self.clock.now())
        number = min(prunable, keep.PRUNED_PER_COMMIT_MAX)
        return spans[number - 1].last if number else run.forgotten

    def _spans(self, log: RunLog, run: RunLine) -> list[Span]:
        """The batches that the run has, in order."""
        told = (entry for entry in log.entries() if entry.told and run.forgotten < entry.events)
        # A line may be the last of a commit that did not come about.
        spans = {span.first: span for span in map(_span, told) if span.last <= run.state.record.events}
        ranges = ((span.first, span.last) for span in spans.values())
        if not _cover(ranges, after=run.forgotten, end=run.state.record.events):
            spans = {**self.files.named(log.path.name).spans(run), **spans}
        return [spans[first] for first in sorted(spans)]

    def outlive(self, log: RunLog, run: RunLine, doomed: Sequence[Document]) -> None:
        """Keep what these checkpoints told, before they are removed. Raises CheckpointDamagedError."""
        kept: list[Forgotten] = []
        for document in doomed:
            batch = document.batch
            if batch and batch.last > run.forgotten:
                parts = tuple(closure(batch.refs, document.parts.get).values())
                kept.append(Forgotten(batch, document.entry.moment, parts))
        if kept:
            self.protection.note({ref for each in kept for ref in each.refs})
            self.files.named(log.path.name).append(run, kept)


def _span(entry: LogEntry) -> Span:
    return Span(entry.events - entry.told + 1, entry.events, entry.moment)


def _cover(ranges: Iterable[tuple[int, int]], *, after: int, end: int) -> bool:
    """Whether these ranges of numbers, each of them other numbers, leave none out behind `after` up to `end`."""
    return sum(last - max(first, after + 1) + 1 for first, last in ranges) >= end - after
