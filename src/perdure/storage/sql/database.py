"""Interface between the SQL stores and their databases, and the SQL text of each dialect.

Statements have names. Databases differ in the text of their statements, not in the code that runs them.
"""

from __future__ import annotations

import functools
import re
from importlib import resources
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence
    from contextlib import AbstractContextManager
    from datetime import datetime
    from pathlib import Path

    from perdure.records import Owner

Sync: TypeAlias = Literal["always", "as chosen", "later"]
"""Sync of a transaction: to survive a power cut, as the user chose, or only to survive the process."""

Dialect: TypeAlias = Literal["sqlite", "postgres"]

_HEADING = re.compile(r"^-- name: (\+?\w+)$", re.MULTILINE)
_STORAGE = resources.files("perdure.storage")


@functools.cache
def named_statements(dialect: Dialect) -> Mapping[str, str]:
    """Return the statements of a dialect: by name, the text that follows `-- name: ...`."""
    _, *pieces = _HEADING.split((_STORAGE / dialect / "statements.sql").read_text("utf-8"))
    return {name: text.strip() for name, text in zip(pieces[::2], pieces[1::2], strict=True)}


def statement_text(statements: Mapping[str, str], name: str) -> str:
    """Return a statement by name: `runs`, or `runs+workflow+newest` with the lines `+workflow` and `+newest` added."""
    first, *further = name.split("+")
    if not further:
        return statements[first]
    return "\n".join([statements[first].removesuffix(";"), *(statements[f"+{each}"] for each in further)])


@functools.cache
def migrations(dialect: Dialect, *, additive: bool = False) -> Mapping[str, str]:
    """Return the scripts that lead from an empty database to the present schema, by name. The first one is number 1.

    Additive ones follow the others and are counted by themselves. A release that does not know them can use the
    database nevertheless.
    """
    folder = _STORAGE / dialect / "migrations"
    if additive:
        folder /= "additive"
    files = sorted((file for file in folder.iterdir() if file.is_file()), key=lambda file: file.name)
    for number, file in enumerate(files, start=1):
        assert file.name.startswith(f"{number:04}_"), f"{file.name} is not migration {number}"
    return {file.name.removesuffix(".sql"): file.read_text("utf-8") for file in files}


class Row(Protocol):
    """A row, read by the names of its columns."""

    def __getitem__(self, column: str, /) -> Any: ...


class Rows(Protocol):
    """The result of a statement."""

    def fetchone(self) -> Row | None: ...

    def fetchall(self) -> Sequence[Row]: ...


class SqlDatabase(Protocol):
    """A migrated database for one thread, with statements by name. Values that a statement does not use are ignored.

    Driver errors are raised as they are, except inside `errors`.
    """

    failure: type[Exception]
    """The driver's base error. It undoes the transaction."""
    refusals: tuple[type[Exception], ...]
    """Driver errors about one value. They undo a savepoint, and the transaction goes on."""
    applied: Sequence[str]
    """The migrations that were made when the database was opened."""

    def execute(self, name: str, /, **values: object) -> Rows:
        """Run a statement."""
        ...

    def execute_many(self, name: str, rows: Sequence[Mapping[str, object]], /) -> None:
        """Run a statement once for each row of values."""
        ...

    def execute_each(self, names: Sequence[str], rows: Sequence[Mapping[str, object]], /) -> Sequence[Row | None]:
        """Run a statement for each row of values. Return the single row of each result, or None."""
        ...

    def transaction(self, sync: Sync = "as chosen", *, alone: bool = False) -> AbstractContextManager[None]:
        """Do all or nothing. No other writing transaction overlaps with one that is `alone`.

        Raises StorageReadOnlyError if the database was opened read-only.
        """
        ...

    def savepoint(self) -> AbstractContextManager[None]:
        """Do all or nothing inside a transaction."""
        ...

    def errors(self) -> AbstractContextManager[None]:
        """Turn driver errors into perdure's, which name the database."""
        ...

    def version_of_data(self) -> object:
        """Return a value that differs once another connection has changed anything. It is cheap."""
        ...

    def backup(self, path: Path) -> None:
        """Write a consistent copy to a new file."""
        ...

    def damage(self) -> str | None:
        """Return how the database itself is damaged, or None."""
        ...

    def close(self) -> None: ...


class OwnerWatch(Protocol):
    """Know which of the processes that own runs are alive."""

    def enter(self, lease: Hashable = None) -> Owner:
        """Return this process as an owner, and show it to the others as alive. It may take `lease` now."""
        ...

    def leave(self, lease: Hashable) -> None:
        """Note the end of a lease."""
        ...

    def close(self) -> None:
        """Free what shows this process to the others, as soon as its leases have ended."""
        ...

    def is_replaceable(self, owner: Owner) -> bool:
        """Return whether others may take the leases of an owner: it is this process, or dead, or out of time."""
        ...

    def is_dead(self, owner: Owner) -> bool:
        """Return whether an owner has certainly ended."""
        ...

    def last_heartbeat(self, owner: Owner) -> datetime | None:
        """Return the time of an owner's newest sign of life, if it is known."""
        ...
