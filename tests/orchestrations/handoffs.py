"""A help desk of three agents for handoff tests, and helpers to read its runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure import Agent
from perdure.orchestrations import HandoffBuilder
from perdure.testing import ScriptedChatClient

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from perdure import Message, Workflow, WorkflowEvent, WorkflowRunResult
    from perdure.testing import ScriptedCall

NAMES = ("triage", "billing", "tech")


def agents(
    script: Mapping[str, Any], *, tools: Mapping[str, Sequence[Any]] | None = None, **more: Any
) -> tuple[ScriptedChatClient, list[Agent[Any]]]:
    """The agents, and their common model."""
    client = ScriptedChatClient({name: script.get(name, ["nothing to say"]) for name in NAMES})
    made: list[Agent[Any]] = [
        Agent(client, f"You are {name}.", name=name, tools=list((tools or {}).get(name, ())), **more) for name in NAMES
    ]
    return client, made


def desk(
    script: Mapping[str, Any], *, tools: Mapping[str, Sequence[Any]] | None = None, **more: Any
) -> tuple[ScriptedChatClient, Workflow]:
    """A workflow in which each may hand over to each, triage speaks first, and the model that all have."""
    client, made = agents(script, tools=tools)
    return client, HandoffBuilder(participants=made, **more).with_start_agent("triage").build()


def always(reply: Any) -> Any:
    """A script without an end."""

    def replied(messages: Sequence[Message], options: Mapping[str, Any]) -> Any:
        del messages, options
        return reply

    return replied


def said(result: WorkflowRunResult) -> list[str]:
    """The outputs, in words."""
    return [f"{response.messages[0].author_name}: {response.text}" for response in result.get_outputs()]


def handed(events: Iterable[WorkflowEvent[Any]]) -> list[tuple[str, str]]:
    """Return source and target of each handoff."""
    return [(event.data.source, event.data.target) for event in events if event.type == "handoff_sent"]


def asked(result: WorkflowRunResult) -> WorkflowEvent[Any]:
    """The one question of a run."""
    [request] = result.get_request_info_events()
    return request


def answering(result: WorkflowRunResult, text: str) -> dict[str, Any]:
    """The answer of the user to the one question."""
    request = asked(result)
    return {request.request_id: request.data.create_response(text)}


def shown(call: ScriptedCall) -> list[str]:
    """Return the messages of a model call without the instructions: the author, and the text, calls and results."""
    return [
        f"{message.author_name or message.role}: "
        + " ".join(str(content.text or content.name or content.result or content.type) for content in message.contents)
        for message in call.messages
        if message.role != "system"
    ]
