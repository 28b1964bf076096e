"""A store in memory, for tests and for runs that need not outlive the process."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from perdure.clock import SystemClock
from perdure.records import Retention
from perdure.storage.memory_backend import MemoryBackend
from perdure.storage.store import HostBackedStore
from perdure.storage.worker import InlineWorker

if TYPE_CHECKING:
    from perdure.clock import Clock

_numbers = itertools.count(1)


class MemoryStore(HostBackedStore[MemoryBackend]):
    """Runs in memory, gone with the process."""

    def __init__(self, *, retention: Retention | None = None, clock: Clock | None = None) -> None:
        backend = MemoryBackend(retention=retention or Retention(), clock=clock or SystemClock())
        super().__init__(f"memory:{next(_numbers)}", InlineWorker(backend), pause=None)
