"""Leases inside this process: one stream at a time advances a run and uses its executors.

The store's lease keeps other processes out. This one keeps out other tasks, and takes over from abandoned streams.
"""

from __future__ import annotations

import asyncio
import weakref
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from perdure.errors import RunBusyError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable

    from perdure.graph import Executor
    from perdure.streams import ResponseStream


@dataclass(eq=False)
class LocalLease:
    """The hold of one stream on a run and its executors."""

    run_id: str = ""
    executors: tuple[Executor, ...] = ()
    run: tuple[str, str] | None = None
    loop: asyncio.AbstractEventLoop | None = None
    released: asyncio.Event | None = None
    _stream: weakref.ref[ResponseStream[Any, Any]] | None = None

    def bind(self, stream: ResponseStream[Any, Any]) -> None:
        """Set the stream that holds this lease."""
        self._stream = weakref.ref(stream)

    @property
    def is_abandoned(self) -> bool:
        """Return whether nobody will read on: the stream or its reader is gone, or its reader is the current task."""
        if self.loop is None or self.loop.is_closed():
            return True
        stream = self._stream() if self._stream is not None else None
        return stream is None or not is_read_elsewhere(stream)

    async def revoke(self) -> None:
        """Close the stream and wait until nothing of it runs."""
        if self.loop is not asyncio.get_running_loop():
            return
        stream = self._stream() if self._stream is not None else None
        if stream is not None:
            await stream.aclose()
        elif self.released is not None:
            # The event loop is finalizing the generator.
            await self.released.wait()


def is_read_elsewhere(stream: ResponseStream[Any, Any]) -> bool:
    """Return whether the last reader of a stream is a living task other than the current one."""
    consumer = stream.consumer
    if consumer is None or consumer.done():
        return False
    try:
        return consumer is not asyncio.current_task()
    except RuntimeError:
        return True


@dataclass(slots=True)
class _ExecutorEntry:
    """The lease on one executor, the run whose state it carries, and its state before any run used it."""

    executor: weakref.ref[Executor]
    lease: LocalLease | None = None
    run: object = None
    initial_state: Callable[[], Any] | None = None


class LocalLeases:
    """All leases of this process, by run and by executor.

    Executors are looked up by identity, not equality. An entry goes when its executor goes.
    """

    def __init__(self) -> None:
        self._executors: dict[int, _ExecutorEntry] = {}
        self._runs: weakref.WeakValueDictionary[tuple[str, str], LocalLease] = weakref.WeakValueDictionary()

    def _entry(self, executor: Executor) -> _ExecutorEntry:
        key, entries = id(executor), self._executors
        entry = entries.get(key)
        if entry is None or entry.executor() is not executor:
            entry = entries[key] = _ExecutorEntry(weakref.ref(executor, lambda _: entries.pop(key, None)))
        return entry

    async def acquire(self, lease: LocalLease, *, executors: Iterable[Executor], place: str, run_id: str) -> None:
        """Take the run and its executors. Raises RunBusyError if another stream that is being read has them."""
        run = (place, run_id)
        entries = [self._entry(executor) for executor in executors]
        while True:
            found = [*(entry.lease for entry in entries), self._runs.get(run)]
            others = dict.fromkeys(other for other in found if other is not None and other is not lease)
            if not others:
                break
            for other in others:
                if not other.is_abandoned:
                    raise RunBusyError(
                        other.run_id, owner="another task of this process", advice=_advice(other, run_id)
                    )
                await other.revoke()
                self.release(other)
        lease.run_id, lease.run = run_id, run
        lease.executors = tuple([executor for entry in entries if (executor := entry.executor()) is not None])
        lease.loop, lease.released = asyncio.get_running_loop(), asyncio.Event()
        self._runs[run] = lease
        for entry in entries:
            entry.lease = lease

    @asynccontextmanager
    async def hold(self, place: str, run_id: str) -> AsyncGenerator[None]:
        """Hold a run without its executors. Raises RunBusyError."""
        lease = LocalLease()
        await self.acquire(lease, executors=(), place=place, run_id=run_id)
        try:
            yield
        finally:
            self.release(lease)

    def release(self, lease: LocalLease) -> None:
        """Release the run and its executors."""
        if lease.run is not None and self._runs.get(lease.run) is lease:
            del self._runs[lease.run]
        for executor in lease.executors:
            entry = self._entry(executor)
            if entry.lease is lease:
                entry.lease = None
        lease.executors, lease.run = (), None
        if lease.released is not None:
            lease.released.set()

    def set_run(self, executors: Iterable[Executor], run: object) -> None:
        """Note the run whose states the executors carry now."""
        for executor in executors:
            self._entry(executor).run = run

    def carry_run(self, executors: Iterable[Executor], run: object) -> bool:
        """Return whether all executors carry the states of this run."""
        return all(self._entry(executor).run is run for executor in executors)

    def set_initial_state(self, executor: Executor, state: Callable[[], Any]) -> None:
        """Note how to copy the state that an executor had before any run used it. The first call counts."""
        entry = self._entry(executor)
        if entry.initial_state is None:
            entry.initial_state = state

    def initial_state(self, executor: Executor) -> Callable[[], Any] | None:
        """Return a function that copies the executor's state before any run used it."""
        return self._entry(executor).initial_state


def _advice(other: LocalLease, run_id: str) -> str:
    if other.run_id == run_id:
        return "let one task read it to the end, or close its stream"
    return (
        f"run {run_id!r} needs the same executors: read the other to its end first, or build a workflow with executors "
        "of its own for runs that go on side by side"
    )


LOCAL_LEASES = LocalLeases()
