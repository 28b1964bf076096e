"""Responses of models and agents, complete or as stream updates."""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Generic, Literal, NewType, Self, TypeAlias, cast
from weakref import WeakValueDictionary

from typing_extensions import TypeVar

from perdure.agents.messages.content import Content, UsageDetails, add_usage_details
from perdure.agents.messages.message import ContentInput, Fields, Message, to_contents
from perdure.agents.messages.structured import InvalidValueError, parse_answer
from perdure.codec import register_type
from perdure.errors import AdditionItemMismatch, ResponseValueError
from perdure.streams import without_discarded
from perdure.typenames import type_name

ValueT = TypeVar("ValueT", default=Any)

FinishReasonLiteral: TypeAlias = Literal["stop", "length", "tool_calls", "content_filter"]
FinishReason = NewType("FinishReason", str)
"""The reason why a model stopped. A provider may have others than those of `FinishReasonLiteral`."""

ResponseFormat: TypeAlias = type[Any] | Mapping[str, Any] | str | None
"""A pydantic model or a JSON schema; in a stored response, the name of the model."""

_SHOWN_MAX = 80
_VALUE_MISSING = object()
_formats: WeakValueDictionary[str, type[Any]] = WeakValueDictionary()
"""The classes that this program uses as response format, by their stored names. The last one of a name counts."""


def require_format(wanted: object) -> None:
    """Raise TypeError if no answer can be parsed as `wanted`."""
    is_model = isinstance(wanted, type) and hasattr(wanted, "model_validate_json")
    if not (wanted is None or isinstance(wanted, Mapping) or is_model):
        raise TypeError(f"response_format must be a pydantic model or a JSON schema, not {wanted!r}")


def declare_format(wanted: object) -> None:
    """Register a response format, so that stored responses can name its class. Raises TypeError."""
    require_format(wanted)
    if isinstance(wanted, type):
        _formats[type_name(wanted)] = wanted


def _parse_value(text: str, response_format: type[Any] | Mapping[str, Any] | str) -> Any:
    """Parse a text as `response_format`. Raises ResponseValueError, pydantic's ValidationError."""
    wanted = _formats.get(response_format) if isinstance(response_format, str) else response_format
    if wanted is None:
        raise ResponseValueError(
            f"the response has the format {response_format!r}, and no agent of this program uses that class as "
            "response_format; give it to an agent, or parse the response text yourself"
        )
    if not text.strip():
        raise ResponseValueError(
            "the response has no text, and response_format asks for a value; see `messages` for what it has instead"
        )
    try:
        return parse_answer(text, wanted)
    except InvalidValueError as error:
        raise ResponseValueError(
            f"the response has no valid value: {error}; it starts with {text[:_SHOWN_MAX]!r}", error
        ) from error


_COMMON = ("created_at", "finish_reason", "continuation_token", "additional_properties")


class _ResponseFields(Fields):
    """Base of responses and updates."""

    def __init__(
        self,
        *,
        response_id: str | None = None,
        created_at: str | None = None,
        finish_reason: str | None = None,
        continuation_token: Any = None,
        additional_properties: Mapping[str, Any] | None = None,
        raw_representation: Any = None,
    ) -> None:
        self.response_id = response_id
        self.created_at = created_at
        self.finish_reason = finish_reason
        self.continuation_token = continuation_token
        self.additional_properties: dict[str, Any] = dict(additional_properties or {})
        self.raw_representation = raw_representation

    def __repr__(self) -> str:
        return f"{type(self).__name__}({getattr(self, self._ITEMS)!r})"


class Update(_ResponseFields):
    """Base of stream updates."""

    discards: Sequence[Update] = ()
    """Earlier updates of the stream that this one takes back."""
    _ITEMS = "contents"
    _STORED = ("contents", "role", "author_name", "response_id", "message_id", *_COMMON)

    def __init__(
        self,
        *,
        contents: Sequence[ContentInput] | None = None,
        role: str | None = None,
        author_name: str | None = None,
        message_id: str | None = None,
        **more: Any,
    ) -> None:
        super().__init__(**more)
        self.contents = to_contents(contents)
        self.role = role
        self.author_name = author_name
        self.message_id = message_id

    @property
    def text(self) -> str:
        """Join the texts."""
        return "".join([content.text or "" for content in self.contents if content.type == "text"])

    @property
    def user_input_requests(self) -> list[Content]:
        """Return the requests that the user has to answer before the agent continues."""
        return [content for content in self.contents if content.user_input_request is True]


class Response(_ResponseFields, Generic[ValueT]):
    """Base of the responses of models and agents."""

    _UPDATE: ClassVar[type[Any]]
    _ON_EACH_UPDATE: ClassVar[tuple[str, ...]]
    _ON_LAST_UPDATE: ClassVar[tuple[str, ...]] = ()
    _ITEMS = "messages"
    _STORED = ("messages", "response_id", "usage_details", *_COMMON)

    def __init__(
        self,
        *,
        messages: Message | Sequence[Message] | None = None,
        usage_details: UsageDetails | None = None,
        value: ValueT | None = None,
        response_format: ResponseFormat = None,
        **more: Any,
    ) -> None:
        super().__init__(**more)
        self.messages: list[Message] = [messages] if isinstance(messages, Message) else list(messages or ())
        self.usage_details = usage_details
        self.response_format = response_format
        self._value: Any = _VALUE_MISSING if value is None else value

    @property
    def text(self) -> str:
        """Join the texts of all messages."""
        return "".join([message.text for message in self.messages])

    @property
    def last_text(self) -> str:
        """Return the last text of the assistant: before a tool call a model may have said something else."""
        texts = (message.text for message in reversed(self.messages) if message.role == "assistant")
        return next(filter(None, texts), "")

    @property
    def value(self) -> ValueT | None:
        """Parse the answer as `response_format`; None without a format, or if the user has to answer first.

        Raises pydantic's ValidationError if the text doesn't fit the model, and ResponseValueError (a ValueError and an
        AgentInvalidResponseException) if it is empty, not JSON, or the class is unknown.
        """
        if self._value is _VALUE_MISSING:
            if self.response_format is None or self.user_input_requests:
                return None
            self._value = _parse_value(self.last_text, self.response_format)
        return cast("ValueT", self._value)

    @property
    def user_input_requests(self) -> list[Content]:
        """Return the requests that the user has to answer before the agent continues."""
        return [
            content for message in self.messages for content in message.contents if content.user_input_request is True
        ]

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read the output of `to_dict`, or stored fields."""
        given = [each if isinstance(each, Message) else Message.from_dict(each) for each in data.get("messages", ())]
        response = super().from_dict({**data, "messages": given})
        response.response_format = data.get("format")
        return response

    def stored_fields(self) -> dict[str, Any]:
        """Return the fields to store, and the name of the format. Parsing JSON doesn't need the schema."""
        fields, wanted = super().stored_fields(), self.response_format
        if wanted is not None:
            fields["format"] = (
                {} if isinstance(wanted, Mapping) else wanted if isinstance(wanted, str) else type_name(wanted)
            )
        return fields

    @classmethod
    def from_updates(
        cls, updates: Iterable[Any], *, output_format_type: ResponseFormat = None, value: Any = None
    ) -> Self:
        """Join updates into a complete response, without those that a discarded attempt has left."""
        response = cls(response_format=output_format_type, value=value)
        for update in without_discarded(updates):
            response._add(update)
        return response

    @classmethod
    async def from_update_generator(
        cls, updates: AsyncIterable[Any], *, output_format_type: ResponseFormat = None
    ) -> Self:
        """Read all updates and join them."""
        return cls.from_updates([update async for update in updates], output_format_type=output_format_type)

    def _add(self, update: Update) -> None:
        """Add an update. A new message starts where the message id, the role or the author changes."""
        last = self.messages[-1] if self.messages else None
        is_other = last is not None and (
            (update.message_id and last.message_id and update.message_id != last.message_id)
            or (update.role and update.role != last.role)
            or (update.author_name and last.author_name and update.author_name != last.author_name)
        )
        spoken = [content for content in update.contents if content.type != "usage"]
        if (last is None or is_other) and (spoken or update.role or update.message_id):
            last = Message(update.role or "assistant", [])
            self.messages.append(last)
        if last is not None:
            last.author_name = update.author_name or last.author_name
            last.message_id = update.message_id or last.message_id
            for content in spoken:
                _append_content(last.contents, content)
        for content in update.contents:
            if content.type == "usage":
                self.usage_details = add_usage_details(self.usage_details, content.usage_details)
        properties = self.additional_properties | update.additional_properties
        for name in set(self._STORED) & set(update._STORED):
            setattr(self, name, getattr(update, name) or getattr(self, name))
        self.additional_properties = properties

    def split(self) -> list[Any]:
        """Split into updates, one for each message. The last one holds the token counts."""
        usage = [] if self.usage_details is None else [Content.from_usage(self.usage_details)]
        updates: list[Any] = []
        for place, message in enumerate(self.messages, 1):
            is_last = place == len(self.messages)
            names = (*self._ON_EACH_UPDATE, *(self._ON_LAST_UPDATE if is_last else ()))
            update = self._UPDATE(
                contents=[*message.contents, *(usage if is_last else ())],
                role=message.role,
                author_name=message.author_name,
                message_id=message.message_id,
                **{name: getattr(self, name) for name in names},
            )
            updates.append(update)
        return updates


def _append_content(contents: list[Content], content: Content) -> None:
    """Append a content, or join it with the one it continues."""
    place = len(contents) - 1
    if content.type == "function_call" and content.call_id:
        calls = [at for at, each in enumerate(contents) if each.type == "function_call"]
        # The id of a call may come after its first update, so a call without one may be continued too.
        place = next((at for at in reversed(calls) if contents[at].call_id == content.call_id), place)
    try:
        if place >= 0:
            contents[place] = contents[place] + content
            return
    except AdditionItemMismatch:
        pass
    contents.append(content)


class _OfModel(_ResponseFields):
    def __init__(
        self, *, conversation_id: str | None = None, model: str | None = None, model_id: str | None = None, **more: Any
    ) -> None:
        super().__init__(**more)
        self.conversation_id = conversation_id
        self.model = model or model_id

    @property
    def model_id(self) -> str | None:
        """Return the model that answers."""
        return self.model


class _OfAgent(_ResponseFields):
    def __init__(self, *, agent_id: str | None = None, **more: Any) -> None:
        super().__init__(**more)
        self.agent_id = agent_id


class ChatResponseUpdate(_OfModel, Update):
    """A stream update of a model."""

    _TYPE = "chat_response_update"
    _STORED = (*Update._STORED, "conversation_id", "model")


class AgentResponseUpdate(_OfAgent, Update):
    """A stream update of an agent."""

    _TYPE = "agent_response_update"
    _STORED = (*Update._STORED, "agent_id")

    @classmethod
    def from_model(cls, update: ChatResponseUpdate) -> AgentResponseUpdate:
        """Convert an update of the agent's model."""
        return cls(**{name: getattr(update, name) for name in Update._STORED}, raw_representation=update)


class ChatResponse(_OfModel, Response[ValueT]):
    """The response of a model."""

    _TYPE = "chat_response"
    _STORED = (*Response._STORED, "conversation_id", "model")
    _UPDATE = ChatResponseUpdate
    _ON_EACH_UPDATE = ("response_id", "created_at", "model", "conversation_id")
    _ON_LAST_UPDATE = ("finish_reason", "continuation_token", "additional_properties")


class AgentResponse(_OfAgent, Response[ValueT]):
    """The response of an agent to one turn."""

    _TYPE = "agent_response"
    _STORED = (*Response._STORED, "agent_id")
    _UPDATE = AgentResponseUpdate
    _ON_EACH_UPDATE = ("agent_id", "response_id", "created_at", "finish_reason")

    @classmethod
    def from_model(cls, response: ChatResponse[Any], response_format: ResponseFormat) -> AgentResponse[Any]:
        """Convert the response of the agent's model."""
        fields = {name: getattr(response, name) for name in Response._STORED}
        return cls(**fields, response_format=response_format, raw_representation=response)

    def to_updates(self) -> list[AgentResponseUpdate]:
        """Split into updates, one for each message. The last one holds the token counts."""
        return self.split()


for _cls in (ChatResponse, AgentResponse, ChatResponseUpdate, AgentResponseUpdate):
    _any: Any = _cls
    register_type(_any, name=f"perdure:{_cls.__name__}", encode=_any.stored_fields, decode=_any.from_dict)


def token_spending(response: Response[Any]) -> dict[str, float]:
    """Return the tokens of a response as a run counts them."""
    usage: Mapping[str, Any] = response.usage_details or {}
    counts = {f"{kind}_tokens": usage.get(f"{kind}_token_count") for kind in ("input", "output", "total")}
    return {name: count for name, count in counts.items() if count}
