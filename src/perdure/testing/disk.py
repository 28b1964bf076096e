"""A simulated disk that loses what was not fsynced when its machine loses power.

    disk = SimulatedDisk()
    store = FileStore("/anywhere", disk=disk)
    ...
    after = FileStore("/anywhere", disk=disk.crash(seed=7))

The data of a file is durable once the file is fsynced, its name once its directory is. A crash keeps nothing else,
everything else, or what the seed chooses.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import random  # noqa: TID251 - seeded, to choose what is tested
import threading
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from typing_extensions import override

from perdure.storage import Disk, Durability, Stamp

if TYPE_CHECKING:
    from collections.abc import Callable, Generator


# The seed of a crash that keeps only what was fsynced, and of one that loses nothing. All other seeds choose.
NOTHING_SURVIVES: Final = 0
EVERYTHING_SURVIVES: Final = 1


@dataclass(frozen=True, slots=True)
class _Write:
    """A write of bytes at an offset, which cuts the file off behind them."""

    offset: int
    data: bytes

    def whole(self, before: bytes) -> bytes:
        return before[: self.offset].ljust(self.offset, b"\0") + self.data

    def torn(self, before: bytes, at: int, *, zeros: bool) -> bytes:
        """Return the file if only the first bytes reached the disk. The rest is zeros, or the former content."""
        begun = before[: self.offset].ljust(self.offset, b"\0") + self.data[:at]
        return begun.ljust(self.offset + len(self.data), b"\0") if zeros else begun + before[len(begun) :]


@dataclass(slots=True, eq=False)
class _File:
    number: int
    data: bytes = b""
    synced: bytes = b""
    unsynced: list[_Write] = field(default_factory=list[_Write])
    modified: int = 0


_Node: TypeAlias = "_File | Literal['directory']"
_Names: TypeAlias = "dict[Path, _Node]"
# The names that one operation changed; None if a name was removed. They reach the disk together.
_Naming: TypeAlias = "dict[Path, _Node | None]"


class SimulatedDisk(Disk):
    """A file system in memory, empty at first.

    `before_change` is called before every change, and also between the write of a file and its fsync: the machine can
    lose power at each of these moments.
    """

    def __init__(self, *, before_change: Callable[[], None] | None = None, durability: Durability = "commit") -> None:
        super().__init__(durability=durability)
        self._before_change = before_change or (lambda: None)
        self._names: _Names = {Path("/"): "directory"}
        self._synced: _Names = dict(self._names)
        self._unsynced: list[_Naming] = []
        self._numbers = itertools.count(1)
        self._moments = itertools.count(1)
        self._starts = 1
        self._locks: defaultdict[Path, threading.Lock] = defaultdict(threading.Lock)

    def crash(self, seed: int) -> SimulatedDisk:
        """Return the disk as it would be after a power cut now. This one does not change."""
        crash, disk = _Crash(seed), SimulatedDisk(durability=self.durability)
        disk._starts = self._starts + 1
        left = dict(self._synced)
        for naming in crash.surviving(self._unsynced):
            _apply(left, naming)
        # A file keeps its data under all of its names, as far as the directories of these are left.
        files = {node: _File(next(disk._numbers)) for node in left.values() if isinstance(node, _File)}
        for node, file in files.items():
            file.data = file.synced = crash.data(node)
        for path, node in left.items():
            if all(parent in left for parent in path.parents):
                disk._names[path] = files[node] if isinstance(node, _File) else node
        disk._synced = dict(disk._names)
        return disk

    def files(self) -> dict[Path, bytes]:
        """Return the content of every file."""
        return {path: node.data for path, node in self._names.items() if isinstance(node, _File)}

    def sync_file(self, path: Path) -> None:
        """Make the data of a file durable."""
        self._before_change()
        file = self._file(path)
        file.synced = file.data
        file.unsynced.clear()

    @override
    def boot_id(self) -> str:
        return f"start {self._starts}"

    @override
    def _sync_by_name(self, path: Path) -> None:
        if self._names.get(path) != "directory":
            self.sync_file(path)
            return
        self._before_change()
        for naming in [each for each in self._unsynced if any(name.parent == path for name in each)]:
            # Earlier changes of the same names no longer matter.
            for earlier in self._unsynced[: self._unsynced.index(naming)]:
                for name in naming:
                    earlier.pop(name, None)
            _apply(self._synced, naming)
            self._unsynced.remove(naming)

    @override
    def stamp(self, path: Path) -> Stamp | None:
        file = self._names.get(path)
        return Stamp(file.number, len(file.data), file.modified) if isinstance(file, _File) else None

    @override
    def read(self, path: Path, *, start: int = 0, end: int | None = None) -> bytes:
        return self._file(path).data[start:end]

    @override
    def names(self, directory: Path) -> list[str]:
        return [path.name for path in self._names if path.parent == directory and path != directory]

    @override
    def make_directory(self, path: Path) -> None:
        if path in self._names:
            return
        self.make_directory(path.parent)
        self._before_change()
        self._name({path: "directory"})
        self.sync_directory(path.parent)
        if self.is_lazy:
            self.unsynced_roots += (path,)

    @override
    def write_new(self, path: Path, data: bytes) -> None:
        self.remove(path)
        self._before_change()
        self._write(path, _Write(0, data))
        if not self.is_lazy:
            self.sync_file(path)

    @override
    def write_at(self, path: Path, offset: int, data: bytes, *, sync: bool) -> None:
        self._before_change()
        self._write(path, _Write(offset, data))
        if sync and not self.is_lazy:
            self.sync_file(path)

    @override
    def link(self, source: Path, target: Path) -> None:
        self._before_change()
        if target in self._names:
            raise FileExistsError(errno.EEXIST, "File exists", str(target))
        self._name({target: self._file(source)})

    @override
    def rename(self, source: Path, target: Path) -> None:
        self._sync_replacement(source, target)
        self._before_change()
        self._name({source: None, target: self._file(source)})

    @override
    def remove(self, path: Path) -> None:
        if path in self._names:
            self._before_change()
            self._name({path: None})

    @override
    @contextlib.contextmanager
    def lock(self, path: Path) -> Generator[None]:
        with self._locks[path]:
            yield

    def _write(self, path: Path, write: _Write) -> None:
        if path not in self._names:
            self._name({path: _File(next(self._numbers))})
        file = self._file(path)
        file.data = write.whole(file.data)
        file.modified = next(self._moments)
        file.unsynced.append(write)

    def _name(self, naming: _Naming) -> None:
        for path in naming:
            if self._names.get(path.parent) != "directory":
                raise FileNotFoundError(errno.ENOENT, "No such directory", str(path.parent))
        _apply(self._names, naming)
        self._unsynced.append(naming)

    def _file(self, path: Path) -> _File:
        file = self._names.get(path)
        if not isinstance(file, _File):
            raise FileNotFoundError(errno.ENOENT, "No such file", str(path))
        return file


class _Crash:
    """One way of losing what was not fsynced."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._draw = random.Random(seed).randrange  # noqa: S311

    def surviving(self, namings: list[_Naming]) -> list[_Naming]:
        """Return the changes of names that reached the disk: the first few, or any of them."""
        if self._seed == NOTHING_SURVIVES:
            return []
        if self._seed == EVERYTHING_SURVIVES:
            return namings
        if self._draw(2):
            return namings[: self._draw(len(namings) + 1)]
        return [naming for naming in namings if self._draw(2)]

    def data(self, file: _File) -> bytes:
        """Return the data of a file that reached the disk: the first few writes, and the next one torn."""
        if self._seed == NOTHING_SURVIVES:
            return file.synced
        if self._seed == EVERYTHING_SURVIVES:
            return file.data
        data, count = file.synced, self._draw(len(file.unsynced) + 1)
        for write in file.unsynced[:count]:
            data = write.whole(data)
        for write in file.unsynced[count : count + 1]:
            data = write.torn(data, self._draw(len(write.data) + 1), zeros=self._draw(4) == 0)
        return data


def _apply(names: _Names, naming: _Naming) -> None:
    for path, node in naming.items():
        if node is None:
            names.pop(path, None)
        else:
            names[path] = node
