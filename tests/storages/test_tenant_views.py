"""What belongs to a tenant: a storage of its own, on the same place as others."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from tests.golden import waiting_program
from tests.storages.errands import Errands
from tests.storages.kinds import KINDS, LASTING, opened

from perdure import (
    CheckpointNotFoundError,
    RunNotFoundError,
    WorkflowBuilder,
    WorkflowCheckpoint,
    WorkflowCheckpointException,
    WorkflowContext,
    executor,
)
from perdure.storage import MemoryStore, StoreStorage
from perdure.testing.clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@pytest.fixture(params=KINDS)
async def storage(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[StoreStorage]:
    async with opened(request.param, tmp_path) as one:
        yield one


async def test_runs_of_one_id_go_their_own_ways(storage: StoreStorage, tmp_path: Path) -> None:
    errands = Errands(tmp_path)
    errands.open_the_way()
    tenants = {"": storage, "ada": storage.tenant("ada"), "bob": storage.tenant("bob")}
    for name, view in tenants.items():
        await errands.build(view).run(f"milk for {name}", run_id="errand")
    for name, view in tenants.items():
        result = await errands.build(view).run(run_id="errand")
        assert result.get_outputs() == [f"left milk for {name} gone", f"right milk for {name} gone"]
        assert await view.list_checkpoint_ids() == ["errand@0", "errand@1", "errand@2"]
        numbers = [event.seq async for event in view.events("errand")]
        assert numbers == list(range(1, len(numbers) + 1))


async def test_a_tenant_sees_nothing_of_others(storage: StoreStorage) -> None:
    ada, bob = storage.tenant("ada"), storage.tenant("bob")
    clock = ManualClock()
    workflow = waiting_program.build(ada, clock)
    await workflow.run("run", run_id="run", wait_for_timers=False)
    for other in (bob, storage):
        assert await other.list_checkpoints() == []
        assert await other.get_latest(workflow_name="waits") is None
        assert await other.requests() == []
        with pytest.raises(CheckpointNotFoundError):
            await other.load("run@0")
        with pytest.raises(RunNotFoundError):
            await other.respond("run", {"consent to run": {"given": True}})
        with pytest.raises(RunNotFoundError):
            await other.send("run", "more")
        assert await other.delete("run@0") is False
        assert await other.collect() == 0
    assert [request.request_id for request in await ada.requests()] == ["consent to run"]
    await ada.respond("run", {"consent to run": {"given": True}})
    clock.skips = True
    result = await waiting_program.build(ada, clock).run(run_id="run")
    assert "consent to run: True " in result.get_outputs()


async def test_a_checkpoint_that_is_saved_by_hand_is_the_tenants(storage: StoreStorage) -> None:
    ada, bob = storage.tenant("ada"), storage.tenant("bob")
    for view, count in ((ada, 1), (bob, 2)):
        checkpoint = WorkflowCheckpoint(
            workflow_name="hand", graph_signature_hash="hash", checkpoint_id="one", state={"count": count}
        )
        await view.save(checkpoint)
    assert (await ada.load("one")).state == {"count": 1}
    assert (await bob.load("one")).state == {"count": 2}


@pytest.mark.parametrize("kind", LASTING)
async def test_data_of_a_tenant_is_durable(kind: str, tmp_path: Path) -> None:
    errands = Errands(tmp_path)
    with pytest.raises(OSError, match="the way is closed"):
        await errands.build(opened(kind, tmp_path).tenant("ada")).run("milk", run_id="errand")
    errands.open_the_way()
    async with opened(kind, tmp_path) as again:
        await errands.build(again.tenant("ada")).run(run_id="errand")
        with pytest.raises(RunNotFoundError):
            await errands.build(again).run(run_id="errand")
    assert errands.deeds() == ["left milk", "right milk"]


@dataclass
class Stamp:
    """A type that only workflows of this module know."""

    text: str


@executor(id="stamping")
async def stamping(text: str, ctx: WorkflowContext[None, Stamp]) -> None:
    ctx.set_state("stamp", Stamp(text))
    await ctx.yield_output(Stamp(text))


async def test_a_view_reads_what_the_workflows_of_the_storage_trust(storage: StoreStorage) -> None:
    view = storage.tenant("ada")
    workflow = WorkflowBuilder(name="stamping", start_executor=stamping, checkpoint_storage=storage).build()
    await workflow.run("x", run_id="run", checkpoint_storage=view)
    later = storage.tenant("ada")
    latest = await later.get_latest(workflow_name="stamping")
    assert latest is not None
    assert latest.state["stamp"] == Stamp("x")


async def test_a_view_has_the_clock_and_the_settings_of_its_storage() -> None:
    clock = ManualClock()
    storage = StoreStorage(MemoryStore(clock=clock), allowed_checkpoint_types=[Stamp], allow_pickle=True, clock=clock)
    view = storage.tenant("ada")
    assert view.clock is clock
    assert view.allow_pickle
    assert view.allowed is storage.allowed
    assert view.trust is storage.trust


async def test_tenant_can_not_reach_another_tenant(storage: StoreStorage) -> None:
    with pytest.raises(WorkflowCheckpointException, match="the store of tenant 'ada'"):
        storage.tenant("ada").tenant("bob")
    for name in ("", "../bob", "a\nb"):
        with pytest.raises(WorkflowCheckpointException, match="name of a tenant"):
            storage.tenant(name)


async def test_a_store_without_tenants_says_so() -> None:
    class Bare:
        place = "nowhere"

    bare: Any = Bare()
    with pytest.raises(WorkflowCheckpointException, match="a Bare has neither tenants nor"):
        StoreStorage(bare).tenant("ada")


async def test_tenants_run_side_by_side(storage: StoreStorage, tmp_path: Path) -> None:
    async def run(name: str) -> list[Any]:
        (tmp_path / name).mkdir()
        errands = Errands(tmp_path / name)
        errands.open_the_way()
        result = await errands.build(storage.tenant(name)).run(name, run_id="errand")
        return sorted(result.get_outputs())

    names = [f"tenant {number}" for number in range(5)]
    assert await asyncio.gather(*map(run, names)) == [[f"left {name} gone", f"right {name} gone"] for name in names]
