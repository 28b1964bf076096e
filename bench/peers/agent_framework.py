"""agent-framework as a peer."""

from __future__ import annotations

from contextlib import asynccontextmanager, suppress
from importlib.metadata import version
from typing import TYPE_CHECKING

from agent_framework import (
    Executor,
    FileCheckpointStorage,
    InMemoryCheckpointStorage,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    handler,
)

from bench.peer import Durability, Interruption, Place, Run, Store

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from agent_framework import CheckpointStorage

_NAME = "ring"


class AgentFramework:
    """The two storages that it ships: checkpoints in memory, or a file each, written aside and renamed, not synced."""

    name = "agent-framework"
    imports = "from agent_framework import Executor, FileCheckpointStorage, WorkflowBuilder, WorkflowContext, handler"

    @property
    def about(self) -> str:
        """Which version it is, and how it is set up."""
        return f"{version('agent-framework-core')}, defaults"

    def durability(self, store: Store) -> Durability | None:
        """A superstep ends when its checkpoint is written. It has no SQLite storage."""
        match store:
            case Store.NONE:
                return Durability.NONE
            case Store.MEMORY:
                return Durability.MEMORY
            case Store.FILE:
                return Durability.WRITTEN
            case Store.SQLITE:
                return None

    @asynccontextmanager
    async def ring(self, supersteps: int, place: Place) -> AsyncGenerator[Run]:
        """Ping and pong."""
        storage = _storage(place)
        await _number(_ring(1, storage))
        workflow = _ring(supersteps, storage)
        yield lambda: _number(workflow)

    @asynccontextmanager
    async def fan(self, laps: int, branches: int, place: Place) -> AsyncGenerator[Run]:
        """A hub with a fan-out and a fan-in."""
        storage = _storage(place)
        await _number(_fan(1, branches, storage))
        workflow = _fan(laps, branches, storage)
        yield lambda: _number(workflow)

    async def interrupt(self, supersteps: int, place: Place) -> None:
        """A ring that fails in its last superstep."""
        with suppress(Interruption):
            await _ring(supersteps, _storage(place), is_interrupted=True).run(1)

    @asynccontextmanager
    async def resume(self, supersteps: int, place: Place) -> AsyncGenerator[Run]:
        """Open, build, find the latest, resume."""

        async def run() -> int:
            storage = _storage(place)
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


def _ring(supersteps: int, storage: CheckpointStorage | None, *, is_interrupted: bool = False) -> Workflow:
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


def _fan(laps: int, branches: int, storage: CheckpointStorage | None) -> Workflow:
    hub = _Hub(laps=laps)
    spokes = [_Branch(id=f"branch-{number}") for number in range(branches)]
    builder = WorkflowBuilder(
        name="fan", start_executor=hub, checkpoint_storage=storage, max_iterations=2 * laps + 2, output_from=[hub]
    )
    return builder.add_fan_out_edges(hub, spokes).add_fan_in_edges(spokes, hub).build()


async def _number(workflow: Workflow) -> int:
    result = await workflow.run(1)
    return sum(result.get_outputs())


def _storage(place: Place) -> CheckpointStorage | None:
    match place.store:
        case Store.NONE:
            return None
        case Store.MEMORY:
            return InMemoryCheckpointStorage()
        case Store.FILE:
            return FileCheckpointStorage(place.directory)
        case Store.SQLITE:
            raise AssertionError("there is no SQLite storage")
