"""Chat clients for every model provider that pydantic-ai supports."""

from perdure.providers.models import ModelClient

__all__ = ["ModelClient"]
