"""Chat client for models deployed in a Microsoft Foundry project."""

from perdure.providers.openai.client import FoundryChatClient, FoundryChatOptions

__all__ = ["FoundryChatClient", "FoundryChatOptions"]
