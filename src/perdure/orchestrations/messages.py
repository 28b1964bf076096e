"""Messages between an orchestrator and the participants of a chat, and the data of chat events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from perdure import AgentExecutorRequest, AgentResponse, AgentResponseUpdate, Message, WorkflowContext, register_type

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass
class GroupChatRequestMessage:
    """Asks an executor in a chat to speak. The executor answers with a `GroupChatResponseMessage`."""

    additional_instruction: str | None = None
    metadata: dict[str, Any] | None = None


@dataclass
class GroupChatParticipantMessage:
    """Gives an executor in a chat the messages of others. It needs no answer."""

    messages: list[Message]


@dataclass
class GroupChatResponseMessage:
    """Answer of an executor in a chat to a `GroupChatRequestMessage`."""

    message: Message


@dataclass
class GroupChatRequestSentEvent:
    """Data of a `group_chat` event: a participant was asked to speak."""

    round_index: int
    participant_name: str


@dataclass
class GroupChatResponseReceivedEvent:
    """Data of a `group_chat` event: a participant has answered."""

    round_index: int
    participant_name: str


GroupChatWorkflowContextOutT: TypeAlias = AgentExecutorRequest | GroupChatRequestMessage | GroupChatParticipantMessage
"""Messages that an orchestrator sends."""
GroupChatContext: TypeAlias = WorkflowContext[GroupChatWorkflowContextOutT, AgentResponse | AgentResponseUpdate]
"""Context of an orchestrator's handlers."""

for _type in (
    GroupChatRequestMessage,
    GroupChatParticipantMessage,
    GroupChatResponseMessage,
    GroupChatRequestSentEvent,
    GroupChatResponseReceivedEvent,
):
    register_type(_type, name=f"perdure:{_type.__name__}")


def shared_messages(messages: Iterable[Message], speaker: str) -> list[Message]:
    """Return the text messages of an answer. Tool calls and results mean nothing to other models."""
    return [
        Message(message.role, [message.text], author_name=message.author_name or speaker, message_id=message.message_id)
        for message in messages
        if message.role != "tool" and message.text.strip()
    ]


def create_completion_message(*, text: str | None = None, author_name: str, reason: str = "completed") -> Message:
    """Return the final message of an orchestration: the text, or a sentence with the reason."""
    return Message("assistant", [text or f"Conversation {reason}."], author_name=author_name)


ChatInput: TypeAlias = str | Message | Sequence[str | Message]
"""Input of an orchestration."""


def to_messages(given: ChatInput) -> list[Message]:
    """Convert input to messages. A text becomes a user message. Raises TypeError for other types."""
    if isinstance(given, str | Message):
        return [_to_message(given)]
    return [_to_message(each) for each in given]


def require_messages(given: Sequence[str | Message]) -> list[Message]:
    """Convert input to messages. Raises ValueError if it is empty."""
    if not given:
        raise ValueError("the list of messages is empty: start an orchestration with at least one message")
    return to_messages(given)


def _to_message(given: str | Message) -> Message:
    value = cast("object", given)
    match value:
        case str():
            return Message("user", [value])
        case Message():
            return value
        case _:
            raise TypeError(f"the input of an orchestration must be str and Message objects, not {value!r}")
