"""Who owns a claim in a PostgreSQL store, and whether that process still lives.

Each store that claims runs has a session of its own in which it holds an advisory lock, and renews a lease in it. The
server frees the lock when the session ends, so who can have all locks of an owner knows that it is gone. When the
server itself has ended, all locks are free and say nothing: then, as for an owner that is frozen or out of reach, the
lease decides, by the clock of the server, and not before those who live could be back.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from perdure.storage.owners import this_process
from perdure.storage.postgres.heartbeat import PostgresHeartbeat

if TYPE_CHECKING:
    from perdure.records import Owner
    from perdure.storage.postgres.database import PostgresDatabase
    from perdure.storage.postgres.target import Columns

_LOOK_SECONDS = 0.01
_LOOKS_MAX = 100


class PostgresOwners:
    """The processes that claim runs in one schema, as one store of this process sees them."""

    def __init__(self, database: PostgresDatabase) -> None:
        self._database = database
        self._heartbeat: PostgresHeartbeat | None = None
        self._lock = threading.Lock()

    def enter(self) -> Owner:
        """This process, with a lock held and a lease kept from now until the store is closed."""
        owner = this_process()
        with self._lock:
            heartbeat = self._heartbeat = self._heartbeat or PostgresHeartbeat(self._database.target, owner)
        self._database.steadily(lambda: self._wait(heartbeat))
        return owner

    def _wait(self, heartbeat: PostgresHeartbeat) -> None:
        with self._database.errors():
            heartbeat.wait_until_known()

    def leave(self) -> None:
        """Keep the lease no longer for this store."""
        with self._lock:
            heartbeat, self._heartbeat = self._heartbeat, None
        if heartbeat is not None:
            heartbeat.end()

    def is_replaceable(self, owner: Owner) -> bool:
        """Whether a claim of that owner can be replaced: it is gone, or it is this very process."""
        if owner.id == this_process().id:
            return True
        seen = self._look(owner)
        if seen["is_held"] and _has_just_ended(owner):
            seen = self._look_again(owner)
        return seen["is_dead"] or seen["is_over"]

    def _look_again(self, owner: Owner) -> Columns:
        """Give the server the moment that it takes to notice the end of a process."""
        for _ in range(_LOOKS_MAX):
            threading.Event().wait(_LOOK_SECONDS)
            if not self._look(owner)["is_held"]:
                break
        return self._look(owner)

    def is_dead(self, owner: Owner) -> bool:
        """Whether that owner has certainly ended."""
        return owner.id != this_process().id and self._look(owner)["is_dead"]

    def living(self, owner: Owner | None) -> str | None:
        """The id of an owner, unless it has certainly ended."""
        return None if owner is None or self.is_dead(owner) else owner.id

    def _look(self, owner: Owner) -> Columns:
        row = self._database.execute("owner", id=owner.id).fetchone()
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
