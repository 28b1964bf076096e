"""Agents in a handler: what a model has answered is not asked for again, in whatever life."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import BaseModel
from tests.activation.solo import Context, MendableError, lone
from tests.agents.stub_model import USAGE, Foreign, Model

from perdure import InMemoryCheckpointStorage
from perdure.agents import Agent, AgentSession, ChatResponseUpdate
from perdure.errors import BudgetExceededError
from perdure.testing.scripted import ScriptedChatClient, ToolCall

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from tests.conftest import Storage

    from perdure.agents import Content


class Verdict(BaseModel):
    is_spam: bool


class Lives:
    """Runs a handler that fails at its end in the first life, and goes on in a second one."""

    def __init__(self, act: Callable[[Context], Awaitable[Any]]) -> None:
        self._act = act
        self._life = 0

    async def _do(self, _: str, ctx: Context) -> None:
        outcome = await self._act(ctx)
        if self._life == 0:
            raise MendableError
        await ctx.yield_output(outcome)

    async def outcome(self, storage: Any = None) -> Any:
        storage = storage or InMemoryCheckpointStorage()
        with pytest.raises(MendableError):
            await lone(self._do, storage=storage).run("go", run_id="r")
        self._life += 1
        (output,) = (await lone(self._do, storage=storage).run(run_id="r")).get_outputs()
        return output


async def text_of(agent: Agent[Any], said: str, *, stream: bool, **more: Any) -> str:
    answer: Any = agent.run(said, stream=stream, **more)
    return (await (answer.get_final_response() if stream else answer)).text.strip()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_model_is_not_asked_again_in_another_life(storage: Storage, stream: bool) -> None:  # noqa: FBT001
    model = Model()

    async def act(_: Context) -> str:
        return await text_of(Agent(model, name="a"), "hi", stream=stream)

    assert await Lives(act).outcome(storage) == "user: hi"
    assert len(model.calls) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_is_none_of_ours_is_not_asked_again(stream: bool) -> None:  # noqa: FBT001
    client = Foreign()

    async def act(_: Context) -> str:
        return await text_of(Agent(client, name="a"), "hi", stream=stream)

    assert (await Lives(act).outcome()).replace(" ", "") == "1:hi"
    assert client.calls == 1


async def test_a_client_that_is_asked_without_an_agent_is_not_asked_again() -> None:
    model = Model()

    async def act(_: Context) -> list[str]:
        first = await model.get_response("hi")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportUnknownVariableType, reportCallIssue]
        second = await model.get_response("ho", stream=True).get_final_response()  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
        return [first.text, second.text.strip()]

    assert await Lives(act).outcome() == ["user: hi", "user: ho"]
    assert len(model.calls) == 2


async def test_a_replayed_stream_tells_all_of_a_message_at_once() -> None:
    told: list[list[str]] = []

    async def act(_: Context) -> None:
        told.append([update.text async for update in Agent(Model(), name="a").run("hi there", stream=True)])

    await Lives(act).outcome()
    assert told == [["user: ", "hi ", "there ", ""], ["user: hi there "]]


async def test_each_turn_of_an_agent_is_its_own_also_side_by_side() -> None:
    model = Model()
    agent = Agent(model, name="a")

    async def act(_: Context) -> list[str]:
        first = await agent.run("one")
        others = await asyncio.gather(agent.run("two"), agent.run("three"), Agent(model, name="b").run("four"))
        return [response.text for response in (first, *others)]

    assert await Lives(act).outcome() == ["user: one", "user: two", "user: three", "user: four"]
    assert len(model.calls) == 4


async def test_a_turn_that_failed_goes_on_behind_the_answers_that_it_had() -> None:
    looks: list[str] = []

    def look() -> str:
        looks.append("looked")
        return "seen"

    client = ScriptedChatClient([ToolCall("look"), MendableError(), "done"])

    async def act(_: str, ctx: Context) -> None:
        await ctx.yield_output((await Agent(client, name="a", tools=look).run("hi")).text)

    workflow = lone(act, storage=InMemoryCheckpointStorage())
    with pytest.raises(MendableError):
        await workflow.run("go")
    assert (await workflow.run(run_id=workflow.run_id)).get_outputs() == ["done"]
    assert looks == ["looked"]
    assert len(client.calls) == 3


async def test_a_stream_that_broke_off_has_recorded_nothing() -> None:
    class Breaking(Model):
        async def streamed(self, contents: list[Content]) -> AsyncGenerator[ChatResponseUpdate]:
            yield ChatResponseUpdate(contents=contents, role="assistant")
            if len(self.calls) == 1:
                raise MendableError

    model = Breaking()

    async def act(_: str, ctx: Context) -> None:
        await ctx.yield_output(await text_of(Agent(model, name="a"), "hi", stream=True))

    workflow = lone(act, storage=InMemoryCheckpointStorage())
    with pytest.raises(MendableError):
        await workflow.run("go")
    assert (await workflow.run(run_id=workflow.run_id)).get_outputs() == ["user: hi"]
    assert len(model.calls) == 2


async def test_an_abandoned_stream_leaves_nothing_running_in_a_handler() -> None:
    closed: list[bool] = []

    class Endless(Model):
        async def streamed(self, contents: list[Content]) -> AsyncGenerator[ChatResponseUpdate]:
            try:
                while True:
                    await asyncio.sleep(0)
                    yield ChatResponseUpdate(contents=contents, role="assistant")
            finally:
                closed.append(True)

    async def act(_: str, ctx: Context) -> None:
        stream = Agent(Endless(), name="a").run("hi", stream=True)
        await ctx.yield_output((await anext(stream)).text)
        await stream.aclose()

    assert (await lone(act, storage=InMemoryCheckpointStorage()).run("go")).get_outputs() == ["user: hi"]
    assert closed == [True]


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_from_a_record_still_has_its_value(stream: bool) -> None:  # noqa: FBT001
    client = ScriptedChatClient([Verdict(is_spam=True)])

    async def act(_: Context) -> bool:
        answer: Any = Agent(client, name="a").run("spam?", stream=stream, options={"response_format": Verdict})
        response = await (answer.get_final_response() if stream else answer)
        return response.value.is_spam

    assert await Lives(act).outcome() is True
    assert len(client.calls) == 1


async def test_a_turn_that_is_taken_up_again_is_in_the_history_once(storage: Storage) -> None:
    model = Model()

    async def act(ctx: Context) -> list[str]:
        session: AgentSession = ctx.get_state("session") or AgentSession(session_id="s")
        agent = Agent(model, name="a")
        await agent.run("one", session=session)
        await agent.run("two", session=session)
        ctx.set_state("session", session)
        return [message.text for message in session.state["in_memory"]["messages"]][::2]

    assert await Lives(act).outcome(storage) == ["one", "two"]
    assert len(model.calls) == 2


async def test_tokens_are_counted_once_and_a_budget_stops_between_two_calls_of_a_model() -> None:
    model = Model()
    storage = InMemoryCheckpointStorage()

    async def act(_: str, ctx: Context) -> None:
        agent = Agent(model, name="a")
        await ctx.yield_output([(await agent.run(word)).text for word in ("one", "two", "three")])

    total = USAGE["total_token_count"]
    with pytest.raises(BudgetExceededError):
        await lone(act, storage=storage).run("go", run_id="r", budget={"total_tokens": 2 * total})
    assert len(model.calls) == 2
    result = await lone(act, storage=storage).run(run_id="r", budget={"total_tokens": 4 * total})
    assert result.get_outputs() == [["user: one", "user: two", "user: three"]]
    assert len(model.calls) == 3


async def test_middleware_around_a_model_is_called_again_and_the_model_is_not() -> None:
    entered: list[str] = []
    model = Model()

    async def watch(context: Any, call_next: Any) -> None:
        entered.append(context.messages[-1].text)
        await call_next()

    watch.__annotations__["context"] = "ChatContext"

    async def act(_: Context) -> str:
        return await text_of(Agent(model, name="a", middleware=[watch]), "hi", stream=True)

    assert await Lives(act).outcome() == "user: hi"
    assert (entered, len(model.calls)) == (["hi", "hi"], 1)
