"""Clients for model providers and MCP servers, each built on the provider's own library."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator


@contextmanager
def needs_extra(what: str, extra: str) -> Generator[None]:
    """Say what to install if a library that the block imports is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("perdure"):
            raise
        raise ImportError(f"{what} the Python package {error.name}: pip install 'perdure[{extra}]'") from error
