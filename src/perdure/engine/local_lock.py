"""Locks inside this process: one stream at a time advances a run and uses its executors.

The store's lease keeps other processes out. This lock keeps out other tasks, and takes over from abandoned streams.
"""

from __future__ import annotations

import asyncio
import weakref
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from perdure.engine.state import restore_state, states_of, with_states
from perdure.errors import RunBusyError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable

    from perdure.codec import Values
    from perdure.graph import Executor, Graph
    from perdure.kernel import Snapshot
    from perdure.streams import ResponseStream


@dataclass(eq=False)
class LocalLock:
    """The lock of one stream on a run and its executors.

    Attributes:
        key: The store's place and the run id, while it is locked.
        stream: The stream that has the lock.
    """

    executors: tuple[Executor, ...] = ()
    run_id: str = ""
    key: tuple[str, str] | None = None
    loop: asyncio.AbstractEventLoop | None = None
    released: asyncio.Event | None = None
    stream: weakref.ref[ResponseStream[Any, Any]] | None = None

    async def acquire(self, place: str, run_id: str) -> None:
        """Lock the run and the executors. Raises RunBusyError if another stream that is being read has them."""
        key, entries = (place, run_id), [entry_of(executor) for executor in self.executors]
        while True:
            found = [*(entry.lock for entry in entries), _runs.get(key)]
            others = dict.fromkeys(other for other in found if other is not None and other is not self)
            if not others:
                break
            for other in others:
                if not other.is_abandoned:
                    advice = _advice(other, run_id)
                    raise RunBusyError(other.run_id, owner="another task of this process", advice=advice)
                await other.revoke()
                other.release()
        self.run_id, self.key = run_id, key
        self.loop, self.released = asyncio.get_running_loop(), asyncio.Event()
        _runs[key] = self
        for entry in entries:
            entry.lock = self

    def release(self) -> None:
        """Release the run and its executors."""
        if self.key is not None and _runs.get(self.key) is self:
            del _runs[self.key]
        for executor in self.executors if self.key is not None else ():
            entry = entry_of(executor)
            if entry.lock is self:
                entry.lock = None
        self.key = None
        if self.released is not None:
            self.released.set()

    @property
    def is_abandoned(self) -> bool:
        """Return whether nobody will read on: the stream or its reader is gone, or its reader is the current task."""
        if self.loop is None or self.loop.is_closed():
            return True
        stream = self.stream() if self.stream is not None else None
        return stream is None or not is_read_elsewhere(stream)

    async def revoke(self) -> None:
        """Close the stream and wait until nothing of it runs."""
        if self.loop is not asyncio.get_running_loop():
            return
        stream = self.stream() if self.stream is not None else None
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


def _advice(other: LocalLock, run_id: str) -> str:
    if other.run_id == run_id:
        return "let one task read it to the end, or close its stream"
    return (
        f"run {run_id!r} needs the same executors: read the other to its end first, or build a workflow with executors "
        "of its own for runs that go on side by side"
    )


@asynccontextmanager
async def lock_run(place: str, run_id: str) -> AsyncGenerator[None]:
    """Lock a run without its executors. Raises RunBusyError."""
    lock = LocalLock()
    await lock.acquire(place, run_id)
    try:
        yield
    finally:
        lock.release()


@dataclass(slots=True)
class ExecutorEntry:
    """The lock on one executor, the run whose state it carries, and its state before any run used it."""

    executor: weakref.ref[Executor]
    lock: LocalLock | None = None
    run: object = None
    initial_state: Callable[[], Any] | None = None


_entries: dict[int, ExecutorEntry] = {}
"""By identity, not equality. An entry goes when its executor goes."""
_runs: weakref.WeakValueDictionary[tuple[str, str], LocalLock] = weakref.WeakValueDictionary()


def entry_of(executor: Executor) -> ExecutorEntry:
    """Return what this process knows of an executor."""
    key = id(executor)
    entry = _entries.get(key)
    if entry is None or entry.executor() is not executor:
        entry = _entries[key] = ExecutorEntry(weakref.ref(executor, lambda _: _entries.pop(key, None)))
    return entry


async def with_initial_states(
    graph: Graph, executors: Iterable[Executor], snapshot: Snapshot, values: Values
) -> Snapshot:
    """Return the snapshot of a new run with the states that the executors had before any run used them."""
    for executor in executors:
        initial = entry_of(executor).initial_state
        if initial is not None:
            await restore_state(executor, initial())
    begun = await with_states(graph, snapshot, values)
    for executor, state in states_of(graph, begun) if begun is not snapshot else ():
        entry = entry_of(executor)
        entry.initial_state = entry.initial_state or partial(values.give, state)
    return begun
