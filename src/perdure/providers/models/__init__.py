"""All other providers of models, through pydantic-ai. It is loaded when the first client is made."""

from __future__ import annotations

from perdure.providers.models.client import ModelClient

__all__ = ["ModelClient"]
