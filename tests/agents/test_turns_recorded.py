"""Which turn a record belongs to: turns are known by what the agent was told, and failures use up no numbers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.activation.solo import Context, MendableError, lone

from perdure import InMemoryCheckpointStorage
from perdure.agents import Agent, agent_middleware, chat_middleware
from perdure.graph import Numbering
from perdure.testing.scripted import ScriptedChatClient, ToolCall

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from perdure.agents import Message


def in_order(*replies: Any) -> ScriptedChatClient:
    """A model that gives these replies, whatever the conversation."""
    left = list(replies)
    return ScriptedChatClient(lambda _messages, _options: left.pop(0))


@agent_middleware
async def trying_turns_again(_: Any, call_next: Callable[[], Awaitable[None]]) -> None:
    await _until_it_works(call_next)


@chat_middleware
async def trying_calls_again(_: Any, call_next: Callable[[], Awaitable[None]]) -> None:
    await _until_it_works(call_next)


async def _until_it_works(call: Callable[[], Awaitable[Any]]) -> Any:
    for _ in range(3):
        try:
            return await call()
        except TimeoutError:
            continue
    raise AssertionError("it never worked")


async def in_two_lives(act: Callable[[Context], Awaitable[Any]]) -> Any:
    """What a handler yields that fails at its end in its first life."""
    lives: list[str] = []

    async def do(_: str, ctx: Context) -> None:
        outcome = await act(ctx)
        lives.append("lived")
        if len(lives) == 1:
            raise MendableError
        await ctx.yield_output(outcome)

    storage = InMemoryCheckpointStorage()
    with pytest.raises(MendableError):
        await lone(do, storage=storage).run("go", run_id="r")
    (output,) = (await lone(do, storage=storage).run(run_id="r")).get_outputs()
    return output


@pytest.mark.parametrize("middleware", [trying_turns_again, trying_calls_again, None])
@pytest.mark.parametrize("stream", [False, True])
async def test_what_a_model_has_answered_after_a_failure_is_not_asked_again(
    middleware: Any,
    stream: bool,  # noqa: FBT001
) -> None:
    client = in_order(TimeoutError("late"), "first", "second")
    agent = Agent(client, name="a", middleware=[middleware] if middleware else None)

    async def said(text: str) -> str:
        if stream and middleware is None:
            return (await agent.run(text, stream=True).get_final_response()).text
        return (await agent.run(text)).text

    async def act(_: Context) -> list[str]:
        if middleware is None:
            return [await _until_it_works(lambda: said("one")), await said("two")]
        return [await said("one"), await said("two")]

    assert await in_two_lives(act) == ["first", "second"]
    assert len(client.calls) == 3


async def test_a_client_that_is_tried_again_without_an_agent_is_not_asked_again() -> None:
    client = in_order(TimeoutError("late"), "first")

    async def act(_: Context) -> str:
        return (await _until_it_works(lambda: client.get_response("hi"))).text  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue, reportUnknownLambdaType, reportUnknownMemberType, reportUnknownVariableType]

    assert await in_two_lives(act) == "first"
    assert len(client.calls) == 2


async def test_a_turn_that_is_tried_again_goes_on_behind_the_calls_that_it_has_made() -> None:
    paid: list[str] = []

    def pay(who: str) -> str:
        paid.append(who)
        return f"paid {who}"

    client = in_order(ToolCall("pay", who="ada"), TimeoutError("late"), "done")
    agent = Agent(client, name="a", tools=pay)

    async def act(_: Context) -> str:
        return (await _until_it_works(lambda: agent.run("pay"))).text

    assert await in_two_lives(act) == "done"
    assert paid == ["ada"]
    assert len(client.calls) == 3


async def test_the_same_question_twice_is_two_turns() -> None:
    client = in_order("first", "second")
    agent = Agent(client, name="a")

    async def act(_: Context) -> list[str]:
        return [(await agent.run("again")).text, (await agent.run("again")).text]

    assert await in_two_lives(act) == ["first", "second"]
    assert len(client.calls) == 2


@pytest.mark.parametrize("name", ["teller", None])
async def test_turns_that_begin_in_another_order_in_another_life_are_not_mixed_up(name: str | None) -> None:
    paid: list[str] = []
    order: list[str] = []

    def pay(who: str) -> str:
        paid.append(who)
        return f"paid {who}"

    def said(messages: Sequence[Message], _: Mapping[str, Any]) -> Any:
        return messages[-1].contents[0].result if messages[-1].role == "tool" else ToolCall("pay", who=messages[0].text)

    client = ScriptedChatClient(said)
    ada, bob = (Agent(client, name=name, tools=pay) for _ in range(2))

    async def act(ctx: Context) -> list[str]:
        bob_first = asyncio.Event()

        async def look(who: str) -> str:
            # In the first life the second is quicker; in the second life both are there at once.
            if who == "ada":
                await bob_first.wait()
            bob_first.set()
            return who

        async def one(agent: Agent[Any], who: str) -> str:
            found = await ctx.step("look", look, who, key=who)
            order.append(found)
            return (await agent.run(found)).text

        return list(await asyncio.gather(one(ada, "ada"), one(bob, "bob")))

    assert await in_two_lives(act) == ["paid ada", "paid bob"]
    assert order == ["bob", "ada", "ada", "bob"]
    assert sorted(paid) == ["ada", "bob"]


async def test_agents_without_names_are_told_apart_by_what_they_are_for() -> None:
    def said(messages: Sequence[Message], _: Mapping[str, Any]) -> str:
        return f"{messages[0].text} {messages[-1].text}"

    client = ScriptedChatClient(said)
    agents = [Agent(client, "You translate."), Agent(client, "You judge.")]

    async def act(_: Context) -> list[str]:
        agents.reverse()
        return sorted([(await agent.run("hi")).text for agent in agents])

    assert await in_two_lives(act) == ["You judge. hi", "You translate. hi"]
    assert len(client.calls) == 2


def test_a_number_that_is_given_back_is_the_next_one() -> None:
    numbers = Numbering()
    assert [numbers.take() for _ in range(3)] == [0, 1, 2]
    numbers.give_back(0)
    assert numbers.used == 2
    assert numbers.take() == 0
    assert numbers.take_again(1) == 3
    numbers.give_back(1)
    assert numbers.take_again(1) == 1
