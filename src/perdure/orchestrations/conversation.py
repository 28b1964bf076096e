"""What is said in an orchestration, as messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias, cast

from perdure import Message

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
