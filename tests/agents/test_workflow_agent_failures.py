"""A workflow as an agent after a failure: the turn goes on, or is left for another; and one call at a time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.agents.desks import Asker, Question, answer, calls, desk, echo, saved, talking
from tests.workflow.nodes import Gate, ending, node

from perdure import (
    InMemoryCheckpointStorage,
    LatestOnly,
    Retention,
    WorkflowContext,
    WorkflowException,
    response_handler,
)
from perdure.agents import AgentSession, Message
from perdure.errors import AgentException

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.workflow.nodes import Context

    from perdure.workflows import WorkflowAgent


class Line:
    """Two executors one after the other; the second fails in the calls that are said to."""

    def __init__(self, *failing: int) -> None:
        self.failing = failing
        self.calls = 0
        self.begun: list[str] = []
        """What the first one was told last, each time."""

    def build(self, storage: Any = None) -> WorkflowAgent:
        async def begin(messages: list[Message], ctx: Context) -> None:
            self.begun.append(messages[-1].text)
            ctx.set_state("said", [*ctx.get_state("said", []), messages[-1].text])
            await ctx.send_message(messages)

        async def end(_: list[Message], ctx: Context) -> None:
            self.calls += 1
            if self.calls in self.failing:
                raise ConnectionError("no line")
            await ctx.yield_output(" ".join(ctx.get_state("said")))

        return desk(talking("begin", begin), node("end", end), storage=storage)


async def refused(agent: WorkflowAgent, said: str, session: AgentSession | None, storage: Any = None) -> None:
    with pytest.raises(ConnectionError):
        await agent.run(said, session=session, checkpoint_storage=storage)


def texts(session: AgentSession) -> list[str]:
    return [message.text for message in session.state["in_memory"]["messages"]]


@pytest.fixture(params=["live", "stored"])
def maybe_storage(request: pytest.FixtureRequest) -> InMemoryCheckpointStorage | None:
    return InMemoryCheckpointStorage() if request.param == "stored" else None


async def test_the_same_message_goes_on_with_the_turn_that_failed(maybe_storage: Any) -> None:
    line = Line(2, 3)
    agent = line.build(maybe_storage)
    session = agent.create_session()
    await agent.run("a", session=session)
    for _ in range(2):
        await refused(agent, "b", session)
    assert (await agent.run("b", session=session)).text == "a b"
    assert line.begun == ["a", "b"]


async def test_another_message_leaves_the_turn_that_failed(
    maybe_storage: Any, caplog: pytest.LogCaptureFixture
) -> None:
    line = Line(2)
    agent = line.build(maybe_storage)
    session = agent.create_session()
    await agent.run("a", session=session)
    await refused(agent, "b", session)
    assert (await agent.run("c", session=session)).text == "a c"
    assert "did not finish" in caplog.text
    assert (await agent.run("d", session=session)).text == "a c d"


async def test_another_message_after_a_first_turn_that_failed_begins_anew(maybe_storage: Any) -> None:
    line = Line(1)
    agent = line.build(maybe_storage)
    session = agent.create_session()
    await refused(agent, "a", session)
    assert (await agent.run("b", session=session)).text == "b"
    assert (await agent.run("c", session=session)).text == "b c"


async def test_a_turn_that_was_left_can_still_be_gone_on_with() -> None:
    storage, line = InMemoryCheckpointStorage(), Line(2)
    agent = line.build(storage)
    session = agent.create_session()
    await agent.run("a", session=session)
    first = session.state["workflow"]["run_id"]
    await refused(agent, "b", session)
    await agent.run("c", session=session)
    assert session.state["workflow"]["run_id"] != first
    left = await line.build(storage).workflow.run(run_id=first)
    assert left.get_outputs() == ["a b"]


async def test_a_failed_turn_is_no_part_of_the_conversation() -> None:
    line = Line(1)
    agent = line.build()
    session = agent.create_session()
    await refused(agent, "a", session)
    assert session.state.get("in_memory", {}) == {}
    await agent.run("a", session=session)
    assert texts(session) == ["a", "a"]


@pytest.mark.parametrize("is_first", [True, False])
async def test_whoever_has_only_an_older_session_goes_on_with_the_turn_that_failed(
    open_on_disk: Callable[..., Any],
    is_first: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    line, session = Line(1 if is_first else 2), AgentSession()
    async with open_on_disk() as storage:
        if not is_first:
            await line.build(storage).run("a", session=session)
        kept = saved(session)
        await refused(line.build(storage), "b", session)
    async with open_on_disk() as storage:
        assert (await line.build(storage).run("b", session=kept)).text == ("b" if is_first else "a b")
        assert line.begun.count("b") == 1


async def test_a_turn_that_ended_before_the_session_was_saved_is_told_again() -> None:
    storage, line, session = InMemoryCheckpointStorage(), Line(), AgentSession()
    await line.build(storage).run("a", session=session)
    kept = saved(session)
    await line.build(storage).run("b", session=session)
    again = saved(kept)
    assert (await line.build(storage).run("b", session=again)).text == "a b"
    assert line.begun == ["a", "b"]
    assert texts(again) == texts(session) == ["a", "a", "b", "a b"]
    assert again.state["workflow"] == session.state["workflow"]
    assert (await line.build(storage).run("c", session=saved(kept))).text == "a b c"


async def test_without_a_message_a_turn_goes_on() -> None:
    storage, line = InMemoryCheckpointStorage(), Line(1)
    agent = line.build(storage)
    session = agent.create_session()
    await refused(agent, "a", session)
    assert (await agent.run(session=session)).text == "a"
    assert (await agent.run(session=session)).messages == []
    assert line.begun == ["a"]


async def test_a_call_without_a_session_leaves_an_unfinished_run_of_somebody_else_alone() -> None:
    storage, line = InMemoryCheckpointStorage(), Line(1)
    agent = line.build(storage)
    with pytest.raises(ConnectionError):
        await agent.workflow.run([Message("user", ["a"])], run_id="mine")
    assert (await agent.run("b")).text == "b"
    assert (await agent.workflow.run(run_id="mine")).get_outputs() == ["a"]


async def test_without_a_session_no_message_continues_the_call_before(maybe_storage: Any) -> None:
    line = Line(1)
    agent = line.build(maybe_storage)
    await refused(agent, "a", None)
    assert (await agent.run()).text == "a"
    assert line.begun == ["a"]


async def test_answers_are_not_undone_by_another_message(maybe_storage: Any) -> None:
    troubles = [ConnectionError("no line")]

    class Fragile(Asker):
        @response_handler
        async def answered(self, question: Question, is_good: bool, ctx: WorkflowContext[str, str]) -> None:  # noqa: FBT001 - as the base class has it
            if troubles:
                raise troubles.pop()
            await super().answered(question, is_good, ctx)

    agent = desk(Fragile("asker"), storage=maybe_storage)
    session = agent.create_session()
    (call,) = calls(await agent.run("buy", session=session))
    with pytest.raises(ConnectionError):
        await agent.run(answer(call, result=True), session=session)
    with pytest.raises(AgentException, match="send the same answers again"):
        await agent.run("what?", session=session)
    assert (await agent.run(answer(call, result=True), session=session)).text == "buy: True"


async def test_a_workflow_without_a_name_is_found_again_though_its_graph_has_grown() -> None:
    storage = InMemoryCheckpointStorage()

    def build(*more: Any) -> WorkflowAgent:
        return desk(echo(), *more, storage=storage, name="")

    session = AgentSession()
    await build().run("a", session=session)
    assert (await build(ending("end")).run("b", session=saved(session))).text.startswith("2: ")


async def test_a_session_of_another_conversation_with_the_same_id_is_not_taken_for_it() -> None:
    storage, line = InMemoryCheckpointStorage(), Line()
    assert (await line.build(storage).run("a", session=AgentSession(session_id="s"))).text == "a"
    assert (await line.build(storage).run("b", session=AgentSession(session_id="s"))).text == "b"


async def test_a_second_call_at_the_same_time_is_refused_and_disturbs_nothing() -> None:
    gate = Gate("gate")

    async def begin(messages: list[Message], ctx: Context) -> None:
        await ctx.send_message(messages)

    agent = desk(talking("begin", begin), gate.executor)
    first = asyncio.ensure_future(agent.run("a", session=agent.create_session()))
    await gate.begun.wait()
    with pytest.raises(WorkflowException, match="one call at a time"):
        await agent.run("b", session=agent.create_session())
    with pytest.raises(WorkflowException, match="one call at a time"):
        agent.run("b", stream=True)
    gate.opened.set()
    assert (await first).text == "a"
    assert (await agent.run("b", session=agent.create_session())).text == "b"


async def test_a_stream_that_was_dropped_makes_room() -> None:
    line = Line()
    agent = line.build(InMemoryCheckpointStorage())
    session = agent.create_session()
    async for _ in agent.run("a", session=session, stream=True):
        break
    assert (await agent.run("a", session=session)).text == "a"


async def test_a_stream_that_was_closed_makes_room() -> None:
    line = Line()
    agent = line.build(InMemoryCheckpointStorage())
    session = agent.create_session()
    stream = agent.run("a", session=session, stream=True)
    await anext(stream)
    await stream.aclose()
    assert (await agent.run("a", session=session)).text == "a"
    assert line.begun == ["a"]


async def test_a_failure_in_a_stream_leaves_the_agent_usable() -> None:
    line = Line(1)
    agent = line.build()
    session = agent.create_session()
    with pytest.raises(ConnectionError):
        await agent.run("a", session=session, stream=True).get_final_response()
    assert (await agent.run("a", session=session, stream=True).get_final_response()).text == "a"
    assert line.begun == ["a"]


@pytest.mark.parametrize("turns", [0, 1])
async def test_a_turn_is_found_again_by_an_older_session_though_its_first_checkpoints_are_forgotten(turns: int) -> None:
    storage = InMemoryCheckpointStorage(retention=Retention(checkpoints=LatestOnly()))
    line = Line(1 + turns)
    agent = line.build(storage)
    session = agent.create_session()
    for _ in range(turns):
        await agent.run("a", session=session)
    older = saved(session)
    await refused(agent, "b", session)
    # Another process has the session as it was before, and the storage.
    assert (await line.build(storage).run("b", session=older)).text == " ".join(["a"] * turns + ["b"])
    assert line.begun == ["a"] * turns + ["b"]


async def test_a_turn_whose_beginning_is_forgotten_can_not_be_left_for_another() -> None:
    storage = InMemoryCheckpointStorage(retention=Retention(checkpoints=LatestOnly()))
    line = Line(2)
    agent = line.build(storage)
    session = agent.create_session()
    await agent.run("a", session=session)
    await refused(agent, "b", session)
    with pytest.raises(AgentException, match="the turn can't be left, because its first checkpoint was deleted"):
        await agent.run("c", session=session)
    assert (await agent.run("b", session=session)).text == "a b"
