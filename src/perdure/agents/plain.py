"""How a message stands in an answer that was given as plain data: as its fields, or as a text of the user."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - read at run time
from typing import Any, Literal, NotRequired, cast

from typing_extensions import TypedDict  # pydantic wants this one before Python 3.12

from perdure.agents.messages.content import Content  # noqa: TC001 - read at run time
from perdure.agents.messages.message import Message
from perdure.codec import register_form


class MessageFields(TypedDict):
    """What `Message.to_dict` gives. A text stands for a content of it."""

    type: NotRequired[Literal["message"]]
    role: str
    contents: NotRequired[str | Content | list[str | Content] | None]
    author_name: NotRequired[str | None]
    message_id: NotRequired[str | None]
    additional_properties: NotRequired[dict[str, Any] | None]


def _message(data: str | MessageFields) -> Message:
    return Message("user", [data]) if isinstance(data, str) else Message.from_dict(cast("Mapping[str, Any]", data))


register_form(
    Message,
    str | MessageFields,
    make=_message,
    told="a text, which the user says, or an object with a 'role' and 'contents'",
)
