"""Hearing, while a superstep is under way, that the run is to stop."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from perdure.clock import seconds_until
from perdure.errors import WorkflowException

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from perdure.clock import Clock
    from perdure.kernel import Moment

logger = logging.getLogger(__name__)

_BEGINS_AFTER_SECONDS = 0.2
_LOOKS_MAX = 5
"""How often the inbox is looked at again for the wish to stop, after it could not be read."""


class Watch:
    """`async with` it: `stop` is called when the deadline has come, or when `asked` returns, since somebody wants it.

    Most runs are over before it is worth to look. It is no generator: a loop that shuts down closes all of them at
    once, and this one might have ended before the run that is inside of it.
    """

    _timer: asyncio.TimerHandle | None = None

    def __init__(
        self,
        stop: Callable[[], None],
        *,
        asked: Callable[[], Awaitable[None]] | None,
        deadline: Moment | None,
        clock: Clock,
        run_id: str,
    ) -> None:
        self._stop = stop
        self._asked = asked
        self._deadline = deadline
        self._clock = clock
        self._run_id = run_id
        self._watching: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> None:
        if self._asked is not None or self._deadline is not None:
            self._timer = asyncio.get_running_loop().call_later(_BEGINS_AFTER_SECONDS, self._begin)

    async def __aexit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._watching:
            for task in self._watching:
                task.cancel()
            await asyncio.gather(*self._watching, return_exceptions=True)

    def _begin(self) -> None:
        if self._asked is not None:
            self._watching.append(asyncio.ensure_future(self._stop_after(self._asked)))
        if self._deadline is not None:
            deadline = self._deadline
            self._watching.append(asyncio.ensure_future(self._stop_after(lambda: self._until(deadline))))

    async def _stop_after(self, reason: Callable[[], Awaitable[None]]) -> None:
        for looks_left in reversed(range(_LOOKS_MAX)):
            try:
                await reason()
                break
            except WorkflowException as error:
                logger.warning("run %r: whether it is to stop could not be read: %s", self._run_id, error)
                if not looks_left:
                    return
                await self._clock.sleep(_BEGINS_AFTER_SECONDS)
        self._stop()

    async def _until(self, moment: Moment) -> None:
        while seconds := seconds_until(self._clock, moment):
            await self._clock.sleep(seconds)
