"""Owners of leases in a PostgreSQL store, and whether they are alive.

Each store that takes leases has a session of its own, in which it holds an advisory lock and sends a heartbeat. The
server frees the lock when the session ends, so whoever can have all locks of an owner knows that it is dead. After a
restart of the server all locks are free and say nothing. Then, as for an owner that is frozen or out of reach, the
heartbeat decides, by the clock of the server, and not before a living owner had the time to come back.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
from concurrent.futures import Future
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import psycopg

from perdure.clock import SystemClock
from perdure.storage.owners import this_process
from perdure.storage.sql.database import named_statements

if TYPE_CHECKING:
    from collections.abc import Hashable

    from perdure.records import Owner
    from perdure.storage.postgres.database import PostgresDatabase
    from perdure.storage.postgres.target import Columns, Connection, Target

_LOOK_SECONDS = 0.01
_LOOKS_MAX = 100
_BEATS_PER_LEASE = 3
_FIRST_PAUSE_SECONDS = 0.05
_PAUSE_SECONDS_MAX = 1.0
_END_SECONDS_MAX = 2.0


class PostgresOwners:
    """The processes that own runs in one schema, as one store of this process sees them."""

    def __init__(self, database: PostgresDatabase) -> None:
        self._database = database
        self._heartbeat: Heartbeat | None = None
        self._lock = threading.Lock()

    def enter(self, lease: Hashable = None) -> Owner:
        """Return this process as an owner, with a lock and a heartbeat until the store is closed."""
        del lease  # One session counts for all of them.
        owner = this_process()
        with self._lock:
            heartbeat = self._heartbeat = self._heartbeat or Heartbeat(self._database.target, owner)
        self._database.retry(heartbeat.wait_until_visible)
        return owner

    def leave(self, lease: Hashable) -> None:
        """Keep the session for the next lease."""

    def close(self) -> None:
        """End the heartbeat of this store."""
        with self._lock:
            heartbeat, self._heartbeat = self._heartbeat, None
        if heartbeat is not None:
            heartbeat.end()

    def is_replaceable(self, owner: Owner) -> bool:
        """Return whether others may take the leases of an owner: it is gone, or it is this process."""
        if owner.id == this_process().id:
            return True
        seen = self._look(owner)
        if seen["is_held"] and _has_just_ended(owner):
            # Give the server the moment that it takes to notice the end of a process.
            for _ in range(_LOOKS_MAX):
                threading.Event().wait(_LOOK_SECONDS)
                seen = self._look(owner)
                if not seen["is_held"]:
                    break
        return seen["is_dead"] or seen["is_over"]

    def is_dead(self, owner: Owner) -> bool:
        """Return whether an owner has certainly ended."""
        return owner.id != this_process().id and self._look(owner)["is_dead"]

    def last_heartbeat(self, owner: Owner) -> datetime | None:
        """Return the time of an owner's newest heartbeat, by the clock of the server."""
        row = self._database.execute("heartbeat", id=owner.id).fetchone()
        return None if row is None or row["moment"] is None else datetime.fromtimestamp(row["moment"], UTC)

    def _look(self, owner: Owner) -> Columns:
        row = self._database.execute("owner", id=owner.id).fetchone()
        assert row is not None, "the statement always returns a row"
        return row


def _has_just_ended(owner: Owner) -> bool:
    """Return whether no such process runs here. Another machine may have our name, so the server has the last word."""
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


class Heartbeat:
    """A thread that keeps this process visible as alive, for one store, whatever its event loops do.

    It reconnects by itself and never delays the end of the program.
    """

    def __init__(self, target: Target, owner: Owner) -> None:
        self._target = target
        self._me: dict[str, object] = {
            "id": owner.id,
            "heartbeat": SystemClock().new_id(),
            "host": owner.host,
            "boot": owner.boot,
            "pid": owner.pid,
            "lease_seconds": target.lease_seconds,
        }
        self._statements = {name: text.encode() for name, text in named_statements("postgres").items()}
        self._visible: Future[None] = Future()
        self._is_over = False
        self._alarm, self._ring = socket.socketpair()
        self._thread = threading.Thread(target=self._live, name="perdure heartbeat", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """End the session, and with it the lock."""
        self._is_over = True
        self._ring.send(b".")
        self._thread.join(_END_SECONDS_MAX)

    def wait_until_visible(self) -> None:
        """Wait for a session by which others see that this process is alive. Raises psycopg.Error."""
        self._visible.result()

    def _live(self) -> None:
        with self._alarm, self._ring:
            pause = 0.0
            while not self._is_over:
                try:
                    with contextlib.closing(self._target.connect()) as connection:
                        session = self._enter(connection)
                        pause = 0.0
                        self._beat(connection, session)
                except (psycopg.Error, OSError) as error:
                    # Tell those who wait. Whoever comes later waits for the next session.
                    last, self._visible = self._visible, Future()
                    if not last.done():
                        last.set_exception(error)
                    self._sleep(pause)
                    pause = min(max(2 * pause, _FIRST_PAUSE_SECONDS), _PAUSE_SECONDS_MAX)

    def _enter(self, connection: Connection) -> str:
        """Become visible to others through a new session. Return its name."""
        session = SystemClock().new_id()
        connection.execute("SET synchronous_commit = off")
        # The lock comes first, while nobody knows its name: whoever learns of the session finds it locked.
        connection.execute(self._statements["hold_session"], {"session": session})
        self._renew(connection, session)
        connection.execute(self._statements["drop_old_owners"])
        self._visible.set_result(None)
        return session

    def _beat(self, connection: Connection, session: str) -> None:
        while True:
            self._sleep(self._target.lease_seconds / _BEATS_PER_LEASE, connection)
            if self._is_over:
                connection.execute(self._statements["leave_owner"], self._me)
                return
            self._renew(connection, session)

    def _renew(self, connection: Connection, session: str) -> None:
        connection.execute(self._statements["enter_owner"], {**self._me, "session": session})

    def _sleep(self, seconds: float, connection: Connection | None = None) -> None:
        """Sleep until `end` is called or the server sends something: it may announce its own end."""
        waiting = select.poll()
        waiting.register(self._alarm, select.POLLIN)
        if connection is not None:
            waiting.register(connection.fileno(), select.POLLIN)
        ready = {descriptor for descriptor, _ in waiting.poll(seconds * 1000)}
        if self._alarm.fileno() in ready:
            self._alarm.recv(64)
