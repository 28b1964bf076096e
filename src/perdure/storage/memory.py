"""A store in memory, for tests and for runs that need not outlive the process."""

from __future__ import annotations

import itertools
import threading
from typing import TYPE_CHECKING, TypeVar

from perdure.clock import SystemClock
from perdure.records import Retention
from perdure.storage.carrying import done_here
from perdure.storage.memory_backend import MemoryBackend
from perdure.storage.store import BackedStore

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from perdure.clock import Clock

T = TypeVar("T")

_numbers = itertools.count(1)


class MemoryStore(BackedStore[MemoryBackend]):
    """Runs in memory, gone with the process."""

    def __init__(self, *, retention: Retention | None = None, clock: Clock | None = None) -> None:
        backend = MemoryBackend(retention=retention or Retention(), clock=clock or SystemClock())
        super().__init__(f"memory:{next(_numbers)}", _Caller(backend), pause=None)


class _Caller:
    """Does the work where it is asked for; one thread at a time."""

    is_here = True

    def __init__(self, backend: MemoryBackend) -> None:
        self._backend = backend
        self._lock = threading.RLock()

    async def do(self, work: Callable[[MemoryBackend], T]) -> T:
        return self.do_blocking(work)

    def do_blocking(self, work: Callable[[MemoryBackend], T]) -> T:
        with self._lock:
            return work(self._backend)

    def post(self, work: Callable[[MemoryBackend], T]) -> Future[T]:
        return done_here(lambda: self.do_blocking(work))

    async def close(self) -> None:
        """There is nothing to let go of."""
