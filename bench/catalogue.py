"""Who takes part, and in what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.peer import Store
from bench.peers.machine import Machine
from bench.works.fan import Fan
from bench.works.imports import Import
from bench.works.resume import Resume
from bench.works.ring import Ring

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.peer import Peer
    from bench.work import Work


@dataclass(frozen=True, slots=True)
class Missing:
    """A library that is not installed here."""

    name: str
    reason: str


def works() -> list[Work]:
    """What is measured, in the order of the table. A sample takes some tenths of a second."""
    return [
        Ring(Store.NONE, supersteps=500),
        Ring(Store.MEMORY, supersteps=200),
        Ring(Store.FILE, supersteps=100),
        Ring(Store.SQLITE, supersteps=100),
        Fan(Store.NONE, laps=20, branches=10),
        Fan(Store.SQLITE, laps=10, branches=10),
        Resume(Store.FILE, checkpoints=100, times=5),
        Resume(Store.SQLITE, checkpoints=100, times=5),
        Import(),
    ]


def peers(baseline: Peer) -> tuple[list[Peer], list[Missing]]:
    """The libraries that are installed, and those that are not. The baseline is always there."""
    found: list[Peer] = [Machine(), baseline]
    missing: list[Missing] = []
    for name, load in (("agent-framework-core", _agent_framework), ("langgraph", _langgraph)):
        try:
            found.extend(load())
        except ImportError as error:
            missing.append(Missing(name, str(error)))
    return found, missing


def _agent_framework() -> Sequence[Peer]:
    from bench.peers.agent_framework import AgentFramework  # noqa: PLC0415 - it may not be installed

    return [AgentFramework()]


def _langgraph() -> Sequence[Peer]:
    from bench.peers.langgraph import LangGraph  # noqa: PLC0415 - it may not be installed

    return [LangGraph("sync"), LangGraph("async")]
