"""Rounds in which every peer does every work, in turns."""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bench.peer import Durability, Peer
    from bench.work import Work


@dataclass(frozen=True, slots=True)
class Entry:
    """A work as one peer does it."""

    work: Work
    peer: Peer
    durability: Durability


@dataclass(frozen=True, slots=True)
class Sample:
    """What an entry took in one round."""

    entry: Entry
    round: int
    seconds: float


def entries(works: Sequence[Work], peers: Sequence[Peer]) -> list[Entry]:
    """Every work with every peer that can do it."""
    return [
        Entry(work, peer, durability)
        for work in works
        for peer in peers
        if (durability := work.durability(peer)) is not None
    ]


def measure(
    works: Sequence[Work], peers: Sequence[Peer], *, rounds: int, directory: Path, tell: Callable[[int, Entry], None]
) -> list[Sample]:
    """The samples of all rounds. Round 0 warms up caches and byte code and is not kept."""
    samples: list[Sample] = []
    for number in range(rounds + 1):
        # Taking turns lets a drift of the machine meet all alike; every other round goes backwards, so that nobody
        # always comes right after the same other.
        for entry in entries(works, peers if number % 2 else peers[::-1]):
            tell(number, entry)
            seconds = _once(entry, directory)
            if number > 0:
                samples.append(Sample(entry, number, seconds))
    return samples


def _once(entry: Entry, directory: Path) -> float:
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        return asyncio.run(entry.work.seconds(entry.peer, Path(scratch)))
