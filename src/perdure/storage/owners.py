"""Who owns a claim, and whether that process still lives.

A process holds a lock on a file of its own for as long as it lives, and touches the file again and again. The kernel
releases the lock when the process ends, however it ends, so who can have the lock knows that the owner is dead. An
owner that is stopped, or whose machine is out of reach, keeps its lock and touches nothing: when its lease is over, as
the file says it and by the clock of the file system, others may replace it.

Nobody removes the file of an owner that may live. So one whose file is gone has ended, on whichever machine.
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
from perdure.data import frozen
from perdure.records import Owner
from perdure.storage.disk import boot_id
from perdure.storage.heartbeat import Heartbeat, touch

LEASE_SECONDS = 30.0
"""How long others wait for an owner of which nothing is seen, unless they are told otherwise."""

_CONTENT_SIZE_MAX = 4096


@frozen
class _Held:
    """A lock file of this process."""

    descriptor: int
    """It must stay the only one: the kernel drops a process's lock on a file when the process closes any descriptor
    of it."""
    lease_seconds: float


@dataclass(slots=True)
class _Process:
    """What this process is to others. A forked child starts with a fresh one."""

    owner: Owner | None = None
    held: dict[Path, _Held] = field(default_factory=dict[Path, _Held])
    heartbeat: Heartbeat = field(default_factory=Heartbeat)


_process = _Process()
_lock = threading.Lock()


def this_process() -> Owner:
    """This process as the owner of claims."""
    with _lock:
        if _process.owner is None:
            _process.owner = Owner(id=SystemClock().new_id(), host=platform.node(), boot=boot_id(), pid=os.getpid())
        return _process.owner


def require_lease(lease_seconds: float) -> float:
    """Refuse what can't be the time of a lease."""
    if not 0 < lease_seconds < math.inf:
        raise ValueError(f"lease_seconds={lease_seconds!r} is no lease; give a number of seconds larger than zero")
    return lease_seconds


class Owners:
    """The lock files of all processes that claim runs in one place.

    Others replace this process when it has touched its file for the last time `lease_seconds` ago. Of several leases
    that it has in one place, the shortest counts.
    """

    def __init__(self, directory: Path, *, lease_seconds: float = LEASE_SECONDS) -> None:
        self._directory = Path(os.path.realpath(directory))
        self._lease_seconds = require_lease(lease_seconds)

    def enter(self) -> Owner:
        """This process, with its lock file held from now to its end."""
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
        """Whether a claim of that owner can be replaced: it is gone, or it is this very process."""
        return owner.id == this_process().id or self.is_gone(owner)

    def is_gone(self, owner: Owner) -> bool:
        """Whether that owner, another process, is dead or has let its lease end."""
        return self.is_dead(owner) or self._has_lapsed(owner)

    def is_dead(self, owner: Owner) -> bool:
        """Whether that owner has certainly ended."""
        me = this_process()
        if owner.id == me.id or not _is_name(owner):
            return False
        # A lock tells something only about processes of this machine.
        if _is_near(host=owner.host, boot=owner.boot, me=me):
            return _is_free(self._path(owner))
        return not self._path(owner).exists()

    def living(self, owner: Owner | None) -> str | None:
        """The id of an owner, unless it has certainly ended."""
        return None if owner is None or self.is_dead(owner) else owner.id

    def _has_lapsed(self, owner: Owner) -> bool:
        me = this_process()
        if owner.id == me.id or not _is_name(owner):
            return False
        try:
            # In this order: a pause between the two must not count against the owner.
            now = self._now(me)
            touched, content = _looked_at(self._path(owner))
        except FileNotFoundError:
            return True
        lease_seconds = content.get("lease_seconds")
        # Files of earlier releases tell of no lease, and nobody touches them.
        return isinstance(lease_seconds, int | float) and now - touched > lease_seconds

    def _now(self, me: Owner) -> float:
        """The time by the clock of the file system, which is that of all who share the directory."""
        held = _process.held.get(self._path(me))
        if held:
            return touch(held.descriptor)
        probe = self._directory / f"{me.id}.now"
        descriptor = os.open(probe, os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            return touch(descriptor)
        finally:
            os.close(descriptor)
            probe.unlink(missing_ok=True)

    def _path(self, owner: Owner) -> Path:
        return self._directory / f"{owner.id}.lock"

    def _hold(self, owner: Owner) -> None:
        """Take the lock first and give the file its name then: nobody ever sees it unlocked, or without its lease."""
        path = self._path(owner)
        nascent = path.with_suffix(".new")
        descriptor = os.open(nascent, os.O_RDWR | os.O_CREAT, 0o644)
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._keep(path, descriptor, owner)
        nascent.rename(path)

    def _keep(self, path: Path, descriptor: int, owner: Owner) -> None:
        """Tell the others of the lease, and keep it."""
        fields = {"lease_seconds": self._lease_seconds, "host": owner.host, "boot": owner.boot}
        content = json.dumps(fields).encode() + b"\n"
        os.pwrite(descriptor, content, 0)
        os.ftruncate(descriptor, len(content))
        _process.heartbeat.keep(descriptor, lease_seconds=self._lease_seconds)
        _process.held[path] = _Held(descriptor, self._lease_seconds)

    def _sweep(self, me: Owner) -> None:
        """Remove what dead processes left behind. Those of other machines are for them to sweep."""
        for name in os.listdir(self._directory):  # noqa: PTH208 - names are all that is wanted
            path = self._directory / name
            with contextlib.suppress(FileNotFoundError):
                if name.endswith(".now"):
                    path.unlink()
                elif name.endswith(".lock"):
                    _, content = _looked_at(path)
                    if not content or _is_near(host=content.get("host"), boot=content.get("boot"), me=me):
                        _is_free(path)


def _is_name(owner: Owner) -> bool:
    """Whether an id that comes from a file can be part of a path."""
    return owner.id.isalnum()


def _is_near(*, host: str | None, boot: str | None, me: Owner) -> bool:
    return host == me.host or (boot == me.boot != "")


def _looked_at(path: Path) -> tuple[float, dict[str, Any]]:
    """When the lock file of another process was touched, and what it says. Raises FileNotFoundError."""
    # By a descriptor: who opens a file on a network sees it as it is, not as it is remembered.
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.fstat(descriptor).st_mtime, _understood(os.pread(descriptor, _CONTENT_SIZE_MAX, 0))
    finally:
        os.close(descriptor)


def _understood(content: bytes) -> dict[str, Any]:
    """What a lock file says; nothing if it is of an earlier release."""
    try:
        fields: Any = json.loads(content)
    except ValueError:
        return {}
    return cast("dict[str, Any]", fields) if isinstance(fields, dict) else {}


def _is_free(path: Path) -> bool:
    """Whether nobody holds the lock. The file of a dead owner is removed."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return True
    try:
        # A shared lock: two processes that judge a dead owner at once must not take each other for it.
        fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    else:
        path.unlink(missing_ok=True)
        return True
    finally:
        os.close(descriptor)


def _leave() -> None:
    for path in _process.held:
        with contextlib.suppress(OSError):
            path.unlink()


def _start_afresh() -> None:
    global _process, _lock  # noqa: PLW0603 - a forked child is another process and may not inherit a taken lock
    _process = _Process()
    _lock = threading.Lock()


atexit.register(_leave)
os.register_at_fork(after_in_child=_start_afresh)
