"""Messages: a role and a list of contents."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, NotRequired, Self, TypeAlias, cast

from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

from perdure.agents.messages.content import Content
from perdure.codec import register_form, register_type

Role: TypeAlias = Literal["system", "user", "assistant", "tool"]
"""The author of a message. A provider may define others."""

RoleLiteral: TypeAlias = Role

ContentInput: TypeAlias = str | Content | Mapping[str, Any]
"""Anything a content can be made from."""

ATTRIBUTION = "_attribution"
"""Key in `additional_properties` that names the context provider a message comes from."""


class Fields:
    """Base of messages, responses and updates: they are stored, compared and serialized by their fields.

    `raw_representation` and parsed values are not among the fields.
    """

    __slots__ = ()

    _TYPE: ClassVar[str]
    _STORED: ClassVar[tuple[str, ...]]
    _ITEMS: ClassVar[str]
    """The field that lists the messages or contents."""

    @property
    def text(self) -> str:
        """Join the texts."""
        raise NotImplementedError

    def to_dict(self, *, exclude: set[str] | None = None, exclude_none: bool = True) -> dict[str, Any]:
        """Convert to plain values for JSON. `from_dict` is the inverse."""
        fields = Fields.stored_fields(self) if exclude_none else {name: getattr(self, name) for name in self._STORED}
        items = [item.to_dict(exclude_none=exclude_none) for item in getattr(self, self._ITEMS)]
        every = {"type": self._TYPE, **fields, self._ITEMS: items}
        return {name: value for name, value in every.items() if name not in (exclude or ())}

    def to_json(self, *, exclude: set[str] | None = None, exclude_none: bool = True, **options: Any) -> str:
        """Convert to JSON."""
        return json.dumps(self.to_dict(exclude=exclude, exclude_none=exclude_none), **options)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read the output of `to_dict`. Raises ContentError, ValueError."""
        return cls(**{name: value for name, value in data.items() if name in cls._STORED})

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Read the output of `to_json`."""
        return cls.from_dict(json.loads(text))

    def stored_fields(self) -> dict[str, Any]:
        """Return the fields to store: everything that is set, except `raw_representation`."""
        values = ((name, getattr(self, name)) for name in self._STORED)
        return {name: value for name, value in values if value is not None and value != {}}

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return Fields.stored_fields(self) == Fields.stored_fields(cast("Self", other))

    __hash__ = None  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType] - they are mutable

    def __str__(self) -> str:
        return self.text


class Message(Fields):
    """A role and its contents. `raw_representation` is the provider's own object and is never stored."""

    __slots__ = ("additional_properties", "author_name", "contents", "message_id", "raw_representation", "role")

    _TYPE = "message"
    _ITEMS = "contents"
    _STORED = ("role", "contents", "author_name", "message_id", "additional_properties")

    def __init__(
        self,
        role: Role | str,
        contents: Sequence[ContentInput] | ContentInput | None = None,
        *,
        author_name: str | None = None,
        message_id: str | None = None,
        additional_properties: Mapping[str, Any] | None = None,
        raw_representation: Any = None,
    ) -> None:
        self.role: str = role
        self.contents = to_contents(contents)
        self.author_name = author_name
        self.message_id = message_id
        self.additional_properties: dict[str, Any] = dict(additional_properties or {})
        self.raw_representation = raw_representation

    @property
    def text(self) -> str:
        """Join the texts of the message."""
        return " ".join([content.text or "" for content in self.contents if content.type == "text"])

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read the output of `to_dict`. Raises ContentError, ValueError."""
        if "role" not in data:
            raise ValueError(f"a message needs a role; found only {list(data)}")
        return super().from_dict({**data, "role": str(data["role"])})

    def with_contents(self, contents: list[Content]) -> Message:
        """Copy the message with other contents. Returns the message itself if nothing changes."""
        if len(contents) == len(self.contents) and all(a is b for a, b in zip(contents, self.contents, strict=True)):
            return self
        changed = copy.copy(self)
        changed.contents = contents
        return changed

    def __repr__(self) -> str:
        author = f", author_name={self.author_name!r}" if self.author_name else ""
        return f"Message({self.role!r}, {self.contents!r}{author})"


def to_contents(given: Sequence[ContentInput] | ContentInput | None) -> list[Content]:
    """Convert texts, contents and dicts of contents. Raises TypeError, ContentError."""
    if given is None:
        return []
    found: list[Content] = []
    for each in cast("Sequence[object]", [given] if isinstance(given, str | Content | Mapping) else given):
        match each:
            case Content():
                found.append(each)
            case str():
                found.append(Content.from_text(each))
            case Mapping():
                found.append(Content.from_dict(cast("Mapping[str, Any]", each)))
            case _:
                raise TypeError(f"a message takes texts, contents and dicts of contents, not {each!r}")
    return found


AgentRunInputs: TypeAlias = str | Content | Message | Sequence[str | Content | Message]
"""Anything an agent can be given as input."""


def normalize_messages(messages: AgentRunInputs | None = None, *, role: Role | str = "user") -> list[Message]:
    """Convert the input of an agent to messages; texts and contents get `role`. Raises TypeError."""
    given = cast("object", messages)
    if given is None:
        return []
    several = [given] if isinstance(given, str | Content | Message) else given
    if not isinstance(several, Sequence):
        raise TypeError(f"an agent takes a str, a Content, a Message or a list of these, not {given!r}")
    if set(map(type, cast("Sequence[object]", several))) <= {Message}:
        return list(cast("Sequence[Message]", several))
    found: list[Message] = []
    for each in cast("Sequence[object]", several):
        if isinstance(each, Message):
            found.append(each)
        elif isinstance(each, str | Content):
            found.append(Message(role, [each]))
        else:
            raise TypeError(f"an agent takes strs, Contents and Messages; the list contains {each!r}")
    return found


class MessageFields(TypedDict):
    """A message in an answer given as plain data: the output of `Message.to_dict`. A text stands for a content."""

    type: NotRequired[Literal["message"]]
    role: str
    contents: NotRequired[str | Content | list[str | Content] | None]
    author_name: NotRequired[str | None]
    message_id: NotRequired[str | None]
    additional_properties: NotRequired[dict[str, Any] | None]


register_type(Message, name="perdure:Message", encode=Message.stored_fields, decode=lambda fields: Message(**fields))
register_form(
    Message,
    str | MessageFields,
    make=lambda data: Message("user", [data]) if isinstance(data, str) else Message.from_dict(data),
    told="a text, which becomes a message of the user, or an object with a 'role' and 'contents'",
)
