"""The directory of a store: its layout, its lock, its counter, and changes of several files at once."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, NewType, TypeAlias

from perdure.errors import StorageOutdatedError, WorkflowCheckpointException
from perdure.storage.file import lines
from perdure.storage.file.checkpoints import Blobs, Checkpoints, closure
from perdure.storage.file.run_files import RunFiles
from perdure.storage.rules import file_name

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from perdure.records import Blob
    from perdure.storage.disk import Disk

Location = NewType("Location", str)
"""A directory by the name that plans of transactions use."""

Target: TypeAlias = tuple[Location, str]
"""A file by its directory and its name there."""

CHECKPOINTS, RUNS, JOURNAL, INBOX, EVENTS = map(Location, ("checkpoints", "runs", "journal", "inbox", "events"))

_FORMAT = "2"
# None at all, or that of releases that collected blobs without the lock. A directory can't be shared with these.
_OLDER_FORMATS = frozenset({"", "1"})

_DIRECTORIES = ("aside", "parts", "runs", "journal", "inbox", "events", "forks", "undertaking")
_SUFFIX = ".log"
_NUMBERS_RESERVED = 1000
_SOURCES_MAX = 200_000


class Directory:
    """The files of a store. Whoever reads or changes something holds `lock`.

    A directory that does not exist is made if `create` is set. Otherwise it is empty, and nothing is written.
    """

    def __init__(self, disk: Disk, path: Path, *, create: bool) -> None:
        own = path / ".perdure"
        self.disk = disk
        self.path = path
        self.owners = own / "owners"
        self.tenants = own / "tenants"
        self.exists = create or _read_format(disk, own / "format") != ""
        self.applied: Sequence[str] = ()
        """The migrations that were made when the directory was opened."""
        self._own = own
        # By the hash of a small blob a file that contains it, or has done so.
        self._sources: dict[str, Path] = {}
        if self.exists:
            for name in _DIRECTORIES:
                disk.make_directory(own / name)
            self._require_format()
        self.checkpoints = Checkpoints(disk, path, aside=own / "aside" / "checkpoint", sources=self._sources)
        self.blobs = Blobs(disk, own / "parts", aside=own / "aside" / "part")
        self.forks = Forks(disk, own / "forks", self.run)
        self.counter = Counter(disk, own / "counter", self._highest_number)
        locations = {CHECKPOINTS: path, **{each: own / each for each in (RUNS, JOURNAL, INBOX, EVENTS)}}
        self.transactions = Transactions(disk, own / "undertaking", locations)

    @contextlib.contextmanager
    def lock(self) -> Generator[None]:
        """Exclude all other users of the directory, and finish a transaction that a crash has interrupted."""
        if not self.exists:
            yield
            return
        with self.disk.lock(self._own / "lock"):
            self.transactions.recover()
            yield

    def run(self, run_id: str) -> RunFiles:
        """Return the files of a run, which need not exist."""
        return self.run_named(file_name(run_id) + _SUFFIX)

    def run_named(self, name: str) -> RunFiles:
        """Return the files of the run whose files have that name."""
        return RunFiles(self.disk, self._own, name, self.checkpoints, self._sources)

    def runs(self) -> Iterator[RunFiles]:
        """Return the files of all runs that have a log."""
        return map(self.run_named, self.names(RUNS))

    def names(self, location: Location) -> list[str]:
        """Return the names of all logs, journals, inboxes or event files."""
        return [name for name in self.disk.names(self._own / location) if name.endswith(_SUFFIX)]

    def find_blobs(self, roots: Iterable[str], *, known: Mapping[str, Blob] | None = None) -> dict[str, Blob]:
        """Return these blobs and all that they refer to, as far as they are found anywhere."""
        read = dict(known or {})
        is_indexed = False

        def find(blob_hash: str) -> Blob | None:
            nonlocal is_indexed
            if blob_hash not in read:
                read.update(self._inline_blobs(self._sources.get(blob_hash)))
            if blob_hash not in read:
                read.update(self.blobs.read(blob_hash))
            if blob_hash not in read and not is_indexed:
                is_indexed = True
                self._index_blobs()
                read.update(self._inline_blobs(self._sources.get(blob_hash)))
            return read.get(blob_hash)

        if len(self._sources) > _SOURCES_MAX:
            self._sources.clear()
        return closure(roots, find)

    def _index_blobs(self) -> None:
        """Read every file that contains small blobs, and note which it contains."""
        paths = [self._own / each / name for each in (JOURNAL, INBOX, EVENTS) for name in self.names(each)]
        for path in (*self.checkpoints.paths(), *paths):
            self._sources.update(dict.fromkeys(self._inline_blobs(path), path))

    def _inline_blobs(self, path: Path | None) -> Mapping[str, Blob]:
        """Return the blobs in a file, none if it is gone."""
        # Nobody asked for a damaged file. Whoever does gets the error.
        with contextlib.suppress(WorkflowCheckpointException):
            if path is not None and path.parent == self.path:
                file = self.checkpoints.read(path)
                return file.blobs if file else {}
            if path is not None:
                return lines.decode_blobs(lines.read(self.disk, path))
        return {}

    def files_of(self, run: RunFiles) -> list[Target]:
        """Return every file of a run, and those that an earlier run of its id may have left."""
        entries = (entry for entry in run.log.entries() if self.checkpoints.holds(entry))
        files = ((CHECKPOINTS, self.checkpoints.path(entry.checkpoint_id).name) for entry in entries)
        return [*files, *((location, run.name) for location in (RUNS, JOURNAL, INBOX, EVENTS))]

    def remove_asides(self) -> None:
        """Remove unfinished files. Only the holder of the lock writes any, so a crash has left them."""
        for name in self.disk.names(self._own / "aside"):
            self.disk.remove(self._own / "aside" / name)
        self.transactions.remove_asides()

    def _highest_number(self) -> int:
        """Return the highest number in use, for a counter that was lost."""
        numbers = [file.sequence for file in self.checkpoints.all()]
        for run in self.runs():
            line = run.current()
            if line:
                numbers += [line.state.token, *line.consumed, run.inbox.highest_number(line)]
        return max(numbers, default=0)

    def _require_format(self) -> None:
        """Refuse a directory of a later release, and write the format into others."""
        disk, path = self.disk, self._own / "format"
        # Several processes may find the directory new at the same time. One of them writes.
        with disk.lock(self._own / "lock"):
            written = _read_format(disk, path)
            if written in _OLDER_FORMATS and disk.read_only:
                raise StorageOutdatedError(str(self.path))
            if written in _OLDER_FORMATS:
                aside = path.with_suffix(".aside")
                disk.write_new(aside, f"{_FORMAT}\n".encode("ascii"))
                disk.rename(aside, path)
                if disk.is_lazy:
                    disk.unsynced_roots += (path,)
                self.applied = (f"format_{_FORMAT}",)
            elif written != _FORMAT:
                raise WorkflowCheckpointException(
                    f"the directory {str(self.path)!r} has format {written}, this perdure knows {_FORMAT}; "
                    "upgrade perdure to open it"
                )


class Transactions:
    """Changes of several files that happen as a whole.

    New files are written aside, then a plan that says where they belong. Once the plan exists the change has happened:
    whoever takes the lock next finishes it after a crash. Files aside without a plan mean nothing. Everything is
    fsynced, whatever the durability is: the change may replace durable data.
    """

    def __init__(self, disk: Disk, directory: Path, locations: Mapping[Location, Path]) -> None:
        self._disk = disk
        self._directory = directory
        self._plan = directory / "plan"
        self._locations = locations

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
        self._finish()

    def recover(self) -> None:
        """Finish a change that a crash has interrupted."""
        if self._disk.stamp(self._plan):
            if self._disk.read_only:
                # A migration finishes it too.
                raise StorageOutdatedError(str(self._directory.parent.parent))
            self._finish()

    def _finish(self) -> None:
        """Carry out the plan. Repeating this does no harm."""
        with self._disk.always_fsync():
            (plan,) = lines.read(self._disk, self._plan)
            files, removed = plan["files"], plan["removed"]
            for target in (*removed, *files):
                self._disk.remove(self._path(target))
            for number, target in enumerate(files):
                # A link, so that a crash leaves the file aside until the new name is durable.
                self._disk.link(self._directory / f"{number}", self._path(target))
            for location in dict.fromkeys(location for location, _ in (*removed, *files)):
                self._disk.sync_directory(self._locations[location])
            self._disk.remove(self._plan)
            # Before anything else changes: a plan that came back would undo it.
            self._disk.sync_directory(self._directory)
            self.remove_asides()

    def remove_asides(self) -> None:
        """Remove files aside that have no plan."""
        for name in self._disk.names(self._directory):
            self._disk.remove(self._directory / name)

    def _path(self, target: Target) -> Path:
        location, name = target
        assert name == name.rpartition("/")[2] not in {"", ".", ".."}, f"{name!r} is not a file name"
        return self._locations[location] / name


class Counter:
    """Numbers that only grow, shared by all processes: the order of commits, the tokens of leases.

    The file is not fsynced for every number. It says how many numbers are reserved, and that is durable. When the
    machine has restarted, counting goes on from there. The file also says how many blobs the last collection has left.
    """

    def __init__(self, disk: Disk, path: Path, highest_number: Callable[[], int]) -> None:
        self._disk = disk
        self._path = path
        self._highest_number = highest_number
        self._boot = disk.boot_id()
        # The number that this process took last.
        self.last = 0

    def take(self) -> int:
        """Return a number larger than all before it."""
        fields = self._read()
        number, reserved = int(fields["next"]), int(fields["reserved"])
        is_reserved = number < reserved
        reserved = reserved if is_reserved else number + _NUMBERS_RESERVED
        self._write({**fields, "next": number + 1, "reserved": reserved}, sync=not is_reserved)
        self.last = number
        return number

    def content(self) -> bytes:
        """Return the content of the file. It changes with every number, so other processes can watch it."""
        try:
            return self._disk.read(self._path)
        except FileNotFoundError:
            return b""

    def kept(self) -> int:
        """Return the number of blobs that the last collection has left."""
        return int(self._read().get("kept", 0))

    def set_kept(self, number: int) -> None:
        """Note the number of blobs that a collection has left."""
        self._write({**self._read(), "kept": number}, sync=False)

    def _read(self) -> dict[str, Any]:
        try:
            fields = lines.decode(self._path, self.content().partition(b"\n")[0])
        except WorkflowCheckpointException:
            number = self._highest_number() + 1
            return {"boot": self._boot, "next": number, "reserved": number}
        if fields["boot"] != self._boot or not self._boot:
            return {**fields, "boot": self._boot, "next": max(fields["next"], fields["reserved"])}
        return fields

    def _write(self, fields: dict[str, Any], *, sync: bool) -> None:
        self._disk.write_at(self._path, 0, lines.encode(fields), sync=sync)


class Forks:
    """For checkpoints that were forked from, the runs that may need them."""

    def __init__(self, disk: Disk, directory: Path, run: Callable[[str], RunFiles]) -> None:
        self._disk = disk
        self._directory = directory
        self._run = run

    def add(self, checkpoint_id: str, run_id: str) -> None:
        """Record durably, before a fork begins, that it needs the checkpoint."""
        lines.append(self._disk, self._path(checkpoint_id), [{"run_id": run_id}])

    def of(self, checkpoint_id: str) -> list[str]:
        """Return the forks that have no checkpoint of their own yet and need this one."""
        path = self._path(checkpoint_id)
        run_ids = dict.fromkeys(str(value["run_id"]) for value in lines.read(self._disk, path))
        needing = [run_id for run_id in run_ids if self._needs(run_id, checkpoint_id)]
        if run_ids and not needing:
            self._disk.remove(path)
        return needing

    def _needs(self, run_id: str, checkpoint_id: str) -> bool:
        line = self._run(run_id).current()
        return line is not None and line.state.needed_checkpoint == checkpoint_id

    def _path(self, checkpoint_id: str) -> Path:
        return self._directory / (file_name(checkpoint_id) + _SUFFIX)


def _read_format(disk: Disk, path: Path) -> str:
    """Return the format of a directory, empty if it has none."""
    try:
        # A crash can leave the file empty, or with zeros only.
        return disk.read(path).strip(b"\0 \n").decode("ascii", "replace")
    except FileNotFoundError:
        return ""
