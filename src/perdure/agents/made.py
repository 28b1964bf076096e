"""Approved calls that were made in a turn that may come to nothing: the session knows of them until they are told.

What a turn has led to is written when it is over. If the model fails before that, the question is still there, and
whoever answers it again must not have the call made again.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, Final, cast

from perdure.agents.call_ids import ids_in
from perdure.agents.content import Content
from perdure.agents.repair import INTERRUPTED
from perdure.agents.tool_results import error_of
from perdure.data import frozen

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure.agents.messages import Message

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
