"""Samples made into lines: median, spread, ratios."""

from __future__ import annotations

import statistics
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.work import Point

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from bench.harness import Entry, Sample
    from bench.peer import Store


@dataclass(frozen=True, slots=True)
class Quarter:
    """The cost of one superstep or turn in a quarter of a run."""

    seconds: float
    written: float


@dataclass(frozen=True, slots=True)
class Line:
    """The result of an entry over all rounds, for one unit."""

    entry: Entry
    rounds: int
    median: float
    fastest: float
    slowest: float
    ratio: float | None
    """The time relative to the baseline with the same store; None if the baseline did not do this work."""
    floor: float | None
    """The time relative to the bare machine; None if there is no such limit."""
    written: float | None
    stored: float | None
    points: tuple[Point, ...]

    @property
    def spread(self) -> float:
        """From the fastest to the slowest round, as a part of the median."""
        return (self.slowest - self.fastest) / self.median

    @property
    def quarters(self) -> tuple[Quarter, Quarter]:
        """The first and the last quarter of a run that was looked at on its way."""
        quarter = max(1, len(self.points) // 4)
        before = self.points[-1 - quarter] if len(self.points) > quarter else _BEGINNING
        return _between(_BEGINNING, self.points[quarter - 1]), _between(before, self.points[-1])


_BEGINNING = Point(0, 0.0, 0)


def _between(start: Point, end: Point) -> Quarter:
    passed = end.superstep - start.superstep
    return Quarter((end.seconds - start.seconds) / passed, (end.written - start.written) / passed)


@dataclass(frozen=True, slots=True)
class Results:
    """All lines, in the order of the tables."""

    lines: tuple[Line, ...]

    def find(self, key: str, peer: str, store: Store) -> Line | None:
        """The one line; None if that was not measured."""
        return next((line for line in self.of(key) if line.entry.peer.name == peer and line.entry.store is store), None)

    def of(self, key: str) -> list[Line]:
        """The lines of a work."""
        return [line for line in self.lines if line.entry.work.key == key]


def summarize(samples: Sequence[Sample], *, baseline: str, floor: str) -> Results:
    """A line for each entry that was measured."""
    took: dict[Entry, dict[int, Sample]] = defaultdict(dict)
    for sample in samples:
        took[sample.entry][sample.round] = sample
    return Results(
        tuple(
            _line(entry, own, base=_other(took, entry, baseline), ground=_other(took, entry, floor))
            for entry, own in took.items()
        )
    )


def _other(took: dict[Entry, dict[int, Sample]], entry: Entry, name: str) -> dict[int, Sample]:
    """Return the samples of the peer of that name, for the same work with the same store."""
    for other, samples in took.items():
        if other.work == entry.work and other.store is entry.store and other.peer.name == name:
            return samples
    return {}


def _line(entry: Entry, own: dict[int, Sample], *, base: dict[int, Sample], ground: dict[int, Sample]) -> Line:
    seconds = [sample.reading.seconds for sample in own.values()]
    return Line(
        entry,
        rounds=len(own),
        median=statistics.median(seconds),
        fastest=min(seconds),
        slowest=max(seconds),
        ratio=_ratio(own, base),
        floor=_ratio(own, ground),
        written=_middle(sample.reading.written for sample in own.values()),
        stored=_middle(sample.reading.stored for sample in own.values()),
        points=_points([sample.reading.points for sample in own.values()]),
    )


def _ratio(own: dict[int, Sample], base: dict[int, Sample]) -> float | None:
    # Compared within a round, where both met the same machine, and only then is the middle taken.
    ratios = [sample.reading.seconds / base[n].reading.seconds for n, sample in own.items() if n in base]
    return statistics.median(ratios) if ratios else None


def _middle(numbers: Iterable[float | None]) -> float | None:
    known = [number for number in numbers if number is not None]
    return statistics.median(known) if known else None


def _points(rounds: Sequence[tuple[Point, ...]]) -> tuple[Point, ...]:
    return tuple(
        Point(
            points[0].superstep,
            statistics.median(point.seconds for point in points),
            int(statistics.median(point.written for point in points)),
        )
        for points in zip(*rounds, strict=True)
    )
