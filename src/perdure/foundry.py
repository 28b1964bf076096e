"""Chat client for models deployed in a Microsoft Foundry project."""

from perdure.providers.foundry import FoundryChatClient, FoundryChatOptions

__all__ = ["FoundryChatClient", "FoundryChatOptions"]
