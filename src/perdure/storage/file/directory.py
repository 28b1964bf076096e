"""The directory of a store: its layout, its lock, its counter, and changes of several files at once."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, NewType, TypeAlias

from perdure.errors import WorkflowCheckpointException
from perdure.storage.file import lines
from perdure.storage.file.blobs import Blobs, closure
from perdure.storage.file.checkpoint_file import CheckpointFiles
from perdure.storage.file.run_files import EventFile, Inbox, Journal, RunFiles
from perdure.storage.file.run_log import SUFFIX, RunLog, RunLogs
from perdure.storage.ids import file_name

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
    from pathlib import Path

    from perdure.records import Blob
    from perdure.storage.disk import Disk

Place = NewType("Place", str)
"""A directory by the name that plans of transactions use."""

Target: TypeAlias = tuple[Place, str]
"""A file by its directory and its name there."""

CHECKPOINTS, RUNS, JOURNAL, INBOX, EVENTS = map(Place, ("checkpoints", "runs", "journal", "inbox", "events"))

_FORMAT = "2"
_OLDER_FORMATS = frozenset({"1"})
"""Written by releases that collected blobs without the lock. A directory can't be shared with such a process."""

_DIRECTORIES = ("aside", "parts", "runs", "journal", "inbox", "events", "forks", "undertaking")
_REMOVED_SUFFIX = ".removed"
_NUMBERS_RESERVED = 1000


class Directory:
    """The files of a store. Whoever changes something holds `lock`.

    A directory that does not exist is made if `create` is set. Otherwise it is empty, and nothing is written.
    """

    def __init__(self, disk: Disk, path: Path, *, create: bool) -> None:
        own = path / ".perdure"
        self.disk = disk
        self.path = path
        self.owners = own / "owners"
        self.tenants = own / "tenants"
        self.exists = create or _is_written(disk, own / "format")
        self._own = own
        self._lock = own / "lock"
        if self.exists:
            for name in _DIRECTORIES:
                disk.make_directory(own / name)
            self._require_format()
        self.checkpoints = CheckpointFiles(disk, path, aside=own / "aside" / "checkpoint")
        self.blobs = Blobs(disk, own / "parts", aside=own / "aside" / "part")
        self.logs = RunLogs(disk, own / "runs", self.checkpoints)
        self.journals = RunFiles(disk, own / "journal", Journal)
        self.inboxes = RunFiles(disk, own / "inbox", Inbox)
        self.events = RunFiles(disk, own / "events", EventFile)
        self.forks = Forks(disk, own / "forks", self.logs)
        self.counter = Counter(disk, own / "counter", self._highest_number)
        places = {CHECKPOINTS: path, **{place: own / place for place in (RUNS, JOURNAL, INBOX, EVENTS)}}
        self.transactions = Transactions(disk, own / "undertaking", places)
        if self.exists and any(name.endswith(_REMOVED_SUFFIX) for name in disk.names(own / "runs")):
            with self.lock():
                self._finish_removals()

    @contextlib.contextmanager
    def lock(self) -> Generator[None]:
        """Exclude all other users of the directory, and finish a transaction that a crash has interrupted."""
        if not self.exists:
            yield
            return
        with self.disk.lock(self._lock):
            if self.transactions.is_unfinished:
                self.transactions.finish()
            yield

    def finish_transaction(self) -> None:
        """Finish a transaction that a crash has interrupted. Required before a read without the lock."""
        if self.transactions.is_unfinished:
            with self.lock():
                pass

    def find_blobs(self, roots: Iterable[str], *, known: Mapping[str, Blob] | None = None) -> dict[str, Blob]:
        """Return these blobs and all that they refer to, as far as they are found anywhere."""
        at_hand = known or {}
        anywhere: dict[str, Blob] | None = None

        def find(blob_hash: str) -> Blob | None:
            nonlocal anywhere
            files = self.journals, self.inboxes, self.events
            found = at_hand.get(blob_hash) or self.checkpoints.find_blob(blob_hash)
            found = found or next((blob for each in files if (blob := each.find_blob(blob_hash))), None)
            found = found or self.blobs.find(blob_hash)
            if found:
                return found
            if anywhere is None:
                self.checkpoints.locate_blobs()
                anywhere = {blob: data for each in files for blob, data in each.read_blobs().items()}
            return self.checkpoints.find_blob(blob_hash) or anywhere.get(blob_hash)

        return closure(roots, find)

    def drop_journal(self, name: str) -> None:
        """Remove the journal of that file name."""
        journal = self.journals.named(name)
        blobs = journal.count_blobs()
        journal.drop()
        self.counter.add_pruned(blobs)

    def change_run(self, log: RunLog, files: Sequence[tuple[Target, bytes]], *, removed: Iterable[Target]) -> None:
        """Replace and remove files of a run in one transaction."""
        removed = tuple(removed)
        try:
            self.transactions.run(files, removed=removed)
        finally:
            log.forget_all()
            for each in (self.journals, self.inboxes, self.events):
                each.forget(log.path.name)
        self.counter.add_pruned(sum(place == CHECKPOINTS for place, _ in removed))

    def remove_asides(self) -> None:
        """Remove unfinished files. Only the holder of the lock writes any, so a crash has left them."""
        for name in self.disk.names(self._own / "aside"):
            self.disk.remove(self._own / "aside" / name)
        self.transactions.remove_asides()
        # Earlier releases noted here what was written during a collection.
        self.disk.remove(self._own / "collecting")

    def _highest_number(self) -> int:
        """Return the highest number in use, for a counter that was lost."""
        numbers = [file.sequence for file in self.checkpoints.all()]
        for log in self.logs.all():
            line = log.current()
            if line:
                inbox = self.inboxes.named(log.path.name)
                numbers += [line.state.token, *line.consumed, inbox.highest_number(line)]
        return max(numbers, default=0)

    def _require_format(self) -> None:
        """Refuse a directory of a later release, and write the format into others."""
        disk, path = self.disk, self._own / "format"
        if not _is_format(disk, path):
            with disk.lock(self._lock):
                # Several processes may find the directory new at the same time. One of them writes.
                if not _is_format(disk, path):
                    aside = path.with_suffix(".aside")
                    disk.write_new(aside, f"{_FORMAT}\n".encode("ascii"))
                    disk.rename(aside, path)
                    if disk.is_lazy:
                        disk.unsynced_roots += (path,)
                    return
        written = _read_format(disk, path)
        if written != _FORMAT:
            raise WorkflowCheckpointException(
                f"the directory {str(self.path)!r} has format {written}, this perdure knows {_FORMAT}; "
                "upgrade perdure to open it"
            )

    def _finish_removals(self) -> None:
        """Finish removals of runs that an earlier release has begun: it renamed the log first."""
        runs = self._own / "runs"
        for name in self.disk.names(runs):
            if name.endswith(_REMOVED_SUFFIX):
                log = RunLog(self.disk, runs / name, self.checkpoints)
                removed = [(RUNS, name), *self.all_of(log, name.removesuffix(_REMOVED_SUFFIX) + SUFFIX)]
                self.transactions.run([], removed=removed)

    def all_of(self, log: RunLog, name: str) -> list[Target]:
        """Return every file of a run, and those that an earlier run of its id may have left."""
        entries = (entry for entry in log.entries() if self.checkpoints.holds(entry))
        files = ((CHECKPOINTS, self.checkpoints.path(entry.checkpoint_id).name) for entry in entries)
        return [*files, *((place, name) for place in (RUNS, JOURNAL, INBOX, EVENTS))]


class Transactions:
    """Changes of several files that happen as a whole.

    New files are written aside, then a plan that says where they belong. Once the plan exists the change has happened:
    whoever takes the lock next finishes it after a crash. Files aside without a plan mean nothing. Everything is
    fsynced, whatever the durability is: the change may replace durable data.
    """

    def __init__(self, disk: Disk, directory: Path, places: Mapping[Place, Path]) -> None:
        self._disk = disk
        self._directory = directory
        self._plan = directory / "plan"
        self._places = places

    def run(self, files: Sequence[tuple[Target, bytes]], *, removed: Iterable[Target]) -> None:
        """Remove some files and write others, replacing files of the same names."""
        with self._disk.always_fsync():
            self.remove_asides()
            for number, (_, data) in enumerate(files):
                self._disk.write_new(self._directory / f"{number}", data)
            self._disk.sync_directory(self._directory)
            nascent = self._directory / "plan.aside"
            plan = {"files": [target for target, _ in files], "removed": list(removed)}
            self._disk.write_new(nascent, lines.encode(plan))
            self._disk.rename(nascent, self._plan)
            try:
                self._disk.sync_directory(self._directory)
            except OSError:
                self._disk.remove(self._plan)
                raise
        self.finish()

    @property
    def is_unfinished(self) -> bool:
        """Ask whether a crash has interrupted a change."""
        return self._disk.stamp(self._plan) is not None

    def finish(self) -> None:
        """Carry out the plan. Repeating this does no harm."""
        with self._disk.always_fsync():
            (plan,), _ = lines.read(self._disk, self._plan)
            files, removed = plan.value["files"], plan.value["removed"]
            for target in (*removed, *files):
                self._disk.remove(self._path(target))
            for number, target in enumerate(files):
                # A link, so that a crash leaves the file aside until the new name is durable.
                self._disk.link(self._directory / f"{number}", self._path(target))
            for place in dict.fromkeys(place for place, _ in (*removed, *files)):
                self._disk.sync_directory(self._places[place])
            self._disk.remove(self._plan)
            # Before anything else changes: a plan that came back would undo it.
            self._disk.sync_directory(self._directory)
            self.remove_asides()

    def remove_asides(self) -> None:
        """Remove files aside that have no plan."""
        for name in self._disk.names(self._directory):
            self._disk.remove(self._directory / name)

    def _path(self, target: Target) -> Path:
        place, name = target
        assert name == name.rpartition("/")[2] not in {"", ".", ".."}, f"{name!r} is not a file name"
        return self._places[place] / name


class Counter:
    """Numbers that only grow, shared by all processes: the order of commits, the tokens of leases.

    The file is not fsynced for every number. It says how many numbers are reserved, and that is durable. When the
    machine has restarted, counting goes on from there.
    """

    def __init__(self, disk: Disk, path: Path, highest_number: Callable[[], int]) -> None:
        self._disk = disk
        self._path = path
        self._highest_number = highest_number
        self._boot = disk.boot_id()
        self._cache: tuple[bytes, dict[str, Any]] = b"", {}

    def take(self) -> int:
        """Return a number larger than all before it."""
        fields = self._fields()
        number, reserved = int(fields["next"]), int(fields["reserved"])
        is_reserved = number < reserved
        reserved = reserved if is_reserved else number + _NUMBERS_RESERVED
        self._write({**fields, "next": number + 1, "reserved": reserved}, sync=not is_reserved)
        return number

    def content(self) -> bytes:
        """Return the content of the file. It changes with every number, so other processes can watch it."""
        try:
            return self._disk.read(self._path)
        except FileNotFoundError:
            return b""

    @property
    def last_pruned(self) -> int:
        """Return how much was removed since the last collection, as of this process's last write."""
        return int(self._cache[1].get("pruned", 0))

    def add_pruned(self, number: int) -> None:
        """Count what was removed, so that a collection is due some time."""
        if number:
            fields = self._fields()
            self._write({**fields, "pruned": int(fields["pruned"]) + number}, sync=False)

    def reset_pruned(self) -> None:
        """Start counting anew."""
        self._write({**self._fields(), "pruned": 0}, sync=False)

    def _fields(self) -> dict[str, Any]:
        data, fields = self.content(), None
        if data:
            fields = self._cache[1] if data == self._cache[0] else lines.read_only_line(self._path, data)
        if fields is None:
            number = self._highest_number() + 1
            return {"boot": self._boot, "next": number, "reserved": number, "pruned": 0}
        if fields["boot"] != self._boot or not self._boot:
            return {**fields, "boot": self._boot, "next": max(fields["next"], fields["reserved"])}
        return fields

    def _write(self, fields: dict[str, Any], *, sync: bool) -> None:
        data = lines.encode(fields)
        self._disk.write_at(self._path, 0, data, sync=sync)
        self._cache = data, fields


class Forks:
    """For checkpoints that were forked from, the runs that may need them."""

    def __init__(self, disk: Disk, directory: Path, logs: RunLogs) -> None:
        self._disk = disk
        self._directory = directory
        self._logs = logs

    def add(self, checkpoint_id: str, run_id: str) -> None:
        """Record durably, before a fork begins, that it needs the checkpoint."""
        lines.append(self._disk, self._path(checkpoint_id), {"run_id": run_id}, sync=True)
        self._disk.sync_directory(self._directory)

    def of(self, checkpoint_id: str) -> list[str]:
        """Return the forks that have no checkpoint of their own yet and need this one."""
        path = self._path(checkpoint_id)
        if self._disk.stamp(path) is None:
            return []
        found, _ = lines.read(self._disk, path)
        run_ids = dict.fromkeys(str(line.value["run_id"]) for line in found)
        needing = [run_id for run_id in run_ids if self._needs(run_id, checkpoint_id)]
        if not needing:
            self._disk.remove(path)
        return needing

    def _needs(self, run_id: str, checkpoint_id: str) -> bool:
        line = self._logs.of(run_id).current()
        return line is not None and line.state.needed_checkpoint == checkpoint_id

    def _path(self, checkpoint_id: str) -> Path:
        return self._directory / (file_name(checkpoint_id) + SUFFIX)


def _is_format(disk: Disk, path: Path) -> bool:
    """Ask whether the file says something else than the format of an earlier release."""
    return _is_written(disk, path) and _read_format(disk, path) not in _OLDER_FORMATS


def _read_format(disk: Disk, path: Path) -> str:
    return disk.read(path).strip().decode("ascii", "replace")


def _is_written(disk: Disk, path: Path) -> bool:
    # A crash can leave the file empty, or with zeros only.
    return disk.stamp(path) is not None and disk.read(path).strip(b"\0") != b""
