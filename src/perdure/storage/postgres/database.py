"""A PostgreSQL database for several threads: pooled connections, transactions, pipelines and retries.

A connection may be lost at any time, and with it the knowledge whether its last transaction was committed. `retry`
repeats work until it is known to be done.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

import psycopg
from psycopg import sql
from psycopg_pool import ConnectionPool

from perdure.clock import SystemClock
from perdure.errors import StorageReadOnlyError, WorkflowCheckpointException
from perdure.storage.postgres.target import Columns, Connection, Target, escape_text, migrate
from perdure.storage.sql.database import Sync, named_statements, statement_text

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from perdure.storage.port import Durability

T = TypeVar("T")

logger = logging.getLogger(__name__)

_BORROW_SECONDS_MAX = 1.0
"""If the pool fails to connect, nobody tells a thread that waits for the connection."""

_FIRST_PAUSE_SECONDS = 0.02
_PAUSE_SECONDS_MAX = 1.0
_CONFLICTS_MAX = 20
_CONFLICTS = frozenset({"40001", "40P01", "23505"})
"""Serialization failure, deadlock, and a row that somebody else has just added."""

_LOST = frozenset({"57P01", "57P02", "57P03", "57P05", "25P03", "53300", "25006"})
"""The session was ended; the server starts, stops, has no room, or is a replica that is not writable yet."""

_LOCKED = "55P03"
"""Somebody holds a lock for too long: perhaps a process that is lost or frozen, which will be noticed."""

_PASSING = ("starting up", "shutting down", "recovery mode", "not yet accepting", "too many", "slots", "terminating")
"""Messages of a server that will accept connections later. They have no error code."""

_LISTS = frozenset({"roots", "workflow_names", "owners", "keys", "hashes", "hosts", "run_ids"})
"""Values that come as JSON lists. Here they become arrays, because JSON in SQL can't hold every text."""

_END_SILENT_WRITERS = """
SELECT pid, pg_terminate_backend(pid) AS was_ended
FROM pg_stat_activity
WHERE datname = current_database()
  AND usename = current_user
  AND pid <> pg_backend_pid()
  AND wait_event = 'ClientRead'
  AND state_change < clock_timestamp() - make_interval(secs => %(seconds)s)
  AND pid IN (
    SELECT pid
    FROM pg_locks
    WHERE locktype = 'advisory'
      AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND (classid::bigint << 32) | objid::bigint = %(writers)s
      AND objsubid = 1
      AND granted
  )
"""
"""All writers of a schema share a lock. `state_change` is the time of the last message that the server has read."""


class ConnectionLostError(WorkflowCheckpointException):
    """The server can't be reached, has ended the session, or makes us wait. The work may have been done."""


class ConflictError(WorkflowCheckpointException):
    """Another transaction was in the way. Nothing was done."""


class _Held(threading.local):
    """The connection of the thread's transaction, and how far the thread is in `retry`."""

    connection: Connection | None = None
    is_retrying: bool = False
    is_after_loss: bool = False
    """The last attempt has lost its connection, so those of the pool are suspect."""


class PostgresDatabase:
    """A migrated schema of a database. Each thread has its own connection while it is in a transaction."""

    failure: type[Exception] = psycopg.Error
    refusals: tuple[type[Exception], ...] = ()
    """No error is known to concern one value only."""

    def __init__(
        self,
        target: Target,
        *,
        pool_size: int,
        patience_seconds: float,
        durability: Durability = "commit",
        read_only: bool = False,
    ) -> None:
        self.target = target
        self._read_only = read_only
        self._durability = durability
        self._patience = timedelta(seconds=patience_seconds)
        self._statements = {name: text.encode() for name, text in named_statements("postgres").items()}
        self._held = _Held()
        self.applied: Sequence[str] = self.retry(self._migrate)
        # Connections are made when they are needed. Whoever needs one retries, so the pool does not.
        self._pool: ConnectionPool[Connection] = ConnectionPool(
            kwargs=target.arguments(),
            configure=target.configure,
            min_size=0,
            max_size=pool_size,
            reconnect_timeout=0.0,
            num_workers=1,
            name="perdure",
            open=True,
        )

    def _migrate(self) -> Sequence[str]:
        with contextlib.closing(self.target.connect()) as connection:
            return migrate(connection, self.target, read_only=self._read_only)

    def execute(self, name: str, /, **values: object) -> psycopg.Cursor[Columns]:
        """Run a statement. Outside of transactions it only reads, and is retried."""
        statement = self._statements.get(name)
        if statement is None:
            statement = self._statements[name] = statement_text(named_statements("postgres"), name).encode()
        arguments = _as_arguments(values)
        held = self._held.connection
        if held is None:
            return self.retry(lambda: self._read(statement, arguments))
        return held.execute(statement, arguments, binary=True)

    def execute_many(self, name: str, rows: Sequence[Mapping[str, object]], /) -> None:
        """Run a statement once for each row of values, in a transaction."""
        cursor = self._connection.cursor(binary=True)
        cursor.executemany(self._statements[name], [_as_arguments(row) for row in rows])

    def execute_each(self, names: Sequence[str], rows: Sequence[Mapping[str, object]], /) -> Sequence[Columns | None]:
        """Run a statement for each row of values, in a transaction. Return the single row of each result, or None."""
        execute = self._connection.execute
        cursors = [
            execute(self._statements[name], _as_arguments(row), binary=True)
            for name, row in zip(names, rows, strict=True)
        ]
        # In a pipeline nothing has been waited for until here.
        return [cursor.fetchone() for cursor in cursors]

    @property
    def _connection(self) -> Connection:
        connection = self._held.connection
        assert connection is not None, "writes belong into a transaction"
        return connection

    def _read(self, statement: bytes, arguments: dict[str, object]) -> psycopg.Cursor[Columns]:
        with self._borrow() as connection:
            return connection.execute(statement, arguments, binary=True)

    def version_of_data(self) -> object:
        """Return the reader's snapshot: it changes when a writing transaction becomes visible.

        A position in the log would change before that.
        """
        row = self.execute("snapshot").fetchone()
        return row and row["snapshot"]

    @contextlib.contextmanager
    def transaction(
        self, sync: Sync = "as chosen", *, alone: bool = False, lazy: bool = False, pipelined: bool = False
    ) -> Generator[None]:
        """Do all or nothing. Only a `lazy` transaction may be lost if the server crashes, which we may survive.

        A pipelined one waits for nothing until a result is fetched or it ends, so errors may come late.
        """
        if self._read_only:
            raise StorageReadOnlyError(self.target.place)
        is_lazy = lazy or (self._durability == "os" and sync != "always")
        with self._borrow() as connection:
            try:
                with _pipeline(connection) if pipelined else contextlib.nullcontext():
                    statements = list(self._begin(alone=alone, lazy=is_lazy))
                    # A pipeline takes one statement at a time, at no cost. Otherwise all of them are one message.
                    for statement in statements if pipelined else [sql.SQL("; ").join(statements)]:
                        connection.execute(statement, prepare=False)
                    self._held.connection = connection
                    yield
                    connection.execute("COMMIT", prepare=False)
            except BaseException:
                with contextlib.suppress(psycopg.Error):
                    connection.execute("ROLLBACK", prepare=False)
                raise
            finally:
                self._held.connection = None

    def _begin(self, *, alone: bool, lazy: bool) -> Iterator[sql.SQL | sql.Composed]:
        """Writers share a lock. The start of a collection has it alone."""
        yield sql.SQL("BEGIN")
        if lazy:
            yield sql.SQL("SET LOCAL synchronous_commit = off")
        if alone:
            # Nobody else can begin while we wait to be alone, so don't wait for long.
            yield sql.SQL("SET LOCAL lock_timeout = '1s'")
        lock = sql.SQL("pg_advisory_xact_lock" if alone else "pg_advisory_xact_lock_shared")
        yield sql.SQL("SELECT {}({})").format(lock, sql.Literal(self.target.key("writers")))

    @contextlib.contextmanager
    def savepoint(self) -> Generator[None]:
        """Do all or nothing inside a transaction."""
        connection = self._connection
        connection.execute("SAVEPOINT one", prepare=False)
        try:
            yield
        except BaseException:
            # A lost connection has nothing left to roll back to.
            with contextlib.suppress(psycopg.Error):
                connection.execute("ROLLBACK TO one; RELEASE one", prepare=False)
            raise
        connection.execute("RELEASE one", prepare=False)

    @contextlib.contextmanager
    def _borrow(self) -> Generator[Connection]:
        if self._held.is_after_loss:
            with contextlib.closing(self._connect_after_loss()) as connection:
                yield connection
            return
        connection = self._pool.getconn(timeout=_BORROW_SECONDS_MAX)
        try:
            yield connection
        finally:
            self._pool.putconn(connection)

    def retry(self, work: Callable[[], T], *, again: Callable[[], T] | None = None) -> T:
        """Do work. If it failed, or may have, do `again` until it succeeds. Raises the last error.

        Inside such work, only the outer one is repeated.
        """
        if self._held.is_retrying:
            return work()
        self._held.is_retrying = True
        try:
            return self._repeat(work, again or work)
        finally:
            self._held.is_retrying = self._held.is_after_loss = False

    def _repeat(self, work: Callable[[], T], again: Callable[[], T]) -> T:
        conflicts, deadline, pause = 0, None, _FIRST_PAUSE_SECONDS
        while True:
            try:
                with self.errors():
                    return work()
            except ConflictError:
                conflicts += 1
                if conflicts == _CONFLICTS_MAX:
                    raise
            except ConnectionLostError:
                now = SystemClock().now()
                deadline = deadline or now + self._patience
                if now >= deadline:
                    raise
                self._held.is_after_loss = True
                threading.Event().wait(pause)
                pause = min(2 * pause, _PAUSE_SECONDS_MAX)
            work = again

    def _connect_after_loss(self) -> Connection:
        """Open a connection, and end writers that were frozen while they held locks.

        Sessions that end often leave the pool with dead connections only: it replaces a connection when it is lost, and
        the new one is lost before the next attempt takes it. The pool also takes longer to notice that the server is
        gone, and does not say why.

        The server itself ends a transaction whose client is idle (`idle_in_transaction_session_timeout`), but not one
        that was frozen in the middle of a pipeline: half a message is work in progress to the server. Ended writers
        lose nothing. Their transaction is undone, and if they live they find the session lost and repeat it.
        """
        connection = self.target.connect()
        if self._read_only:
            return connection
        with contextlib.ExitStack() as undo:
            undo.callback(connection.close)
            values = {"seconds": self.target.silent_seconds, "writers": self.target.key("writers")}
            for row in connection.execute(_END_SILENT_WRITERS, values).fetchall():
                if row["was_ended"]:
                    logger.warning(
                        "the session %s in the database %r held locks and was silent for more than %g seconds: "
                        "it was ended",
                        row["pid"],
                        self.target.place,
                        self.target.silent_seconds,
                    )
            undo.pop_all()
        return connection

    @contextlib.contextmanager
    def errors(self) -> Generator[None]:
        """Turn errors of psycopg into perdure's, which name the database."""
        try:
            yield
        except psycopg.Error as error:
            reason = self.target.describe(error)
            if error.sqlstate in _CONFLICTS:
                raise ConflictError(
                    f"the database {self.target.place!r} has too many writers at once: {reason}; try again later"
                ) from error
            if error.sqlstate == _LOCKED:
                raise ConnectionLostError(
                    f"somebody holds a lock in the database {self.target.place!r} for longer than others wait for it: "
                    f"{reason}; find the session in pg_stat_activity and try again"
                ) from error
            if _is_lost(error):
                raise ConnectionLostError(
                    f"the database {self.target.place!r} can't be reached: {reason}; check the server and try again"
                ) from error
            raise WorkflowCheckpointException(
                f"the database {self.target.place!r} can't be used: {reason}; check it and try again"
            ) from error

    def backup(self, path: Path) -> None:
        """Refuse: the server has its own tools."""
        raise WorkflowCheckpointException(
            f"perdure does not write copies of a PostgreSQL database; use "
            f"pg_dump --schema={self.target.schema} --file={path}, which is consistent while hosts run"
        )

    def damage(self) -> str | None:
        """Return None: the server checks its own pages."""

    def close(self) -> None:
        """Close all connections."""
        self._pool.close()


def _pipeline(connection: Connection) -> AbstractContextManager[object]:
    """Open a pipeline, if the client library has them."""
    return connection.pipeline() if psycopg.Pipeline.is_supported() else contextlib.nullcontext()


def _as_arguments(values: Mapping[str, object]) -> dict[str, object]:
    return {key: _as_argument(key, value) for key, value in values.items()}


def _as_argument(key: str, value: object) -> object:
    if not isinstance(value, str):
        return value
    if key in _LISTS:
        return [escape_text(each) for each in json.loads(value)]
    return escape_text(value)


def _is_lost(error: psycopg.Error) -> bool:
    """Return whether another connection, now or later, may succeed."""
    if error.sqlstate is not None:
        return error.sqlstate.startswith("08") or error.sqlstate in _LOST
    # A server that has refused a connection will refuse it again.
    is_refusal = "FATAL" in str(error) and not any(each in str(error) for each in _PASSING)
    return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError) and not is_refusal
