"""What the reader of a stream was told of a turn: an attempt after a failure tells only what is new."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING

from perdure.data import mutable

if TYPE_CHECKING:
    from perdure.agents.content import Content
    from perdure.agents.responses import AgentResponseUpdate

_KEY = "shown"
_TEXTS = frozenset({"text", "text_reasoning"})
_MARK = "\0"
"""Stands in what was told before the name of each kind of content. No text has it."""


@mutable
class Shown:
    """All that was told, as one text, and how far another attempt has told the same again."""

    _told: str = ""
    _place: int = 0
    _kind: str = ""
    """Of what was told last."""
    _call_id: str = ""
    _is_call_new: bool = True
    _attempt: object = None

    @classmethod
    def to(cls, activation: object, memo: dict[str, object]) -> Shown:
        """What attempts before this one have told, as they left it behind."""
        shown = memo.setdefault(_KEY, cls())
        assert isinstance(shown, cls), "nobody else has this key"
        if shown._attempt is not activation:
            shown._attempt, shown._place, shown._kind, shown._call_id = activation, 0, "", ""
        return shown

    def rest_of(self, update: AgentResponseUpdate) -> AgentResponseUpdate | None:
        """What of an update is still to be told; None if nothing is."""
        contents = [rest for content in update.contents if (rest := self._rest(content)) is not None]
        if contents == update.contents:
            return update
        rest = copy(update)
        rest.contents = contents
        return rest if contents else None

    def _rest(self, content: Content) -> Content | None:
        kind, is_more = content.type, self._kind == content.type
        self._kind = kind
        key = content.call_id or content.id or ""
        if kind in _TEXTS:
            text = content.text or ""
            new = self._new("" if is_more else f"{_MARK}{kind}{_MARK}", text)
            return content if new == text else replace(content, text=new) if new else None
        if kind == "function_call" and is_more and key in {"", self._call_id}:
            # More of the arguments of the call before it.
            return content if self._is_call_new else None
        is_new = bool(self._new(f"{_MARK}{kind}{_MARK}", f"{key}{_MARK}"))
        self._call_id, self._is_call_new = key, is_new
        return content if is_new else None

    def _new(self, mark: str, text: str) -> str:
        """What of a text was not told yet at this place."""
        whole, told = f"{mark}{text}", self._told
        start, self._place = self._place, self._place + len(whole)
        if told.startswith(whole, start):
            return ""
        tail = told[start : self._place]
        # What was told beyond this place, if it was something else, is not what is told now.
        self._told = told[:start] + whole
        is_same_so_far = start + len(tail) == len(told) and whole.startswith(tail)
        return text[max(0, len(tail) - len(mark)) :] if is_same_so_far else text
