"""How the file store removes parts that nothing needs, while runs go on.

A collection has three stretches. It lists the parts that there are, and the files that may need some. It reads those
files, one after the other, and what the parts refer to. And it removes the parts that nothing needs, some at a time. It
holds the directory's lock for the listing, for a few files of runs at a time that could change under its hands, and for
some of the removals; in between it rests so long that whoever waits has his turn.

What is written meanwhile is noted (`protecting.py`) before it appears, with all that it refers to. So this is certain
of a part that is removed: of the files that were listed none needs it, or is gone; and nothing that was written since
does. A value that was forgotten and comes back is noted too, or written anew if it is gone already. Killed at any
point, a collection leaves parts for the next one.
"""

from __future__ import annotations

import itertools
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from perdure.storage.disk import LOCK_RETRY_SECONDS_MAX
from perdure.storage.file.placing import closure
from perdure.storage.file.runjournal import Stay

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Callable, Iterable, Iterator

    from perdure.storage.file.document import Document
    from perdure.storage.file.layout import Layout

_REMOVED_AT_ONCE = 100
_LOOKED_AT_AT_ONCE = 10
_REST_SECONDS = 1.25 * LOCK_RETRY_SECONDS_MAX


def _rest() -> None:
    """Leave the lock free until each who waits for it has tried to have it."""
    threading.Event().wait(_REST_SECONDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Collecting:
    """Collects parts. `lock` is the directory's. Between two holds of it there is a `rest`."""

    layout: Layout
    lock: Callable[[], contextlib.AbstractContextManager[None]]
    rest: Callable[[], None] = _rest

    def collect(self) -> int:
        """Remove the parts beside that nothing needs, and the files of runs that are void; the number of the parts."""
        files = self.layout
        with self.lock():
            files.counter.reset_pruned()
            files.logs.finish_removals()
            files.remove_asides()
            number = files.counter.take()
            files.protection.begin(number)
            there, documents = files.besides.names(), files.documents.names()
        try:
            needed = self._reached(itertools.chain(self._of_documents(documents), self._of_runs()), set())
            return self._remove(number, [part for part in there if part not in needed])
        finally:
            self._end(number)

    def _end(self, number: int) -> None:
        with self.lock():
            if self.layout.protection.noted(number) is not None:
                self.layout.protection.end()

    def _remove(self, number: int, unneeded: list[str]) -> int:
        """Remove these parts, but for those that were noted; how many they were."""
        spared: set[str] = set()
        removed = 0
        for start in range(0, len(unneeded), _REMOVED_AT_ONCE):
            if start:
                self.rest()
            with self.lock():
                noted = self.layout.protection.noted(number)
                if noted is None:
                    # Another one has begun and does the rest.
                    break
                spared = self._reached(noted, spared)
                doomed = [part for part in unneeded[start : start + _REMOVED_AT_ONCE] if part not in spared]
                for part in doomed:
                    self.layout.besides.remove(part)
                removed += len(doomed)
        return removed

    def _reached(self, roots: Iterable[str], known: set[str]) -> set[str]:
        """These parts and all that they refer to beside, and those that were reached before."""
        reached = set(known)
        waiting = [root for root in set(roots) if root not in reached]
        reached.update(waiting)
        for part in waiting:
            # The list grows while it is walked; every hash comes once.
            further = set(self.layout.besides.refs_of(part)) - reached
            waiting.extend(further)
            reached |= further
        return reached

    def _of_documents(self, names: Iterable[str]) -> Iterator[str]:
        """What checkpoints need. They never change, so nobody has to wait while they are read."""
        forgotten: dict[str, int] = {}
        for name in names:
            document = self.layout.documents.named(name)
            if document is None:
                continue
            run_id = document.manifest.run_id
            if run_id not in forgotten:
                if len(forgotten) % _LOOKED_AT_AT_ONCE == _LOOKED_AT_AT_ONCE - 1:
                    self.rest()
                forgotten[run_id] = self._forgotten(run_id)
            yield from needs(document, forgotten=forgotten[run_id])

    def _forgotten(self, run_id: str) -> int:
        """The number of the last event of a run that is forgotten."""
        with self.lock():
            line = self.layout.logs.of(run_id).current()
        return line.forgotten if line else 0

    def _of_runs(self) -> Iterator[str]:
        """What journals, inboxes and the events of forgotten checkpoints need. Those of runs that are void go."""
        files = self.layout
        looks = [
            *((self._of_journal, name) for name in files.journals.names()),
            *((self._of_inbox, name) for name in files.inboxes.names()),
            *((self._of_events, name) for name in files.events.names()),
        ]
        for start in range(0, len(looks), _LOOKED_AT_AT_ONCE):
            if start:
                self.rest()
            with self.lock():
                roots = [look(name) for look, name in looks[start : start + _LOOKED_AT_AT_ONCE]]
            yield from itertools.chain.from_iterable(roots)

    def _of_journal(self, name: str) -> set[str]:
        run, journal = self.layout.logs.named(name).current(), self.layout.journals.named(name)
        if run is None:
            journal.drop()
            return set()
        stay = Stay.of(run.state.record)
        journal.drop_if_void(stay)
        return journal.roots(stay)

    def _of_inbox(self, name: str) -> set[str]:
        run, inbox = self.layout.logs.named(name).current(), self.layout.inboxes.named(name)
        if run is None or not inbox.waiting(run):
            inbox.drop()
            return set()
        return inbox.roots(run)

    def _of_events(self, name: str) -> set[str]:
        run, events = self.layout.logs.named(name).current(), self.layout.events.named(name)
        if run is None or not events.spans(run):
            events.drop()
            return set()
        return events.roots(run)


def needs(document: Document, *, forgotten: int = 0) -> set[str]:
    """What a checkpoint refers to beside its file, and what it told as long as that is not forgotten."""
    roots = set(document.manifest.roots)
    if document.batch and document.batch.last > forgotten:
        roots.update(document.batch.refs)
    inline = closure(roots, document.parts.get)
    return roots.union(itertools.chain.from_iterable(part.refs for part in inline.values()))
