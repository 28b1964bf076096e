"""How a client reaches its server. What is not given is looked for in the environment."""

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
    """Which server is asked, by whom, and how patiently."""

    api_key: str | Secret[str] | Callable[[], str | Awaitable[str]] | None
    """The key, or a function that gives one. Else OPENAI_API_KEY. A server named by `base_url` may need none."""
    base_url: str | None
    """Where the server is. Else OPENAI_BASE_URL, else OpenAI."""
    org_id: str | None
    """The organization that pays."""
    azure_endpoint: str | None
    """Ask this resource of Azure. Else AZURE_OPENAI_ENDPOINT, if there is no key for OpenAI."""
    api_version: str | None
    """The version of Azure's interface."""
    credential: Credential | None
    """Who asks, in Azure: anything with `get_token`, or a function that gives a token."""
    credential_scope: str | None
    """What a token is asked for, if it is not the usual."""
    default_headers: Mapping[str, str] | None
    """Headers of every request."""
    max_retries: int | None
    """How often a request is tried again that failed for a moment: 2 times, if it is not given."""
    timeout: float | None
    """How many seconds a try may take: 600, if it is not given."""


class OpenAIClientSettings(ServerSettings, total=False):
    """All that a client can be given beside its model."""

    model_id: str | None
    """The model, by an older name."""
    async_client: AsyncOpenAI | None
    """A client of the SDK to use as it is. It is not closed, and belongs to one event loop."""
    instruction_role: str | None
    """What instructions are sent as: "developer" for models that want it."""
    compaction_strategy: CompactionStrategy | None
    """What makes a long conversation shorter before it is sent."""
    tokenizer: TokenizerProtocol | None
    """What counts tokens for it."""
    additional_properties: dict[str, Any] | None
    """Anything; it stays on the client."""


class OpenAIChatOptions(ChatOptions[ResponseModelT], Generic[ResponseModelT], total=False):
    """Options of a chat completion: `OpenAIChatOptions[Model](response_format=Model)`.

    `max_tokens` goes to OpenAI and Azure as `max_completion_tokens`, and to all other servers by its own name. An
    option that is not listed here is sent along as it is (in `extra_body`), for servers that know more.
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
    """What is told in a stream. By default the tokens are; None is for servers that do not know the option."""
    timeout: float
    """How many seconds this call may take, in place of the client's `timeout`."""
    extra_headers: dict[str, str]
    extra_query: dict[str, Any]
    extra_body: dict[str, Any]


class OpenAIContentFilterException(ChatClientInvalidRequestException):
    """The provider's filter did not let the conversation through. The same conversation again fails again."""
