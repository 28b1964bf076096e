"""Settings and options of the OpenAI chat client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Literal

from typing_extensions import TypedDict

from perdure.agents import ChatOptions, ResponseModelT
from perdure.errors import ChatClientInvalidRequestException

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from openai import AsyncOpenAI

    from perdure.agents import CompactionStrategy, TokenizerProtocol
    from perdure.providers.openai.connection import Credential
    from perdure.secrets import Secret


class ServerSettings(TypedDict, total=False):
    """The server, the credentials, retries and timeouts."""

    api_key: str | Secret[str] | Callable[[], str | Awaitable[str]] | None
    """The key, or a function that returns one. Default: OPENAI_API_KEY. A server in `base_url` may need none."""
    base_url: str | None
    """The server. Default: OPENAI_BASE_URL, else OpenAI."""
    org_id: str | None
    """The organization to bill."""
    azure_endpoint: str | None
    """The Azure resource. Default: AZURE_OPENAI_ENDPOINT, if there is no OpenAI key."""
    api_version: str | None
    """The version of Azure's API."""
    credential: Credential | None
    """Azure credentials: an object with `get_token`, or a function that returns a token."""
    credential_scope: str | None
    """The scope of the tokens, if it is not the default."""
    default_headers: Mapping[str, str] | None
    """Headers of every request."""
    max_retries: int | None
    """The number of retries after a temporary failure. Default: 2."""
    timeout: float | None
    """The timeout of one attempt in seconds. Default: 600."""


class OpenAIClientSettings(ServerSettings, total=False):
    """All settings of a client except its model."""

    model_id: str | None
    """The former name of `model`."""
    async_client: AsyncOpenAI | None
    """An SDK client to use as it is. It is not closed, and it belongs to one event loop."""
    instruction_role: str | None
    """The role of instructions: "developer" for models that expect it."""
    compaction_strategy: CompactionStrategy | None
    """Shortens long conversations before they are sent."""
    tokenizer: TokenizerProtocol | None
    """Counts tokens for the compaction strategy."""
    additional_properties: dict[str, Any] | None
    """Any data to keep on the client."""


class OpenAIChatOptions(ChatOptions[ResponseModelT], Generic[ResponseModelT], total=False):
    """Options of a chat completion: `OpenAIChatOptions[Model](response_format=Model)`.

    OpenAI and Azure get `max_tokens` as `max_completion_tokens`, other servers under its own name. An option that is
    not listed here is sent unchanged (in `extra_body`), for servers that know more.
    """

    max_completion_tokens: int
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"]
    verbosity: Literal["low", "medium", "high"]
    logprobs: bool
    top_logprobs: int
    prediction: dict[str, Any]
    modalities: list[Literal["text", "audio"]]
    audio: dict[str, Any]
    n: int
    service_tier: Literal["auto", "default", "flex", "scale", "priority"]
    prompt_cache_key: str
    safety_identifier: str
    web_search_options: dict[str, Any]
    stream_options: dict[str, Any] | None
    """Options of a stream. By default token counts are included; None is for servers without this option."""
    timeout: float
    """The timeout of this call in seconds, instead of the client's `timeout`."""
    extra_headers: dict[str, str]
    extra_query: dict[str, Any]
    extra_body: dict[str, Any]


class OpenAIContentFilterException(ChatClientInvalidRequestException):
    """The provider's content filter rejected the conversation. Sending it again fails again."""
