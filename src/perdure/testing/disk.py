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
from typing import TYPE_CHECKING, Final, TypeAlias

from typing_extensions import override

from perdure.storage import Disk, Stamp

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from perdure.storage import Durability

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


@dataclass(slots=True, eq=False)
class _Directory:
    names: dict[str, _Node] = field(default_factory=dict[str, "_Node"])
    synced: dict[str, _Node] = field(default_factory=dict[str, "_Node"])


_Node: TypeAlias = _File | _Directory


@dataclass(slots=True, eq=False)
class _Naming:
    """The names that one operation changed; None if a name was removed. They reach the disk together."""

    nodes: dict[tuple[_Directory, str], _Node | None]


class SimulatedDisk(Disk):
    """A file system in memory, empty at first.

    `before_change` is called before every change, and also between the write of a file and its fsync: the machine can
    lose power at each of these moments.
    """

    def __init__(self, *, before_change: Callable[[], None] | None = None, durability: Durability = "commit") -> None:
        super().__init__(durability=durability)
        self._before_change = before_change or _nothing
        self._root = _Directory()
        self._unsynced: list[_Naming] = []
        self._numbers = itertools.count(1)
        self._moments = itertools.count(1)
        self._starts = 1
        self._locks: defaultdict[Path, threading.Lock] = defaultdict(threading.Lock)

    def crash(self, seed: int) -> SimulatedDisk:
        """Return the disk as it would be after a power cut now. This one does not change."""
        crash, disk = _Crash(seed), SimulatedDisk(durability=self.durability)
        disk._root = crash.left_of(self._root, self._unsynced)
        disk._numbers = crash.numbers
        disk._starts = self._starts + 1
        return disk

    def files(self) -> dict[Path, bytes]:
        """Return the content of every file."""
        return {path: node.data for path, node in _walk(Path("/"), self._root) if isinstance(node, _File)}

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
        directory = self._find(path)
        if not isinstance(directory, _Directory):
            self.sync_file(path)
            return
        self._before_change()
        for naming in list(self._unsynced):
            if any(each is directory for each, _ in naming.nodes):
                self._settle(naming)

    @override
    def stamp(self, path: Path) -> Stamp | None:
        match self._find(path):
            case _File() as file:
                return Stamp(file.number, len(file.data), file.modified)
            case _:
                return None

    @override
    def read(self, path: Path, *, start: int = 0, end: int | None = None) -> bytes:
        return self._file(path).data[start:end]

    @override
    def names(self, directory: Path) -> list[str]:
        found = self._find(directory)
        return list(found.names) if isinstance(found, _Directory) else []

    @override
    def make_directory(self, path: Path) -> None:
        if isinstance(self._find(path), _Directory):
            return
        if not isinstance(self._find(path.parent), _Directory):
            self.make_directory(path.parent)
        self._before_change()
        self._name({path: _Directory()})
        self.sync_directory(path.parent)
        if self.is_lazy:
            self.unsynced_roots += (path,)

    @override
    def write_new(self, path: Path, data: bytes) -> None:
        self.remove(path)
        self._before_change()
        self._write(self._create(path), _Write(0, data))
        if not self.is_lazy:
            self.sync_file(path)

    @override
    def write_at(self, path: Path, offset: int, data: bytes, *, sync: bool) -> None:
        self._before_change()
        found = self._find(path)
        self._write(found if isinstance(found, _File) else self._create(path), _Write(offset, data))
        if sync and not self.is_lazy:
            self.sync_file(path)

    @override
    def link(self, source: Path, target: Path) -> None:
        self._before_change()
        if self._find(target):
            raise FileExistsError(errno.EEXIST, "File exists", str(target))
        self._name({target: self._file(source)})

    @override
    def rename(self, source: Path, target: Path) -> None:
        self._sync_replacement(source, target)
        self._before_change()
        self._name({source: None, target: self._file(source)})

    @override
    def remove(self, path: Path) -> None:
        if self._find(path):
            self._before_change()
            self._name({path: None})

    @override
    @contextlib.contextmanager
    def lock(self, path: Path) -> Generator[None]:
        with self._locks[path]:
            yield

    def _create(self, path: Path) -> _File:
        file = _File(next(self._numbers))
        self._name({path: file})
        return file

    def _write(self, file: _File, write: _Write) -> None:
        file.data = write.whole(file.data)
        file.modified = next(self._moments)
        file.unsynced.append(write)

    def _name(self, nodes: dict[Path, _Node | None]) -> None:
        naming = _Naming({(self._directory(path.parent), path.name): node for path, node in nodes.items()})
        for (directory, name), node in naming.nodes.items():
            _put(directory.names, name, node)
        self._unsynced.append(naming)

    def _settle(self, naming: _Naming) -> None:
        """Make a change of names durable, and drop earlier changes of the same names."""
        for earlier in self._unsynced[: self._unsynced.index(naming)]:
            for key in naming.nodes:
                earlier.nodes.pop(key, None)
        for (directory, name), node in naming.nodes.items():
            _put(directory.synced, name, node)
        self._unsynced.remove(naming)

    def _find(self, path: Path) -> _Node | None:
        node: _Node | None = self._root
        for name in path.parts[1:]:
            node = node.names.get(name) if isinstance(node, _Directory) else None
        return node

    def _file(self, path: Path) -> _File:
        match self._find(path):
            case _File() as file:
                return file
            case _:
                raise FileNotFoundError(errno.ENOENT, "No such file", str(path))

    def _directory(self, path: Path) -> _Directory:
        match self._find(path):
            case _Directory() as directory:
                return directory
            case _:
                raise FileNotFoundError(errno.ENOENT, "No such directory", str(path))


class _Crash:
    """One way of losing what was not fsynced."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._draw = random.Random(seed).randrange  # noqa: S311
        self._copies: dict[_Node, _Node] = {}
        self.numbers = itertools.count(1)

    def left_of(self, root: _Directory, unsynced: list[_Naming]) -> _Directory:
        """Return the tree that a crash leaves."""
        return self._directory(root, self._surviving(unsynced))

    def _surviving(self, namings: list[_Naming]) -> list[_Naming]:
        """Return the changes of names that reached the disk: the first few, or any of them."""
        if self._seed == NOTHING_SURVIVES:
            return []
        if self._seed == EVERYTHING_SURVIVES:
            return namings
        if self._draw(2):
            return namings[: self._draw(len(namings) + 1)]
        return [naming for naming in namings if self._draw(2)]

    def _directory(self, directory: _Directory, survivors: list[_Naming]) -> _Directory:
        names = dict(directory.synced)
        for naming in survivors:
            for (where, name), node in naming.nodes.items():
                if where is directory:
                    _put(names, name, node)
        left = {name: self._copy(node, survivors) for name, node in names.items()}
        return _Directory(dict(left), left)

    def _copy(self, node: _Node, survivors: list[_Naming]) -> _Node:
        """Return the copy of a file or directory, the same one under all of its names."""
        if node not in self._copies:
            match node:
                case _File():
                    data = self._data(node)
                    self._copies[node] = _File(next(self.numbers), data, data)
                case _Directory():
                    self._copies[node] = self._directory(node, survivors)
        return self._copies[node]

    def _data(self, file: _File) -> bytes:
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


def _put(names: dict[str, _Node], name: str, node: _Node | None) -> None:
    if node is None:
        names.pop(name, None)
    else:
        names[name] = node


def _walk(path: Path, directory: _Directory) -> Iterator[tuple[Path, _Node]]:
    for name, node in directory.names.items():
        yield path / name, node
        if isinstance(node, _Directory):
            yield from _walk(path / name, node)


def _nothing() -> None:
    pass
