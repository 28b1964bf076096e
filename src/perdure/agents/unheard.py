"""Conversations that are told again: what of them somebody has not heard yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.agents.providers import ATTRIBUTION

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure.agents.messages import Message


def unheard(told: Sequence[Message], known: Sequence[Message]) -> list[Message]:
    """What is new to whoever knows something already, in its order.

    Only what says that it comes from a history can be left out: who says the same words twice means it.
    """
    found: list[Message] = []
    place = 0
    for message in told:
        at = _place_of(message, known, place) if ATTRIBUTION in message.additional_properties else None
        if at is None:
            found.append(message)
        else:
            place = at + 1
    return found


def _place_of(message: Message, known: Sequence[Message], start: int) -> int | None:
    for place in range(start, len(known)):
        if known[place].role == message.role and known[place].contents == message.contents:
            return place
    return None
