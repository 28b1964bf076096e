"""Having a thread for a moment, to change it: in this process by turns, among processes by a claim.

Nobody holds a thread longer than a change takes. So one who lives is waited for, a second at most: whoever is replaced
has to begin again, and many who replace each other begin again and again. From one that is frozen or out of reach the
thread is taken over then. Every write carries the claim's token, so whoever was replaced writes nothing.
"""

from __future__ import annotations

import contextlib
import itertools
from typing import TYPE_CHECKING

from perdure.clock import SystemClock
from perdure.errors import (
    CheckpointDamagedError,
    CheckpointWriteError,
    PartDamagedError,
    RunBusyError,
)
from perdure.records import NewRun
from perdure.threads.errors import ThreadDamagedError, ThreadWriteError
from perdure.threads.turns import turn

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator

    from perdure.clock import Clock
    from perdure.records import Claim
    from perdure.storage import HostStore
    from perdure.threads.names import ThreadName

_LOOK_SECONDS = 0.01
_LOOKS_MAX = 100

# Other processes go by the time of the machine, whatever clock a store is given.
_pause = SystemClock().sleep


class Holding:
    """Lets one at a time change a thread."""

    def __init__(self, store: HostStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    @contextlib.asynccontextmanager
    async def of(self, name: ThreadName, *, creates: bool = True) -> AsyncGenerator[Claim]:
        """Have a thread, which need not be there yet if it `creates`. Raises RunNotFoundError."""
        async with turn(f"{self._store.place} {name.run_id}"):
            with naming(name):
                claim = await self._claim(name, creates=creates)
            try:
                yield claim
            finally:
                await self._store.release(claim)

    async def _claim(self, name: ThreadName, *, creates: bool) -> Claim:
        create = self._new_run(name) if creates else None
        for looks in itertools.count():
            with contextlib.suppress(RunBusyError):
                return await self._store.claim(name.run_id, create=create, takeover=looks >= _LOOKS_MAX)
            await _pause(_LOOK_SECONDS)
        raise AssertionError("a claim that takes over is made")

    def _new_run(self, name: ThreadName) -> NewRun:
        now = self._clock.now().isoformat()
        return NewRun(name.run_id, name.workflow_name, created_at=now, nonce=self._clock.new_id())


@contextlib.contextmanager
def naming(name: ThreadName) -> Generator[None]:
    """Let errors of the store name the thread, which the store knows as a run."""
    try:
        yield
    except (CheckpointDamagedError, PartDamagedError) as error:
        raise ThreadDamagedError(name.session_id, name.thread_id, reason=error.reason) from error
    except CheckpointWriteError as error:
        raise ThreadWriteError(name.session_id, name.thread_id, reason=error.reason) from error
