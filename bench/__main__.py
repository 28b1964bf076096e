"""The command: it measures, and prints a table."""

from __future__ import annotations

import os
import platform
import statistics
import time
from typing import TYPE_CHECKING

from rich.console import Console

from bench.catalogue import peers, works
from bench.harness import entries, measure
from bench.options import options
from bench.peers.perdure import Perdure
from bench.summary import summarize
from bench.table import tables

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.catalogue import Missing
    from bench.harness import Entry
    from bench.peer import Peer
    from bench.summary import Line

_SPREAD_OF_A_BUSY_MACHINE = 0.5

_LEGEND = """\
[bold]median[/bold]: the time of one superstep, branch, resume or import.
[bold]spread[/bold]: from the fastest to the slowest round, as a part of the median.
[bold]x {baseline}[/bold]: how many times as long as {baseline}, compared within each round.
[bold]checkpoint[/bold]: what has become of it when the next superstep begins. What is synced
survives a power cut; what is written survives a killed process; synced late
means that the next superstep runs while it is being synced.
[bold]machine[/bold]: the floor. A bare asyncio task for each activation, and a raw and
synced write of 1 KB for each checkpoint.\
"""


def main() -> None:
    """Measure everything, then tell."""
    given = options()
    given.directory.mkdir(parents=True, exist_ok=True)
    console = Console()
    baseline = Perdure()
    present, missing = peers(baseline)
    chosen = [work for work in works() if given.only.casefold() in work.title.casefold()]
    if not chosen:
        raise SystemExit(f"no work has {given.only!r} in its title: {'; '.join(work.title for work in works())}")
    _tell_who(console, present, missing)

    began = time.monotonic()
    with console.status("") as status:

        def tell(number: int, entry: Entry) -> None:
            stage = f"round {number} of {given.rounds}" if number else "warming up"
            status.update(f"{stage}: {entry.work.title}, {entry.peer.name}")

        samples = measure(chosen, present, rounds=given.rounds, directory=given.directory, tell=tell)

    _tell_results(console, summarize(entries(chosen, present), samples, baseline=baseline), baseline)
    console.print(f"Rounds: {given.rounds}, and one before to warm up. It took {time.monotonic() - began:.0f} s.")


def _tell_who(console: Console, present: Sequence[Peer], missing: Sequence[Missing]) -> None:
    console.print(f"{platform.system()} {platform.release()}, {platform.machine()}, {os.cpu_count()} CPUs")
    for peer in present:
        console.print(f"  {peer.name}: {peer.about}", highlight=False)
    for library in missing:
        told = f"  {library.name} is left out: {library.reason}; `make bench` installs it"
        console.print(told, style="yellow", highlight=False, soft_wrap=True)
    console.print()


def _tell_results(console: Console, lines: Sequence[Line], baseline: Peer) -> None:
    for drawn in tables(lines, baseline=baseline):
        console.print(drawn, "")
    console.print(_LEGEND.format(baseline=baseline.name), highlight=False)
    if statistics.median(line.spread for line in lines) > _SPREAD_OF_A_BUSY_MACHINE:
        console.print("The rounds differ widely: try again on an idle machine, or with more rounds.", style="yellow")


if __name__ == "__main__":
    main()
