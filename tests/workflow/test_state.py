"""Shared state, private state and named scopes."""

import operator
import threading
from typing import Any, Literal

import pytest
from tests.workflow.nodes import Context, Doing, MaybeStorage, live_and_checkpointed, node, passing, read, sending, told

from perdure import (
    InMemoryCheckpointStorage,
    StateConflictError,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowEvent,
    executor,
)
from perdure.codec import Codec


async def collected(builder: WorkflowBuilder, message: Any = 0) -> list[Any]:
    return (await builder.build().run(message)).get_outputs()


def in_a_row(*steps: Doing, **options: Any) -> WorkflowBuilder:
    """Executors named a, b, c ... one after the other; each passes its message on."""

    def then(do: Doing) -> Doing:
        async def both(message: Any, ctx: Context) -> None:
            await do(message, ctx)
            await ctx.send_message(message)

        return both

    nodes = [node(name, then(do)) for name, do in zip("abcdef", steps, strict=False)]
    builder = WorkflowBuilder(start_executor=nodes[0], **options)
    return builder.add_chain(nodes) if len(nodes) > 1 else builder


def at_once(*steps: Doing, then: Doing, **options: Any) -> WorkflowBuilder:
    """Executors a, b, c ... in one superstep, and one more after them."""

    async def last_too(message: Any, ctx: Context) -> None:
        await steps[-1](message, ctx)
        await ctx.send_message(message)

    nodes = [node(name, do) for name, do in zip("abcdef", [*steps[:-1], last_too], strict=False)]
    start, end = passing("start"), node("end", then)
    builder = WorkflowBuilder(start_executor=start, **options).add_fan_out_edges(start, nodes)
    return builder.add_edge(nodes[-1], end)


def setting(key: str, value: Any) -> Doing:
    async def do(_: Any, ctx: Context) -> None:
        ctx.set_state(key, value)

    return do


def yielding(*keys: str) -> Doing:
    async def do(_: Any, ctx: Context) -> None:
        for key in keys:
            await ctx.yield_output(ctx.get_state(key))

    return do


@live_and_checkpointed
async def test_what_was_written_is_seen_from_the_next_superstep_on(storage: MaybeStorage) -> None:
    builder = in_a_row(setting("k", 1), yielding("k"), setting("k", 2), yielding("k"), checkpoint_storage=storage())
    assert await collected(builder) == [1, 2]


@live_and_checkpointed
async def test_an_absent_key_has_the_default(storage: MaybeStorage) -> None:
    async def do(_: Any, ctx: Context) -> None:
        await ctx.yield_output((ctx.get_state("no"), ctx.get_state("no", 7), ctx.state.get("no", 8)))

    assert await collected(in_a_row(do, checkpoint_storage=storage())) == [(None, 7, 8)]


@live_and_checkpointed
async def test_an_activation_sees_its_own_writes_at_once(storage: MaybeStorage) -> None:
    async def do(_: Any, ctx: Context) -> None:
        ctx.set_state("k", 1)
        await ctx.yield_output((ctx.get_state("k"), ctx.state.has("k"), ctx.state.keys()))
        ctx.state.delete("k")
        await ctx.yield_output((ctx.get_state("k"), ctx.state.has("k"), ctx.state.keys()))

    assert await collected(in_a_row(do, checkpoint_storage=storage())) == [(1, True, ["k"]), (None, False, [])]


@live_and_checkpointed
async def test_another_executor_of_the_same_superstep_does_not_see_a_write(storage: MaybeStorage) -> None:
    seen: list[Any] = []

    async def look(_: Any, ctx: Context) -> None:
        seen.append(ctx.get_state("k", "nothing"))

    await collected(at_once(setting("k", 1), look, then=yielding("k"), checkpoint_storage=storage()))
    assert seen == ["nothing"]


@live_and_checkpointed
async def test_a_later_activation_of_the_same_executor_sees_the_earlier_writes(storage: MaybeStorage) -> None:
    async def count(_: Any, ctx: Context) -> None:
        ctx.set_state("n", ctx.get_state("n", 0) + 1)
        await ctx.yield_output(ctx.get_state("n"))

    start, target = sending("start", "x", "y", "z"), node("t", count)
    builder = WorkflowBuilder(start_executor=start, checkpoint_storage=storage()).add_edge(start, target)
    assert await collected(builder) == [1, 2, 3]


@live_and_checkpointed
async def test_a_later_activation_of_the_same_executor_sees_an_earlier_removal(storage: MaybeStorage) -> None:
    async def do(message: str, ctx: Context) -> None:
        match message:
            case "set":
                ctx.set_state("k", 1)
            case "delete":
                ctx.state.delete("k")
            case _:
                await ctx.yield_output((ctx.get_state("k"), ctx.state.has("k"), ctx.state.keys()))

    start, target = sending("start", "set", "delete", "look"), node("t", do)
    builder = WorkflowBuilder(start_executor=start, checkpoint_storage=storage()).add_edge(start, target)
    assert await collected(builder) == [(None, False, [])]


@live_and_checkpointed
async def test_a_mutable_value_is_handed_out_as_a_copy_that_is_kept_only_if_it_is_set(storage: MaybeStorage) -> None:
    async def change(_: Any, ctx: Context) -> None:
        ctx.get_state("items").append("lost")

    async def change_and_set(_: Any, ctx: Context) -> None:
        items = ctx.get_state("items")
        items.append("kept")
        ctx.set_state("items", items)

    builder = in_a_row(
        setting("items", ["first"]),
        change,
        yielding("items"),
        change_and_set,
        yielding("items"),
        checkpoint_storage=storage(),
    )
    assert await collected(builder) == [["first"], ["first", "kept"]]


@live_and_checkpointed
async def test_what_the_writer_does_to_a_value_after_setting_it_is_not_kept(storage: MaybeStorage) -> None:
    async def do(_: Any, ctx: Context) -> None:
        items, nested = ["set"], {"inside": ["set"]}
        ctx.set_state("items", items)
        ctx.set_state("nested", nested)
        items.append("after set")
        nested["inside"].append("after set")
        seen = ctx.get_state("items")
        seen.append("after get")
        await ctx.yield_output(ctx.get_state("items"))
        assert ctx.state.export_state() == {"items": ["set"], "nested": {"inside": ["set"]}}

    builder = in_a_row(do, yielding("items", "nested"), checkpoint_storage=storage())
    assert await collected(builder) == [["set"], ["set"], {"inside": ["set"]}]


@pytest.mark.parametrize("on_checkpoint_error", ["stop", "warn"])
@live_and_checkpointed
async def test_a_value_that_can_not_be_copied_is_refused_when_it_is_set(
    storage: MaybeStorage, on_checkpoint_error: Literal["stop", "warn"]
) -> None:
    async def do(_: Any, ctx: Context) -> None:
        ctx.set_state("kept", 1)
        with pytest.raises(TypeError, match=r"state\['lock'\] can't be stored: .*lock"):
            ctx.set_state("lock", threading.Lock())
        await ctx.yield_output(sorted(ctx.state.keys()))

    builder = in_a_row(do, checkpoint_storage=storage(), on_checkpoint_error=on_checkpoint_error)
    assert await collected(builder) == [["kept"]]


async def test_a_value_is_encoded_once_when_it_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    paths: list[str] = []
    encode = Codec.encode

    def counted(codec: Codec, value: object, *, path: str, is_canonical: bool = False) -> Any:
        paths.append(path)
        return encode(codec, value, path=path, is_canonical=is_canonical)

    monkeypatch.setattr(Codec, "encode", counted)
    await collected(in_a_row(setting("items", [1, 2]), checkpoint_storage=InMemoryCheckpointStorage()))
    assert paths.count("state['items']") == 1


@live_and_checkpointed
async def test_deleting_forgets_the_key_and_an_absent_key_is_a_key_error(storage: MaybeStorage) -> None:
    async def delete(_: Any, ctx: Context) -> None:
        ctx.state.delete("k")
        with pytest.raises(KeyError, match="k"):
            ctx.state.delete("k")
        with pytest.raises(KeyError, match="other"):
            ctx.state.delete("other")

    async def look(_: Any, ctx: Context) -> None:
        await ctx.yield_output((ctx.state.has("k"), ctx.get_state("k", "gone")))

    builder = in_a_row(setting("k", 1), delete, look, checkpoint_storage=storage())
    assert await collected(builder) == [(False, "gone")]


@live_and_checkpointed
async def test_the_whole_state_can_be_exported_imported_and_cleared(storage: MaybeStorage) -> None:
    async def fill(_: Any, ctx: Context) -> None:
        ctx.state.import_state({"a": 1, "b": [2]})

    async def look(_: Any, ctx: Context) -> None:
        await ctx.yield_output(ctx.state.export_state())

    async def clear(_: Any, ctx: Context) -> None:
        ctx.state.clear()

    builder = in_a_row(fill, look, clear, look, checkpoint_storage=storage())
    assert await collected(builder) == [{"a": 1, "b": [2]}, {}]


async def test_a_key_is_a_string() -> None:
    async def do(_: Any, ctx: Context) -> None:
        key: Any = 3
        ctx.set_state(key, 1)

    with pytest.raises(TypeError, match="a state key must be a str, not 3"):
        await collected(in_a_row(do))


@live_and_checkpointed
async def test_of_two_writers_the_later_in_the_plan_wins_and_a_warning_names_both(storage: MaybeStorage) -> None:
    builder = at_once(setting("k", "a"), setting("k", "b"), then=yielding("k"), checkpoint_storage=storage())
    result = await builder.build().run(0)
    assert result.get_outputs() == ["b"]
    (warning,) = [event.data for event in result if event.type == "warning"]
    assert "'k'" in warning
    assert "'a' and 'b'" in warning


async def test_two_writers_of_different_keys_or_in_different_supersteps_do_not_conflict() -> None:
    result = await at_once(setting("k", 1), setting("j", 1), then=setting("k", 2)).build().run(0)
    assert [event for event in result if event.type == "warning"] == []


@live_and_checkpointed
async def test_a_strict_workflow_makes_an_error_of_two_writers_and_keeps_nothing(storage: MaybeStorage) -> None:
    builder = at_once(
        *(setting("k", "a"), setting("k", "b")),
        then=yielding("k"),
        state_conflicts="strict",
        checkpoint_storage=storage(),
    )
    events, error = await read(builder.build().run(0, stream=True))
    assert isinstance(error, StateConflictError)
    assert (error.key, error.executor_ids) == ("k", ("a", "b"))
    assert [word for word in told(events) if word.startswith("superstep_completed")] == ["superstep_completed#1"]


@live_and_checkpointed
async def test_a_reducer_merges_the_writes_of_a_superstep_into_the_committed_value(storage: MaybeStorage) -> None:
    builder = at_once(
        *(setting("n", 1), setting("n", 10), setting("n", 100)),
        then=yielding("n"),
        reducers={"n": operator.add},
        state_conflicts="strict",
        checkpoint_storage=storage(),
    )
    workflow = builder.build()
    first, second = await workflow.run(0), await workflow.run(0)
    assert (first.get_outputs(), second.get_outputs()) == ([111], [222])
    assert [event for event in (*first, *second) if event.type == "warning"] == []


@live_and_checkpointed
async def test_a_writer_sees_what_a_reducer_makes_of_its_own_writes(storage: MaybeStorage) -> None:
    async def twice(_: Any, ctx: Context) -> None:
        ctx.set_state("n", 1)
        await ctx.yield_output(ctx.get_state("n"))
        ctx.set_state("n", 2)
        await ctx.yield_output(ctx.get_state("n"))

    builder = in_a_row(twice, yielding("n"), reducers={"n": operator.add}, checkpoint_storage=storage())
    assert await collected(builder) == [1, 3, 3]


@live_and_checkpointed
async def test_a_reducer_that_changes_what_it_is_given_does_no_harm(storage: MaybeStorage) -> None:
    mine = ["mine"]

    async def twice(_: Any, ctx: Context) -> None:
        ctx.set_state("log", mine)
        ctx.set_state("log", ["more"])

    def extend(log: list[str], more: list[str]) -> list[str]:
        log.extend(more)
        return log

    builder = at_once(
        *(twice, setting("log", ["other"])),
        then=yielding("log"),
        reducers={"log": extend},
        checkpoint_storage=storage(),
    )
    workflow = builder.build()
    assert (await workflow.run(0)).get_outputs() == [["mine", "more", "other"]]
    assert (await workflow.run(0)).get_outputs() == [["mine", "more", "other"] * 2]
    assert mine == ["mine"]


@live_and_checkpointed
async def test_the_error_of_a_reducer_is_not_taken_for_an_absent_key(storage: MaybeStorage) -> None:
    def broken(_: dict[str, int], __: dict[str, int]) -> dict[str, int]:
        raise KeyError("in the reducer")

    builder = in_a_row(setting("d", {}), setting("d", {}), reducers={"d": broken}, checkpoint_storage=storage())
    with pytest.raises(KeyError, match="in the reducer"):
        await collected(builder)


@live_and_checkpointed
async def test_a_removed_key_begins_anew_for_its_reducer(storage: MaybeStorage) -> None:
    async def reset(_: Any, ctx: Context) -> None:
        ctx.state.delete("n")
        ctx.set_state("n", 5)
        await ctx.yield_output(ctx.get_state("n"))

    async def remove(_: Any, ctx: Context) -> None:
        ctx.state.delete("n")

    builder = in_a_row(
        *(setting("n", 1), reset, yielding("n"), remove, yielding("n")),
        reducers={"n": operator.add},
        checkpoint_storage=storage(),
    )
    assert await collected(builder) == [5, 5, None]


@live_and_checkpointed
async def test_a_private_scope_is_seen_by_its_executor_alone(storage: MaybeStorage) -> None:
    async def count(_: Any, ctx: Context) -> None:
        own = ctx.scope()
        own.set("n", own.get("n", 0) + 1)
        await ctx.yield_output((own.get("n"), ctx.get_state("n")))

    workflow = at_once(count, count, then=count, checkpoint_storage=storage()).build()
    first, second = await workflow.run(0), await workflow.run(0)
    assert first.get_outputs() == [(1, None)] * 3
    assert second.get_outputs() == [(2, None)] * 3
    assert [event for event in first if event.type == "warning"] == []


@live_and_checkpointed
async def test_a_named_scope_is_shared_by_those_who_name_it(storage: MaybeStorage) -> None:
    async def write(_: Any, ctx: Context) -> None:
        ctx.scope("cart").set("item", "book")
        ctx.scope("other").set("item", "pen")
        ctx.set_state("item", "shared")

    async def look(_: Any, ctx: Context) -> None:
        await ctx.yield_output((ctx.scope("cart").get("item"), ctx.scope("other").get("item"), ctx.get_state("item")))
        await ctx.yield_output((ctx.scope("cart").keys(), ctx.scope().keys(), ctx.state.keys()))

    assert await collected(in_a_row(write, look, checkpoint_storage=storage())) == [
        ("book", "pen", "shared"),
        (["item"], [], ["item"]),
    ]


async def test_two_writers_of_a_named_scope_conflict_though_the_shared_key_has_a_reducer() -> None:
    def writing(value: int) -> Doing:
        async def do(_: Any, ctx: Context) -> None:
            ctx.scope("s").set("n", value)

        return do

    builder = at_once(writing(1), writing(2), then=yielding("n"), reducers={"n": operator.add})
    result = await builder.build().run(0)
    assert len([event for event in result if event.type == "warning"]) == 1


async def test_a_scope_without_a_name_in_its_name_is_refused() -> None:
    async def do(_: Any, ctx: Context) -> None:
        ctx.scope("")

    with pytest.raises(ValueError, match="a scope's name must not be empty"):
        await collected(in_a_row(do))


@live_and_checkpointed
async def test_state_goes_on_in_the_next_turn(storage: MaybeStorage) -> None:
    async def count(_: Any, ctx: Context) -> None:
        ctx.set_state("n", ctx.get_state("n", 0) + 1)
        await ctx.yield_output(ctx.get_state("n"))

    workflow = in_a_row(count, checkpoint_storage=storage()).build()
    assert [(await workflow.run(0)).get_outputs() for _ in range(3)] == [[1], [2], [3]]


async def test_the_state_of_a_checkpointed_run_can_not_be_changed_through_what_was_set() -> None:
    items = ["first"]

    async def set_and_keep(_: Any, ctx: Context) -> None:
        ctx.set_state("items", items)

    async def meddle(_: Any, ctx: Context) -> None:
        items.append("meddled")
        await ctx.yield_output(ctx.get_state("items"))

    builder = in_a_row(set_and_keep, meddle, checkpoint_storage=InMemoryCheckpointStorage())
    assert await collected(builder) == [["first"]]


async def test_a_sync_function_can_use_the_state() -> None:
    @executor
    def write(message: int, ctx: WorkflowContext[int]) -> None:
        ctx.set_state("k", message)

    workflow = WorkflowBuilder(start_executor=write).build()
    result = await workflow.run(4)
    assert [event for event in result if event.type == "warning"] == []
    assert isinstance(result[0], WorkflowEvent)
