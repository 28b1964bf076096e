"""The command: it measures, prints tables, and writes the page of results."""

from __future__ import annotations

import os
import platform
import shutil
import statistics
import sys
import time
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from bench import server
from bench.aims import aims
from bench.catalogue import Missing, chosen, peers, works
from bench.footprint import Footprint, footprints
from bench.harness import Harness, entries
from bench.options import options
from bench.page import Page
from bench.peer import Store
from bench.peers.perdure import Perdure
from bench.sheets import LEGEND, aims_sheet, footprint_sheet, limits_sheet, work_sheets
from bench.summary import summarize
from bench.table import table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.footprint import Refusal
    from bench.harness import Entry, Sample
    from bench.options import Options
    from bench.peer import Peer
    from bench.summary import Results

_HERE = Path(__file__).parent
_SPREAD_OF_A_BUSY_MACHINE = 0.5
_PICTURE = "history.svg"
_WIDTH_OF_A_LOG = 160


def main() -> None:
    """Measure everything, then tell."""
    given = options()
    given.directory.mkdir(parents=True, exist_ok=True)
    console = Console(width=None if sys.stdout.isatty() else _WIDTH_OF_A_LOG)
    baseline = Perdure()
    present, missing = peers(baseline)
    began = time.monotonic()
    installed = _installed(given, present)
    with ExitStack() as stack:
        samples = _samples(given, present, missing, installed, stack)
    results = summarize(samples, baseline=baseline.name, floor="machine")
    page = _page(results, installed, present, missing, how=_how(given, time.monotonic() - began))
    _tell(console, page, results)
    _write(given, page, results, console)


def _how(given: Options, seconds: float) -> str:
    """Describe how this run was made, for the reader."""
    rounds = f"Rounds: {given.rounds} after a small one to warm up; what takes long has fewer."
    if given.is_quick:
        rounds = f"**Quick: this shows that it works, and no more.** Rounds: {given.rounds}, without warming up."
    told = f"{rounds} It took {_minutes(seconds)}."
    if server.HOME.stat().st_dev != given.directory.stat().st_dev:
        told += f" Postgres writes to {server.HOME}, another disk than the others."
    return told


def _installed(given: Options, present: Sequence[Peer]) -> list[Footprint | Refusal]:
    is_wanted = not given.only or any(part.upper() == "I" for part in given.only)
    return footprints(present, given.directory / "environments") if is_wanted else []


def _samples(
    given: Options,
    present: Sequence[Peer],
    missing: list[Missing],
    installed: Sequence[Footprint | Refusal],
    stack: ExitStack,
) -> list[Sample]:
    postgres = server.start()
    if isinstance(postgres, str):
        missing.append(Missing("Postgres", postgres))
        postgres = None
    else:
        stack.callback(postgres.remove)
    pythons = {each.peer: each.python for each in installed if isinstance(each, Footprint)}
    wanted = chosen(works(pythons), given.only)
    if given.is_quick:
        wanted = [work.small() for work in wanted]
    plan = entries(wanted, present, without=frozenset() if postgres else frozenset({Store.POSTGRES}))
    stack.callback(shutil.rmtree, given.directory / "kept", ignore_errors=True)
    harness = Harness(given.directory, postgres, _Progress(given.rounds))
    return harness.measure(plan, rounds=given.rounds, is_warmed_up=not given.is_quick)


class _Progress:
    """Report progress: to a terminal each entry, to a log each round.

    Nothing is drawn during a measurement, because that would count as written.
    """

    def __init__(self, rounds: int) -> None:
        self._rounds = rounds
        self._round: int | None = None

    def __call__(self, number: int, entry: Entry) -> None:
        stage = f"round {number} of {self._rounds}" if number else "warming up"
        if sys.stderr.isatty():
            line = f"{stage}: {entry.work.title}, {entry.peer.name}, {entry.store.value}"
            sys.stderr.write(f"\r\x1b[K{line[:110]}")
        elif number != self._round:
            sys.stderr.write(f"{stage}\n")
        self._round = number
        sys.stderr.flush()


def _page(
    results: Results,
    installed: Sequence[Footprint | Refusal],
    present: Sequence[Peer],
    missing: Sequence[Missing],
    *,
    how: str,
) -> Page:
    sheets = list(work_sheets(results, baseline="perdure"))
    if installed:
        sheets.append(footprint_sheet(installed))
    machine = f"{platform.system()} {platform.release()}, {platform.machine()}, {os.cpu_count()} CPUs"
    picture = _PICTURE if any(line.points for line in results.of("D")) and _can_draw() else None
    return Page(
        machine, how, present, missing, aims_sheet(aims(results, installed)), limits_sheet(results), sheets, picture
    )


def _tell(console: Console, page: Page, results: Results) -> None:
    if sys.stderr.isatty():
        sys.stderr.write("\r\x1b[K")
    console.print(f"{page.machine}. {page.how}", highlight=False)
    for sheet in (*page.sheets, page.limits, page.aims):
        console.print("", table(sheet))
    console.print("")
    for name, text in LEGEND:
        console.print(f"[bold]{name}[/bold]: {text}", highlight=False)
    for each in page.missing:
        told = f"{each.name} is left out: {each.reason}; `make bench` installs what it needs"
        console.print(told, style="yellow", highlight=False, soft_wrap=True)
    if statistics.median(line.spread for line in results.lines) > _SPREAD_OF_A_BUSY_MACHINE:
        console.print("The rounds differ widely: try again on an idle machine, or with more rounds.", style="yellow")


def _write(given: Options, page: Page, results: Results, console: Console) -> None:
    """The page that is kept tells of everything; what is measured in parts is written beside the stores."""
    directory = _HERE if given.is_complete else given.directory
    target = directory / "RESULTS.md"
    target.write_text(page.text(), "utf-8")
    if page.picture is not None:
        from bench.plot import draw  # noqa: PLC0415 - what it draws with may not be installed

        draw(results.of("D"), directory / page.picture)
    console.print(f"Written to {os.path.relpath(target)}.", highlight=False)


def _can_draw() -> bool:
    return find_spec("matplotlib") is not None


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} minutes" if seconds > 100 else f"{seconds:.0f} seconds"  # noqa: PLR2004


if __name__ == "__main__":
    main()
