"""Handoff tools: an agent calls one to hand off. Also the handoff's messages and events."""

from __future__ import annotations

import copy
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
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
from perdure.orchestrations.participants import to_messages

if TYPE_CHECKING:
    from perdure import Agent

_TARGET_KEY: Final = "handoff_to"
_INVALID_NAME_CHARACTERS: Final = re.compile(r"[^a-zA-Z0-9_-]")
# Maximum length of a tool name that providers accept.
_NAME_LENGTH_MAX: Final = 64
_NAME_DIGEST_BYTES: Final = 4


@dataclass(init=False)
class HandoffConfiguration:
    """An allowed handoff: the target agent, and the description for the model. Equal if the targets are."""

    target_id: str
    description: str | None = field(default=None, compare=False)

    def __init__(self, *, target: str | SupportsAgentRun, description: str | None = None) -> None:
        self.target_id = target if isinstance(target, str) else resolve_agent_id(target)
        self.description = description

    def __hash__(self) -> int:
        return hash(self.target_id)


def get_handoff_tool_name(target_id: str) -> str:
    """Return the name of the tool that hands off to an agent. Providers accept 64 letters, digits, `_` and `-`.

    A name that loses letters of another alphabet, or its end, gets a digest, so that it stays unique.
    """
    name = _INVALID_NAME_CHARACTERS.sub("_", f"handoff_to_{target_id}")
    if target_id.isascii() and len(name) <= _NAME_LENGTH_MAX:
        return name
    digest = hashlib.blake2b(target_id.encode(), digest_size=_NAME_DIGEST_BYTES).hexdigest()
    return f"{name[: _NAME_LENGTH_MAX - len(digest) - 1]}_{digest}"


def _handoff_tool(handoff: HandoffConfiguration) -> FunctionTool:
    """Return the tool that hands off. A call ends the turn, and its result records the handoff."""

    async def hand_over(**ignored: Any) -> None:
        del ignored  # a model may give a reason, although no argument is declared
        raise MiddlewareTermination(result={_TARGET_KEY: handoff.target_id})

    target, name = f"Hand the conversation over to {handoff.target_id}.", get_handoff_tool_name(handoff.target_id)
    description = handoff.description or target
    if not handoff.target_id.isascii() and description != target:
        # The name of the tool does not show whom it hands off to.
        description = f"{target} {description}"
    return FunctionTool(
        name=name,
        description=description,
        func=hand_over,
        input_model={"type": "object", "properties": {}},
        if_interrupted="rerun",
    )


def add_handoff_tools(agent: Agent[Any], handoffs: Sequence[HandoffConfiguration]) -> Agent[Any]:
    """Return a copy of an agent with handoff tools. Raises ValueError if two tools have the same name."""
    tools: list[Any] = list(agent.default_options.get("tools") or ())
    names = {getattr(tool, "name", None) for tool in tools}
    for handoff in handoffs:
        tool = _handoff_tool(handoff)
        if tool.name in names:
            raise ValueError(
                f"agent {resolve_agent_id(agent)!r} has two tools named {tool.name!r}, and one hands off to "
                f"{handoff.target_id!r}; rename the other tool or that agent"
            )
        names.add(tool.name)
        tools.append(tool)
    copied = copy.copy(agent)
    copied.context_providers = list(agent.context_providers)
    copied.middleware = list(agent.middleware)
    copied.additional_properties = dict(agent.additional_properties)
    # Ask models for one handoff at a time, where the provider supports it.
    copied.default_options = {**agent.default_options, "tools": tools, "allow_multiple_tool_calls": False}
    return copied


def find_handoffs(turn: Sequence[Message], targets: Mapping[str, str]) -> list[str]:
    """Return the targets that the agent handed off to in a turn, in order of the calls. `targets` are by tool name.

    Only a handoff tool with its own result counts: not another tool with a similar result, and not a handoff whose
    result a middleware replaced.
    """
    contents = [content for message in turn for content in message.contents]
    results = {each.call_id: each for each in contents if each.type == "function_result" and each.exception is None}
    calls = [each for each in contents if each.type == "function_call" and each.call_id in results]
    found = [
        target
        for call in calls
        if (target := targets.get(call.name or "")) and _result_target(results[call.call_id].result) == target
    ]
    return list(dict.fromkeys(found))


def _result_target(result: Any) -> Any:
    if isinstance(result, str):
        try:
            result = json.loads(result)
        except ValueError:
            return None
    return cast("Mapping[str, Any]", result).get(_TARGET_KEY) if isinstance(result, Mapping) else None


_CONTENT_TYPES: Final = frozenset({"text"})
_USER_CONTENT_TYPES: Final = frozenset({"text", "data", "uri", "hosted_file", "hosted_vector_store"})


@dataclass
class HandoffSentEvent:
    """Data of a `handoff_sent` event."""

    source: str
    target: str


@dataclass
class HandoffAgentUserRequest:
    """Asks the user to answer an agent that ended its turn without a handoff."""

    agent_response: AgentResponse[Any]

    @staticmethod
    def create_response(response: str | list[str] | Message | list[Message]) -> list[Message]:
        """Return the user's answer to the request. Raises TypeError for other types."""
        if not isinstance(response, str | Message | list):  # pyright: ignore[reportUnnecessaryIsInstance] - users' code is not always checked
            raise TypeError(f"a user response must be a str, a Message or a list of these, not {response!r}")
        return to_messages(response)

    @staticmethod
    def terminate() -> list[Message]:
        """Return the answer that ends the conversation."""
        return []


register_type(HandoffSentEvent, name="perdure:HandoffSentEvent")
register_type(HandoffAgentUserRequest, name="perdure:HandoffAgentUserRequest")


def clean_conversation_for_handoff(conversation: Sequence[Message]) -> list[Message]:
    """Return copies of the messages without tool calls, results and approvals.

    Models reject results of calls that they did not make. Text is kept, and images and files of users. Messages that
    become empty are dropped.
    """
    cleaned: list[Message] = []
    for message in conversation:
        kinds = _USER_CONTENT_TYPES if message.role == "user" else _CONTENT_TYPES
        kept = [each for each in message.contents if each.type in kinds and (each.type != "text" or each.text)]
        if kept:
            properties = message.additional_properties
            cleaned.append(
                Message(message.role, kept, author_name=message.author_name, additional_properties=properties)
            )
    return cleaned
