"""agent-framework as a peer."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager, suppress
from importlib.metadata import version
from typing import TYPE_CHECKING

from agent_framework import FileCheckpointStorage, InMemoryCheckpointStorage, Workflow

from bench.peer import Ballast, Durability, Interruption, Place, Run, Store, Tick
from bench.peers import agent_framework_agents as agents, agent_framework_graphs as graphs
from bench.script import Model, Script

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from agent_framework import CheckpointStorage

_TURNS_MAX = 250

# It warns of an executor that sends to itself, which one of ours is meant to do.
logging.getLogger("agent_framework").setLevel(logging.ERROR)


class AgentFramework:
    """The two storages that it ships: checkpoints in memory, or a file each, written aside and renamed, not synced."""

    name = "agent-framework"
    keeps = "memory: a deep copy; file: the whole checkpoint written aside and renamed, **not synced**"
    cannot = (
        "SQLite and Postgres: its core has no such storage; a conversation of 1,000 turns: it takes ten minutes or more"
    )
    imports = "from agent_framework import Executor, FileCheckpointStorage, WorkflowBuilder, WorkflowContext, handler"

    @property
    def requirement(self) -> str:
        """The core, without providers."""
        return f"agent-framework-core=={version('agent-framework-core')}"

    @property
    def about(self) -> str:
        """The version and the configuration."""
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
            case Store.SQLITE | Store.POSTGRES:
                return None

    @asynccontextmanager
    async def ring(self, supersteps: int, place: Place) -> AsyncGenerator[Run]:
        """Ping and pong."""
        storage = _storage(place)
        await _number(graphs.ring(1, storage))
        workflow = graphs.ring(supersteps, storage)
        yield lambda: _number(workflow)

    @asynccontextmanager
    async def fan(self, laps: int, branches: int, place: Place) -> AsyncGenerator[Run]:
        """A hub with a fan-out and a fan-in."""
        storage = _storage(place)
        await _number(graphs.fan(1, branches, storage))
        workflow = graphs.fan(laps, branches, storage)
        yield lambda: _number(workflow)

    async def interrupt(self, supersteps: int, place: Place) -> None:
        """A ring that fails in its last superstep."""
        with suppress(Interruption):
            await graphs.ring(supersteps, _storage(place), is_interrupted=True).run(1)

    @asynccontextmanager
    async def resume(self, supersteps: int, place: Place) -> AsyncGenerator[Run]:
        """Open, build, find the latest, resume."""

        async def run() -> int:
            storage = _storage(place)
            assert storage is not None, "there is nothing to resume without a store"
            workflow = graphs.ring(supersteps, storage)
            latest = await storage.get_latest(workflow_name=graphs.NAME)
            assert latest is not None, "the interrupted run has left checkpoints"
            result = await workflow.run(checkpoint_id=latest.checkpoint_id)
            return sum(result.get_outputs())

        yield run

    @asynccontextmanager
    async def history(self, entries: Sequence[str], tick: Tick, place: Place) -> AsyncGenerator[Run]:
        """Ping and pong, who write down what they say."""
        storage = _storage(place)
        await _number(graphs.ring(1, storage))
        workflow = graphs.history(entries, tick, storage)
        yield lambda: _number(workflow)

    def converses(self, turns: int, store: Store) -> bool:
        """A turn takes longer the more was said: a thousand take ten minutes or more."""
        return turns <= _TURNS_MAX and store is not Store.NONE

    @asynccontextmanager
    async def conversation(self, script: Script, tick: Tick, place: Place) -> AsyncGenerator[Run]:
        """An agent in a workflow, whose executor keeps the session; a message is the next turn."""
        storage = _storage(place)
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
        storage = _storage(place)
        await _number(graphs.ring(1, storage))
        workflow = graphs.load(ballast, value, supersteps, tick, storage)
        yield lambda: _number(workflow)

    @asynccontextmanager
    async def crowd(self, runs: int, supersteps: int, place: Place) -> AsyncGenerator[Run]:
        """A workflow for each run, and one storage for all."""
        storage = _storage(place)
        await _number(graphs.ring(1, storage))
        workflows = [graphs.ring(supersteps, storage) for _ in range(runs)]

        async def run() -> int:
            return sum(await asyncio.gather(*map(_number, workflows)))

        yield run


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
        case Store.SQLITE | Store.POSTGRES:
            raise AssertionError("there is no such storage")
