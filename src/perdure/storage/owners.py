"""Owners of leases on one machine or one shared directory, and whether they are alive.

A process holds a lock on a file of its own while it lives, and touches the file as its heartbeat. The kernel releases
the lock when the process ends, however it ends, so whoever can take the lock knows that the owner is dead. An owner
that is stopped, or whose machine is out of reach, keeps its lock and touches nothing. Others may replace it when the
lease in its file has expired, by the clock of the file system.

Nobody removes the file of an owner that may be alive. So an owner without a file has ended, on whichever machine.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import json
import math
import os
import platform
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from perdure.clock import SystemClock
from perdure.records import Owner
from perdure.storage.disk import boot_id

LEASE_SECONDS = 30.0
"""Default time that others wait for an owner without a sign of life."""

_BEATS_PER_LEASE = 3
_CONTENT_SIZE_MAX = 4096


class Heartbeat:
    """A thread that touches lock files as long as the process lives, whatever its event loops do.

    It touches each file often enough for the shortest lease, and never delays the end of the program.
    """

    def __init__(self) -> None:
        self._leases: dict[int, float] = {}
        self._shortened = threading.Event()
        self._thread: threading.Thread | None = None

    def keep(self, descriptor: int, *, lease_seconds: float) -> None:
        """Touch an open file from now on."""
        is_shorter = lease_seconds < min(self._leases.values(), default=0.0)
        # Replaced, never changed: the thread reads it at any time.
        self._leases = {**self._leases, descriptor: lease_seconds}
        if self._thread is None:
            self._thread = threading.Thread(target=self._beat, name="perdure heartbeat", daemon=True)
            self._thread.start()
        elif is_shorter:
            self._shortened.set()

    def _beat(self) -> None:
        while True:
            self._shortened.wait(min(self._leases.values()) / _BEATS_PER_LEASE)
            self._shortened.clear()
            for descriptor in self._leases:
                # The trouble with the file may be over by the next beat.
                with contextlib.suppress(OSError):
                    _touch(descriptor)


def _touch(descriptor: int) -> float:
    """Set a file's time to now, by the clock of its file system. Return that time."""
    os.utime(descriptor)
    return os.fstat(descriptor).st_mtime


@dataclass(frozen=True, slots=True)
class _Held:
    """A lock file of this process."""

    descriptor: int
    """Must stay the only one: the kernel drops a process's lock on a file when any descriptor of it is closed."""
    lease_seconds: float


@dataclass(slots=True)
class _Process:
    """This process as others see it. A forked child starts with a new one."""

    owner: Owner | None = None
    held: dict[Path, _Held] = field(default_factory=lambda: {})
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

    def enter(self) -> Owner:
        """Return this process as an owner, with its lock file held until it ends."""
        owner = this_process()
        with _lock:
            path = self._path(owner)
            held = _process.held.get(path)
            if not path.exists():
                self._directory.mkdir(parents=True, exist_ok=True)
                self._sweep(owner)
                self._hold(owner)
            elif held and held.lease_seconds > self._lease_seconds:
                self._keep(path, held.descriptor, owner)
        return owner

    def is_replaceable(self, owner: Owner) -> bool:
        """Return whether others may take the leases of an owner: it is gone, or it is this process."""
        return owner.id == this_process().id or self.is_gone(owner)

    def is_gone(self, owner: Owner) -> bool:
        """Return whether an owner, another process, is dead or its lease has expired."""
        return self.is_dead(owner) or self._has_expired(owner)

    def is_dead(self, owner: Owner) -> bool:
        """Return whether an owner has certainly ended."""
        me = this_process()
        if owner.id == me.id or not _is_name(owner):
            return False
        # Locks say something only about processes of this machine.
        if _is_near(host=owner.host, boot=owner.boot, me=me):
            return _is_free(self._path(owner))
        return not self._path(owner).exists()

    def living(self, owner: Owner | None) -> str | None:
        """Return the id of an owner, unless it has certainly ended."""
        return None if owner is None or self.is_dead(owner) else owner.id

    def _has_expired(self, owner: Owner) -> bool:
        me = this_process()
        if owner.id == me.id or not _is_name(owner):
            return False
        try:
            # In this order, so that a pause between the two does not count against the owner.
            now = self._now(me)
            touched, content = _read(self._path(owner))
        except FileNotFoundError:
            return True
        lease_seconds = content.get("lease_seconds")
        # Files of earlier releases contain no lease, and nobody touches them.
        return isinstance(lease_seconds, int | float) and now - touched > lease_seconds

    def _now(self, me: Owner) -> float:
        """Return the time by the clock of the file system, which all who share the directory have in common."""
        held = _process.held.get(self._path(me))
        if held:
            return _touch(held.descriptor)
        probe = self._directory / f"{me.id}.now"
        descriptor = os.open(probe, os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            return _touch(descriptor)
        finally:
            os.close(descriptor)
            probe.unlink(missing_ok=True)

    def _path(self, owner: Owner) -> Path:
        return self._directory / f"{owner.id}.lock"

    def _hold(self, owner: Owner) -> None:
        """Lock the file before it gets its name, so that nobody ever sees it unlocked or without its lease."""
        path = self._path(owner)
        unnamed = path.with_suffix(".new")
        descriptor = os.open(unnamed, os.O_RDWR | os.O_CREAT, 0o644)
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._keep(path, descriptor, owner)
        unnamed.rename(path)

    def _keep(self, path: Path, descriptor: int, owner: Owner) -> None:
        """Write the lease to the file and start its heartbeat."""
        fields = {"lease_seconds": self._lease_seconds, "host": owner.host, "boot": owner.boot}
        content = json.dumps(fields).encode() + b"\n"
        os.pwrite(descriptor, content, 0)
        os.ftruncate(descriptor, len(content))
        _process.heartbeat.keep(descriptor, lease_seconds=self._lease_seconds)
        _process.held[path] = _Held(descriptor, self._lease_seconds)

    def _sweep(self, me: Owner) -> None:
        """Remove files of dead processes of this machine."""
        for name in os.listdir(self._directory):  # noqa: PTH208 - only names are needed
            path = self._directory / name
            with contextlib.suppress(FileNotFoundError):
                if name.endswith(".now"):
                    path.unlink()
                elif name.endswith(".lock"):
                    _, content = _read(path)
                    if not content or _is_near(host=content.get("host"), boot=content.get("boot"), me=me):
                        _is_free(path)


def _is_name(owner: Owner) -> bool:
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


def _is_free(path: Path) -> bool:
    """Return whether nobody holds the lock, and if so remove the file."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return True
    try:
        # A shared lock, so that two processes that look at once don't take each other for the owner.
        fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    else:
        path.unlink(missing_ok=True)
        return True
    finally:
        os.close(descriptor)


def _remove_own_files() -> None:
    for path in _process.held:
        with contextlib.suppress(OSError):
            path.unlink()


def _forget_parent() -> None:
    global _process, _lock  # noqa: PLW0603 - the child is another process, and the lock may be taken
    _process = _Process()
    _lock = threading.Lock()


atexit.register(_remove_own_files)
os.register_at_fork(after_in_child=_forget_parent)
