"""LangGraph as a peer."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Literal

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool

from bench.peer import Ballast, Durability, Interruption, Place, Run, Store, Tick
from bench.peers import langgraph_agents as agents, langgraph_graphs as graphs
from bench.script import Model, Script

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from langchain_core.runnables import RunnableConfig

    from bench.peers.langgraph_graphs import Graph, Saver

_NO_LIMIT = 1_000_000
_POOL_MAX = 20


class _Setup:
    """Asynchronous nodes and savers, in one of its durability modes.

    `"sync"` is the one that it documents for high durability: a superstep begins when the last one is saved. `"async"`
    is what it does if it is not told: the next superstep runs while the last one is being saved.
    """

    cannot = ""
    mode: Literal["sync", "async"] = "sync"

    @property
    def about(self) -> str:
        """The version and the configuration."""
        return f"{version('langgraph')}, durability={self.mode!r}"

    def durability(self, store: Store) -> Durability | None:
        """Its SQLite saver keeps SQLite's defaults, and those sync every commit, as PostgreSQL's do. No file saver."""
        match store:
            case Store.SQLITE | Store.POSTGRES:
                return Durability.SYNCED
            case Store.FILE:
                return None
            case Store.MEMORY:
                return Durability.MEMORY
            case Store.NONE:
                return Durability.NONE

    async def _ended(self, graph: Graph, given: dict[str, Any] | None, *, thread: str) -> dict[str, Any]:
        config: RunnableConfig = {"recursion_limit": _NO_LIMIT, "configurable": {"thread_id": thread}}
        # Without a saver it warns about a durability.
        return await graph.ainvoke(given, config, durability=self.mode if graph.checkpointer else None)


class _Player(_Setup):
    """Plays ping and pong."""

    @asynccontextmanager
    async def ring(self, supersteps: int, place: Place) -> AsyncGenerator[Run]:
        """Ping and pong."""
        async with _saver(place) as saver:
            await self._ended(graphs.ring(1, saver), {"number": 0}, thread="first")
            graph = graphs.ring(supersteps, saver)

            async def run() -> int:
                state = await self._ended(graph, {"number": 0}, thread="ring")
                return state["number"]

            yield run


class _Historian(_Setup):
    """A history is kept in a channel, of texts or of messages."""

    is_delta = False

    @asynccontextmanager
    async def history(self, entries: Sequence[str], tick: Tick, place: Place) -> AsyncGenerator[Run]:
        """Ping and pong, who write down what they say."""
        async with _saver(place) as saver:
            await self._ended(graphs.ring(1, saver), {"number": 0}, thread="first")
            graph = graphs.history(entries, tick, saver, is_delta=self.is_delta)

            async def run() -> int:
                state = await self._ended(graph, {"number": 0, "history": []}, thread="ring")
                return sum(map(len, state["history"]))

            yield run

    def converses(self, turns: int, store: Store) -> bool:
        """For as long as is asked."""
        return turns > 0 and store is not Store.NONE

    @asynccontextmanager
    async def conversation(self, script: Script, tick: Tick, place: Place) -> AsyncGenerator[Run]:
        """A message is the next turn of a thread, whose messages the saver keeps."""
        async with _saver(place) as saver:
            first = Script.of(1)
            await self._said(agents.conversation(Model(first), saver, is_delta=self.is_delta), first.questions[0])
            model = Model(script)
            graph = agents.conversation(model, saver, is_delta=self.is_delta)

            async def run() -> int:
                said = ""
                for question in script.questions:
                    tick()
                    said = await self._said(graph, question, thread="conversation")
                return model.heard + len(said)

            yield run

    async def _said(self, graph: Graph, question: str, *, thread: str = "first") -> str:
        asked = {"messages": [{"role": "user", "content": question}]}
        return str((await self._ended(graph, asked, thread=thread))["messages"][-1].content)


class LangGraph(_Player, _Historian):
    """Everything that it has, as it documents it; a history is in a list with a reducer."""

    name = "langgraph"
    keeps = (
        "`durability='sync'`, its most durable mode; memory: encoded; SQLite: two synced transactions, one for the "
        "writes and one for the checkpoint, WAL, SQLite's default synchronous=FULL; Postgres: the same two"
    )
    cannot = "file: it has no such saver"
    imports = "from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver; from langgraph.graph import StateGraph"

    @property
    def requirement(self) -> str:
        """With the saver for SQLite, which is a package of its own."""
        name = "langgraph-checkpoint-sqlite"
        return f"langgraph=={version('langgraph')} {name}=={version(name)}"

    @asynccontextmanager
    async def fan(self, laps: int, branches: int, place: Place) -> AsyncGenerator[Run]:
        """A hub with edges to all branches; the way back waits for all of them."""
        async with _saver(place) as saver:
            await self._ended(graphs.fan(1, branches, saver), {"lap": 0, "answers": 0}, thread="first")
            graph = graphs.fan(laps, branches, saver)

            async def run() -> int:
                state = await self._ended(graph, {"lap": 0, "answers": 0}, thread="fan")
                return state["answers"]

            yield run

    async def interrupt(self, supersteps: int, place: Place) -> None:
        """A ring that fails in its last superstep."""
        async with _saver(place) as saver:
            with suppress(Interruption):
                await self._ended(graphs.ring(supersteps, saver, is_interrupted=True), {"number": 0}, thread="ring")

    @asynccontextmanager
    async def resume(self, supersteps: int, place: Place) -> AsyncGenerator[Run]:
        """Open, build, resume: without an input it goes on from the latest checkpoint of the thread."""
        async with AsyncExitStack() as stack:

            async def run() -> int:
                saver = await stack.enter_async_context(_saver(place))
                state = await self._ended(graphs.ring(supersteps, saver), None, thread="ring")
                return state["number"]

            yield run

    def carries(self, ballast: Ballast, store: Store) -> bool:
        """A node has no state of its own: what is not nested is in a channel that nobody writes."""
        return ballast is not Ballast.EMPTY and store is not Store.NONE

    @asynccontextmanager
    async def carry(
        self, ballast: Ballast, value: object, supersteps: int, tick: Tick, place: Place
    ) -> AsyncGenerator[Run]:
        """A node that goes to itself."""
        async with _saver(place) as saver:
            await self._ended(graphs.ring(1, saver), {"number": 0}, thread="first")
            graph = graphs.load(ballast, supersteps, tick, saver)
            beside = {"number": 0, "ballast": value}

            async def run() -> int:
                if ballast is Ballast.NESTED:
                    return (await self._ended(graph, {"porter": beside}, thread="load"))["porter"]["number"]
                return (await self._ended(graph, beside, thread="load"))["number"]

            yield run

    @asynccontextmanager
    async def crowd(self, runs: int, supersteps: int, place: Place) -> AsyncGenerator[Run]:
        """One graph and one saver, a thread for each run."""
        async with _saver(place, is_pooled=True) as saver:
            await self._ended(graphs.ring(1, saver), {"number": 0}, thread="first")
            graph = graphs.ring(supersteps, saver)

            async def run() -> int:
                ends = [self._ended(graph, {"number": 0}, thread=f"ring {number}") for number in range(runs)]
                return sum(state["number"] for state in await asyncio.gather(*ends))

            yield run


class LangGraphDelta(_Historian):
    """Its delta channel, which is beta: a checkpoint holds what was added, and all of it every hundred supersteps."""

    name = "langgraph delta"
    keeps = ""
    is_delta = True

    @property
    def about(self) -> str:
        """The configuration."""
        return "the same with `DeltaChannel` (beta) for a history, of texts or of messages"


class LangGraphAsync(_Player):
    """The default mode."""

    name = "langgraph async"
    keeps = "`durability='async'`, its default: the same, but the next superstep runs while it is being saved"
    mode = "async"

    def durability(self, store: Store) -> Durability | None:
        """Return the durability. Without a store the modes do not differ."""
        return Durability.LATE if store in {Store.SQLITE, Store.POSTGRES} else None


@asynccontextmanager
async def _saver(place: Place, *, is_pooled: bool = False) -> AsyncGenerator[Saver]:
    match place.store:
        case Store.NONE:
            yield None
        case Store.MEMORY:
            yield InMemorySaver()
        case Store.FILE:
            raise AssertionError("there is no file saver")
        case Store.SQLITE:
            async with AsyncSqliteSaver.from_conn_string(str(place.directory / "langgraph.db")) as saver:
                yield saver
        case Store.POSTGRES:
            async with _postgres(place, is_pooled=is_pooled) as saver:
                await saver.setup()
                yield saver


@asynccontextmanager
async def _postgres(place: Place, *, is_pooled: bool) -> AsyncGenerator[AsyncPostgresSaver]:
    """One connection for one run, a pool for many, with the options that its documentation asks for."""
    if not is_pooled:
        async with AsyncPostgresSaver.from_conn_string(place.dsn) as saver:
            yield saver
        return
    options = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
    async with AsyncConnectionPool(place.dsn, max_size=_POOL_MAX, kwargs=options) as pool:
        yield AsyncPostgresSaver(pool)
