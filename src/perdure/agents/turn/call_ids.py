"""Ids of calls: no two calls of a conversation have the same one, whatever the model calls them.

Some models give their calls no ids, and some count anew in each answer. Questions, answers, results and records are
found by these ids, so what an answer approves would be another call.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, MutableMapping
from dataclasses import field, replace
from itertools import count
from typing import TYPE_CHECKING, Any, Final, cast

from typing_extensions import override

from perdure.agents.client.middleware import ChatMiddleware
from perdure.agents.messages.content import Content
from perdure.agents.messages.conversation import INTERRUPTED, is_local
from perdure.agents.tools.results import error_of
from perdure.data import frozen, mutable
from perdure.streams import ResponseStream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from perdure.agents.client.middleware import CallNext, ChatContext
    from perdure.agents.messages.message import Message
    from perdure.agents.messages.responses import ChatResponse, ChatResponseUpdate

_ID_LENGTH_MAX: Final = 48
"""Providers refuse ids that are much longer."""


def ids_in(messages: Iterable[Message]) -> Iterator[str]:
    """The ids of all calls in a conversation."""
    for message in messages:
        for content in message.contents:
            for each in (content, content.function_call):
                if each is not None and each.call_id:
                    yield each.call_id


@mutable
class CallIds:
    """Gives the calls of one answer ids that are not taken. Those that are well stay as they are."""

    owner: str
    """Whose calls they are: agents that share a session may be asked side by side."""
    taken: set[str]
    is_kept_elsewhere: bool
    """Whether the provider keeps the conversation: then it knows the calls by the ids that it gave."""
    _seen: dict[str, list[tuple[Content, str]]] = field(default_factory=dict[str, "list[tuple[Content, str]]"])
    _of_pieces: dict[str, str] = field(default_factory=dict[str, str])

    def named(self, answer: ChatResponse[Any]) -> ChatResponse[Any]:
        """The answer, with ids that tell its calls apart."""
        every = [content for message in answer.messages for content in message.contents]
        done = {content.call_id for content in every if content.type == "function_result"}
        if answer.conversation_id is not None:
            self.is_kept_elsewhere = True
        messages = [self._with_ids(message, done) for message in answer.messages]
        if all(mine is its for mine, its in zip(messages, answer.messages, strict=True)):
            return answer
        whole = copy.copy(answer)
        whole.messages = messages
        return whole

    def _with_ids(self, message: Message, done: set[str | None]) -> Message:
        contents = [
            self._with_id(each) if is_local(each) and each.call_id not in done else each for each in message.contents
        ]
        if all(mine is its for mine, its in zip(contents, message.contents, strict=True)):
            return message
        changed = copy.copy(message)
        changed.contents = contents
        return changed

    def _with_id(self, call: Content) -> Content:
        given = call.call_id or ""
        before = self._seen.setdefault(given, [])
        same = next((chosen for other, chosen in before if given and _is_same(call, other)), None)
        chosen = same or self._chosen(given, is_first=not before)
        before.append((call, chosen))
        self.taken.add(chosen)
        return call if chosen == call.call_id else replace(call, call_id=chosen)

    def _chosen(self, given: str, *, is_first: bool) -> str:
        is_well = given not in self.taken or (is_first and self.is_kept_elsewhere)
        return given if given and is_well else self._fresh(given)

    def _fresh(self, given: str) -> str:
        # Only what every provider takes in an id.
        stem = given or f"call_{re.sub('[^a-zA-Z0-9_-]', '_', self.owner)}"
        return next(
            each for n in count(2 if given else 1) if (each := f"{stem[:_ID_LENGTH_MAX]}-{n}") not in self.taken
        )

    def piece(self, update: ChatResponseUpdate) -> ChatResponseUpdate:
        """A piece of the answer, with the ids that the whole will have. What has no id yet is told without one."""
        if self.is_kept_elsewhere or not any(self._is_renamed(each) for each in update.contents):
            return update
        changed = copy.copy(update)
        changed.contents = [
            replace(each, call_id=self._of_pieces[each.call_id or ""]) if self._is_renamed(each) else each
            for each in update.contents
        ]
        return changed

    def _is_renamed(self, content: Content) -> bool:
        given = content.call_id
        if not given or not is_local(content):
            return False
        if given not in self._of_pieces:
            self._of_pieces[given] = self._chosen(given, is_first=True)
            self.taken.add(self._of_pieces[given])
        return self._of_pieces[given] != given


def _is_same(call: Content, other: Content) -> bool:
    """Whether a model has said one call twice."""
    return (call.name, call.parse_arguments()) == (other.name, other.parse_arguments())


class NamesCalls(ChatMiddleware):
    """Stands next to the model, so that whatever middleware keeps of its answers has the ids that are used."""

    def __init__(self) -> None:
        self.ids: Callable[[], CallIds] | None = None

    @override
    async def process(self, context: ChatContext, call_next: CallNext) -> None:
        await call_next()
        assert self.ids is not None, "whoever asks says which ids are taken"
        ids = self.ids()
        if isinstance(context.result, ResponseStream):
            context.result.with_result_hook(ids.named)
        elif context.result is not None:
            context.result = ids.named(context.result)


MADE_KEY: Final = "tools_made"


@frozen
class MadeCalls:
    """The calls that an agent has made on approval, as a session knows them."""

    session: Any
    owner: str
    notes_begin: bool
    """Whether a call is noted before it is made. In a workflow its step is."""

    def begin(self, call: Content) -> None:
        """A call is about to be made."""
        if self.notes_begin:
            self._note(call, None)

    def finish(self, call: Content, contents: Sequence[Content]) -> None:
        """A call came to something. If it asks again, that is another question."""
        result = next((each for each in contents if each.type == "function_result"), None)
        if result is None:
            self._forget({self._key(call)})
        else:
            self._note(call, result)

    def untold(self, messages: Sequence[Message], *, is_whole: bool) -> list[Content]:
        """The results that a conversation lacks. What it has, and what nobody can ask for any more, is forgotten.

        `is_whole` says that the conversation is all there: else the provider keeps it.
        """
        every = [content for message in messages for content in message.contents]
        told = {content.call_id for content in every if content.type == "function_result"}
        visible = set(ids_in(messages))
        found: list[Content] = []
        for key, made in self._own().items():
            call = Content.from_dict(made["call"])
            if call.call_id in told or (is_whole and call.call_id not in visible):
                self._forget({key})
            else:
                given = made.get("result")
                found.append(error_of(call, INTERRUPTED, "interrupted") if given is None else Content.from_dict(given))
        return found

    def forget(self) -> None:
        """The provider has been told all of it."""
        self._forget(set(self._own()))

    def _key(self, call: Content) -> str:
        return f"{self.owner}/{call.call_id}"

    def _own(self) -> dict[str, Mapping[str, Any]]:
        return {key: made for key, made in self._all().items() if key.startswith(f"{self.owner}/")}

    def _all(self) -> Mapping[str, Mapping[str, Any]]:
        state = self._state()
        found: object = None if state is None else state.get(MADE_KEY)
        return cast("Mapping[str, Mapping[str, Any]]", found) if isinstance(found, Mapping) else {}

    def _note(self, call: Content, result: Content | None) -> None:
        state = self._state()
        if state is not None:
            made = {"call": call.to_dict(), "result": None if result is None else result.to_dict()}
            state[MADE_KEY] = {**self._all(), self._key(call): made}

    def _forget(self, keys: set[str]) -> None:
        state = self._state()
        if state is None or not keys & set(self._all()):
            return
        if left := {key: made for key, made in self._all().items() if key not in keys}:
            state[MADE_KEY] = left
        else:
            del state[MADE_KEY]

    def _state(self) -> MutableMapping[str, Any] | None:
        state = getattr(self.session, "state", None)
        return cast("MutableMapping[str, Any]", state) if isinstance(state, MutableMapping) else None
