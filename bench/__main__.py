"""The command: it measures, and prints a table."""

from __future__ import annotations

import os
import platform
import time
from typing import TYPE_CHECKING

from rich.console import Console

from bench.catalogue import peers, works
from bench.harness import entries, measure
from bench.options import options
from bench.peers.perdure import Perdure
from bench.summary import summarize
from bench.table import table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.catalogue import Missing
    from bench.harness import Entry
    from bench.peer import Peer

_READING = """\
[bold]median[/bold]: the time of one superstep, branch, resume or import. [bold]x {baseline}[/bold]: how many times as \
long it takes as {baseline}, compared within each round.
[bold]checkpoint[/bold]: how safe it is when the next superstep begins. Synced survives a power cut; written survives \
a killed process; a superstep behind means that the next one begins before it is written.
[bold]machine[/bold]: the floor. A bare asyncio task for each activation and one raw, synced write of 1 KB for each \
checkpoint.\
"""


def main() -> None:
    """Measure everything, then tell."""
    given = options()
    given.directory.mkdir(parents=True, exist_ok=True)
    console = Console()
    baseline = Perdure()
    present, missing = peers(baseline)
    chosen = [work for work in works() if given.only.casefold() in work.title.casefold()]
    _tell_who(console, present, missing)

    began = time.monotonic()
    with console.status("") as status:

        def tell(number: int, entry: Entry) -> None:
            stage = f"round {number} of {given.rounds}" if number else "warming up"
            status.update(f"{stage}: {entry.work.title}, {entry.peer.name}")

        samples = measure(chosen, present, rounds=given.rounds, directory=given.directory, tell=tell)

    lines = summarize(entries(chosen, present), samples, baseline=baseline)
    console.print(table(lines, baseline=baseline))
    console.print(_READING.format(baseline=baseline.name))
    console.print(f"{given.rounds} rounds after one to warm up, {time.monotonic() - began:.0f} s.")


def _tell_who(console: Console, present: Sequence[Peer], missing: Sequence[Missing]) -> None:
    console.print(f"{platform.system()} {platform.release()}, {platform.machine()}, {os.cpu_count()} CPUs")
    for peer in present:
        console.print(f"  {peer.name} {peer.version}", highlight=False)
    for library in missing:
        console.print(f"  {library.name} is left out: {library.reason}; `make bench` installs it", style="yellow")


main()
