"""Functional workflows as programs for agent-framework 1.14 and later write them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from perdure import (
    FunctionalWorkflow,
    FunctionalWorkflowDefinition,
    InMemoryCheckpointStorage,
    RunContext,
    WorkflowEvent,
    WorkflowRunState,
    step,
    workflow,
)

if TYPE_CHECKING:
    from perdure.storage import StoreStorage as Storage


@step
async def double(number: int) -> int:
    return number * 2


@step
async def fail(_: int) -> int:
    raise ValueError("no")


@workflow(name="doubling", description="Doubles.")
async def doubling(number: int) -> int:
    return await double(number)


def of_executors(events: Any) -> list[tuple[str, str | None]]:
    return [(event.type, event.executor_id) for event in events if event.type.startswith("executor_")]


async def test_a_live_stream_has_the_events_of_the_steps_and_none_of_the_function() -> None:
    result = await doubling.run(3)
    assert of_executors(result) == [("executor_invoked", "double"), ("executor_completed", "double")]


async def test_a_failing_step_is_one_failure() -> None:
    @workflow
    async def failing(number: int) -> int:
        return await fail(number)

    stream = failing.run(3, stream=True)
    events: list[WorkflowEvent[Any]] = []

    async def read() -> None:
        async for event in stream:
            events.append(event)  # noqa: PERF401 - those before the error count

    with pytest.raises(ValueError, match="no"):
        await read()
    assert of_executors(events) == [("executor_invoked", "fail"), ("executor_failed", "fail")]
    assert [event.type for event in events if event.type == "failed"] == ["failed"]


async def test_the_log_has_the_calls_of_the_function(storage: Storage) -> None:
    await doubling.run(3, run_id="d", checkpoint_storage=storage)
    logged = of_executors([event async for event in storage.events("d")])
    assert logged[0] == ("executor_invoked", "doubling")
    assert logged[-1] == ("executor_completed", "doubling")


async def test_an_intermediate_event_is_an_intermediate_output(storage: Storage) -> None:
    @workflow
    async def drafting(text: str, ctx: RunContext) -> str:
        await ctx.add_event(WorkflowEvent("intermediate", f"draft of {text}", executor_id="drafting"))
        answer = await ctx.request_info("good?", str)
        return f"{text}: {answer}"

    first = await drafting.run("owls", run_id="r", checkpoint_storage=storage)
    assert first.get_intermediate_outputs() == ["draft of owls"]
    (asked,) = first.get_request_info_events()
    second = await drafting.run(run_id="r", responses={asked.request_id: "yes"}, checkpoint_storage=storage)
    assert second.get_outputs() == ["owls: yes"]
    logged = [event.data async for event in storage.events("r") if event.type == "intermediate"]
    assert logged == ["draft of owls"]


async def test_other_types_of_the_engine_are_still_a_warning() -> None:
    @workflow
    async def pretending(_: int, ctx: RunContext) -> int:
        await ctx.add_event(WorkflowEvent("status", state=WorkflowRunState.FAILED))
        return 1

    result = await pretending.run(1)
    assert [event.type for event in result if event.type == "warning"] == ["warning"]
    assert result.get_final_state() is WorkflowRunState.IDLE


async def test_a_context_made_by_hand_lets_a_test_call_a_step() -> None:
    @step
    async def note(text: str, ctx: RunContext) -> str:
        ctx.set_state("noted", text)
        await ctx.add_event(WorkflowEvent("progress", text))
        return f"{text} {ctx.is_streaming()} {ctx.kwargs['by']}"

    ctx = RunContext("by hand", streaming=True, run_kwargs={"by": "Ada"})
    assert await note("hello", ctx=ctx) == "hello True Ada"
    assert ctx.get_state("noted") == "hello"
    with pytest.raises(ValueError, match="reserved"):
        ctx.set_state("_noted", 1)


async def test_a_context_made_by_hand_can_not_ask() -> None:
    with pytest.raises(RuntimeError, match="made by hand"):
        await RunContext("by hand").request_info("who?", str)


async def test_a_definition_is_built_with_and_without_a_storage() -> None:
    assert isinstance(doubling, FunctionalWorkflowDefinition)
    assert (doubling.name, doubling.description) == ("doubling", "Doubles.")
    storage = InMemoryCheckpointStorage()
    built, plain = doubling.build(checkpoint_storage=storage), doubling.build()
    assert isinstance(built, FunctionalWorkflow)
    assert built is not plain
    assert [(await each.run(2)).get_outputs() for each in (built, plain)] == [[4], [4]]
    assert len(await storage.list_checkpoint_ids(workflow_name="doubling")) > 0
    assert plain.checkpoint_storage is None


async def test_a_replay_key_identifies_a_step_by_its_arguments(storage: Storage) -> None:
    calls: list[str] = []

    class Document:
        """Can't be encoded."""

        def __init__(self, name: str) -> None:
            self.name = name
            self.lines = iter(())

    def name_of(document: Document) -> str:
        return document.name

    @step(replay_key=name_of)
    async def review(document: Any) -> str:
        calls.append(document.name)
        return f"reviewed {document.name}"

    @workflow
    async def reviewing(names: list[str], ctx: RunContext) -> list[str]:
        found = await asyncio.gather(*(review(Document(name)) for name in names))
        await ctx.request_info("publish?", bool)
        return list(found)

    first = await reviewing.run(["a", "b"], run_id="r", checkpoint_storage=storage)
    (asked,) = first.get_request_info_events()
    last = await reviewing.build().run(run_id="r", responses={asked.request_id: True}, checkpoint_storage=storage)
    assert last.get_outputs() == [["reviewed a", "reviewed b"]]
    assert sorted(calls) == ["a", "b"]


def test_a_step_has_one_key() -> None:
    with pytest.raises(ValueError, match="replay_key"):
        step(key=str, replay_key=str)(double)
