"""Models of OpenAI, of Azure, and of every server that speaks the language of chat completions."""

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
