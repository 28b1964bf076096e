"""Annotations, and the names that they are read with."""

from __future__ import annotations

import functools
import gc
import typing
import weakref
from typing import Any, Optional

import pytest

from perdure.annotations import Namespace, annotations_of, evaluate, namespace_here
from perdure.types import is_instance_of, split_union

if typing.TYPE_CHECKING:
    from collections.abc import Callable


async def module_level(message: Later, other: list[Later] | None, plain: int) -> Later: ...  # pyright: ignore[reportReturnType]


class Later:
    """Defined after the function that names it."""


class Big:
    """What a function has in its hands."""


def test_string_annotations_are_read_with_the_names_of_the_module_as_it_is_now() -> None:
    found = annotations_of(module_level, Namespace())
    assert found == {"message": Later, "other": list[Later] | None, "plain": int}


def test_a_class_local_to_a_function_is_found() -> None:
    class Local: ...

    def handle(message: Local, many: list[Local]) -> None: ...

    assert annotations_of(handle, namespace_here(0)) == {"message": Local, "many": list[Local]}


def test_names_are_found_in_every_enclosing_scope_that_runs_and_inner_ones_win() -> None:
    class Outer: ...

    class Shadowed: ...

    def inner() -> tuple[dict[str, object], object]:
        class Shadowed: ...

        class Holder:
            class InClass: ...

            def handle(self, a: Outer, b: Shadowed, c: InClass) -> None: ...

            names = namespace_here(0)

        return annotations_of(Holder.handle, Holder.names), (Outer, Shadowed, Holder.InClass)

    found, expected = inner()
    assert tuple(found.values()) == expected
    assert found["b"] is not Shadowed


def test_the_names_of_a_mere_caller_are_not_visible() -> None:
    class Local: ...

    def run(defines: Callable[[], Namespace]) -> Namespace:
        secret = Local
        del secret
        return defines()

    assert "defines" not in run(elsewhere).names
    assert "Local" not in run(elsewhere).names


def elsewhere() -> Namespace:
    return namespace_here(0)


def test_depth_counts_the_calls_above() -> None:
    class Local: ...

    def decorate() -> Namespace:
        return namespace_here(1)

    assert decorate().names["Local"] is Local


def test_a_variable_that_the_function_closes_over_is_found_without_a_namespace() -> None:
    def make() -> Callable[..., Any]:
        class Local: ...

        def handle(message: Local | None) -> object:
            return message or Local

        return handle

    handle = make()
    assert is_instance_of(None, annotations_of(handle, Namespace())["message"])
    assert split_union(annotations_of(handle, Namespace())["message"])[0] is handle(None)


def test_methods_partials_callable_objects_and_wrapped_functions_show_the_annotations_beneath() -> None:
    class Callee:
        def __call__(self, message: Later) -> None: ...

        def method(self, message: Later) -> None: ...

    @functools.wraps(module_level)
    def wrapper(*args: Any) -> Any: ...

    for func in (Callee(), Callee().method, functools.partial(module_level, plain=1), wrapper):
        assert annotations_of(func, Namespace())["message"] is Later


def test_a_name_that_is_not_defined_is_told_with_function_and_annotation() -> None:
    def handle(message: list[Missing]) -> None: ...  # pyright: ignore[reportUndefinedVariable, reportUnknownParameterType] # noqa: F821

    with pytest.raises(
        NameError, match=r"'Missing' in the annotation 'list\[Missing\]' of parameter 'message' of .*handle"
    ) as info:
        annotations_of(handle, Namespace())  # pyright: ignore[reportUnknownArgumentType]
    assert info.value.name == "Missing"


def test_the_return_annotation_is_not_read() -> None:
    def handle(message: int) -> Missing: ...  # pyright: ignore[reportUndefinedVariable, reportUnknownParameterType] # noqa: F821

    assert annotations_of(handle, Namespace()) == {"message": int}  # pyright: ignore[reportUnknownArgumentType]


def test_one_type_is_evaluated_from_a_string_or_taken_as_it_is() -> None:
    class Local: ...

    here = namespace_here(0)
    assert evaluate("Local | None", module_level, here) == Local | None
    assert evaluate(list["Later"], module_level, here) == list[Later]
    assert evaluate(int, module_level, here) is int
    assert evaluate(None, module_level, here) is type(None)
    with pytest.raises(NameError, match=r"'Gone' in the annotation 'typing\.Gone' of .*module_level"):
        evaluate("typing.Gone", module_level, here)


def test_a_namespace_reduced_to_what_a_function_needs_keeps_nothing_else_alive() -> None:
    class Local: ...

    def handle(message: list[Local], other: Optional["Local"]) -> None: ...  # noqa: UP037, UP045

    def capture() -> tuple[Namespace, weakref.ref[Big]]:
        big = Big()
        here = namespace_here(0)
        assert "big" in here.names
        return here.needed_by(handle, "Later"), weakref.ref(big)

    gc.disable()
    try:
        kept, big = capture()
        assert big() is None
    finally:
        gc.enable()
    assert set(kept.names) == {"Local"}
    assert annotations_of(handle, kept)["message"] == list[Local]
