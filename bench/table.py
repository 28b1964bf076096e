"""The lines as a table for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from rich.table import Table

from bench.peer import Durability

if TYPE_CHECKING:
    from bench.peer import Peer
    from bench.summary import Line

_MICROSECONDS_BELOW = 1e-3
_SECONDS_FROM = 1.0


def table(lines: Sequence[Line], *, baseline: Peer) -> Table:
    """A section for each work, a row for each peer."""
    drawn = Table(header_style="bold")
    drawn.add_column("work")
    drawn.add_column("library")
    drawn.add_column("median", justify="right", no_wrap=True)
    drawn.add_column("fastest to slowest", justify="right", no_wrap=True)
    drawn.add_column("a second", justify="right", no_wrap=True)
    drawn.add_column(f"x {baseline.name}", justify="right", no_wrap=True)
    drawn.add_column("checkpoint")
    for work, group in groupby(lines, key=lambda line: line.entry.work):
        title = f"{work.title}\n[dim]for each {work.unit}[/dim]" if work.unit not in work.title else work.title
        for line in group:
            drawn.add_row(title, *_cells(line), style="bold" if line.entry.peer == baseline else None)
            title = ""
        drawn.add_section()
    return drawn


def _cells(line: Line) -> tuple[str, ...]:
    durability = line.entry.durability
    return (
        line.entry.peer.name,
        duration(line.median),
        f"{duration(line.fastest)} to {duration(line.slowest)}",
        f"{1 / line.median:,.0f}",
        "" if line.ratio is None else f"{line.ratio:.2f}",
        "" if durability is Durability.NONE else durability.value,
    )


def duration(seconds: float) -> str:
    """Seconds in a unit that reads well, with three digits."""
    match seconds:
        case _ if seconds < _MICROSECONDS_BELOW:
            return f"{_three(seconds * 1e6)} us"
        case _ if seconds < _SECONDS_FROM:
            return f"{_three(seconds * 1e3)} ms"
        case _:
            return f"{_three(seconds)} s"


def _three(number: float) -> str:
    decimals = 2 if number < 10 else 1 if number < 100 else 0  # noqa: PLR2004 - powers of ten
    return f"{number:.{decimals}f}"
