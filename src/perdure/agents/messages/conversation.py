"""Conversations as models take them: each call is followed by its result, and nothing else is asked of anybody.

A conversation may be otherwise: a process died before a call had its result, a user went on without approving one, an
answer came late. What is kept is what happened; what a model is shown is mended, each time it is asked.
"""

from __future__ import annotations

import copy
import json
import sys
from bisect import bisect_left
from collections import Counter, defaultdict, deque
from dataclasses import field
from typing import TYPE_CHECKING, Final, TypeAlias

from perdure.agents.messages.message import Message
from perdure.agents.sessions.providers import ATTRIBUTION
from perdure.agents.tools.results import error_of, result_of
from perdure.data import mutable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from perdure.agents.messages.content import Content

INTERRUPTED: Final = "interrupted: there is no result, and whether the call had an effect is unknown"
_MENDED: Final = frozenset(
    {"function_call", "function_result", "function_approval_request", "function_approval_response"}
)
UNDECIDED: Final = "the call was not made: it waits for approval, and nobody has answered yet"


def repaired(messages: Sequence[Message], *, is_whole: bool = True) -> list[Message]:
    """The conversation as a model takes it. The messages that were given are not changed.

    Calls without a result are given one that says so, results stand right behind their calls, those without a call are
    left out, and so are questions to the user. `is_whole` says that the calls of all results are there to be seen: it
    is not so if the provider keeps the conversation, and is sent only what is new.
    """
    if not any(content.type in _MENDED for message in messages for content in message.contents):
        return [message for message in messages if message.contents]
    said = _without_approvals(messages)
    if not is_whole:
        return [_like(entry.message, entry.contents) for entry in said if entry.contents]
    ledger = _Ledger.of(said)
    mended: list[Message] = []
    for place, entry in enumerate(said):
        kept = [content for content in entry.contents if id(content) not in ledger.taken]
        if kept:
            mended.append(_like(entry.message, kept))
        if results := ledger.results(place):
            mended.append(ledger.source(place, results) or Message("tool", results))
        if late := ledger.late.get(place):
            mended.append(Message("assistant", list(late), author_name=entry.message.author_name))
            mended.append(Message("tool", ledger.results_of(late, place), author_name=entry.message.author_name))
    return mended


@mutable
class _Said:
    """A message, and what of its contents a model may see."""

    message: Message
    contents: list[Content]
    is_undecided: bool = False
    """Whether something that it asks for waits for approval."""
    answered: set[str | None] = field(default_factory=set["str | None"])
    """The ids of calls that are approved or rejected here."""


def _without_approvals(messages: Sequence[Message]) -> list[_Said]:
    """What was said, with calls in the place of questions about them that stand alone."""
    calls = {each.call_id for message in messages for each in message.contents if each.type == "function_call"}
    # Ids may come again: an answer is one to what was asked before it.
    answered = {
        each.id: place for place, message in enumerate(messages) for each in message.contents if is_answer(each)
    }
    found: list[_Said] = []
    for place, message in enumerate(messages):
        entry = _Said(message, [])
        for content in message.contents:
            if is_answer(content):
                entry.answered |= {content.id, (content.function_call or content).call_id}
                continue
            if not is_question(content):
                entry.contents.append(content)
                continue
            entry.is_undecided |= answered.get(content.id, -1) < place
            call = content.function_call
            if call is not None and call.call_id not in calls and not is_of_a_tool(content):
                calls.add(call.call_id)
                entry.contents.append(call)
        found.append(entry)
    return found


def is_question(content: Content) -> bool:
    """Whether this is our question whether a call may be made."""
    return content.type == "function_approval_request" and not is_hosted(content)


def is_answer(content: Content) -> bool:
    """Whether this answers such a question."""
    return content.type == "function_approval_response" and not is_hosted(content)


def is_hosted(content: Content) -> bool:
    """Whether a question or an answer is about a call that the provider makes: it goes there as it is."""
    call = content.function_call
    return call is not None and (call.type != "function_call" or bool(call.additional_properties.get("server_label")))


def is_of_a_tool(question: Content) -> bool:
    """Whether a tool has asked, in the middle of its call: what it asks about is not in this conversation.

    The ids tell: those of the calls need not, the call of a tool and one that is made in it may be called the same.
    """
    return bool(question.call_id) and (question.id or "").startswith(tool_question_id(question, ""))


def tool_question_id(call: Content, own_id: str) -> str:
    """The id of a question that a tool asks: calls beside it may ask under the same id."""
    return f"{call.call_id}/{own_id}"


def is_local(call: Content) -> bool:
    """Whether this is a call that is to be made here, and not one that the provider has made."""
    return call.type == "function_call" and not call.informational_only


@mutable
class _Ledger:
    """Which result belongs to which call."""

    said: list[_Said]
    calls: dict[int, list[Content]] = field(default_factory=dict[int, "list[Content]"])
    """By the place of their message."""
    result_of_call: dict[int, Content] = field(default_factory=dict[int, "Content"])
    """By the identity of the call: ids of calls may come again."""
    taken: set[int] = field(default_factory=set[int])
    """Results and calls that don't stay where they were."""
    late: dict[int, list[Content]] = field(default_factory=dict[int, "list[Content]"])
    """Calls that stand where their results came, after the model had gone on to speak of something else."""

    @classmethod
    def of(cls, said: list[_Said]) -> _Ledger:
        ledger = cls(said)
        hosted = {each.call_id for entry in said for each in entry.contents if each.informational_only}
        early: defaultdict[str | None, deque[Content]] = defaultdict(deque)
        for place, entry in enumerate(said):
            ledger.calls[place] = [each for each in entry.contents if is_local(each)]
            for content in entry.contents:
                if content.type != "function_result" or content.call_id in hosted:
                    continue
                ledger.taken.add(id(content))
                call_place = ledger._closes(content, place)
                if call_place is None:
                    early[content.call_id].append(content)
                else:
                    ledger._put_off(content, call_place, place)
        for call in ledger._open():
            if waiting := early[call.call_id]:
                ledger.result_of_call[id(call)] = waiting.popleft()
        return ledger

    def _closes(self, result: Content, place: int) -> int | None:
        """Give a result to the first call of its id in the latest message that has one open; where that stands.

        Agents that share a history may use the same ids: a call of whoever has the result comes first.
        """
        author = self.said[place].message.author_name
        places = range(place, -1, -1)
        own = [each for each in places if author is not None and self.said[each].message.author_name == author]
        for earlier in (*own, *places):
            for call in self.calls[earlier]:
                if call.call_id == result.call_id and id(call) not in self.result_of_call:
                    self.result_of_call[id(call)] = result
                    return earlier
        return None

    def _put_off(self, result: Content, call_place: int, place: int) -> None:
        """Let a call that was decided late stand there: else a conversation may end with what the model said before."""
        answered = (each for each in range(place, call_place, -1) if result.call_id in self.said[each].answered)
        decided = next(answered, place)
        if not self._has_spoken_between(call_place, decided):
            return
        call = next(each for each in self.calls[call_place] if self.result_of_call.get(id(each)) is result)
        self.calls[call_place] = [each for each in self.calls[call_place] if each is not call]
        self.taken.add(id(call))
        self.late.setdefault(decided, []).append(call)

    def _has_spoken_between(self, first: int, second: int) -> bool:
        """Whether the model said something between two places that was no call."""
        between = (entry for entry in self.said[first + 1 : second] if entry.message.role == "assistant")
        return any(content.type == "text" and content.text for entry in between for content in entry.contents)

    def _open(self) -> Iterable[Content]:
        every = (call for calls in self.calls.values() for call in calls)
        return (call for call in every if id(call) not in self.result_of_call)

    def results(self, place: int) -> list[Content]:
        """The results of the calls in a message, in their order."""
        return self.results_of(self.calls[place], place)

    def results_of(self, calls: Sequence[Content], place: int) -> list[Content]:
        """The results of calls, in their order."""
        return [self.result_of_call.get(id(call)) or self._missing(call, place) for call in calls]

    def _missing(self, call: Content, place: int) -> Content:
        if self.said[place].is_undecided:
            return result_of(call, UNDECIDED)
        return error_of(call, INTERRUPTED, "interrupted")

    def source(self, place: int, results: Sequence[Content]) -> Message | None:
        """The message that has just these results, if it follows: then nothing has to be mended."""
        following = self.said[place + 1].message if place + 1 < len(self.said) else None
        if following is None or [id(each) for each in following.contents] != [id(each) for each in results]:
            return None
        return following


def _like(message: Message, contents: list[Content]) -> Message:
    """The message, with these contents."""
    if [id(each) for each in contents] == [id(each) for each in message.contents]:
        return message
    changed = copy.copy(message)
    changed.contents = contents
    return changed


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
