"""The `WorkflowContext` that a handler gets."""

from typing import Any

import pytest
from tests.workflow.nodes import Context, ending, node, passing, sending

from perdure import (
    Executor,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowEvent,
    WorkflowEventSource,
    WorkflowExecutor,
    WorkflowRunState,
    handler,
    response_handler,
)
from perdure.events import WorkflowErrorDetails


async def test_the_first_input_comes_from_outside() -> None:
    seen: list[Any] = []

    async def look(_: Any, ctx: Context) -> None:
        seen.append((ctx.source_executor_ids, ctx.get_source_executor_id(), ctx.request_id))

    await WorkflowBuilder(start_executor=node("a", look)).build().run(1)
    assert seen == [(["internal:a"], "internal:a", None)]


async def test_a_handler_knows_its_run_and_inside_of_a_sub_workflow_the_way_to_it() -> None:
    seen: list[str] = []

    async def look(message: Any, ctx: Context) -> None:
        seen.append(ctx.run_id)
        await ctx.send_message(message)

    inner = WorkflowBuilder(start_executor=node("in", look)).build()
    a, sub = node("a", look), WorkflowExecutor(inner, id="sub")
    workflow = WorkflowBuilder(start_executor=a).add_edge(a, sub).build()
    await workflow.run(1, run_id="r7")
    assert seen == ["r7", "r7/sub"]


async def test_a_message_comes_from_its_sender() -> None:
    seen: list[Any] = []

    async def look(_: Any, ctx: Context) -> None:
        seen.append((ctx.source_executor_ids, ctx.get_source_executor_id()))

    a, b = passing("a"), node("b", look)
    await WorkflowBuilder(start_executor=a).add_edge(a, b).build().run(1)
    assert seen == [(["a"], "a")]


async def test_an_answer_comes_from_outside_with_the_id_of_its_request() -> None:
    seen: list[Any] = []

    class Asker(Executor):
        @handler
        async def ask(self, message: str, ctx: WorkflowContext) -> None:
            await ctx.request_info(message, str, request_id="r1")

        @response_handler
        async def on(self, request: str, response: str, ctx: WorkflowContext) -> None:
            seen.append((request, response, ctx.request_id, ctx.source_executor_ids))

    workflow = WorkflowBuilder(start_executor=Asker("asker")).build()
    await workflow.run("why?")
    await workflow.run(responses={"r1": "because"})
    assert seen == [("why?", "because", "r1", ["internal:asker"])]


async def test_a_context_remembers_what_this_call_sent_and_yielded() -> None:
    seen: list[Any] = []

    async def do(message: Any, ctx: Context) -> None:
        await ctx.send_message(message)
        await ctx.send_message("two", "b")
        await ctx.yield_output("out")
        seen.append((ctx.get_sent_messages(), ctx.get_yielded_outputs()))
        ctx.get_sent_messages().clear()
        ctx.get_yielded_outputs().clear()

    a, b = node("a", do), ending("b")
    result = await WorkflowBuilder(start_executor=a).add_edge(a, b).build().run("one")
    assert seen == [(["one", "two"], ["out"])]
    assert result.get_outputs() == ["out", "one", "two"]


async def test_what_is_sent_and_yielded_is_not_checked_against_the_declaration() -> None:
    class Liar(Executor):
        @handler
        async def go(self, message: int, ctx: WorkflowContext[int, int]) -> None:
            del message
            surprise: Any = "text"
            await ctx.send_message(surprise)
            await ctx.yield_output(surprise)

    liar, end = Liar("liar"), ending("end")
    assert (await WorkflowBuilder(start_executor=liar).add_edge(liar, end).build().run(1)).get_outputs() == [
        "text",
        "text",
    ]


async def test_an_event_of_a_users_own_kind_is_told_as_it_is() -> None:
    event = WorkflowEvent("database_event", {"rows": 3})

    async def do(_: Any, ctx: Context) -> None:
        await ctx.add_event(event)

    result = await WorkflowBuilder(start_executor=node("a", do)).build().run(1)
    assert any(told is event for told in result)


FORBIDDEN: list[WorkflowEvent[Any]] = [
    WorkflowEvent("output", 1),
    WorkflowEvent("intermediate", 1),
    WorkflowEvent.started(),
    WorkflowEvent.status(WorkflowRunState.IDLE),
    WorkflowEvent.failed(WorkflowErrorDetails("E", "m")),
]


@pytest.mark.parametrize("event", FORBIDDEN, ids=lambda event: event.type)
async def test_a_kind_that_only_the_engine_tells_becomes_a_warning(event: WorkflowEvent[Any]) -> None:
    async def do(_: Any, ctx: Context) -> None:
        await ctx.add_event(event)

    result = await WorkflowBuilder(start_executor=node("a", do)).build().run(1, include_status_events=True)
    (warning,) = [told for told in result if told.type == "warning"]
    assert f"a {event.type!r} event" in warning.data or f"an {event.type!r} event" in warning.data
    assert warning.origin is WorkflowEventSource.EXECUTOR
    assert all(told is not event for told in result)


async def test_warnings_and_errors_may_be_told_and_do_not_end_the_run() -> None:
    async def do(_: Any, ctx: Context) -> None:
        await ctx.add_event(WorkflowEvent.warning("careful"))
        await ctx.add_event(WorkflowEvent.error(ValueError("not fatal")))
        await ctx.yield_output("done")

    result = await WorkflowBuilder(start_executor=node("a", do)).build().run(1)
    assert [event.type for event in result if event.type in {"warning", "error"}] == ["warning", "error"]
    assert result.get_outputs() == ["done"]


async def test_a_context_can_be_handed_to_helpers() -> None:
    async def helper(ctx: Context, message: Any) -> None:
        await ctx.send_message(message)

    async def do(message: Any, ctx: Context) -> None:
        await helper(ctx, message)

    a, b = node("a", do), ending("b")
    assert (await WorkflowBuilder(start_executor=a).add_edge(a, b).build().run(1)).get_outputs() == [1]


async def test_a_context_that_outlives_its_call_refuses_and_changes_nothing() -> None:
    contexts: list[Context] = []

    async def keep(message: Any, ctx: Context) -> None:
        contexts.append(ctx)
        await ctx.send_message(message)

    async def late(message: Any, ctx: Context) -> None:
        with pytest.raises(RuntimeError, match="'a' has returned"):
            contexts[0].set_state("k", "late")
        with pytest.raises(RuntimeError, match="'a' has returned"):
            await contexts[0].send_message("late")
        with pytest.raises(RuntimeError, match="'a' has returned"):
            await contexts[0].yield_output("late")
        await ctx.yield_output((message, ctx.get_state("k")))

    a, b = node("a", keep), node("b", late)
    result = await WorkflowBuilder(start_executor=a).add_edge(a, b).build().run(1)
    assert result.get_outputs() == [(1, None)]


async def test_several_messages_of_one_call_are_several_calls_of_the_target() -> None:
    a, b = sending("a", 1, 1, 1), ending("b")
    result = await WorkflowBuilder(start_executor=a).add_edge(a, b).build().run(0)
    assert len([event for event in result if event.type == "executor_invoked" and event.executor_id == "b"]) == 3
