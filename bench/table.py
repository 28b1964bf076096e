"""The lines as tables for the terminal, a small one for each work."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from rich.table import Table

from bench.peer import Durability

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bench.peer import Peer
    from bench.summary import Line
    from bench.work import Work


def tables(lines: Sequence[Line], *, baseline: Peer) -> Iterator[Table]:
    """A table for each work, with a row for each peer; the baseline's stands out."""
    for work, group in groupby(lines, key=lambda line: line.entry.work):
        drawn = _headed(work, baseline)
        for line in group:
            drawn.add_row(*_cells(line), style="bold" if line.entry.peer == baseline else "")
        yield drawn


def _headed(work: Work, baseline: Peer) -> Table:
    drawn = Table(title=work.title, title_style="bold cyan", title_justify="left", header_style="dim", box=None)
    # The widths are the same in all tables, so that one can look down a column. They fit 80 characters.
    drawn.add_column(f"for each {work.unit}", width=18)
    drawn.add_column("median", justify="right", width=9)
    drawn.add_column("spread", justify="right", width=7)
    drawn.add_column("a second", justify="right", width=9)
    drawn.add_column(f"x {baseline.name}", justify="right", width=10)
    drawn.add_column("checkpoint", width=12)
    return drawn


def _cells(line: Line) -> tuple[str, ...]:
    durability = line.entry.durability
    return (
        line.entry.peer.name,
        _duration(line.median),
        f"{line.spread:.0%}",
        _three_digits(1 / line.median),
        "" if line.ratio is None else f"{line.ratio:.2f}",
        "" if durability is Durability.NONE else durability.value,
    )


def _duration(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{_three_digits(seconds / size)} {unit}"
    return f"{_three_digits(seconds / 1e-6)} us"


def _three_digits(number: float) -> str:
    """With a decimal point where three digits leave room for it: 1.23, 12.3, 123, 12,345."""
    decimals = next((places for places, limit in ((2, 10), (1, 100)) if number < limit), 0)
    return f"{number:,.{decimals}f}"
