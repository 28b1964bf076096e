"""Chat client for OpenAI and every server with a chat completions API."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, cast, get_args, get_origin

from typing_extensions import TypeVar, Unpack

from perdure.agents import (
    BaseChatClient,
    ChatMiddlewareLayer,
    ChatTelemetryLayer,
    FunctionInvocationLayer,
    prepend_instructions_to_messages,
)
from perdure.errors import ChatClientInvalidRequestException
from perdure.providers.openai.request import find_unknown_options, stream_parameters, to_parameters, to_wire_messages
from perdure.providers.openai.response import StreamUpdates, to_response
from perdure.providers.openai.settings import OpenAIChatOptions, OpenAIClientSettings, ServerSettings

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence
    from types import TracebackType

    from perdure.agents import ChatResponse, ChatResponseUpdate, FunctionInvocationConfiguration, Message
    from perdure.providers.openai.request import Wire
    from perdure.providers.openai.settings import OpenAIClientSettings

OpenAIOptionsT = TypeVar("OpenAIOptionsT", default=OpenAIChatOptions[Any])

logger = logging.getLogger(__name__)

_MODEL_VARIABLES = (
    "OPENAI_CHAT_MODEL_ID",
    "OPENAI_CHAT_COMPLETION_MODEL",
    "OPENAI_CHAT_MODEL",
    "OPENAI_MODEL",
    "AZURE_OPENAI_CHAT_DEPLOYMENT_NAME",
    "AZURE_OPENAI_CHAT_MODEL",
    "AZURE_OPENAI_MODEL",
)
_OPENAI_HOSTS = ("openai.com", "azure.com", "azure.us", "azure.cn")


class RawOpenAIChatClient(BaseChatClient[OpenAIOptionsT], Generic[OpenAIOptionsT]):
    """The client without layers, for custom ones. `OpenAIChatClient` has the usual layers."""

    OTEL_PROVIDER_NAME: ClassVar[str] = "openai"
    _EXTRA: ClassVar[str] = "openai"
    """The extra that installs the SDK."""

    def __init__(self, model: str | None = None, **settings: Unpack[OpenAIClientSettings]) -> None:
        own = {name: settings.get(name) for name in ("compaction_strategy", "tokenizer", "additional_properties")}
        super().__init__(**cast("dict[str, Any]", own))
        self._sdk = _sdk(self._EXTRA)
        self.model = model or settings.get("model_id") or first_set(_MODEL_VARIABLES)
        self.instruction_role = settings.get("instruction_role") or "system"
        server = {name: settings.get(name) for name in ServerSettings.__annotations__}
        self._connections = self._sdk.Connections(self._sdk.Target(**server), settings.get("async_client"))
        self._known_parameters = self._sdk.known_parameters()
        self._warned: set[str] = set()

    @property
    def model_id(self) -> str | None:
        """Return the model that is called unless the options name another."""
        return self.model

    def service_url(self) -> str:
        """Return the server's address."""
        url = self._connections.base_url
        return f"{url.scheme}://{url.host}" + (f":{url.port}" if url.port else "") + url.path

    async def aclose(self) -> None:
        """Close open connections. A client given as `async_client` stays open."""
        await self._connections.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(model={self.model!r}, base_url={self.service_url()!r})"

    def _inner_get_response(
        self, *, messages: Sequence[Message], stream: bool, options: Mapping[str, Any], **kwargs: Any
    ) -> Any:
        known = {name: value for name, value in kwargs.items() if name in self._known_parameters}
        request = self._request(messages, {**options, **known})
        if stream:
            return self._stream(request | stream_parameters(options))
        return self._complete(request, options)

    def _request(self, messages: Sequence[Message], options: Mapping[str, Any]) -> Wire:
        self._warn_of_unknown(options)
        host = self._connections.base_url.host
        is_openai = any(host == each or host.endswith(f".{each}") for each in _OPENAI_HOSTS)
        parameters = to_parameters(options, self._known_parameters, is_openai=is_openai)
        if not parameters.setdefault("model", self.model):
            raise ChatClientInvalidRequestException(
                f"no model is given; use {type(self).__name__}(model=...), or set {_MODEL_VARIABLES[0]}"
            )
        conversation = prepend_instructions_to_messages(messages, options.get("instructions"))
        parameters["messages"] = to_wire_messages(conversation, instruction_role=self.instruction_role)
        return parameters

    def _warn_of_unknown(self, options: Mapping[str, Any]) -> None:
        declared = {name for each in get_args(getattr(self, "__orig_class__", None)) for name in _keys(each)}
        for name in find_unknown_options(options, {*self._known_parameters, *declared, *self._warned}):
            self._warned.add(name)
            logger.warning(
                "%s does not know the option %r and sends it to the server unchanged; if that is intended, "
                "put it into extra_body, or declare it in your own TypedDict of options",
                type(self).__name__,
                name,
            )

    async def _complete(self, request: Wire, options: Mapping[str, Any]) -> ChatResponse[Any]:
        client = self._connections.client()
        with self._sdk.translate_errors(client):
            completion = await client.chat.completions.create(**request)
        self._sdk.require_completion(client, completion)
        return to_response(completion, options.get("response_format"))

    async def _stream(self, request: Wire) -> AsyncGenerator[ChatResponseUpdate]:
        client = self._connections.client()
        updates = StreamUpdates()
        with self._sdk.translate_errors(client):
            async with await client.chat.completions.create(**request) as chunks:
                async for chunk in chunks:
                    if (update := updates.convert(chunk)) is not None:
                        yield update
        if (rest := updates.last_update()) is not None:
            yield rest


def _keys(options: object) -> frozenset[str]:
    return getattr(get_origin(options) or options, "__optional_keys__", frozenset())


def first_set(variables: Sequence[str]) -> str | None:
    """Return the value of the first environment variable that is set."""
    return next((found for name in variables if (found := os.environ.get(name))), None)


def _sdk(extra: str) -> Any:
    """Import the module that needs the SDK, which comes with an extra."""
    try:
        from perdure.providers.openai import connection  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ImportError(
            f"this client needs the Python package {error.name}: pip install 'perdure[{extra}]'"
        ) from error
    return connection


class OpenAIChatClient(
    FunctionInvocationLayer[OpenAIOptionsT],
    ChatMiddlewareLayer[OpenAIOptionsT],
    ChatTelemetryLayer[OpenAIOptionsT],
    RawOpenAIChatClient[OpenAIOptionsT],
    Generic[OpenAIOptionsT],
):
    """Call chat completions of OpenAI, Azure, or any compatible server (Ollama, vLLM and others).

    The SDK retries temporary failures: rate limits (after the time that the server names), overloaded servers, failed
    connections. `max_retries` sets the number of retries (default 2) and `timeout` the seconds of each attempt (default
    600). A call that still fails raises a ChatClientException. Failures are never recorded: a resumed workflow makes
    the call again.

    Args:
        model: The model, or the deployment in Azure. Default: OPENAI_CHAT_MODEL_ID or OPENAI_MODEL.
        middleware: Middleware around model and tool calls.
        function_invocation_configuration: Settings of the tool loop.
        settings: The server and more: see `OpenAIClientSettings`.
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        middleware: Sequence[Any] | None = None,
        function_invocation_configuration: FunctionInvocationConfiguration | None = None,
        **settings: Unpack[OpenAIClientSettings],
    ) -> None:
        super().__init__(
            model=model,
            middleware=middleware,
            function_invocation_configuration=function_invocation_configuration,
            **settings,
        )
