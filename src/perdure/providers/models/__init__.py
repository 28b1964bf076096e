"""Chat client for other providers, through pydantic-ai, which is loaded with the first client."""

from __future__ import annotations

from perdure.providers.models.client import ModelClient

__all__ = ["ModelClient"]
