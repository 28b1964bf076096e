"""Fan-in: the target gets one list when every source has sent."""

from typing import Any

import pytest
from tests.workflow.nodes import (
    Context,
    MaybeStorage,
    ending,
    keeping,
    live_and_checkpointed,
    node,
    passing,
    sending,
    told,
)

from perdure import Executor, WorkflowBuilder


def gathering(*sources: Executor, target: Executor, **options: Any) -> WorkflowBuilder:
    start = passing("start")
    builder = WorkflowBuilder(start_executor=start, **options)
    return builder.add_fan_out_edges(start, list(sources)).add_fan_in_edges(list(sources), target)


@live_and_checkpointed
@pytest.mark.parametrize(
    ("of_a", "of_b", "gathered"),
    [
        (["a0"], ["b0"], ["a0", "b0"]),
        (["a0", "a1"], ["b0"], ["a0", "a1", "b0"]),
        (["a0"], ["b0", "b1"], ["a0", "b0", "b1"]),
        (["a0", "a1"], ["b0", "b1", "b2"], ["a0", "a1", "b0", "b1", "b2"]),
    ],
)
async def test_a_superstep_is_gathered_whole_by_source_and_in_sending_order(
    of_a: list[str], of_b: list[str], gathered: list[str], storage: MaybeStorage
) -> None:
    a, b = sending("a", *of_a), sending("b", *of_b)
    workflow = gathering(a, b, target=ending("end"), checkpoint_storage=storage()).build()
    assert (await workflow.run(0)).get_outputs() == [gathered]


@live_and_checkpointed
async def test_nothing_is_left_over_for_the_next_turn(storage: MaybeStorage) -> None:
    a, b = sending("a", "a0"), sending("b", "b0", "b1")
    workflow = gathering(a, b, target=ending("end"), checkpoint_storage=storage()).build()
    await workflow.run(0)
    assert (await workflow.run(0)).get_outputs() == [["a0", "b0", "b1"]]


async def test_the_order_is_that_of_the_declaration_not_of_the_arrival() -> None:
    start, a, b, slow, end = passing("start"), sending("a", "a"), sending("b", "b"), passing("slow"), ending("end")
    workflow = (
        WorkflowBuilder(start_executor=start)
        .add_fan_out_edges(start, [b, slow])
        .add_edge(slow, a)
        .add_fan_in_edges([a, b], end)
        .build()
    )
    assert (await workflow.run(0)).get_outputs() == [["a", "b"]]


@live_and_checkpointed
async def test_branches_of_different_length_meet(storage: MaybeStorage) -> None:
    start, near, far1, far2, end = passing("start"), passing("near"), passing("far1"), passing("far2"), ending("end")
    workflow = (
        WorkflowBuilder(start_executor=start, checkpoint_storage=storage())
        .add_fan_out_edges(start, [near, far1])
        .add_edge(far1, far2)
        .add_fan_in_edges([near, far2], end)
        .build()
    )
    result = await workflow.run("x")
    assert result.get_outputs() == [["x", "x"]]
    assert told(result)[-1] == "superstep_completed#4"


@live_and_checkpointed
async def test_what_a_source_sends_in_several_supersteps_is_gathered_together(storage: MaybeStorage) -> None:
    async def count(n: int, ctx: Context) -> None:
        await ctx.send_message(n, "end")
        if n < 3:
            await ctx.send_message(n + 1, "often")

    start, often, end = passing("start"), node("often", count), ending("end")
    late = [passing(f"late{n}") for n in range(3)]
    workflow = (
        WorkflowBuilder(start_executor=start, checkpoint_storage=storage())
        .add_fan_out_edges(start, [often, late[0]])
        .add_edge(often, often)
        .add_chain(late)
        .add_fan_in_edges([often, late[-1]], end)
        .build()
    )
    assert (await workflow.run(1)).get_outputs() == [[1, 2, 3, 1]]


@live_and_checkpointed
async def test_what_was_gathered_waits_for_the_next_turn(storage: MaybeStorage) -> None:
    async def first(n: int, ctx: Context) -> None:
        if n == 1:
            await ctx.send_message("from a")

    async def second(n: int, ctx: Context) -> None:
        if n == 2:
            await ctx.send_message("from b")

    workflow = gathering(
        node("a", first), node("b", second), target=ending("end"), checkpoint_storage=storage()
    ).build()
    assert (await workflow.run(1)).get_outputs() == []
    assert (await workflow.run(2)).get_outputs() == [["from a", "from b"]]


async def test_the_target_is_told_all_sources() -> None:
    seen: list[list[str]] = []

    async def look(_: list[Any], ctx: Context) -> None:
        seen.append(ctx.source_executor_ids)
        with pytest.raises(RuntimeError, match="came from several executors: a, b"):
            ctx.get_source_executor_id()

    await gathering(sending("a", 1), sending("b", 2), target=node("end", look)).build().run(0)
    assert seen == [["a", "b"]]


async def test_the_type_of_each_message_is_checked_as_an_element_of_the_list() -> None:
    kept: list[Any] = []
    end = keeping("end", kept, takes=list[int])
    result = await gathering(sending("a", 1, "x"), sending("b", 2), target=end).build().run(0)
    assert kept == [[1, 2]]
    lost = [event.data for event in result if event.type == "undelivered"]
    assert [(message.message, message.source_id) for message in lost] == [("x", "a")]


async def test_one_source_may_feed_several_fan_ins() -> None:
    start, a, b, c = passing("start"), sending("a", "a"), sending("b", "b"), sending("c", "c")
    ab, bc = ending("ab"), ending("bc")
    workflow = (
        WorkflowBuilder(start_executor=start)
        .add_fan_out_edges(start, [a, b, c])
        .add_fan_in_edges([a, b], ab)
        .add_fan_in_edges([b, c], bc)
        .build()
    )
    assert (await workflow.run(0)).get_outputs() == [["a", "b"], ["b", "c"]]


async def test_a_fan_in_can_be_gone_through_again_and_again() -> None:
    rounds: list[Any] = []

    async def again(message: list[int], ctx: Context) -> None:
        rounds.append(message)
        if len(rounds) < 3:
            await ctx.send_message(len(rounds))

    start, a, b, end = passing("start"), passing("a"), passing("b"), node("end", again)
    workflow = (
        WorkflowBuilder(start_executor=start)
        .add_fan_out_edges(start, [a, b])
        .add_fan_in_edges([a, b], end)
        .add_edge(end, start)
        .build()
    )
    await workflow.run(0)
    assert rounds == [[0, 0], [1, 1], [2, 2]]


async def test_a_target_named_by_the_sender_gets_its_message_through_the_fan_in() -> None:
    a, b = sending("a", 1, target_id="end"), sending("b", 2, target_id="end")
    assert (await gathering(a, b, target=ending("end")).build().run(0)).get_outputs() == [[1, 2]]
