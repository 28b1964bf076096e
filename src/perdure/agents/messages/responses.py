"""What models and agents answer, whole or in pieces."""

from __future__ import annotations

import json
import sys
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeAlias, cast

from typing_extensions import TypeVar

from perdure.agents.messages.content import Content, UsageDetails, add_usage_details
from perdure.agents.messages.message import Message, contents_of
from perdure.errors import AdditionItemMismatch, ResponseValueError
from perdure.typenames import type_name

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Iterable, Sequence

    from pydantic import BaseModel

    from perdure.agents.messages.message import Said


class Kept:
    """Something that is what its fields are. What a provider sent is not among them, and neither is a parsed value."""

    _TYPE: ClassVar[str]
    _STORED: ClassVar[tuple[str, ...]]
    _PARTS: ClassVar[str]
    """The field that holds what it is made of."""

    @property
    def text(self) -> str:
        """All that is said in words."""
        raise NotImplementedError

    def to_dict(self, *, exclude: set[str] | None = None, exclude_none: bool = True) -> dict[str, Any]:
        """As plain values, for JSON. `from_dict` takes them back."""
        kept = self.stored() if exclude_none else {name: getattr(self, name) for name in self._STORED}
        parts = [part.to_dict(exclude_none=exclude_none) for part in getattr(self, self._PARTS)]
        found = {"type": self._TYPE, **kept, self._PARTS: parts}
        return {name: value for name, value in found.items() if name not in (exclude or ())}

    def to_json(self, *, exclude: set[str] | None = None, exclude_none: bool = True, **options: Any) -> str:
        """As JSON."""
        return json.dumps(self.to_dict(exclude=exclude, exclude_none=exclude_none), **options)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """What `to_dict` gave, taken back."""
        return cls(**{name: value for name, value in data.items() if name in cls._STORED})

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """What `to_json` gave, taken back."""
        return cls.from_dict(json.loads(text))

    def stored(self) -> dict[str, Any]:
        """What is to be kept."""
        values = ((name, getattr(self, name)) for name in self._STORED)
        return {name: value for name, value in values if value is not None and value != {}}

    def __eq__(self, other: object) -> bool:
        """Whether the same is said."""
        if type(other) is not type(self):
            return NotImplemented
        return self.stored() == cast("Self", other).stored()

    __hash__ = None  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType] - it can be changed

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"{type(self).__name__}({getattr(self, self._PARTS)!r})"


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


_SHOWN_MAX = 80

_declared: dict[str, list[weakref.ref[type[Any]]]] = {}


def require_format(wanted: object) -> None:
    """Raise TypeError if no answer could be read as this."""
    if wanted is None or isinstance(wanted, Mapping) or (isinstance(wanted, type) and _is_model(wanted)):
        return
    raise TypeError(f"response_format is a pydantic model or a JSON schema, not {wanted!r}; give one of these")


def _is_model(wanted: type) -> bool:
    return hasattr(wanted, "model_validate_json")


def declare_format(wanted: object) -> None:
    """Note what answers of this program are to look like. Raises TypeError if no answer could be read as it."""
    require_format(wanted)
    if isinstance(wanted, type):
        known = _declared.setdefault(type_name(wanted), [])
        if not known or known[-1]() is not wanted:
            # The one that was asked for last is the last.
            known[:] = [each for each in known if each() not in {None, wanted}]
            known.append(weakref.ref(wanted))


def stored_format(wanted: object) -> str | Mapping[str, Any] | None:
    """What is kept of it: the name of a class; of a schema, which is not needed to read an answer, that it is JSON."""
    if isinstance(wanted, type):
        return type_name(wanted)
    return {} if isinstance(wanted, Mapping) else wanted if isinstance(wanted, str) else None


def declared_format(name: str) -> type[Any]:
    """The class of a name. Raises ResponseValueError if no model was asked for it here, or for two that differ."""
    found = [cls for each in _declared.get(name, ()) if (cls := each()) is not None]
    if not found:
        raise ResponseValueError(
            f"the answer is to be read as {name!r}, and no agent of this program has the class as response_format; "
            "give it to one, or read the text of the answer yourself"
        )
    # One that a module has replaced by another, as a notebook does, is not meant any more. One that is made anew each
    # time that a function is called is as good as the one before.
    if not _is_in_module(found[-1]) and any(_fields(each) != _fields(found[-1]) for each in found):
        raise ResponseValueError(
            f"the answer is to be read as {name!r}, and agents of this program have different classes of that name as "
            "response_format; give each a name of its own, or read the text of the answer yourself"
        )
    return found[-1]


def _is_in_module(cls: type[Any]) -> bool:
    place: object = sys.modules.get(cls.__module__)
    for name in cls.__qualname__.split("."):
        place = getattr(place, name, None)
    return place is cls


def _fields(cls: type[Any]) -> object:
    fields: object = getattr(cls, "model_fields", None)
    if not isinstance(fields, Mapping):
        return cls
    return {name: repr(field) for name, field in cast("Mapping[str, Any]", fields).items()}


def parsed_value(text: str, response_format: type[Any] | Mapping[str, Any] | str) -> Any:
    """A text as the value that it is to be; None if there is none. Raises ResponseValueError, pydantic's error."""
    wanted = declared_format(response_format) if isinstance(response_format, str) else response_format
    if not text:
        return None
    if isinstance(wanted, type):
        return wanted.model_validate_json(text)
    try:
        return json.loads(text)
    except ValueError as error:
        raise ResponseValueError(
            f"the answer is no JSON: {error}; it begins with {text[:_SHOWN_MAX]!r}", error
        ) from error


ValueT = TypeVar("ValueT", default=Any)

ResponseFormat: TypeAlias = "type[BaseModel] | Mapping[str, Any] | str | None"
"""What an answer is to look like: a pydantic model, or a JSON schema; of a stored answer, the name of the model."""

_VALUE_MISSING = object()


class _Response(Kept, Generic[ValueT]):
    """What a model or an agent has answered."""

    _PARTS = "messages"
    _STORED = (
        "messages",
        "response_id",
        "created_at",
        "finish_reason",
        "usage_details",
        "continuation_token",
        "additional_properties",
    )

    def __init__(
        self,
        *,
        messages: Message | Sequence[Message] | None = None,
        response_id: str | None = None,
        created_at: str | None = None,
        finish_reason: str | None = None,
        usage_details: UsageDetails | None = None,
        value: ValueT | None = None,
        response_format: ResponseFormat = None,
        continuation_token: Any = None,
        additional_properties: Mapping[str, Any] | None = None,
        raw_representation: Any = None,
    ) -> None:
        self.messages: list[Message] = [messages] if isinstance(messages, Message) else list(messages or ())
        self.response_id = response_id
        self.created_at = created_at
        self.finish_reason = finish_reason
        self.usage_details = usage_details
        self.response_format = response_format
        self.continuation_token = continuation_token
        self.additional_properties: dict[str, Any] = dict(additional_properties or {})
        self.raw_representation = raw_representation
        self._value: Any = _VALUE_MISSING if value is None else value

    @property
    def text(self) -> str:
        """All that was said in words."""
        return "".join([message.text for message in self.messages])

    @property
    def value(self) -> ValueT | None:
        """The answer as its `response_format` says; None if there is none, or if nothing was said.

        Raises pydantic's ValidationError if it does not fit a pydantic model, ResponseValueError (a ValueError, and an
        AgentInvalidResponseException) if it is no JSON, or if nobody can say which class it was to be.
        """
        if self._value is _VALUE_MISSING:
            if self.response_format is None:
                return None
            self._value = parsed_value(_last_words(self.messages), self.response_format)
        return cast("ValueT", self._value)

    @property
    def user_input_requests(self) -> list[Content]:
        """What whoever uses the agent has to answer before it goes on."""
        return [
            content for message in self.messages for content in message.contents if content.user_input_request is True
        ]

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The response of what `to_dict` gave."""
        said = [each if isinstance(each, Message) else Message.from_dict(each) for each in data.get("messages", ())]
        return super().from_dict({**data, "messages": said})


class ChatResponse(_Response[ValueT]):
    """What a model has answered."""

    _TYPE = "chat_response"
    _STORED = (*_Response._STORED, "conversation_id", "model")

    def __init__(
        self, *, conversation_id: str | None = None, model: str | None = None, model_id: str | None = None, **more: Any
    ) -> None:
        super().__init__(**more)
        self.conversation_id = conversation_id
        self.model = model or model_id

    @property
    def model_id(self) -> str | None:
        """The model that answered."""
        return self.model

    @classmethod
    def from_updates(
        cls, updates: Iterable[ChatResponseUpdate], *, output_format_type: ResponseFormat = None
    ) -> ChatResponse[Any]:
        """The whole that pieces make."""
        response = cls(response_format=output_format_type)
        for update in updates:
            take_in(response, update)
            response.conversation_id = update.conversation_id or response.conversation_id
            response.model = update.model or response.model
        return response

    @classmethod
    async def from_update_generator(
        cls, updates: AsyncIterable[ChatResponseUpdate], *, output_format_type: ResponseFormat = None
    ) -> ChatResponse[Any]:
        """The whole that pieces make, as they come."""
        return cls.from_updates([update async for update in updates], output_format_type=output_format_type)


class AgentResponse(_Response[ValueT]):
    """What an agent has answered in one turn."""

    _TYPE = "agent_response"
    _STORED = (*_Response._STORED, "agent_id")

    def __init__(self, *, agent_id: str | None = None, **more: Any) -> None:
        super().__init__(**more)
        self.agent_id = agent_id

    @classmethod
    def from_updates(
        cls,
        updates: Iterable[AgentResponseUpdate],
        *,
        output_format_type: ResponseFormat = None,
        value: Any = None,
    ) -> AgentResponse[Any]:
        """The whole that pieces make."""
        response = cls(response_format=output_format_type, value=value)
        for update in updates:
            take_in(response, update)
            response.agent_id = update.agent_id or response.agent_id
        return response

    @classmethod
    async def from_update_generator(
        cls, updates: AsyncIterable[AgentResponseUpdate], *, output_format_type: ResponseFormat = None
    ) -> AgentResponse[Any]:
        """The whole that pieces make, as they come."""
        return cls.from_updates([update async for update in updates], output_format_type=output_format_type)

    def to_updates(self) -> list[AgentResponseUpdate]:
        """The whole as pieces: one for each message, the last with what was counted."""
        usage = [] if self.usage_details is None else [Content.from_usage(self.usage_details)]
        last = len(self.messages) - 1
        return [
            AgentResponseUpdate(
                contents=[*message.contents, *(usage if place == last else ())],
                role=message.role,
                author_name=message.author_name,
                agent_id=self.agent_id,
                response_id=self.response_id,
                message_id=message.message_id,
                created_at=self.created_at,
                finish_reason=self.finish_reason,
            )
            for place, message in enumerate(self.messages)
        ]


class _Update(Kept):
    """A piece of an answer."""

    _PARTS = "contents"
    _STORED = (
        "contents",
        "role",
        "author_name",
        "response_id",
        "message_id",
        "created_at",
        "finish_reason",
        "continuation_token",
        "additional_properties",
    )

    def __init__(
        self,
        *,
        contents: Sequence[Said] | None = None,
        role: str | None = None,
        author_name: str | None = None,
        response_id: str | None = None,
        message_id: str | None = None,
        created_at: str | None = None,
        finish_reason: str | None = None,
        continuation_token: Any = None,
        additional_properties: Mapping[str, Any] | None = None,
        raw_representation: Any = None,
    ) -> None:
        self.contents = contents_of(contents)
        self.role = role
        self.author_name = author_name
        self.response_id = response_id
        self.message_id = message_id
        self.created_at = created_at
        self.finish_reason = finish_reason
        self.continuation_token = continuation_token
        self.additional_properties: dict[str, Any] = dict(additional_properties or {})
        self.raw_representation = raw_representation

    @property
    def text(self) -> str:
        """What it says in words."""
        return "".join([content.text or "" for content in self.contents if content.type == "text"])

    @property
    def user_input_requests(self) -> list[Content]:
        """What whoever uses the agent has to answer before it goes on."""
        return [content for content in self.contents if content.user_input_request is True]


class ChatResponseUpdate(_Update):
    """A piece of what a model answers."""

    _TYPE = "chat_response_update"
    _STORED = (*_Update._STORED, "conversation_id", "model")

    def __init__(
        self, *, conversation_id: str | None = None, model: str | None = None, model_id: str | None = None, **more: Any
    ) -> None:
        super().__init__(**more)
        self.conversation_id = conversation_id
        self.model = model or model_id

    @property
    def model_id(self) -> str | None:
        """The model that answers."""
        return self.model


class AgentResponseUpdate(_Update):
    """A piece of what an agent answers."""

    _TYPE = "agent_response_update"
    _STORED = (*_Update._STORED, "agent_id")

    def __init__(self, *, agent_id: str | None = None, **more: Any) -> None:
        super().__init__(**more)
        self.agent_id = agent_id


def _last_words(messages: Sequence[Message]) -> str:
    words = (message.text for message in reversed(messages) if message.role == "assistant")
    return next(filter(None, words), "")
