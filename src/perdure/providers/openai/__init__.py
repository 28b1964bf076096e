"""Chat clients for OpenAI, Azure OpenAI and compatible servers."""

from perdure.providers.openai.client import OpenAIChatClient, RawOpenAIChatClient
from perdure.providers.openai.settings import OpenAIChatOptions, OpenAIContentFilterException

OpenAIChatCompletionClient = OpenAIChatClient
OpenAIChatCompletionOptions = OpenAIChatOptions
RawOpenAIChatCompletionClient = RawOpenAIChatClient

__all__ = [
    "OpenAIChatClient",
    "OpenAIChatCompletionClient",
    "OpenAIChatCompletionOptions",
    "OpenAIChatOptions",
    "OpenAIContentFilterException",
    "RawOpenAIChatClient",
    "RawOpenAIChatCompletionClient",
]
