"""Measure the cost of waiting runs: ten thousand that wait for an answer, ten thousand that sleep, on one host.

python -m bench.waiting --runs 10000 --postgres postgresql://user@host/database

Each measurement is made in a process of its own, whose memory is looked at. Nothing here asserts a time.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.table import Table

from perdure import (
    Executor,
    Host,
    PostgresCheckpointStorage,
    SqliteCheckpointStorage,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowRunState,
    handler,
    response_handler,
)
from perdure.storage import HostStore

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from perdure import HostedRun, WorkflowEvent
    from perdure.storage import StoreStorage

_DIRECTORY = Path("build") / "bench"
_NAME = "waiting"
_WARM_UP_RUNS = 200
_STARTED_AT_ONCE = 50
_LOOKS = 20
_ANSWERS = 20
_MB = 1024 * 1024
_LEGEND = """\
[bold]memory[/bold]: what the process of the host has resident before the runs start,
and [bold]then[/bold], when all of them rest; [bold]a run[/bold] is the difference, for each.
[bold]started[/bold]: until the last of them is durable and rests.
[bold]look[/bold]: one look for work in an empty store, and [bold]then[/bold] among all of them.
[bold]answer[/bold]: from an answer, given in the same process, to the end of its run.\
"""
_RESTING: Final = {WorkflowRunState.IDLE_WITH_PENDING_REQUESTS, WorkflowRunState.SLEEPING}


@dataclass(frozen=True, slots=True)
class Measured:
    """The measurements of one process."""

    bytes_before: int
    bytes_after: int
    start_seconds: float
    look_seconds_before: float
    look_seconds_after: float
    answer_seconds: float | None


class _Waiter(Executor):
    """Asks somebody, or sleeps until tomorrow."""

    def __init__(self, *, sleeps: bool) -> None:
        super().__init__("waiter")
        self._sleeps = sleeps

    @handler
    async def wait(self, number: int, ctx: WorkflowContext[Any, int]) -> None:
        if self._sleeps:
            await ctx.sleep(timedelta(days=1))
        else:
            await ctx.request_info(f"what of {number}?", int)

    @response_handler
    async def go_on(self, question: str, answer: int, ctx: WorkflowContext[Any, int]) -> None:
        del question
        await ctx.yield_output(answer)


def _built(*, sleeps: bool) -> Workflow:
    return WorkflowBuilder(name=_NAME, start_executor=_Waiter(sleeps=sleeps)).build()


class _Resting:
    """Counts the runs of a host that have come to rest."""

    def __init__(self) -> None:
        self._count = 0
        self._changed = asyncio.Event()

    def hear(self, run_id: str, event: WorkflowEvent) -> None:
        """Take an event of a run."""
        del run_id
        if event.type == "status" and event.state in _RESTING:
            self._count += 1
            self._changed.set()

    async def until(self, count: int) -> None:
        """Wait until there are so many."""
        while self._count < count:
            self._changed.clear()
            await self._changed.wait()


async def _measured(storage: StoreStorage, *, sleeps: bool, runs: int) -> Measured:
    """Start the runs on a host that serves, let all of them rest, and look at it then."""
    store, resting = storage.store, _Resting()
    assert isinstance(store, HostStore), "it is one that ships with perdure"
    host = Host(storage, on_event=resting.hear)
    host.register(lambda: _built(sleeps=sleeps))
    look_before = await _look(store)
    async with host:
        await _start(host, _WARM_UP_RUNS)
        await resting.until(_WARM_UP_RUNS)
        bytes_before = _resident_bytes()
        began = time.perf_counter()
        started = await _start(host, runs)
        await resting.until(_WARM_UP_RUNS + runs)
        start_seconds = time.perf_counter() - began
        # A handle is the caller's own. What the host holds is what is measured.
        some = started[:_ANSWERS]
        del started
        bytes_after = _resident_bytes()
        look_after = await _look(store)
        answer = None if sleeps else statistics.median([await _answered(run) for run in some])
    return Measured(bytes_before, bytes_after, start_seconds, look_before, look_after, answer)


async def _start(host: Host, runs: int) -> list[HostedRun]:
    """Start so many, some of them at the same time."""
    numbers = iter(range(runs))

    async def some() -> list[HostedRun]:
        return [await host.start(_NAME, number) for number in numbers]

    started = await asyncio.gather(*(some() for _ in range(_STARTED_AT_ONCE)))
    return [run for each in started for run in each]


async def _look(store: HostStore) -> float:
    """The seconds of one look for work."""
    at = datetime.now(UTC).isoformat()
    return await _timed(lambda: store.due(at=at, workflow_names=[_NAME], limit=100))


async def _timed(work: Callable[[], Coroutine[Any, Any, object]]) -> float:
    await work()
    took: list[float] = []
    for _ in range(_LOOKS):
        began = time.perf_counter()
        await work()
        took.append(time.perf_counter() - began)
    return statistics.median(took)


async def _answered(run: HostedRun) -> float:
    """The seconds from an answer to the end of its run."""
    (request,) = await run.requests()
    began = time.perf_counter()
    await run.respond({request.request_id: 7})
    result = await run.result()
    took = time.perf_counter() - began
    assert result.get_outputs() == [7], f"the run has not ended as it should: {result.get_outputs()}"
    return took


def _resident_bytes() -> int:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


async def _measure_here(target: str, schema: str, *, sleeps: bool, runs: int) -> Measured:
    if schema:
        storage: StoreStorage = PostgresCheckpointStorage(target, schema=schema)
    else:
        storage = SqliteCheckpointStorage(target)
    async with storage:
        return await _measured(storage, sleeps=sleeps, runs=runs)


def _measure_elsewhere(target: str, schema: str, *, sleeps: bool, runs: int) -> Measured:
    """Measure in a new process."""
    given = json.dumps({"target": target, "schema": schema, "sleeps": sleeps, "runs": runs})
    done = subprocess.run([sys.executable, "-m", "bench.waiting", "--here", given], stdout=subprocess.PIPE, check=True)  # noqa: S603
    return Measured(**json.loads(done.stdout))


def main() -> None:
    """Measure everything, then tell; or, in a process of its own, one thing."""
    parser = argparse.ArgumentParser(prog="python -m bench.waiting", description="What runs cost that wait.")
    parser.add_argument("--runs", type=int, default=10_000, help="how many wait (default: 10000)")
    parser.add_argument("--postgres", default=None, metavar="URL", help="a database; without it the one of the tests")
    parser.add_argument("--directory", type=Path, default=_DIRECTORY, help=f"where to write (default: {_DIRECTORY})")
    parser.add_argument("--here", default=None, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.here is not None:
        measured = asyncio.run(_measure_here(**json.loads(given.here)))
        sys.stdout.write(json.dumps(dataclasses.asdict(measured)))
        return
    given.directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=given.directory) as scratch:
        _tell(Console(), Path(scratch), given.postgres or _server_of_the_tests(), given.runs)


def _server_of_the_tests() -> str | None:
    """The address of a server that ends with this process, if what the tests need is installed."""
    with suppress(ImportError):
        from tests.postgres_server import binaries, shared_server  # noqa: PLC0415 - it may be missing

        return None if binaries() is None else shared_server().dsn
    return None


def _tell(console: Console, scratch: Path, dsn: str | None, runs: int) -> None:
    table = _headed(runs)
    for where in ("SQLite", "Postgres"):
        if where == "Postgres" and dsn is None:
            console.print("Postgres is left out: name a database with --postgres", style="yellow")
            continue
        for what in ("wait", "sleep"):
            target, schema = str(scratch / f"{what}.db"), ""
            if where == "Postgres" and dsn is not None:
                target, schema = dsn, f"bench_{os.getpid()}_{what}"
            with console.status(f"{where}: {runs:,} runs that {what}"):
                measured = _measure_elsewhere(target, schema, sleeps=what == "sleep", runs=runs)
            table.add_row(f"{where}, {what}", *_cells(measured, runs))
    console.print(table, "", _LEGEND, highlight=False)


def _headed(runs: int) -> Table:
    table = Table(title=f"{runs:,} runs at rest on one host", title_style="bold cyan", title_justify="left", box=None)
    table.add_column("", width=15)
    # The widths fit 80 characters.
    for heading, width in (("memory", 7), ("then", 7), ("a run", 7), ("started", 7), ("look", 7), ("then", 7)):
        table.add_column(heading, justify="right", width=width)
    table.add_column("answer", justify="right", width=7)
    return table


def _cells(measured: Measured, runs: int) -> tuple[str, ...]:
    answer = measured.answer_seconds
    return (
        f"{measured.bytes_before / _MB:.1f} MB",
        f"{measured.bytes_after / _MB:.1f} MB",
        f"{(measured.bytes_after - measured.bytes_before) / runs:,.0f} B",
        f"{measured.start_seconds:.0f} s",
        f"{measured.look_seconds_before * 1e3:.1f} ms",
        f"{measured.look_seconds_after * 1e3:.1f} ms",
        "" if answer is None else f"{answer * 1e3:.0f} ms",
    )


if __name__ == "__main__":
    main()
