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
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.panel import Panel
from rich.table import Table

from perdure import Executor, SqliteCheckpointStorage, Workflow, WorkflowBuilder, WorkflowContext, handler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CHAPTERS = ["the question", "what is known", "the method", "the findings", "what follows", "the summary"]
KILL_WHILE_WRITING = 3
SECONDS_PER_CHAPTER = 0.4


@dataclass
class Draft:
    """The report so far, and what is left to write."""

    left: list[str]
    written: list[str] = field(default_factory=list[str])


class Planner(Executor):
    """Decides on the chapters."""

    @handler
    async def plan(self, title: str, ctx: WorkflowContext[Draft]) -> None:
        ctx.set_state("title", title)
        await ctx.send_message(Draft(left=list(CHAPTERS)))


class Writer(Executor):
    """Writes one chapter in each superstep and sends the draft to itself, until nothing is left."""

    def __init__(self, tell: Callable[[str, str], None], seconds: float = 0.0) -> None:
        super().__init__(id="writer")
        self._tell = tell
        self._seconds = seconds
        self._words = 0

    @handler
    async def write(self, draft: Draft, ctx: WorkflowContext[Draft, str]) -> None:
        chapter = draft.left.pop(0)
        self._tell("begun", chapter)
        await asyncio.sleep(self._seconds)  # stands for a model that thinks, and is paid for it
        self._words += len(chapter.split())
        draft.written.append(f"{len(draft.written) + 1}. On {chapter}")
        self._tell("written", chapter)
        if draft.left:
            await ctx.send_message(draft)
        else:
            text = "\n".join([ctx.get_state("title"), *draft.written, f"({self._words} words of headings)"])
            await ctx.yield_output(text)

    async def on_checkpoint_save(self) -> dict[str, Any]:
        return {"words": self._words}

    async def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        self._words = state["words"]


def build(writer: Writer) -> Workflow:
    """The workflow: a planner, and a writer with an edge to itself."""
    planner = Planner(id="planner")
    return WorkflowBuilder(start_executor=planner, name="report").add_chain([planner, writer, writer]).build()


async def work(database: str) -> None:
    """What the worker process does, the first time and every time."""
    workflow = build(Writer(tell, SECONDS_PER_CHAPTER))
    result = await workflow.run(
        "A report on lasting", run_id="report-1", checkpoint_storage=SqliteCheckpointStorage(database)
    )
    tell("result", result.get_outputs()[0])


def tell(event: str, text: str) -> None:
    """Tell the demo what this process really does, outside of any checkpoint."""
    print(json.dumps({"event": event, "text": text, "pid": os.getpid()}), flush=True)


def silent(event: str, text: str) -> None:
    """Tell nobody."""


async def undisturbed() -> str:
    """The same workflow in one go, for comparison."""
    return (await build(Writer(silent)).run("A report on lasting")).get_outputs()[0]


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
    """Start a worker and kill it while it writes a chapter; what it told."""
    told: list[dict[str, Any]] = []
    with worker(database) as process:
        for entry in told_by(process):
            told.append(entry)
            if sum(entry["event"] == "begun" for entry in told) == KILL_WHILE_WRITING:
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
    for chapter in CHAPTERS:
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
            "A workflow writes a report, one chapter in each superstep.\n"
            "After every superstep the run is checkpointed, in one SQLite file.",
            title="perdure",
        )
    )
    with tempfile.TemporaryDirectory() as directory:
        database = Path(directory, "runs.db")
        first = until_killed(database)
        console.print(f"[red]SIGKILL[/] to process {first[0]['pid']} in the middle of chapter {KILL_WHILE_WRITING}.")
        second = to_the_end(database)
    console.print("Then the very same command again: a new process finds the run by its id and goes on at once.\n")
    console.print(timeline(first, second))
    result, expected = second[-1]["text"], asyncio.run(undisturbed())
    if result != expected:
        sys.exit(f"the resumed run ended with another result:\n{result}\nexpected:\n{expected}")
    console.print(Panel(result, title="the result", subtitle="[green]the same as of a run that nobody disturbed[/]"))
    console.print("No finished chapter was written again. The one in flight had no checkpoint yet, so it ran anew.")


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        asyncio.run(work(sys.argv[2]))
    else:
        main()
