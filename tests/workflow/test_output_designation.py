"""Whose yields are outputs, whose are intermediate, and whose are told to nobody."""

from typing import Any, cast

import pytest

from perdure import Executor, ValidationTypeEnum, WorkflowBuilder, WorkflowContext, WorkflowValidationError, handler


class Teller(Executor):
    """Yields its own id and passes the message on."""

    @handler
    async def go(self, message: int, ctx: WorkflowContext[int, str]) -> None:
        await ctx.yield_output(self.id)
        await ctx.send_message(message)


class Undeclared(Executor):
    """Declares no outputs."""

    @handler
    async def go(self, message: int, ctx: WorkflowContext[int]) -> None:
        await ctx.yield_output(self.id)  # pyright: ignore[reportArgumentType]
        await ctx.send_message(message)


def chain(**designation: Any) -> WorkflowBuilder:
    """Three executors in a row: a and c declare outputs, b doesn't. A list names them by letters."""
    executors: dict[str, Executor] = {"a": Teller("a"), "b": Undeclared("b"), "c": Teller("c")}
    for word, named in designation.items():
        if isinstance(named, list):
            designation[word] = [executors.get(entry, entry) for entry in cast("list[Any]", named)]
    a, b, c = executors.values()
    return WorkflowBuilder(start_executor=a, **designation).add_chain([a, b, c])


MATRIX: list[tuple[dict[str, Any], list[str], list[str]]] = [
    ({}, ["a", "b", "c"], []),
    ({"output_from": None}, ["a", "b", "c"], []),
    ({"output_from": None, "intermediate_output_from": None}, ["a", "b", "c"], []),
    ({"output_from": ["c"]}, ["c"], []),
    ({"output_from": ["c", "a"]}, ["a", "c"], []),
    ({"output_from": "all"}, ["a", "c"], []),
    ({"output_from": ["c"], "intermediate_output_from": ["a"]}, ["c"], ["a"]),
    ({"output_from": ["c"], "intermediate_output_from": "all_other"}, ["c"], ["a"]),
    ({"output_from": ["c"], "intermediate_output_from": []}, ["c"], []),
    ({"intermediate_output_from": ["a"]}, [], ["a"]),
    ({"intermediate_output_from": "all"}, [], ["a", "c"]),
    ({"intermediate_output_from": "all_other"}, [], ["a", "c"]),
    ({"output_from": "all", "intermediate_output_from": "all_other"}, ["a", "c"], []),
]


@pytest.mark.parametrize(("designation", "outputs", "intermediates"), MATRIX)
async def test_yields_are_told_as_designated(
    designation: dict[str, Any], outputs: list[str], intermediates: list[str]
) -> None:
    result = await chain(**designation).build().run(1)
    assert result.get_outputs() == outputs
    assert result.get_intermediate_outputs() == intermediates


@pytest.mark.parametrize(("designation", "outputs", "intermediates"), MATRIX)
def test_the_workflow_knows_who_was_designated(
    designation: dict[str, Any], outputs: list[str], intermediates: list[str]
) -> None:
    workflow = chain(**designation).build()
    assert [executor.id for executor in workflow.get_output_executors()] == outputs
    assert [executor.id for executor in workflow.get_intermediate_executors()] == intermediates
    assert [name for name in "abc" if workflow.is_terminal_executor(name)] == outputs
    assert [name for name in "abc" if workflow.is_intermediate_executor(name)] == intermediates


async def test_a_yield_that_is_told_to_nobody_is_still_part_of_what_the_executor_did() -> None:
    result = await chain(output_from=["c"]).build().run(7)
    completed = {event.executor_id: event.data for event in result if event.type == "executor_completed"}
    assert completed == {"a": [7, "a"], "b": [7, "b"], "c": [7, "c"]}


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"output_from": []}, "both empty"),
    ({"output_from": [], "intermediate_output_from": []}, "both empty"),
    ({"output_from": ["c", "c"]}, "name executor 'c' twice"),
    ({"intermediate_output_from": ["a", "a"]}, "name executor 'a' twice"),
    ({"output_from": ["a"], "intermediate_output_from": ["a"]}, "name executor 'a' twice"),
    ({"output_from": "all", "intermediate_output_from": "all"}, "name executor .* twice"),
    ({"output_from": [Teller("stray")]}, "'stray' is to give outputs but is not part of the graph"),
    ({"output_from": ["b"]}, "'b' is to give outputs but declares none"),
    ({"intermediate_output_from": ["b"]}, "'b' is to give outputs but declares none"),
]


@pytest.mark.parametrize(("designation", "reason"), REFUSED)
def test_a_designation_that_makes_no_sense_is_refused_by_build(designation: dict[str, Any], reason: str) -> None:
    builder = chain(**designation)
    with pytest.raises(WorkflowValidationError, match=reason) as caught:
        builder.build()
    assert caught.value.validation_type is ValidationTypeEnum.OUTPUT_VALIDATION


@pytest.mark.parametrize(
    ("name", "word"), [("output_from", "all_other"), ("output_from", "some"), ("intermediate_output_from", "some")]
)
def test_an_unknown_word_is_refused_by_the_constructor(name: str, word: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be a list of executors or 'all'.*, not '{word}'"):
        chain(**{name: word})


def test_an_entry_that_is_no_executor_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="not a int: 3"):
        chain(output_from=[3]).build()


async def test_output_executors_is_the_deprecated_name_of_output_from() -> None:
    with pytest.warns(DeprecationWarning, match="output_executors is deprecated"):
        builder = chain(output_executors=["c"])
    assert (await builder.build().run(1)).get_outputs() == ["c"]


@pytest.mark.parametrize("other", [None, "all", ["c"]])
def test_both_names_at_once_are_a_type_error(other: Any) -> None:
    with pytest.raises(TypeError, match="give output_from only"):
        chain(output_executors=["c"], output_from=other)


async def test_the_event_carries_the_very_object_and_who_gave_it() -> None:
    given = object()

    class Giver(Executor):
        @handler
        async def go(self, message: int, ctx: WorkflowContext[Any, object]) -> None:
            del message
            await ctx.yield_output(given)

    result = await WorkflowBuilder(start_executor=Giver("g")).build().run(1)
    (event,) = [event for event in result if event.type == "output"]
    assert event.data is given
    assert event.executor_id == "g"
