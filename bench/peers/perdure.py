"""perdure as a peer."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.peer import Ballast, Durability, Interruption, Place, Run, Store, Tick
from bench.peers import perdure_agents as agents, perdure_graphs as graphs
from bench.script import Model, Script
from perdure import (
    FileCheckpointStorage,
    InMemoryCheckpointStorage,
    Log,
    PostgresCheckpointStorage,
    SqliteCheckpointStorage,
    Workflow,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from perdure.storage import StoreStorage

_AT_ONCE = 200
_CHECKOUT = Path(__file__).parents[2]


class _Setup:
    """Every store with its defaults: full history, a synced commit after each superstep."""

    cannot = ""

    @property
    def about(self) -> str:
        """The version and the configuration."""
        return f"{version('perdure')}, defaults"

    def durability(self, store: Store) -> Durability | None:
        """A superstep ends when its checkpoint is synced."""
        match store:
            case Store.NONE:
                return Durability.NONE
            case Store.MEMORY:
                return Durability.MEMORY
            case Store.FILE | Store.SQLITE | Store.POSTGRES:
                return Durability.SYNCED


class _Historian(_Setup):
    """A history is kept under a key of the shared state."""

    def __init__(self, new: Callable[[], Any]) -> None:
        self._new = new

    @asynccontextmanager
    async def history(self, entries: Sequence[str], tick: Tick, place: Place) -> AsyncGenerator[Run]:
        """Ping and pong, who write down what they say."""
        async with _storage(place) as storage:
            await _number(graphs.ring(1, storage))
            workflow = graphs.history(entries, tick, self._new, storage)
            yield lambda: _number(workflow)


class Perdure(_Historian):
    """A plain list, where a history is kept."""

    name = "perdure"
    keeps = (
        "file: synced (the checkpoint, its directory, the log of the run); SQLite: one transaction, WAL, "
        "synchronous=FULL; Postgres: one transaction"
    )
    requirement = str(_CHECKOUT)
    imports = "from perdure import Executor, SqliteCheckpointStorage, WorkflowBuilder, WorkflowContext, handler"

    def __init__(self) -> None:
        super().__init__(list[str])

    @asynccontextmanager
    async def ring(self, supersteps: int, place: Place) -> AsyncGenerator[Run]:
        """Ping and pong."""
        async with _storage(place) as storage:
            await _number(graphs.ring(1, storage))
            workflow = graphs.ring(supersteps, storage)
            yield lambda: _number(workflow)

    @asynccontextmanager
    async def fan(self, laps: int, branches: int, place: Place) -> AsyncGenerator[Run]:
        """A hub with a fan-out and a fan-in."""
        async with _storage(place) as storage:
            await _number(graphs.fan(1, branches, storage))
            workflow = graphs.fan(laps, branches, storage)
            yield lambda: _number(workflow)

    async def interrupt(self, supersteps: int, place: Place) -> None:
        """A ring that fails in its last superstep."""
        async with _storage(place) as storage:
            with suppress(Interruption):
                await graphs.ring(supersteps, storage, is_interrupted=True).run(1)

    @asynccontextmanager
    async def resume(self, supersteps: int, place: Place) -> AsyncGenerator[Run]:
        """Open, build, find the latest, resume."""
        async with AsyncExitStack() as stack:

            async def run() -> int:
                storage = await stack.enter_async_context(_storage(place))
                assert storage is not None, "there is nothing to resume without a store"
                workflow = graphs.ring(supersteps, storage)
                latest = await storage.get_latest(workflow_name=graphs.NAME)
                assert latest is not None, "the interrupted run has left checkpoints"
                result = await workflow.run(checkpoint_id=latest.checkpoint_id)
                return sum(result.get_outputs())

            yield run

    async def fill(self, runs: int, place: Place) -> None:
        """Runs of one superstep, many at a time."""
        async with _storage(place) as storage:
            for first in range(0, runs, _AT_ONCE):
                numbers = range(first, min(first + _AT_ONCE, runs))
                await asyncio.gather(*(graphs.clerk(storage).run(number, run_id=f"run-{number}") for number in numbers))

    @asynccontextmanager
    async def page(self, what: str, size: int, place: Place) -> AsyncGenerator[Run]:
        """List waiting runs, newest first, or requests, oldest first."""
        async with _storage(place) as storage:
            assert storage is not None, "there is nothing to list without a store"

            async def run() -> int:
                if what == "runs":
                    return len(await storage.runs(status="waiting", order="newest", limit=size))
                return len(await storage.requests(limit=size))

            yield run

    def converses(self, turns: int, store: Store) -> bool:
        """For as long as is asked."""
        return turns > 0 and store is not Store.NONE

    @asynccontextmanager
    async def conversation(self, script: Script, tick: Tick, place: Place) -> AsyncGenerator[Run]:
        """An agent in a workflow, whose run keeps the session; a message is the next turn."""
        async with _storage(place) as storage:
            first = Script.of(1)
            await agents.conversation(Model(first), storage).run(first.questions[0])
            model = Model(script)
            workflow = agents.conversation(model, storage)

            async def run() -> int:
                said = ""
                for question in script.questions:
                    tick()
                    said = (await workflow.run(question)).get_outputs()[-1].text
                return model.heard + len(said)

            yield run

    def carries(self, ballast: Ballast, store: Store) -> bool:
        """Any value, anywhere."""
        return ballast in Ballast and store is not Store.NONE

    @asynccontextmanager
    async def carry(
        self, ballast: Ballast, value: object, supersteps: int, tick: Tick, place: Place
    ) -> AsyncGenerator[Run]:
        """An executor that hands a number to itself."""
        async with _storage(place) as storage:
            await _number(graphs.ring(1, storage))
            workflow = graphs.load(ballast, value, supersteps, tick, storage)
            yield lambda: _number(workflow)

    @asynccontextmanager
    async def crowd(self, runs: int, supersteps: int, place: Place) -> AsyncGenerator[Run]:
        """A workflow for each run, and one storage for all."""
        async with _storage(place) as storage:
            await _number(graphs.ring(1, storage))
            workflows = [graphs.ring(supersteps, storage) for _ in range(runs)]

            async def run() -> int:
                return sum(await asyncio.gather(*map(_number, workflows)))

            yield run


class PerdureLog(_Historian):
    """A `perdure.Log`, where a history is kept."""

    name = "perdure Log"
    keeps = ""

    def __init__(self) -> None:
        super().__init__(Log[str])


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
        case Store.POSTGRES:
            async with PostgresCheckpointStorage(place.dsn) as storage:
                yield storage
