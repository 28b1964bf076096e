"""Attempts that were discarded: what they showed is not part of a result, and a stream says so."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.activation.solo import lone

from perdure import (
    Executor,
    InMemoryCheckpointStorage,
    Message,
    Retry,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowEvent,
    WorkflowExecutor,
    handler,
    response_handler,
)
from perdure.agents import (
    Agent,
    AgentExecutor,
    AgentResponse,
    AgentSession,
    BaseChatClient,
    ChatResponse,
    ChatResponseUpdate,
    Content,
)
from perdure.testing.clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

_AT_ONCE = Retry(3, 0)


class Asker(Executor):
    """Yields, asks, and fails as often as told."""

    def __init__(self, failures: int, **options: Any) -> None:
        super().__init__("asker", **options)
        self.failures = failures

    @handler
    async def begin(self, message: str, ctx: WorkflowContext[Any, str]) -> None:
        await ctx.yield_output("before")
        await ctx.request_info(message, str)
        if self.failures:
            self.failures -= 1
            raise ConnectionError("down")
        await ctx.yield_output("after")

    @handler
    async def begin_as_agent(self, messages: list[Message], ctx: WorkflowContext[Any, str]) -> None:
        await self.begin(messages[-1].text, ctx)

    @response_handler
    async def end(self, request: str, answer: str, ctx: WorkflowContext[Any, str]) -> None:
        del request
        await ctx.yield_output(answer)


async def yields_and_sleeps(messages: list[Message], ctx: WorkflowContext[Any, str]) -> None:
    await ctx.yield_output("before ")
    await ctx.sleep(60)
    await ctx.yield_output(f"after {messages[-1].text}")


def words(workflow_events: list[WorkflowEvent[Any]]) -> list[Any]:
    return [event.data for event in workflow_events if event.type == "output"]


@pytest.mark.parametrize("stream", [False, True])
async def test_an_output_before_a_sleep_is_in_the_result_once(*, stream: bool) -> None:
    storage, clock = InMemoryCheckpointStorage(), ManualClock(skips=True)
    workflow = lone(yields_and_sleeps, storage=storage, clock=clock)
    running: Any = workflow.run([Message("user", ["hi"])], stream=stream)
    result = await (running.get_final_response() if stream else running)
    assert result.get_outputs() == ["before ", "after hi"]
    assert workflow.run_id is not None
    committed = [event async for event in storage.events(workflow.run_id)]
    assert words(committed) == ["before ", "after hi"]
    assert "attempt_discarded" not in {event.type for event in [*result, *committed]}


async def test_a_result_before_the_wake_up_has_no_output_of_the_suspended_handler() -> None:
    workflow = lone(yields_and_sleeps, storage=InMemoryCheckpointStorage(), clock=ManualClock(skips=True))
    result = await workflow.run([Message("user", ["hi"])], wait_for_timers=False)
    assert result.get_outputs() == []
    result = await workflow.run(run_id=workflow.run_id)
    assert result.get_outputs() == ["before ", "after hi"]


@pytest.mark.parametrize("storage", [None, InMemoryCheckpointStorage()])
@pytest.mark.parametrize("stream", [False, True])
async def test_outputs_and_requests_of_a_failed_attempt_are_not_in_the_result(storage: Any, *, stream: bool) -> None:
    workflow = WorkflowBuilder(start_executor=Asker(2, retry=_AT_ONCE), checkpoint_storage=storage).build()
    running: Any = workflow.run("who?", stream=stream)
    result = await (running.get_final_response() if stream else running)
    assert result.get_outputs() == ["before", "after"]
    [request] = result.get_request_info_events()
    assert (await workflow.run(responses={request.request_id: "me"})).get_outputs() == ["me"]


async def test_a_stream_says_that_an_attempt_is_discarded_before_it_shows_the_next() -> None:
    workflow = WorkflowBuilder(start_executor=Asker(1, retry=_AT_ONCE)).build()
    events = [event async for event in workflow.run("who?", stream=True)]
    shown = {"output", "request_info", "attempt_discarded"}
    assert [event.type for event in events if event.type in shown] == [
        *("output", "request_info", "attempt_discarded"),
        *("output", "request_info", "output"),
    ]
    [discarded] = [event for event in events if event.type == "attempt_discarded"]
    assert discarded.executor_id == "asker"
    assert [event.type for event in discarded.discards] == ["output", "request_info"]


async def test_a_message_that_goes_to_the_error_executor_leaves_no_output() -> None:
    class Clerk(Executor):
        @handler
        async def take(self, message: Any, ctx: WorkflowContext[Any, str]) -> None:
            del message
            await ctx.yield_output("handled")

    clerk = Clerk("clerk")
    asker = Asker(9, retry=Retry(2, 0), on_error=clerk)
    result = await WorkflowBuilder(start_executor=asker).add_edge(asker, clerk).build().run("who?")
    assert result.get_outputs() == ["handled"]
    assert result.get_request_info_events() == []


@pytest.mark.parametrize("storage", [None, InMemoryCheckpointStorage()])
async def test_discarded_attempts_inside_a_sub_workflow_are_not_in_the_result(storage: Any) -> None:
    inner = WorkflowBuilder(start_executor=Asker(1, retry=_AT_ONCE)).build()
    outer = WorkflowExecutor(inner, "outer", allow_direct_output=True, propagate_request=True)
    result = await WorkflowBuilder(start_executor=outer, checkpoint_storage=storage).build().run("who?")
    inside = [event.data.type for event in result if event.type == "sub_workflow"]
    assert (inside.count("output"), inside.count("request_info")) == (2, 1)
    assert result.get_outputs() == ["before", "after"]
    assert len(result.get_request_info_events()) == 1


@pytest.mark.parametrize("storage", [None, InMemoryCheckpointStorage()])
async def test_a_sub_workflow_that_is_tried_again_shows_each_event_once(storage: Any) -> None:
    class First(Executor):
        @handler
        async def go(self, message: str, ctx: WorkflowContext[str, str]) -> None:
            await ctx.yield_output("first")
            await ctx.send_message(message)

    first, asker = First("first"), Asker(1)
    inner = WorkflowBuilder(start_executor=first).add_edge(first, asker).build()
    outer = WorkflowExecutor(inner, "outer", allow_direct_output=True, propagate_request=True, retry=_AT_ONCE)
    result = await WorkflowBuilder(start_executor=outer, checkpoint_storage=storage).build().run("who?")
    inside = [event.data for event in result if event.type == "sub_workflow"]
    assert [event.data for event in inside if event.type == "output"] == ["first", "before", "after"]
    assert result.get_outputs() == ["first", "before", "after"]


async def test_an_event_of_a_handler_that_slept_is_in_the_result_once() -> None:
    async def do(_: str, ctx: WorkflowContext[Any, str]) -> None:
        await ctx.add_event(WorkflowEvent("progress", "half"))
        await ctx.sleep(60)
        await ctx.add_event(WorkflowEvent("progress", "all"))

    workflow = lone(do, storage=InMemoryCheckpointStorage(), clock=ManualClock(skips=True))
    result = await workflow.run("go")
    assert [event.data for event in result if event.type == "progress"] == ["half", "all"]


async def test_a_cancelled_run_has_no_output_of_the_superstep_that_was_stopped() -> None:
    storage = InMemoryCheckpointStorage()

    async def do(_: str, ctx: WorkflowContext[Any, str]) -> None:
        await ctx.yield_output("half")
        await storage.cancel(ctx.activation.run_id, reason="enough")
        await ctx.step("wait", forever)

    async def forever() -> None:
        await asyncio.Event().wait()

    result = await lone(do, storage=storage).run("go")
    assert result.get_outputs() == []


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("storage", [None, InMemoryCheckpointStorage()])
async def test_an_agent_made_of_a_workflow_has_the_words_of_the_last_attempt_alone(
    storage: Any, *, stream: bool
) -> None:
    agent = WorkflowBuilder(start_executor=Asker(1, retry=_AT_ONCE), checkpoint_storage=storage).build().as_agent("a")
    session = AgentSession()
    response = await answer(agent, "who?", session, stream=stream)
    assert response.text == "beforeafter"
    assert len(requests_in(response.messages)) == 1
    history = session.state["in_memory"]["messages"]
    assert [message.text for message in history if message.text] == ["who?", "before", "after"]
    assert len(requests_in(history)) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_an_agent_made_of_a_workflow_that_sleeps_says_nothing_twice(*, stream: bool) -> None:
    workflow = lone(yields_and_sleeps, storage=InMemoryCheckpointStorage(), clock=ManualClock(skips=True))
    response = await answer(workflow.as_agent("a"), "hi", AgentSession(), stream=stream)
    assert response.text == "before after hi"


def requests_in(messages: list[Message]) -> list[Content]:
    return [content for message in messages for content in message.contents if content.type == "function_call"]


async def answer(agent: Any, text: str, session: AgentSession | None, *, stream: bool) -> AgentResponse[Any]:
    running = agent.run(text, session=session, stream=stream)
    return await (running.get_final_response() if stream else running)


class CutClient(BaseChatClient):
    """A model whose stream breaks off after some words, the first time."""

    is_broken = True

    def _inner_get_response(self, *, stream: bool = False, **_: Any) -> Any:
        async def updates() -> AsyncGenerator[ChatResponseUpdate]:
            is_broken, self.is_broken = self.is_broken, False
            for word in ("bad ", "half") if is_broken else ("the ", "answer"):
                yield ChatResponseUpdate(contents=[Content.from_text(word)], role="assistant")
            if is_broken:
                raise ConnectionError("cut off")

        return updates() if stream else ChatResponse.from_update_generator(updates())


def cut_workflow(storage: Any) -> Any:
    node = AgentExecutor(Agent(CutClient(), name="a"), retry=_AT_ONCE)
    return WorkflowBuilder(start_executor=node, checkpoint_storage=storage).build()


@pytest.mark.parametrize("storage", [None, InMemoryCheckpointStorage()])
async def test_the_half_of_a_stream_that_was_cut_off_is_not_in_the_result(storage: Any) -> None:
    result = await cut_workflow(storage).run("go", stream=True).get_final_response()
    assert "".join(update.text for update in result.get_outputs()) == "the answer"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("storage", [None, InMemoryCheckpointStorage()])
async def test_the_half_of_a_stream_that_was_cut_off_is_not_said_by_an_agent(storage: Any, *, stream: bool) -> None:
    session = AgentSession()
    response = await answer(cut_workflow(storage).as_agent("a"), "go", session, stream=stream)
    assert response.text == "the answer"
    assert [message.text for message in session.state["in_memory"]["messages"]] == ["go", "the answer"]


@pytest.mark.parametrize("storage", [None, InMemoryCheckpointStorage()])
async def test_the_half_of_a_stream_inside_an_agent_that_is_a_workflow_is_taken_back_outside(storage: Any) -> None:
    inner = cut_workflow(None).as_agent("inner")
    workflow = WorkflowBuilder(start_executor=AgentExecutor(inner), checkpoint_storage=storage).build()
    stream = workflow.run("go", stream=True)
    seen = [event async for event in stream]
    assert "attempt_discarded" in {event.type for event in seen}
    result = await stream.get_final_response()
    assert "".join(update.text for update in result.get_outputs()) == "the answer"
