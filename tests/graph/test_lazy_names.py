"""Names of the package are loaded on first use."""

from __future__ import annotations

import ast
import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

import perdure

BUILDING = "from perdure import Executor, SqliteCheckpointStorage, WorkflowBuilder, WorkflowContext, handler"


def loaded_by(program: str, directory: Path | None = None) -> set[str]:
    """The modules that a new process has loaded after a program."""
    script = f"{program}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=directory)
    return set(json.loads(done.stdout))


def test_the_package_alone_loads_nothing_else() -> None:
    loaded = loaded_by("import perdure")
    assert [name for name in loaded if name.startswith("perdure")] == ["perdure"]
    assert loaded & {"asyncio", "dataclasses", "typing_extensions"} == set()


def test_building_a_workflow_loads_no_optional_library() -> None:
    loaded = loaded_by(BUILDING)
    assert "perdure.workflows.builder" in loaded
    for name in ("perdure.hosting", "perdure.viz", "perdure.testing"):
        assert name not in loaded
    assert loaded & {"psycopg", "opentelemetry", "graphviz", "rich", "openai", "mcp", "pydantic_ai"} == set()


def test_each_name_of_the_stub_is_found_where_the_stub_says() -> None:
    stub = ast.parse(Path(perdure.__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    homes = {each.name: str(node.module) for node in imports for each in node.names if each.asname is None}
    [listed] = [ast.literal_eval(node.value) for node in stub.body if isinstance(node, ast.Assign)]
    assert sorted(listed) == sorted(perdure.__all__) == sorted([*homes, "__version__"])
    for name, home in homes.items():
        assert getattr(perdure, name) is getattr(importlib.import_module(home), name)


def test_all_names_can_be_imported_at_once() -> None:
    names: dict[str, object] = {}
    exec("from perdure import *", names)
    assert set(perdure.__all__) <= set(names)
    assert names["Executor"] is perdure.Executor


def test_modules_are_there_as_attributes_without_being_imported() -> None:
    program = "import perdure; perdure.errors.EncodeError, perdure.hosting, perdure.storage, perdure.kernel"
    assert {"perdure.errors", "perdure.hosting", "perdure.storage", "perdure.kernel"} <= loaded_by(program)


def test_a_name_is_looked_up_once() -> None:
    assert perdure.WorkflowBuilder is vars(perdure)["WorkflowBuilder"]


def test_dir_tells_what_there_is() -> None:
    assert {*perdure.__all__, "errors", "storage"} <= set(dir(perdure))


def test_a_name_that_is_not_there_is_refused_as_by_any_module() -> None:
    with pytest.raises(AttributeError, match="module 'perdure' has no attribute 'Werkflow'") as caught:
        getattr(perdure, "Werkflow")  # noqa: B009 - a type checker would see that it is not there
    assert (caught.value.name, caught.value.obj) == ("Werkflow", perdure)
    with pytest.raises(ImportError, match="cannot import name 'Werkflow' from 'perdure'"):
        exec("from perdure import Werkflow")
