"""Closing an async generator that another one reads, also while an event loop shuts down."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

ItemT = TypeVar("ItemT")


class Closing(Generic[ItemT]):
    """`async with Closing(generator) as items`: at the end the generator is closed, before anything around it is.

    A loop that shuts down closes all generators at once, and of two nested ones the inner may be on its way already
    when the outer comes to close it. It is waited for then: what encloses it must not be given up before.
    """

    def __init__(self, generator: AsyncGenerator[ItemT]) -> None:
        self._generator: Any = generator

    async def __aenter__(self) -> AsyncGenerator[ItemT]:
        return self._generator

    async def __aexit__(self, *_: object) -> None:
        while self._generator.ag_running:  # noqa: ASYNC110 - a generator does not tell when it has ended
            await asyncio.sleep(0)
        await self._generator.aclose()
