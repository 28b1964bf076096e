"""Who owns a claim in a PostgreSQL store, and whether that process still lives.

Each process that claims runs has a session of its own in which it holds an advisory lock, and renews a lease in it. The
server frees the lock when the session ends, so who can have the lock knows that the owner is gone. When the server
itself has ended, all locks are free and say nothing: then, as for an owner that is frozen or out of reach, the lease
decides, by the clock of the server.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from perdure.stores.owners import this_process
from perdure.stores.postgres_forks import keep_unused
from perdure.stores.postgres_heartbeat import PostgresHeartbeat, lock_of

if TYPE_CHECKING:
    from perdure.records import Owner
    from perdure.stores.postgres_database import PostgresDatabase
    from perdure.stores.postgres_target import Columns


_LOOK_SECONDS = 0.01
_LOOKS_MAX = 100


class PostgresOwners:
    """The processes that claim runs in one schema, as one store of this process sees them."""

    def __init__(self, database: PostgresDatabase) -> None:
        self._database = database
        self._heartbeat: PostgresHeartbeat | None = None

    def enter(self) -> Owner:
        """This process, with its lock held and its lease kept from now until the last store is closed."""
        owner = this_process()
        with _lock:
            heartbeat = self._heartbeat = self._heartbeat or self._joined(owner)
        self._database.steadily(lambda: self._wait(heartbeat))
        return owner

    def _wait(self, heartbeat: PostgresHeartbeat) -> None:
        with self._database.errors():
            heartbeat.wait_until_known()

    def _joined(self, owner: Owner) -> PostgresHeartbeat:
        target = self._database.target
        if target.place not in _heartbeats:
            _heartbeats[target.place] = PostgresHeartbeat(target, owner)
        _heartbeats[target.place].join(self, lease_seconds=target.lease_seconds)
        return _heartbeats[target.place]

    def leave(self) -> None:
        """Keep the lease no longer for this store."""
        with _lock:
            heartbeat, self._heartbeat = self._heartbeat, None
            if heartbeat is None or heartbeat.leave(self):
                return
            del _heartbeats[self._database.target.place]
        heartbeat.end()

    def is_replaceable(self, owner: Owner) -> bool:
        """Whether a claim of that owner can be replaced: it is gone, or it is this very process."""
        if owner.id == this_process().id:
            return True
        seen = self._look(owner)
        if not seen["is_free"] and _has_just_ended(owner):
            seen = self._look_again(owner)
        return _is_dead(seen) or seen["is_over"]

    def _look_again(self, owner: Owner) -> Columns:
        """Give the server the moment that it takes to notice the end of a process."""
        for _ in range(_LOOKS_MAX):
            threading.Event().wait(_LOOK_SECONDS)
            if self._look(owner)["is_free"]:
                break
        return self._look(owner)

    def is_dead(self, owner: Owner) -> bool:
        """Whether that owner has certainly ended."""
        return owner.id != this_process().id and _is_dead(self._look(owner))

    def living(self, owner: Owner | None) -> str | None:
        """The id of an owner, unless it has certainly ended."""
        return None if owner is None or self.is_dead(owner) else owner.id

    def _look(self, owner: Owner) -> Columns:
        key = lock_of(self._database.target, owner)
        row = self._database.execute("owner", id=owner.id, key=key).fetchone()
        assert row is not None, "a row of three answers"
        return row


def _has_just_ended(owner: Owner) -> bool:
    """Whether it looks so from here. It may be another kind of machine that has our name: the server knows better."""
    me = this_process()
    if (owner.host, owner.boot) != (me.host, me.boot):
        return False
    try:
        os.kill(owner.pid, 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        return False
    return False


def _is_dead(seen: Columns) -> bool:
    return seen["is_free"] and seen["is_same_server"]


_heartbeats: dict[str, PostgresHeartbeat] = {}
_lock = threading.Lock()


def _start_afresh() -> None:
    global _lock  # noqa: PLW0603 - a forked child is another process and may not inherit a taken lock
    _lock = threading.Lock()
    keep_unused(tuple(_heartbeats.values()))
    _heartbeats.clear()


os.register_at_fork(after_in_child=_start_afresh)
