"""Chats for tests: agents that repeat their input, and helpers to read results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure import Agent
from perdure.orchestrations import GroupChatRequestSentEvent
from perdure.testing import ScriptedChatClient

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from perdure import Message, WorkflowRunResult


def heard(messages: Sequence[Message], _: Mapping[str, Any]) -> str:
    """Return the earlier speakers by initial. A user is `-`."""
    return "heard " + " ".join((message.author_name or "-")[0] for message in messages if message.role != "system")


def talker(name: str, script: Any = heard, **more: Any) -> Agent[Any]:
    """An agent with a model of its own."""
    return Agent(ScriptedChatClient(script), name=name, **more)


def speakers(result: WorkflowRunResult) -> list[str]:
    """Return the participants that were asked to speak, in order."""
    asked = [event.data for event in result if isinstance(event.data, GroupChatRequestSentEvent)]
    assert [each.round_index for each in asked] == list(range(len(asked)))
    return [each.participant_name for each in asked]


def last_word(result: WorkflowRunResult) -> str:
    """The text of the last output."""
    return result.get_outputs()[-1].text
