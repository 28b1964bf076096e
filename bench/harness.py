"""Rounds in which every peer does every work, in turns."""

from __future__ import annotations

import asyncio
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bench.peer import Place, Store
from bench.server import OwnMeter
from bench.work import Room

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from bench.peer import Durability, Peer
    from bench.server import Postgres
    from bench.work import Reading, Work

_ROUNDS_MAX = ((60.0, 1), (8.0, 2), (1.5, 3))
"""The largest number of rounds for an entry that takes longer than this many seconds."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A work as one peer does it with one store."""

    work: Work
    peer: Peer
    store: Store
    durability: Durability


@dataclass(frozen=True, slots=True)
class Sample:
    """The reading of an entry in one round."""

    entry: Entry
    round: int
    reading: Reading


def entries(works: Sequence[Work], peers: Sequence[Peer], *, without: frozenset[Store]) -> list[Entry]:
    """Every work with every peer that can do it, and every store that it can do it with."""
    return [
        Entry(work, peer, store, durability)
        for work in works
        for store in work.stores
        if store not in without
        for peer in peers
        if (durability := work.durability(peer, store)) is not None
    ]


@dataclass(frozen=True, slots=True)
class Harness:
    """Measure entries in a directory, and report progress."""

    directory: Path
    postgres: Postgres | None
    tell: Callable[[int, Entry], None]

    def measure(self, plan: Sequence[Entry], *, rounds: int, is_warmed_up: bool) -> list[Sample]:
        """The samples of all rounds. Before them comes round 0, a small one that warms up and is not kept."""
        samples: list[Sample] = []
        rounds_max: dict[Entry, int] = {}
        for number in range(0 if is_warmed_up else 1, rounds + 1):
            # Taking turns lets a drift of the machine meet all alike; every other round goes backwards within a work,
            # so that nobody always comes right after the same other.
            for entry in _in_turn(plan, number):
                if number > rounds_max.get(entry, rounds):
                    continue
                self.tell(number, entry)
                began = time.monotonic()
                reading = self._once(entry, is_warming_up=number == 0)
                if number > 0:
                    rounds_max.setdefault(entry, _rounds_max(time.monotonic() - began, rounds))
                    samples.append(Sample(entry, number, reading))
        return samples

    def _once(self, entry: Entry, *, is_warming_up: bool) -> Reading:
        work = entry.work.small() if is_warming_up else entry.work
        with self._room(entry) as room:
            try:
                return asyncio.run(work.reading(entry.peer, room))
            except Exception as error:
                error.add_note(f"while {entry.peer.name} did {work.title!r} with store {entry.store.value!r}")
                raise

    @contextmanager
    def _room(self, entry: Entry) -> Generator[Room]:
        kept = self.directory / "kept"
        with tempfile.TemporaryDirectory(dir=self.directory) as scratch:
            if entry.store is not Store.POSTGRES:
                yield Room(Place(entry.store, Path(scratch)), kept, OwnMeter())
                return
            assert self.postgres is not None, "without a server its store is left out"
            with self.postgres.database() as dsn:
                yield Room(Place(entry.store, Path(scratch), dsn), kept, self.postgres)


def _rounds_max(seconds: float, rounds: int) -> int:
    return next((most for long, most in _ROUNDS_MAX if seconds > long), rounds)


def _in_turn(plan: Sequence[Entry], number: int) -> list[Entry]:
    works = list(dict.fromkeys(entry.work for entry in plan))
    turned = plan if number % 2 else plan[::-1]
    return [entry for work in works for entry in turned if entry.work == work]
