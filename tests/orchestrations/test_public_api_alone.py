"""Orchestrations are built from what every program can import: whoever reads one can write one."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

import perdure
import perdure.orchestrations

PACKAGE = Path(perdure.orchestrations.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))
OTHERS = frozenset({"pydantic", "typing_extensions"})
"""Libraries that the whole project may use."""


def imports_of(path: Path) -> list[tuple[str, tuple[str, ...]]]:
    """The modules that a module imports from, also inside of functions, each with the names."""
    found: list[tuple[str, tuple[str, ...]]] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [(alias.name, ()) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path.name} imports from {'.' * node.level}{node.module}"
            found.append((node.module or "", tuple(alias.name for alias in node.names)))
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_an_orchestration_uses_public_names_alone(path: Path) -> None:
    public = frozenset(perdure.__all__)
    for module, names in imports_of(path):
        if module == "perdure":
            assert set(names) <= public, f"{path.name}: {set(names) - public} is not public"
        elif module.partition(".")[0] == "perdure":
            assert module == "perdure.orchestrations" or module.startswith("perdure.orchestrations."), module
        else:
            assert module.partition(".")[0] in sys.stdlib_module_names | OTHERS, module


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_an_orchestration_takes_no_way_around_the_public_names(path: Path) -> None:
    """The port of the engine that a context has is no public name, whatever it can do."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert not used & {"activation", "import_module", "_perdure"}
