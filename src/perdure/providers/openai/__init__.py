"""Models of OpenAI, of Azure, and of every server that speaks the language of chat completions."""

from perdure.providers.openai.client import OpenAIChatClient
from perdure.providers.openai.content_filter import OpenAIContentFilterException
from perdure.providers.openai.options import OpenAIChatOptions
from perdure.providers.openai.raw import RawOpenAIChatClient

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
