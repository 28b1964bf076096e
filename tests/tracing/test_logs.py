"""Logs: lines about the life of runs, with fields for formatters."""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import Any

import pytest

from perdure import Host, Retry, SqliteCheckpointStorage, WorkflowBuilder, WorkflowContext, executor


@executor(id="work", retry=Retry(attempts=2, backoff=0))
async def work(order: str, ctx: WorkflowContext[None, str]) -> None:
    if order == "poisoned":
        raise ValueError("sku-17\nforged line \x1b[2J \u202e")
    if order == "asks":
        await ctx.request_info("may I?", bool)
    else:
        await ctx.yield_output(order)


@pytest.fixture(autouse=True)
def _capture(caplog: pytest.LogCaptureFixture) -> None:  # pyright: ignore[reportUnusedFunction]
    caplog.set_level(logging.INFO, logger="perdure")


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "perdure.runs"]


async def test_a_run_is_logged_from_start_to_end(caplog: pytest.LogCaptureFixture) -> None:
    await WorkflowBuilder(name="orders", start_executor=work).build().run("secret words", run_id="r1")
    assert lines(caplog) == ["run 'r1' started: workflow 'orders'", "run 'r1' finished after superstep 1"]
    last: Any = caplog.records[-1]
    assert (last.run_id, last.workflow, last.executor, last.superstep) == ("r1", "orders", None, 1)
    assert "secret words" not in caplog.text


async def test_a_waiting_run_names_who_asks(caplog: pytest.LogCaptureFixture) -> None:
    await WorkflowBuilder(name="orders", start_executor=work).build().run("asks", run_id="r1")
    assert lines(caplog)[-1] == "run 'r1' waits for 1 requests of work"


async def test_warnings_and_a_failure_are_one_line_each(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ValueError, match="sku-17"):
        await WorkflowBuilder(name="orders", start_executor=work).build().run("poisoned", run_id="r1")
    warning, failure = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert warning.getMessage().startswith("run 'r1' warns: executor 'work': attempt 1 of 2 failed: ValueError")
    assert failure.getMessage().startswith("run 'r1' failed in executor 'work': ValueError")
    assert (warning.getMessage() + failure.getMessage()).isprintable()
    fields: Any = failure
    assert (fields.executor, fields.superstep) == ("work", 1)


async def test_a_takeover_names_the_former_owner(caplog: pytest.LogCaptureFixture, tmp_path: Any) -> None:
    # A process that dies with the lease: it exits inside its handler.
    program = """
import asyncio, os, sys
from perdure import SqliteCheckpointStorage, WorkflowBuilder, WorkflowContext, executor

@executor(id="work")
async def work(order: str, ctx: WorkflowContext[None, str]) -> None:
    os._exit(9)

storage = SqliteCheckpointStorage(sys.argv[1])
workflow = WorkflowBuilder(name="orders", start_executor=work).build()
asyncio.run(workflow.run("tea", run_id="r1", checkpoint_storage=storage))
"""
    path = str(tmp_path / "runs.db")
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, path)
    assert await process.wait() == 9
    workflow = WorkflowBuilder(name="orders", start_executor=work).build()
    await workflow.run(run_id="r1", checkpoint_storage=SqliteCheckpointStorage(path))
    assert lines(caplog)[0].startswith(f"run 'r1' was taken over from process {process.pid} on ")


async def test_a_host_logs_when_it_serves_and_drains(caplog: pytest.LogCaptureFixture, tmp_path: Any) -> None:
    host = Host(SqliteCheckpointStorage(tmp_path / "runs.db"))
    host.register(lambda: WorkflowBuilder(name="orders", start_executor=work).build())
    run = await host.start("orders", "poisoned", run_id="r1")
    async with host:
        with pytest.raises(Exception, match="sku-17"):
            await run.result()
    assert "the host serves workflows 'orders'" in caplog.text
    assert caplog.records[-1].getMessage().startswith("the host has drained")
    assert sum("failed in executor 'work'" in line for line in lines(caplog)) == 1
