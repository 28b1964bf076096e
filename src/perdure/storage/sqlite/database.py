"""One connection to a SQLite file: opened, migrated, with its transactions and its errors."""

from __future__ import annotations

import contextlib
import functools
import re
import sqlite3
import time
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING

from perdure.errors import WorkflowCheckpointException
from perdure.storage.sql.statements import migrations, named_statements

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from perdure.storage.durability import Durability
    from perdure.storage.sql.database import Sync

APPLICATION_ID = 0x70657264
"""Says that the file is ours: "perd"."""

BUSY_TIMEOUT_SECONDS = 30.0
"""How long a connection waits while another one writes."""

_BUSY_RETRY_SECONDS = 0.02

_COMMENT = re.compile(r"--.*")
_NAME = re.compile(r":(\w+)")

_PAGE_SIZE = 1024
"""Of new files. A commit touches eight pages or so, whole ones: with larger pages it writes three times as much."""

_LOG_PAGES_MAX = 4000
"""So many pages of the write-ahead log are moved into the file at once."""

_CHECKED_SIZE_MAX = 256 * 1024
"""Of larger files not all is looked through when they are opened, which would take longer than a millisecond."""

_CHECKED_RUNS_MAX = 1000
"""Of those the runs are, if they are no more than this: what the run counts shows whether anything else is missing."""


class SqliteDatabase:
    """A connection for one thread. Errors of sqlite3 come through as they are."""

    def __init__(self, path: Path, *, busy_timeout_seconds: float = BUSY_TIMEOUT_SECONDS) -> None:
        self.path = path
        self.durability: Durability = "commit"
        self._synchronous = ""
        self._statements = _statements()
        # Versions of the data mean something to the connection that gave them, and to no other.
        self._connected = object()
        with self.errors():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._connection = sqlite3.connect(path, timeout=busy_timeout_seconds, isolation_level=None)
        try:
            with self.errors():
                self._set_up()
        except BaseException:
            self._connection.close()
            raise

    def _set_up(self) -> None:
        connection = self._connection
        connection.row_factory = sqlite3.Row
        # Text that is no UTF-8 any more must come to where checksums are compared.
        connection.text_factory = _lenient_text
        _require_ours(connection, self.path)
        connection.execute(f"PRAGMA page_size = {_PAGE_SIZE:d}")
        _switch_to_wal(connection)
        connection.execute(f"PRAGMA wal_autocheckpoint = {_LOG_PAGES_MAX:d}")
        connection.execute("PRAGMA foreign_keys = ON")
        _migrate(connection, self.path)
        _require_sound(connection, self.path)

    @property
    def failure(self) -> type[Exception]:
        """What sqlite3 raises."""
        return sqlite3.Error

    @property
    def refusals(self) -> tuple[type[Exception], ...]:
        """What sqlite3 raises for a value that is too large."""
        return (sqlite3.DataError,)

    def errors(self) -> AbstractContextManager[None]:
        """Errors of sqlite3 and of the file system as ours, with the file named."""
        return _database_errors(self.path)

    def execute(self, name: str, /, **parameters: object) -> sqlite3.Cursor:
        """Run the statement of that name."""
        statement = self._statements[name]
        return self._connection.execute(statement.text, statement.places(parameters))

    def execute_many(self, name: str, rows: Sequence[Mapping[str, object]], /) -> None:
        """Run it once for each of them."""
        statement = self._statements[name]
        self._connection.executemany(statement.text, [statement.places(row) for row in rows])

    def execute_each(
        self, names: Sequence[str], rows: Sequence[Mapping[str, object]], /
    ) -> Sequence[sqlite3.Row | None]:
        """Run for each row its statement; of each the only row that it gives, if it gives one."""
        run, statements = self._connection.execute, [self._statements[name] for name in names]
        return [_only(run(each.text, each.places(row))) for each, row in zip(statements, rows, strict=True)]

    def number(self, name: str, /, **parameters: object) -> int:
        """The single number that a statement gives."""
        return int(self.execute(name, **parameters).fetchone()[0])

    def version_of_data(self) -> object:
        """Another one once another connection has changed the file."""
        return self._connected, _pragma(self._connection, "PRAGMA data_version")

    @contextlib.contextmanager
    def transaction(self, sync: Sync = "as chosen", *, alone: bool = False) -> Generator[None]:
        """All or nothing. What is not synced may be lost with the machine, not with the process."""
        del alone  # Each of them is: the file has one writer at a time.
        is_synced = sync == "always" or (sync == "as chosen" and self.durability == "commit")
        self._synchronize("FULL" if is_synced else "NORMAL")
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            # Some errors have ended the transaction already.
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise

    @contextlib.contextmanager
    def savepoint(self) -> Generator[None]:
        """All or nothing, inside of a transaction."""
        self._connection.execute("SAVEPOINT one")
        try:
            yield
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK TO one")
                self._connection.execute("RELEASE one")
            raise
        self._connection.execute("RELEASE one")

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _synchronize(self, mode: str) -> None:
        if mode != self._synchronous:
            self._connection.execute("PRAGMA synchronous = FULL" if mode == "FULL" else "PRAGMA synchronous = NORMAL")
            self._synchronous = mode


@dataclass(frozen=True, slots=True)
class _Statement:
    """A statement whose values have no names, and what puts named ones into their order.

    sqlite3 asks for the name of each value each time, which takes as long as the statements of a commit do. Some
    versions of Python 3.12 take a number, as in ?1, for a name.
    """

    text: str
    places: Callable[[Mapping[str, object]], tuple[object, ...]]


@functools.cache
def _statements() -> Mapping[str, _Statement]:
    return {name: _in_order(text) for name, text in named_statements("sqlite").items()}


def _in_order(text: str) -> _Statement:
    # Stripped, two that differ in their comments alone are one statement, which a connection prepares once.
    bare = _COMMENT.sub("", text).strip()
    names: list[str] = _NAME.findall(bare)
    return _Statement(_NAME.sub("?", bare), _places(names))


def _places(names: Sequence[str]) -> Callable[[Mapping[str, object]], tuple[object, ...]]:
    # An itemgetter of one name gives no tuple, and there is none of no names.
    return itemgetter(*names) if len(names) > 1 else lambda values: tuple([values[name] for name in names])


@contextlib.contextmanager
def _database_errors(path: Path) -> Generator[None]:
    """Errors of sqlite3 and of the file system as ours, with the file named."""
    try:
        yield
    except (sqlite3.DatabaseError, UnicodeDecodeError, IndexError) as error:
        # The last two come of a damaged schema: a message that is no text, a column that is not there.
        if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_NOTADB:
            raise WorkflowCheckpointException(
                f"{str(path)!r} is not a SQLite database; choose another file for the storage"
            ) from error
        raise WorkflowCheckpointException(
            f"the database {str(path)!r} can't be used: {error}; see to the file and try again"
        ) from error
    except OSError as error:
        raise WorkflowCheckpointException(
            f"the database {str(path)!r} can't be opened: {error.strerror}; see to its directory and try again"
        ) from error


def _only(cursor: sqlite3.Cursor) -> sqlite3.Row | None:
    """The row that a statement gives. To its end, or the transaction could not be committed."""
    found: list[sqlite3.Row] = cursor.fetchall()
    return found[0] if found else None


def _lenient_text(text: bytes) -> str:
    return text.decode("utf-8", "surrogateescape")


def _require_ours(connection: sqlite3.Connection, path: Path) -> None:
    # Both from one moment: another process may be laying out the new file.
    connection.execute("BEGIN")
    application_id = _pragma(connection, "PRAGMA application_id")
    tables = _pragma(connection, "SELECT count(*) FROM sqlite_master")
    connection.execute("COMMIT")
    if application_id != APPLICATION_ID and (application_id != 0 or tables != 0):
        raise WorkflowCheckpointException(
            f"{str(path)!r} is a database of another program; choose another file for the storage"
        )


def _switch_to_wal(connection: sqlite3.Connection) -> None:
    """The first to open a new file changes its mode; the timeout of the connection does not cover that."""
    attempts_left = int(BUSY_TIMEOUT_SECONDS / _BUSY_RETRY_SECONDS)
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            attempts_left -= 1
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or attempts_left == 0:
                raise
            time.sleep(_BUSY_RETRY_SECONDS)  # noqa: TID251 - SQLite offers nothing to wait for here
        else:
            return


def _require_sound(connection: sqlite3.Connection, path: Path) -> None:
    """Refuse a file in which an index does not lead to all that is there: the rest would be missing without a word."""
    size = _pragma(connection, "PRAGMA page_count") * _pragma(connection, "PRAGMA page_size")
    if size <= _CHECKED_SIZE_MAX:
        check = "PRAGMA integrity_check(1)"
    elif _pragma(connection, "SELECT coalesce(max(rowid), 0) FROM runs") <= _CHECKED_RUNS_MAX:
        check = "PRAGMA integrity_check(runs)"
    else:
        return
    found = str(connection.execute(check).fetchone()[0])
    if found != "ok":
        raise WorkflowCheckpointException(
            f"the database {str(path)!r} is damaged: {found}; restore a copy, or try .recover of the sqlite3 shell"
        )


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    known = len(_migrations())
    if _version(connection, path) == known:
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        # Another process may have been faster.
        for script in _migrations()[_version(connection, path) :]:
            for statement in split(script):
                connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID:d}")
        connection.execute(f"PRAGMA user_version = {known:d}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _migrations() -> Sequence[str]:
    return migrations("sqlite")


def split(script: str) -> Iterator[str]:
    """The statements of a script one by one; sqlite3's own way to run a script would end the transaction."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
    assert not statement.strip(), f"a statement has no end: {statement!r}"


def _version(connection: sqlite3.Connection, path: Path) -> int:
    version = _pragma(connection, "PRAGMA user_version")
    if version > len(_migrations()):
        raise WorkflowCheckpointException(
            f"the database {str(path)!r} has schema version {version}, this perdure knows {len(_migrations())}; "
            "upgrade perdure to open it"
        )
    return version


def _pragma(connection: sqlite3.Connection, query: str) -> int:
    return int(connection.execute(query).fetchone()[0])
