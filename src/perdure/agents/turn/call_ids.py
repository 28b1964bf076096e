"""Call ids that are unique in a conversation, and the session's notes of approved calls.

Some models give their calls no ids, others reuse ids in each response. Approvals, results and records are found by
these ids, so a repeated id could approve another call.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING, Any, Final, cast

from typing_extensions import override

from perdure.agents.client.middleware import ChatMiddleware
from perdure.agents.messages.content import Content, function_error
from perdure.agents.messages.conversation import INTERRUPTED, is_local_call
from perdure.agents.turn.approvals import state_of
from perdure.streams import ResponseStream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from perdure.agents.client.middleware import CallNext, ChatContext
    from perdure.agents.messages.message import Message
    from perdure.agents.messages.responses import ChatResponse, ChatResponseUpdate

_ID_LENGTH_MAX: Final = 48
"""Providers reject much longer ids."""


def ids_in(messages: Iterable[Message]) -> Iterator[str]:
    """Yield the ids of all calls in a conversation."""
    for message in messages:
        for content in message.contents:
            for each in (content, content.function_call):
                if each is not None and each.call_id:
                    yield each.call_id


@dataclass(slots=True)
class CallIds:
    """Give the calls of one response ids that are not in use. Valid ids stay."""

    owner: str
    """The agent that makes the calls. Agents that share a session may run in parallel."""
    taken: set[str]
    is_stored_by_provider: bool
    """True if the provider stores the conversation: it knows the calls by its own ids."""
    _seen: dict[str, list[tuple[Content, str]]] = field(default_factory=dict[str, "list[tuple[Content, str]]"])
    _of_updates: dict[str, str] = field(default_factory=dict[str, str])

    def assign(self, response: ChatResponse[Any]) -> ChatResponse[Any]:
        """Return the response with unique call ids."""
        every = [content for message in response.messages for content in message.contents]
        done = {content.call_id for content in every if content.type == "function_result"}
        if response.conversation_id is not None:
            self.is_stored_by_provider = True
        messages = [
            message.with_contents(
                [
                    self._with_id(each) if is_local_call(each) and each.call_id not in done else each
                    for each in message.contents
                ]
            )
            for message in response.messages
        ]
        if all(new is old for new, old in zip(messages, response.messages, strict=True)):
            return response
        whole = copy.copy(response)
        whole.messages = messages
        return whole

    def _with_id(self, call: Content) -> Content:
        given = call.call_id or ""
        before = self._seen.setdefault(given, [])
        same = next((chosen for other, chosen in before if given and _is_same(call, other)), None)
        chosen = same or self._choose_id(given, is_first=not before)
        before.append((call, chosen))
        self.taken.add(chosen)
        return call if chosen == call.call_id else replace(call, call_id=chosen)

    def _choose_id(self, given: str, *, is_first: bool) -> str:
        is_free = given not in self.taken or (is_first and self.is_stored_by_provider)
        return given if given and is_free else self._new_id(given)

    def _new_id(self, given: str) -> str:
        # Use only characters that every provider accepts.
        stem = given or f"call_{re.sub('[^a-zA-Z0-9_-]', '_', self.owner)}"
        return next(
            each for n in count(2 if given else 1) if (each := f"{stem[:_ID_LENGTH_MAX]}-{n}") not in self.taken
        )

    def assign_update(self, update: ChatResponseUpdate) -> ChatResponseUpdate:
        """Return a stream update with the ids that the final response will have. A missing id stays missing."""
        if self.is_stored_by_provider or not any(self._is_renamed(each) for each in update.contents):
            return update
        changed = copy.copy(update)
        changed.contents = [
            replace(each, call_id=self._of_updates[each.call_id or ""]) if self._is_renamed(each) else each
            for each in update.contents
        ]
        return changed

    def _is_renamed(self, content: Content) -> bool:
        given = content.call_id
        if not given or not is_local_call(content):
            return False
        if given not in self._of_updates:
            self._of_updates[given] = self._choose_id(given, is_first=True)
            self.taken.add(self._of_updates[given])
        return self._of_updates[given] != given


def _is_same(call: Content, other: Content) -> bool:
    """Return True if the model repeated one call."""
    return (call.name, call.parse_arguments()) == (other.name, other.parse_arguments())


class AssignCallIds(ChatMiddleware):
    """Run next to the model, so that all other middleware sees the final call ids."""

    def __init__(self) -> None:
        self.ids: Callable[[], CallIds] | None = None

    @override
    async def process(self, context: ChatContext, call_next: CallNext) -> None:
        await call_next()
        assert self.ids is not None, "set before the model is called"
        ids = self.ids()
        if isinstance(context.result, ResponseStream):
            context.result.with_result_hook(ids.assign)
        elif context.result is not None:
            context.result = ids.assign(context.result)


APPROVED_CALLS_KEY: Final = "tools_made"
"""Where a session's state notes the calls that were made after approval."""


@dataclass(frozen=True, slots=True)
class ApprovedCalls:
    """The session's notes of calls that an agent made after approval, until the model has their results."""

    session: Any
    owner: str
    notes_begin: bool
    """True if a call is noted before it is made. In a workflow its step does that."""

    def begin(self, call: Content) -> None:
        """Note a call before it is made."""
        if self.notes_begin:
            self._note(call, None)

    def finish(self, call: Content, contents: Sequence[Content]) -> None:
        """Note the result of a call. A call that asks again is forgotten: that is a new question."""
        result = next((each for each in contents if each.type == "function_result"), None)
        if result is None:
            self._forget({f"{self.owner}/{call.call_id}"})
        else:
            self._note(call, result)

    def missing_results(self, messages: Sequence[Message], *, is_complete: bool) -> list[Content]:
        """Return the results that a conversation lacks. Forget those that it has or can no longer ask for.

        `is_complete=False` means that the provider stores the conversation.
        """
        own = self._own()
        if not own:
            return []
        every = [content for message in messages for content in message.contents]
        known = {content.call_id for content in every if content.type == "function_result"}
        visible = set(ids_in(messages))
        found: list[Content] = []
        for key, note in own.items():
            call, result = Content.from_dict(note["call"]), note.get("result")
            if call.call_id in known or (is_complete and call.call_id not in visible):
                self._forget({key})
            elif result is None:
                found.append(function_error(call, INTERRUPTED, "interrupted"))
            else:
                found.append(Content.from_dict(result))
        return found

    def forget(self) -> None:
        """Forget all calls: the provider has their results."""
        self._forget(set(self._own()))

    def _own(self) -> dict[str, Mapping[str, Any]]:
        return {key: note for key, note in self._all().items() if key.startswith(f"{self.owner}/")}

    def _all(self) -> dict[str, Mapping[str, Any]]:
        found: object = (state_of(self.session) or {}).get(APPROVED_CALLS_KEY)
        return dict(cast("Mapping[str, Mapping[str, Any]]", found)) if isinstance(found, Mapping) else {}

    def _note(self, call: Content, result: Content | None) -> None:
        note = {"call": call.to_dict(), "result": None if result is None else result.to_dict()}
        self._set({**self._all(), f"{self.owner}/{call.call_id}": note})

    def _forget(self, keys: set[str]) -> None:
        every = self._all()
        if keys & set(every):
            self._set({key: note for key, note in every.items() if key not in keys})

    def _set(self, notes: dict[str, Mapping[str, Any]]) -> None:
        state = state_of(self.session)
        if state is not None and notes:
            state[APPROVED_CALLS_KEY] = notes
        elif state is not None:
            del state[APPROVED_CALLS_KEY]
