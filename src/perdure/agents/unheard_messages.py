"""Conversations that are told again: what of them somebody has not heard yet."""

from __future__ import annotations

import json
import sys
from bisect import bisect_left
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, TypeAlias

from perdure.agents.messages import Message
from perdure.agents.providers import ATTRIBUTION

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from perdure.agents.content import Content

_Key: TypeAlias = tuple[str, str]

_WITH_IDS = frozenset({"function_call", "function_result"})


def unheard(told: Sequence[Message], known: Iterable[Message]) -> list[Message]:
    """What is new to whoever knows something already, in its order.

    Only what says that it comes from a history can be left out: who says the same words twice means it.
    """
    if not any(_is_told_again(message) for message in told):
        return list(told)
    heard = _Heard(known)
    return [rest for message in told if (rest := heard.rest_of(message)) is not None]


def _is_told_again(message: Message) -> bool:
    return ATTRIBUTION in message.additional_properties


class _Heard:
    """What somebody knows. Calls and results are known by their ids, whatever else is said of them; the rest in order.

    A call that was asked about is told with fewer words later, and results come in any order.
    """

    def __init__(self, known: Iterable[Message]) -> None:
        self._ids: Counter[_Key] = Counter()
        self._places: defaultdict[_Key, list[int]] = defaultdict(list)
        self._place = 0
        self._begin = sys.maxsize
        """Where what is told again begins in what is known."""
        for place, (role, content) in enumerate((each.role, content) for each in known for content in each.contents):
            if _has_id(content):
                self._ids[_id_of(content)] += 1
            else:
                self._places[_words_of(role, content)].append(place)

    def rest_of(self, message: Message) -> Message | None:
        """What of a message is new; None if nothing is."""
        if not _is_told_again(message):
            return message
        rest = [content for content in message.contents if not self._is_heard(message.role, content)]
        if len(rest) == len(message.contents):
            return message
        return _with_contents(message, rest) if rest else None

    def _is_heard(self, role: str, content: Content) -> bool:
        if _has_id(content):
            key = _id_of(content)
            is_heard = self._ids[key] > 0
            self._ids[key] -= is_heard
            return is_heard
        places = self._places.get(_words_of(role, content), [])
        at = bisect_left(places, self._place)
        if at == len(places):
            # What was said side by side two may have heard in different orders. What is told may begin late, though:
            # the same words before that are others.
            at = bisect_left(places, self._begin)
        if at == len(places):
            return False
        place = places.pop(at)
        self._begin = min(self._begin, place)
        self._place = max(self._place, place + 1)
        return True


def _has_id(content: Content) -> bool:
    return content.type in _WITH_IDS and bool(content.call_id)


def _id_of(content: Content) -> _Key:
    return content.type, content.call_id or ""


def _words_of(role: str, content: Content) -> _Key:
    return role, content.text or "" if content.type == "text" else json.dumps(content.to_dict(), default=str)


def _with_contents(message: Message, contents: Sequence[Content]) -> Message:
    return Message(
        message.role,
        contents,
        author_name=message.author_name,
        message_id=message.message_id,
        additional_properties=message.additional_properties,
    )
