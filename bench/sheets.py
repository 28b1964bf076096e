"""Results as sheets of text, for the terminal and for the page of results."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Final

from bench.footprint import Footprint, Refusal
from bench.peer import Durability, Store
from bench.units import duration, number, size

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bench.aims import Aim
    from bench.summary import Line, Results
    from bench.work import Work

_MET: Final = {True: "yes", False: "**no**", None: ""}
LEGEND: Final = (
    ("median", "the time of one unit, which the first column names; `rounds` says of how many rounds."),
    ("spread", "from the fastest to the slowest round, as a part of the median."),
    ("x perdure", "how many times as long as perdure with the same store, compared within each round."),
    ("x machine", "how many times as long as the bare machine, compared within each round."),
    ("written", "the bytes of all write calls of the process, and of the database server that works for it."),
    ("stored", "the bytes that the store holds in the end."),
    ("a turn's time, a turn writes", "from the first quarter of the conversation to its last."),
    (
        "checkpoint",
        (
            "what has become of it when the next superstep begins. What is synced survives a power cut; what is "
            "written survives a killed process; synced late: the next superstep runs meanwhile."
        ),
    ),
    (
        "machine",
        "the floor: a bare asyncio task for each activation, or a raw, synced write of 1 KB for each checkpoint.",
    ),
)


@dataclass(frozen=True, slots=True)
class Sheet:
    """A table: columns with their names, rows of the same length, and the numbers of the rows that stand out."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    strong: frozenset[int] = frozenset()


def aims_sheet(aims: Sequence[Aim]) -> Sheet:
    """Make the sheet of aims and measured values."""
    rows = tuple((aim.line, aim.what, aim.wanted, aim.measured, _MET[aim.is_met], aim.peer) for aim in aims)
    return Sheet("Aims", ("line", "work", "aim", "measured", "met", "best peer"), rows)


def limits_sheet(results: Results) -> Sheet:
    """Make the sheet of the machine's limits."""
    lines = results.of("limits")
    rows = tuple(
        (line.entry.peer.name, duration(line.median), f"{line.spread:.0%}", str(line.rounds)) for line in lines
    )
    return Sheet("The machine's limits", ("operation", "median", "spread", "rounds"), rows)


def work_sheets(results: Results, *, baseline: str) -> Iterator[Sheet]:
    """A sheet for each work, with a row for each peer and store."""
    own = [line for line in results.lines if line.entry.work.key != "limits"]
    for work, group in groupby(own, key=lambda line: line.entry.work):
        yield _sheet(work, list(group), baseline)


def footprint_sheet(footprints: Sequence[Footprint | Refusal]) -> Sheet:
    """Make the sheet of footprints."""
    rows: list[tuple[str, ...]] = []
    for each in footprints:
        match each:
            case Footprint():
                rows.append((each.peer, each.requirement, str(each.packages), size(each.bytes)))
            case Refusal():
                rows.append((each.peer, each.reason, "", ""))
    return Sheet("I: packages and size of an installation", ("peer", "pip install", "packages", "size"), tuple(rows))


def _sheet(work: Work, lines: list[Line], baseline: str) -> Sheet:
    columns = [
        (f"a {work.unit}", [line.entry.peer.name for line in lines]),
        ("store", ["" if line.entry.store is Store.NONE else line.entry.store.value for line in lines]),
        ("median", [duration(line.median) for line in lines]),
        ("spread", [f"{line.spread:.0%}" for line in lines]),
        ("rounds", [str(line.rounds) for line in lines]),
        ("a second", [number(1 / line.median) if work.unit == "superstep" else "" for line in lines]),
        (f"x {baseline}", [_times(line.ratio) for line in lines]),
        ("x machine", [_times(line.floor) for line in lines]),
        ("written", ["" if line.written is None else size(line.written) for line in lines]),
        ("stored", ["" if line.stored is None else size(line.stored) for line in lines]),
        *(_of_turns(lines) if work.unit == "conversation" else ()),
        ("checkpoint", [_kept(line.entry.durability) for line in lines]),
    ]
    # A column that says nothing of this work is left out.
    shown = [(name, cells) for name, cells in columns if any(cells)]
    strong = frozenset(n for n, line in enumerate(lines) if line.entry.peer.name.startswith(baseline))
    rows = tuple(zip(*(cells for _, cells in shown), strict=True))
    letter = work.key.split()[0]
    return Sheet(f"{letter}: {work.title}", tuple(name for name, _ in shown), rows, strong)


def _of_turns(lines: list[Line]) -> Iterator[tuple[str, list[str]]]:
    ends = [line.quarters for line in lines]
    yield "a turn's time", [f"{duration(first.seconds)} to {duration(last.seconds)}" for first, last in ends]
    yield "a turn writes", [f"{size(first.written)} to {size(last.written)}" for first, last in ends]


def _times(ratio: float | None) -> str:
    return "" if ratio is None else number(ratio)


def _kept(durability: Durability) -> str:
    return "" if durability is Durability.NONE else durability.value
