"""What is carried out to its end, though whoever asked for it may be gone by then."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from perdure.errors import CheckpointDamagedError
from perdure.storage.jobs import end_all

if TYPE_CHECKING:
    from collections.abc import Callable

    from perdure.records import Claim, Halt

T = TypeVar("T")
B = TypeVar("B")


async def carried_out(job: Future[T]) -> T:
    """The result of a job. Whoever is cancelled while waiting for it does not take the job along."""
    if not job.done():
        loop = asyncio.get_running_loop()
        # It stands between the caller and the job, and is all that is cancelled.
        ended: asyncio.Future[None] = loop.create_future()
        job.add_done_callback(lambda _: end_all(loop, [ended]))
        await ended
    return job.result()


def done_here(work: Callable[[], T]) -> Future[T]:
    """A job that the caller has done."""
    job: Future[T] = Future()
    try:
        job.set_result(work())
    except BaseException as error:  # noqa: BLE001 - whatever it is, it belongs to whoever waits for the job
        job.set_exception(error)
    return job


class Claiming(Generic[B]):
    """A claim that is being made. If nobody waits for it any more, whoever makes it gives it back."""

    def __init__(self, make: Callable[[B], Claim], give_back: Callable[[B, Claim], None]) -> None:
        self._make = make
        self._give_back = give_back
        self._lock = threading.Lock()
        self._is_begun = False
        self._made: Claim | None = None
        self._is_abandoned = False

    @property
    def is_begun(self) -> bool:
        """Whether it is being made or is made. One that was abandoned before that never is."""
        return self._is_begun

    def __call__(self, backend: B) -> Claim | None:
        """Make it; None if it was abandoned before."""
        with self._lock:
            if self._is_abandoned:
                return None
            self._is_begun = True
        claim = self._make(backend)
        with self._lock:
            self._made, is_abandoned = claim, self._is_abandoned
        if is_abandoned:
            self._give_back(backend, claim)
        return claim

    def abandon(self) -> Claim | None:
        """Say that nobody waits any more; the claim, if it is made by now: then it is the caller's to give back."""
        with self._lock:
            self._is_abandoned = True
            return self._made


class Releasing(Protocol):
    """Whoever can give a run free."""

    def release(self, claim: Claim, *, halt: Halt | None) -> None: ...


@dataclass(frozen=True, slots=True)
class _Release:
    tenant: str
    claim: Claim
    halt: Halt | None


class Owed:
    """Releases that have failed, to be tried again. A run that keeps a living owner would wait for ever."""

    def __init__(self) -> None:
        self._releases: deque[_Release] = deque()

    def __bool__(self) -> bool:
        return bool(self._releases)

    def add(self, tenant: str, claim: Claim, *, halt: Halt | None, error: BaseException) -> None:
        """Remember a release that has failed with that error."""
        # A run that can't be read can't be claimed by anybody either, whoever has it.
        if not isinstance(error, CheckpointDamagedError):
            self._releases.append(_Release(tenant, claim, halt))

    def settle(self, tenant: str, backend: Releasing) -> list[str]:
        """Try those of a tenant again, until one fails; the runs that are free now."""
        free: list[str] = []
        for _ in range(len(self._releases)):
            try:
                each = self._releases.popleft()
            except IndexError:
                # Another thread was faster.
                break
            if each.tenant != tenant:
                self._releases.append(each)
                continue
            try:
                backend.release(each.claim, halt=each.halt)
            except Exception as error:  # noqa: BLE001 - whoever wanted it was told, and this one wants something else
                self.add(tenant, each.claim, halt=each.halt, error=error)
                break
            free.append(each.claim.run_id)
        return free
