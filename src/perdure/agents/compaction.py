"""Shorter conversations for a model: what a strategy of the user leaves out of a call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from perdure.agents.messages import Message

if TYPE_CHECKING:
    from collections.abc import Sequence

EXCLUDED = "_excluded"
"""Where a strategy says of a message, among its additional properties, that the model is not to see it."""


@runtime_checkable
class TokenizerProtocol(Protocol):
    """Counts tokens, for strategies that look at them."""

    def count_tokens(self, text: str) -> int:
        """How many tokens a text is."""
        ...


@runtime_checkable
class CompactionStrategy(Protocol):
    """Makes a conversation shorter before a model sees it."""

    async def __call__(self, messages: list[Message]) -> bool:
        """Change the list, or mark messages as excluded; True if something was changed.

        The messages are copies: a history keeps what was said.
        """
        ...


async def compacted(messages: Sequence[Message], strategy: CompactionStrategy | None) -> Sequence[Message]:
    """What a model is to see of a conversation."""
    if strategy is None:
        return messages
    copies = [_copy(message) for message in messages]
    await strategy(copies)
    return [message for message in copies if not message.additional_properties.get(EXCLUDED)]


def _copy(message: Message) -> Message:
    return Message(
        message.role,
        message.contents,
        author_name=message.author_name,
        message_id=message.message_id,
        additional_properties=message.additional_properties,
        raw_representation=message.raw_representation,
    )
