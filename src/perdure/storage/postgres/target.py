"""Where the runs of a PostgreSQL store are, how to connect to it, and what went wrong if that fails."""

from __future__ import annotations

import contextlib
import hashlib
import math
import urllib.parse
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import psycopg
from psycopg import conninfo, pq

from perdure.errors import WorkflowCheckpointException
from perdure.storage.postgres.forks import left_alone_by_children
from perdure.storage.postgres.text import given_text

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
"""What holds unless it is said otherwise: a connection that leads nowhere is found to be lost within a minute."""

_LOCK_SECONDS_MAX = 15.0
_SILENT_SECONDS_MIN = 5.0
_SCHEMA_SIZE_MAX = 63

_REFUSED = {"sslmode": "none of those that there are"}
"""What libpq refuses, after it has read service files and the environment, and before it connects."""


@dataclass(frozen=True, slots=True)
class Target:
    """A schema of a database. What is printed of it names neither a user nor a password."""

    schema: str
    place: str
    lease_seconds: float
    options: dict[str, str] = field(repr=False)

    @classmethod
    def of(cls, dsn: str, schema: str, *, lease_seconds: float) -> Target:
        """What a connection string and a schema name."""
        try:
            given = {name: str(value) for name, value in conninfo.conninfo_to_dict(dsn).items() if value is not None}
        except psycopg.ProgrammingError:
            # What libpq says of it may have the password in it.
            raise WorkflowCheckpointException(
                "the connection string can't be read; give one like 'postgresql://user:password@host:5432/database', "
                "with what is special in user or password percent-encoded"
            ) from None
        if not 0 < lease_seconds < math.inf:
            raise ValueError(f"lease_seconds={lease_seconds!r} is no lease; give a number of seconds larger than zero")
        _require_schema(schema)
        return cls(schema, _place(_resolved(given), schema), lease_seconds, {**_OPTIONS, **given})

    @property
    def silent_seconds(self) -> float:
        """How long somebody in a transaction may say nothing before the transaction is ended."""
        return max(_SILENT_SECONDS_MIN, self.lease_seconds)

    def key(self, *names: str) -> int:
        """The number of an advisory lock that these names mean in this schema."""
        text = "\0".join((self.schema, *names)).encode("utf-8", "surrogatepass")
        return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big", signed=True)

    def connect(self) -> Connection:
        """A connection that finds the tables of the schema without naming it."""
        connection = cast("Connection", psycopg.connect(**self.arguments()))
        with contextlib.ExitStack() as undo:
            undo.callback(connection.close)
            self.configure(connection)
            undo.pop_all()
        return connection

    def arguments(self) -> dict[str, Any]:
        """What `psycopg.connect` is given."""
        return {**self.options, "client_encoding": "utf8", "autocommit": True, "row_factory": _as_columns}

    def configure(self, connection: Connection) -> None:
        """Let a new connection find the tables, and let nobody wait forever for one that is lost or frozen."""
        left_alone_by_children(connection)
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

    def described(self, error: BaseException) -> str:
        """What an error says, in a line and without the password."""
        return _without_password(str(error) or type(error).__name__, self.options)


def _require_schema(schema: str) -> None:
    """Refuse what the server would read as something else than a name, or cut short."""
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


def _resolved(given: dict[str, str]) -> dict[str, str]:
    """The options with those that libpq takes from elsewhere: a service file, the environment, its defaults."""
    attempt = pq.PGconn.connect_start(conninfo.make_conninfo("", **{**given, **_REFUSED}).encode())
    try:
        known = {option.keyword.decode(): option.val.decode() for option in attempt.info if option.val is not None}
        said = _without_password(attempt.error_message.decode("utf-8", "replace"), given)
    finally:
        attempt.finish()
    # There is a default for the port, unless it has not come that far.
    if "port" not in known:
        raise WorkflowCheckpointException(
            f"the connection string does not lead to a database: {said}; see to the service that it names"
        )
    return known


def _place(known: dict[str, str], schema: str) -> str:
    """A text that no other database has. Without a host it is the socket that libpq looks for by itself."""
    host, address = (urllib.parse.quote(known.get(name, ""), safe="/,") for name in ("host", "hostaddr"))
    server = f"{host}[{address}]" if host and address else host or address
    database, inside = (urllib.parse.quote(name, safe="") for name in (known.get("dbname", ""), schema))
    return f"postgresql://{server}:{known['port']}/{database}/{inside}"


def _as_columns(cursor: psycopg.Cursor[Any]) -> Callable[[Sequence[Any]], Columns]:
    names = [column.name for column in cursor.description or ()]

    def columns(values: Sequence[Any]) -> Columns:
        return {
            name: given_text(value) if isinstance(value, str) else value
            for name, value in zip(names, values, strict=True)
        }

    return columns
