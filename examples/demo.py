"""A run that is killed half-way with SIGKILL and goes on in a new process, from one SQLite file.

    python examples/demo.py

No service, no API key. The program starts itself as a worker, kills the worker, and starts it again with the very same
command. The worker asks for a run by its id: the first time that starts it, the second time it goes on.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.panel import Panel
from rich.table import Table

from perdure import Executor, SqliteCheckpointStorage, Workflow, WorkflowBuilder, WorkflowContext, executor, handler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SECONDS_BY_CHAPTER = {
    "the question": 0.2,
    "what is known": 0.3,
    "the method": 0.4,
    "the findings": 1.5,
    "what follows": 1.6,
    "the summary": 1.7,
}
WRITTEN_BEFORE_THE_KILL = 3
TICKS_BEFORE_THE_KILL = 6
TICK_SECONDS = 0.1


@dataclass
class Chapter:
    """What a writer hands in."""

    number: int
    text: str


class Writer(Executor):
    """Writes one chapter. It takes its time, as a model would that is paid for every call."""

    def __init__(self, number: int, subject: str, seconds: float, tell: Callable[[str, str], None]) -> None:
        super().__init__(id=f"writer-{number}")
        self._number = number
        self._subject = subject
        self._seconds = seconds
        self._tell = tell

    @handler
    async def write(self, title: str, ctx: WorkflowContext[Chapter]) -> None:
        for _ in range(round(self._seconds / TICK_SECONDS)):
            self._tell("writing", self._subject)
            await asyncio.sleep(TICK_SECONDS)
        self._tell("written", self._subject)
        await ctx.send_message(Chapter(self._number, f"{self._number}. {title}: {self._subject}"))


@executor(id="editor")
async def editor(topic: str, ctx: WorkflowContext[str]) -> None:
    """Give every writer the title."""
    await ctx.send_message(f"On {topic}")


@executor(id="printer")
async def printer(chapters: list[Chapter], ctx: WorkflowContext[Any, str]) -> None:
    """Put the chapters together, once all are in."""
    await ctx.yield_output("\n".join(chapter.text for chapter in chapters))


def build(tell: Callable[[str, str], None], pace: float = 1.0) -> Workflow:
    """The workflow: an editor, six writers side by side, a printer."""
    writers = [
        Writer(number, subject, seconds * pace, tell)
        for number, (subject, seconds) in enumerate(SECONDS_BY_CHAPTER.items(), start=1)
    ]
    builder = WorkflowBuilder(name="report", start_executor=editor)
    return builder.add_fan_out_edges(editor, writers).add_fan_in_edges(writers, printer).build()


async def work(database: str) -> None:
    """What the worker process does, the first time and every time."""
    storage = SqliteCheckpointStorage(database)
    result = await build(tell).run("lasting", run_id="report-1", checkpoint_storage=storage)
    tell("result", result.get_outputs()[0])


def tell(event: str, text: str) -> None:
    """Tell the demo what this process really does, outside of any checkpoint."""
    print(json.dumps({"event": event, "text": text, "pid": os.getpid()}), flush=True)


def silent(event: str, text: str) -> None:
    """Tell nobody."""


async def undisturbed() -> str:
    """The same workflow in one go, for comparison."""
    return (await build(silent, pace=0).run("lasting")).get_outputs()[0]


def worker(database: Path) -> subprocess.Popen[str]:
    """Start a worker: the same command each time."""
    command = [sys.executable, __file__, "worker", str(database)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: S603 - this very file


def told_by(process: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    """What a worker tells, as it tells it."""
    assert process.stdout is not None
    for line in process.stdout:
        yield json.loads(line)


def until_killed(database: Path) -> list[dict[str, Any]]:
    """Start a worker and kill it when some writers are done and the others still write; what it told."""
    told: list[dict[str, Any]] = []
    ticks = 0
    with worker(database) as process:
        for entry in told_by(process):
            told.append(entry)
            if sum(each["event"] == "written" for each in told) >= WRITTEN_BEFORE_THE_KILL:
                ticks += 1
            if ticks > TICKS_BEFORE_THE_KILL:
                process.send_signal(signal.SIGKILL)
                break
    return told


def to_the_end(database: Path) -> list[dict[str, Any]]:
    """Start a worker and let it be; what it told."""
    with worker(database) as process:
        return list(told_by(process))


def timeline(first: list[dict[str, Any]], second: list[dict[str, Any]]) -> Table:
    """Who wrote which chapter, as the processes themselves told it."""
    table = Table("chapter", f"process {first[0]['pid']}", f"process {second[0]['pid']}")
    for chapter in SECONDS_BY_CHAPTER:
        cells: list[str] = []
        for told in (first, second):
            events = [entry["event"] for entry in told if entry["text"] == chapter]
            cells.append("[green]written[/]" if "written" in events else "[red]killed here[/]" if events else "")
        table.add_row(chapter, *cells)
    return table


def main() -> None:
    """Kill, resume, compare, and show it."""
    console = Console()
    console.print(
        Panel(
            "Six writers work side by side on a report: one superstep of a workflow.\n"
            "What a writer has finished is noted at once, in one SQLite file.",
            title="perdure",
        )
    )
    with tempfile.TemporaryDirectory() as directory:
        database = Path(directory, "runs.db")
        first = until_killed(database)
        console.print(f"[red]SIGKILL[/] to process {first[0]['pid']}: three chapters are written, three are half-way.")
        second = to_the_end(database)
    console.print("Then the very same command again: a new process finds the run by its id and goes on at once.\n")
    console.print(timeline(first, second))
    result, expected = second[-1]["text"], asyncio.run(undisturbed())
    if result != expected:
        sys.exit(f"the resumed run ended with another result:\n{result}\nexpected:\n{expected}")
    console.print(Panel(result, title="the result", subtitle="[green]the same as of a run that nobody disturbed[/]"))
    console.print("No finished chapter was written again, though the superstep had no checkpoint yet.")


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        asyncio.run(work(sys.argv[2]))
    else:
        main()
