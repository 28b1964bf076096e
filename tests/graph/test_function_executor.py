"""`@executor` and `FunctionExecutor`."""

import asyncio
import functools
import threading
from typing import Any, TypeVar

import pytest

from perdure import Executor, FunctionExecutor, WorkflowBuilder, WorkflowContext, executor, handler

T = TypeVar("T")


async def double(message: int, ctx: WorkflowContext[int, str]) -> None:
    await ctx.yield_output(str(message * 2))


def test_the_decorator_gives_an_executor_named_after_the_function() -> None:
    made = executor(double)
    assert isinstance(made, FunctionExecutor)
    assert isinstance(made, Executor)
    assert (made.id, made.type, made.func) == ("double", "FunctionExecutor", double)
    assert (made.input_types, made.output_types, made.workflow_output_types) == ([int], [int], [str])


def test_the_id_can_be_given() -> None:
    assert executor(id="twice")(double).id == "twice"
    assert FunctionExecutor(double, "again").id == "again"


def test_empty_brackets_are_the_same_as_none() -> None:
    @executor()
    async def plain(message: str, ctx: WorkflowContext) -> None: ...

    assert (plain.id, plain.input_types, plain.output_types) == ("plain", [str], [])


def test_a_function_may_take_the_message_alone() -> None:
    @executor
    async def alone(message: int) -> None: ...

    assert (alone.input_types, alone.output_types, alone.workflow_output_types) == ([int], [], [])


def test_explicit_types_override_the_inferred_ones_one_by_one() -> None:
    @executor(output=bytes)
    async def mixed(message: int, ctx: WorkflowContext[str, float]) -> None: ...

    assert (mixed.input_types, mixed.output_types, mixed.workflow_output_types) == ([int], [bytes], [float])

    @executor(input="str | bytes", workflow_output=list[int])
    async def other(message: Any, ctx: WorkflowContext[str, float]) -> None: ...

    assert other.input_types == [str | bytes]
    assert (other.output_types, other.workflow_output_types) == ([str], [list[int]])


def test_an_input_type_stands_in_for_the_annotation_of_the_message() -> None:
    async def bare(message) -> None: ...  # noqa: ANN001  # pyright: ignore[reportUnknownParameterType, reportMissingParameterType]

    with pytest.raises(ValueError, match="needs a type annotation for 'message'"):
        executor(bare)  # pyright: ignore[reportUnknownArgumentType]
    assert executor(input=int)(bare).input_types == [int]  # pyright: ignore[reportUnknownArgumentType]


def test_a_context_needs_its_annotation() -> None:
    async def bare(message: int, ctx) -> None: ...  # noqa: ANN001  # pyright: ignore[reportUnknownParameterType, reportMissingParameterType]

    async def wrong(message: int, ctx: int) -> None: ...

    with pytest.raises(ValueError, match="needs 'ctx' annotated as WorkflowContext"):
        executor(bare)  # pyright: ignore[reportUnknownArgumentType]
    with pytest.raises(ValueError, match="must be annotated WorkflowContext"):
        executor(wrong)


def test_other_numbers_of_parameters_are_refused() -> None:
    async def none() -> None: ...

    async def three(message: int, ctx: WorkflowContext, more: int) -> None: ...

    for function in (none, three):
        with pytest.raises(ValueError, match=r"must take \(message\) or \(message, ctx\)"):
            executor(function)


def test_static_and_class_methods_are_refused() -> None:
    for wrapped in (staticmethod(double), classmethod(double)):  # pyright: ignore[reportArgumentType, reportUnknownVariableType]
        with pytest.raises(ValueError, match="plain function"):
            FunctionExecutor(wrapped)  # pyright: ignore[reportArgumentType, reportUnknownArgumentType]


def test_a_type_variable_is_refused() -> None:
    async def generic(message: list[T], ctx: WorkflowContext) -> None: ...

    with pytest.raises(ValueError, match="type variable"):
        executor(generic)


async def test_an_async_function_runs_in_the_event_loop_and_a_sync_one_in_a_thread() -> None:
    threads: dict[str, int] = {}

    @executor
    async def quick(message: int, ctx: WorkflowContext[int]) -> None:
        threads["quick"] = threading.get_ident()
        await ctx.send_message(message)

    @executor
    def slow(message: int, ctx: WorkflowContext) -> None:
        threads["slow"] = threading.get_ident()
        ctx.set_state("seen", message)

    workflow = WorkflowBuilder(start_executor=quick).add_edge(quick, slow).build()
    await workflow.run(3)
    assert threads["quick"] == threading.get_ident()
    assert threads["slow"] != threading.get_ident()


async def test_what_a_sync_function_writes_to_the_state_is_kept() -> None:
    seen: list[Any] = []

    @executor
    def write(message: int, ctx: WorkflowContext) -> None:
        seen.append(ctx.get_state("n"))
        ctx.set_state("n", message)

    workflow = WorkflowBuilder(start_executor=write).build()
    await workflow.run(1)
    await workflow.run(2)
    assert seen == [None, 1]


async def test_what_a_function_returns_is_ignored() -> None:
    @executor
    async def returns(message: int, _: WorkflowContext[int, int]) -> int:
        return message

    result = await WorkflowBuilder(start_executor=returns).build().run(3)
    assert result.get_outputs() == []
    assert [event.data for event in result if event.type == "executor_completed"] == [None]


async def test_a_value_that_a_sync_function_returns_is_refused() -> None:
    @executor
    def returns(message: int) -> int:
        return message

    with pytest.raises(TypeError, match=r"executor 'returns' returned a value of type int.*ctx\.send_message"):
        await WorkflowBuilder(start_executor=returns).build().run(3)


async def test_a_value_that_a_function_without_a_context_returns_is_refused() -> None:
    @executor
    async def returns(message: int) -> int:
        return message

    with pytest.raises(TypeError, match=r"executor 'returns' returned a value of type int.*ctx\.yield_output"):
        await WorkflowBuilder(start_executor=returns).build().run(3)


async def test_a_value_that_a_sync_handler_returns_is_refused() -> None:
    class Returns(Executor):
        @handler
        def take(self, message: int, _: WorkflowContext[int]) -> int:
            return message

    with pytest.raises(TypeError, match=r"executor 'returns' returned a value of type int.*ctx\.send_message"):
        await WorkflowBuilder(start_executor=Returns("returns")).build().run(3)


async def test_a_callable_object_and_a_partial_are_functions_too() -> None:
    class Adder:
        async def __call__(self, message: int, ctx: WorkflowContext[int, int]) -> None:
            await ctx.yield_output(message + 1)

    async def add(amount: int, message: int, ctx: WorkflowContext[int, int]) -> None:
        await ctx.yield_output(message + amount)

    for function in (Adder(), functools.partial(add, 1)):
        made = FunctionExecutor(function, "adder", input=int)
        assert (await WorkflowBuilder(start_executor=made).build().run(3)).get_outputs() == [4]


async def test_a_failing_run_waits_for_the_thread_of_a_sync_function() -> None:
    begun, may_end, may_fail = threading.Event(), threading.Event(), asyncio.Event()
    ended: list[int] = []

    @executor
    def slow(message: int) -> None:
        begun.set()
        may_end.wait()
        ended.append(message)

    @executor
    async def fails(_: int) -> None:
        await may_fail.wait()
        raise ValueError("no")

    @executor
    async def both(message: int, ctx: WorkflowContext[int]) -> None:
        await ctx.send_message(message)

    workflow = WorkflowBuilder(start_executor=both).add_fan_out_edges(both, [slow, fails]).build()
    running = asyncio.ensure_future(workflow.run(1))
    await asyncio.to_thread(begun.wait)
    may_fail.set()
    for _ in range(20):
        await asyncio.sleep(0)
    assert not running.done()
    may_end.set()
    with pytest.raises(ValueError, match="no"):
        await running
    assert ended == [1]
