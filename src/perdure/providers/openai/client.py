"""A client of OpenAI's models, and of every server that speaks the language of chat completions."""

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
from perdure.providers.openai.request import parameters_of, stream_parameters, unknown_options, wire_messages
from perdure.providers.openai.response import Pieces, response_of
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
    """A client without layers, to put other layers around it. `OpenAIChatClient` has the usual ones."""

    OTEL_PROVIDER_NAME: ClassVar[str] = "openai"
    _EXTRA: ClassVar[str] = "openai"
    """What is installed with the client."""

    def __init__(self, model: str | None = None, **settings: Unpack[OpenAIClientSettings]) -> None:
        own = {name: settings.get(name) for name in ("compaction_strategy", "tokenizer", "additional_properties")}
        super().__init__(**cast("dict[str, Any]", own))
        self._sdk = _sdk(self._EXTRA)
        self.model = model or settings.get("model_id") or first_set(_MODEL_VARIABLES)
        self.instruction_role = settings.get("instruction_role") or "system"
        server = {name: settings.get(name) for name in ServerSettings.__annotations__}
        self._connections = self._sdk.Connections(self._sdk.Target(**server), settings.get("async_client"))
        self._known = self._sdk.known_parameters()
        self._warned: set[str] = set()

    @property
    def model_id(self) -> str | None:
        """The model that is asked, unless the options name another."""
        return self.model

    def service_url(self) -> str:
        """Where the model is asked."""
        url = self._connections.base_url
        return f"{url.scheme}://{url.host}" + (f":{url.port}" if url.port else "") + url.path

    async def aclose(self) -> None:
        """Close the connections that are open. A client that was given as `async_client` stays open."""
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
        known = {name: value for name, value in kwargs.items() if name in self._known}
        request = self._request(messages, {**options, **known})
        if stream:
            return self._streamed(request | stream_parameters(options))
        return self._whole(request, options)

    def _request(self, messages: Sequence[Message], options: Mapping[str, Any]) -> Wire:
        self._warn_of_unknown(options)
        host = self._connections.base_url.host
        is_openai = any(host == each or host.endswith(f".{each}") for each in _OPENAI_HOSTS)
        asked = parameters_of(options, self._known, is_openai=is_openai)
        if not asked.setdefault("model", self.model):
            raise ChatClientInvalidRequestException(
                f"nobody says which model to ask; give {type(self).__name__}(model=...), or set {_MODEL_VARIABLES[0]}"
            )
        said = prepend_instructions_to_messages(messages, options.get("instructions"))
        asked["messages"] = wire_messages(said, instruction_role=self.instruction_role)
        return asked

    def _warn_of_unknown(self, options: Mapping[str, Any]) -> None:
        declared = {name for each in get_args(getattr(self, "__orig_class__", None)) for name in _keys(each)}
        for name in unknown_options(options, {*self._known, *declared, *self._warned}):
            self._warned.add(name)
            logger.warning(
                "%s does not know the option %r and sends it to the server as it is; if that is meant, "
                "put it into extra_body, or into a TypedDict of options of your own",
                type(self).__name__,
                name,
            )

    async def _whole(self, request: Wire, options: Mapping[str, Any]) -> ChatResponse[Any]:
        client = self._connections.client()
        with self._sdk.told(client):
            completion = await client.chat.completions.create(**request)
        self._sdk.require_completion(client, completion)
        return response_of(completion, options.get("response_format"))

    async def _streamed(self, request: Wire) -> AsyncGenerator[ChatResponseUpdate]:
        client = self._connections.client()
        pieces = Pieces()
        with self._sdk.told(client):
            async with await client.chat.completions.create(**request) as chunks:
                async for chunk in chunks:
                    if (update := pieces.update_of(chunk)) is not None:
                        yield update
        if (rest := pieces.rest()) is not None:
            yield rest


def _keys(options: object) -> frozenset[str]:
    return getattr(get_origin(options) or options, "__optional_keys__", frozenset())


def first_set(variables: Sequence[str]) -> str | None:
    """The first of the environment variables that says something."""
    return next((found for name in variables if (found := os.environ.get(name))), None)


def _sdk(extra: str) -> Any:
    """What needs the SDK, which comes with an extra."""
    try:
        from perdure.providers.openai import connection  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ImportError(
            f"asking these models needs the Python package {error.name}: pip install 'perdure[{extra}]'"
        ) from error
    return connection


class OpenAIChatClient(
    FunctionInvocationLayer[OpenAIOptionsT],
    ChatMiddlewareLayer[OpenAIOptionsT],
    ChatTelemetryLayer[OpenAIOptionsT],
    RawOpenAIChatClient[OpenAIOptionsT],
    Generic[OpenAIOptionsT],
):
    """Asks for chat completions: of OpenAI, Azure, or any server that speaks their language (Ollama, vLLM and others).

    What fails for a moment (too many requests, with the time that the server names; a server that is overloaded; a
    connection that is not made) the SDK tries again: `max_retries` says how often, 2 times if it is not given, and
    `timeout` how many seconds each try may take, 600 if it is not given. What still fails is a ChatClientException or
    one of its kinds. A failure is never recorded: a workflow that goes on makes the call again.

    Args:
        model: The model, or in Azure the deployment. Else OPENAI_CHAT_MODEL_ID or OPENAI_MODEL.
        middleware: Middleware around calls of the model and of tools.
        function_invocation_configuration: How tools are called.
        settings: How the server is reached, and more: `OpenAIClientSettings` says what.
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
