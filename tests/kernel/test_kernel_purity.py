"""The kernel is pure: it imports nothing that could wait, look at a clock, draw a number or touch a file."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import perdure.kernel

ALLOWED = {
    "__future__",
    "collections",
    "collections.abc",
    "dataclasses",
    "itertools",
    "perdure.data_classes",
    "perdure.graph",
    "typing",
}
MODULES = sorted(Path(perdure.kernel.__path__[0]).glob("*.py"))


def imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
    return names


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_a_module_of_the_kernel_imports_only_data_types_and_its_neighbours(path: Path) -> None:
    outside = {name for name in imported(path) if not name.startswith(("perdure.kernel.", "perdure.graph."))}
    assert outside <= ALLOWED
