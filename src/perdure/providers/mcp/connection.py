"""One connection with a server, kept by a task of its own: whoever calls may be any task, and may be cancelled."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from contextvars import Context
from typing import TYPE_CHECKING, Any, Self

from mcp import Client

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
    from contextlib import AbstractAsyncContextManager


class Connection:
    """A connection that is open, being opened, or over. It is never opened a second time.

    It belongs to the event loop that it was made on.
    """

    def __init__(
        self,
        dial: Callable[[], AbstractAsyncContextManager[Any]],
        *,
        opened: Callable[[Client], Awaitable[None]],
        timeout: float | None,
    ) -> None:
        self._dial = dial
        self._opened = opened
        self._timeout = timeout
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[Client] = self._loop.create_future()
        self._ready.add_done_callback(_looked_at)
        self._over = asyncio.Event()
        # Nothing of who happens to call first, such as a step or a span, belongs to the connection.
        self._task = self._loop.create_task(self._kept(), context=Context())

    @property
    def is_usable(self) -> bool:
        """Whether a call can be made over it, as far as is known, or will be when it is open."""
        is_here = self._loop is asyncio.get_running_loop()
        return is_here and not self._task.done() and not self._over.is_set()

    async def client(self) -> Client:
        """What calls are made with, as soon as it is open. Raises what kept it from being opened."""
        return await asyncio.shield(self._ready)

    def end(self) -> None:
        """Let it end, without waiting for that: it has failed a call."""
        self._over.set()

    async def close(self) -> None:
        """End it, and wait until it has."""
        if self._loop is not asyncio.get_running_loop():
            return
        self._over.set()
        await asyncio.wait([self._task])

    async def _kept(self) -> None:
        try:
            async with Client(_watched(self._dial, self._over), read_timeout_seconds=self._timeout) as client:
                await self._opened(client)
                self._ready.set_result(client)
                await self._over.wait()
        except Exception as error:  # noqa: BLE001 - whoever waits for an answer has been told
            if not self._ready.done():
                self._ready.set_exception(error)
        finally:
            self._over.set()
            if not self._ready.done():
                self._ready.cancel()


def _looked_at(ready: asyncio.Future[Client]) -> None:
    """Nobody may be left who waits for it."""
    if not ready.cancelled():
        ready.exception()


class _Watched:
    """What a server sends, to see where it ends: the library goes on as if nothing had happened."""

    def __init__(self, inner: Any, over: asyncio.Event) -> None:
        self._inner = inner
        self._over = over

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self._inner.__aexit__(*raised)

    async def receive(self) -> Any:
        return await self._inner.receive()

    async def aclose(self) -> None:
        await self._inner.aclose()

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        try:
            return await anext(self._inner)
        except StopAsyncIteration:
            self._over.set()
            raise


@asynccontextmanager
async def _watched(dial: Callable[[], AbstractAsyncContextManager[Any]], over: asyncio.Event) -> AsyncGenerator[Any]:
    async with dial() as (received, sent):
        yield _Watched(received, over), sent
