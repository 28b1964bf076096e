"""Chat clients for OpenAI, Azure OpenAI and every server with an OpenAI-compatible chat completions API."""

from perdure.providers.openai import (
    OpenAIChatClient,
    OpenAIChatCompletionClient,
    OpenAIChatCompletionOptions,
    OpenAIChatOptions,
    OpenAIContentFilterException,
    RawOpenAIChatClient,
    RawOpenAIChatCompletionClient,
)

__all__ = [
    "OpenAIChatClient",
    "OpenAIChatCompletionClient",
    "OpenAIChatCompletionOptions",
    "OpenAIChatOptions",
    "OpenAIContentFilterException",
    "RawOpenAIChatClient",
    "RawOpenAIChatCompletionClient",
]
