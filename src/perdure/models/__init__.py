"""All other providers of models, through pydantic-ai. It is loaded when the first client is made."""

from __future__ import annotations

from perdure.models.client import ModelClient

__all__ = ["ModelClient"]
