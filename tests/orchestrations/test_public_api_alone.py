"""Orchestrations and agent workflows import only the public API."""

from __future__ import annotations

import ast
import gc
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import perdure
import perdure.threads

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCES = Path(perdure.__file__).parent
PACKAGES = {"orchestrations": frozenset[str](), "agent_workflows": frozenset({"perdure.threads"})}
"""By package: the public modules that it uses besides `perdure`."""
PUBLIC = {"perdure": frozenset(perdure.__all__), "perdure.threads": frozenset(vars(perdure.threads))}
OTHERS = frozenset({"jsonschema", "pydantic", "pydantic_core", "typing_extensions"})
"""Libraries that the whole project may use."""
BYPASSES = frozenset({"activation", "import_module", "_perdure"})
"""The engine port that a context holds is not public."""


def modules() -> Iterator[tuple[str, Path]]:
    """Yield each module of these packages with its package."""
    for package in PACKAGES:
        for path in sorted((SOURCES / package).rglob("*.py")):
            yield package, path


def parse(path: Path) -> ast.Module:
    """Parse a module without garbage collection.

    In Python 3.11 `ast.parse` fails if a finalizer runs meanwhile that logs a traceback, which parses too.
    """
    gc.disable()
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    finally:
        gc.enable()


def imports_of(path: Path) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the modules that a module imports from, also inside of functions, each with the names."""
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, ()) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "." * node.level + (node.module or ""), tuple(alias.name for alias in node.names)


def private_names(package: str, module: str, names: tuple[str, ...]) -> list[str]:
    """Return what an import takes that is neither public, nor of the package itself, nor of a known library."""
    own = f"perdure.{package}"
    if module == "perdure" or module in PACKAGES[package]:
        # Modules of the package itself are no names of perdure.
        taken = [f"{module}.{name}" for name in names if name not in PUBLIC[module]]
        return [name for name in taken if name != own] if names else [f"{module} as a whole"]
    if module.partition(".")[0] == "perdure":
        return [] if module == own or module.startswith(f"{own}.") else [module]
    return [] if module.partition(".")[0] in sys.stdlib_module_names | OTHERS else [module]


def names_used_in(path: Path) -> set[str]:
    """Return the attributes that a module names, also as text for `getattr`."""
    found: set[str] = set()
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)
    return found


def test_they_use_public_names_alone() -> None:
    found = {
        str(path.relative_to(SOURCES)): private
        for package, path in modules()
        if (private := [each for imported in imports_of(path) for each in private_names(package, *imported)])
    }
    assert found == {}


def test_they_do_not_bypass_the_public_names() -> None:
    found = {str(path.relative_to(SOURCES)): names_used_in(path) & BYPASSES for _, path in modules()}
    assert len(found) > 30
    assert {path: names for path, names in found.items() if names} == {}


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("perdure", ()),
        ("perdure", ("engine",)),
        ("perdure.engine", ("Loop",)),
        ("perdure.agent_workflows", ("AgentWorkflow",)),
        (".chain", ("join",)),
        ("requests", ()),
    ],
)
def test_an_import_of_a_private_name_is_found(module: str, names: tuple[str, ...]) -> None:
    assert private_names("orchestrations", module, names)
