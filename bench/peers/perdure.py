"""perdure as a peer."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager, suppress
from importlib.metadata import version
from typing import TYPE_CHECKING

from bench.peer import Durability, Interruption, Place, Run, Store
from perdure import (
    Executor,
    FileCheckpointStorage,
    InMemoryCheckpointStorage,
    SqliteCheckpointStorage,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    handler,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from perdure.storages.shipped import StoreStorage

_NAME = "ring"


class Perdure:
    """Every store with its defaults: full history, a synced commit after each superstep."""

    name = "perdure"
    imports = "from perdure import Executor, SqliteCheckpointStorage, WorkflowBuilder, WorkflowContext, handler"

    @property
    def about(self) -> str:
        """Which version it is, and how it is set up."""
        return f"{version('perdure')}, defaults"

    def durability(self, store: Store) -> Durability | None:
        """A superstep ends when its checkpoint is synced."""
        match store:
            case Store.NONE:
                return Durability.NONE
            case Store.MEMORY:
                return Durability.MEMORY
            case Store.FILE | Store.SQLITE:
                return Durability.SYNCED

    @asynccontextmanager
    async def ring(self, supersteps: int, place: Place) -> AsyncGenerator[Run]:
        """Ping and pong."""
        async with _storage(place) as storage:
            await _number(_ring(1, storage))
            workflow = _ring(supersteps, storage)
            yield lambda: _number(workflow)

    @asynccontextmanager
    async def fan(self, laps: int, branches: int, place: Place) -> AsyncGenerator[Run]:
        """A hub with a fan-out and a fan-in."""
        async with _storage(place) as storage:
            await _number(_fan(1, branches, storage))
            workflow = _fan(laps, branches, storage)
            yield lambda: _number(workflow)

    async def interrupt(self, supersteps: int, place: Place) -> None:
        """A ring that fails in its last superstep."""
        async with _storage(place) as storage:
            with suppress(Interruption):
                await _ring(supersteps, storage, is_interrupted=True).run(1)

    @asynccontextmanager
    async def resume(self, supersteps: int, place: Place) -> AsyncGenerator[Run]:
        """Open, build, find the latest, resume."""
        async with AsyncExitStack() as stack:

            async def run() -> int:
                storage = await stack.enter_async_context(_storage(place))
                assert storage is not None, "there is nothing to resume without a store"
                workflow = _ring(supersteps, storage)
                latest = await storage.get_latest(workflow_name=_NAME)
                assert latest is not None, "the interrupted run has left checkpoints"
                result = await workflow.run(checkpoint_id=latest.checkpoint_id)
                return sum(result.get_outputs())

            yield run


class _Player(Executor):
    def __init__(self, id: str, *, last: int, is_interrupted: bool) -> None:  # noqa: A002 - the name it has in the API
        super().__init__(id=id)
        self._last = last
        self._is_interrupted = is_interrupted

    @handler
    async def play(self, number: int, ctx: WorkflowContext[int, int]) -> None:
        if number < self._last:
            await ctx.send_message(number + 1)
        elif self._is_interrupted:
            raise Interruption
        else:
            await ctx.yield_output(number)


class _Hub(Executor):
    def __init__(self, *, laps: int) -> None:
        super().__init__(id="hub")
        self._laps = laps

    @handler
    async def begin(self, lap: int, ctx: WorkflowContext[int]) -> None:
        await ctx.send_message(lap)

    @handler
    async def collect(self, laps: list[int], ctx: WorkflowContext[int, int]) -> None:
        lap = laps[0]
        if lap < self._laps:
            await ctx.send_message(lap + 1)
        else:
            await ctx.yield_output(lap * len(laps))


class _Branch(Executor):
    @handler
    async def answer(self, lap: int, ctx: WorkflowContext[int]) -> None:
        await ctx.send_message(lap)


def _ring(supersteps: int, storage: StoreStorage | None, *, is_interrupted: bool = False) -> Workflow:
    ping = _Player("ping", last=supersteps, is_interrupted=is_interrupted)
    pong = _Player("pong", last=supersteps, is_interrupted=is_interrupted)
    builder = WorkflowBuilder(
        name=_NAME,
        start_executor=ping,
        checkpoint_storage=storage,
        max_iterations=supersteps + 1,
        output_from=[ping, pong],
    )
    return builder.add_edge(ping, pong).add_edge(pong, ping).build()


def _fan(laps: int, branches: int, storage: StoreStorage | None) -> Workflow:
    hub = _Hub(laps=laps)
    spokes = [_Branch(id=f"branch-{number}") for number in range(branches)]
    builder = WorkflowBuilder(
        name="fan", start_executor=hub, checkpoint_storage=storage, max_iterations=2 * laps + 2, output_from=[hub]
    )
    return builder.add_fan_out_edges(hub, spokes).add_fan_in_edges(spokes, hub).build()


async def _number(workflow: Workflow) -> int:
    result = await workflow.run(1)
    return sum(result.get_outputs())


@asynccontextmanager
async def _storage(place: Place) -> AsyncGenerator[StoreStorage | None]:
    match place.store:
        case Store.NONE:
            yield None
        case Store.MEMORY:
            yield InMemoryCheckpointStorage()
        case Store.FILE:
            async with FileCheckpointStorage(place.directory) as storage:
                yield storage
        case Store.SQLITE:
            async with SqliteCheckpointStorage(place.directory / "perdure.db") as storage:
                yield storage
