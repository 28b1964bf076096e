"""Chat clients for OpenAI, Azure OpenAI and every server with an OpenAI-compatible chat completions API."""

from perdure.providers.openai.client import OpenAIChatClient, RawOpenAIChatClient
from perdure.providers.openai.request import OpenAIChatOptions, OpenAIContentFilterException

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
