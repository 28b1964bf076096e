"""A PostgreSQL database for several threads: connections that are borrowed, transactions, and what becomes of errors.

A connection may be lost at any time, and with it the knowledge whether the last transaction was committed. `steadily`
does work again until it is known to be done.
"""

from __future__ import annotations

import contextlib
import json
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

import psycopg
from psycopg import sql
from psycopg_pool import ConnectionPool

from perdure.clock import SystemClock
from perdure.errors import WorkflowCheckpointException
from perdure.storage.postgres.schema import migrate
from perdure.storage.postgres.silence import end_silent_writers
from perdure.storage.postgres.text import kept_text
from perdure.storage.sql.statements import named_statements

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from perdure.storage.durability import Durability
    from perdure.storage.postgres.target import Columns, Connection, Target
    from perdure.storage.sql.database import Sync

T = TypeVar("T")

_BORROW_SECONDS_MAX = 10.0
_FIRST_PAUSE_SECONDS = 0.02
_PAUSE_SECONDS_MAX = 1.0
_CONFLICTS_MAX = 20
_CONFLICTS = frozenset({"40001", "40P01", "23505"})
"""Serialisation failure, deadlock, and a row that another has added just now."""

_LOST = frozenset({"57P01", "57P02", "57P03", "57P05", "25P03", "53300", "25006"})
"""The session was ended; the server comes or goes, has no room, or is a copy that is not to be written to yet."""

_LOCKED = "55P03"
"""Somebody has a lock who may be lost or frozen, and will be found to be."""

_PASSING = ("starting up", "shutting down", "recovery mode", "not yet accepting", "too many", "slots", "terminating")
"""What a server says that will take connections later. There is no code to tell by."""

_LISTS = frozenset({"roots", "workflow_names", "owners", "keys", "hashes"})
"""What comes as a JSON list, for all databases alike. Here it becomes an array: JSON in SQL can't hold every text."""


class ConnectionLostError(WorkflowCheckpointException):
    """The server can't be reached, has ended the session, or lets us wait. What was under way may have been done."""


class ConflictError(WorkflowCheckpointException):
    """Another transaction was in the way. Nothing was done."""


class _Held(threading.local):
    """The connection whose transaction the thread is in, its pipeline, and whether it does all until that is done."""

    connection: Connection | None = None
    pipeline: psycopg.Pipeline | None = None
    is_steady: bool = False


class PostgresDatabase:
    """A schema of a database, migrated. Each thread has a connection of its own while it is in a transaction."""

    def __init__(self, target: Target, *, pool_size: int, patience_seconds: float) -> None:
        self.target = target
        self.durability: Durability = "commit"
        self._patience = timedelta(seconds=patience_seconds)
        self._statements = {name: text.encode() for name, text in named_statements("postgres").items()}
        self._held = _Held()
        self.steadily(self._migrate)
        self._pool = _pool(target, pool_size)

    def _migrate(self) -> None:
        with self.errors(), contextlib.closing(self.target.connect()) as connection:
            migrate(connection, self.target)

    @property
    def failure(self) -> type[Exception]:
        """What psycopg raises."""
        return psycopg.Error

    @property
    def refusals(self) -> tuple[type[Exception], ...]:
        """None is known to be about one value: whoever writes many tries them one by one."""
        return ()

    def execute(self, name: str, /, **values: object) -> psycopg.Cursor[Columns] | Pipelined:
        """Run the statement of that name. Outside of transactions it only reads, and is tried until it succeeds."""
        statement, arguments = self._statements[name], _as_arguments(values)
        held, pipeline = self._held.connection, self._held.pipeline
        if held is None:
            return self.steadily(lambda: self._read(statement, arguments))
        cursor = held.execute(statement, arguments, binary=True)
        return cursor if pipeline is None else Pipelined(cursor, pipeline)

    def execute_many(self, name: str, rows: Sequence[Mapping[str, object]], /) -> None:
        """Run it once for each of them, in a transaction."""
        cursor = self._connection.cursor(binary=True)
        cursor.executemany(self._statements[name], [_as_arguments(row) for row in rows])

    def execute_each(self, names: Sequence[str], rows: Sequence[Mapping[str, object]], /) -> Sequence[Columns | None]:
        """Run for each row its statement, in a transaction; of each the only row that it gives, if it gives one."""
        execute = self._connection.execute
        cursors = [
            execute(self._statements[name], _as_arguments(row), binary=True)
            for name, row in zip(names, rows, strict=True)
        ]
        # Only now is anything waited for.
        return [cursor.fetchone() for cursor in cursors]

    @property
    def _connection(self) -> Connection:
        connection = self._held.connection
        assert connection is not None, "what is written is written in a transaction"
        return connection

    def _read(self, statement: bytes, arguments: dict[str, object]) -> psycopg.Cursor[Columns]:
        with self.errors(), self._borrowed() as connection:
            return connection.execute(statement, arguments, binary=True)

    def number(self, name: str, /, **values: object) -> int:
        """The single number that a statement gives."""
        (row,) = self.execute(name, **values).fetchall()
        (number,) = row.values()
        return int(number)

    def version_of_data(self) -> object:
        """What is visible to a reader: it changes with each transaction that has written, when that can be seen.

        A position of the log would change before that.
        """
        row = self.execute("snapshot").fetchone()
        return row and row["snapshot"]

    @contextlib.contextmanager
    def transaction(
        self, sync: Sync = "as chosen", *, alone: bool = False, lazy: bool = False, pipelined: bool = False
    ) -> Generator[None]:
        """All or nothing. The server may crash while we live on, so of itself only what is `lazy` may be lost with it.

        If it is pipelined, nothing is waited for before something is fetched, or the end: what fails may be told late.
        """
        is_lazy = lazy or (self.durability == "os" and sync != "always")
        with self._borrowed() as connection:
            try:
                with _pipeline(connection) if pipelined else contextlib.nullcontext() as pipeline:
                    self._begin(connection, alone=alone, lazy=is_lazy, one_by_one=pipelined)
                    self._held.connection, self._held.pipeline = connection, pipeline
                    yield
                    connection.execute("COMMIT", prepare=False)
            except BaseException:
                with contextlib.suppress(psycopg.Error):
                    connection.execute("ROLLBACK", prepare=False)
                raise
            finally:
                self._held.connection = self._held.pipeline = None

    def _begin(self, connection: Connection, *, alone: bool, lazy: bool, one_by_one: bool) -> None:
        statements = list(self._beginning(alone=alone, lazy=lazy))
        # In a pipeline a statement is one, and costs nothing; elsewhere all of them are one message.
        for statement in statements if one_by_one else [sql.SQL("; ").join(statements)]:
            connection.execute(statement, prepare=False)

    def _beginning(self, *, alone: bool, lazy: bool) -> Iterator[sql.SQL | sql.Composed]:
        """Those who write share a lock; who begins a collection has it alone."""
        yield sql.SQL("BEGIN")
        if lazy:
            yield sql.SQL("SET LOCAL synchronous_commit = off")
        if alone:
            # While somebody waits to be alone, nobody else begins.
            yield sql.SQL("SET LOCAL lock_timeout = '1s'")
        lock = sql.SQL("pg_advisory_xact_lock" if alone else "pg_advisory_xact_lock_shared")
        yield sql.SQL("SELECT {}({})").format(lock, sql.Literal(self.target.key("writers")))

    @contextlib.contextmanager
    def savepoint(self) -> Generator[None]:
        """All or nothing, inside of a transaction."""
        connection = self._held.connection
        assert connection is not None, "a savepoint outside of a transaction"
        connection.execute("SAVEPOINT one", prepare=False)
        try:
            yield
        except BaseException:
            # A connection that is lost has nothing left to go back to.
            with contextlib.suppress(psycopg.Error):
                connection.execute("ROLLBACK TO one; RELEASE one", prepare=False)
            raise
        connection.execute("RELEASE one", prepare=False)

    @contextlib.contextmanager
    def _borrowed(self) -> Generator[Connection]:
        connection = self._pool.getconn(timeout=_BORROW_SECONDS_MAX)
        try:
            yield connection
        finally:
            self._pool.putconn(connection)

    def steadily(self, work: Callable[[], T], *, again: Callable[[], T] | None = None) -> T:
        """Do the work, and if it was in vain, or may have been, do it `again`. Raises what that has raised last.

        Inside of such work it is the outer one that is done again.
        """
        if self._held.is_steady:
            return work()
        self._held.is_steady = True
        try:
            return self._until_done(work, again or work)
        finally:
            self._held.is_steady = False

    def _until_done(self, work: Callable[[], T], again: Callable[[], T]) -> T:
        conflicts, deadline, pause = 0, None, _FIRST_PAUSE_SECONDS
        while True:
            try:
                if deadline is not None:
                    self._look()
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
                threading.Event().wait(pause)
                pause = min(2 * pause, _PAUSE_SECONDS_MAX)
            work = again

    def _look(self) -> None:
        """See whether the server is there again, and that no frozen process is in the way.

        The pool would tell later, and not why it is not.
        """
        with self.errors(), contextlib.closing(self.target.connect()) as connection:
            end_silent_writers(connection, self.target)

    def errors(self) -> AbstractContextManager[None]:
        """Errors of psycopg as ours, with the database named."""
        return _database_errors(self.target)

    def close(self) -> None:
        """Close all connections."""
        self._pool.close()


class Pipelined:
    """What a statement gives, when somebody asks for it."""

    def __init__(self, cursor: psycopg.Cursor[Columns], pipeline: psycopg.Pipeline) -> None:
        self._cursor = cursor
        self._pipeline = pipeline

    @property
    def rowcount(self) -> int:
        self._pipeline.sync()
        return self._cursor.rowcount

    def fetchone(self) -> Columns | None:
        return self._cursor.fetchone()

    def fetchall(self) -> Sequence[Columns]:
        return self._cursor.fetchall()


def _pool(target: Target, size: int) -> ConnectionPool[Connection]:
    """Connections that are made when they are needed. Whoever needs one tries again, so the pool itself does not."""
    return ConnectionPool(
        kwargs=target.arguments(),
        configure=target.configure,
        min_size=0,
        max_size=size,
        reconnect_timeout=0.0,
        num_workers=1,
        name="perdure",
        open=True,
    )


def _pipeline(connection: Connection) -> AbstractContextManager[psycopg.Pipeline | None]:
    """What lets statements follow each other without waiting, where the client library can do that."""
    return connection.pipeline() if psycopg.Pipeline.is_supported() else contextlib.nullcontext()


def _as_arguments(values: Mapping[str, object]) -> dict[str, object]:
    return {key: _as_argument(key, value) for key, value in values.items()}


def _as_argument(key: str, value: object) -> object:
    if not isinstance(value, str):
        return value
    if key in _LISTS:
        return [kept_text(each) for each in json.loads(value)]
    return kept_text(value)


@contextlib.contextmanager
def _database_errors(target: Target) -> Generator[None]:
    try:
        yield
    except psycopg.Error as error:
        said = target.described(error)
        if error.sqlstate in _CONFLICTS:
            raise ConflictError(
                f"the database {target.place!r} has too many writers at once: {said}; try again later"
            ) from error
        if error.sqlstate == _LOCKED:
            raise ConnectionLostError(
                f"somebody holds a lock in the database {target.place!r} for longer than others wait for it: {said}; "
                "see who it is in pg_stat_activity and try again"
            ) from error
        if _is_lost(error):
            raise ConnectionLostError(
                f"the database {target.place!r} can't be reached: {said}; see to the server and try again"
            ) from error
        raise WorkflowCheckpointException(
            f"the database {target.place!r} can't be used: {said}; see to it and try again"
        ) from error


def _is_lost(error: psycopg.Error) -> bool:
    """Whether another connection, now or later, may do better."""
    if error.sqlstate is not None:
        return error.sqlstate.startswith("08") or error.sqlstate in _LOST
    # The server has answered, and its answer to the same question will be the same.
    is_refusal = "FATAL" in str(error) and not any(each in str(error) for each in _PASSING)
    return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError) and not is_refusal
