"""A host in a process of its own. Run as a script: the directory of the test, and the lease in seconds.

It serves four workflows. `gated` passes the gate in each of its two executors, `blocked` does so once and holds up the
event loop, `deadly` kills its process if the message says so, and `naps` sleeps for a lease, four times.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.hosting.flows import row
from tests.hosting.porter import pass_gate, pass_gate_blocking

from perdure import Host, SqliteCheckpointStorage

if TYPE_CHECKING:
    from tests.workflow.nodes import Context, Doing

POISON = "poison"
LEASE_SECONDS = 0.5


def gated(gate: Path, where: str) -> Doing:
    async def do(message: Any, ctx: Context) -> None:
        await pass_gate(gate, (os.getpid(), where, message))
        await ctx.send_message(message)
        await ctx.yield_output(where)

    return do


def blocked(gate: Path) -> Doing:
    async def do(message: Any, ctx: Context) -> None:
        pass_gate_blocking(gate, (os.getpid(), "blocked", message))
        await ctx.yield_output(message)

    return do


def deadly(directory: Path) -> Doing:
    async def do(message: Any, ctx: Context) -> None:
        with (directory / "effects").open("a", encoding="utf-8") as file:
            file.write(f"{message}\n")
        if message == POISON:
            os.kill(os.getpid(), signal.SIGKILL)
        await ctx.yield_output(message)

    return do


async def nap(message: Any, ctx: Context) -> None:
    await ctx.sleep(timedelta(seconds=LEASE_SECONDS))
    await ctx.send_message(message)


def host_at(directory: Path, lease_seconds: float, **options: Any) -> Host:
    """The host of a process."""
    storage = SqliteCheckpointStorage(directory / "runs.db", lease_seconds=lease_seconds)
    host = Host(storage, **options)
    gate = directory / "gate"
    host.register(row("gated", gated(gate, "first"), gated(gate, "second")))
    host.register(row("blocked", blocked(gate)))
    host.register(row("deadly", deadly(directory)))
    host.register(row("naps", nap, nap, nap, nap))
    return host


if __name__ == "__main__":
    asyncio.run(host_at(Path(sys.argv[1]), float(sys.argv[2]), max_attempts=3, drain_seconds=60).serve())
