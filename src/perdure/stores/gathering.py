"""Where the file store finds parts, and which of those in files of their own it needs no more."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from perdure.stores.besides import closure
from perdure.stores.runjournal import Stay

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from perdure.records import Part
    from perdure.stores.document import Document
    from perdure.stores.layout import Layout
    from perdure.stores.runlog import RunLine


@dataclass(frozen=True, slots=True)
class Gathering:
    """Looks for parts in all the files in which they stand."""

    layout: Layout

    def parts(self, roots: Iterable[str], *, known: Mapping[str, Part] | None = None) -> dict[str, Part]:
        """These parts and all that they refer to, as far as they are found; those that are known need no looking."""
        anywhere: dict[str, Part] | None = None
        at_hand = known or {}

        def find(part_hash: str) -> Part | None:
            nonlocal anywhere
            near = at_hand.get(part_hash) or self._known(part_hash) or self.layout.besides.find(part_hash)
            if near:
                return near
            if anywhere is None:
                self.layout.documents.look_for_parts()
                files = self.layout.journals, self.layout.inboxes, self.layout.events
                anywhere = {part: found for each in files for part, found in each.all_parts().items()}
            return self.layout.documents.part(part_hash) or anywhere.get(part_hash)

        return closure(roots, find)

    def _known(self, part_hash: str) -> Part | None:
        """A part in one of the files that were looked at."""
        return (
            self.layout.documents.part(part_hash)
            or self.layout.journals.part(part_hash)
            or self.layout.inboxes.part(part_hash)
            or self.layout.events.part(part_hash)
        )

    def sweep(self) -> int:
        """Remove the parts beside that nothing needs, and the files of runs that are void; the number of the parts."""
        roots = self._roots_of_documents() | self._roots_of_journals() | self._roots_of_inboxes_and_events()
        return self.layout.besides.sweep(roots)

    def _roots_of_documents(self) -> set[str]:
        roots: set[str] = set()
        runs: dict[str, RunLine | None] = {}
        for document in self.layout.documents.all():
            run_id = document.manifest.run_id
            if run_id not in runs:
                runs[run_id] = self.layout.logs.of(run_id).current()
            roots |= _roots(document, runs[run_id])
        return roots

    def _roots_of_journals(self) -> set[str]:
        roots: set[str] = set()
        for name in self.layout.journals.names():
            run, journal = self.layout.logs.named(name).current(), self.layout.journals.named(name)
            if run is None:
                journal.drop()
                continue
            stay = Stay.of(run.state.record)
            journal.drop_if_void(stay)
            roots |= journal.roots(stay)
        return roots

    def _roots_of_inboxes_and_events(self) -> set[str]:
        roots: set[str] = set()
        for name in self.layout.inboxes.names():
            run, inbox = self.layout.logs.named(name).current(), self.layout.inboxes.named(name)
            if run is None or not inbox.waiting(run):
                inbox.drop()
            else:
                roots |= inbox.roots(run)
        for name in self.layout.events.names():
            run, events = self.layout.logs.named(name).current(), self.layout.events.named(name)
            if run is None or not events.spans(run):
                events.drop()
            else:
                roots |= events.roots(run)
        return roots


def _roots(document: Document, run: RunLine | None) -> set[str]:
    """What a checkpoint refers to beside its file, and what it told as long as that is not forgotten."""
    roots = set(document.manifest.roots)
    if document.batch and (run is None or document.batch.last > run.forgotten):
        roots.update(document.batch.refs)
    inline = closure(roots, document.parts.get)
    return roots.union(itertools.chain.from_iterable(part.refs for part in inline.values()))
