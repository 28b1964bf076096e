"""Parallel and sequential activations, and an engine that never polls."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tests.workflow.nodes import Context, MaybeStorage, ending, live_and_checkpointed, node, passing, sending

from perdure import FunctionExecutor, InMemoryCheckpointStorage, Workflow, WorkflowBuilder, WorkflowExecutor, executor


class Meter:
    """Executors that note how many of them run at once; each lets the others go first for a few turns of the loop."""

    def __init__(self) -> None:
        self.running = 0
        self.most = 0
        self.order: list[str] = []

    def node(self, name: str, *, max_concurrency: int = 1) -> FunctionExecutor:
        async def do(message: Any, ctx: Context) -> None:
            self.running += 1
            self.most = max(self.most, self.running)
            self.order.append(f"{name}{message}+")
            for _ in range(5):
                await asyncio.sleep(0)
            self.order.append(f"{name}{message}-")
            self.running -= 1
            await ctx.yield_output(f"{name}{message}")

        return node(name, do, max_concurrency=max_concurrency)


async def test_different_executors_of_a_superstep_run_side_by_side() -> None:
    barrier = asyncio.Barrier(3)

    async def meet(_: Any, __: Context) -> None:
        await barrier.wait()

    start, targets = passing("start"), [node(name, meet) for name in "abc"]
    await WorkflowBuilder(start_executor=start).add_fan_out_edges(start, targets).build().run(1)


@live_and_checkpointed
async def test_one_executor_handles_one_message_at_a_time_in_order(storage: MaybeStorage) -> None:
    meter, start = Meter(), sending("start", 1, 2, 3)
    target = meter.node("t")
    workflow = WorkflowBuilder(start_executor=start, checkpoint_storage=storage()).add_edge(start, target).build()
    await workflow.run(0)
    assert meter.order == ["t1+", "t1-", "t2+", "t2-", "t3+", "t3-"]


async def test_messages_of_several_sources_reach_one_executor_in_the_order_of_the_plan() -> None:
    start, fast, kept = passing("start"), sending("fast", "f"), list[Any]()

    async def late(_: Any, ctx: Context) -> None:
        for _ in range(10):
            await asyncio.sleep(0)
        await ctx.send_message("s")

    async def keep(message: Any, ctx: Context) -> None:
        kept.append((message, ctx.get_source_executor_id()))

    slow, end = node("slow", late), node("end", keep)
    workflow = (
        WorkflowBuilder(start_executor=start)
        .add_fan_out_edges(start, [slow, fast])
        .add_edge(fast, end)
        .add_edge(slow, end)
        .build()
    )
    await workflow.run(0)
    assert kept == [("s", "slow"), ("f", "fast")]


@pytest.mark.parametrize("limit", [1, 2, 3])
async def test_an_executor_may_be_allowed_several_messages_at_once(limit: int) -> None:
    meter, start = Meter(), sending("start", *range(7))
    target = meter.node("t", max_concurrency=limit)
    result = await WorkflowBuilder(start_executor=start).add_edge(start, target).build().run(0)
    assert meter.most == limit
    assert sorted(result.get_outputs()) == [f"t{n}" for n in range(7)]


async def test_with_several_at_once_what_was_sent_is_still_in_the_order_of_the_messages() -> None:
    done: dict[int, asyncio.Event] = {n: asyncio.Event() for n in range(3)}
    done[3] = asyncio.Event()
    done[3].set()
    kept: list[Any] = []

    async def backwards(n: int, ctx: Context) -> None:
        await done[n + 1].wait()
        await ctx.send_message(n)
        done[n].set()

    async def keep(n: int, _: Context) -> None:
        kept.append(n)

    start = sending("start", 0, 1, 2)
    target = node("t", backwards, max_concurrency=3)
    end = node("end", keep)
    workflow = WorkflowBuilder(start_executor=start).add_edge(start, target).add_edge(target, end).build()
    await workflow.run(0)
    assert kept == [0, 1, 2]


@live_and_checkpointed
async def test_messages_handled_at_once_do_not_see_each_others_writes(storage: MaybeStorage) -> None:
    seen: dict[int, Any] = {}
    first_done = asyncio.Event()

    async def write(n: int, ctx: Context) -> None:
        if n == 1:
            await first_done.wait()
        seen[n] = ctx.get_state("k")
        ctx.set_state("k", n)
        await ctx.send_message(n)
        if n == 0:
            asyncio.get_running_loop().call_soon(first_done.set)

    async def look(_: Any, ctx: Context) -> None:
        await ctx.yield_output(ctx.get_state("k"))

    start, target, end = sending("start", 0, 1), node("t", write, max_concurrency=2), node("end", look)
    workflow = (
        WorkflowBuilder(start_executor=start, checkpoint_storage=storage())
        .add_edge(start, target)
        .add_edge(target, end)
        .build()
    )
    assert (await workflow.run(0)).get_outputs() == [1, 1]
    assert seen == {0: None, 1: None}


@pytest.mark.parametrize("limit", [1, 2])
async def test_a_workflow_may_limit_how_many_executors_run_at_once(limit: int) -> None:
    meter, start = Meter(), passing("start")
    targets = [meter.node(name) for name in "abcd"]
    workflow = WorkflowBuilder(start_executor=start, max_concurrency=limit).add_fan_out_edges(start, targets).build()
    result = await workflow.run(1)
    assert meter.most == limit
    assert len(result.get_outputs()) == 4


async def test_both_limits_hold_together() -> None:
    meter, start = Meter(), sending("start", 1, 2, 3, 4)
    wide, other = meter.node("w", max_concurrency=4), meter.node("o")
    workflow = WorkflowBuilder(start_executor=start, max_concurrency=3).add_fan_out_edges(start, [wide, other]).build()
    await workflow.run(0)
    assert meter.most == 3


async def test_a_failure_among_several_at_once_stops_the_others() -> None:
    cancelled: list[int] = []
    begun = asyncio.Barrier(3)

    async def work(n: int, _: Context) -> None:
        await begun.wait()
        if n == 1:
            raise ValueError("one")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(n)
            raise

    start, target = sending("start", 0, 1, 2), node("t", work, max_concurrency=3)
    workflow = WorkflowBuilder(start_executor=start).add_edge(start, target).build()
    with pytest.raises(ValueError, match="one"):
        await workflow.run(0)
    assert sorted(cancelled) == [0, 2]


def test_a_function_may_be_given_its_limit_by_the_decorator() -> None:
    @executor(max_concurrency=4)
    async def many(message: int) -> None: ...

    assert many.id == "many"


def test_a_sub_workflow_takes_one_message_at_a_time() -> None:
    inner = WorkflowBuilder(start_executor=ending("e")).build()
    with pytest.raises(ValueError, match="max_concurrency must be 1"):
        WorkflowExecutor(inner, "sub", max_concurrency=2)


class TimerWatch(asyncio.SelectorEventLoop):
    """An event loop that notes every timer that is set."""

    def __init__(self) -> None:
        super().__init__()
        self.timers: list[str] = []

    def call_at(
        self, when: float, callback: Callable[..., Any], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        self.timers.append(repr(callback))
        return super().call_at(when, callback, *args, context=context)


async def counted(n: int, ctx: Context) -> None:
    await asyncio.sleep(0)
    if n < 20:
        await ctx.send_message(n + 1)
    else:
        await ctx.yield_output(n)


def looping(**options: Any) -> Workflow:
    a, b = node("a", counted), node("b", counted)
    return WorkflowBuilder(start_executor=a, **options).add_edge(a, b).add_edge(b, a).build()


def nested() -> Workflow:
    sub = WorkflowExecutor(looping(), "sub")
    end = ending("end")
    return WorkflowBuilder(start_executor=sub).add_edge(sub, end).build()


def threaded() -> Workflow:
    @executor
    def sync(message: int) -> None:
        assert message == 0

    return WorkflowBuilder(start_executor=sync).build()


@pytest.mark.parametrize(
    ("make", "of_the_run"),
    [
        pytest.param(looping, 0, id="live"),
        # One, after which others may want a run that lasts to stop.
        pytest.param(lambda: looping(checkpoint_storage=InMemoryCheckpointStorage()), 1, id="checkpointed"),
        pytest.param(lambda: looping(max_concurrency=1), 0, id="limited"),
        pytest.param(nested, 0, id="nested"),
        pytest.param(threaded, 0, id="threaded"),
    ],
)
def test_no_superstep_sets_a_timer(make: Callable[[], Workflow], of_the_run: int) -> None:
    with asyncio.Runner(loop_factory=TimerWatch) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, TimerWatch)

        async def run() -> Sequence[str]:
            await make().run(0)
            return list(loop.timers)

        assert len(runner.run(run())) == of_the_run


async def test_a_superstep_takes_a_handful_of_turns_of_the_event_loop() -> None:
    turns, is_over = 0, False

    def turn() -> None:
        nonlocal turns
        turns += 1
        if not is_over:
            loop.call_soon(turn)

    async def hop(n: int, ctx: Context) -> None:
        if n < 99:
            await ctx.send_message(n + 1)

    a = node("a", hop)
    workflow = WorkflowBuilder(start_executor=a).add_edge(a, a).build()
    loop = asyncio.get_running_loop()
    loop.call_soon(turn)
    await workflow.run(0)
    is_over = True
    assert turns < 100 * 8
