"""DBOS as a peer. It has no graph: a superstep is a step of a workflow function, and many at once are gathered."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import TYPE_CHECKING

from dbos import DBOS, SetWorkflowID

from bench.peer import Ballast, Durability, Place, Run, Store, Tick

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

_INTERRUPTED = "interrupted"
_LOOK_SECONDS = 0.001
_DIE = "import sys; from bench.peers.dbos import die; die(sys.argv[1], int(sys.argv[2]))"


class Dbos:
    """SQLite, its default, and Postgres, which it recommends for production."""

    name = "dbos"
    keeps = (
        "the result of each step in a transaction; SQLite: rollback journal, SQLite's default synchronous=FULL: four "
        "syncs a step; Postgres: the server's defaults. State is not kept but computed again from the results"
    )
    cannot = (
        "without storage, memory, file: all that it does is recorded in a database; "
        "ballast in the state of an executor: a step has none, what a workflow function holds is its input or a "
        "result; conversations: it has no agents"
    )
    imports = "from dbos import DBOS, SetWorkflowID"

    @property
    def requirement(self) -> str:
        """All of it."""
        return f"dbos=={version('dbos')}"

    @property
    def about(self) -> str:
        """The version and the configuration."""
        return f"{version('dbos')}, defaults"

    def durability(self, store: Store) -> Durability | None:
        """A step ends when its result is committed."""
        return Durability.SYNCED if store in {Store.SQLITE, Store.POSTGRES} else None

    @asynccontextmanager
    async def ring(self, supersteps: int, place: Place) -> AsyncGenerator[Run]:
        """Two steps in turns."""
        async with _launched(place):
            await _ring(1)
            yield lambda: _ring(supersteps)

    @asynccontextmanager
    async def fan(self, laps: int, branches: int, place: Place) -> AsyncGenerator[Run]:
        """A step, then many at once."""
        async with _launched(place):
            await _fan(1, branches)
            yield lambda: _fan(laps, branches)

    async def interrupt(self, supersteps: int, place: Place) -> None:
        """A process that dies within the last step. Nothing else leaves a workflow that can be recovered."""
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", _DIE, _url(place), str(supersteps))
        await process.wait()

    @asynccontextmanager
    async def resume(self, supersteps: int, place: Place) -> AsyncGenerator[Run]:
        """Launching recovers what was under way; the end is seen as soon as it is recorded."""
        assert supersteps, "it stands in the recorded input of the workflow"

        async def run() -> int:
            _launch(_url(place))
            handle = await DBOS.retrieve_workflow_async(_INTERRUPTED)
            return await handle.get_result(polling_interval_sec=_LOOK_SECONDS)

        try:
            yield run
        finally:
            DBOS.destroy()

    @asynccontextmanager
    async def history(self, entries: Sequence[str], tick: Tick, place: Place) -> AsyncGenerator[Run]:
        """A workflow that keeps what its steps give."""
        _desk.entries, _desk.tick = entries, tick
        async with _launched(place):
            await _ring(1)
            yield lambda: _history(len(entries))

    def carries(self, ballast: Ballast, store: Store) -> bool:
        """A workflow's input, which nobody touches."""
        return ballast in {Ballast.NONE, Ballast.KEY} and self.durability(store) is not None

    @asynccontextmanager
    async def carry(
        self, ballast: Ballast, value: object, supersteps: int, tick: Tick, place: Place
    ) -> AsyncGenerator[Run]:
        """A workflow with a large input, and small steps."""
        assert self.carries(ballast, place.store), "it carries nothing else"
        _desk.tick = tick
        async with _launched(place):
            await _ring(1)
            yield lambda: _load(value, supersteps)

    @asynccontextmanager
    async def crowd(self, runs: int, supersteps: int, place: Place) -> AsyncGenerator[Run]:
        """Many workflows at once."""
        async with _launched(place):
            await _ring(1)

            async def run() -> int:
                return sum(await asyncio.gather(*(_ring(supersteps) for _ in range(runs))))

            yield run


class _Desk:
    """Objects that steps need and that can't be inputs, because the inputs of a workflow are recorded."""

    entries: Sequence[str] = ()
    tick: Tick = staticmethod(lambda: None)
    dies = False


_desk = _Desk()


@DBOS.step()
async def _ping(number: int) -> int:
    return number + 1


@DBOS.step()
async def _pong(number: int) -> int:
    return number + 1


@DBOS.step()
async def _answer(lap: int) -> int:
    return lap


@DBOS.step()
async def _write(number: int) -> str:
    _desk.tick()
    return _desk.entries[number]


@DBOS.step()
async def _carry(number: int) -> int:
    _desk.tick()
    return number + 1


@DBOS.step()
async def _last(number: int) -> int:
    if _desk.dies:
        os._exit(0)
    return number + 1


@DBOS.workflow()
async def _ring(supersteps: int) -> int:
    number = 0
    while number < supersteps:
        number = await (_pong if number % 2 else _ping)(number)
    return number


@DBOS.workflow()
async def _fan(laps: int, branches: int) -> int:
    answers = 0
    for lap in range(laps):
        number = await _ping(lap)
        answers += len(await asyncio.gather(*(_answer(number) for _ in range(branches))))
    return answers


@DBOS.workflow()
async def _history(supersteps: int) -> int:
    history = [await _write(number) for number in range(supersteps)]
    return sum(map(len, history))


@DBOS.workflow()
async def _load(value: object, supersteps: int) -> int:
    number = 0
    while number < supersteps:
        number = await _carry(number)
    assert value is None or value, "it is still there"
    return number


@DBOS.workflow()
async def _fragile(supersteps: int) -> int:
    number = 0
    while number < supersteps - 1:
        number = await (_pong if number % 2 else _ping)(number)
    return await _last(number)


def die(url: str, supersteps: int) -> None:
    """Run a ring whose last step ends the process."""
    _desk.dies = True
    _launch(url)

    async def run() -> None:
        with SetWorkflowID(_INTERRUPTED):
            await _fragile(supersteps)

    asyncio.run(run())


@asynccontextmanager
async def _launched(place: Place) -> AsyncGenerator[None]:
    _launch(_url(place))
    try:
        yield
    finally:
        DBOS.destroy()


def _launch(url: str) -> None:
    DBOS(config={"name": "bench", "system_database_url": url, "log_level": "ERROR"})
    DBOS.launch()


def _url(place: Place) -> str:
    return place.dsn if place.store is Store.POSTGRES else f"sqlite:///{place.directory / 'dbos.db'}"
