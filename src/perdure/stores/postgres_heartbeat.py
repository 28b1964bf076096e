"""A thread that holds a lock and keeps a lease for this process, in a session of its own, whatever event loops do."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING

import psycopg

from perdure.stores.statements import named_statements

if TYPE_CHECKING:
    from perdure.records import Owner
    from perdure.stores.postgres_target import Connection, Target

_BEATS_PER_LEASE = 3
_FIRST_PAUSE_SECONDS = 0.05
_PAUSE_SECONDS_MAX = 1.0
_END_SECONDS_MAX = 2.0


def lock_of(target: Target, owner: Owner) -> int:
    """The advisory lock that an owner holds while it lives."""
    return target.key("owner", owner.id)


class PostgresHeartbeat:
    """Keeps this process known as alive, for all who have joined. It connects again by itself, and holds up no exit."""

    def __init__(self, target: Target, owner: Owner) -> None:
        self._target = target
        self._owner = owner
        self._statements = {name: text.encode() for name, text in named_statements("postgres").items()}
        self._leases: dict[object, float] = {}
        self._known: Future[None] = Future()
        self._is_over = False
        self._listens, self._rings = socket.socketpair()
        self._thread = threading.Thread(target=self._live, name="perdure heartbeat", daemon=True)

    def join(self, who: object, *, lease_seconds: float) -> None:
        """Keep the lease for somebody. Of several leases the shortest counts."""
        # Replaced and never changed: the thread reads it at any time.
        self._leases = {**self._leases, who: lease_seconds}
        if self._thread.ident is None:
            self._thread.start()
        else:
            self._rings.send(b".")

    def leave(self, who: object) -> bool:
        """Keep it no longer for that one; whether anybody is left."""
        self._leases = {other: lease for other, lease in self._leases.items() if other is not who}
        return bool(self._leases)

    def end(self) -> None:
        """End the session, and with it the lock."""
        self._is_over = True
        self._rings.send(b".")
        self._thread.join(_END_SECONDS_MAX)

    def wait_until_known(self) -> None:
        """Wait until the others can see that this process lives. Raises psycopg.Error."""
        self._known.result()

    def _live(self) -> None:
        with self._listens, self._rings:
            self._keep_known()

    def _keep_known(self) -> None:
        pause = _FIRST_PAUSE_SECONDS
        while not self._is_over:
            try:
                with contextlib.closing(self._target.connect()) as connection:
                    has_lock = self._enter(connection)
                    pause = _FIRST_PAUSE_SECONDS
                    self._beat(connection, has_lock=has_lock)
            except (psycopg.Error, OSError) as error:
                self._tell(error)
                self._rest(pause)
                pause = min(2 * pause, _PAUSE_SECONDS_MAX)

    def _enter(self, connection: Connection) -> bool:
        """Become known to the others; whether the lock is ours."""
        connection.execute("SET synchronous_commit = off")
        has_lock = self._try_lock(connection)
        self._renew(connection)
        if not self._known.done():
            connection.execute(self._statements["drop_old_owners"])
            self._known.set_result(None)
        return has_lock

    def _beat(self, connection: Connection, *, has_lock: bool) -> None:
        while True:
            # Also if the server says something: it may be that it ends.
            self._rest(min(self._leases.values(), default=0.0) / _BEATS_PER_LEASE, connection)
            if self._is_over:
                return
            has_lock = has_lock or self._try_lock(connection)
            self._renew(connection)

    def _try_lock(self, connection: Connection) -> bool:
        # A session of ours may still have it that the server does not know to be lost.
        row = connection.execute(
            "SELECT pg_try_advisory_lock(%s) AS has_lock", [lock_of(self._target, self._owner)]
        ).fetchone()
        return row is not None and row["has_lock"]

    def _renew(self, connection: Connection) -> None:
        me = self._owner
        lease_seconds = min(self._leases.values(), default=0.0)
        values = {"id": me.id, "host": me.host, "boot": me.boot, "pid": me.pid, "lease_seconds": lease_seconds}
        connection.execute(self._statements["enter_owner"], values)

    def _tell(self, error: Exception) -> None:
        """Let those who wait hear of it; who comes later waits for the next try."""
        if not self._known.done():
            failed, self._known = self._known, Future()
            failed.set_exception(error)

    def _rest(self, seconds: float, connection: Connection | None = None) -> None:
        """Wait, but not if somebody rings or the server says something."""
        waiting = select.poll()
        waiting.register(self._listens, select.POLLIN)
        if connection is not None:
            waiting.register(connection.fileno(), select.POLLIN)
        ready = {descriptor for descriptor, _ in waiting.poll(seconds * 1000)}
        if self._listens.fileno() in ready:
            self._listens.recv(64)
