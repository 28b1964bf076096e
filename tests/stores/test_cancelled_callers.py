"""Claims and releases whose callers are cancelled, and releases that fail for a while."""

from __future__ import annotations

import asyncio
import functools
import sqlite3
import threading
from collections.abc import Callable, Coroutine
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from typing_extensions import override

from perdure.clock import SystemClock
from perdure.errors import CheckpointDamagedError, WorkflowCheckpointException
from perdure.records import Retention
from perdure.storage import SqliteDatabase, SqliteStore
from perdure.storage.sql.backend import SqlBackend
from perdure.storage.sqlite.store import MemoryDatabase, OnlyProcess
from perdure.storage.store import HostBackedStore
from perdure.storage.worker import Worker
from perdure.testing.stores import ManualClock, RunDriver, halted

if TYPE_CHECKING:
    from pathlib import Path

    from perdure.records import Halt, Lease, NewRun

FAILED = halted("failed")


class Troubled(SqlBackend):
    """A backend that can be stopped in the middle of a claim, and that can refuse to release."""

    def __init__(self) -> None:
        super().__init__(MemoryDatabase.new(), OnlyProcess(), retention=Retention(), clock=SystemClock())
        self.has_acquired = threading.Event()
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.trouble: Exception | None = None
        self.leases = 0
        self.releases = 0
        self._of: dict[str, Troubled] = {"": self}

    @override
    def for_tenant(self, tenant: str, *, creates: bool) -> Troubled:
        if tenant not in self._of:
            self._of[tenant] = Troubled()
        return self._of[tenant]

    @override
    def acquire(
        self, run_id: str, *, create: NewRun | None, takeover: bool, token: int | None, tried: list[Lease] | None = None
    ) -> Lease:
        self.leases += 1
        lease = super().acquire(run_id, create=create, takeover=takeover, token=token, tried=tried)
        self.has_acquired.set()
        assert self.may_go_on.wait(30)
        return lease

    @override
    def release(self, lease: Lease, *, halt: Halt | None) -> None:
        self.releases += 1
        if self.trouble is not None:
            raise self.trouble
        super().release(lease, halt=halt)

    def stop_in_leases(self) -> None:
        self.has_acquired.clear()
        self.may_go_on.clear()

    async def is_in_a_lease(self) -> None:
        assert await asyncio.to_thread(self.has_acquired.wait, 30)


class Scene:
    """A store on such a backend, with a run that has failed and is owned by nobody."""

    def __init__(self) -> None:
        self.backend = Troubled()
        self.worker = Worker("troubled", lambda: self.backend)
        self.store = HostBackedStore("troubled", self.worker, pause=None)

    @classmethod
    async def set_up(cls) -> Scene:
        scene = cls()
        run = await RunDriver.start(scene.store, ManualClock(), "r")
        await run.commit()
        await run.release(halt=FAILED)
        return scene

    async def is_as_before(self) -> bool:
        record = await self.store.run("r")
        return record is not None and record.owner is None and record.halt == FAILED


async def cancelled(task: asyncio.Task[object]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_lease_is_released_before_its_cancellation_continues() -> None:
    scene = await Scene.set_up()
    scene.backend.stop_in_leases()
    task = asyncio.create_task(scene.store.acquire("r"))
    await scene.backend.is_in_a_lease()
    task.cancel()
    done, _ = await asyncio.wait([task], timeout=0.05)
    assert not done
    scene.backend.may_go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await scene.is_as_before()


async def test_lease_is_released_although_nobody_waits_for_it() -> None:
    scene = await Scene.set_up()
    scene.backend.stop_in_leases()
    task = asyncio.create_task(scene.store.acquire("r"))
    await scene.backend.is_in_a_lease()
    task.cancel()
    await asyncio.wait([task], timeout=0.01)
    await cancelled(task)
    scene.backend.may_go_on.set()
    assert await scene.is_as_before()


def test_lease_is_released_although_its_event_loop_is_gone() -> None:
    scene = asyncio.run(Scene.set_up())
    scene.backend.stop_in_leases()

    async def leave() -> None:
        task = asyncio.create_task(scene.store.acquire("r"))
        await scene.backend.is_in_a_lease()
        task.cancel()
        await asyncio.wait([task], timeout=0.01)

    asyncio.run(leave())
    scene.backend.may_go_on.set()
    assert asyncio.run(scene.is_as_before())


async def test_cancelled_lease_in_the_queue_is_not_taken() -> None:
    scene = await Scene.set_up()
    gate = threading.Event()
    scene.worker.submit(lambda _: gate.wait(30))
    before = scene.backend.leases
    task = asyncio.create_task(scene.store.acquire("r"))
    await asyncio.sleep(0)
    await cancelled(task)
    gate.set()
    assert await scene.is_as_before()
    assert scene.backend.leases == before


async def test_failed_release_of_a_lease_is_tried_again() -> None:
    scene = await Scene.set_up()
    scene.backend.stop_in_leases()
    task = asyncio.create_task(scene.store.acquire("r"))
    await scene.backend.is_in_a_lease()
    scene.backend.trouble = WorkflowCheckpointException("no room")
    scene.backend.may_go_on.set()
    await cancelled(task)
    scene.backend.trouble = None
    await scene.store.due(at="2024", workflow_names=["flow"], limit=1)
    assert await scene.is_as_before()


async def test_a_release_is_carried_out_though_its_caller_is_cancelled() -> None:
    scene = await Scene.set_up()
    lease = await scene.store.acquire("r")
    gate = threading.Event()
    scene.worker.submit(lambda _: gate.wait(30))
    task = asyncio.create_task(scene.store.release(lease, halt=FAILED))
    await asyncio.sleep(0)
    await cancelled(task)
    gate.set()
    assert await scene.is_as_before()


Later = Callable[[HostBackedStore[Troubled]], Coroutine[object, object, object]]


async def due(store: HostBackedStore[Troubled]) -> object:
    return await store.due(at="2024", workflow_names=["flow"], limit=1)


async def acquire(store: HostBackedStore[Troubled]) -> object:
    return await RunDriver.start(store, ManualClock(), "other")


async def commit(store: HostBackedStore[Troubled]) -> object:
    return await (await RunDriver.start(store, ManualClock(), "other")).commit()


async def release(store: HostBackedStore[Troubled]) -> object:
    return await (await RunDriver.start(store, ManualClock(), "other")).release()


@pytest.mark.parametrize("later", [due, acquire, commit, release])
async def test_failed_release_is_tried_again(later: Later) -> None:
    scene = await Scene.set_up()
    lease = await scene.store.acquire("r")
    scene.backend.trouble = WorkflowCheckpointException("no room")
    with pytest.raises(WorkflowCheckpointException, match="no room"):
        await scene.store.release(lease, halt=FAILED)
    await due(scene.store)
    assert not await scene.is_as_before()
    scene.backend.trouble = None
    await later(scene.store)
    assert await scene.is_as_before()
    before = scene.backend.releases
    await due(scene.store)
    assert scene.backend.releases == before


async def test_failed_release_of_a_tenant_is_tried_again_by_any_view() -> None:
    scene = Scene()
    mine, backend = scene.store.tenant("mine"), scene.backend.for_tenant("mine", creates=True)
    run = await RunDriver.start(mine, ManualClock(), "r")
    await run.commit()
    backend.trouble = WorkflowCheckpointException("no room")
    with pytest.raises(WorkflowCheckpointException, match="no room"):
        await run.release()
    backend.trouble = None
    await due(scene.store)
    await due(scene.store.tenant("another"))
    assert (await run.record()).owner is not None
    await due(scene.store.tenant("mine"))
    assert (await run.record()).owner is None


async def test_replaced_lease_is_not_released_later() -> None:
    scene = await Scene.set_up()
    lease = await scene.store.acquire("r")
    scene.backend.trouble = WorkflowCheckpointException("no room")
    with pytest.raises(WorkflowCheckpointException, match="no room"):
        await scene.store.release(lease)
    scene.backend.trouble = None
    run = RunDriver(scene.store, ManualClock(), "r", "flow")
    run.head, run.position = "r@0", 0
    await run.reacquire()
    await due(scene.store)
    await run.commit()
    assert (await run.record()).owner is not None


async def test_a_run_that_can_not_be_read_is_not_tried_again() -> None:
    scene = await Scene.set_up()
    lease = await scene.store.acquire("r")
    scene.backend.trouble = CheckpointDamagedError("r", "it is not what was written")
    with pytest.raises(CheckpointDamagedError):
        await scene.store.release(lease)
    before = scene.backend.releases
    await due(scene.store)
    assert scene.backend.releases == before


async def test_a_run_is_free_once_nobody_holds_up_the_database_any_more(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    store = SqliteStore(path, database=functools.partial(SqliteDatabase, busy_timeout_seconds=0.05))
    run = await RunDriver.start(store, ManualClock(), "r")
    await run.commit()
    with closing(sqlite3.connect(path, isolation_level=None)) as another:
        another.execute("BEGIN IMMEDIATE")
        with pytest.raises(WorkflowCheckpointException, match="locked"):
            await run.release()
        assert list(await store.due(at="2024", workflow_names=["flow"], limit=1)) == []
        another.execute("ROLLBACK")
    (found,) = await store.due(at="2024", workflow_names=["flow"], limit=1)
    assert (found.record.run_id, found.record.owner) == ("r", None)
    await store.close()
