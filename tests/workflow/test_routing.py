"""Routing along single, conditional, fan-out, selected and switched edges."""

from typing import Any

import pytest
from tests.workflow.nodes import Context, ending, keeping, node, passing, read, sending, told

from perdure import Case, Default, Executor, InMemoryCheckpointStorage, WorkflowBuilder, WorkflowContext, handler


async def outputs_by_executor(builder: WorkflowBuilder, message: Any) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for event in await builder.build().run(message):
        if event.type == "output":
            assert event.executor_id is not None
            found.setdefault(event.executor_id, []).append(event.data)
    return found


async def test_a_message_arrives_in_the_next_superstep() -> None:
    a, b = passing("a"), ending("b")
    result = await WorkflowBuilder(start_executor=a).add_edge(a, b).build().run(1)
    words = told(result)
    assert words.index("superstep_completed#1") < words.index("executor_invoked(b)")


async def test_messages_arrive_in_the_order_in_which_they_were_sent() -> None:
    a, b = sending("a", 3, 1, 2), ending("b")
    assert await outputs_by_executor(WorkflowBuilder(start_executor=a).add_edge(a, b), 0) == {"b": [3, 1, 2]}


async def test_a_condition_decides_about_each_message() -> None:
    a, big, small = sending("a", 1, 20, 3, 40), ending("big"), ending("small")

    async def is_small(number: int) -> bool:
        return number <= 10

    builder = WorkflowBuilder(start_executor=a).add_edge(a, big, lambda n: n > 10).add_edge(a, small, is_small)
    assert await outputs_by_executor(builder, 0) == {"big": [20, 40], "small": [1, 3]}


async def test_a_condition_gets_the_bare_message() -> None:
    seen: list[Any] = []
    a, b = sending("a", {"n": 1}), ending("b")
    builder = WorkflowBuilder(start_executor=a).add_edge(a, b, lambda message: not seen.append(message))
    await builder.build().run(0)
    assert seen == [{"n": 1}]


async def test_a_condition_is_not_asked_about_a_type_that_its_target_can_not_take() -> None:
    a, b = sending("a", "text", 5), ending("b", takes=int)
    builder = WorkflowBuilder(start_executor=a).add_edge(a, b, lambda n: n > 1)
    assert await outputs_by_executor(builder, 0) == {"b": [5]}


async def test_a_condition_that_raises_fails_the_run_with_its_own_error() -> None:
    def broken(_: object) -> bool:
        raise ZeroDivisionError("in a condition")

    a, b = passing("a"), ending("b")
    workflow = WorkflowBuilder(start_executor=a).add_edge(a, b, broken).build()
    events, error = await read(workflow.run(1, stream=True))
    assert isinstance(error, ZeroDivisionError)
    assert told(events)[-2:] == ["failed", "FAILED"]
    assert "superstep_completed#1" not in told(events)


async def test_a_truthy_answer_is_a_yes() -> None:
    a, b, c = sending("a", [1], []), ending("b"), ending("c")
    answer: Any = len
    builder = WorkflowBuilder(start_executor=a).add_edge(a, b, answer).add_edge(a, c)
    assert await outputs_by_executor(builder, 0) == {"b": [[1]], "c": [[1], []]}


async def test_a_fan_out_reaches_all_targets_that_take_the_type() -> None:
    a, b, c, d = sending("a", 1, "x"), ending("b", takes=int), ending("c", takes=str), ending("d")
    builder = WorkflowBuilder(start_executor=a).add_fan_out_edges(a, [b, c, d])
    assert await outputs_by_executor(builder, 0) == {"b": [1], "c": ["x"], "d": [1, "x"]}


async def test_the_targets_of_a_fan_out_run_in_one_superstep() -> None:
    a, b, c = passing("a"), ending("b"), ending("c")
    result = await WorkflowBuilder(start_executor=a).add_fan_out_edges(a, [b, c]).build().run(1)
    assert [event.iteration for event in result if event.type == "superstep_completed"] == [1, 2]


async def test_a_message_with_a_target_reaches_only_that_one() -> None:
    for kind in ("single", "fan-out"):
        a, b, c = sending("a", 1, target_id="c"), ending("b"), ending("c")
        builder = WorkflowBuilder(start_executor=a)
        if kind == "single":
            builder.add_edge(a, b).add_edge(a, c)
        else:
            builder.add_fan_out_edges(a, [b, c])
        assert await outputs_by_executor(builder, 0) == {"c": [1]}


async def test_the_condition_of_an_edge_holds_for_a_message_with_a_target_too() -> None:
    a, b = sending("a", 1, target_id="b"), ending("b")
    builder = WorkflowBuilder(start_executor=a).add_edge(a, b, lambda n: n > 1)
    assert await outputs_by_executor(builder, 0) == {}


async def test_a_selection_chooses_for_each_message_sync_or_async() -> None:
    def sync_choice(n: int, ids: list[str]) -> list[str]:
        return ids[:n]

    async def async_choice(n: int, ids: list[str]) -> list[str]:
        return ids[:n]

    for choice in (sync_choice, async_choice):
        a, b, c = sending("a", 0, 1, 2), ending("b"), ending("c")
        builder = WorkflowBuilder(start_executor=a).add_multi_selection_edge_group(a, [b, c], choice)
        assert await outputs_by_executor(builder, 0) == {"b": [1, 2], "c": [2]}


async def test_a_selection_is_asked_only_about_messages_that_a_target_can_handle() -> None:
    asked: list[Any] = []

    def choice(message: Any, ids: list[str]) -> list[str]:
        asked.append((message, ids))
        return ids

    a, b, c = sending("a", "x", 1.5), ending("b", takes=int), ending("c", takes=str)
    builder = WorkflowBuilder(start_executor=a).add_multi_selection_edge_group(a, [b, c], choice)
    result = await builder.build().run(0)
    assert result.get_outputs() == ["x"]
    assert asked == [("x", ["b", "c"])]
    assert [event.data.message for event in result if event.type == "undelivered"] == [1.5]


async def test_a_selection_can_not_change_the_group_through_the_list_it_gets() -> None:
    def choice(_: Any, ids: list[str]) -> list[str]:
        return [ids.pop()]

    a, b, c = sending("a", 1, 2, 3), ending("b"), ending("c")
    builder = WorkflowBuilder(start_executor=a).add_multi_selection_edge_group(a, [b, c], choice)
    assert await outputs_by_executor(builder, 0) == {"c": [1, 2, 3]}


async def test_an_id_selected_twice_gets_the_message_once() -> None:
    a, b, c = sending("a", 1), ending("b"), ending("c")
    builder = WorkflowBuilder(start_executor=a).add_multi_selection_edge_group(a, [b, c], lambda _, __: ["b", "b"])
    assert await outputs_by_executor(builder, 0) == {"b": [1]}


async def test_a_selection_of_a_stranger_is_an_error_that_names_it() -> None:
    a, b, c = sending("a", 1), ending("b"), ending("c")
    workflow = WorkflowBuilder(start_executor=a).add_multi_selection_edge_group(a, [b, c], lambda _, __: ["d"]).build()
    with pytest.raises(RuntimeError, match="chose 'd'; it may choose of 'b', 'c'"):
        await workflow.run(0)


@pytest.mark.parametrize("answer", [None, 3, "b"])
async def test_a_selection_that_returns_no_list_is_an_error_that_says_so(answer: Any) -> None:
    a, b, c = sending("a", 1), ending("b"), ending("c")
    workflow = WorkflowBuilder(start_executor=a).add_multi_selection_edge_group(a, [b, c], lambda _, __: answer).build()
    with pytest.raises(RuntimeError, match="must return a list of ids"):
        await workflow.run(0)


async def test_a_target_outside_of_the_selection_gets_nothing_though_it_was_named() -> None:
    a, b, c = sending("a", 1, target_id="c"), ending("b"), ending("c")
    builder = WorkflowBuilder(start_executor=a).add_multi_selection_edge_group(a, [b, c], lambda _, __: ["b"])
    assert await outputs_by_executor(builder, 0) == {}
    a, b, c = sending("a", 1, target_id="c"), ending("b"), ending("c")
    builder = WorkflowBuilder(start_executor=a).add_multi_selection_edge_group(a, [b, c], lambda _, ids: ids)
    assert await outputs_by_executor(builder, 0) == {"c": [1]}


async def test_a_switch_takes_the_first_case_that_holds_or_else_the_default() -> None:
    async def is_big(number: int) -> bool:
        return number > 10

    a, big, even, rest = sending("a", 12, 4, 3), ending("big"), ending("even"), ending("rest")
    cases = [Case(is_big, big), Case(lambda n: n % 2 == 0, even), Default(rest)]
    builder = WorkflowBuilder(start_executor=a).add_switch_case_edge_group(a, cases)
    assert await outputs_by_executor(builder, 0) == {"big": [12], "even": [4], "rest": [3]}


async def test_cases_of_a_switch_may_have_one_target_which_gets_a_message_once() -> None:
    a, extreme, rest = sending("a", 12, 4, -7), ending("extreme"), ending("rest")
    cases = [Case(lambda n: n > 10, extreme), Case(lambda n: abs(n) > 5, extreme), Default(rest)]
    builder = WorkflowBuilder(start_executor=a).add_switch_case_edge_group(a, cases)
    assert await outputs_by_executor(builder, 0) == {"extreme": [12, -7], "rest": [4]}
    a, only = sending("a", 12, 4), ending("only")
    cases = [Case(lambda n: n > 10, only), Default(only)]
    builder = WorkflowBuilder(start_executor=a).add_switch_case_edge_group(a, cases)
    assert await outputs_by_executor(builder, 0) == {"only": [12, 4]}


async def test_a_case_after_the_default_is_still_a_case() -> None:
    a, big, rest = sending("a", 12, 3), ending("big"), ending("rest")
    cases = [Default(rest), Case(lambda n: n > 10, big)]
    builder = WorkflowBuilder(start_executor=a).add_switch_case_edge_group(a, cases)
    assert await outputs_by_executor(builder, 0) == {"big": [12], "rest": [3]}


async def test_a_case_that_raises_about_what_its_target_takes_fails_the_run() -> None:
    def broken(_: int) -> bool:
        raise ZeroDivisionError("in a case")

    a, b, rest = sending("a", 1), ending("b", takes=int), ending("rest")
    workflow = WorkflowBuilder(start_executor=a).add_switch_case_edge_group(a, [Case(broken, b), Default(rest)]).build()
    with pytest.raises(ZeroDivisionError, match="in a case"):
        await workflow.run(0)


async def test_a_case_is_not_asked_about_a_type_that_its_target_can_not_take() -> None:
    a, numbers, rest = sending("a", "x", 12), ending("numbers", takes=int), ending("rest")
    cases = [Case(lambda n: n > 10, numbers), Default(rest)]
    builder = WorkflowBuilder(start_executor=a).add_switch_case_edge_group(a, cases)
    assert await outputs_by_executor(builder, 0) == {"rest": ["x"], "numbers": [12]}


async def test_several_groups_of_one_source_all_get_the_message() -> None:
    a, b, c, d = sending("a", 1), ending("b"), ending("c"), ending("d")
    builder = WorkflowBuilder(start_executor=a).add_edge(a, b).add_fan_out_edges(a, [c, d])
    assert await outputs_by_executor(builder, 0) == {"b": [1], "c": [1], "d": [1]}


async def test_a_loop_runs_until_nothing_is_sent() -> None:
    async def count(n: int, ctx: Context) -> None:
        if n < 5:
            await ctx.send_message(n + 1)
        else:
            await ctx.yield_output(n)

    a = node("a", count)
    result = await WorkflowBuilder(start_executor=a).add_edge(a, a).build().run(0)
    assert result.get_outputs() == [5]
    assert [event.iteration for event in result if event.type == "superstep_completed"] == [1, 2, 3, 4, 5, 6]


async def test_without_outgoing_edges_a_message_goes_nowhere_and_nothing_is_told() -> None:
    result = await WorkflowBuilder(start_executor=passing("a")).build().run(1)
    assert [event.type for event in result if event.type in {"undelivered", "warning"}] == []


async def test_without_a_storage_a_message_is_the_very_object_that_was_sent() -> None:
    class Parcel: ...

    parcel, kept = Parcel(), list[Any]()
    a, b = sending("a", parcel), keeping("b", kept)
    await WorkflowBuilder(start_executor=a).add_edge(a, b).build().run(0)
    assert kept[0] is parcel


async def test_with_a_storage_each_target_gets_a_copy_of_its_own() -> None:
    async def spoil(message: list[int], ctx: Context) -> None:
        message.append(9)
        await ctx.yield_output(len(message))

    a, b, c = sending("a", [1, 2]), node("b", spoil), node("c", spoil)
    builder = WorkflowBuilder(start_executor=a, checkpoint_storage=InMemoryCheckpointStorage())
    assert (await builder.add_fan_out_edges(a, [b, c]).build().run(0)).get_outputs() == [3, 3]


async def test_with_a_storage_a_message_is_fixed_when_its_activation_ends() -> None:
    parcel = [1]

    async def send(_: Any, ctx: Context) -> None:
        await ctx.send_message(parcel)
        parcel.append(2)

    async def meddle(_: Any, __: Context) -> None:
        parcel.append(99)

    kept: list[Any] = []
    start, sender, meddler, end = passing("start"), node("sender", send), node("meddler", meddle), keeping("end", kept)
    builder = WorkflowBuilder(start_executor=start, checkpoint_storage=InMemoryCheckpointStorage())
    await builder.add_fan_out_edges(start, [sender, meddler]).add_edge(sender, end).build().run(0)
    assert kept == [[1, 2]]


async def test_none_is_a_message_like_any_other_between_executors() -> None:
    class Nothing(Executor):
        @handler
        async def go(self, message: None, ctx: WorkflowContext[Any, str]) -> None:
            await ctx.yield_output(f"got {message}")

    a, b = sending("a", None), Nothing("b")
    assert await outputs_by_executor(WorkflowBuilder(start_executor=a).add_edge(a, b), 0) == {"b": ["got None"]}


async def test_a_message_goes_to_the_most_specific_handler() -> None:
    class Sorter(Executor):
        @handler
        async def a_number(self, message: int, ctx: WorkflowContext[Any, str]) -> None:
            await ctx.yield_output(f"number {message}")

        @handler
        async def b_flag(self, message: bool, ctx: WorkflowContext[Any, str]) -> None:  # noqa: FBT001 - a message
            await ctx.yield_output(f"flag {message}")

    a, b = sending("a", 1, True), Sorter("b")  # noqa: FBT003 - messages
    builder = WorkflowBuilder(start_executor=a).add_edge(a, b)
    assert await outputs_by_executor(builder, 0) == {"b": ["number 1", "flag True"]}


class Even(type):
    """Of a class of this kind even numbers are instances, whatever they are."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, int) and instance % 2 == 0


class EvenNumber(metaclass=Even):
    """An even number."""


@pytest.mark.parametrize(
    ("takes", "messages", "taken"),
    [
        (list[int], ([1], ["one"], [2]), [[1], [2]]),
        (dict[str, int], ({"a": 1}, {"a": "b"}, {"c": 2}), [{"a": 1}, {"c": 2}]),
        (EvenNumber, (2, 3, 4), [2, 4]),
        (int, (1, "one", 2, True), [1, 2, True]),
    ],
    ids=["list", "dict", "metaclass", "class"],
)
async def test_messages_of_one_class_are_told_apart_by_what_they_hold(
    takes: Any, messages: tuple[Any, ...], taken: list[Any]
) -> None:
    a, b = sending("a", *messages), ending("b", takes=takes)
    assert await outputs_by_executor(WorkflowBuilder(start_executor=a).add_edge(a, b), 0) == {"b": taken}


@pytest.mark.parametrize(
    ("takes", "messages", "gathered"),
    [
        (list[int], (1, "one", True), [1, True]),
        (list[list[int]], ([1], ["one"], [2]), [[1], [2]]),
        (list[EvenNumber], (2, 3, 4), [2, 4]),
        (list[Any], (1, "one"), [1, "one"]),
    ],
    ids=["class", "list", "metaclass", "any"],
)
async def test_what_is_gathered_is_told_apart_by_what_it_holds(
    takes: Any, messages: tuple[Any, ...], gathered: list[Any]
) -> None:
    begin, a, b, end = passing("begin"), sending("a", *messages), sending("b", messages[0]), ending("end", takes=takes)
    builder = WorkflowBuilder(start_executor=begin).add_fan_out_edges(begin, [a, b]).add_fan_in_edges([a, b], end)
    assert await outputs_by_executor(builder, 0) == {"end": [[*gathered, messages[0]]]}
