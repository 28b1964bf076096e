"""Who owns a claim, and whether that process still lives.

A process holds a lock on a file of its own for as long as it lives. The kernel releases the lock when the
process ends, however it ends, so whoever can have the lock knows that the owner is dead.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import platform
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from perdure.clock import SystemClock
from perdure.records import Owner
from perdure.stores.disk import boot_id

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(slots=True)
class _Process:
    """What this process is to others. A forked child starts with a fresh one."""

    owner: Owner | None = None
    held: dict[Path, int] | None = None
    """By lock file the descriptor that holds it. It must stay the only one: the kernel drops a process's lock
    on a file when the process closes any descriptor of it."""


_process = _Process()
_lock = threading.Lock()


def this_process() -> Owner:
    """This process as the owner of claims."""
    with _lock:
        if _process.owner is None:
            _process.owner = Owner(id=SystemClock().new_id(), host=platform.node(), boot=boot_id(), pid=os.getpid())
        return _process.owner


class Owners:
    """The lock files of all processes that claim runs in one place."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def enter(self) -> Owner:
        """This process, with its lock file held from now to its end."""
        owner = this_process()
        with _lock:
            if not self._path(owner).exists():
                self._directory.mkdir(parents=True, exist_ok=True)
                self._sweep()
                self._hold(owner)
        return owner

    def is_replaceable(self, owner: Owner) -> bool:
        """Whether a claim of that owner can be replaced: it is dead, or it is this very process."""
        return owner.id == this_process().id or self.is_dead(owner)

    def is_dead(self, owner: Owner) -> bool:
        """Whether that owner has certainly ended."""
        me = this_process()
        # A lock tells something only about processes of this machine.
        is_near = owner.host == me.host or (owner.boot == me.boot != "")
        return owner.id != me.id and is_near and owner.id.isalnum() and _is_free(self._path(owner))

    def living(self, owner: Owner | None) -> str | None:
        """The id of an owner, unless it has certainly ended."""
        return None if owner is None or self.is_dead(owner) else owner.id

    def _path(self, owner: Owner) -> Path:
        return self._directory / f"{owner.id}.lock"

    def _hold(self, owner: Owner) -> None:
        """Take the lock first and give the file its name then: nobody ever sees it unlocked."""
        path = self._path(owner)
        nascent = path.with_suffix(".new")
        descriptor = os.open(nascent, os.O_RDWR | os.O_CREAT, 0o644)
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        nascent.rename(path)
        held = _process.held = _process.held or {}
        held[path] = descriptor

    def _sweep(self) -> None:
        """Remove what dead processes left behind."""
        for path in self._directory.glob("*.lock"):
            _is_free(path)


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
    for path in _process.held or {}:
        with contextlib.suppress(OSError):
            path.unlink()


def _start_afresh() -> None:
    global _process, _lock  # noqa: PLW0603 - a forked child is another process and may not inherit a taken lock
    _process = _Process()
    _lock = threading.Lock()


atexit.register(_leave)
os.register_at_fork(after_in_child=_start_afresh)
