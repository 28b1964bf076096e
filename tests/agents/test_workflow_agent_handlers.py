"""A workflow as agent that a handler or a tool talks to: what it does is recorded in the run around it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.activation.solo import Context, lone
from tests.agents.desks import Asker, answer, calls, desk

from perdure import BudgetExceededError, InMemoryCheckpointStorage, WorkflowBuilder
from perdure.agents import Agent, AgentSession
from perdure.engine import step_key
from perdure.errors import AgentException
from perdure.testing import ScriptedChatClient, ToolCall

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from perdure import Workflow
    from perdure.agents import Message
    from perdure.workflows import WorkflowAgent

_USAGE: Any = {"total_token_count": 10}


class Till:
    """An agent that pays and then speaks, if its line does not break in between."""

    def __init__(self, *, breaks: int = 1) -> None:
        self.paid: list[str] = []
        self.keys: list[str] = []
        self.asked = 0
        self.breaks = breaks
        self.hangs, self.has_paid = asyncio.Event(), asyncio.Event()

    async def say(self, messages: Sequence[Message], _: Mapping[str, Any]) -> Any:
        self.asked += 1
        if messages[-1].role != "tool":
            return ToolCall("pay", who=messages[-1].text)
        self.has_paid.set()
        if self.hangs.is_set():
            await asyncio.Event().wait()
        if self.breaks:
            self.breaks -= 1
            raise ConnectionError("no line")
        return str(messages[-1].contents[0].result)

    def inner(self, storage: Any = None) -> WorkflowAgent:
        def pay(who: str) -> str:
            self.paid.append(who)
            self.keys.append(step_key())
            return f"paid {who}"

        return desk(Agent(ScriptedChatClient(self.say, usage=_USAGE), name="till", tools=pay), storage=storage)

    def handling(self, storage: Any, *, stream: bool, own: Any = None) -> Workflow:
        inner = self.inner(own)

        async def do(text: str, ctx: Context) -> None:
            said: Any = inner.run(text, stream=stream)
            await ctx.yield_output((await (said.get_final_response() if stream else said)).text)

        return lone(do, storage=storage)

    def as_tool(self, storage: Any) -> Workflow:
        def boss(messages: Sequence[Message], _: Mapping[str, Any]) -> Any:
            is_done = messages[-1].role == "tool"
            return str(messages[-1].contents[0].result) if is_done else ToolCall("desk", task=messages[-1].text)

        agent = Agent(ScriptedChatClient(boss), name="boss", tools=self.inner().as_tool(name="desk"))
        return WorkflowBuilder(name="w", start_executor=agent, checkpoint_storage=storage).build()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_tool_inside_of_a_workflow_that_a_handler_talks_to_is_not_called_again(
    storage: Any,
    stream: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    till = Till()
    with pytest.raises(ConnectionError):
        await till.handling(storage, stream=stream).run("ada", run_id="r")
    assert (await till.handling(storage, stream=stream).run(run_id="r")).get_outputs() == ["paid ada"]
    assert till.paid == ["ada"]
    assert till.asked == 3


async def test_a_tool_inside_of_a_workflow_that_is_a_tool_is_not_called_again() -> None:
    till, storage = Till(breaks=0), InMemoryCheckpointStorage()
    till.hangs.set()
    life = asyncio.ensure_future(till.as_tool(storage).run("ada", run_id="r"))
    await till.has_paid.wait()
    life.cancel()
    with pytest.raises(asyncio.CancelledError):
        await life
    till.hangs.clear()
    (output,) = (await till.as_tool(storage).run(run_id="r")).get_outputs()
    assert output.messages[-1].text == "paid ada"
    assert till.paid == ["ada"]


async def test_calls_of_two_runs_in_one_handler_have_keys_of_their_own() -> None:
    till = Till(breaks=0)
    inner = till.inner()

    async def do(_: str, ctx: Context) -> None:
        said = [(await inner.run("ada", session=inner.create_session())).text for _ in range(2)]
        await ctx.yield_output(said)

    await lone(do, storage=InMemoryCheckpointStorage()).run("go")
    assert till.paid == ["ada", "ada"]
    assert len(set(till.keys)) == 2


@pytest.mark.parametrize("own", [None, InMemoryCheckpointStorage()])
@pytest.mark.parametrize("stream", [False, True])
async def test_what_a_workflow_spends_that_a_handler_talks_to_is_spent_by_the_run_around(
    own: Any,
    stream: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    storage, till = InMemoryCheckpointStorage(), Till(breaks=0)
    workflow = till.handling(storage, stream=stream, own=own)
    result = await workflow.run("ada", run_id="r")
    assert result.get_spent()["total_tokens"] == 20


async def test_a_budget_stops_a_workflow_that_a_handler_talks_to_and_a_higher_one_lets_it_go_on() -> None:
    storage, till = InMemoryCheckpointStorage(), Till(breaks=0)
    with pytest.raises(BudgetExceededError):
        await till.handling(storage, stream=False).run("ada", run_id="r", budget={"total_tokens": 5})
    result = await till.handling(storage, stream=False).run(run_id="r", budget={"total_tokens": 100})
    assert result.get_outputs() == ["paid ada"]
    assert till.paid == ["ada"]
    assert till.asked == 2


async def test_requests_of_a_workflow_are_answered_in_the_handler_that_talks_to_it_in_another_life_too() -> None:
    storage, troubles, asked = InMemoryCheckpointStorage(), [True], list[str]()

    def build() -> Workflow:
        talker = desk(Asker("asker"))

        async def do(text: str, ctx: Context) -> None:
            session = talker.create_session()
            (call,) = calls(await talker.run(text, session=session))
            asked.append(call.call_id or "")
            if troubles:
                raise ConnectionError(troubles.pop())
            await ctx.yield_output((await talker.run(answer(call, result=True), session=session)).text)

        return lone(do, storage=storage)

    with pytest.raises(ConnectionError):
        await build().run("tea", run_id="r")
    assert (await build().run(run_id="r")).get_outputs() == ["tea: True"]
    assert len(set(asked)) == 1


async def test_a_session_goes_on_with_its_run_in_the_next_handler_call_of_the_process() -> None:
    talker, session, asked = desk(Asker("asker")), AgentSession(), list[Any]()

    async def do(text: str, ctx: Context) -> None:
        asked.append(ctx.get_state("asked"))
        said = answer(asked[-1], result=True) if asked[-1] else text
        told = await talker.run(said, session=session)
        ctx.set_state("asked", next(iter(calls(told)), None))
        await ctx.yield_output(told.text)

    workflow = lone(do)
    await workflow.run("tea")
    assert (await workflow.run("answer")).get_outputs() == ["tea: True"]


async def test_a_run_that_waits_and_is_gone_is_said_to_need_a_storage() -> None:
    session = AgentSession()

    async def do(_: str, ctx: Context) -> None:
        talker = desk(Asker("asker"))
        told = await talker.run("tea", session=session)
        await ctx.yield_output(len(calls(told)))

    workflow = lone(do)
    assert (await workflow.run("one")).get_outputs() == [1]
    with pytest.raises(AgentException, match="needs its own storage"):
        await workflow.run("two")
