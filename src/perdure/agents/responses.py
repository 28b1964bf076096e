"""What models and agents answer, whole or in pieces."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Self, TypeAlias, cast

from typing_extensions import TypeVar

from perdure.agents.content import Content, UsageDetails
from perdure.agents.formats import parsed_value
from perdure.agents.messages import Message, contents_of
from perdure.agents.response_base import Kept
from perdure.agents.response_joining import take_in

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Iterable, Mapping, Sequence

    from pydantic import BaseModel

    from perdure.agents.messages import Said

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
