"""The signals that ask a process to end, while somebody serves."""

from __future__ import annotations

import asyncio
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

_ENDING = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def on_ending(ask: Callable[[], None]) -> Generator[None]:
    """Call `ask` for each signal that asks to end, in place of what happens otherwise.

    Only the main thread is told of signals; elsewhere nothing is changed.
    """
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in _ENDING}
    caught: list[signal.Signals] = []
    try:
        for number in _ENDING:
            try:
                loop.add_signal_handler(number, ask)
            except (ValueError, RuntimeError, NotImplementedError):
                break
            caught.append(number)
        yield
    finally:
        for number in caught:
            loop.remove_signal_handler(number)
            if before[number] is not None:
                signal.signal(number, before[number])
