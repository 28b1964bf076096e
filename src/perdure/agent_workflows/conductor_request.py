"""What an execution is asked to do, of the many forms in which it can be said."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure import Message, normalize_messages
from perdure.agent_workflows.outputs import json_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure import AgentExecutorResponse


def request_in(messages: Sequence[str | Message]) -> str:
    """What is asked in a conversation: all that was said since an agent has spoken last. Raises ValueError if nothing.

    If an agent has the last word, that is it.
    """
    said = normalize_messages(list(messages))
    asked: list[str] = []
    for message in reversed(said):
        if asked and message.role != "user":
            break
        asked.insert(0, message.text)
        if message.role != "user":
            break
    text = "\n\n".join(each for each in asked if each.strip())
    if not text:
        raise ValueError("an agent workflow begins with a request, and there is no word in what it was given")
    return text


def request_of(response: AgentExecutorResponse) -> str:
    """What another agent has said, as a request."""
    return request_in(response.agent_response.messages or [""])


def request_as_text(request: Any) -> str:
    """A request as a text: one that is none is written as JSON."""
    return request if isinstance(request, str) else json_text(request)
