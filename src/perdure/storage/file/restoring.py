"""The files that a run from elsewhere has in the directory of a file store."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from perdure.storage import archiving, rules
from perdure.storage.file import lineparts, runevents, runinbox, runjournal, runline
from perdure.storage.file.document import Document, encode
from perdure.storage.file.layout import CHECKPOINTS, EVENTS, INBOX, JOURNAL, RUNS
from perdure.storage.file.placing import closure, placed
from perdure.storage.file.undertaking import Target

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from perdure.records import Archive, Part
    from perdure.storage.file.layout import Layout
    from perdure.storage.file.undertaking import Place


class Restoring:
    """Makes the files of one run. Parts that are too large for them are written at once: alone they do no harm."""

    def __init__(self, layout: Layout, archive: Archive) -> None:
        self._layout = layout
        self._archive = archive
        self._run_id = archive.record.run_id
        self._parts = {part.hash: part for part in archive.parts}
        # Smaller than the number of any commit that follows, like that of a run which begins here.
        self._life = layout.counter.take()

    def files(self) -> list[tuple[Target, bytes]]:
        """What is to appear, in the order in which it would be looked for."""
        documents = list(self._documents())
        record = self._archive.record
        newest = documents[-1].entry
        self._layout.workflows.note(record.workflow_name, record.run_id, newest.position)
        of_run = [(RUNS, self._log(documents)), (JOURNAL, self._journal()), (INBOX, self._inbox())]
        of_run.append((EVENTS, self._events(documents)))
        return [
            *((self._target_of(document), encode(document)) for document in documents),
            *((self._target(place), data) for place, data in of_run if data),
        ]

    def _target(self, place: Place) -> Target:
        return Target(place, self._layout.logs.of(self._run_id).path.name)

    def _target_of(self, document: Document) -> Target:
        return Target(CHECKPOINTS, self._layout.documents.name_of(document.manifest.checkpoint_id))

    def _documents(self) -> Iterator[Document]:
        batches = {batch.checkpoint_id: batch for batch in self._archive.events}
        events = archiving.forgotten(self._archive)
        for checkpoint in self._archive.checkpoints:
            manifest = checkpoint.manifest
            batch = batches.get(manifest.checkpoint_id)
            events = batch.last if batch else events
            refs = batch.refs if batch else ()
            inline, beside = placed(manifest.roots, carried={}, new=self._parts, told=refs)
            self._layout.besides.add(beside.values())
            yield Document(
                manifest=replace(manifest, toc=MappingProxyType(dict(manifest.toc))),
                settled=checkpoint.settled,
                sequence=self._layout.counter.take(),
                parts=inline,
                status=checkpoint.status,
                wake_at=checkpoint.wake_at,
                events=events,
                batch=batch,
            )

    def _log(self, documents: Iterable[Document]) -> bytes:
        entries = [document.entry for document in documents]
        line = runline.RunLine(
            change="restore",
            state=archiving.state_of(self._archive, token=self._life),
            newest=entries[-1],
            life=self._life,
            forgotten=archiving.forgotten(self._archive),
        )
        return runline.encoded(line, entries)

    def _journal(self) -> bytes:
        records = self._archive.journal
        if not records:
            return b""
        parts = self._placed(ref for record in records for ref in record.refs)
        return runjournal.encoded(runjournal.JournalLine(runjournal.Stay.of(self._archive.record), records, parts))

    def _inbox(self) -> bytes:
        return b"".join(
            runinbox.encoded(
                self._life,
                rules.posted(command, number=self._layout.counter.take()),
                self._placed(command.refs),
            )
            for command in self._archive.inbox
        )

    def _events(self, documents: Iterable[Document]) -> bytes:
        """What commits told whose checkpoints are forgotten."""
        there = {document.manifest.checkpoint_id for document in documents}
        moments = archiving.moments_told(self._archive)
        return b"".join(
            runevents.encoded(self._life, runevents.Forgotten(batch, moment, self._placed(batch.refs)))
            for batch, moment in zip(self._archive.events, moments, strict=True)
            if batch.checkpoint_id not in there
        )

    def _placed(self, refs: Iterable[str]) -> tuple[Part, ...]:
        """The parts that go into the line that refers to these. The others are written beside when this returns."""
        inline, beside = lineparts.split(closure(refs, self._parts.get).values())
        self._layout.besides.add(beside)
        return inline
