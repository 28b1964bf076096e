"""A process that dies inside a superstep: what had finished is not done again."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from perdure import (
    Executor,
    InMemoryCheckpointStorage,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowRunState,
    executor,
    handler,
)
from perdure.testing.crash import CrashPoint, crashing

ROOT = Path(__file__).parents[2]


def life(kind: str, directory: Path, name: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.crash.fan", kind, str(directory), name]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def effects(directory: Path) -> Counter[str]:
    return Counter((directory / "effects").read_text(encoding="utf-8").splitlines())


@pytest.mark.parametrize("kind", ["file", "sqlite"])
def test_nine_of_ten_that_had_finished_are_not_run_again(kind: str, tmp_path: Path) -> None:
    first = life(kind, tmp_path, "fan")
    assert first.returncode == -signal.SIGKILL
    assert effects(tmp_path) == Counter({f"branch-{number}": 1 for number in range(9)})
    second = life(kind, tmp_path, "fan")
    assert second.returncode == 0, second.stderr
    assert effects(tmp_path) == Counter({f"branch-{number}": 1 for number in range(10)})
    outputs = [*(f"branch-{n} made {n}" for n in range(10)), f"sum 45, calls {[1] * 10}"]
    assert second.stdout == repr(outputs)
    third = life(kind, tmp_path, "fan")
    assert third.stdout == repr(outputs)


@pytest.mark.parametrize("kind", ["file", "sqlite"])
def test_a_crash_inside_a_sub_workflow_resumes_inside_of_it(kind: str, tmp_path: Path) -> None:
    first = life(kind, tmp_path, "stairs")
    assert first.returncode == -signal.SIGKILL
    assert effects(tmp_path) == Counter({"step 0": 1, "step 1": 1, "step 2": 1})
    second = life(kind, tmp_path, "stairs")
    assert second.returncode == 0, second.stderr
    assert effects(tmp_path) == Counter({f"step {number}": 1 for number in range(5)})
    assert second.stdout == repr([f"climbed {list(range(number + 1))}" for number in range(5)])


class Counting(Executor):
    """Counts its calls, in an attribute that its hooks save."""

    def __init__(self) -> None:
        super().__init__(id="counting")
        self.calls = 0

    @handler
    async def count(self, number: int, ctx: WorkflowContext[Any, int]) -> None:
        self.calls += number
        await ctx.yield_output(self.calls)

    def on_checkpoint_save(self) -> dict[str, Any]:
        return {"calls": self.calls}

    def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        self.calls = state["calls"]


async def test_a_sibling_of_a_failed_executor_that_had_finished_is_not_run_again_when_the_cause_is_mended() -> None:
    counting, is_mended = Counting(), False
    finished = 0

    @executor(id="begin")
    async def begin(number: int, ctx: WorkflowContext[int]) -> None:
        await ctx.send_message(number)

    @executor(id="failing")
    async def failing(_: int, ctx: WorkflowContext[Any, str]) -> None:
        nonlocal finished
        finished = counting.calls
        if not is_mended:
            raise OSError("not yet")
        await ctx.yield_output("mended")

    storage = InMemoryCheckpointStorage()
    workflow = (
        WorkflowBuilder(name="w", start_executor=begin, checkpoint_storage=storage)
        .add_fan_out_edges(begin, [counting, failing])
        .build()
    )
    with pytest.raises(OSError, match="not yet"):
        await workflow.run(1)
    assert finished == 1
    assert counting.calls == 0, "put back to the state before the failed superstep"
    is_mended = True
    result = await workflow.run(run_id=workflow.run_id)
    assert sorted(result.get_outputs(), key=str) == [1, "mended"]
    assert [event.executor_id for event in result if event.type == "executor_bypassed"] == ["counting"]
    assert [event.executor_id for event in result if event.type == "executor_invoked"] == ["failing"]
    assert counting.calls == 1
    assert result.get_final_state() is WorkflowRunState.IDLE


async def test_a_superstep_with_a_single_activation_writes_its_commit_and_nothing_else() -> None:
    @executor(id="loop")
    async def loop(number: int, ctx: WorkflowContext[int, int]) -> None:
        if number:
            await ctx.send_message(number - 1)
        else:
            await ctx.yield_output(number)

    point = CrashPoint(-1, "before")
    storage = crashing(InMemoryCheckpointStorage(), point)
    workflow = WorkflowBuilder(name="w", start_executor=loop, checkpoint_storage=storage).add_edge(loop, loop).build()
    await workflow.run(5)
    assert "record" not in point.calls
    assert point.calls.count("commit") == 7


async def test_records_are_void_once_the_superstep_is_committed() -> None:
    storage = InMemoryCheckpointStorage()

    @executor(id="a")
    async def a(number: int, ctx: WorkflowContext[int]) -> None:
        await ctx.send_message(number)

    @executor(id="b")
    async def b(number: int, ctx: WorkflowContext[Any, int]) -> None:
        await ctx.yield_output(number)

    @executor(id="c")
    async def c(number: int, ctx: WorkflowContext[Any, int]) -> None:
        await ctx.yield_output(-number)

    workflow = (
        WorkflowBuilder(name="w", start_executor=a, checkpoint_storage=storage).add_fan_out_edges(a, [b, c]).build()
    )
    await workflow.run(3)
    assert workflow.run_id is not None
    assert list(await storage.store.journal(workflow.run_id)) == []
