"""Plain functions of tools run in threads, so that they hold up nobody."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from perdure.engine import has_failed, is_inside_step
from perdure.graph import no_exit

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


async def in_thread(function: Callable[[], T]) -> T:
    """What a function gives. A thread can't be cancelled: whoever is cancelled waits for its end.

    Inside of a step the result is given nevertheless, so that it is recorded; whoever awaits the step is cancelled.
    """
    task = asyncio.ensure_future(asyncio.to_thread(_plainly, function))
    interruption: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError as error:
            interruption = error
    if interruption is not None and not is_inside_step():
        has_failed(task)  # an exception that nobody has looked at would be told by asyncio
        raise interruption
    return task.result()


def _plainly(function: Callable[[], T]) -> T:
    try:
        with no_exit():
            return function()
    except StopIteration as error:
        # No future can hold a StopIteration: whoever waits for the thread would wait for ever.
        raise RuntimeError("the tool raised StopIteration") from error
