"""A host that ends: its runs stop at a boundary, or are stopped, and are free for others at once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.hosting.flows import Gate, pass_on, row, shout, until
from tests.workflow.nodes import node

from perdure import Host, Workflow, WorkflowBuilder

if TYPE_CHECKING:
    from tests.hosting.places import Storage
    from tests.workflow.nodes import Context


def gated(storage: Storage, gate: Gate, **options: Any) -> Host:
    host = Host(storage, **options)
    host.register(row("w", gate, shout))
    return host


async def test_a_draining_host_finishes_its_superstep_and_starts_no_other(storage: Storage) -> None:
    gate = Gate()
    host = gated(storage, gate)
    async with host:
        run = await host.start("w", "hi")
        await gate.holds(1)
        draining = asyncio.create_task(host.drain())
        await asyncio.sleep(0)
        assert not host.is_serving
        gate.open()
        await draining
    info = await run.info()
    assert (info.status, info.owner, info.checkpoint_id) == ("blocked", None, f"{run.run_id}@1")
    async with gated(storage, gate):
        assert (await run.result()).get_outputs() == ["hi", "hi!"]
    assert gate.came == ["hi"]


async def test_draining_cancels_slow_work_and_keeps_finished_work(storage: Storage) -> None:
    done: list[str] = []
    gate = Gate()

    async def work(message: Any, ctx: Context) -> None:
        done.append(message)
        await ctx.yield_output("worked")

    def build() -> Workflow:
        start, worker, stuck = node("start", pass_on), node("worker", work), node("stuck", gate)
        return WorkflowBuilder(name="w", start_executor=start).add_fan_out_edges(start, [worker, stuck]).build()

    host = Host(storage, drain_seconds=0)
    host.register(build)
    async with host:
        run = await host.start("w", "hi")
        await gate.holds(1)
        await until_journalled(storage, run.run_id)
    assert (gate.inside, (await run.info()).owner) == (0, None)
    gate.open()
    async with host:
        assert sorted((await run.result()).get_outputs()) == ["hi", "worked"]
    assert (done, gate.came) == (["hi"], ["hi", "hi"])


async def until_journalled(storage: Storage, run_id: str) -> None:
    async with asyncio.timeout(30):
        while not await storage.store.journal(run_id):  # noqa: ASYNC110 - nobody tells of records
            await asyncio.sleep(0)


async def test_a_draining_host_takes_no_more_runs(storage: Storage) -> None:
    gate = Gate()
    host = gated(storage, gate, max_runs=1)
    async with host:
        runs = [await host.start("w", number) for number in range(3)]
        await gate.holds(1)
        draining = asyncio.create_task(host.drain())
        await asyncio.sleep(0)
        gate.open()
        await draining
    assert len(gate.came) == 1
    async with host:
        for run in runs:
            await run.result()
    assert sorted(gate.came) == [0, 1, 2]


async def test_a_drained_host_leaves_no_task_and_can_serve_again(storage: Storage) -> None:
    gate = Gate()
    gate.open()
    host = gated(storage, gate)
    for number in range(2):
        async with host:
            assert host.is_serving
            with pytest.raises(RuntimeError, match="already serving"):
                await host.serve()
            await (await host.start("w", number)).result()
        assert not host.is_serving
        assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_draining_a_host_that_does_not_serve_does_nothing(storage: Storage) -> None:
    host = gated(storage, Gate())
    await host.drain()
    assert not host.is_serving


async def test_two_hosts_of_one_process_share_the_runs(storage: Storage) -> None:
    gate = Gate()
    one, other = gated(storage, gate, max_runs=2), gated(storage, gate, max_runs=2)
    async with one, other:
        runs = [await one.start("w", number) for number in range(4)]
        await gate.holds(4)
        assert (one.running, other.running) == (2, 2)
        gate.open()
        for run in runs:
            await until(one, run.run_id, "idle")
    assert sorted(gate.came) == [0, 1, 2, 3]


async def test_a_run_that_one_host_releases_is_taken_by_another(storage: Storage) -> None:
    gate = Gate()
    one, other = gated(storage, gate, drain_seconds=0), gated(storage, gate)
    async with one:
        run = await one.start("w", "hi")
        await gate.holds(1)
        async with other:
            await one.drain()
            await gate.holds(1)
            assert (one.running, other.running) == (0, 1)
            gate.open()
            assert (await run.result()).get_outputs() == ["hi", "hi!"]
    assert gate.came == ["hi", "hi"]
