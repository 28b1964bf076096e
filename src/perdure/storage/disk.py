"""The few things that the file store does to a file system.

Every change that a crash could interrupt is one of these operations, so a disk that fails at each of them in
turn, or forgets what was not synced, shows what a crash leaves behind.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from typing_extensions import override

from perdure.data import frozen
from perdure.errors import WorkflowCheckpointException

if TYPE_CHECKING:
    from collections.abc import Generator

    from perdure.storage.port import Durability

LOCK_TIMEOUT_SECONDS = 30.0
LOCK_RETRY_SECONDS_MAX = 0.004
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

# Not every system has the one that spares the file's times.
_sync_data = getattr(os, "fdatasync", os.fsync)


@frozen
class Stamp:
    """Which file stands under a name, and how long it is."""

    inode: int
    size: int
    modified_ns: int


class Disk:
    """The file system of this machine. With durability "os" little waits for the disk itself (`settling.py`)."""

    durability: Durability = "commit"
    founded: tuple[Path, ...] = ()
    """What all else stands in and nobody has waited for: new directories, and what says what they are."""

    def __init__(self, *, durability: Durability = "commit") -> None:
        self.durability = durability

    @property
    def is_lazy(self) -> bool:
        """Whether what was written need not be there after a power cut."""
        return self.durability == "os"

    def boot_id(self) -> str:
        """Another one each time the machine starts; empty where the system does not tell."""
        return boot_id()

    def stamp(self, path: Path) -> Stamp | None:
        """The file's stamp; None if there is no such file."""
        try:
            status = os.stat(path)  # noqa: PTH116 - thrice as fast as Path.stat, and asked at every step
        except FileNotFoundError:
            return None
        return Stamp(status.st_ino, status.st_size, status.st_mtime_ns)

    def read(self, path: Path, *, start: int = 0, end: int | None = None) -> bytes:
        """The file's bytes. Raises FileNotFoundError."""
        # By the descriptor: a file object costs thrice as much, and every step reads.
        descriptor = os.open(path, os.O_RDONLY)
        try:
            end = os.fstat(descriptor).st_size if end is None else end
            return _read_all(descriptor, start, end)
        finally:
            os.close(descriptor)

    def names(self, directory: Path) -> list[str]:
        """The names in a directory, in no order."""
        return os.listdir(directory)  # noqa: PTH208 - names are all that is wanted

    def make_directory(self, path: Path) -> None:
        """Make a directory that lasts, unless there is one."""
        if path.is_dir():
            return
        if not path.parent.is_dir():
            self.make_directory(path.parent)
        path.mkdir(exist_ok=True)
        self.sync_directory(path.parent)
        if self.is_lazy:
            self.founded += (path,)

    def write_new(self, path: Path, data: bytes) -> None:
        """Write a file of that name and sync it. A file that has the name loses it and is not written to."""
        path.unlink(missing_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            _write_all(descriptor, data, 0)
            self._wait_for_data(descriptor)
        finally:
            os.close(descriptor)

    def write_at(self, path: Path, offset: int, data: bytes, *, sync: bool) -> None:
        """Make these bytes the end of a file, from the offset on."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            end = _write_all(descriptor, data, offset)
            if os.fstat(descriptor).st_size > end:
                os.ftruncate(descriptor, end)
            if sync:
                self._wait_for_data(descriptor)
        finally:
            os.close(descriptor)

    def link(self, source: Path, target: Path) -> None:
        """Give a file a further name. Raises FileExistsError if the name is taken."""
        os.link(source, target)

    def rename(self, source: Path, target: Path) -> None:
        """Give a file another name, and replace what had it."""
        self._settle_before_replacing(source, target)
        source.replace(target)

    def remove(self, path: Path) -> None:
        """Take a name away, if it is there."""
        path.unlink(missing_ok=True)

    def sync_directory(self, path: Path) -> None:
        """Let the names in a directory last."""
        if not self.is_lazy:
            self._sync_by_name(path)

    def secure(self, path: Path) -> None:
        """Let a file and its name last, although nothing else may be waited for."""
        self._sync_by_name(path)
        self._sync_by_name(path.parent)

    def _settle_before_replacing(self, source: Path, target: Path) -> None:
        """Let a file last that takes the place of one which may be on the disk already."""
        if self.is_lazy and self.stamp(target):
            self.secure(source)

    def _sync(self, descriptor: int, *, data_only: bool = False) -> None:
        """Wait for the disk. Every sync is a call of this."""
        (_sync_data if data_only else os.fsync)(descriptor)

    def _wait_for_data(self, descriptor: int) -> None:
        """Sync a file: what is in it and how long it is, its times not."""
        if not self.is_lazy:
            self._sync(descriptor, data_only=True)

    def _sync_by_name(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            self._sync(descriptor)
        finally:
            os.close(descriptor)

    @contextlib.contextmanager
    def lock(self, path: Path) -> Generator[None]:
        """Be the only one, of all processes, in here."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            _lock(descriptor, path)
            yield
        finally:
            # Explicitly: a child that was forked meanwhile has the descriptor too and would keep the lock.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)


class EmptyDisk(Disk):
    """One on which nothing is and nothing stays, in the place of a directory that is not there."""

    @override
    def stamp(self, path: Path) -> Stamp | None:
        return None

    @override
    def read(self, path: Path, *, start: int = 0, end: int | None = None) -> bytes:
        raise FileNotFoundError(errno.ENOENT, "there is nothing here", str(path))

    @override
    def names(self, directory: Path) -> list[str]:
        return []

    @override
    def make_directory(self, path: Path) -> None:
        pass

    @override
    def write_new(self, path: Path, data: bytes) -> None:
        pass

    @override
    def write_at(self, path: Path, offset: int, data: bytes, *, sync: bool) -> None:
        pass

    @override
    def link(self, source: Path, target: Path) -> None:
        pass

    @override
    def rename(self, source: Path, target: Path) -> None:
        pass

    @override
    def remove(self, path: Path) -> None:
        pass

    @override
    def sync_directory(self, path: Path) -> None:
        pass

    @override
    def secure(self, path: Path) -> None:
        pass

    @contextlib.contextmanager
    @override
    def lock(self, path: Path) -> Generator[None]:
        yield


def boot_id() -> str:
    """That of this machine."""
    try:
        return _BOOT_ID.read_text("ascii").strip()
    except OSError:
        return ""


def _read_all(descriptor: int, start: int, end: int) -> bytes:
    """The bytes of a file between two offsets, as far as there are any."""
    data = os.pread(descriptor, max(0, end - start), start)
    while data and start + len(data) < end:
        # One read gives no more than 2 GB.
        further = os.pread(descriptor, end - start - len(data), start + len(data))
        if not further:
            break
        data += further
    return data


def _write_all(descriptor: int, data: bytes, offset: int) -> int:
    """Write to the last byte, or raise; where that is."""
    left = memoryview(data)
    while left:
        # When space runs out, the first write ends early without a word.
        written = os.pwrite(descriptor, left, offset)
        left, offset = left[written:], offset + written
    return offset


def _lock(descriptor: int, path: Path) -> None:
    waited, pause = 0.0, 0.0005
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if waited >= LOCK_TIMEOUT_SECONDS:
                raise WorkflowCheckpointException(
                    f"another process has held {str(path)!r} for {LOCK_TIMEOUT_SECONDS:.0f} seconds; "
                    "if it was stopped in the middle of a commit, let it go on or end it"
                ) from error
            time.sleep(pause)  # noqa: TID251 - no lock of the kernel waits for a limited time
            waited += pause
            pause = min(2 * pause, LOCK_RETRY_SECONDS_MAX)
        else:
            return
