"""The file system operations of the file store.

Every change that a crash can interrupt is one of these operations. A disk that fails at each of them in turn, or that
loses what was not fsynced, therefore shows everything a crash can leave behind (`perdure.testing.disk`).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from perdure.errors import StorageReadOnlyError, WorkflowCheckpointException

if TYPE_CHECKING:
    from collections.abc import Generator

    from perdure.storage.port import Durability

LOCK_TIMEOUT_SECONDS = 30.0
_LOCK_RETRY_SECONDS_MAX = 0.004
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

# fdatasync is cheaper because it leaves out the file's times; not every system has it.
_sync_data = getattr(os, "fdatasync", os.fsync)


@dataclass(frozen=True, slots=True)
class Stamp:
    """Identify the file that has a name now, and its size."""

    inode: int
    size: int
    modified_ns: int


class Disk:
    """The file system of this machine. With durability "os" writes return before they are fsynced."""

    durability: Durability = "commit"
    read_only: bool = False
    # New directories, and the file that names the format, that were not fsynced because durability is "os".
    unsynced_roots: tuple[Path, ...] = ()

    def __init__(self, *, durability: Durability = "commit", read_only: bool = False) -> None:
        self.durability = durability
        self.read_only = read_only

    @property
    def is_lazy(self) -> bool:
        """Ask whether a power cut may lose what was written."""
        return self.durability == "os"

    def boot_id(self) -> str:
        """Return an id that changes with every start of the machine; empty if the system has none."""
        return boot_id()

    def stamp(self, path: Path) -> Stamp | None:
        """Return the stamp of a file, None if there is no such file."""
        try:
            status = path.stat()
        except FileNotFoundError:
            return None
        return Stamp(status.st_ino, status.st_size, status.st_mtime_ns)

    def read(self, path: Path, *, start: int = 0, end: int | None = None) -> bytes:
        """Return the bytes of a file. Raises FileNotFoundError."""
        with path.open("rb") as file:
            file.seek(start)
            return file.read(-1 if end is None else max(0, end - start))

    def names(self, directory: Path) -> list[str]:
        """Return the names in a directory, in no order; none if there is no such directory."""
        try:
            return os.listdir(directory)  # noqa: PTH208 - only the names are needed
        except FileNotFoundError:
            return []

    def _require_writable(self, path: Path) -> None:
        if self.read_only:
            raise StorageReadOnlyError(str(path.parent))

    def make_directory(self, path: Path) -> None:
        """Make a directory and its parents, unless it exists."""
        if path.is_dir() or self.read_only:
            return
        if not path.parent.is_dir():
            self.make_directory(path.parent)
        path.mkdir(exist_ok=True)
        self.sync_directory(path.parent)
        if self.is_lazy:
            self.unsynced_roots += (path,)

    def write_new(self, path: Path, data: bytes) -> None:
        """Write a new file and fsync it. An older file of that name loses the name and is not written to."""
        self._require_writable(path)
        path.unlink(missing_ok=True)
        with path.open("xb") as file:
            file.write(data)
            file.flush()
            self._sync_written(file.fileno())

    def write_at(self, path: Path, offset: int, data: bytes, *, sync: bool) -> None:
        """Write bytes at an offset and cut the file off behind them."""
        self._require_writable(path)
        with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o644), "r+b") as file:
            file.seek(offset)
            file.write(data)
            file.truncate()
            if sync:
                self._sync_written(file.fileno())

    def link(self, source: Path, target: Path) -> None:
        """Give a file a second name. Raises FileExistsError if the name is taken."""
        self._require_writable(target)
        os.link(source, target)

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file, replacing the target."""
        self._require_writable(target)
        self._sync_replacement(source, target)
        source.replace(target)

    def remove(self, path: Path) -> None:
        """Remove a name, if it exists."""
        self._require_writable(path)
        path.unlink(missing_ok=True)

    def sync_directory(self, path: Path) -> None:
        """Fsync the names in a directory."""
        if not self.is_lazy:
            self._sync_by_name(path)

    def secure(self, path: Path) -> None:
        """Fsync a file and its name, whatever the durability is."""
        self._sync_by_name(path)
        self._sync_by_name(path.parent)

    def replace(self, path: Path, data: bytes) -> None:
        """Replace a file atomically and durably."""
        aside = path.with_suffix(".aside")
        self.write_new(aside, data)
        self.rename(aside, path)
        self.sync_directory(path.parent)

    def flush(self, *paths: Path) -> None:
        """Fsync files and their names that were written with durability "os".

        Call this before older data is deleted that the files replace: otherwise a power cut could lose both.
        """
        if self.is_lazy:
            self._secure_all(paths)

    @contextlib.contextmanager
    def always_fsync(self) -> Generator[None]:
        """Fsync every write inside the block, whatever the durability is."""
        durability, self.durability = self.durability, "commit"
        try:
            self._secure_all(())
            yield
        finally:
            self.durability = durability

    @contextlib.contextmanager
    def lock(self, path: Path) -> Generator[None]:
        """Exclude all other processes and threads from the block."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            _lock(descriptor, path)
            yield
        finally:
            # Explicitly: a child that was forked meanwhile shares the descriptor and would keep the lock.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)

    def _secure_all(self, paths: tuple[Path, ...]) -> None:
        for path in dict.fromkeys((*self.unsynced_roots, *paths)):
            self.secure(path)
        self.unsynced_roots = ()

    def _sync_replacement(self, source: Path, target: Path) -> None:
        """Fsync a file that replaces one which may be durable already."""
        if self.is_lazy and self.stamp(target):
            self.secure(source)

    def _sync(self, descriptor: int, *, data_only: bool = False) -> None:
        """Fsync one file. Every fsync of the store is a call of this."""
        (_sync_data if data_only else os.fsync)(descriptor)

    def _sync_written(self, descriptor: int) -> None:
        if not self.is_lazy:
            self._sync(descriptor, data_only=True)

    def _sync_by_name(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            self._sync(descriptor)
        finally:
            os.close(descriptor)


def boot_id() -> str:
    """Return an id that changes with every start of this machine; empty if the system has none."""
    try:
        return _BOOT_ID.read_text("ascii").strip()
    except OSError:
        return ""


def _lock(descriptor: int, path: Path) -> None:
    waited, pause = 0.0, 0.0005
    while waited < LOCK_TIMEOUT_SECONDS:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        time.sleep(pause)  # noqa: TID251 - the kernel has no lock call with a timeout
        waited += pause
        pause = min(2 * pause, _LOCK_RETRY_SECONDS_MAX)
    raise WorkflowCheckpointException(
        f"another process has held the lock {str(path)!r} for {LOCK_TIMEOUT_SECONDS:.0f} seconds; "
        "if it is stopped in the middle of a commit, continue it or kill it"
    )
