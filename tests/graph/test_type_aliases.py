"""Exported type aliases are types at run time, so that programs can use them in annotations."""

from __future__ import annotations

import ast
import importlib
import typing
from pathlib import Path
from typing import Any

import pytest

import perdure

SOURCE = Path(perdure.__file__).parent
FRONTS = ["perdure", *("perdure." + name for name in ("agents", "orchestrations", "storage", "testing", "workflows"))]


def declared_aliases() -> set[str]:
    """Return the names that any module of the package declares as a `TypeAlias`."""
    return {
        statement.target.id
        for file in SOURCE.rglob("*.py")
        for statement in ast.parse(file.read_text(encoding="utf-8")).body
        if isinstance(statement, ast.AnnAssign)
        and isinstance(statement.target, ast.Name)
        and ast.unparse(statement.annotation) == "TypeAlias"
    }


def exported_aliases() -> list[tuple[str, str]]:
    aliases = declared_aliases()
    return [(front, name) for front in FRONTS for name in dir(importlib.import_module(front)) if name in aliases]


@pytest.mark.parametrize(("front", "name"), exported_aliases())
def test_an_exported_alias_is_a_type_at_run_time(front: str, name: str) -> None:
    alias: Any = getattr(importlib.import_module(front), name)
    assert not isinstance(alias, str)

    def function(value: object = None) -> None: ...

    optional = alias | None
    function.__annotations__ = {"value": optional}
    assert typing.get_type_hints(function) == {"value": optional}


def test_the_aliases_of_agent_framework_are_among_them() -> None:
    names = {name for front, name in exported_aliases() if front == "perdure"}
    assert {"AgentRunInputs", "ToolTypes", "MiddlewareTypes", "EdgeCondition"} <= names
