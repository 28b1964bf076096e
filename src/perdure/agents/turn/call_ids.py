"""Call ids that are unique in a conversation.

Some models give their calls no ids, others reuse ids in each response. Approvals, results and records are found by
these ids, so a repeated id could approve another call.
"""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from perdure.agents.messages.conversation import is_local_call

if TYPE_CHECKING:
    from perdure.agents.messages.content import Content
    from perdure.agents.messages.responses import ChatResponse, ChatResponseUpdate

_ID_LENGTH_MAX: Final = 48
"""Providers reject much longer ids."""


@dataclass(slots=True)
class CallIds:
    """Give the calls of one response ids that are not in use. Valid ids stay.

    Attributes:
        owner: The agent that makes the calls. Agents that share a session may run in parallel.
        is_stored_by_provider: True if the provider stores the conversation: it knows the calls by its own ids.
    """

    owner: str
    taken: set[str]
    is_stored_by_provider: bool
    _seen: dict[str, list[tuple[Content, str]]] = field(default_factory=dict[str, "list[tuple[Content, str]]"])
    _of_updates: dict[str, str] = field(default_factory=dict[str, str])

    def assign(self, response: ChatResponse[Any]) -> ChatResponse[Any]:
        """Return the response with unique call ids."""
        every = [content for message in response.messages for content in message.contents]
        done = {content.call_id for content in every if content.type == "function_result"}
        self.is_stored_by_provider |= response.conversation_id is not None
        whole = copy.copy(response)
        whole.messages = [
            message.with_contents([each if each.call_id in done else self._with_id(each) for each in message.contents])
            for message in response.messages
        ]
        return whole

    def _with_id(self, call: Content) -> Content:
        if not is_local_call(call):
            return call
        given = call.call_id or ""
        before = self._seen.setdefault(given, [])
        # A model may repeat one call.
        same = next((chosen for other, chosen in before if given and _essence(call) == _essence(other)), None)
        chosen = same or self._choose_id(given, is_first=not before)
        before.append((call, chosen))
        return call if chosen == call.call_id else replace(call, call_id=chosen)

    def _choose_id(self, given: str, *, is_first: bool) -> str:
        chosen = given
        if not given or (given in self.taken and not (is_first and self.is_stored_by_provider)):
            # Use only characters that every provider accepts.
            stem = (given or f"call_{re.sub('[^a-zA-Z0-9_-]', '_', self.owner)}")[:_ID_LENGTH_MAX]
            chosen = next(each for n in count(2 if given else 1) if (each := f"{stem}-{n}") not in self.taken)
        self.taken.add(chosen)
        return chosen

    def assign_update(self, update: ChatResponseUpdate) -> ChatResponseUpdate:
        """Return a stream update with the ids that the final response will have. A missing id stays missing."""
        if self.is_stored_by_provider or not any(is_local_call(each) and each.call_id for each in update.contents):
            return update
        changed = copy.copy(update)
        changed.contents = [self._renamed(each) for each in update.contents]
        return changed

    def _renamed(self, content: Content) -> Content:
        given = content.call_id
        if not given or not is_local_call(content):
            return content
        if given not in self._of_updates:
            self._of_updates[given] = self._choose_id(given, is_first=True)
        chosen = self._of_updates[given]
        return content if chosen == given else replace(content, call_id=chosen)


def _essence(call: Content) -> tuple[str | None, dict[str, Any] | None]:
    return call.name, call.parse_arguments()
