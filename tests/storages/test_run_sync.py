"""The blocking entry."""

from __future__ import annotations

import asyncio
import gc
import signal
import subprocess
import sys
import warnings
from typing import TYPE_CHECKING, Any, cast

import pytest
from tests.storages.errands import Errands
from tests.storages.kinds import KINDS, opened

from perdure import WorkflowBuilder, WorkflowContext, executor, run_sync

if TYPE_CHECKING:
    from pathlib import Path


@executor(id="upper")
async def upper(text: str, ctx: WorkflowContext[None, str]) -> None:
    await ctx.yield_output(text.upper())


def test_a_workflow_is_run_to_its_end() -> None:
    workflow = WorkflowBuilder(start_executor=upper).build()
    assert run_sync(workflow, "hello").get_outputs() == ["HELLO"]
    assert run_sync(workflow, "again", stream=False).get_outputs() == ["AGAIN"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_storage_serves_one_call_after_the_other(kind: str, tmp_path: Path) -> None:
    storage, errands = opened(kind, tmp_path), Errands(tmp_path)
    with pytest.raises(OSError, match="the way is closed"):
        run_sync(errands.build(storage), "milk", run_id="errand")
    errands.open_the_way()
    workflow = errands.build()
    result = run_sync(workflow, run_id="errand", checkpoint_storage=storage)
    assert result.get_outputs() == ["left milk gone", "right milk gone"]
    assert errands.deeds() == ["left milk", "right milk"]
    assert run_sync(storage.list_checkpoint_ids()) == ["errand@0", "errand@1", "errand@2"]
    run_sync(storage.close())


def test_anything_else_is_awaited() -> None:
    workflow = WorkflowBuilder(start_executor=upper).build()
    assert run_sync(workflow.run("coroutine")).get_outputs() == ["COROUTINE"]
    assert run_sync(asyncio.sleep(0, "slept")) == "slept"
    assert run_sync(workflow.start("handle").result()).get_outputs() == ["HANDLE"]


def test_its_error_is_the_workflows() -> None:
    async def fail() -> None:
        raise KeyError("lost")

    with pytest.raises(KeyError, match="lost"):
        run_sync(fail())


async def test_in_a_running_loop_it_says_what_to_write_instead() -> None:
    workflow = WorkflowBuilder(start_executor=upper).build()
    with pytest.raises(RuntimeError, match=r"write `await workflow\.run\(\.\.\.\)` instead"):
        run_sync(workflow, "hello")
    assert (await workflow.run("hello")).get_outputs() == ["HELLO"]


async def test_in_a_running_loop_a_coroutine_is_closed() -> None:
    workflow = WorkflowBuilder(start_executor=upper).build()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for work in (workflow.run("hello"), asyncio.sleep(0)):
            with pytest.raises(RuntimeError, match=r"write `await \.\.\.` instead"):
                run_sync(cast("Any", work))
            del work
        gc.collect()
    assert told == []


def test_stream_can_not_be_awaited() -> None:
    workflow = WorkflowBuilder(start_executor=upper).build()
    with pytest.raises(TypeError, match="leave stream=True out"):
        run_sync(workflow, "hello", stream=True)


def test_options_go_with_a_workflow_only() -> None:
    work = asyncio.sleep(0)
    with pytest.raises(TypeError, match="belong to a workflow"):
        run_sync(cast("Any", work), "hello")


PROGRAM = """
import asyncio
import signal
from perdure import WorkflowBuilder, WorkflowContext, executor, open_storage, run_sync

@executor(id="waits")
async def waits(text: str, ctx: WorkflowContext[None, str]) -> None:
    print("inside", flush=True)
    try:
        await asyncio.Event().wait()
    finally:
        print("left", flush=True)

# What a shell has started in the background may have been told to ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)

workflow = WorkflowBuilder(name="waits", start_executor=waits, checkpoint_storage="sqlite:///runs.db").build()
try:
    run_sync(workflow, "x", run_id="run")
except KeyboardInterrupt:
    record = run_sync(open_storage("sqlite:///runs.db").store.run("run"))
    print("interrupted", record.head, record.owner)
"""


def test_an_interrupt_leaves_the_run_at_its_checkpoint(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-W", "error", "-c", PROGRAM],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "inside\n"
        program.send_signal(signal.SIGINT)
        told, complaints = program.communicate(timeout=60)
    assert complaints == ""
    assert told.splitlines() == ["left", "interrupted run@0 None"]
    assert program.returncode == 0
