"""The bytes that a process and its database server pass to the kernel."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from bench.work import Point

if TYPE_CHECKING:
    from bench.peer import Place

_SELF = Path("/proc/self/io")


class Meter(Protocol):
    """Counts what is written on behalf of a place."""

    def written(self) -> int:
        """All bytes so far."""
        ...

    def stored(self, place: Place) -> int:
        """The bytes that the place holds now."""
        ...

    def settle(self, place: Place) -> None:
        """Have everything written that a server has put off."""
        ...


def handed_over(io: Path = _SELF) -> int:
    """The bytes of all write calls of a process and of the children that it has waited for.

    It is `wchar`, not `write_bytes`: that one counts pages that became dirty, so a page that is written twice before
    it reaches the disk counts once, and a byte as a page.
    """
    for line in io.read_text("ascii").splitlines():
        name, _, number = line.partition(": ")
        if name == "wchar":
            return int(number)
    raise AssertionError(f"{io} has no line 'wchar'")


def size_of(directory: Path) -> int:
    """The bytes of all files below a directory."""
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


class Probe:
    """Looks at a run from inside: once when it has warmed up, then every so many supersteps.

    The time in which it looks is not counted. If it settles, a server writes what it has put off before the counting
    begins and before it ends, so that a run pays for all of its own writes, and for no others.
    """

    def __init__(self, meter: Meter, place: Place, *, warm: int, every: int, settles: bool) -> None:
        self._meter = meter
        self._place = place
        self._warm = warm
        self._every = every
        self._settles = settles
        self._ticks = 0
        self._looked_seconds = 0.0
        self._began = 0.0
        self._written = 0
        self._points: list[Point] = []

    def tick(self) -> None:
        """One more superstep has begun."""
        self._ticks += 1
        done = self._ticks - 1 - self._warm
        if done == 0:
            self._begin()
        elif done > 0 and done % self._every == 0:
            self._look(done)

    def stop(self) -> float:
        """The run has ended: the seconds since it had warmed up."""
        self._look(self._ticks - self._warm)
        return self._points[-1].seconds

    def finish(self) -> int:
        """The bytes since the run had warmed up, until now."""
        self._settle()
        return self._meter.written() - self._written

    @property
    def points(self) -> tuple[Point, ...]:
        """The points that were recorded during the run."""
        return tuple(self._points)

    def _settle(self) -> None:
        if self._settles:
            self._meter.settle(self._place)

    def _begin(self) -> None:
        self._settle()
        self._written = self._meter.written()
        self._began = time.perf_counter()

    def _look(self, done: int) -> None:
        seconds = time.perf_counter() - self._began - self._looked_seconds
        self._points.append(Point(done, seconds, self._meter.written() - self._written))
        self._looked_seconds = time.perf_counter() - self._began - seconds
