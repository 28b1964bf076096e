"""A functional workflow is run, resumed, hosted and forked as any other; its runs are their own."""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING, Any

import pytest

from perdure import (
    Agent,
    AgentExecutor,
    Host,
    InMemoryCheckpointStorage,
    Message,
    RunContext,
    Secret,
    Workflow,
    WorkflowBuilder,
    WorkflowEvent,
    WorkflowException,
    WorkflowRunState,
    get_run_context,
    step,
    workflow,
)
from perdure.testing import ScriptedChatClient

if TYPE_CHECKING:
    from perdure.storage import StoreStorage as Storage


@workflow
async def counter(text: str, ctx: RunContext) -> int:
    """Counts in its state."""
    ctx.set_state("count", ctx.get_state("count", 0) + 1)
    await ctx.add_event(WorkflowEvent("counted", text))
    return ctx.get_state("count")


@workflow
async def question(text: str, ctx: RunContext) -> str:
    """Asks."""
    return f"{text}: {await ctx.request_info(text, str)}"


async def test_a_fresh_message_is_a_run_of_its_own(storage: Storage) -> None:
    first = await counter.run("a", checkpoint_storage=storage)
    first_id = counter.run_id
    second = await counter.run("b", checkpoint_storage=storage)
    assert first.get_outputs() == second.get_outputs() == [1]
    assert counter.run_id != first_id
    assert [event.data for event in second if event.type == "counted"] == ["b"]


async def test_a_finished_run_tells_its_output_again_and_does_nothing(storage: Storage) -> None:
    await counter.run("a", run_id="r", checkpoint_storage=storage)
    again = await counter.twin().run("a", run_id="r", checkpoint_storage=storage)
    assert again.get_outputs() == [1]
    assert not [event for event in again if event.type == "counted"]


async def test_a_run_that_waits_is_left_for_another_and_can_be_gone_on_with(storage: Storage) -> None:
    await question.run("well?", run_id="r", checkpoint_storage=storage)
    await question.run("and you?", checkpoint_storage=storage)
    result = await question.run(run_id="r", responses={"auto::0": "fine"}, checkpoint_storage=storage)
    assert result.get_outputs() == ["well?: fine"]


async def test_events_are_told_while_the_function_runs() -> None:
    seen, may_end = asyncio.Event(), asyncio.Event()

    @step
    async def first() -> None:
        return None

    @workflow
    async def slow(_: str, ctx: RunContext) -> bool:
        await first()
        await may_end.wait()
        return ctx.is_streaming() and seen.is_set()

    outputs: list[Any] = []
    async for event in slow.run("go", stream=True):
        if event.type == "executor_completed" and event.executor_id == "first":
            seen.set()
            may_end.set()
        if event.type == "output":
            outputs.append(event.data)
    assert outputs == [True]


async def test_a_stream_that_was_dropped_blocks_nothing(storage: Storage) -> None:
    events = counter.run("a", stream=True, checkpoint_storage=storage)
    async for _ in events:
        break
    del events
    gc.collect()
    un_awaited = counter.run("b", checkpoint_storage=storage)
    assert un_awaited.close() is None  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType] - a coroutine
    del un_awaited
    gc.collect()
    assert (await counter.run("c", checkpoint_storage=storage)).get_outputs() == [1]


@pytest.mark.parametrize("is_stored", [False, True])
async def test_a_stream_that_is_left_and_still_referred_to_makes_room(storage: Storage, *, is_stored: bool) -> None:
    ended: list[str] = []

    @step
    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled")

    @workflow
    async def slow(text: str) -> str:
        if text == "a":
            await work()
        return text

    kept_in = storage if is_stored else None
    left = slow.run("a", stream=True, checkpoint_storage=kept_in)
    async for event in left:
        if event.type == "executor_invoked" and event.executor_id == "work":
            break
    assert (await slow.run("b", checkpoint_storage=kept_in)).get_outputs() == ["b"]
    assert ended == ["cancelled"]
    assert [event async for event in left] == []
    assert slow.status is WorkflowRunState.IDLE


@pytest.mark.parametrize("is_stored", [False, True])
async def test_a_call_that_is_not_awaited_is_in_nobodys_way(storage: Storage, *, is_stored: bool) -> None:
    kept_in = storage if is_stored else None
    later = counter.run("a", checkpoint_storage=kept_in)
    assert (await counter.run("b", checkpoint_storage=kept_in)).get_outputs() == [1]
    assert (await later).get_outputs() == [1]


async def test_a_call_while_another_task_reads_a_stream_is_refused() -> None:
    is_under_way, may_end = asyncio.Event(), asyncio.Event()

    @workflow
    async def slow(text: str) -> str:
        is_under_way.set()
        await may_end.wait()
        return text

    async def read() -> list[Any]:
        return (await slow.run("a")).get_outputs()

    reading = asyncio.create_task(read())
    await is_under_way.wait()
    with pytest.raises(WorkflowException, match="already running"):
        slow.run("b")  # pyright: ignore[reportUnusedCoroutine, reportUnusedExpression]
    may_end.set()
    assert await reading == ["a"]


async def test_keywords_of_a_run_are_kept_for_it_and_secrets_are_not(storage: Storage) -> None:
    @workflow
    async def greeting(name: str, ctx: RunContext, **more: Any) -> str:
        await ctx.request_info("may I?", bool)
        assert more == ctx.kwargs
        return f"{ctx.kwargs['word']} {name}, {ctx.kwargs['token'].value}"

    await greeting.run("Ada", run_id="r", checkpoint_storage=storage, word="hello", token=Secret("s3cret"))
    result = await greeting.twin().run(
        run_id="r", responses={"auto::0": True}, checkpoint_storage=storage, word="hello", token=Secret("s3cret")
    )
    assert result.get_outputs() == ["hello Ada, s3cret"]


async def test_a_function_that_was_edited_goes_on_and_steps_that_it_skips_are_reported(storage: Storage) -> None:
    made: list[str] = []

    @step
    async def fetch(name: str) -> str:
        made.append(name)
        return name.upper()

    @step
    async def check(name: str) -> str:
        made.append(f"check {name}")
        return name

    async def before(name: str, ctx: RunContext) -> str:
        found = await fetch(name)
        await check(found)
        return found + await ctx.request_info("well?", str)

    async def after(name: str, ctx: RunContext) -> str:
        answer: str = await ctx.request_info("well?", str)
        return answer + await fetch(name)

    await workflow(name="edited")(before).run("owl", run_id="r", checkpoint_storage=storage)
    result = await workflow(name="edited")(after).run(
        run_id="r", responses={"auto::0": "yes "}, checkpoint_storage=storage
    )
    assert result.get_outputs() == ["yes OWL"]
    assert made == ["owl", "check OWL"]
    warnings = [event.data for event in result if event.type == "warning"]
    assert any("check" in text and "without calling steps" in text for text in warnings)


async def test_a_host_runs_it_and_its_questions_are_answered_there() -> None:
    host = Host(InMemoryCheckpointStorage())
    host.register(question.twin)
    async with host:
        run = await host.start("question", "well?", run_id="r")
        await run.result()
        await host.respond("r", {"auto::0": "fine"})
        assert (await run.result()).get_outputs() == ["well?: fine"]


async def test_a_fork_asks_again_and_keeps_what_was_done() -> None:
    made: list[str] = []

    @step
    async def work() -> str:
        made.append("work")
        return "done"

    @workflow
    async def forked(_: str, ctx: RunContext) -> str:
        return f"{await work()}, {await ctx.request_info('well?', str)}"

    storage = InMemoryCheckpointStorage()
    await forked.run("go", run_id="r", checkpoint_storage=storage)
    paused = await storage.get_latest(workflow_name="forked")
    assert paused is not None
    await forked.run(run_id="r", responses={"auto::0": "one"}, checkpoint_storage=storage)
    run = await forked.twin().start(run_id="r", checkpoint_storage=storage)
    other = await (await run.fork(paused.checkpoint_id))
    await other.respond({"auto::0": "two"})
    assert (await other.result()).get_outputs() == ["done, two"]
    assert made == ["work"]


async def test_agents_inside_are_recorded_by_themselves(storage: Storage) -> None:
    client = ScriptedChatClient(["Owls see in the dark."])
    writer = Agent(client, "Write.", name="writer")

    @workflow
    async def writing(topic: str, ctx: RunContext) -> str:
        text = (await writer.run(topic)).text
        return f"{text} {await ctx.request_info('well?', str)}"

    await writing.run("owls", run_id="r", checkpoint_storage=storage)
    result = await writing.twin().run(run_id="r", responses={"auto::0": "Good."}, checkpoint_storage=storage)
    assert result.get_outputs() == ["Owls see in the dark. Good."]
    assert len(client.calls) == 1


async def test_a_run_needs_something_to_do() -> None:
    with pytest.raises(ValueError, match="nothing to do"):
        counter.run()
    with pytest.raises(ValueError, match="not both"):
        counter.run("a", responses={"auto::0": "b"})
    with pytest.raises(ValueError, match="not both"):
        counter.run("a", checkpoint_id="c")


async def test_a_function_without_a_message_is_run_without_one() -> None:
    @workflow
    async def clockwork() -> str:
        return "tick"

    assert (await clockwork.run()).get_outputs() == ["tick"]
    with pytest.raises(ValueError, match="takes no message"):
        clockwork.run("hello")


async def test_state_keys_of_the_engine_are_refused() -> None:
    @workflow
    async def rude(_: str, ctx: RunContext) -> None:
        ctx.set_state("_mine", 1)

    with pytest.raises(ValueError, match="_mine"):
        await rude.run("go")


async def test_as_an_agent_it_answers_and_asks() -> None:
    agent = question.twin().as_agent("asker", description="asks")
    assert (agent.name, agent.description, agent.id) == ("asker", "asks", "FunctionalWorkflowAgent_asker")
    response = await agent.run("well?")
    (content,) = response.messages[-1].contents
    assert content.type == "function_approval_request"
    assert content.function_call is not None
    assert content.function_call.name == agent.REQUEST_INFO_FUNCTION_NAME
    assert list(agent.pending_requests) == ["auto::0"]
    assert (await agent.run(responses={"auto::0": "fine"})).text == "well?: fine"
    assert agent.pending_requests == {}


async def test_as_an_agent_it_streams_and_takes_approvals() -> None:
    @workflow
    async def permission(text: str, ctx: RunContext) -> str:
        return f"{text}: {await ctx.request_info(text, bool)}"

    agent = permission.as_agent()
    updates = [update async for update in agent.run("may I?", stream=True)]
    (asked,) = [content for update in updates for content in update.contents]
    answer = Message("user", [asked.to_function_approval_response(approved=True)])
    pieces = [update async for update in agent.run(answer, stream=True)]
    assert "".join(piece.text for piece in pieces) == "may I?: True"


async def test_as_an_agent_in_a_graph_it_is_part_of_the_run(storage: Storage) -> None:
    made: list[str] = []

    @step
    async def count(texts: list[str], ctx: RunContext) -> int:
        made.append("count")
        ctx.set_state("counted", len(texts))
        return len(texts)

    @workflow
    async def clerk(messages: list[Message], ctx: RunContext) -> str:
        number = await count([message.text for message in messages])
        return f"{number} {ctx.get_state('counted')} {await ctx.request_info('well?', str)}"

    def build() -> Workflow:
        node = AgentExecutor(clerk.twin().as_agent())
        return WorkflowBuilder(name="office", start_executor=node, checkpoint_storage=storage).build()

    first = await build().run("file this", run_id="r")
    (asked,) = first.get_request_info_events()
    assert asked.data == "well?"
    result = await build().run(run_id="r", responses={asked.request_id: "fine"})
    assert [output.text for output in result.get_outputs()] == ["1 1 fine"]
    assert made == ["count"]


async def test_a_wait_lets_the_run_rest(storage: Storage) -> None:
    @workflow
    async def sleeper(text: str, ctx: RunContext) -> str:
        await ctx.sleep(3600)
        return text

    result = await sleeper.run("zzz", run_id="r", checkpoint_storage=storage, wait_for_timers=False)
    assert result.get_final_state() is WorkflowRunState.SLEEPING
    assert get_run_context() is None
