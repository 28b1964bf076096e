"""How the pieces of an answer make a whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.agent_errors import AdditionItemMismatch
from perdure.agents.content import add_usage_details
from perdure.agents.messages import Message

if TYPE_CHECKING:
    from perdure.agents.content import Content


def take_in(response: Any, update: Any) -> None:
    """Add a piece to a response: a new message begins where its id or its role says so."""
    messages: list[Message] = response.messages
    contents: list[Content] = update.contents
    last = messages[-1] if messages else None
    is_other = last is not None and (
        (update.message_id and last.message_id and update.message_id != last.message_id)
        or (update.role and update.role != last.role)
    )
    spoken = [content for content in contents if content.type != "usage"]
    if (last is None or is_other) and (spoken or update.role or update.message_id):
        last = Message(update.role or "assistant", [])
        messages.append(last)
    if last is not None:
        last.author_name = update.author_name or last.author_name
        last.message_id = update.message_id or last.message_id
        for content in spoken:
            _append(last.contents, content)
    for content in contents:
        if content.type == "usage":
            response.usage_details = add_usage_details(response.usage_details, content.usage_details)
    for name in ("response_id", "created_at", "finish_reason", "continuation_token"):
        setattr(response, name, getattr(update, name) or getattr(response, name))
    response.additional_properties.update(update.additional_properties)


def _append(contents: list[Content], content: Content) -> None:
    """Add a content, or put it to the one that it goes on with."""
    place = len(contents) - 1
    if content.type == "function_call" and content.call_id:
        calls = [at for at, each in enumerate(contents) if each.type == "function_call"]
        place = next((at for at in calls if contents[at].call_id == content.call_id), -1)
    if place >= 0:
        try:
            contents[place] = contents[place] + content
        except AdditionItemMismatch:
            contents.append(content)
    else:
        contents.append(content)
