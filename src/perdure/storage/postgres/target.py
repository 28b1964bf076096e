"""The schema of a PostgreSQL store: connect to it, migrate it, and keep any Python text in it."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import threading
import urllib.parse
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import psycopg
from psycopg import conninfo, pq, sql

from perdure.errors import StorageOutdatedError, WorkflowCheckpointException
from perdure.storage.owners import require_lease
from perdure.storage.sql.database import migrations
from perdure.storage.worker import abandoned

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Columns: TypeAlias = "dict[str, Any]"
Connection: TypeAlias = "psycopg.Connection[Columns]"

_OPTIONS = {
    "application_name": "perdure",
    "connect_timeout": "10",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}
"""Defaults. With them a connection that leads nowhere is noticed within a minute."""

_LOCK_SECONDS_MAX = 15.0
_SILENT_SECONDS_MIN = 5.0
_SCHEMA_SIZE_MAX = 63

_REFUSED = {"sslmode": "none of those that there are"}
"""An option that libpq refuses after it has read service files and the environment, and before it connects."""


@dataclass(frozen=True, slots=True)
class Target:
    """A schema of a database. Its `repr` names neither a user nor a password."""

    schema: str
    place: str
    lease_seconds: float
    options: dict[str, str] = field(repr=False)

    @classmethod
    def of(cls, dsn: str, schema: str, *, lease_seconds: float) -> Target:
        """Read a connection string. Raises WorkflowCheckpointException, ValueError."""
        try:
            given = {name: str(value) for name, value in conninfo.conninfo_to_dict(dsn).items() if value is not None}
        except psycopg.ProgrammingError:
            # The message of libpq may contain the password.
            raise WorkflowCheckpointException(
                "the connection string can't be read; give one like 'postgresql://user:password@host:5432/database', "
                "with special characters in user or password percent-encoded"
            ) from None
        _require_schema(schema)
        return cls(schema, _place(_resolve(given), schema), require_lease(lease_seconds), {**_OPTIONS, **given})

    @property
    def silent_seconds(self) -> float:
        """Time that a client may be silent in a transaction before it is ended."""
        return max(_SILENT_SECONDS_MIN, self.lease_seconds)

    def key(self, *names: str) -> int:
        """Return the number of an advisory lock of this schema."""
        text = "\0".join((self.schema, *names)).encode("utf-8", "surrogatepass")
        return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big", signed=True)

    def connect(self) -> Connection:
        """Open a connection that finds the tables of the schema without naming it."""
        connection = cast("Connection", psycopg.connect(**self.arguments()))
        with contextlib.ExitStack() as undo:
            undo.callback(connection.close)
            self.configure(connection)
            undo.pop_all()
        return connection

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of `psycopg.connect`."""
        return {**self.options, "client_encoding": "utf8", "autocommit": True, "row_factory": _read_columns}

    def configure(self, connection: Connection) -> None:
        """Set up a new connection, so that nobody waits forever for one that is lost or frozen."""
        with _lock:
            _connections.add(connection)
        connection.execute(
            "SELECT set_config('search_path', quote_ident(%(schema)s), FALSE), "
            "set_config('lock_timeout', %(lock)s, FALSE), "
            "set_config('standard_conforming_strings', 'on', FALSE), "
            "set_config('idle_in_transaction_session_timeout', %(idle)s, FALSE), "
            "set_config('tcp_keepalives_idle', '30', FALSE), "
            "set_config('tcp_keepalives_interval', '10', FALSE), "
            "set_config('tcp_keepalives_count', '3', FALSE)",
            {
                "schema": self.schema,
                "lock": f"{round(min(_LOCK_SECONDS_MAX, self.silent_seconds))}s",
                "idle": f"{round(self.silent_seconds)}s",
            },
        )

    def describe(self, error: BaseException) -> str:
        """Return the message of an error in one line, without the password."""
        return _without_password(str(error) or type(error).__name__, self.options)


def _require_schema(schema: str) -> None:
    """Refuse a name that the server would read differently or cut short."""
    try:
        size = len(schema.encode())
    except UnicodeEncodeError:
        size = 0
    if not 0 < size <= _SCHEMA_SIZE_MAX or "\0" in schema or schema == "$user":
        raise WorkflowCheckpointException(
            f"{schema!r} can't be the name of a schema; give one of at most {_SCHEMA_SIZE_MAX} bytes"
        )


def _without_password(text: str, options: dict[str, str]) -> str:
    line, password = " ".join(text.split()), options.get("password")
    return line.replace(password, "***") if password else line


def _resolve(given: dict[str, str]) -> dict[str, str]:
    """Add the options that libpq takes from elsewhere: a service file, the environment, its defaults."""
    attempt = pq.PGconn.connect_start(conninfo.make_conninfo("", **{**given, **_REFUSED}).encode())
    try:
        known = {option.keyword.decode(): option.val.decode() for option in attempt.info if option.val is not None}
        reason = _without_password(attempt.error_message.decode("utf-8", "replace"), given)
    finally:
        attempt.finish()
    # The port has a default, so it is missing only if libpq gave up before.
    if "port" not in known:
        raise WorkflowCheckpointException(
            f"the connection string does not lead to a database: {reason}; check the service that it names"
        )
    return known


def _place(known: dict[str, str], schema: str) -> str:
    """Return a text that identifies the schema. Without a host, libpq uses a local socket."""
    host, address = (urllib.parse.quote(known.get(name, ""), safe="/,") for name in ("host", "hostaddr"))
    server = f"{host}[{address}]" if host and address else host or address
    database, inside = (urllib.parse.quote(name, safe="") for name in (known.get("dbname", ""), schema))
    return f"postgresql://{server}:{known['port']}/{database}/{inside}"


# Text. PostgreSQL can keep neither NUL nor surrogates.

_ESCAPE = "\ufdd0"
"""A code point that stands for no character, so texts don't contain it by accident. If they do, it is escaped too."""

_UNSAFE = re.compile("[\x00\ud800-\udfff\ufdd0]")
_ESCAPED = re.compile(f"{_ESCAPE}([0-9a-f]{{4}})")


def escape_text(text: str) -> str:
    """Escape what PostgreSQL can't keep. ASCII text, such as our JSON, stays as it is."""
    if text.isascii() and "\0" not in text:
        return text
    return _UNSAFE.sub(lambda found: f"{_ESCAPE}{ord(found[0]):04x}", text)


def unescape_text(text: str) -> str:
    """Return the text that `escape_text` was given."""
    if _ESCAPE not in text:
        return text
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), text)


def _read_columns(cursor: psycopg.Cursor[Any]) -> Callable[[Sequence[Any]], Columns]:
    names = [column.name for column in cursor.description or ()]

    def columns(values: Sequence[Any]) -> Columns:
        return {
            name: unescape_text(value) if isinstance(value, str) else value
            for name, value in zip(names, values, strict=True)
        }

    return columns


# Migrations.

SERVER_VERSION_MIN = 130000
_VERSION_TABLE = "schema_version"
_VERSION_COLUMNS = ("application", "version")
_APPLICATION = "perdure"


def migrate(connection: Connection, target: Target, *, read_only: bool = False) -> Sequence[str]:
    """Migrate the schema. Any number of processes may do so at once. Return the names of the migrations made.

    Raises WorkflowCheckpointException, and StorageOutdatedError if migrations are left and it is read-only.
    """
    _require_usable(connection, target)
    basic, additive = migrations("postgres"), migrations("postgres", additive=True)
    applied: list[str] = []
    if _version(connection, target) == len(basic) and _additions(connection, target) >= len(additive):
        return applied
    if read_only:
        if not _exists(connection, target.schema):
            raise WorkflowCheckpointException(f"there is no storage {target.place!r}; check the URL and the schema")
        raise StorageOutdatedError(target.place)
    with connection.transaction():
        # One process migrates. The others wait and find nothing left to do.
        connection.execute("SELECT pg_advisory_xact_lock(%s)", [target.key("migration")])
        if not _exists(connection, target.schema):
            connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(target.schema)))
        version = _version(connection, target)
        if version == 0:
            _create_version_table(connection, target)
        for name in list(basic)[version:]:
            connection.execute(basic[name].encode())
            applied.append(name)
        for number, (name, script) in enumerate(additive.items(), start=1):
            if number > _additions(connection, target):
                connection.execute(script.encode())
                applied.append(name)
                connection.execute("CREATE TABLE IF NOT EXISTS schema_additions (number BIGINT NOT NULL)")
                connection.execute("INSERT INTO schema_additions (number) VALUES (%s)", [number])
        connection.execute("UPDATE schema_version SET version = %s", [len(basic)])
    return applied


def _require_usable(connection: Connection, target: Target) -> None:
    version = connection.info.server_version
    if version < SERVER_VERSION_MIN:
        raise WorkflowCheckpointException(
            f"the server of {target.place!r} is PostgreSQL {version // 10000}; "
            f"use {SERVER_VERSION_MIN // 10000} or later"
        )
    encoding = connection.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise WorkflowCheckpointException(
            f"the database of {target.place!r} is encoded in {encoding}, which can't hold every text; "
            "use one that was created with ENCODING 'UTF8'"
        )


def _exists(connection: Connection, schema: str) -> bool:
    return connection.execute("SELECT 1 AS found FROM pg_namespace WHERE nspname = %s", [schema]).fetchone() is not None


def _version(connection: Connection, target: Target) -> int:
    """Return the number of the last migration, or 0. Raises WorkflowCheckpointException."""
    found = connection.execute(
        "SELECT column_name::TEXT AS name FROM information_schema.columns "
        "WHERE table_schema = %s AND table_name = %s ORDER BY column_name",
        [target.schema, _VERSION_TABLE],
    ).fetchall()
    if not found:
        return 0
    if tuple(row["name"] for row in found) != _VERSION_COLUMNS:
        raise _foreign(target, _VERSION_TABLE)
    row = connection.execute("SELECT application, version FROM schema_version").fetchone()
    if row is None or row["application"] != _APPLICATION:
        raise _foreign(target, _VERSION_TABLE)
    version, known = int(row["version"]), len(migrations("postgres"))
    if version > known:
        raise WorkflowCheckpointException(
            f"{target.place!r} has schema version {version}, this perdure knows {known}; upgrade perdure to open it"
        )
    return version


def _additions(connection: Connection, target: Target) -> int:
    """Return the number of additive migrations that were made."""
    found = connection.execute(
        "SELECT 1 AS found FROM information_schema.tables WHERE table_schema = %s AND table_name = 'schema_additions'",
        [target.schema],
    ).fetchone()
    if found is None:
        return 0
    row = connection.execute("SELECT coalesce(max(number), 0)::BIGINT AS number FROM schema_additions").fetchone()
    return 0 if row is None else int(row["number"])


def _create_version_table(connection: Connection, target: Target) -> None:
    found = connection.execute(
        "SELECT table_name::TEXT AS name FROM information_schema.tables WHERE table_schema = %s ORDER BY table_name",
        [target.schema],
    ).fetchone()
    if found is not None:
        raise _foreign(target, str(found["name"]))
    connection.execute("CREATE TABLE schema_version (application TEXT NOT NULL, version BIGINT NOT NULL)")
    connection.execute("INSERT INTO schema_version (application, version) VALUES (%s, 0)", [_APPLICATION])


def _foreign(target: Target, table: str) -> WorkflowCheckpointException:
    return WorkflowCheckpointException(
        f"{target.place!r} has a table {table!r} of another program; choose another schema for the storage"
    )


# Forks. A child inherits the sockets of its parent. If it closed such a connection, the server would end the parent's
# session; if it kept the socket, the server would not notice the parent's death. So in the child every inherited socket
# is redirected to nowhere, and the connection objects are kept for good, unused.

_connections: weakref.WeakSet[Connection] = weakref.WeakSet()
_lock = threading.Lock()


def _before_fork() -> None:
    _lock.acquire()


def _after_fork_in_parent() -> None:
    _lock.release()


def _after_fork_in_child() -> None:
    global _lock  # noqa: PLW0603 - the parent's lock is taken
    _lock = threading.Lock()
    nowhere = os.open(os.devnull, os.O_RDWR)
    for connection in list(_connections):
        if not connection.closed:
            os.dup2(nowhere, connection.fileno(), inheritable=False)
        abandoned.append(connection)
    os.close(nowhere)
    _connections.clear()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
