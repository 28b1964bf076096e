"""The graphs that LangGraph is measured with."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

from langgraph.channels.delta import DeltaChannel
from langgraph.graph import END, START, StateGraph

from bench.peer import Ballast, Interruption

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from langgraph.checkpoint.base import BaseCheckpointSaver
    from langgraph.graph.state import CompiledStateGraph

    from bench.peer import Tick

    Saver = BaseCheckpointSaver[Any] | None
    Graph = CompiledStateGraph[Any, Any, Any, Any]


class _Number(TypedDict):
    number: int


class _Laps(TypedDict):
    lap: int
    answers: Annotated[int, operator.add]


class _Listed(TypedDict):
    number: int
    history: Annotated[list[str], operator.add]


def _extended(history: list[str], added: Sequence[list[str]]) -> list[str]:
    return [*history, *(entry for entries in added for entry in entries)]


class _Delta(TypedDict):
    number: int
    history: Annotated[list[str], DeltaChannel(_extended)]


class _Beside(TypedDict):
    number: int
    ballast: object


class _Laden(TypedDict):
    porter: dict[str, Any]


def ring(supersteps: int, saver: Saver, *, is_interrupted: bool = False) -> Graph:
    """Ping and pong."""

    async def play(state: _Number) -> _Number:
        number = state["number"] + 1
        if number == supersteps and is_interrupted:
            raise Interruption
        return {"number": number}

    return _to_and_fro(_Number, play, supersteps, saver)


def history(entries: Sequence[str], tick: Tick, saver: Saver, *, is_delta: bool) -> Graph:
    """Ping and pong, who write down what they say."""

    async def write(state: dict[str, Any]) -> dict[str, Any]:
        tick()
        number = state["number"]
        return {"number": number + 1, "history": [entries[number]]}

    return _to_and_fro(_Delta if is_delta else _Listed, write, len(entries), saver)


def fan(laps: int, branches: int, saver: Saver) -> Graph:
    """A hub with edges to all branches; the way back waits for all of them."""
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


def load(ballast: Ballast, supersteps: int, tick: Tick, saver: Saver) -> Graph:
    """A node that goes to itself, with the ballast in a channel of its own, or in the one that it writes."""

    async def beside(state: _Beside) -> dict[str, Any]:
        tick()
        return {"number": state["number"] + 1}

    async def laden(state: _Laden) -> dict[str, Any]:
        tick()
        return {"porter": {**state["porter"], "number": state["porter"]["number"] + 1}}

    async def route(state: dict[str, Any]) -> str:
        number = state["porter"]["number"] if ballast is Ballast.NESTED else state["number"]
        return "porter" if number < supersteps else END

    builder = StateGraph(_Laden if ballast is Ballast.NESTED else _Beside)
    builder.add_node("porter", laden if ballast is Ballast.NESTED else beside)
    builder.add_edge(START, "porter")
    builder.add_conditional_edges("porter", route, ["porter", END])
    return builder.compile(checkpointer=saver)


def _to_and_fro(state: type, play: Callable[..., Awaitable[Any]], supersteps: int, saver: Saver) -> Graph:
    def unless_last(other: str) -> Callable[..., Awaitable[str]]:
        async def route(state: dict[str, Any]) -> str:
            return other if state["number"] < supersteps else END

        return route

    builder = StateGraph(state)
    builder.add_node("ping", play)
    builder.add_node("pong", play)
    builder.add_edge(START, "ping")
    builder.add_conditional_edges("ping", unless_last("pong"), ["pong", END])
    builder.add_conditional_edges("pong", unless_last("ping"), ["ping", END])
    return builder.compile(checkpointer=saver)
