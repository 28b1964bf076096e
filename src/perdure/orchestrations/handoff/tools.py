"""Handoffs as tools: what an agent calls to hand over, and how it is seen in an answer that it did."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, cast

from perdure import (
    AgentResponse,
    FunctionTool,
    Message,
    MiddlewareTermination,
    SupportsAgentRun,
    register_type,
    resolve_agent_id,
)
from perdure.orchestrations.messages import messages_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure import Agent, Content

_TARGET: Final = "handoff_to"
_NO_NAME: Final = re.compile(r"[^a-zA-Z0-9_-]")
_NAME_LENGTH_MAX: Final = 64
"""What providers allow in the name of a tool, and how long it may be."""


@dataclass(init=False)
class HandoffConfiguration:
    """Whom an agent may hand over to, and what its model is told of that. One target is one handoff."""

    target_id: str
    description: str | None = field(default=None, compare=False)

    def __init__(self, *, target: str | SupportsAgentRun, description: str | None = None) -> None:
        self.target_id = target if isinstance(target, str) else resolve_agent_id(target)
        self.description = description

    def __hash__(self) -> int:
        """By the target."""
        return hash(self.target_id)


def get_handoff_tool_name(target_id: str) -> str:
    """What the tool is called that hands over to an agent. Providers allow letters, digits, `_` and `-`, 64 of them."""
    return _NO_NAME.sub("_", f"handoff_to_{target_id}")[:_NAME_LENGTH_MAX]


def handoff_tool(handoff: HandoffConfiguration) -> FunctionTool:
    """The tool that hands over. Calling it ends the turn: its result is all that is recorded of it."""

    async def hand_over() -> None:
        raise MiddlewareTermination(result={_TARGET: handoff.target_id})

    return FunctionTool(
        name=get_handoff_tool_name(handoff.target_id),
        description=handoff.description or f"Hand the conversation over to {handoff.target_id}.",
        func=hand_over,
        input_model={"type": "object", "properties": {}},
        if_interrupted="rerun",
    )


def with_handoffs(agent: Agent[Any], handoffs: Sequence[HandoffConfiguration]) -> Agent[Any]:
    """A copy of an agent that has the tools to hand over. The agent that was given is not changed.

    Raises ValueError if two tools would have one name.
    """
    tools: list[Any] = list(agent.default_options.get("tools") or ())
    names = {getattr(tool, "name", None) for tool in tools}
    for handoff in handoffs:
        made = handoff_tool(handoff)
        if made.name in names:
            raise ValueError(
                f"agent {resolve_agent_id(agent)!r} has two tools named {made.name!r}, one of them to hand over to "
                f"{handoff.target_id!r}; rename the other tool, or that agent"
            )
        names.add(made.name)
        tools.append(made)
    copied = copy.copy(agent)
    copied.context_providers = list(agent.context_providers)
    copied.middleware = list(agent.middleware)
    copied.additional_properties = dict(agent.additional_properties)
    # One handoff at a time: models that can be told so are told so.
    copied.default_options = {**agent.default_options, "tools": tools, "allow_multiple_tool_calls": False}
    return copied


@dataclass(frozen=True, slots=True)
class Handoffs:
    """Whom an agent may hand over to, by the names of its tools."""

    targets: Mapping[str, str]

    @classmethod
    def of(cls, handoffs: Sequence[HandoffConfiguration]) -> Handoffs:
        """The handoffs of an agent."""
        return cls({get_handoff_tool_name(each.target_id): each.target_id for each in handoffs})

    def made(self, turn: Sequence[Message]) -> list[str]:
        """Whom the agent has handed over to in a turn, each once, in the order of the calls.

        A tool that merely returns what looks like a handoff is none; neither is a handoff whose result a middleware
        has replaced.
        """
        contents = [content for message in turn for content in message.contents]
        results = {each.call_id: each for each in contents if each.type == "function_result"}
        calls = [each for each in contents if each.type == "function_call" and each.name in self.targets]
        found = [self.targets[call.name or ""] for call in calls if self._is_made(call, results.get(call.call_id))]
        return list(dict.fromkeys(found))

    def _is_made(self, call: Content, result: Content | None) -> bool:
        if result is None or result.exception is not None:
            return False
        return _target_in(result.result) == self.targets[call.name or ""]


def _target_in(result: Any) -> Any:
    if isinstance(result, str):
        try:
            result = json.loads(result)
        except ValueError:
            return None
    return cast("Mapping[str, Any]", result).get(_TARGET) if isinstance(result, Mapping) else None


_SAID: Final = frozenset({"text"})
_SAID_BY_USERS: Final = frozenset({"text", "data", "uri", "hosted_file", "hosted_vector_store"})
_RETOLD: Final = "_attribution"
"""What a message has among its properties if it comes from a history."""


@dataclass
class HandoffSentEvent:
    """The data of a `handoff_sent` event: who has handed over to whom."""

    source: str
    target: str


@dataclass
class HandoffAgentUserRequest:
    """Asks the user to answer an agent, who has spoken and hands over to nobody."""

    agent_response: AgentResponse[Any]

    @staticmethod
    def create_response(response: str | list[str] | Message | list[Message]) -> list[Message]:
        """What the user says, as an answer. Raises TypeError if it is neither texts nor messages."""
        if not isinstance(response, str | Message | list):  # pyright: ignore[reportUnnecessaryIsInstance] - users' code is not always checked
            raise TypeError(f"the user answers with a str, a Message or a list of these, not {response!r}")
        return messages_of(response)

    @staticmethod
    def terminate() -> list[Message]:
        """The answer that ends the conversation: the agent stays silent."""
        return []


register_type(HandoffSentEvent, name="perdure:HandoffSentEvent")
register_type(HandoffAgentUserRequest, name="perdure:HandoffAgentUserRequest")


def clean_conversation_for_handoff(conversation: Sequence[Message]) -> list[Message]:
    """What was said, without calls of tools, their results and approvals. The messages that were given don't change.

    Others have neither made nor approved those calls, and models refuse results of calls that they have not made. Texts
    are kept, of users also images and files. A message of which nothing is left is left out.
    """
    return [kept for message in conversation if (kept := _cleaned(message)) is not None]


def _cleaned(message: Message) -> Message | None:
    kinds = _SAID_BY_USERS if message.role == "user" else _SAID
    kept = [each for each in message.contents if each.type in kinds and (each.type != "text" or each.text)]
    if not kept:
        return None
    return Message(
        message.role, kept, author_name=message.author_name, additional_properties=message.additional_properties
    )


def news(told: Sequence[Message], known: Sequence[Message]) -> list[Message]:
    """What is new in messages from outside: whoever talks to a workflow as an agent tells the conversation again."""
    if not any(_RETOLD in message.additional_properties for message in told):
        return list(told)
    heard = [(message.role, message.contents) for message in known]
    found: list[Message] = []
    place = 0
    for message in told:
        said = (message.role, message.contents)
        if _RETOLD in message.additional_properties and said in heard[place:]:
            place = heard.index(said, place) + 1
        else:
            found.append(message)
    return found
