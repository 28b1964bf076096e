"""Owners of leases on one machine or one shared directory, and whether they are alive.

A process holds a lock on a file of its own while it has leases, and writes its heartbeat there. The kernel releases the
lock when the process ends, however it ends, so whoever can take the lock knows that the owner is dead. An owner that is
stopped, or whose machine is out of reach, keeps its lock and has no heartbeat. Others may replace it when the lease in
its file has expired.

An owner is, for another process:

dead         its lock is free, or its file does not exist: it has certainly ended
expired      no heartbeat for the time of its lease: it may be stopped, or out of reach
gone         dead or expired
replaceable  gone; or it is this process itself, where `engine/local_lock.py` decides which task has a run

Nobody removes the file of an owner that may have leases. So an owner without a file has ended, on whichever machine.

On Linux the lock belongs to the open file (`F_OFD_SETLK`). It excludes the record locks of earlier releases. Elsewhere
it is a record lock itself, which the kernel drops if the process closes any other descriptor of the file: there, a
process must not copy the directory of a store while it has leases.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import fcntl
import json
import math
import os
import platform
import struct
import sys
import threading
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from perdure.clock import SystemClock
from perdure.data_classes import new_dict
from perdure.records import Owner
from perdure.storage.disk import boot_id

if TYPE_CHECKING:
    from collections.abc import Hashable

LEASE_SECONDS = 30.0
"""Default time that others wait for an owner without a sign of life."""

_BEATS_PER_LEASE = 3
_CONTENT_SIZE_MAX = 4096
_CLOSED = -1


class LockFile:
    """An open lock file of this process."""

    def __init__(self, descriptor: int, owner: Owner, *, lease_seconds: float) -> None:
        self.descriptor = descriptor
        self.lease_seconds = lease_seconds
        self.leases: set[Hashable] = set()
        """The leases of this process in this place."""
        self._owner = owner
        # The number of a closed descriptor may name another file at once.
        self._open = threading.Lock()

    def touch(self) -> float:
        """Write a heartbeat. Return the time by the clock of the file system. Raises OSError."""
        with self._open:
            if self.descriptor == _CLOSED:
                raise OSError(errno.EBADF, "the lock file is closed")
            # The file server sets this time now. A write may stay in this machine's cache for a while.
            os.utime(self.descriptor)
            touched = os.fstat(self.descriptor).st_mtime
            fields = {
                "lease_seconds": self.lease_seconds,
                "host": self._owner.host,
                "boot": self._owner.boot,
                "beat": _uptime(),
            }
            content = json.dumps(fields).encode() + b"\n"
            os.pwrite(self.descriptor, content, 0)
            os.ftruncate(self.descriptor, len(content))
        return touched

    def close(self) -> None:
        """Release the lock."""
        with self._open:
            descriptor, self.descriptor = self.descriptor, _CLOSED
            os.close(descriptor)


class Heartbeat:
    """A thread that touches lock files as long as the process lives, whatever its event loops do.

    It touches each file often enough for the shortest lease, and never delays the end of the program.
    """

    def __init__(self) -> None:
        self._files: tuple[LockFile, ...] = ()
        self._changed = threading.Event()
        self._thread: threading.Thread | None = None

    def keep(self, file: LockFile) -> None:
        """Touch a lock file from now on."""
        is_shorter = file.lease_seconds < min((each.lease_seconds for each in self._files), default=math.inf)
        # Replaced, never changed: the thread reads it at any time.
        self._files = (*self._files, file)
        if self._thread is None:
            self._thread = threading.Thread(target=self._beat, name="perdure heartbeat", daemon=True)
            self._thread.start()
        elif is_shorter:
            self._changed.set()

    def drop(self, file: LockFile) -> None:
        """Touch a lock file no longer."""
        self._files = tuple(each for each in self._files if each is not file)

    def _beat(self) -> None:
        while True:
            shortest = min((file.lease_seconds for file in self._files), default=None)
            self._changed.wait(None if shortest is None else shortest / _BEATS_PER_LEASE)
            self._changed.clear()
            for file in self._files:
                # The trouble with the file may be over by the next beat.
                with contextlib.suppress(OSError):
                    file.touch()


def _uptime() -> float:
    """Return a time that all processes since the start of this machine share, and that nobody can set."""
    return time.monotonic()  # noqa: TID251 - leases are real time, whatever clock the runs have


@dataclass(slots=True)
class _Process:
    """The present process as others see it. A forked child starts with a new one."""

    owner: Owner | None = None
    held: dict[Path, LockFile] = field(default_factory=new_dict)
    heartbeat: Heartbeat = field(default_factory=Heartbeat)


_process = _Process()
_lock = threading.Lock()


def this_process() -> Owner:
    """Return this process as an owner of leases."""
    with _lock:
        if _process.owner is None:
            _process.owner = Owner(id=SystemClock().new_id(), host=platform.node(), boot=boot_id(), pid=os.getpid())
        return _process.owner


def require_lease(lease_seconds: float) -> float:
    """Refuse a number that can't be the time of a lease. Raises ValueError."""
    if not 0 < lease_seconds < math.inf:
        raise ValueError(f"lease_seconds={lease_seconds!r} is no lease; give a number of seconds larger than zero")
    return lease_seconds


class Owners:
    """The lock files of all processes that own runs in one place.

    Others may replace this process when it has not touched its file for `lease_seconds`. Of several leases in one
    place, the shortest counts.
    """

    def __init__(self, directory: Path, *, lease_seconds: float = LEASE_SECONDS) -> None:
        self._directory = Path(os.path.realpath(directory))
        self._lease_seconds = require_lease(lease_seconds)

    def enter(self, lease: Hashable = None) -> Owner:
        """Return this process as an owner, with a lock file. `close` keeps the file until `lease` has ended."""
        owner = this_process()
        with _lock:
            path = self._path(owner)
            file = _process.held.get(path)
            if file is None or not path.exists():
                self._directory.mkdir(parents=True, exist_ok=True)
                self._sweep(owner)
                file = self._hold(owner, path)
            elif file.lease_seconds > self._lease_seconds:
                _process.heartbeat.drop(file)
                file.lease_seconds = self._lease_seconds
                file.touch()
                _process.heartbeat.keep(file)
            if lease is not None:
                file.leases.add(lease)
        return owner

    def leave(self, lease: Hashable) -> None:
        """Note the end of a lease."""
        file = _process.held.get(self._path(this_process()))
        if file:
            file.leases.discard(lease)

    def close(self) -> None:
        """Release the lock file, unless this process has leases here. `enter` makes another one."""
        path = self._path(this_process())
        with _lock:
            file = _process.held.get(path)
            if file and not file.leases:
                del _process.held[path]
                with contextlib.suppress(OSError):
                    path.unlink()
                _process.heartbeat.drop(file)
                file.close()

    def is_replaceable(self, owner: Owner) -> bool:
        """Return whether this process may take the leases of an owner."""
        return owner.id == this_process().id or self.is_gone(owner)

    def is_gone(self, owner: Owner) -> bool:
        """Return whether an owner, another process, is dead or its lease has expired."""
        return self.is_dead(owner) or self._has_expired(owner)

    def is_dead(self, owner: Owner) -> bool:
        """Return whether an owner has certainly ended."""
        me = this_process()
        if owner.id == me.id or not _is_safe_in_path(owner):
            return False
        # Locks say something only about processes of this machine.
        if _is_near(host=owner.host, boot=owner.boot, me=me):
            return _remove_if_free(self._path(owner))
        return not self._path(owner).exists()

    def living(self, owner: Owner | None) -> str | None:
        """Return the id of an owner, unless it has certainly ended."""
        return None if owner is None or self.is_dead(owner) else owner.id

    def last_heartbeat(self, owner: Owner) -> datetime | None:
        """Return the time of an owner's newest heartbeat, if it has any."""
        try:
            return datetime.fromtimestamp(self._path(owner).stat().st_mtime, UTC) if _is_safe_in_path(owner) else None
        except OSError:
            return None

    def _has_expired(self, owner: Owner) -> bool:
        me = this_process()
        if owner.id == me.id or not _is_safe_in_path(owner):
            return False
        try:
            # Read our clocks before the owner's heartbeat: a pause then makes the heartbeat look younger, never older.
            now, uptime = self._now(me), _uptime()
            touched, content = _read(self._path(owner))
        except FileNotFoundError:
            return True
        lease_seconds, beat = content.get("lease_seconds"), content.get("beat")
        # Files of earlier releases contain no lease, and nobody touches them.
        if not isinstance(lease_seconds, int | float) or now - touched <= lease_seconds:
            return False
        # Somebody may have set the clock. On one machine there is a time that nobody sets.
        if isinstance(beat, int | float) and content.get("boot") == me.boot != "":
            return uptime - beat > lease_seconds
        return True

    def _now(self, me: Owner) -> float:
        """Return the time by the clock of the file system, which all who share the directory have in common."""
        file = _process.held.get(self._path(me))
        if file:
            with contextlib.suppress(OSError):  # closed meanwhile
                return file.touch()
        probe = self._directory / f"{me.id}.now"
        try:
            descriptor = os.open(probe, os.O_WRONLY | os.O_CREAT, 0o644)
        except OSError:
            # Nothing can be written here, so this process can take no lease either: it only looks.
            return SystemClock().now().timestamp()
        try:
            os.utime(descriptor)
            return os.fstat(descriptor).st_mtime
        finally:
            os.close(descriptor)
            probe.unlink(missing_ok=True)

    def _path(self, owner: Owner) -> Path:
        return self._directory / f"{owner.id}.lock"

    def _hold(self, owner: Owner, path: Path) -> LockFile:
        """Lock the file before it gets its name, so that nobody ever sees it unlocked or without its lease."""
        unnamed = path.with_suffix(".new")
        file = LockFile(os.open(unnamed, os.O_RDWR | os.O_CREAT, 0o644), owner, lease_seconds=self._lease_seconds)
        try:
            _take_lock(file.descriptor, fcntl.F_WRLCK)
            file.touch()
            unnamed.rename(path)
        except BaseException:
            file.close()
            raise
        if removed := _process.held.get(path):
            # Somebody has removed the file by hand.
            file.leases |= removed.leases
            _process.heartbeat.drop(removed)
            removed.close()
        _process.held[path] = file
        _process.heartbeat.keep(file)
        return file

    def _sweep(self, me: Owner) -> None:
        """Remove files of dead processes of this machine."""
        for name in os.listdir(self._directory):  # noqa: PTH208 - only names are needed
            path = self._directory / name
            with contextlib.suppress(FileNotFoundError):
                if name.endswith(".now"):
                    path.unlink()
                elif name.endswith((".lock", ".new")):
                    _, content = _read(path)
                    # A file of an earlier release. An empty new file is one that its owner is about to lock.
                    is_old = not content and name.endswith(".lock")
                    if is_old or _is_near(host=content.get("host"), boot=content.get("boot"), me=me):
                        _remove_if_free(path)


def _is_safe_in_path(owner: Owner) -> bool:
    """Return whether an id that was read from a store is safe in a path."""
    return owner.id.isalnum()


def _is_near(*, host: str | None, boot: str | None, me: Owner) -> bool:
    return host == me.host or (boot == me.boot != "")


def _read(path: Path) -> tuple[float, dict[str, Any]]:
    """Return when a lock file was touched, and its content. Raises FileNotFoundError."""
    # Through a descriptor: opening a file on a network bypasses cached attributes.
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.fstat(descriptor).st_mtime, _parse(os.pread(descriptor, _CONTENT_SIZE_MAX, 0))
    finally:
        os.close(descriptor)


def _parse(content: bytes) -> dict[str, Any]:
    """Return the fields of a lock file. Files of earlier releases have none."""
    try:
        fields: Any = json.loads(content)
    except ValueError:
        return {}
    return cast("dict[str, Any]", fields) if isinstance(fields, dict) else {}


def _take_lock(descriptor: int, kind: int) -> None:
    """Lock a whole file, shared (F_RDLCK) or exclusive (F_WRLCK), without waiting. Raises OSError if another has it."""
    if sys.platform == "linux":
        whole = struct.pack("hhqqi", kind, os.SEEK_SET, 0, 0, 0)
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, whole)
    else:
        fcntl.lockf(descriptor, (fcntl.LOCK_EX if kind == fcntl.F_WRLCK else fcntl.LOCK_SH) | fcntl.LOCK_NB)


def _remove_if_free(path: Path) -> bool:
    """Remove a lock file that nobody holds. Return whether nobody does."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return True
    try:
        # A shared lock, so that two processes that look at once don't take each other for the owner.
        _take_lock(descriptor, fcntl.F_RDLCK)
    except OSError:
        return False
    else:
        with contextlib.suppress(OSError):
            path.unlink()
        return True
    finally:
        os.close(descriptor)


def _remove_own_files() -> None:
    for path in _process.held:
        with contextlib.suppress(OSError):
            path.unlink()


def _forget_parent() -> None:
    global _process, _lock  # noqa: PLW0603 - the child is another process, and the lock may be taken
    for file in _process.held.values():
        # The lock would outlive the parent as long as the child has the file open.
        with contextlib.suppress(OSError):
            os.close(file.descriptor)
    _process = _Process()
    _lock = threading.Lock()


atexit.register(_remove_own_files)
os.register_at_fork(after_in_child=_forget_parent)
