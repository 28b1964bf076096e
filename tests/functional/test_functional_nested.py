"""A functional workflow inside of another run is part of it: what it did is kept there, and what it asks is too."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from perdure import (
    AgentExecutor,
    Executor,
    InMemoryCheckpointStorage,
    Message,
    RunContext,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowRunState,
    handler,
    step,
    workflow,
)

if TYPE_CHECKING:
    from perdure import FunctionalWorkflow, WorkflowRunResult
    from perdure.storage import StoreStorage as Storage

made: list[str] = []
failures: list[Exception] = []


@pytest.fixture(autouse=True)
def forget() -> None:
    """Nothing was made."""
    made.clear()
    failures.clear()


@step
async def costly(text: str) -> str:
    """Work that must not be done twice."""
    made.append(text)
    return text.upper()


@step
async def shaky() -> None:
    """Fails as often as it was told to."""
    if failures:
        raise failures.pop()


@workflow
async def child(text: str, ctx: RunContext) -> str:
    """Works, and asks if it is told so."""
    found = await costly(text)
    return f"{found} {await ctx.request_info('may I?', str)}" if text == "ask" else found


def asked(result: WorkflowRunResult) -> list[tuple[str, Any]]:
    """What was asked, by whom it is answered."""
    return [(event.request_id, event.data) for event in result.get_request_info_events()]


def office(storage: Storage, own: Storage) -> Workflow:
    """A graph around a functional workflow that has a storage of its own."""

    @workflow(checkpoint_storage=own)
    async def clerk(messages: list[Message], ctx: RunContext) -> str:
        found = await costly(messages[-1].text)
        await shaky()
        return f"{found} {await ctx.request_info('well?', str)}"

    node = AgentExecutor(clerk.as_agent(), id="clerk")
    return WorkflowBuilder(name="office", start_executor=node, checkpoint_storage=storage).build()


async def test_a_storage_of_its_own_does_not_part_an_agent_from_the_run_around_it(
    storage: Storage, caplog: pytest.LogCaptureFixture
) -> None:
    own = InMemoryCheckpointStorage()
    failures.append(OSError("down"))
    with pytest.raises(OSError, match="down"):
        await office(storage, own).run("owl", run_id="r")
    (request,) = asked(await office(storage, own).run(run_id="r"))
    assert request[1] == "well?"
    result = await office(storage, own).run(run_id="r", responses={request[0]: "fine"})
    assert [output.text for output in result.get_outputs()] == ["OWL fine"]
    assert made == ["owl"]
    assert await own.list_checkpoints(workflow_name="clerk") == []
    assert "storage of workflow 'clerk' is not used" in caplog.text


async def test_a_run_inside_of_a_function_is_part_of_its_run(storage: Storage) -> None:
    @workflow
    async def parent(text: str) -> list[Any]:
        found = await child.run(text)
        await shaky()
        return [*found.get_outputs(), found.get_final_state() is WorkflowRunState.IDLE]

    failures.append(OSError("down"))
    with pytest.raises(OSError, match="down"):
        await parent.run("owl", run_id="r", checkpoint_storage=storage)
    result = await parent.twin().run(run_id="r", checkpoint_storage=storage)
    assert result.get_outputs() == [["OWL", True]]
    assert made == ["owl"]


async def test_the_question_of_a_run_inside_of_a_function_reaches_the_outside(storage: Storage) -> None:
    @workflow
    async def parent(text: str) -> list[Any]:
        return (await child.run(text)).get_outputs()

    first = await parent.run("ask", run_id="r", checkpoint_storage=storage)
    ((request_id, data),) = asked(first)
    assert data == "may I?"
    result = await parent.twin().run(run_id="r", responses={request_id: "yes"}, checkpoint_storage=storage)
    assert result.get_outputs() == [["ASK yes"]]
    assert made == ["ask"]


async def test_one_instance_can_be_run_side_by_side_inside_of_a_function(storage: Storage) -> None:
    @workflow
    async def parent(_: str) -> list[Any]:
        found = await asyncio.gather(*(child.run(text) for text in ("a", "b")))
        return [each.get_outputs() for each in found]

    result = await parent.run("go", run_id="r", checkpoint_storage=storage)
    assert result.get_outputs() == [[["A"], ["B"]]]


async def test_a_run_inside_of_a_handler_is_part_of_its_run_and_can_be_streamed(storage: Storage) -> None:
    class Clerk(Executor):
        @handler
        async def file(self, text: str, ctx: WorkflowContext[str, list[str]]) -> None:
            told = [event async for event in child.run(text, stream=True) if event.type == "output"]
            await shaky()
            await ctx.yield_output([event.data for event in told])

    def build() -> Workflow:
        return WorkflowBuilder(name="office", start_executor=Clerk("clerk"), checkpoint_storage=storage).build()

    failures.append(OSError("down"))
    with pytest.raises(OSError, match="down"):
        await build().run("owl", run_id="r")
    assert (await build().run(run_id="r")).get_outputs() == [["OWL"]]
    assert made == ["owl"]


async def test_a_run_that_is_named_stays_a_run_of_its_own_inside_of_a_function(storage: Storage) -> None:
    @workflow
    async def parent(text: str, ctx: RunContext) -> str:
        name = f"{ctx.idempotency_key}-child"
        found = await child.twin().run(text, run_id=name, checkpoint_storage=storage)
        await shaky()
        return f"{found.get_outputs()}"

    failures.append(OSError("down"))
    with pytest.raises(OSError, match="down"):
        await parent.run("owl", run_id="r", checkpoint_storage=storage)
    result = await parent.twin().run(run_id="r", checkpoint_storage=storage)
    assert result.get_outputs() == ["['OWL']"]
    assert made == ["owl"]


async def test_answers_to_a_run_inside_of_a_function_are_given_to_the_run_around_it(storage: Storage) -> None:
    @workflow
    async def parent(_: str) -> None:
        await child.run(responses={"auto::0": "yes"})

    with pytest.raises(ValueError, match="the enclosing run"):
        await parent.run("go", run_id="r", checkpoint_storage=storage)


@pytest.mark.parametrize("option", [{"deadline": None, "budget": {"tokens": 1}}, {"takeover": True}])
async def test_limits_of_a_run_inside_of_a_function_are_refused(storage: Storage, option: dict[str, Any]) -> None:
    @workflow
    async def parent(_: str) -> None:
        await child.run("owl", **option)

    with pytest.raises(ValueError, match="no run of its own"):
        await parent.run("go", run_id="r", checkpoint_storage=storage)


async def test_keywords_of_a_run_inside_of_a_function_are_its_own(storage: Storage) -> None:
    @workflow
    async def greeting(name: str, ctx: RunContext, **more: Any) -> str:
        return f"{more['word']} {name} {ctx.kwargs['word']}"

    @workflow
    async def parent(name: str) -> str:
        return (await greeting.run(name, word="hello")).get_outputs()[0]

    result = await parent.run("Ada", run_id="r", checkpoint_storage=storage, word="unheard")
    assert result.get_outputs() == ["hello Ada hello"]


async def test_without_a_storage_a_run_inside_of_a_function_is_answered_there() -> None:
    inner: FunctionalWorkflow = child.twin()

    @workflow
    async def parent(text: str) -> list[Any]:
        await inner.run(text)
        return (await inner.run(responses={"auto::0": "yes"})).get_outputs()

    assert (await parent.run("ask")).get_outputs() == [["ASK yes"]]
