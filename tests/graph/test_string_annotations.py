"""Annotations that are strings, as `from __future__ import annotations` makes of all of this module's."""

from __future__ import annotations

import gc
import weakref
from dataclasses import dataclass

import pytest

from perdure import Executor, WorkflowContext, executor, handler, response_handler


class Node(Executor):
    """Its types are defined further down."""

    @handler
    async def go(self, message: Order, ctx: WorkflowContext[Receipt | None, list[Receipt]]) -> None: ...

    @response_handler
    async def on(self, request: Order, response: Receipt, ctx: WorkflowContext[Order]) -> None: ...


@dataclass
class Order:
    number: int


@dataclass
class Receipt:
    number: int


def test_types_defined_further_down_in_the_module_are_found() -> None:
    node = Node("n")
    assert node.input_types == [Order]
    assert node.output_types == [Receipt, type(None), Order]
    assert node.workflow_output_types == [list[Receipt]]
    assert node.is_request_supported(Order, Receipt)


def test_types_that_are_local_to_a_function_are_found() -> None:
    @dataclass
    class Local:
        number: int

    class Inner(Executor):
        @handler
        async def go(self, message: Local, ctx: WorkflowContext[list[Local], Local]) -> None: ...

        @response_handler
        async def on(self, request: Local, response: Local, ctx: WorkflowContext) -> None: ...

    @executor
    async def function(message: Local, ctx: WorkflowContext[Local]) -> None: ...

    inner = Inner("i")
    assert inner.input_types == [Local]
    assert inner.output_types == [list[Local]]
    assert inner.workflow_output_types == [Local]
    assert inner.is_request_supported(Local, Local)
    assert (function.input_types, function.output_types) == ([Local], [Local])


def test_types_that_are_local_to_a_class_are_found() -> None:
    class Outer(Executor):
        @dataclass
        class Inner:
            number: int

        @handler
        async def go(self, message: Inner, ctx: WorkflowContext) -> None: ...

    assert Outer("o").input_types == [Outer.Inner]


def test_types_of_an_enclosing_function_are_found_from_a_function_inside() -> None:
    class Local: ...

    def make() -> Executor:
        class Inner(Executor):
            @handler
            async def go(self, message: Local, ctx: WorkflowContext) -> None: ...

        return Inner("i")

    assert make().input_types == [Local]


def test_explicit_types_given_as_strings_find_local_names() -> None:
    class Local: ...

    class Inner(Executor):
        @handler(input="Local", output="list[Local]")
        async def go(self, message: object, ctx: WorkflowContext) -> None: ...

    assert Inner("i").input_types == [Local]
    assert Inner("i").output_types == [list[Local]]


def test_a_name_that_is_nowhere_is_an_error_when_the_executor_is_made_and_names_it() -> None:
    class Lost(Executor):
        @handler  # pyright: ignore[reportUnknownArgumentType]
        async def go(self, message: Nowhere, ctx: WorkflowContext) -> None: ...  # noqa: F821  # pyright: ignore[reportUndefinedVariable, reportUnknownParameterType]

    with pytest.raises(NameError, match=r"'Nowhere' in the annotation .* of parameter 'message'") as caught:
        Lost("l")
    assert isinstance(caught.value, ValueError)  # as every other wrong annotation


def test_the_two_ways_of_annotating_mean_the_same() -> None:
    class Plain(Executor):
        @handler
        async def go(self, message: int, ctx: WorkflowContext[str, bytes]) -> None: ...

    go = Plain.go
    assert go.__annotations__["message"] == "int"
    plain = Plain("p")
    assert (plain.input_types, plain.output_types, plain.workflow_output_types) == ([int], [str], [bytes])


def test_a_handler_does_not_keep_alive_what_stood_beside_it() -> None:
    class Heavy: ...

    def make() -> tuple[type[Executor], weakref.ref[Heavy]]:
        heavy = Heavy()

        class Inner(Executor):
            @handler
            async def go(self, message: int, ctx: WorkflowContext) -> None: ...

        return Inner, weakref.ref(heavy)

    inner, heavy = make()
    gc.collect()
    assert inner("i").input_types == [int]
    assert heavy() is None
