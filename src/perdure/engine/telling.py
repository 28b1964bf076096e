"""The way of events from the activations of a superstep to whoever reads them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from perdure.events import WorkflowEvent


class Telling:
    """Events that are told and not handed on yet. Whoever waits for some is woken; nobody polls.

    A reader who wants them `live` is woken by each; any other only when there is no more to come.
    """

    def __init__(self, *, live: bool) -> None:
        self._is_live = live
        self._events: list[WorkflowEvent[Any]] = []
        self._waiter: asyncio.Future[None] | None = None

    def tell(self, event: WorkflowEvent[Any]) -> None:
        """Hand on an event."""
        self._events.append(event)
        if self._is_live and self._waiter is not None:
            self.wake()

    def wake(self) -> None:
        """Let the reader look again."""
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def told(self) -> list[WorkflowEvent[Any]]:
        """The events so far, each once."""
        events, self._events = self._events, []
        return events

    def wait(self) -> Awaitable[None]:
        """Wait to be woken."""
        waiter = self._waiter = asyncio.get_running_loop().create_future()
        return waiter
