"""A process that dies inside a superstep: finished work is not repeated."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests import warm

from perdure import (
    Executor,
    InMemoryCheckpointStorage,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowRunState,
    executor,
    handler,
)
from perdure.testing.clock import ManualClock
from perdure.testing.crash import CrashError, CrashPoint, crashing

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from subprocess import CompletedProcess

    from perdure import CheckpointStorage, Workflow

ROOT = Path(__file__).parents[2]


def life(kind: str, directory: Path, name: str) -> CompletedProcess[str]:
    return warm.run("-m", "tests.crash.fan", kind, str(directory), name, cwd=ROOT)


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


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_superstep_with_a_single_activation_writes_its_commit_and_nothing_else(*, is_streamed: bool) -> None:
    @executor(id="loop")
    async def loop(number: int, ctx: WorkflowContext[int, int]) -> None:
        if number:
            await ctx.send_message(number - 1)
        else:
            await ctx.yield_output(number)

    point = CrashPoint(-1, "before")
    storage = crashing(InMemoryCheckpointStorage(), point)
    workflow = WorkflowBuilder(name="w", start_executor=loop, checkpoint_storage=storage).add_edge(loop, loop).build()
    if is_streamed:
        async for _ in workflow.run(5, stream=True):
            pass
    else:
        await workflow.run(5)
    assert "record" not in point.calls
    assert point.calls.count("commit") == 7


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_siblings_that_end_together_are_committed_and_not_noted_before(*, is_streamed: bool) -> None:
    point = CrashPoint(-1, "before")
    workflow = fan(crashing(InMemoryCheckpointStorage(), point), slow={})
    if is_streamed:
        async for _ in workflow.run(1, stream=True):
            pass
    else:
        await workflow.run(1)
    assert "record" not in point.calls


async def test_siblings_that_have_ended_are_noted_together_when_another_one_goes_on() -> None:
    point, storage = CrashPoint(-1, "before"), InMemoryCheckpointStorage()
    noted: list[int] = []

    async def dies() -> None:
        await dies_after_a_while(point)
        noted.append(point.calls.count("record"))

    with pytest.raises(CrashError):
        await fan(crashing(storage, point), slow={"b9": dies}).run(1, run_id="r")
    assert noted == [1]
    result = await fan(storage, slow={}).run(run_id="r")
    assert result.get_outputs() == list(range(10))
    assert {event.executor_id for event in result if event.type == "executor_invoked"} == {"b9"}


async def test_a_reader_who_takes_the_time_does_not_make_siblings_run_again_that_end_meanwhile() -> None:
    point, storage = CrashPoint(-1, "before"), InMemoryCheckpointStorage()
    ended: list[str] = []

    async def late() -> None:
        await asyncio.sleep(0)
        ended.append("b9")

    async def read() -> None:
        async for event in fan(crashing(storage, point), slow={"b9": late}).run(1, run_id="r", stream=True):
            if event.type == "executor_invoked" and event.executor_id == "b0":
                await turns(until=lambda: "b9" in ended)
                await dies_after_a_while(point)

    with pytest.raises(CrashError):
        await read()
    result = await fan(storage, slow={}).run(run_id="r")
    assert result.get_outputs() == list(range(10))
    assert {event.executor_id for event in result if event.type == "executor_invoked"} == set()


def fan(storage: CheckpointStorage, *, slow: Mapping[str, Callable[[], Awaitable[None]]]) -> Workflow:
    """One executor and ten after it; some of them take their time."""

    @executor(id="begin")
    async def begin(number: int, ctx: WorkflowContext[int, int]) -> None:
        await ctx.send_message(number)

    def branch(number: int) -> Any:
        @executor(id=f"b{number}")
        async def do(_: int, ctx: WorkflowContext[int, int]) -> None:
            wait = slow.get(f"b{number}")
            if wait is not None:
                await wait()
            await ctx.yield_output(number)

        return do

    builder = WorkflowBuilder(name="w", start_executor=begin, checkpoint_storage=storage)
    return builder.add_fan_out_edges(begin, [branch(number) for number in range(10)]).build()


class Lone:
    """A workflow whose first executor is alone in its superstep, and counts how often it is run."""

    def __init__(self) -> None:
        self.runs = 0
        self.condition: Callable[[Any], Any] = bool
        """Condition of the edge to the next executor."""

    def built(self, storage: CheckpointStorage) -> Workflow:
        @executor(id="lone")
        async def lone(text: str, ctx: WorkflowContext[str, str]) -> None:
            self.runs += 1
            await ctx.send_message(text)
            await ctx.yield_output(f"{text} of lone")

        @executor(id="next")
        async def following(text: str, ctx: WorkflowContext[Any, str]) -> None:
            await ctx.yield_output(f"{text} of next")

        builder = WorkflowBuilder(name="w", start_executor=lone, checkpoint_storage=storage)
        return builder.add_edge(lone, following, condition=self.condition).build()

    async def is_not_run_again(self, storage: CheckpointStorage) -> bool:
        result = await self.built(storage).run(run_id="r")
        assert result.get_outputs() == ["x of lone", "x of next"]
        return self.runs == 1


async def turns(*, until: Callable[[], bool]) -> None:
    """Let the others go on until something holds."""
    for _ in range(1000):
        if until():
            return
        await asyncio.sleep(0)
    raise AssertionError("it does not come")


async def dies_after_a_while(point: CrashPoint) -> None:
    """Give the run time to record what has finished, and then let the process die."""
    await turns(until=lambda: "record" in point.calls)
    await asyncio.sleep(0)
    point.was_hit = True


@pytest.mark.parametrize("kind", ["executor_completed", "output"])
async def test_a_reader_who_takes_the_time_does_not_make_a_finished_executor_run_again(kind: str) -> None:
    lone, storage, point = Lone(), InMemoryCheckpointStorage(), CrashPoint(-1, "before")

    async def read() -> None:
        async for event in lone.built(crashing(storage, point)).run("x", run_id="r", stream=True):
            if event.type == kind:
                await dies_after_a_while(point)

    with pytest.raises(CrashError):
        await read()
    assert await lone.is_not_run_again(storage)


async def test_a_condition_that_takes_its_time_does_not_make_the_executor_before_it_run_again() -> None:
    lone, storage, point = Lone(), InMemoryCheckpointStorage(), CrashPoint(-1, "before")

    async def slow(_: Any) -> bool:
        await dies_after_a_while(point)
        return True

    lone.condition = slow
    with pytest.raises(CrashError):
        await lone.built(crashing(storage, point)).run("x", run_id="r")
    lone.condition = bool
    assert await lone.is_not_run_again(storage)


async def test_a_condition_that_raises_does_not_make_the_executor_before_it_run_again() -> None:
    lone, storage = Lone(), InMemoryCheckpointStorage()

    def broken(_: Any) -> bool:
        raise OSError("no answer")

    lone.condition = broken
    with pytest.raises(OSError, match="no answer"):
        await lone.built(storage).run("x", run_id="r")
    lone.condition = bool
    assert await lone.is_not_run_again(storage)


@pytest.mark.parametrize("kind", ["executor_completed", "output"])
async def test_a_stream_that_is_closed_does_not_make_a_finished_executor_run_again(kind: str) -> None:
    lone, storage = Lone(), InMemoryCheckpointStorage()
    stream = lone.built(storage).run("x", run_id="r", stream=True)
    async for event in stream:
        if event.type == kind:
            break
    await stream.aclose()
    assert await lone.is_not_run_again(storage)


class Sleepy(Executor):
    """Keeps what it has handled, in this order; it sleeps over the first."""

    def __init__(self) -> None:
        super().__init__(id="sleepy")
        self.handled: list[str] = []

    @handler
    async def handle(self, name: str, ctx: WorkflowContext[Any, str]) -> None:
        if name == "first":
            await ctx.sleep(timedelta(hours=1))
        self.handled.append(name)

    @handler
    async def say(self, _: int, ctx: WorkflowContext[Any, list[str]]) -> None:
        await ctx.yield_output(self.handled)

    def on_checkpoint_save(self) -> dict[str, Any]:
        return {"handled": self.handled}

    def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        self.handled = state["handled"]


async def test_an_executor_has_the_state_after_the_last_that_finished_and_not_after_the_last_in_the_plan() -> None:
    storage, clock = InMemoryCheckpointStorage(), ManualClock()

    async def life(*awaited: str) -> list[Any]:
        """One life; it fails as soon as the sleepy one has handled these, if there are any."""
        sleepy = Sleepy()

        @executor(id="begin")
        async def begin(_: str, ctx: WorkflowContext[str]) -> None:
            await ctx.send_message("first")
            await ctx.send_message("second")

        @executor(id="other")
        async def other(name: str, ctx: WorkflowContext[int]) -> None:
            if name == "first" and awaited:
                await turns(until=lambda: sleepy.handled == list(awaited))
                raise OSError("not yet")
            if name == "first":
                await ctx.send_message(1)

        builder = WorkflowBuilder(name="w", start_executor=begin, checkpoint_storage=storage, clock=clock)
        workflow = builder.add_fan_out_edges(begin, [sleepy, other]).add_edge(other, sleepy).build()
        return (await workflow.run("go", run_id="r")).get_outputs()

    with pytest.raises(OSError, match="not yet"):
        await life("second")
    clock.advance(timedelta(hours=2))
    with pytest.raises(OSError, match="not yet"):
        await life("second", "first")
    assert await life() == [["second", "first"]]


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
