"""SQL as it stands in the package's .sql files: statements by their names, migrations by their numbers."""

from __future__ import annotations

import re
import sqlite3
from importlib import resources
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_HEADING = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_SQL = resources.files("perdure.stores") / "sql"


def named_statements() -> Mapping[str, str]:
    """By name the text that follows `-- name: ...`."""
    _, *pieces = _HEADING.split((_SQL / "statements.sql").read_text("utf-8"))
    return {name: text.strip() for name, text in zip(pieces[::2], pieces[1::2], strict=True)}


def migrations() -> Sequence[str]:
    """The scripts that lead from an empty database to the present schema, the first being number 1."""
    files = sorted((_SQL / "migrations").iterdir(), key=lambda file: file.name)
    for number, file in enumerate(files, start=1):
        assert file.name.startswith(f"{number:04}_"), f"{file.name} is not migration {number}"
    return [file.read_text("utf-8") for file in files]


def split(script: str) -> Iterator[str]:
    """The statements of a script one by one; sqlite3's own way to run a script would end the transaction."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
    assert not statement.strip(), f"a statement has no end: {statement!r}"
