"""What OpenAI's models, and those of servers that speak their language, can be told beside the common options."""

from __future__ import annotations

from typing import Any, Generic, Literal

from perdure.agents import ChatOptions, ResponseModelT


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
