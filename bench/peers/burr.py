"""Burr as a peer."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager, suppress
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from burr.core.persistence import SQLitePersister
from burr.integrations.persisters.b_aiosqlite import AsyncSQLitePersister

from bench.peer import Ballast, Durability, Interruption, Place, Run, Store, Tick
from bench.peers import burr_graphs as graphs

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from burr.core import Application, ApplicationBuilder

    from bench.peers.burr_graphs import Drawn

_LAST = [graphs.LAST]

# It reports a failed action at length, and one of ours is meant to fail.
logging.getLogger("burr").setLevel(logging.CRITICAL)


class _Setup:
    """Its SQLite persister, with SQLite's defaults: a rollback journal that is synced with every commit."""

    @property
    def about(self) -> str:
        """The version and the configuration."""
        return f"{version('apache-burr')}, defaults"

    def durability(self, store: Store) -> Durability | None:
        """A step ends when its state is committed."""
        match store:
            case Store.NONE:
                return Durability.NONE
            case Store.SQLITE:
                return Durability.SYNCED
            case Store.MEMORY | Store.FILE | Store.POSTGRES:
                return None


class Burr(_Setup):
    """An asynchronous application and its persister."""

    name = "burr"
    keeps = (
        "SQLite: the whole state in one transaction, rollback journal, SQLite's default synchronous=FULL: four syncs "
        "a step"
    )
    cannot = (
        "memory and file: it has no such persister; Postgres: its asynchronous persister needs asyncpg, a driver that "
        "nobody else here uses; bytes: its state is JSON; conversations: it has no agents. It has no supersteps: "
        "branches are sub-applications (MapStates) within one step"
    )
    imports = (
        "from burr.core import ApplicationBuilder, State, action; from burr.core.persistence import SQLitePersister"
    )

    @property
    def requirement(self) -> str:
        """The core, without its tracker."""
        return f"apache-burr=={version('apache-burr')}"

    @asynccontextmanager
    async def ring(self, supersteps: int, place: Place) -> AsyncGenerator[Run]:
        """Ping and pong."""
        async with _persister(place) as persister:
            await _ended(await _application(graphs.ring(2), persister, "first"))
            application = await _application(graphs.ring(supersteps), persister, "ring")

            async def run() -> int:
                return (await _ended(application))["number"]

            yield run

    @asynccontextmanager
    async def fan(self, laps: int, branches: int, place: Place) -> AsyncGenerator[Run]:
        """A hub, and one action that maps it to many states."""
        async with _persister(place) as persister:
            await _ended(await _application(graphs.fan(1, branches), persister, "first"))
            application = await _application(graphs.fan(laps, branches), persister, "fan")

            async def run() -> int:
                return (await _ended(application))["answers"]

            yield run

    async def interrupt(self, supersteps: int, place: Place) -> None:
        """A ring that fails in its last step."""
        async with _persister(place) as persister:
            with suppress(Interruption):
                await _ended(await _application(graphs.ring(supersteps, is_interrupted=True), persister, "ring"))

    @asynccontextmanager
    async def resume(self, supersteps: int, place: Place) -> AsyncGenerator[Run]:
        """Open, build from what is persisted, finish."""

        async def run() -> int:
            async with _persister(place) as persister:
                application = await _application(graphs.ring(supersteps), persister, "ring")
                return (await _ended(application))["number"]

        yield run

    @asynccontextmanager
    async def history(self, entries: Sequence[str], tick: Tick, place: Place) -> AsyncGenerator[Run]:
        """Ping and pong, who write down what they say."""
        async with _persister(place) as persister:
            await _ended(await _application(graphs.ring(2), persister, "first"))
            application = await _application(graphs.history(entries, tick), persister, "history")

            async def run() -> int:
                return sum(map(len, (await _ended(application))["history"]))

            yield run

    def carries(self, ballast: Ballast, store: Store) -> bool:
        """An action has no state of its own: what is not nested is in a field that nobody writes."""
        return ballast not in {Ballast.BYTES, Ballast.EMPTY} and store is Store.SQLITE

    @asynccontextmanager
    async def carry(
        self, ballast: Ballast, value: object, supersteps: int, tick: Tick, place: Place
    ) -> AsyncGenerator[Run]:
        """An action that goes to itself."""
        async with _persister(place) as persister:
            await _ended(await _application(graphs.ring(2), persister, "first"))
            application = await _application(graphs.load(ballast, value, supersteps, tick), persister, "load")

            async def run() -> int:
                state = await _ended(application)
                return state["porter"]["number"] if ballast is Ballast.NESTED else state["number"]

            yield run

    @asynccontextmanager
    async def crowd(self, runs: int, supersteps: int, place: Place) -> AsyncGenerator[Run]:
        """An application for each run, and one persister for all."""
        async with _persister(place) as persister:
            await _ended(await _application(graphs.ring(2), persister, "first"))
            applications = [
                await _application(graphs.ring(supersteps), persister, f"ring {number}") for number in range(runs)
            ]

            async def run() -> int:
                return sum(state["number"] for state in await asyncio.gather(*map(_ended, applications)))

            yield run


class BurrSync(_Setup):
    """Run it without asyncio, which is its fastest way."""

    name = "burr sync"
    keeps = ""
    cannot = ""

    @asynccontextmanager
    async def ring(self, supersteps: int, place: Place) -> AsyncGenerator[Run]:
        """Ping and pong."""
        persister = None
        if place.store is Store.SQLITE:
            persister = SQLitePersister.from_values(str(place.directory / "burr.db"))
            persister.initialize()
        _prepared(graphs.ring(2, is_async=False), persister, "first").build().run(halt_after=_LAST)
        application = _prepared(graphs.ring(supersteps, is_async=False), persister, "ring").build()

        async def run() -> int:
            _, _, state = application.run(halt_after=_LAST)
            return state["number"]

        try:
            yield run
        finally:
            if persister is not None:
                persister.cleanup()


async def _ended(application: Application[Any]) -> dict[str, Any]:
    _, _, state = await application.arun(halt_after=_LAST)
    return state


async def _application(drawn: Drawn, persister: AsyncSQLitePersister | None, name: str) -> Application[Any]:
    return await _prepared(drawn, persister, name).abuild()


def _prepared(drawn: Drawn, persister: Any, name: str) -> ApplicationBuilder[Any]:
    builder = drawn.builder.with_identifiers(app_id=name)
    if persister is None:
        return builder.with_state(**drawn.state).with_entrypoint(drawn.first)
    return builder.with_state_persister(persister).initialize_from(
        persister, resume_at_next_action=True, default_state=drawn.state, default_entrypoint=drawn.first
    )


@asynccontextmanager
async def _persister(place: Place) -> AsyncGenerator[AsyncSQLitePersister | None]:
    if place.store is Store.NONE:
        yield None
        return
    assert place.store is Store.SQLITE, "it has no other durability"
    async with AsyncSQLitePersister.from_values(str(place.directory / "burr.db")) as persister:
        await persister.initialize()
        yield persister
