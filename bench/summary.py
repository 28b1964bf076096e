"""Samples made into the lines of a table: median, spread, ratio."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.harness import Entry, Sample
    from bench.peer import Peer


@dataclass(frozen=True, slots=True)
class Line:
    """What an entry took over all rounds, in seconds for one unit."""

    entry: Entry
    median: float
    fastest: float
    slowest: float
    ratio: float | None
    """How many times as long as the baseline; None if the baseline did not do this work."""

    @property
    def spread(self) -> float:
        """From the fastest to the slowest round, as a part of the median."""
        return (self.slowest - self.fastest) / self.median


def summarize(entries: Sequence[Entry], samples: Sequence[Sample], *, baseline: Peer) -> list[Line]:
    """A line for each entry."""
    took = {(s.entry, s.round): s.seconds for s in samples}
    return [_line(entry, took, baseline=baseline) for entry in entries]


def _line(entry: Entry, took: dict[tuple[Entry, int], float], *, baseline: Peer) -> Line:
    own = {number: seconds for (other, number), seconds in took.items() if other == entry}
    base = {
        number: seconds
        for (other, number), seconds in took.items()
        if other.work == entry.work and other.peer == baseline
    }
    # Compared within a round, where both met the same machine, and only then is the middle taken.
    ratios = [seconds / base[number] for number, seconds in own.items() if number in base]
    return Line(
        entry,
        median=statistics.median(own.values()),
        fastest=min(own.values()),
        slowest=max(own.values()),
        ratio=statistics.median(ratios) if ratios else None,
    )
