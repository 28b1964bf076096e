"""SQL as it stands in the package, by dialect: statements by their names, migrations by their numbers."""

from __future__ import annotations

import functools
import re
from importlib import resources
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Dialect: TypeAlias = Literal["sqlite", "postgres"]

_HEADING = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_SQL = resources.files("perdure.storage")


@functools.cache
def named_statements(dialect: Dialect) -> Mapping[str, str]:
    """By name the text that follows `-- name: ...`."""
    _, *pieces = _HEADING.split((_SQL / dialect / "statements.sql").read_text("utf-8"))
    return {name: text.strip() for name, text in zip(pieces[::2], pieces[1::2], strict=True)}


@functools.cache
def migrations(dialect: Dialect) -> Sequence[str]:
    """The scripts that lead from an empty database to the present schema, the first being number 1."""
    files = sorted((_SQL / dialect / "migrations").iterdir(), key=lambda file: file.name)
    for number, file in enumerate(files, start=1):
        assert file.name.startswith(f"{number:04}_"), f"{file.name} is not migration {number}"
    return [file.read_text("utf-8") for file in files]
