"""The PostgreSQL server of a bench: that of the tests, but it syncs, and each sample has a database of its own."""

from __future__ import annotations

import itertools
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import psycopg
from psycopg import sql

from bench.peer import Store
from bench.probe import handed_over, size_of

if TYPE_CHECKING:
    from collections.abc import Generator

    from bench.peer import Place

# What PostgreSQL does if it is not told otherwise; tests have other wishes.
_OPTIONS = {"fsync": "on", "shared_buffers": "128MB", "max_wal_size": "1GB", "deadlock_timeout": "1s"}
_PROCESSES = Path("/proc")
HOME = Path("/tmp")  # noqa: S108 - where the tests have their server
"""The directory of the PostgreSQL server."""


class OwnMeter:
    """Counts what this process writes."""

    def written(self) -> int:
        """All bytes so far."""
        return handed_over()

    def stored(self, place: Place) -> int:
        """The bytes of all files of the place."""
        return size_of(place.directory)

    def settle(self, place: Place) -> None:
        """Do nothing: no server delays writes."""


class Server(Protocol):
    """A server that runs."""

    directory: Path

    @property
    def dsn(self) -> str:
        """The address of its first database."""
        ...

    def remove(self) -> None:
        """Stop it, and take its directory away."""
        ...


class Postgres:
    """A running server. It counts what its processes write, and what this one does."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._numbers = itertools.count(1)
        data = server.directory / "data"
        self._postmaster = int((data / "postmaster.pid").read_text("ascii").split()[0])

    @contextmanager
    def database(self) -> Generator[str]:
        """The address of a new database, which is dropped in the end."""
        name = f"bench_{next(self._numbers)}"
        self._execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        try:
            yield self._server.dsn.replace("/postgres?", f"/{name}?")
        finally:
            self._execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))

    @property
    def version(self) -> str:
        """The version of PostgreSQL."""
        return str(self._value("SHOW server_version"))

    def written(self) -> int:
        """All bytes so far, of this process and of the server's. A session that has ended counts with the server."""
        total = handed_over()
        for process in (self._postmaster, *_children(self._postmaster)):
            with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
                total += handed_over(_PROCESSES / str(process) / "io")
        return total

    def stored(self, place: Place) -> int:
        """The bytes of the database of the place."""
        with psycopg.connect(place.dsn) as connection:
            row = connection.execute("SELECT pg_database_size(current_database())").fetchone()
        assert row is not None, "a function without rows gives one"
        return int(row[0])

    def settle(self, place: Place) -> None:
        """A checkpoint writes the pages of all tables, as closing an SQLite database does."""
        assert place.store is Store.POSTGRES, "others have a meter of their own"
        self._execute(sql.SQL("CHECKPOINT"))

    def remove(self) -> None:
        """Stop it, and take its directory away."""
        self._server.remove()

    def _execute(self, statement: sql.SQL | sql.Composed) -> None:
        with psycopg.connect(self._server.dsn, autocommit=True) as connection:
            connection.execute(statement)

    def _value(self, statement: str) -> Any:
        with psycopg.connect(self._server.dsn, autocommit=True) as connection:
            row = connection.execute(statement.encode()).fetchone()
        assert row is not None, "it is asked for one value"
        return row[0]


def start() -> Postgres | str:
    """A server that runs, or why there is none."""
    try:
        from tests.postgres_server import binaries, new_server  # noqa: PLC0415 - what it needs may not be installed
    except ImportError as error:
        return str(error)
    if binaries() is None:
        return "no wheel with a PostgreSQL server is installed for this Python"
    return Postgres(new_server(**_OPTIONS))


def _children(process: int) -> list[int]:
    found: list[int] = []
    for each in _PROCESSES.iterdir():
        if each.name.isdecimal():
            with suppress(OSError, ProcessLookupError):
                # The name of the program may hold spaces; what follows the last parenthesis does not.
                fields = (each / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()
                if int(fields[1]) == process:
                    found.append(int(each.name))
    return found
