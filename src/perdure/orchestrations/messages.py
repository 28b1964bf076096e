"""What an orchestrator and the participants of a chat send to each other, and the events that tell of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from perdure import AgentExecutorRequest, AgentResponse, AgentResponseUpdate, Message, WorkflowContext, register_type

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass
class GroupChatRequestMessage:
    """Asks an executor that takes part in a chat to speak. It answers with a `GroupChatResponseMessage`."""

    additional_instruction: str | None = None
    metadata: dict[str, Any] | None = None


@dataclass
class GroupChatParticipantMessage:
    """Tells an executor that takes part in a chat what others have said. It is no question."""

    messages: list[Message]


@dataclass
class GroupChatResponseMessage:
    """What an executor that takes part in a chat says when it is asked."""

    message: Message


@dataclass
class GroupChatRequestSentEvent:
    """The data of a `group_chat` event: a participant was asked to speak."""

    round_index: int
    participant_name: str


@dataclass
class GroupChatResponseReceivedEvent:
    """The data of a `group_chat` event: a participant has spoken."""

    round_index: int
    participant_name: str


GroupChatWorkflowContextOutT: TypeAlias = AgentExecutorRequest | GroupChatRequestMessage | GroupChatParticipantMessage
"""What an orchestrator sends."""
GroupChatContext: TypeAlias = WorkflowContext[GroupChatWorkflowContextOutT, AgentResponse | AgentResponseUpdate]
"""What a handler of an orchestrator is given."""

for _type in (
    GroupChatRequestMessage,
    GroupChatParticipantMessage,
    GroupChatResponseMessage,
    GroupChatRequestSentEvent,
    GroupChatResponseReceivedEvent,
):
    register_type(_type, name=f"perdure:{_type.__name__}")


def spoken(messages: Iterable[Message], speaker: str) -> list[Message]:
    """What of an answer others are told: the words. Calls of tools and their results mean nothing to other models."""
    return [
        Message(message.role, [message.text], author_name=message.author_name or speaker, message_id=message.message_id)
        for message in messages
        if message.role != "tool" and message.text.strip()
    ]


def create_completion_message(*, text: str | None = None, author_name: str, reason: str = "completed") -> Message:
    """The last word of an orchestration: the text, or that it is over and why."""
    return Message("assistant", [text or f"Conversation {reason}."], author_name=author_name)


Said: TypeAlias = str | Message | Sequence[str | Message]
"""What a person may say to begin with."""


def messages_of(said: Said) -> list[Message]:
    """What was said as messages: a text is a message of the user. Raises TypeError for anything else."""
    if isinstance(said, str | Message):
        return [_message(said)]
    return [_message(each) for each in said]


def some_messages_of(said: Sequence[str | Message]) -> list[Message]:
    """The same. Raises ValueError if nothing was said."""
    if not said:
        raise ValueError("an orchestration begins with a message: the list is empty")
    return messages_of(said)


def _message(said: str | Message) -> Message:
    given = cast("object", said)
    match given:
        case str():
            return Message("user", [given])
        case Message():
            return given
        case _:
            raise TypeError(f"an orchestration is told strs and Messages; among them was {given!r}")
