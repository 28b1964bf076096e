"""All that stands in a store's directory, opened."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from perdure.errors import WorkflowCheckpointException
from perdure.storage.file.besides import Besides
from perdure.storage.file.counter import Counter
from perdure.storage.file.documents import Documents
from perdure.storage.file.protecting import Protection
from perdure.storage.file.runevents import RunEvents
from perdure.storage.file.runfiles import RunFiles
from perdure.storage.file.runinbox import RunInbox
from perdure.storage.file.runjournal import RunJournal
from perdure.storage.file.runlogs import ForkIndex, RunLogs, WorkflowIndex
from perdure.storage.file.settling import strictly
from perdure.storage.file.undertaking import Place, Undertakings

if TYPE_CHECKING:
    import contextlib
    from pathlib import Path

    from perdure.storage.disk import Disk

_FORMAT = 1
CHECKPOINTS, RUNS, JOURNAL, INBOX, EVENTS = map(Place, ("checkpoints", "runs", "journal", "inbox", "events"))
"""Where the files of a run are."""

_DIRECTORIES = ("aside", "parts", "runs", "journal", "inbox", "events", "workflows", "forks", "undertaking")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The files of a directory by what they are for."""

    lock: Path
    owners: Path
    tenants: Path
    documents: Documents
    besides: Besides
    logs: RunLogs
    journals: RunFiles[RunJournal]
    inboxes: RunFiles[RunInbox]
    events: RunFiles[RunEvents]
    workflows: WorkflowIndex
    forks: ForkIndex
    counter: Counter
    undertakings: Undertakings
    protection: Protection
    _disk: Disk
    _aside: Path

    @classmethod
    def open(cls, disk: Disk, directory: Path) -> Layout:
        """The directory, laid out if it is new. Raises WorkflowCheckpointException for one of a later release."""
        own = directory / ".perdure"
        aside = own / "aside"
        for name in _DIRECTORIES:
            disk.make_directory(own / name)
        _require_format(disk, own / "format", lock=own / "lock")
        documents = Documents(disk, directory, aside=aside / "checkpoint")
        protection = Protection(disk, own / "collecting")
        logs = RunLogs(disk, own / "runs", documents)
        inboxes = RunFiles(disk, own / "inbox", RunInbox)
        places = {CHECKPOINTS: directory, **{each: own / each for each in (RUNS, JOURNAL, INBOX, EVENTS)}}
        return cls(
            lock=own / "lock",
            owners=own / "owners",
            tenants=own / "tenants",
            documents=documents,
            besides=Besides(disk, own / "parts", aside=aside / "part", protection=protection),
            logs=logs,
            journals=RunFiles(disk, own / "journal", RunJournal),
            inboxes=inboxes,
            events=RunFiles(disk, own / "events", RunEvents),
            workflows=WorkflowIndex(disk, own / "workflows", logs),
            forks=ForkIndex(disk, own / "forks", logs),
            counter=Counter(disk, own / "counter", lambda: _highest_number(documents, logs, inboxes)),
            undertakings=Undertakings(disk, own / "undertaking", places),
            protection=protection,
            _disk=disk,
            _aside=aside,
        )

    @property
    def is_lazy(self) -> bool:
        """Whether what was written need not be there after a power cut."""
        return self._disk.is_lazy

    def strictly(self) -> contextlib.AbstractContextManager[None]:
        """Wait for all that is written in here, whatever is waited for otherwise."""
        return strictly(self._disk)

    def drop_journal(self, name: str) -> None:
        """Remove the journal of that file name."""
        self.count_pruned(self.journals.named(name).drop())

    def count_pruned(self, number: int) -> None:
        """Take note of what was forgotten, for a collection to be due some time."""
        if number:
            self.counter.add_pruned(number)

    def remove_asides(self) -> None:
        """Remove what is aside. Only who holds the lock has files there, so these are a crash's."""
        for name in self._disk.names(self._aside):
            self._disk.remove(self._aside / name)
        self.undertakings.remove_asides()


def is_laid_out(disk: Disk, directory: Path) -> bool:
    """Whether the directory is that of a store."""
    return _is_written(disk, directory / ".perdure" / "format")


def _highest_number(documents: Documents, logs: RunLogs, inboxes: RunFiles[RunInbox]) -> int:
    """The highest number in use anywhere, for when the counter is lost."""
    numbers = [document.sequence for document in documents.all()]
    for name in logs.names():
        line = logs.named(name).current()
        if line:
            numbers += [line.state.token, *line.consumed, inboxes.named(name).highest_number(line)]
    return max(numbers, default=0)


def _require_format(disk: Disk, path: Path, *, lock: Path) -> None:
    """Refuse a directory that a later perdure has laid out otherwise; say so in a new one."""
    if not _is_written(disk, path):
        with disk.lock(lock):
            # Of several processes that find the directory new, one writes.
            if not _is_written(disk, path):
                # Aside first: a power cut can leave zeros in a file that is being written.
                aside = path.with_suffix(".aside")
                disk.write_new(aside, b"%d\n" % _FORMAT)
                disk.rename(aside, path)
                if disk.is_lazy:
                    disk.founded += (path,)
                return
    written = disk.read(path).strip().decode("ascii", "replace")
    if written != str(_FORMAT):
        raise WorkflowCheckpointException(
            f"the directory {str(path.parent.parent)!r} has format {written}, this perdure knows {_FORMAT}; "
            "upgrade perdure to open it"
        )


def _is_written(disk: Disk, path: Path) -> bool:
    # A crash can leave it empty, or nothing but zeros in it.
    return disk.stamp(path) is not None and disk.read(path).strip(b"\0") != b""
