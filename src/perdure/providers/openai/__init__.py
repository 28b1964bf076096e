"""Chat clients for OpenAI, Azure OpenAI and compatible servers."""

from perdure.providers.openai.client import (
    FoundryChatClient,
    FoundryChatOptions,
    OpenAIChatClient,
    RawOpenAIChatClient,
)
from perdure.providers.openai.request import OpenAIChatOptions, OpenAIContentFilterException

OpenAIChatCompletionClient = OpenAIChatClient
OpenAIChatCompletionOptions = OpenAIChatOptions
RawOpenAIChatCompletionClient = RawOpenAIChatClient

__all__ = [
    "FoundryChatClient",
    "FoundryChatOptions",
    "OpenAIChatClient",
    "OpenAIChatCompletionClient",
    "OpenAIChatCompletionOptions",
    "OpenAIChatOptions",
    "OpenAIContentFilterException",
    "RawOpenAIChatClient",
    "RawOpenAIChatCompletionClient",
]
