"""Who advances what in this very process. A stream that was abandoned is closed and makes room."""

from __future__ import annotations

import asyncio
import weakref
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from perdure.errors import RunBusyError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable

    from perdure.graph import Executor
    from perdure.streams import ResponseStream


ValueT = TypeVar("ValueT")


class Occupant:
    """A stream that advances a run with its executors."""

    def __init__(self) -> None:
        self.run_id = ""
        self.nodes: tuple[Executor, ...] = ()
        self.run: tuple[str, str] | None = None
        self._stream: weakref.ref[ResponseStream[Any, Any]] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._left: asyncio.Event | None = None

    def bind(self, stream: ResponseStream[Any, Any]) -> None:
        """Name the stream through which this one is read."""
        self._stream = weakref.ref(stream)

    def enter(self, run_id: str, nodes: tuple[Executor, ...], run: tuple[str, str]) -> None:
        """Begin with these executors on this run, which `run` names together with its place."""
        self.run_id = run_id
        self.nodes = nodes
        self.run = run
        self._loop = asyncio.get_running_loop()
        self._left = asyncio.Event()

    def leave(self) -> None:
        """End."""
        self.nodes, self.run = (), None
        if self._left is not None:
            self._left.set()

    @property
    def is_abandoned(self) -> bool:
        """Whether nobody will read on: the stream is gone, or its reader is, or its reader is who asks."""
        if self._loop is None or self._loop.is_closed():
            return True
        stream = self._stream() if self._stream is not None else None
        return stream is None or not is_read_elsewhere(stream)

    async def evict(self) -> None:
        """Close the stream and wait until nothing of it runs."""
        if self._loop is not asyncio.get_running_loop():
            return
        stream = self._stream() if self._stream is not None else None
        if stream is not None:
            await stream.aclose()
        elif self._left is not None:
            # Its generator is being finalised by the event loop, which has the last word.
            await self._left.wait()


def is_read_elsewhere(stream: ResponseStream[Any, Any]) -> bool:
    """Whether a task has read a stream last that is still there, and is not the one that asks."""
    consumer = stream.consumer
    return consumer is not None and not consumer.done() and consumer is not _current_task()


def _current_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


def _advice(other: Occupant, run_id: str) -> str:
    if other.run_id == run_id:
        return "let one task read it to the end, or close its stream"
    return (
        f"run {run_id!r} needs the same executors: read the other to its end first, or build a workflow with executors "
        "of its own for runs that go on side by side"
    )


class IdentityMap(Generic[ValueT]):
    """Values by object, the object itself and not what it equals; an entry goes when its object goes."""

    def __init__(self) -> None:
        self._entries: dict[int, tuple[weakref.ref[Executor], ValueT]] = {}

    def get(self, node: Executor) -> ValueT | None:
        """The value of an object."""
        entry = self._entries.get(id(node))
        return None if entry is None or entry[0]() is not node else entry[1]

    def set(self, node: Executor, value: ValueT) -> None:
        """Give an object a value."""
        key, entries = id(node), self._entries
        entries[key] = (weakref.ref(node, lambda _: entries.pop(key, None)), value)

    def discard(self, node: Executor) -> None:
        """Take the value away."""
        self._entries.pop(id(node), None)


class Presence:
    """Which stream holds which executors and which run, and whose states the executors carry."""

    def __init__(self) -> None:
        self._executors: IdentityMap[Occupant] = IdentityMap()
        self._runs: weakref.WeakValueDictionary[tuple[str, str], Occupant] = weakref.WeakValueDictionary()
        self._tenants: IdentityMap[object] = IdentityMap()
        self._pristine: IdentityMap[Callable[[], Any]] = IdentityMap()

    async def enter(self, occupant: Occupant, *, executors: Iterable[Executor], place: str, run_id: str) -> None:
        """Take the executors and the run. Raises RunBusyError if another stream that is being read has them."""
        nodes = tuple(executors)
        while others := self._others(occupant, nodes, (place, run_id)):
            for other in others:
                if not other.is_abandoned:
                    raise RunBusyError(
                        other.run_id, owner="another task of this process", advice=_advice(other, run_id)
                    )
                await other.evict()
                self.leave(other)
        occupant.enter(run_id, nodes, (place, run_id))
        self._runs[place, run_id] = occupant
        for node in nodes:
            self._executors.set(node, occupant)

    def _others(self, occupant: Occupant, nodes: Iterable[Executor], run: tuple[str, str]) -> list[Occupant]:
        found = [*(self._executors.get(node) for node in nodes), self._runs.get(run)]
        return list(dict.fromkeys(other for other in found if other is not None and other is not occupant))

    @asynccontextmanager
    async def at(self, place: str, run_id: str) -> AsyncGenerator[None]:
        """Have a run to oneself, without its executors. Raises RunBusyError like `enter`."""
        occupant = Occupant()
        await self.enter(occupant, executors=(), place=place, run_id=run_id)
        try:
            yield
        finally:
            self.leave(occupant)

    def leave(self, occupant: Occupant) -> None:
        """Give everything free."""
        if occupant.run is not None and self._runs.get(occupant.run) is occupant:
            del self._runs[occupant.run]
        for node in occupant.nodes:
            if self._executors.get(node) is occupant:
                self._executors.discard(node)
        occupant.leave()

    def settle(self, executors: Iterable[Executor], tenant: object) -> None:
        """Note whose states the executors carry."""
        for node in executors:
            self._tenants.set(node, tenant)

    def are_settled(self, executors: Iterable[Executor], tenant: object) -> bool:
        """Whether all executors carry the states of this tenant."""
        return all(self._tenants.get(node) is tenant for node in executors)

    def remember_pristine(self, executor: Executor, state: Callable[[], Any]) -> None:
        """Note the state that an executor had before any run used it; the first one told stands."""
        if self._pristine.get(executor) is None:
            self._pristine.set(executor, state)

    def pristine(self, executor: Executor) -> Callable[[], Any] | None:
        """What gives a copy of that state."""
        return self._pristine.get(executor)


PRESENCE = Presence()
