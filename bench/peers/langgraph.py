"""LangGraph as a peer."""

from __future__ import annotations

import operator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph

from bench.peer import Durability, Interruption, Place, Run, Store

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.base import BaseCheckpointSaver
    from langgraph.graph.state import CompiledStateGraph

    _Saver = BaseCheckpointSaver[Any] | None
    _Graph = CompiledStateGraph[Any, Any, Any, Any]

_NO_LIMIT = 1_000_000


class _Number(TypedDict):
    number: int


class _Laps(TypedDict):
    lap: int
    answers: Annotated[int, operator.add]


@dataclass(frozen=True, slots=True)
class LangGraph:
    """Asynchronous nodes and savers, in one of its durability modes.

    `"sync"` is the one that it documents for high durability: a superstep begins when the last one is saved. `"async"`
    is what it does if it is not told: the next superstep runs while the last one is being saved.
    """

    mode: Literal["sync", "async"]

    @property
    def name(self) -> str:
        """What the table calls it."""
        return "langgraph" if self.mode == "sync" else "langgraph async"

    @property
    def imports(self) -> str | None:
        """The same for both modes, so only one of them is asked."""
        if self.mode == "async":
            return None
        return "from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver; from langgraph.graph import StateGraph"

    @property
    def about(self) -> str:
        """Which version it is, and how it is set up."""
        return f"{version('langgraph')}, durability={self.mode!r}"

    def durability(self, store: Store) -> Durability | None:
        """Its SQLite saver keeps SQLite's defaults, and those sync every commit. It has no file saver."""
        match store, self.mode:
            case Store.SQLITE, "sync":
                return Durability.SYNCED
            case Store.SQLITE, "async":
                return Durability.LATE
            case (Store.FILE, _) | (_, "async"):
                # Where nothing is written the modes are the same.
                return None
            case Store.MEMORY, _:
                return Durability.MEMORY
            case Store.NONE, _:
                return Durability.NONE

    @asynccontextmanager
    async def ring(self, supersteps: int, place: Place) -> AsyncGenerator[Run]:
        """Ping and pong."""
        async with _saver(place) as saver:
            await self._ended(_ring(1, saver), {"number": 0}, thread="first")
            graph = _ring(supersteps, saver)

            async def run() -> int:
                state = await self._ended(graph, {"number": 0}, thread="ring")
                return state["number"]

            yield run

    @asynccontextmanager
    async def fan(self, laps: int, branches: int, place: Place) -> AsyncGenerator[Run]:
        """A hub with edges to all branches; the way back waits for all of them."""
        async with _saver(place) as saver:
            await self._ended(_fan(1, branches, saver), {"lap": 0, "answers": 0}, thread="first")
            graph = _fan(laps, branches, saver)

            async def run() -> int:
                state = await self._ended(graph, {"lap": 0, "answers": 0}, thread="fan")
                return state["answers"]

            yield run

    async def interrupt(self, supersteps: int, place: Place) -> None:
        """A ring that fails in its last superstep."""
        async with _saver(place) as saver:
            with suppress(Interruption):
                await self._ended(_ring(supersteps, saver, is_interrupted=True), {"number": 0}, thread="ring")

    @asynccontextmanager
    async def resume(self, supersteps: int, place: Place) -> AsyncGenerator[Run]:
        """Open, build, resume: without an input it goes on from the latest checkpoint of the thread."""
        async with AsyncExitStack() as stack:

            async def run() -> int:
                saver = await stack.enter_async_context(_saver(place))
                state = await self._ended(_ring(supersteps, saver), None, thread="ring")
                return state["number"]

            yield run

    async def _ended(self, graph: _Graph, given: dict[str, int] | None, *, thread: str) -> dict[str, int]:
        config: RunnableConfig = {"recursion_limit": _NO_LIMIT, "configurable": {"thread_id": thread}}
        # Without a saver it warns about a durability.
        return await graph.ainvoke(given, config, durability=self.mode if graph.checkpointer else None)


def _ring(supersteps: int, saver: _Saver, *, is_interrupted: bool = False) -> _Graph:
    async def play(state: _Number) -> _Number:
        number = state["number"] + 1
        if number == supersteps and is_interrupted:
            raise Interruption
        return {"number": number}

    def unless_last(other: str) -> Callable[[_Number], Awaitable[str]]:
        async def route(state: _Number) -> str:
            return other if state["number"] < supersteps else END

        return route

    builder = StateGraph(_Number)
    builder.add_node("ping", play)
    builder.add_node("pong", play)
    builder.add_edge(START, "ping")
    builder.add_conditional_edges("ping", unless_last("pong"), ["pong", END])
    builder.add_conditional_edges("pong", unless_last("ping"), ["ping", END])
    return builder.compile(checkpointer=saver)


def _fan(laps: int, branches: int, saver: _Saver) -> _Graph:
    names = [f"branch-{number}" for number in range(branches)]

    async def hub(state: _Laps) -> dict[str, int]:
        return {"lap": state["lap"] + 1}

    async def branch(state: _Laps) -> dict[str, int]:  # noqa: ARG001 - the name is the one that it asks for
        return {"answers": 1}

    async def route(state: _Laps) -> list[str] | str:
        return names if state["lap"] <= laps else END

    builder = StateGraph(_Laps)
    builder.add_node("hub", hub)
    for name in names:
        builder.add_node(name, branch)
    builder.add_edge(START, "hub")
    builder.add_conditional_edges("hub", route, [*names, END])
    builder.add_edge(names, "hub")
    return builder.compile(checkpointer=saver)


@asynccontextmanager
async def _saver(place: Place) -> AsyncGenerator[_Saver]:
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
