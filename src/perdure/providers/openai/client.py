"""Chat clients for OpenAI, every server with a chat completions API, and Microsoft Foundry projects."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, cast, get_args, get_origin

from typing_extensions import TypedDict, TypeVar, Unpack

from perdure import agents
from perdure.errors import ChatClientInvalidRequestException
from perdure.providers import needs_extra
from perdure.providers.openai import request
from perdure.providers.openai.response import StreamUpdates, to_response

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence

    from openai import AsyncOpenAI

    from perdure.providers.openai.connection import Credential
    from perdure.secrets import Secret

OpenAIOptionsT = TypeVar("OpenAIOptionsT", default=request.OpenAIChatOptions[Any])

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


class ServerSettings(TypedDict, total=False):
    """The server, the credentials, retries and timeouts.

    Attributes:
        api_key: The key, or a function that returns one. Default: OPENAI_API_KEY. A server in `base_url` may need none.
        base_url: The server. Default: OPENAI_BASE_URL, else OpenAI.
        org_id: The organization to bill.
        azure_endpoint: The Azure resource. Default: AZURE_OPENAI_ENDPOINT, if there is no OpenAI key.
        api_version: The version of Azure's API.
        credential: Azure credentials: an object with `get_token`, or a function that returns a token.
        credential_scope: The scope of the tokens, if it is not the default.
        default_headers: Headers of every request.
        max_retries: The number of retries after a temporary failure. Default: 2.
        timeout: The timeout of one attempt in seconds. Default: 600.
    """

    api_key: str | Secret[str] | Callable[[], str | Awaitable[str]] | None
    base_url: str | None
    org_id: str | None
    azure_endpoint: str | None
    api_version: str | None
    credential: Credential | None
    credential_scope: str | None
    default_headers: Mapping[str, str] | None
    max_retries: int | None
    timeout: float | None


class OpenAIClientSettings(ServerSettings, total=False):
    """All settings of a client except its model.

    Attributes:
        model_id: The former name of `model`.
        async_client: An SDK client to use as it is. It is not closed, and it belongs to one event loop.
        instruction_role: The role of instructions: "developer" for models that expect it.
        compaction_strategy: Shortens long conversations before they are sent.
        tokenizer: Counts tokens for the compaction strategy.
        missing_usage: The policy for servers that report no token counts, if the run has a token budget. Default:
            "estimate".
        additional_properties: Any data to keep on the client.
    """

    model_id: str | None
    async_client: AsyncOpenAI | None
    instruction_role: str | None
    compaction_strategy: agents.CompactionStrategy | None
    tokenizer: agents.TokenizerProtocol | None
    missing_usage: agents.MissingUsage | None
    additional_properties: dict[str, Any] | None


class LayeredClientSettings(OpenAIClientSettings, total=False):
    """The settings of a client with layers: middleware around model and tool calls, and settings of the tool loop."""

    middleware: Sequence[Any] | None
    function_invocation_configuration: agents.FunctionInvocationConfiguration | None


class RawOpenAIChatClient(agents.BaseChatClient[OpenAIOptionsT], Generic[OpenAIOptionsT]):
    """The client without layers, for custom ones. `OpenAIChatClient` has the usual layers."""

    OTEL_PROVIDER_NAME: ClassVar[str] = "openai"
    _EXTRA: ClassVar[str] = "openai"  # it installs the SDK

    def __init__(self, model: str | None = None, **settings: Unpack[OpenAIClientSettings]) -> None:
        names = ("compaction_strategy", "tokenizer", "additional_properties", "missing_usage")
        super().__init__(**cast("dict[str, Any]", {name: settings.get(name) for name in names}))
        with needs_extra("this client needs", self._EXTRA):
            from perdure.providers.openai import connection  # noqa: PLC0415 - the SDK comes with an extra
        self._sdk: Any = connection
        self.model = model or settings.get("model_id") or first_set(_MODEL_VARIABLES)
        self.instruction_role = settings.get("instruction_role") or "system"
        self._connections = self._sdk.Connections(settings, settings.get("async_client"))
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

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(model={self.model!r}, base_url={self.service_url()!r})"

    def _inner_get_response(
        self, *, messages: Sequence[agents.Message], stream: bool, options: Mapping[str, Any], **kwargs: Any
    ) -> Any:
        known = {name: value for name, value in kwargs.items() if name in self._known_parameters}
        sent = self._request(messages, {**options, **known})
        renamed = agents.find_renamed_tools(request.tools_in(options))
        if stream:
            return self._stream(sent | request.stream_parameters(options), renamed)
        return self._complete(sent, options, renamed)

    def _request(self, messages: Sequence[agents.Message], options: Mapping[str, Any]) -> request.Wire:
        self._warn_of_unknown(options)
        host = self._connections.base_url.host
        is_openai = any(host == each or host.endswith(f".{each}") for each in _OPENAI_HOSTS)
        parameters = request.to_parameters(options, self._known_parameters, is_openai=is_openai)
        if not parameters.setdefault("model", self.model):
            raise ChatClientInvalidRequestException(
                f"no model is given; use {type(self).__name__}(model=...), or set {_MODEL_VARIABLES[0]}"
            )
        conversation = agents.prepend_instructions_to_messages(messages, options.get("instructions"))
        sendable = agents.sendable_messages(conversation)
        parameters["messages"] = request.to_wire_messages(sendable, instruction_role=self.instruction_role)
        return parameters

    def _warn_of_unknown(self, options: Mapping[str, Any]) -> None:
        declared = {name for each in get_args(getattr(self, "__orig_class__", None)) for name in _keys(each)}
        for name in request.find_unknown_options(options, {*self._known_parameters, *declared, *self._warned}):
            self._warned.add(name)
            logger.warning(
                "%s does not know the option %r and sends it to the server unchanged; if that is intended, "
                "put it into extra_body, or declare it in your own TypedDict of options",
                type(self).__name__,
                name,
            )

    async def _complete(
        self, sent: request.Wire, options: Mapping[str, Any], renamed: Mapping[str, str]
    ) -> agents.ChatResponse[Any]:
        client = await self._connections.client()
        with self._sdk.translate_errors(client):
            completion = await client.chat.completions.create(**sent)
        self._sdk.require_completion(client, completion)
        response = to_response(completion, options.get("response_format"))
        for message in response.messages:
            message.contents = agents.restore_names(message.contents, renamed)
        return response

    async def _stream(
        self, sent: request.Wire, renamed: Mapping[str, str]
    ) -> AsyncGenerator[agents.ChatResponseUpdate]:
        client = await self._connections.client()
        updates = StreamUpdates()
        with self._sdk.translate_errors(client):
            async with await client.chat.completions.create(**sent) as chunks:
                async for chunk in chunks:
                    if (update := updates.convert(chunk)) is not None:
                        update.contents = agents.restore_names(update.contents, renamed)
                        yield update
        if (rest := updates.last_update()) is not None:
            yield rest


def _keys(options: object) -> frozenset[str]:
    return getattr(get_origin(options) or options, "__optional_keys__", frozenset())


def first_set(variables: Sequence[str]) -> str | None:
    """Return the value of the first environment variable that is set."""
    return next((found for name in variables if (found := os.environ.get(name))), None)


class OpenAIChatClient(
    agents.FunctionInvocationLayer[OpenAIOptionsT],
    agents.ChatMiddlewareLayer[OpenAIOptionsT],
    agents.ChatTelemetryLayer[OpenAIOptionsT],
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
        settings: The server, middleware and more: see `LayeredClientSettings`.
    """

    def __init__(self, model: str | None = None, **settings: Unpack[LayeredClientSettings]) -> None:
        super().__init__(model=model, **settings)


FoundryChatOptions = request.OpenAIChatOptions

_ENDPOINT_VARIABLES = ("FOUNDRY_PROJECT_ENDPOINT", "AZURE_AI_PROJECT_ENDPOINT")
_FOUNDRY_MODEL_VARIABLES = ("FOUNDRY_MODEL", "FOUNDRY_MODEL_DEPLOYMENT_NAME", "AZURE_AI_MODEL_DEPLOYMENT_NAME")
_FOUNDRY_SCOPE = "https://ai.azure.com/.default"


class FoundryChatClient(OpenAIChatClient[OpenAIOptionsT], Generic[OpenAIOptionsT]):
    """Call a model that is deployed in a Foundry project, by the chat completions API of its resource.

    Args:
        project_endpoint: The project: `https://<resource>.services.ai.azure.com/api/projects/<project>`. Default:
            FOUNDRY_PROJECT_ENDPOINT or AZURE_AI_PROJECT_ENDPOINT.
        model: The deployment. Default: FOUNDRY_MODEL, FOUNDRY_MODEL_DEPLOYMENT_NAME or AZURE_AI_MODEL_DEPLOYMENT_NAME.
        project_client: An `AIProjectClient` whose SDK client is used as it is.
        settings: `credential` is one of `azure.identity`, or any object with `get_token`, sync or async. Tokens are
            renewed before they expire. Or an `api_key` of the resource. The others are those of OpenAIChatClient.
    """

    OTEL_PROVIDER_NAME: ClassVar[str] = "azure.ai.foundry"
    _EXTRA: ClassVar[str] = "foundry"

    def __init__(
        self,
        *,
        project_endpoint: str | None = None,
        project_client: Any = None,
        model: str | None = None,
        **settings: Unpack[LayeredClientSettings],
    ) -> None:
        endpoint = project_endpoint or first_set(_ENDPOINT_VARIABLES)
        if project_client is not None:
            settings["async_client"] = project_client.get_openai_client()
        if settings.get("async_client") is None:
            if not endpoint:
                raise ValueError(f"no project is given; use project_endpoint=, or set {_ENDPOINT_VARIABLES[0]}")
            settings["azure_endpoint"] = foundry_url(endpoint)
        settings.setdefault("credential_scope", _FOUNDRY_SCOPE)
        super().__init__(model or settings.get("model_id") or first_set(_FOUNDRY_MODEL_VARIABLES), **settings)
        self.project_endpoint = endpoint

    @staticmethod
    def get_web_search_tool(
        *, user_location: dict[str, str] | None = None, search_context_size: str | None = None, **more: Any
    ) -> dict[str, Any]:
        """Return a hosted tool: a model that supports it searches the web before it answers."""
        location = None if user_location is None else {"type": "approximate", "approximate": user_location}
        options = {"user_location": location, "search_context_size": search_context_size}
        return {"type": "web_search", **{name: value for name, value in options.items() if value is not None}, **more}

    @staticmethod
    def get_code_interpreter_tool(**more: Any) -> dict[str, Any]:
        """Return a hosted tool of the provider's other API. Chat completions reject it."""
        return {"type": "code_interpreter", "container": {"type": "auto"}, **more}

    @staticmethod
    def get_file_search_tool(*, vector_store_ids: Sequence[str], **more: Any) -> dict[str, Any]:
        """Return a hosted tool of the provider's other API. Chat completions reject it."""
        return {"type": "file_search", "vector_store_ids": list(vector_store_ids), **more}


def foundry_url(project_endpoint: str) -> str:
    """Return the address for chat completions: that of the project's resource, not of the project."""
    endpoint = project_endpoint.rstrip("/")
    if endpoint.endswith("/openai/v1"):
        return endpoint
    return f"{endpoint.partition('/api/projects/')[0]}/openai/v1"
