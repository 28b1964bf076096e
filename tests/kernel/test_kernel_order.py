"""The next snapshot does not depend on the order of completion: the real engine, in every order."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from itertools import count, permutations
from typing import TYPE_CHECKING, Any, cast

import pytest
from small_graphs import IDS, Routes, small_graphs
from typing_extensions import override

from perdure import Executor, InMemoryCheckpointStorage, WorkflowBuilder, WorkflowContext, handler, response_handler
from perdure.codec import Kept, LiveValues
from perdure.engine import RunLoop
from perdure.graph import Graph, Rules
from perdure.kernel import Delivery, Snapshot, Trail, plan
from perdure.testing.clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from small_graphs import Groups

    from perdure import WorkflowEvent
    from perdure.records import Manifest

VALUES = LiveValues()


class Baton:
    """Lets handlers finish in one order only. Who is not mentioned need not wait."""

    def __init__(self, order: Sequence[str]) -> None:
        self._order = list(order)
        self._turns = {key: asyncio.Event() for key in order}
        self._pass_on()

    async def wait(self, key: str) -> None:
        """Wait until all who come before have finished."""
        if key in self._turns:
            await self._turns[key].wait()

    def finish(self, key: str) -> None:
        """Say that this one has nothing left to wait for."""
        if key in self._turns:
            self._pass_on()

    def _pass_on(self) -> None:
        if self._order:
            self._turns[self._order.pop(0)].set()


class Busy(Executor):
    """Does something of every kind, half of it before its turn has come and half after."""

    def __init__(self, id: str, baton: Baton, *, max_concurrency: int = 1) -> None:  # noqa: A002 - as in the base
        super().__init__(id, max_concurrency=max_concurrency)
        self._baton = baton
        self._calls = count()

    @handler
    async def work(self, message: object, ctx: WorkflowContext[str, str]) -> None:
        del message
        key = f"{self.id}#{next(self._calls)}"
        await ctx.send_message(f"{key}/0")
        ctx.set_state("shared", key)
        await self._baton.wait(key)
        await ctx.send_message(f"{key}/1")
        ctx.set_state(f"own/{self.id}", ctx.get_state(f"own/{self.id}", "") + key)
        await ctx.yield_output(f"output of {key}")
        await ctx.request_info(f"question of {key}", int)
        self._baton.finish(key)

    @response_handler
    async def answered(self, question: str, reply: int, ctx: WorkflowContext[str, str]) -> None:
        """Never called: it stands here because a question without a handler would be warned of."""


def first_snapshot(targets: Sequence[str]) -> Snapshot:
    message = VALUES.fix("message", "message")
    return Snapshot(deliveries=tuple(Delivery(key, ("outside",), (message,), send=f"turn:{key}") for key in targets))


async def superstep(
    executors: Mapping[str, Executor], groups: Groups, before: Snapshot, rules: Rules | None = None
) -> tuple[Snapshot, list[WorkflowEvent[Any]]]:
    """One superstep of a graph: the snapshot after it, and what it told."""
    graph = Graph(name="small", start_id="a", executors=executors, groups=groups, rules=rules or Rules())
    driver = RunLoop(graph=graph, snapshot=before, values=VALUES, committer=None, root_id="run", clock=ManualClock())
    told: list[WorkflowEvent[Any]] = []
    async with aclosing(driver.run()) as batches:
        async for events in batches:
            told += events
            if events[-1].type == "superstep_completed":
                break
    return driver.snapshot, told


def plain(value: object) -> object:
    """A value that can be compared: kept values by what they hold, mappings with their order."""
    if isinstance(value, Kept):
        return value.live
    if isinstance(value, dict):
        return [(key, plain(item)) for key, item in cast("dict[object, object]", value).items()]
    if isinstance(value, (tuple, Trail)):
        return [plain(item) for item in cast("tuple[object, ...] | Trail[object]", value)]
    if is_dataclass(value):
        return [(field.name, plain(getattr(value, field.name))) for field in fields(value)]
    return value


def orders(targets: Sequence[str], *, max_concurrency: int = 1) -> Iterator[tuple[str, ...]]:
    """Every order in which the activations of a plan can finish: an executor takes one message after another."""
    keys = [activation.key for activation in plan(first_snapshot(targets))]
    for order in permutations(keys):
        if max_concurrency > 1 or all(
            [key for key in order if key.startswith(executor_id)]
            == [key for key in keys if key.startswith(executor_id)]
            for executor_id in IDS
        ):
            yield order


async def snapshots_under_every_order(
    targets: Sequence[str], groups: Groups, *, max_concurrency: int = 1
) -> list[Snapshot]:
    found: list[Snapshot] = []
    for order in orders(targets, max_concurrency=max_concurrency):
        baton = Baton(order)
        executors = {key: Busy(key, baton, max_concurrency=max_concurrency) for key in IDS}
        after, told = await superstep(executors, groups, first_snapshot(targets))
        completed = [event.data[-1].removeprefix("output of ") for event in told if event.type == "executor_completed"]
        assert completed == list(order), "the superstep has really ended in this order"
        found.append(after)
    return found


async def test_in_every_small_graph_the_next_snapshot_is_the_same_under_every_order_of_completion() -> None:
    for groups in small_graphs(executors=3, edges_max=3):
        first, *others = await snapshots_under_every_order(("b", "a", "c"), groups)
        assert len(others) == 5
        assert all(plain(other) == plain(first) for other in others)


@pytest.mark.parametrize("targets", ["aab", "aba", "baa", "abab", "aabc", "cbac", "aaaa"])
async def test_the_same_holds_when_an_executor_has_several_messages(targets: str) -> None:
    for groups in small_graphs(executors=2, edges_max=4):
        first, *others = await snapshots_under_every_order(targets, groups)
        assert all(plain(other) == plain(first) for other in others)


@pytest.mark.parametrize("targets", ["aa", "aab", "aba", "aabb"])
async def test_the_same_holds_when_an_executor_handles_several_messages_at_once(targets: str) -> None:
    for groups in small_graphs(executors=2, edges_max=2):
        first, *others = await snapshots_under_every_order(targets, groups, max_concurrency=4)
        assert all(plain(other) == plain(first) for other in others)


async def test_an_activation_builds_on_the_writes_of_the_earlier_ones_of_its_executor() -> None:
    for after in await snapshots_under_every_order("abaca", ()):
        written = {key: VALUES.give(value) for (_, key), value in after.state.items()}
        assert written == {"shared": "a#2", "own/a": "a#0a#1a#2", "own/b": "b#0", "own/c": "c#0"}


class Onlooker(Executor):
    """Reads the shared key before and after the others have written it."""

    def __init__(self, id: str, baton: Baton) -> None:  # noqa: A002 - as in the base
        super().__init__(id)
        self._baton = baton

    @handler
    async def look(self, message: object, ctx: WorkflowContext[str, str]) -> None:
        del message
        before = ctx.get_state("shared", "nothing")
        await self._baton.wait(f"{self.id}#0")
        await ctx.yield_output(f"{before}, {ctx.get_state('shared', 'nothing')}")
        self._baton.finish(f"{self.id}#0")


async def test_an_activation_sees_no_write_of_another_executor_in_its_superstep_whatever_the_order() -> None:
    for order in orders(IDS):
        baton = Baton(order)
        executors = {"a": Busy("a", baton), "b": Onlooker("b", baton), "c": Busy("c", baton)}
        _, told = await superstep(executors, (), first_snapshot(IDS))
        seen = [event.data for event in told if event.type == "output" and event.executor_id == "b"]
        assert seen == ["nothing, nothing"]


async def test_a_reducer_merges_in_plan_order_whatever_the_order_of_completion() -> None:
    rules = Rules(reducers={"shared": lambda present, update: f"{present} {update}"})
    for order in orders("bacb"):
        baton = Baton(order)
        executors = {key: Busy(key, baton) for key in IDS}
        after, told = await superstep(executors, (), first_snapshot("bacb"), rules)
        assert VALUES.give(after.state["", "shared"]) == "b#0 a#0 c#0 b#1"
        assert [event.data for event in told if event.type == "warning"] == []


async def test_the_last_write_in_plan_order_stands_and_a_warning_names_the_writers() -> None:
    for order in orders("bac"):
        baton = Baton(order)
        after, told = await superstep({key: Busy(key, baton) for key in IDS}, (), first_snapshot("bac"))
        assert VALUES.give(after.state["", "shared"]) == "c#0"
        [warning] = [event.data for event in told if event.type == "warning"]
        assert all(repr(key) in warning for key in IDS)


async def test_the_runtime_delivers_each_message_once_along_each_edge() -> None:
    for groups in small_graphs(executors=3, edges_max=4):
        routes = Routes.of(groups)
        executors = {key: Busy(key, Baton(())) for key in IDS}
        after, _ = await superstep(executors, groups, first_snapshot(IDS))
        direct = [(VALUES.give(d.values[0]), d.target_id) for d in after.deliveries if not d.is_gathered]
        assert direct == [(f"{key}#0/{n}", target) for key in IDS for n in (0, 1) for target in routes.direct[key]]
        gathered = [(d.send, [VALUES.give(value) for value in d.values]) for d in after.deliveries if d.is_gathered]
        assert gathered == [
            (key, [f"{source}#0/{n}" for source in group.source_ids for n in (0, 1)])
            for key, group in routes.fan_ins.items()
        ]
        assert after.fan_in == {}


class Caller(Executor):
    """Sends one message to everybody by name."""

    @handler
    async def call(self, message: object, ctx: WorkflowContext[str]) -> None:
        del message
        for key in IDS:
            await ctx.send_message(f"for {key}", target_id=key)


async def test_an_addressed_message_reaches_its_target_once_or_is_told_to_be_undelivered() -> None:
    for groups in small_graphs(executors=3, edges_max=4):
        routes = Routes.of(groups)
        after, told = await superstep({key: Caller(key) for key in IDS}, groups, first_snapshot("a"))
        reached = [VALUES.give(delivery.values[0]) for delivery in after.deliveries]
        held = [VALUES.give(value) for buffer in after.fan_in.values() for value in buffer.get("a", ())]
        lost = [event.data.target_id for event in told if event.type == "undelivered"]
        assert sorted(reached) == sorted(f"for {key}" for key in routes.direct["a"])
        assert sorted(held) == sorted(f"for {routes.fan_ins[key].target_id}" for key in routes.barriers["a"])
        assert len(reached) + len(held) + len(lost) == len(IDS)


class StillClock:
    """Always the same time, and ids that are the same in every life."""

    def __init__(self) -> None:
        self._ids = count()

    def now(self) -> datetime:
        return datetime(2030, 1, 1, tzinfo=UTC)

    def new_id(self) -> str:
        return f"id-{next(self._ids)}"

    async def sleep(self, seconds: float) -> None:
        raise AssertionError(f"nobody waits for {seconds} seconds here")


class Remembering(Busy):
    """The same with a state of its own, in which it counts."""

    def __init__(self, id: str, baton: Baton) -> None:  # noqa: A002 - as in the base
        super().__init__(id, baton)
        self._count = 0

    @override
    async def on_checkpoint_save(self) -> dict[str, Any]:
        self._count += 1
        return {"count": self._count}

    @override
    async def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        self._count = state["count"]


class Gather(Executor):
    @handler
    async def gather(self, messages: list[str], ctx: WorkflowContext[str, list[str]]) -> None:
        await ctx.yield_output(messages)


async def stored_under(order: Sequence[str]) -> list[Manifest]:
    """The checkpoints of a run whose second superstep ends in this order."""
    baton, clock = Baton(order), StillClock()
    storage = InMemoryCheckpointStorage(clock=clock)
    start, workers = Busy("start", baton), [Remembering(key, baton) for key in IDS]
    workflow = (
        WorkflowBuilder(start_executor=start, checkpoint_storage=storage, clock=clock, name="ordered")
        .add_fan_out_edges(start, workers)
        .add_fan_in_edges(workers, Gather("gather"))
        .build()
    )
    result = await workflow.run("go")
    assert result.get_outputs()[-1] == [f"{key}#{call}/{n}" for key in IDS for call in (0, 1) for n in (0, 1)]
    return list(await storage.store.manifests())


async def test_the_stored_checkpoints_are_the_same_to_the_byte_under_every_order_of_completion() -> None:
    first, *others = [await stored_under(order) for order in orders("aabbcc") if order[0][0] != order[1][0]]
    assert len(first) == 4
    assert len(others) > 20
    assert all(other == first for other in others)
