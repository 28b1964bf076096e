"""The peers and the works."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.peer import Ballast, Store
from bench.peers.limits import limits
from bench.peers.machine import Machine
from bench.peers.perdure import PerdureLog
from bench.works.ballast import Load
from bench.works.conversation import Conversation
from bench.works.crowd import Crowd
from bench.works.fan import Fan
from bench.works.history import History
from bench.works.imports import Import
from bench.works.limits import Limits
from bench.works.listing import Listing
from bench.works.resume import Resume
from bench.works.ring import Ring

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from bench.peer import Peer
    from bench.work import Work

_ON_DISK = (Store.SQLITE, Store.FILE)
_DURABLE = (Store.SQLITE, Store.POSTGRES, Store.FILE)


@dataclass(frozen=True, slots=True)
class Missing:
    """Something that is not installed here."""

    name: str
    reason: str


def works(pythons: Mapping[str, Path]) -> list[Work]:
    """Return all works, in the order of the tables."""
    return [
        Limits(times=4000),
        Ring("A", "superstep, tiny message, no checkpoint", (Store.NONE,), supersteps=500),
        Ring("C", "superstep with a checkpoint", (*_DURABLE, Store.MEMORY), supersteps=100),
        History("D", _DURABLE, supersteps=1000),
        Resume("E 100", _ON_DISK, checkpoints=100, times=5),
        Resume("E 1000", _ON_DISK, checkpoints=1000, times=3),
        Resume("E 5000", _ON_DISK, checkpoints=5000, times=2),
        Fan("F 100", "no checkpoint", (Store.NONE,), laps=5, branches=100),
        Fan("F 1000", "no checkpoint", (Store.NONE,), laps=2, branches=1000),
        Fan("F 100 durable", "durable", _ON_DISK, laps=2, branches=100),
        Fan("F 1000 durable", "durable", _ON_DISK, laps=1, branches=1000),
        *(Load(f"G {ballast.name.lower()}", _DURABLE, ballast, supersteps=10) for ballast in Ballast),
        Crowd("H", _DURABLE, runs=100, supersteps=50),
        Import("I", pythons),
        Listing("K runs", "runs", runs=20_000),
        Listing("K requests", "requests", runs=20_000),
        Conversation("J 250", _ON_DISK, turns=250),
        Conversation("J 1000", _ON_DISK, turns=1000),
    ]


def chosen(all_works: Sequence[Work], only: Sequence[str]) -> list[Work]:
    """The works of these lines, or with this text in their titles. The machine's limits are always among them."""
    if not only:
        return list(all_works)
    found = [work for work in all_works if work.key == "limits" or any(_is_meant(work, part) for part in only)]
    if len(found) == 1:
        raise SystemExit(f"nothing is called {', '.join(only)}: {'; '.join(f'{w.key}: {w.title}' for w in all_works)}")
    return found


def _is_meant(work: Work, part: str) -> bool:
    if len(part) == 1:
        return work.key.split()[0] == part.upper()
    return part.casefold() == work.key.casefold() or part.casefold() in work.title.casefold()


def peers(baseline: Peer) -> tuple[list[Peer], list[Missing]]:
    """The libraries that are installed, and those that are not. The baseline is always there."""
    found: list[Peer] = [*limits(), Machine(), baseline, PerdureLog()]
    missing: list[Missing] = []
    for name, load in _LOADED.items():
        try:
            found.extend(load())
        except ImportError as error:
            missing.append(Missing(name, str(error)))
    return found, missing


def _langgraph() -> Sequence[Peer]:
    from bench.peers.langgraph import LangGraph, LangGraphAsync, LangGraphDelta  # noqa: PLC0415 - may be missing

    return [LangGraph(), LangGraphDelta(), LangGraphAsync()]


def _agent_framework() -> Sequence[Peer]:
    from bench.peers.agent_framework import AgentFramework  # noqa: PLC0415 - it may not be installed

    return [AgentFramework()]


def _dbos() -> Sequence[Peer]:
    from bench.peers.dbos import Dbos  # noqa: PLC0415 - it may not be installed

    return [Dbos()]


def _burr() -> Sequence[Peer]:
    from bench.peers.burr import Burr, BurrSync  # noqa: PLC0415 - it may not be installed

    return [Burr(), BurrSync()]


_LOADED: dict[str, Callable[[], Sequence[Peer]]] = {
    "agent-framework-core": _agent_framework,
    "langgraph": _langgraph,
    "dbos": _dbos,
    "burr": _burr,
}
