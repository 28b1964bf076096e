"""What models and agents answer, whole or in pieces, and how the pieces make a whole."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Generic, Self, TypeAlias, cast

from typing_extensions import TypeVar

from perdure.agent_errors import AdditionItemMismatch, AgentInvalidResponseException
from perdure.agents.content import Content, UsageDetails, add_usage_details
from perdure.agents.formats import declared_format
from perdure.agents.messages import Message, contents_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Iterable, Mapping, Sequence

    from pydantic import BaseModel

    from perdure.agents.messages import Said

ValueT = TypeVar("ValueT", default=Any)

ResponseFormat: TypeAlias = "type[BaseModel] | Mapping[str, Any] | str | None"
"""What an answer is to look like: a pydantic model, or a JSON schema; of a stored answer, the name of the model."""

_VALUE_MISSING = object()


class _Response(Generic[ValueT]):
    """What a model or an agent has answered."""

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
        """The answer as its `response_format` says; None if there is none. Raises AgentInvalidResponseException."""
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

    def to_dict(self, *, exclude_none: bool = True) -> dict[str, Any]:
        """As plain values, for JSON. `from_dict` takes them back."""
        found = {**self.stored(), "messages": [message.to_dict() for message in self.messages]}
        return {name: value for name, value in found.items() if not (exclude_none and value is None)}

    def to_json(self, *, exclude_none: bool = True, **options: Any) -> str:
        """As JSON."""
        return json.dumps(self.to_dict(exclude_none=exclude_none), **options)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The response of what `to_dict` gave."""
        known: dict[str, Any] = {name: value for name, value in data.items() if name in cls._STORED}
        said = [each if isinstance(each, Message) else Message.from_dict(each) for each in data.get("messages", ())]
        known["messages"] = said
        return cls(**known)

    _STORED = (
        "messages",
        "response_id",
        "created_at",
        "finish_reason",
        "usage_details",
        "continuation_token",
        "additional_properties",
    )

    def stored(self) -> dict[str, Any]:
        """What is to be kept. A value is parsed again from the text; what a provider sent is not kept."""
        values = ((name, getattr(self, name)) for name in self._STORED)
        return {name: value for name, value in values if value is not None and value != {}}

    def __eq__(self, other: object) -> bool:
        """Whether the same was answered."""
        if type(other) is not type(self):
            return NotImplemented
        return self.stored() == cast("Self", other).stored()

    __hash__ = None  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType] - it can be changed

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.messages!r})"


class ChatResponse(_Response[ValueT]):
    """What a model has answered."""

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
            _take_in(response, update)
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
            _take_in(response, update)
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


class _Update:
    """A piece of an answer."""

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

    @property
    def text(self) -> str:
        """What it says in words."""
        return "".join([content.text or "" for content in self.contents if content.type == "text"])

    @property
    def user_input_requests(self) -> list[Content]:
        """What whoever uses the agent has to answer before it goes on."""
        return [content for content in self.contents if content.user_input_request is True]

    def to_dict(self, *, exclude_none: bool = True) -> dict[str, Any]:
        """As plain values, for JSON. `from_dict` takes them back."""
        found = {**self.stored(), "contents": [content.to_dict() for content in self.contents]}
        return {name: value for name, value in found.items() if not (exclude_none and value is None)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The update of what `to_dict` gave."""
        return cls(**{name: value for name, value in data.items() if name in cls._STORED})

    def stored(self) -> dict[str, Any]:
        """What is to be kept."""
        values = ((name, getattr(self, name)) for name in self._STORED)
        return {name: value for name, value in values if value is not None and value != {}}

    def __eq__(self, other: object) -> bool:
        """Whether it is the same piece."""
        if type(other) is not type(self):
            return NotImplemented
        return self.stored() == cast("Self", other).stored()

    __hash__ = None  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType] - it can be changed

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.contents!r})"


class ChatResponseUpdate(_Update):
    """A piece of what a model answers."""

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

    _STORED = (*_Update._STORED, "agent_id")

    def __init__(self, *, agent_id: str | None = None, **more: Any) -> None:
        super().__init__(**more)
        self.agent_id = agent_id


def _take_in(response: _Response[Any], update: _Update) -> None:
    """Add a piece: a new message begins where its id or its role says so."""
    last = response.messages[-1] if response.messages else None
    is_other = last is not None and (
        (update.message_id and last.message_id and update.message_id != last.message_id)
        or (update.role and update.role != last.role)
    )
    spoken = [content for content in update.contents if content.type != "usage"]
    if (last is None or is_other) and (spoken or update.role or update.message_id):
        last = Message(update.role or "assistant", [])
        response.messages.append(last)
    if last is not None:
        last.author_name = update.author_name or last.author_name
        last.message_id = update.message_id or last.message_id
        for content in spoken:
            _append(last.contents, content)
    for content in update.contents:
        if content.type == "usage":
            response.usage_details = add_usage_details(response.usage_details, content.usage_details)
    response.response_id = update.response_id or response.response_id
    response.created_at = update.created_at or response.created_at
    response.finish_reason = update.finish_reason or response.finish_reason
    response.continuation_token = update.continuation_token or response.continuation_token
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


def _last_words(messages: Sequence[Message]) -> str:
    words = (message.text for message in reversed(messages) if message.role == "assistant")
    return next(filter(None, words), "")


def parsed_value(text: str, response_format: ResponseFormat) -> Any:
    """A text as the value that it is to be. Raises AgentInvalidResponseException."""
    if isinstance(response_format, str):
        response_format = declared_format(response_format)
    try:
        if isinstance(response_format, type):
            return response_format.model_validate_json(text)
        return json.loads(text)
    except ValueError as error:
        wanted = response_format.__name__ if isinstance(response_format, type) else "JSON"
        raise AgentInvalidResponseException(
            f"the answer is no {wanted}: {error}; it begins with {text[:80]!r}", error
        ) from error
