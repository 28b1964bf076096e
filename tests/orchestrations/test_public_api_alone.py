"""Orchestrations and agent workflows import only the public API."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

import perdure
import perdure.threads

SOURCES = Path(perdure.__file__).parent
PACKAGES = {
    "orchestrations": frozenset[str](),
    "agent_workflows": frozenset({"perdure.threads"}),
}
"""By package: the public modules that it uses beside `perdure`."""
PUBLIC = {"perdure": frozenset(perdure.__all__), "perdure.threads": frozenset(perdure.threads.__all__)}
MODULES = [
    pytest.param(package, path, id=f"{package}.{path.stem}")
    for package in PACKAGES
    for path in sorted((SOURCES / package).rglob("*.py"))
]
OTHERS = frozenset({"jsonschema", "pydantic", "pydantic_core", "typing_extensions"})
"""Libraries that the whole project may use."""
WAYS_AROUND = frozenset({"activation", "import_module", "_perdure"})
"""The port of the engine that a context has is no public name, whatever it can do."""


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


def names_used_in(path: Path) -> set[str]:
    """The attributes that a module names, also those by a text, as `getattr` takes them."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)
    return found


@pytest.mark.parametrize(("package", "path"), MODULES)
def test_it_uses_public_names_alone(package: str, path: Path) -> None:
    own = f"perdure.{package}"
    for module, names in imports_of(path):
        if module == "perdure" or module in PACKAGES[package]:
            assert names, f"{path.name} imports {module} as a whole"
            # Modules of its own are parts of it, and no names of perdure.
            assert {f"{module}.{name}" for name in names if name not in PUBLIC[module]} <= {own}, path.name
        elif module.partition(".")[0] == "perdure":
            assert module == own or module.startswith(f"{own}."), module
        else:
            assert module.partition(".")[0] in sys.stdlib_module_names | OTHERS, module


@pytest.mark.parametrize("path", [pytest.param(each.values[1], id=each.id) for each in MODULES])
def test_it_takes_no_way_around_the_public_names(path: Path) -> None:
    assert names_used_in(path) & WAYS_AROUND == set()
