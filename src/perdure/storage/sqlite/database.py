"""A connection to a SQLite file: opening, migration, transactions and errors."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import sqlite3
import time
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING

from perdure.errors import StorageReadOnlyError, WorkflowCheckpointException
from perdure.storage.sql.database import Sync, migrations, named_statements, statement_text

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
    from pathlib import Path

    from perdure.storage.port import Durability

APPLICATION_ID = 0x70657264
"""Marks the file as ours: "perd"."""

BUSY_TIMEOUT_SECONDS = 30.0
"""Time that a connection waits for another one that writes."""

_BUSY_RETRY_SECONDS = 0.02

_COMMENT = re.compile(r"--.*")
_NAME = re.compile(r":(\w+)")

_PAGE_SIZE = 512
"""Page size of new files. A commit writes whole pages and few bytes in each. Pages of 1,024 bytes write 1.6 times as
much in a superstep and 1.4 times as much in an agent turn, in the same time."""

_LOG_PAGES_MAX = 8000
"""Size of the write-ahead log, in pages, at which it is moved into the file."""

_CHECKED_SIZE_MAX = 256 * 1024
"""Larger files are not checked as a whole when they are opened, which would take longer than a millisecond."""

_CHECKED_RUNS_MAX = 1000
"""In larger files the table of runs is checked, up to this size. Each run counts its rows in the other tables."""


class SqliteDatabase:
    """A connection for one thread. Errors of sqlite3 are raised as they are."""

    failure: type[Exception] = sqlite3.Error
    refusals: tuple[type[Exception], ...] = (sqlite3.DataError,)
    """A value is too large."""

    def __init__(
        self,
        path: Path,
        *,
        busy_timeout_seconds: float = BUSY_TIMEOUT_SECONDS,
        one_thread: bool = True,
        read_only: bool = False,
    ) -> None:
        self.path = path
        self.durability: Durability = "commit"
        self.applied: Sequence[str] = ()
        self._read_only = read_only
        self._synchronous = ""
        self._statements = _statements()
        # A data version means something only to the connection that returned it.
        self._connected = object()
        with self.errors():
            if not read_only:
                path.parent.mkdir(parents=True, exist_ok=True)
            elif not path.is_file():
                raise WorkflowCheckpointException(f"there is no database {str(path)!r}; check the path")
            self._connection = sqlite3.connect(
                f"{path.as_uri()}?mode=ro" if read_only else path,
                timeout=busy_timeout_seconds,
                isolation_level=None,
                check_same_thread=one_thread,
                uri=read_only,
            )
        try:
            with self.errors():
                self._set_up()
        except BaseException:
            self._connection.close()
            raise

    def _set_up(self) -> None:
        connection = self._connection
        _require_ours(connection, self.path)
        if not self._read_only:
            connection.execute(f"PRAGMA page_size = {_PAGE_SIZE:d}")
            _switch_to_wal(connection)
            connection.execute(f"PRAGMA wal_autocheckpoint = {_LOG_PAGES_MAX:d}")
        elif not _is_current(connection, self.path):
            # The reader of an older schema gets a temporary copy as of now, which is migrated.
            copy = sqlite3.connect("", isolation_level=None)
            with contextlib.closing(connection):
                connection.backup(copy)
            connection = self._connection = copy
        connection.row_factory = sqlite3.Row
        # Damaged text that is not UTF-8 must reach the code that compares checksums.
        connection.text_factory = functools.partial(str, encoding="utf-8", errors="surrogateescape")
        connection.execute("PRAGMA foreign_keys = ON")
        self.applied = _migrate(connection, self.path)
        _require_sound(connection, self.path)

    @contextlib.contextmanager
    def errors(self) -> Generator[None]:
        """Turn errors of sqlite3 and of the file system into perdure's, which name the file."""
        path = str(self.path)
        try:
            yield
        except (sqlite3.DatabaseError, UnicodeDecodeError, IndexError) as error:
            # The last two come from a damaged schema: a message that is not text, a column that is missing.
            if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_NOTADB:
                raise WorkflowCheckpointException(
                    f"{path!r} is not a SQLite database; choose another file for the storage"
                ) from error
            raise WorkflowCheckpointException(
                f"the database {path!r} can't be used: {error}; check the file and try again"
            ) from error
        except UnicodeEncodeError as error:
            raise WorkflowCheckpointException(
                f"the text {error.object!r} contains a lone surrogate, which is no character; leave it out"
            ) from error
        except OSError as error:
            raise WorkflowCheckpointException(
                f"the database {path!r} can't be opened: {error.strerror}; check its directory and try again"
            ) from error

    def execute(self, name: str, /, **parameters: object) -> sqlite3.Cursor:
        """Run a statement."""
        statement = self._statements.get(name) or _statement(name)
        return self._connection.execute(statement.text, statement.places(parameters))

    def execute_many(self, name: str, rows: Sequence[Mapping[str, object]], /) -> None:
        """Run a statement once for each row of values."""
        statement = self._statements[name]
        self._connection.executemany(statement.text, [statement.places(row) for row in rows])

    def execute_each(
        self, names: Sequence[str], rows: Sequence[Mapping[str, object]], /
    ) -> Sequence[sqlite3.Row | None]:
        """Run a statement for each row of values. Return the single row of each result, or None."""
        found: list[sqlite3.Row | None] = []
        for name, row in zip(names, rows, strict=True):
            statement = self._statements[name]
            # Fetch all, or the transaction could not be committed.
            result = self._connection.execute(statement.text, statement.places(row)).fetchall()
            found.append(result[0] if result else None)
        return found

    def version_of_data(self) -> object:
        """Return a value that differs once another connection has changed the file."""
        return self._connected, _pragma(self._connection, "PRAGMA data_version")

    @contextlib.contextmanager
    def transaction(self, sync: Sync = "as chosen", *, alone: bool = False) -> Generator[None]:
        """Do all or nothing. Without a sync it survives the process, but perhaps not the machine."""
        del alone  # The file has one writer at a time.
        if self._read_only:
            raise StorageReadOnlyError(str(self.path))
        is_synced = sync == "always" or (sync == "as chosen" and self.durability == "commit")
        mode = "FULL" if is_synced else "NORMAL"
        if mode != self._synchronous:
            self._connection.execute(f"PRAGMA synchronous = {mode}")
            self._synchronous = mode
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
        """Do all or nothing inside a transaction."""
        self._connection.execute("SAVEPOINT one")
        try:
            yield
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK TO one")
                self._connection.execute("RELEASE one")
            raise
        self._connection.execute("RELEASE one")

    def backup(self, path: Path) -> None:
        """Write a copy as of one moment to a new file. Others may write meanwhile."""
        if path.exists():
            raise WorkflowCheckpointException(f"the file {str(path)!r} exists already; choose another one")
        aside = path.with_name(f"{path.name}.part")
        try:
            aside.unlink(missing_ok=True)
            self._connection.execute("VACUUM INTO ?", [str(aside)])
            with aside.open("rb") as file:
                os.fsync(file.fileno())
            aside.rename(path)
        finally:
            aside.unlink(missing_ok=True)

    def damage(self) -> str | None:
        """Return how the database itself is damaged, or None."""
        found = str(self._connection.execute("PRAGMA integrity_check(1)").fetchone()[0])
        return None if found == "ok" else found

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


@dataclass(frozen=True, slots=True)
class _Statement:
    """A statement with positional parameters, and the function that puts named values into their order.

    With named parameters sqlite3 looks up every name on every call, which doubles the time of a commit's statements.
    Numbered parameters like ?1 are taken for names by some versions of Python 3.12.
    """

    text: str
    places: Callable[[Mapping[str, object]], tuple[object, ...]]


@functools.cache
def _statements() -> Mapping[str, _Statement]:
    return {name: _in_order(text) for name, text in named_statements("sqlite").items()}


@functools.cache
def _statement(name: str) -> _Statement:
    return _in_order(statement_text(named_statements("sqlite"), name))


def _in_order(text: str) -> _Statement:
    # Without comments, equal statements are prepared once.
    bare = _COMMENT.sub("", text).strip()
    names: list[str] = _NAME.findall(bare)
    return _Statement(_NAME.sub("?", bare), _places(names))


def _places(names: Sequence[str]) -> Callable[[Mapping[str, object]], tuple[object, ...]]:
    # An itemgetter of one name returns no tuple, and of no names there is none.
    return itemgetter(*names) if len(names) > 1 else lambda values: tuple([values[name] for name in names])


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
    """Switch a new file to WAL. The timeout of the connection does not cover this, so retry."""
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
    """Refuse a file whose indexes do not lead to all rows: the others would be missing silently."""
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


def _is_current(connection: sqlite3.Connection, path: Path) -> bool:
    """Return whether no migration is left to make."""
    additions = len(migrations("sqlite", additive=True))
    return _version(connection, path) == len(migrations("sqlite")) and _additions(connection) >= additions


def _migrate(connection: sqlite3.Connection, path: Path) -> Sequence[str]:
    """Make the migrations that are left. Return their names."""
    if _is_current(connection, path):
        return ()
    basic, additive = migrations("sqlite"), migrations("sqlite", additive=True)
    connection.execute("BEGIN IMMEDIATE")
    try:
        # Read the version again: another process may have been faster.
        applied = list(basic)[_version(connection, path) :]
        _run(connection, [basic[name] for name in applied])
        added = list(additive)[_additions(connection) :]
        _run(connection, [additive[name] for name in added])
        connection.execute(
            "INSERT INTO counters (tenant, name, value) VALUES ('', 'additions', ?) "
            "ON CONFLICT (tenant, name) DO UPDATE SET value = max(value, excluded.value)",
            [len(additive)],
        )
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID:d}")
        connection.execute(f"PRAGMA user_version = {len(basic):d}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return [*applied, *added]


def _run(connection: sqlite3.Connection, scripts: Sequence[str]) -> None:
    for script in scripts:
        for statement in split(script):
            connection.execute(statement)


def _additions(connection: sqlite3.Connection) -> int:
    """Return the number of additive migrations that were made."""
    query = "SELECT coalesce(max(value), 0) FROM counters WHERE tenant = '' AND name = 'additions'"
    return _pragma(connection, query)


def split(script: str) -> Iterator[str]:
    """Split a script into statements. sqlite3's own `executescript` would end the transaction."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
    assert not statement.strip(), f"a statement has no end: {statement!r}"


def _version(connection: sqlite3.Connection, path: Path) -> int:
    version, known = _pragma(connection, "PRAGMA user_version"), len(migrations("sqlite"))
    if version > known:
        raise WorkflowCheckpointException(
            f"the database {str(path)!r} has schema version {version}, this perdure knows {known}; "
            "upgrade perdure to open it"
        )
    return version


def _pragma(connection: sqlite3.Connection, query: str) -> int:
    return int(connection.execute(query).fetchone()[0])
