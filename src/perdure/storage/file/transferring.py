"""How the file store hands out a whole run, takes one in, and removes one. Its caller holds the directory's lock."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from perdure.errors import CheckpointDamagedError, PartDamagedError
from perdure.records import Archive, ArchivedCheckpoint
from perdure.storage import archiving, rules
from perdure.storage.file.layout import CHECKPOINTS, EVENTS, INBOX, JOURNAL, RUNS
from perdure.storage.file.restoring import Restoring
from perdure.storage.file.runjournal import Stay
from perdure.storage.file.undertaking import Target

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from perdure.records import Halt, Owner, Part
    from perdure.storage.file.document import Document, LogEntry
    from perdure.storage.file.gathering import Gathering
    from perdure.storage.file.layout import Layout
    from perdure.storage.file.runline import RunLine
    from perdure.storage.file.runlog import RunLog
    from perdure.storage.file.telling import Telling
    from perdure.storage.owners import Owners


@dataclass(frozen=True, slots=True, kw_only=True)
class Transferring:
    """Moves runs as a whole. Each of them is there, or is not."""

    layout: Layout
    telling: Telling
    gathering: Gathering
    owners: Owners

    def archive(self, run_id: str) -> Archive:
        """All that there is of a run. Raises CheckpointDamagedError."""
        log = self.layout.logs.of(run_id)
        line = log.current()
        state = rules.require_own_history(line.state if line else None, run_id)
        assert line is not None, "there is no state without a line"
        documents = list(self._documents(log))
        without_parts = Archive(
            record=rules.archived(state),
            checkpoints=tuple(_archived(document) for document in documents),
            parts=(),
            journal=tuple(self.layout.journals.of(run_id).records(Stay.of(state.record))),
            inbox=tuple(self.layout.inboxes.of(run_id).waiting(line)),
            events=tuple(self.telling.batches(log, line, after=0, limit=sys.maxsize)),
        )
        inline = {part.hash: part for document in documents for part in document.parts.values()}
        return archiving.whole(without_parts, self._parts(without_parts, inline).values())

    def _parts(self, archive: Archive, inline: dict[str, Part]) -> dict[str, Part]:
        try:
            return self.gathering.parts(archiving.roots(archive), known=inline)
        except PartDamagedError as error:
            raise CheckpointDamagedError(archive.record.head or archive.record.run_id, error.reason) from error

    def close(self, run_id: str, *, halt: Halt, instead_of: Halt | None, takeover: bool) -> bool:
        """Halt a run that nobody advances; False if it is halted otherwise than was seen."""
        log = self.layout.logs.of(run_id)
        line = log.current()
        state = rules.closable(
            line.state if line else None,
            run_id,
            instead_of=instead_of,
            takeover=takeover,
            is_given_up=self._is_given_up,
        )
        if line is None or state is None:
            return False
        self.layout.counter.note_change()
        # What has moved to another store must not come alive here, not after a power cut either,
        # and although nothing else may be synced here.
        log.append(replace(line, change="release", state=rules.released(state, halt=halt), subject=None), sync=True)
        self.layout.logs.secure(log)
        return True

    def _is_given_up(self, owner: Owner) -> bool:
        return owner.id != self.owners.enter().id and self.owners.is_replaceable(owner)

    def restore(self, archive: Archive) -> None:
        """Keep a run that comes from elsewhere."""
        run_id = archive.record.run_id
        self.layout.logs.finish_removals(run_id)
        log = self.layout.logs.of(run_id)
        line = log.current()
        rules.require_restorable(line.state if line else None, archive, resting=self._resting(log, line))
        replaced = {entry.checkpoint_id for entry in self._entries(log)}
        for checkpoint in archive.checkpoints:
            checkpoint_id = checkpoint.manifest.checkpoint_id
            if checkpoint_id not in replaced and self.layout.documents.exists(checkpoint_id):
                raise rules.exists_already(checkpoint_id)
        with self.layout.strictly():
            files = Restoring(self.layout, archive).files()
        # Those that were here already nobody may have waited for.
        self.layout.besides.settle(part.hash for part in archive.parts)
        self._undertake(log, files)
        self.layout.count_pruned(len(replaced))

    def remove(self, run_id: str, *, takeover: bool) -> bool:
        """Forget a run; False if there is none."""
        log = self.layout.logs.of(run_id)
        line = log.current()
        if not rules.removable(
            line.state if line else None,
            takeover=takeover,
            is_replaceable=self.owners.is_replaceable,
            rests=next(iter(self._resting(log, line)), None),
        ):
            return False
        self.layout.counter.note_change()
        doomed = self._entries(log)
        self._undertake(log, [])
        self.layout.count_pruned(len(doomed) + 1)
        return True

    def _undertake(self, log: RunLog, files: Sequence[tuple[Target, bytes]]) -> None:
        """Let these files be all that there is of the run."""
        try:
            self.layout.undertakings.undertake(files, removed=self._all_of(log))
        finally:
            for each in (self.layout.journals, self.layout.inboxes, self.layout.events):
                each.forget(log.path.name)

    def _resting(self, log: RunLog, line: RunLine | None) -> Mapping[str, str]:
        """The forks that have nothing but a checkpoint of the run, each with that checkpoint."""
        ids = [entry.checkpoint_id for entry in (log.entries() if line else ())]
        rested_on = (each for each in ids if self.layout.forks.is_rested_on(each))
        return {fork: each for each in rested_on for fork in self.layout.forks.resting_on(each)}

    def _all_of(self, log: RunLog) -> list[Target]:
        """Every file of the run, and those that an earlier one of its id may have left."""
        names = (self.layout.documents.name_of(entry.checkpoint_id) for entry in self._entries(log))
        of_run = [Target(place, log.path.name) for place in (RUNS, JOURNAL, INBOX, EVENTS)]
        return [*(Target(CHECKPOINTS, name) for name in names), *of_run]

    def _entries(self, log: RunLog) -> list[LogEntry]:
        return [entry for entry in log.entries() if self.layout.documents.holds(entry)]

    def _documents(self, log: RunLog) -> Iterator[Document]:
        for entry in log.entries():
            document = self.layout.documents.find(entry.checkpoint_id)
            if document and document.sequence == entry.sequence:
                yield document


def _archived(document: Document) -> ArchivedCheckpoint:
    return ArchivedCheckpoint(document.manifest, document.settled, document.status, document.wake_at)
