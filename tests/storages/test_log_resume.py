"""A log in the state of a run survives `kill -9`, on every store that lasts."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import TYPE_CHECKING

import pytest

from perdure import Executor, Log, Workflow, WorkflowBuilder, WorkflowContext, handler, open_storage

if TYPE_CHECKING:
    from pathlib import Path

LAST = 60
KILLED_AT = 41


class Writer(Executor):
    """Writes a line into the log with every message, and may be killed while it does."""

    def __init__(self, killed_at: int) -> None:
        super().__init__(id="writer")
        self._killed_at = killed_at

    @handler
    async def write(self, number: int, ctx: WorkflowContext[int, list[str]]) -> None:
        log: Log[dict[str, str]] = ctx.get_state("log") or Log()
        log.append({"line": f"{number} " + "x" * 700})
        ctx.set_state("log", log)
        if number == self._killed_at:
            os.kill(os.getpid(), signal.SIGKILL)
        if number < LAST:
            await ctx.send_message(number + 1)
        else:
            await ctx.yield_output([each["line"].partition(" ")[0] for each in log])


def workflow(url: str, *, killed_at: int = -1) -> Workflow:
    writer = Writer(killed_at)
    builder = WorkflowBuilder(
        name="log",
        start_executor=writer,
        checkpoint_storage=open_storage(url),
        max_iterations=LAST + 1,
        output_from=[writer],
    )
    return builder.add_edge(writer, writer).build()


@pytest.mark.parametrize("scheme", ["sqlite", "file"])
async def test_a_log_goes_on_where_it_was_in_another_process(scheme: str, tmp_path: Path) -> None:
    url = f"{scheme}:///{tmp_path}/runs"
    program = (
        "import asyncio, sys\n"
        f"sys.path.insert(0, {str(__file__).rpartition('/')[0]!r})\n"
        "from test_log_resume import KILLED_AT, workflow\n"
        f"asyncio.run(workflow({url!r}, killed_at=KILLED_AT).run(1, run_id='r'))\n"
    )
    died = await asyncio.create_subprocess_exec(sys.executable, "-c", program)
    assert await died.wait() == -signal.SIGKILL
    result = await workflow(url).run(run_id="r")
    assert result.get_outputs() == [[str(number) for number in range(1, LAST + 1)]]
