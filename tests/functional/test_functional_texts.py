"""How a function reads: what counts as its text, and that finding it out is bounded."""

from __future__ import annotations

import ast
import importlib.util
import sys
from typing import TYPE_CHECKING, Any

import pytest

from perdure.agent_workflows import AgentWorkflow
from perdure.functional.texts import text_digest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import ModuleType

FAR = 1000


@pytest.fixture
def modules(tmp_path: Path) -> Iterator[Any]:
    """Makes modules of source code."""
    made: list[str] = []

    def make(source: str, *, place: str = "") -> ModuleType:
        name = f"text_of_a_test_{len(made)}"
        path = tmp_path / place / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(source)
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        made.append(name)
        spec.loader.exec_module(module)
        return module

    yield make
    for name in made:
        del sys.modules[name]


def counted(monkeypatch: pytest.MonkeyPatch, name: str) -> list[object]:
    """Note what a function of `ast` is called with."""
    given: list[object] = []
    function = getattr(ast, name)

    def call(tree: object) -> object:
        given.append(tree)
        return function(tree)

    monkeypatch.setattr(ast, name, call)
    return given


def chain(length: int, *, last: str) -> str:
    """Functions that call each other in a row."""
    names = [f"def f{number}(): return f{number + 1}()" for number in range(length)]
    return "\n".join([*names, f"def f{length}(): return {last}"])


def test_an_edit_of_what_is_named_by_what_is_named_counts(modules: Any) -> None:
    assert text_digest(modules(chain(5, last="1")).f0) != text_digest(modules(chain(5, last="2")).f0)


def test_comments_and_layout_do_not_count(modules: Any) -> None:
    plain = "class A:\n    def go(self): return 1\ndef f(): return A().go()"
    other = "# A comment\n\nclass A:\n    def go(self):\n        return 1  # one\n\n\ndef f():\n    return A().go()"
    assert text_digest(modules(plain).f) == text_digest(modules(other).f)


def test_a_decorated_function_a_lambda_and_a_method_are_found(modules: Any) -> None:
    source = (
        "import functools\n"
        "def outer(f):\n    @functools.wraps(f)\n    def inner(): return f()\n    return inner\n"
        "@outer\n@outer\ndef decorated(): return {}\n"
        "short = lambda: {}\n"
        "class A:\n    class B:\n        @property\n        def go(self): return {}\n"
        "def f(): return decorated(), short(), A.B().go\n"
    )
    texts = {text_digest(modules(source.format(*numbers)).f) for numbers in ("111", "211", "121", "112")}
    assert None not in texts
    assert len(texts) == 4


def test_in_a_large_program_no_more_is_read_than_the_nearest(modules: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    read = counted(monkeypatch, "unparse")
    near, far = modules(chain(FAR, last="1")), modules(chain(FAR, last="2"))
    assert text_digest(near.f0) == text_digest(far.f0)
    assert len(read) < FAR


def test_the_files_of_a_function_are_parsed_once_each(modules: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = counted(monkeypatch, "parse")
    classes = "\n".join(f"class C{number}: pass" for number in range(20))
    module = modules(f"{classes}\ndef f(): return {', '.join(f'C{number}()' for number in range(20))}")
    assert text_digest(module.f) is not None
    assert len(parsed) == 1


def test_another_function_of_the_same_code_costs_no_reading(modules: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    module = modules("def make():\n    def go(): return 1\n    return go\n")
    first = text_digest(module.make())
    parsed = counted(monkeypatch, "parse")
    assert text_digest(module.make()) == first
    assert parsed == []


def test_functions_of_ours_have_no_text_since_a_new_release_is_no_edit() -> None:
    assert text_digest(AgentWorkflow.create) is None


def test_what_has_no_source_has_no_text() -> None:
    space: dict[str, Any] = {}
    exec("def f(): return 1", space)
    assert text_digest(space["f"]) is None
