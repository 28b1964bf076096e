"""Messages: who said what."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, cast

from perdure.agents.messages.content import Content

Role: TypeAlias = Literal["system", "user", "assistant", "tool"]
"""Who speaks. A provider may know others."""

RoleLiteral: TypeAlias = Role

Said: TypeAlias = "str | Content | Mapping[str, Any]"
"""What a content can be made of."""

AgentRunInputs: TypeAlias = "str | Content | Message | Sequence[str | Content | Message]"
"""What can be said to an agent."""


class Message:
    """What somebody has said: one or more contents. `raw_representation` is never stored."""

    __slots__ = ("additional_properties", "author_name", "contents", "message_id", "raw_representation", "role")

    def __init__(
        self,
        role: Role | str,
        contents: Sequence[Said] | Said | None = None,
        *,
        author_name: str | None = None,
        message_id: str | None = None,
        additional_properties: Mapping[str, Any] | None = None,
        raw_representation: Any = None,
    ) -> None:
        self.role: str = role
        self.contents = contents_of(contents)
        self.author_name = author_name
        self.message_id = message_id
        self.additional_properties: dict[str, Any] = dict(additional_properties or {})
        self.raw_representation = raw_representation

    @property
    def text(self) -> str:
        """All that was said in words."""
        return " ".join([content.text or "" for content in self.contents if content.type == "text"])

    def to_dict(self, *, exclude_none: bool = True, exclude: set[str] | None = None) -> dict[str, Any]:
        """As plain values, for JSON. `from_dict` takes them back."""
        found: dict[str, Any] = {
            "type": "message",
            "role": self.role,
            "contents": [content.to_dict(exclude_none=exclude_none) for content in self.contents],
            "author_name": self.author_name,
            "message_id": self.message_id,
            "additional_properties": self.additional_properties or None,
        }
        left_out = exclude or set()
        return {
            name: value
            for name, value in found.items()
            if name not in left_out and not (exclude_none and value is None)
        }

    def to_json(self, *, exclude_none: bool = True, exclude: set[str] | None = None, **options: Any) -> str:
        """As JSON."""
        return json.dumps(self.to_dict(exclude_none=exclude_none, exclude=exclude), **options)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Message:
        """The message of what `to_dict` gave. Raises ContentError, ValueError."""
        if "role" not in data:
            raise ValueError(f"a message has a role; this has only {list(data)}")
        return cls(
            str(data["role"]),
            data.get("contents"),
            author_name=data.get("author_name"),
            message_id=data.get("message_id"),
            additional_properties=data.get("additional_properties"),
        )

    @classmethod
    def from_json(cls, text: str | bytes) -> Message:
        """The message of what `to_json` gave."""
        return cls.from_dict(json.loads(text))

    def __eq__(self, other: object) -> bool:
        """Whether the same was said, by the same."""
        if not isinstance(other, Message):
            return NotImplemented
        return _compared(self) == _compared(other)

    __hash__ = None  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType] - it can be changed

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        author = f", author_name={self.author_name!r}" if self.author_name else ""
        return f"Message({self.role!r}, {self.contents!r}{author})"


def contents_of(said: Sequence[Said] | Said | None) -> list[Content]:
    """Contents, of texts, contents and what `Content.to_dict` gave. Raises TypeError, ContentError."""
    if said is None:
        return []
    if isinstance(said, str | Content | Mapping):
        return [_content_of(said)]
    return [_content_of(each) for each in said]


def _content_of(said: object) -> Content:
    match said:
        case Content():
            return said
        case str():
            return Content.from_text(said)
        case Mapping():
            return Content.from_dict(cast("Mapping[str, Any]", said))
        case _:
            raise TypeError(f"a message is made of texts, contents and dicts of contents, not of {said!r}")


def messages_of(said: AgentRunInputs | None, *, role: Role | str = "user") -> list[Message]:
    """What was said to an agent as messages: a text, a content or a message, or several of them. Raises TypeError."""
    given = cast("object", said)
    match given:
        case None:
            return []
        case Message():
            return [given]
        case str() | Content():
            return [Message(role, [given])]
        case Sequence():
            return [_message_of(each, role) for each in cast("Sequence[object]", given)]
        case _:
            raise TypeError(f"an agent is told a str, a Content, a Message or a list of these, not {given!r}")


def normalize_messages(messages: AgentRunInputs | None = None) -> list[Message]:
    """What was said to an agent as messages of the user. Raises TypeError."""
    return messages_of(messages)


def _message_of(said: object, role: str) -> Message:
    if isinstance(said, Message):
        return said
    if isinstance(said, str | Content):
        return Message(role, [said])
    raise TypeError(f"an agent is told strs, Contents and Messages; among them was {said!r}")


def _compared(message: Message) -> tuple[Any, ...]:
    return (message.role, message.contents, message.author_name, message.message_id, message.additional_properties)
