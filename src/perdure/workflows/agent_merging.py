"""Pieces of several answers, told one among the other, as one answer."""

from __future__ import annotations

from dataclasses import field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from perdure.agents import AgentResponse, add_usage_details
from perdure.data import mutable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from perdure.agents import AgentResponseUpdate, Message, UsageDetails


@mutable
class _Pieces:
    """The pieces of one answer: by message, and those that say of no message to be of it."""

    by_message: dict[str, list[AgentResponseUpdate]] = field(default_factory=dict[str, "list[AgentResponseUpdate]"])
    others: list[AgentResponseUpdate] = field(default_factory=list["AgentResponseUpdate"])

    def add(self, update: AgentResponseUpdate) -> None:
        """Take a piece in."""
        if update.message_id:
            self.by_message.setdefault(update.message_id, []).append(update)
        else:
            self.others.append(update)

    def wholes(self) -> list[AgentResponse[Any]]:
        """An answer for each message, in the order of time; what has no time comes last."""
        groups = [*self.by_message.values(), *([self.others] if self.others else [])]
        return sorted(
            (AgentResponse.from_updates(group) for group in groups), key=lambda each: _moment(each.created_at)
        )


def merged(updates: Sequence[AgentResponseUpdate], response_id: str) -> AgentResponse[Any]:
    """One answer: the answers in the order of their first pieces, each with its messages in the order of time.

    A result that says of no answer to be of it belongs to the answer with its call; what belongs to none comes last.
    """
    callers = _callers(updates)
    answers: dict[str, _Pieces] = {}
    strays: list[AgentResponseUpdate] = []
    for update in updates:
        owner = update.response_id or _caller_of(update, callers)
        if owner is None:
            strays.append(update)
        else:
            answers.setdefault(owner, _Pieces()).add(update)
    wholes = [whole for pieces in answers.values() for whole in pieces.wholes()]
    if strays:
        wholes.append(AgentResponse.from_updates(strays))
    return _joined(wholes, response_id)


def _callers(updates: Iterable[AgentResponseUpdate]) -> dict[str, str]:
    """By call: the answer that it stands in."""
    return {
        content.call_id: update.response_id
        for update in updates
        if update.response_id
        for content in update.contents
        if content.type == "function_call" and content.call_id
    }


def _caller_of(update: AgentResponseUpdate, callers: dict[str, str]) -> str | None:
    results = (content.call_id for content in update.contents if content.type == "function_result" and content.call_id)
    return next((callers[call_id] for call_id in results if call_id in callers), None)


def _joined(wholes: Iterable[AgentResponse[Any]], response_id: str) -> AgentResponse[Any]:
    messages: list[Message] = []
    usage: UsageDetails | None = None
    created: list[str] = []
    more: dict[str, Any] = {}
    for whole in wholes:
        messages += whole.messages
        if whole.usage_details:
            usage = add_usage_details(usage, whole.usage_details)
        if whole.created_at:
            created.append(whole.created_at)
        more.update(whole.additional_properties)
    return AgentResponse(
        messages=messages,
        response_id=response_id,
        created_at=max(created, key=_moment, default=None),
        usage_details=usage,
        additional_properties=more,
    )


def _moment(text: str | None) -> tuple[int, float, str]:
    """Where a time stands among others. One that can't be read stands behind those that can."""
    if not text:
        return (2, 0, "")
    try:
        return (0, datetime.fromisoformat(text).timestamp(), "")
    except ValueError:
        return (1, 0, text)
