"""Agents for the resume suite: one with three tools and an approval, then one that sums up. Run as a script.

Each call of a model and of a tool is an effect, counted outside. One has come back when somebody else sees its result:
a middleware around the record of the model call, or the model itself, which is shown what was said and done before.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from tests.crash.servers import with_postgres

from perdure import Agent, ChatContext, Content, Message, Workflow, WorkflowBuilder, chat_middleware, tool
from perdure.testing import ScriptedChatClient, ToolCall
from perdure.testing.resume import SHIPPED, Subject, effect, main, returned

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from perdure import PendingRequest


@tool(if_interrupted="rerun")
def look_up(item: str) -> str:
    """The price of an item."""
    effect(f"look up {item}")
    return f"{item} costs 7"


@tool(if_interrupted="rerun")
async def measure(item: str) -> str:
    """The weight of an item."""
    await asyncio.sleep(0)
    effect(f"measure {item}")
    return f"{item} weighs 3"


@tool(approval_mode="always_require", if_interrupted="rerun")
def pay(amount: int) -> str:
    """Pay so much."""
    effect(f"pay {amount}")
    return f"paid {amount}"


def _calls(messages: Sequence[Message]) -> dict[str, Content]:
    found = (content for message in messages for content in message.contents if content.type == "function_call")
    return {call.call_id or "": call for call in found}


def _note_what_is_shown(messages: Sequence[Message]) -> None:
    """Mark calls as returned whose results a model sees."""
    calls = _calls(messages)
    names = {"look_up": "look up", "measure": "measure", "pay": "pay"}
    for content in (content for message in messages for content in message.contents):
        if content.type == "function_result" and content.exception is None:
            call = calls[content.call_id or ""]
            returned(" ".join([names[call.name or ""], *map(str, (call.parse_arguments() or {}).values())]))


def _name(messages: Sequence[Message], agent: str) -> str:
    """Return a name for a model call, the same in every process: it depends on the messages."""
    said = sum(message.role == "assistant" for message in messages)
    asked = sum(message.role == "user" for message in messages)
    return f"{agent} thinks after {asked} and {said}"


@chat_middleware
async def note_answers(context: ChatContext, call_next: Callable[[], Awaitable[None]]) -> None:
    """Around the record: what comes out here is on disk."""
    name = _name(context.messages, "buyer")
    context.stream_result_hooks.append(lambda _: returned(name))
    await call_next()
    if not context.stream:
        returned(name)


def buy(messages: Sequence[Message], options: Mapping[str, Any]) -> Any:
    """Look the thing up and weigh it at once, pay for it, and say so."""
    del options
    _note_what_is_shown(messages)
    effect(_name(messages, "buyer"))
    since = [message for message in messages if message.role != "system"]
    while any(message.role == "user" and message.text for message in since[1:]):
        since = since[1:]
    results = [content for message in since for content in message.contents if content.type == "function_result"]
    item = since[0].text
    if not results:
        return [ToolCall("look_up", item=item), ToolCall("measure", item=item)]
    if len(results) == 2:
        return ["It is cheap.", ToolCall("pay", amount=len(item))]
    return f"{item}: {'; '.join(str(result.result) for result in results)}"


def sum_up(messages: Sequence[Message], options: Mapping[str, Any]) -> str:
    """Say how much was said."""
    del options
    effect(_name(messages, "clerk"))
    return f"filed after {len(messages)} messages: {messages[-1].text}"


def build() -> Workflow:
    """Two agents, new ones."""
    buyer = Agent(
        ScriptedChatClient(buy, middleware=[note_answers]), "Buy it.", name="buyer", tools=[look_up, measure, pay]
    )
    clerk = Agent(ScriptedChatClient(sum_up), "File it.", name="clerk")
    return WorkflowBuilder(name="agency", start_executor=buyer).add_edge(buyer, clerk).build()


def approve(request: PendingRequest) -> Any:
    """Yes to every payment."""
    return request.data.to_function_approval_response(approved=True)


def others_answer(request: PendingRequest, number: int) -> Any:
    """Return the answer of the n-th rival."""
    return request.data.to_function_approval_response(approved=number % 2 == 0)


if __name__ == "__main__":
    storages = with_postgres(SHIPPED)
    main(
        Subject(build=build, message="a lamp", turns=("a rug",), answer=approve, rival=others_answer, storages=storages)
    )
