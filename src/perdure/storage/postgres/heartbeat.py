"""A thread that holds a lock and keeps a lease for this process, in a session of its own, whatever event loops do."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING

import psycopg

from perdure.clock import SystemClock
from perdure.storage.sql.statements import named_statements

if TYPE_CHECKING:
    from perdure.records import Owner
    from perdure.storage.postgres.target import Connection, Target

_BEATS_PER_LEASE = 3
_FIRST_PAUSE_SECONDS = 0.05
_PAUSE_SECONDS_MAX = 1.0
_END_SECONDS_MAX = 2.0


class PostgresHeartbeat:
    """Keeps this process known as alive, for one store. It connects again by itself, and holds up no exit."""

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
        self._known: Future[None] = Future()
        self._is_over = False
        self._listens, self._rings = socket.socketpair()
        self._thread = threading.Thread(target=self._live, name="perdure heartbeat", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """End the session, and with it the lock."""
        self._is_over = True
        self._rings.send(b".")
        self._thread.join(_END_SECONDS_MAX)

    def wait_until_known(self) -> None:
        """Wait until there is a session by which the others see that this process lives. Raises psycopg.Error."""
        self._known.result()

    def _live(self) -> None:
        with self._listens, self._rings:
            self._keep_known()

    def _keep_known(self) -> None:
        pause = 0.0
        while not self._is_over:
            try:
                with contextlib.closing(self._target.connect()) as connection:
                    session = self._enter(connection)
                    pause = 0.0
                    self._beat(connection, session)
            except (psycopg.Error, OSError) as error:
                self._tell(error)
                self._rest(pause)
                pause = min(max(2 * pause, _FIRST_PAUSE_SECONDS), _PAUSE_SECONDS_MAX)

    def _enter(self, connection: Connection) -> str:
        """Become known to the others, by a session of that name."""
        session = SystemClock().new_id()
        connection.execute("SET synchronous_commit = off")
        # First the lock, which nobody else has a name for yet: whoever hears of the session finds it held.
        connection.execute(self._statements["hold_session"], {"session": session})
        self._renew(connection, session)
        connection.execute(self._statements["drop_old_owners"])
        self._known.set_result(None)
        return session

    def _beat(self, connection: Connection, session: str) -> None:
        while True:
            # Also if the server says something: it may be that it ends.
            self._rest(self._target.lease_seconds / _BEATS_PER_LEASE, connection)
            if self._is_over:
                connection.execute(self._statements["leave_owner"], self._me)
                return
            self._renew(connection, session)

    def _renew(self, connection: Connection, session: str) -> None:
        connection.execute(self._statements["enter_owner"], {**self._me, "session": session})

    def _tell(self, error: Exception) -> None:
        """Let those who wait hear of it; who comes later waits for the next session."""
        last, self._known = self._known, Future()
        if not last.done():
            last.set_exception(error)

    def _rest(self, seconds: float, connection: Connection | None = None) -> None:
        """Wait, but not if somebody rings or the server says something."""
        waiting = select.poll()
        waiting.register(self._listens, select.POLLIN)
        if connection is not None:
            waiting.register(connection.fileno(), select.POLLIN)
        ready = {descriptor for descriptor, _ in waiting.poll(seconds * 1000)}
        if self._listens.fileno() in ready:
            self._listens.recv(64)
