"""Runs that move by a file: they are the same runs elsewhere, and closed where they were."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any, cast

import pytest
from tests.golden import waiting_program
from tests.storages.errands import Errands, wait_and_ask
from tests.storages.kinds import KINDS, LASTING, opened
from typing_extensions import override

from perdure import (
    CheckpointDamagedError,
    FileCheckpointStorage,
    InMemoryCheckpointStorage,
    RunBusyError,
    RunExistsError,
    RunExportedError,
    RunNotFoundError,
    SystemClock,
    WorkflowBuilder,
    WorkflowCheckpointException,
    WorkflowContext,
    executor,
)
from perdure.records import Halt, NewRun
from perdure.storage import StoreStorage, TenantStore, is_host_store
from perdure.testing.clock import ManualClock
from perdure.testing.resume.processes import Child, Gate, run_child

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from perdure.records import Archive, RunRecord
    from perdure.storage import Store
    from perdure.testing.resume.processes import ProcessResult


@pytest.fixture(params=KINDS)
async def storage(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[StoreStorage]:
    (tmp_path / "here").mkdir()
    async with opened(request.param, tmp_path / "here") as one:
        yield one


@pytest.fixture(params=list(product(KINDS, KINDS)), ids="-".join)
async def both(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[StoreStorage, StoreStorage]]:
    """A storage to leave, and one to come to."""
    here, there = request.param
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    async with opened(here, tmp_path / "here") as source, opened(there, tmp_path / "there") as target:
        yield source, target


async def stop_half_way(errands: Errands, storage: StoreStorage, run_id: str = "errand") -> None:
    """A run in the middle of a superstep: one has finished, another has failed after its step."""
    with pytest.raises(OSError, match="the way is closed"):
        await errands.build(storage).run("milk", run_id=run_id)


async def record_of(storage: StoreStorage, run_id: str = "errand") -> RunRecord:
    record = await storage.store.run(run_id)
    assert record is not None
    return record


async def park(storage: StoreStorage) -> Halt:
    """Give the errand up."""
    halt = Halt("parked", at="2024-01-01T00:00:00+00:00", reason="it has ended 3 processes, \ud800", data=b"\xff\x00")
    await storage.store.release(await storage.store.acquire("errand"), halt=halt)
    return halt


async def due(storage: StoreStorage) -> list[str]:
    """Return the runs that a host would advance. On files there is no host."""
    if not is_host_store(storage.store):
        return []
    found = await storage.store.due(at="9999", workflow_names=["errands"], limit=10)
    return [each.record.run_id for each in found]


def host_store(storage: StoreStorage) -> TenantStore:
    assert isinstance(storage.store, TenantStore)
    return storage.store


async def all_of(storage: StoreStorage, run_id: str) -> dict[str, Any]:
    """A run as far as a storage tells of it, without what is of its place."""
    store = storage.store
    record = await store.run(run_id)
    assert record is not None
    return {
        "record": replace(record, owner=None, halt=None, attempts=0),
        "checkpoints": await store.manifests(run_id=run_id),
        "parts": await store.blobs(
            [address for m in await store.manifests(run_id=run_id) for address in m.toc.values()]
        ),
        "journal": list(await store.journal(run_id)),
        "inbox": [replace(command, number=0) for command in await store.inbox(run_id)],
        "events": list(await store.events(run_id)),
    }


async def test_a_run_in_the_middle_of_a_superstep_goes_on_elsewhere_and_does_nothing_twice(
    both: tuple[StoreStorage, StoreStorage], tmp_path: Path
) -> None:
    source, target = both
    errands = Errands(tmp_path)
    await stop_half_way(errands, source)
    await source.export_run("errand", tmp_path / "errand.jsonl")
    assert await target.import_run(tmp_path / "errand.jsonl") == "errand"
    errands.open_the_way()
    result = await errands.build(target).run(run_id="errand")
    assert result.get_outputs() == ["left milk gone", "right milk gone"]
    assert errands.deeds() == ["left milk", "right milk"]


async def test_an_imported_run_is_the_run_that_was_exported(
    both: tuple[StoreStorage, StoreStorage], tmp_path: Path
) -> None:
    source, target = both
    await wait_and_ask(source)
    await stop_half_way(Errands(tmp_path), source)
    for run_id in ("run", "errand"):
        before = await all_of(source, run_id)
        await source.export_run(run_id, tmp_path / run_id)
        await target.import_run(tmp_path / run_id)
        assert await all_of(target, run_id) == before
    assert (await all_of(target, "run"))["inbox"]
    assert (await all_of(target, "errand"))["journal"]


async def test_an_imported_run_takes_in_what_waited_in_its_inbox(
    both: tuple[StoreStorage, StoreStorage], tmp_path: Path
) -> None:
    source, target = both
    await wait_and_ask(source)
    told = [event.type async for event in source.events("run")]
    await source.export_run("run", tmp_path / "run")
    await target.import_run(tmp_path / "run")
    result = await waiting_program.build(target, ManualClock(skips=True)).run(run_id="run")
    assert "consent to run: True " in result.get_outputs()
    log = [event async for event in target.events("run")]
    assert [event.seq for event in log] == list(range(1, len(log) + 1))
    assert [event.type for event in log[: len(told)]] == told


async def test_export_of_a_run_is_equal_on_every_store(both: tuple[StoreStorage, StoreStorage], tmp_path: Path) -> None:
    source, target = both
    await stop_half_way(Errands(tmp_path), source)
    await source.export_run("errand", tmp_path / "first")
    await target.import_run(tmp_path / "first")
    await target.export_run("errand", tmp_path / "second")
    assert (tmp_path / "second").read_bytes() == (tmp_path / "first").read_bytes()


async def test_a_run_that_had_failed_is_failed_elsewhere(
    both: tuple[StoreStorage, StoreStorage], tmp_path: Path
) -> None:
    source, target = both
    await stop_half_way(Errands(tmp_path), source)
    failed = (await record_of(source)).halt
    assert failed is not None
    assert failed.kind == "failed"
    await source.export_run("errand", tmp_path / "errand")
    await target.import_run(tmp_path / "errand")
    assert (await record_of(target)).halt == failed
    assert await due(target) == []


async def test_quarantined_run_stays_quarantined_after_repeated_exports(
    both: tuple[StoreStorage, StoreStorage], tmp_path: Path
) -> None:
    source, target = both
    await stop_half_way(Errands(tmp_path), source)
    parked = await park(source)
    await source.export_run("errand", tmp_path / "lost")
    await source.export_run("errand", tmp_path / "errand")
    await target.import_run(tmp_path / "errand")
    assert (await record_of(target)).halt == parked
    assert await due(target) == []


async def test_an_exported_run_is_closed_and_can_be_read(storage: StoreStorage, tmp_path: Path) -> None:
    errands = Errands(tmp_path)
    await stop_half_way(errands, storage)
    before = [event.type async for event in storage.events("errand")]
    await storage.export_run("errand", tmp_path / "errand")
    with pytest.raises(RunExportedError, match=r"'errand' was exported at .*import the file"):
        await errands.build(storage).run(run_id="errand")
    with pytest.raises(RunExportedError):
        await storage.send("errand", "more")
    assert [event.type async for event in storage.events("errand")] == before
    assert await storage.list_checkpoint_ids(workflow_name="errands") == ["errand@0", "errand@1"]
    assert [record.run_id for record in await storage.store.runs(status="exported")] == ["errand"]


async def test_requests_of_an_exported_run_are_not_listed(storage: StoreStorage, tmp_path: Path) -> None:
    await waiting_program.build(storage, ManualClock()).run("run", run_id="run", wait_for_timers=False)
    assert [request.request_id for request in await storage.requests()] == ["consent to run"]
    await storage.export_run("run", tmp_path / "run")
    assert await storage.requests() == []
    with pytest.raises(RunExportedError):
        await storage.respond("run", {"consent to run": {"given": True}})
    await storage.import_run(tmp_path / "run")
    assert [request.request_id for request in await storage.requests()] == ["consent to run"]


async def test_importing_where_it_was_opens_it_again(storage: StoreStorage, tmp_path: Path) -> None:
    errands = Errands(tmp_path)
    await stop_half_way(errands, storage)
    await storage.export_run("errand", tmp_path / "errand")
    await storage.import_run(tmp_path / "errand")
    errands.open_the_way()
    await errands.build(storage).run(run_id="errand")
    assert errands.deeds() == ["left milk", "right milk"]


async def test_an_exported_run_can_be_exported_again(storage: StoreStorage, tmp_path: Path) -> None:
    await stop_half_way(Errands(tmp_path), storage)
    await storage.export_run("errand", tmp_path / "lost")
    first = (tmp_path / "lost").read_bytes()
    (tmp_path / "lost").unlink()
    await storage.export_run("errand", tmp_path / "found")
    assert (tmp_path / "found").read_bytes() == first


async def test_a_run_that_is_here_is_not_replaced(storage: StoreStorage, tmp_path: Path) -> None:
    await stop_half_way(Errands(tmp_path), storage)
    await storage.export_run("errand", tmp_path / "errand")
    await storage.import_run(tmp_path / "errand")
    before = await all_of(storage, "errand")
    with pytest.raises(RunExistsError, match="'errand' exists here and was not exported"):
        await storage.import_run(tmp_path / "errand")
    assert await all_of(storage, "errand") == before


async def test_a_run_that_came_back_has_what_it_did_elsewhere(storage: StoreStorage, tmp_path: Path) -> None:
    errands, elsewhere = Errands(tmp_path), InMemoryCheckpointStorage()
    await stop_half_way(errands, storage)
    await storage.export_run("errand", tmp_path / "out")
    await elsewhere.import_run(tmp_path / "out")
    errands.open_the_way()
    await errands.build(elsewhere).run(run_id="errand")
    await elsewhere.export_run("errand", tmp_path / "back")
    await storage.import_run(tmp_path / "back")
    result = await errands.build(storage).run(run_id="errand")
    assert result.get_outputs() == ["left milk gone", "right milk gone"]
    assert errands.deeds() == ["left milk", "right milk"]


async def test_a_run_moves_between_tenants_of_one_storage(storage: StoreStorage, tmp_path: Path) -> None:
    errands = Errands(tmp_path)
    await stop_half_way(errands, storage.tenant("ada"))
    await storage.tenant("ada").export_run("errand", tmp_path / "errand")
    await storage.tenant("bob").import_run(tmp_path / "errand")
    errands.open_the_way()
    await errands.build(storage.tenant("bob")).run(run_id="errand")
    assert errands.deeds() == ["left milk", "right milk"]
    with pytest.raises(RunExportedError):
        await errands.build(storage.tenant("ada")).run(run_id="errand")
    assert await storage.store.runs() == []


async def test_a_run_that_is_unknown_is_not_exported(storage: StoreStorage, tmp_path: Path) -> None:
    with pytest.raises(RunNotFoundError, match="nothing"):
        await storage.export_run("nothing", tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()


async def test_a_fork_without_a_checkpoint_of_its_own_stays_open(storage: StoreStorage, tmp_path: Path) -> None:
    errands = Errands(tmp_path)
    await stop_half_way(errands, storage)
    lease = await storage.store.acquire(
        "fork", create=replace(await new_run(storage), run_id="fork", parent_checkpoint_id="errand@1")
    )
    await storage.store.release(lease)
    with pytest.raises(WorkflowCheckpointException, match="'fork' is a fork"):
        await storage.export_run("fork", tmp_path / "fork")
    errands.open_the_way()
    await errands.build(storage).run(run_id="fork")
    await storage.export_run("fork", tmp_path / "fork")


async def new_run(storage: StoreStorage) -> NewRun:
    record = await storage.store.run("errand")
    assert record is not None
    return NewRun("errand", record.workflow_name, record.created_at, record.nonce)


async def test_run_of_another_task_is_busy(storage: StoreStorage, tmp_path: Path) -> None:
    is_inside, may_end = asyncio.Event(), asyncio.Event()

    @executor(id="slow")
    async def slow(message: str, ctx: WorkflowContext[None, str]) -> None:
        is_inside.set()
        await may_end.wait()
        await ctx.yield_output(message)

    workflow = WorkflowBuilder(name="slow", start_executor=slow, checkpoint_storage=storage).build()
    running = asyncio.ensure_future(workflow.run("slow", run_id="slow"))
    await is_inside.wait()
    with pytest.raises(RunBusyError, match="another task of this process"):
        await storage.export_run("slow", tmp_path / "slow")
    may_end.set()
    assert (await running).get_outputs() == ["slow"]
    await storage.export_run("slow", tmp_path / "slow")
    assert await InMemoryCheckpointStorage().import_run(tmp_path / "slow") == "slow"


lasting = pytest.mark.parametrize("kind", LASTING)


@lasting
def test_run_of_another_process_is_busy(kind: str, tmp_path: Path) -> None:
    errands, gate = Errands(tmp_path), Gate()
    opened(kind, tmp_path)

    async def stopped() -> None:
        await stop_half_way(errands, opened(kind, tmp_path))

    async def advancing() -> None:
        storage = opened(kind, tmp_path)
        await storage.store.acquire("errand")
        gate.wait()

    async def exporting() -> None:
        async with opened(kind, tmp_path) as storage:
            await storage.export_run("errand", tmp_path / "errand.jsonl")

    run_child(stopped).result()
    child = Child(advancing)
    assert gate.gather(1) == 1
    assert str(run_child(exporting).error).startswith("RunBusyError: run 'errand' is being advanced by process")
    gate.open()
    child.wait().result()
    run_child(exporting).result()


class Handing:
    """A store that hands everything on to another."""

    def __init__(self, store: TenantStore) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class Meddled(Handing):
    """Lets something else happen when an export has read its run for the last time."""

    def __init__(self, store: TenantStore, meddle: Callable[[], Awaitable[object]]) -> None:
        super().__init__(store)
        self._meddle = meddle

    async def archive(self, run_id: str) -> Archive:
        archive = await self._store.archive(run_id)
        if (record := await self._store.run(run_id)) is not None and record.run_status == "exported":
            await self._meddle()
        return archive


async def test_an_export_writes_no_file_if_the_run_was_opened_meanwhile(storage: StoreStorage, tmp_path: Path) -> None:
    await stop_half_way(Errands(tmp_path), storage)
    await storage.export_run("errand", tmp_path / "first")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "second").write_text("what was here before")
    meddled = StoreStorage(cast("Store", Meddled(host_store(storage), lambda: storage.import_run(tmp_path / "first"))))
    with pytest.raises(RunBusyError, match=r"'errand' .* has imported it"):
        await meddled.export_run("errand", tmp_path / "out" / "second")
    assert [path.read_text() for path in (tmp_path / "out").iterdir()] == ["what was here before"]
    assert (await record_of(storage)).run_status == "failed"


async def test_an_export_writes_no_file_if_the_run_was_opened_and_exported_meanwhile(
    storage: StoreStorage, tmp_path: Path
) -> None:
    errands = Errands(tmp_path)
    await stop_half_way(errands, storage)
    await storage.export_run("errand", tmp_path / "first")

    async def go_on() -> None:
        await storage.import_run(tmp_path / "first")
        await storage.send("errand", "more")
        await storage.export_run("errand", tmp_path / "third")

    meddled = StoreStorage(cast("Store", Meddled(host_store(storage), go_on)), clock=ManualClock())
    with pytest.raises(RunBusyError, match="has imported it"):
        await meddled.export_run("errand", tmp_path / "second")
    assert not (tmp_path / "second").exists()
    assert (tmp_path / "third").exists()


class Deadly(Handing):
    """Kills its process when so many things were asked of it."""

    def __init__(self, store: TenantStore, deeds: int) -> None:
        super().__init__(store)
        self._deeds = deeds

    @override
    def __getattr__(self, name: str) -> Any:
        asked = super().__getattr__(name)

        async def done(*args: Any, **kwargs: Any) -> Any:
            result = await asked(*args, **kwargs)
            self._deeds -= 1
            if self._deeds == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return done if name in {"run", "claim", "release", "archive", "close_run"} else asked


@lasting
def test_an_export_that_is_killed_at_any_point_leaves_no_run_that_others_go_on_with_unasked(
    kind: str, tmp_path: Path
) -> None:
    opened(kind, tmp_path)

    async def stopped() -> None:
        await stop_half_way(Errands(tmp_path), opened(kind, tmp_path))

    def exporting(deeds: int) -> ProcessResult:
        async def export() -> None:
            deadly = StoreStorage(cast("Store", Deadly(host_store(opened(kind, tmp_path)), deeds)))
            await deadly.export_run("errand", tmp_path / "errand.jsonl")

        return run_child(export)

    async def left() -> tuple[str, list[str]]:
        async with opened(kind, tmp_path) as storage:
            return (await record_of(storage)).run_status, await due(storage)

    async def opening() -> None:
        async with opened(kind, tmp_path) as storage:
            await storage.export_run("errand", tmp_path / "again")
            await storage.import_run(tmp_path / "again")

    run_child(stopped).result()
    standings: list[str] = []
    deeds = 1
    while (life := exporting(deeds)).was_killed:
        standing, found = run_child(left).result()
        assert (standing in {"failed", "exported"}, found) == (True, [])
        standings.append(standing)
        run_child(opening).result()
        deeds += 1
    life.result()
    assert set(standings) == {"failed", "exported"}


class DeadlyClock(SystemClock):
    """The export asks it for a name for its file, when the run is closed and nothing is written yet."""

    _is_named = False

    @override
    def new_id(self) -> str:
        if self._is_named:
            os.kill(os.getpid(), signal.SIGKILL)
        # The first name is that of the export itself.
        self._is_named = True
        return super().new_id()


@lasting
def test_a_run_whose_export_was_killed_can_be_exported_again(kind: str, tmp_path: Path) -> None:
    errands = Errands(tmp_path)
    opened(kind, tmp_path)

    async def stopped() -> None:
        await stop_half_way(errands, opened(kind, tmp_path))

    async def killed() -> None:
        await opened(kind, tmp_path, clock=DeadlyClock()).export_run("errand", tmp_path / "errand.jsonl")

    async def moved() -> list[Any]:
        async with opened(kind, tmp_path) as storage:
            with pytest.raises(RunExportedError):
                await errands.build(storage).run(run_id="errand")
            await storage.export_run("errand", tmp_path / "errand.jsonl")
        target = InMemoryCheckpointStorage()
        await target.import_run(tmp_path / "errand.jsonl")
        errands.open_the_way()
        return (await errands.build(target).run(run_id="errand")).get_outputs()

    run_child(stopped).result()
    assert run_child(killed).was_killed
    assert not (tmp_path / "errand.jsonl").exists()
    assert run_child(moved).result() == ["left milk gone", "right milk gone"]
    assert errands.deeds() == ["left milk", "right milk"]


async def test_a_path_that_can_be_no_file_changes_nothing(storage: StoreStorage, tmp_path: Path) -> None:
    errands = Errands(tmp_path)
    await stop_half_way(errands, storage)
    with pytest.raises(WorkflowCheckpointException, match="is a directory"):
        await storage.export_run("errand", tmp_path)
    with pytest.raises(WorkflowCheckpointException, match="there is no directory"):
        await storage.export_run("errand", tmp_path / "nowhere" / "errand")
    for name in ("x" * 300, "null\0byte"):
        with pytest.raises(WorkflowCheckpointException, match="can't be a file to export to"):
            await storage.export_run("errand", tmp_path / name)
    assert (await record_of(storage)).run_status == "failed"
    errands.open_the_way()
    assert (await errands.build(storage).run(run_id="errand")).get_outputs()


def test_a_file_that_could_not_be_written_leaves_nothing_and_the_run_can_be_exported_again(tmp_path: Path) -> None:
    async def with_little_room() -> list[str]:
        storage = InMemoryCheckpointStorage()
        await stop_half_way(Errands(tmp_path), storage)
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        much = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, much[1]))
        with pytest.raises(
            WorkflowCheckpointException, match=r"could not be written to .*closed here.*export it again"
        ):
            await storage.export_run("errand", tmp_path / "out" / "errand")
        left = [path.name for path in (tmp_path / "out").iterdir()]
        resource.setrlimit(resource.RLIMIT_FSIZE, much)
        await storage.export_run("errand", tmp_path / "out" / "errand")
        return left

    (tmp_path / "out").mkdir()
    assert run_child(with_little_room).result() == []
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["errand"]


async def test_a_damaged_run_is_not_closed_by_an_export_that_fails(tmp_path: Path) -> None:
    storage = FileCheckpointStorage(tmp_path / "runs")
    await wait_and_ask(storage)
    first = tmp_path / "runs" / "run@0.json"
    first.write_bytes(first.read_bytes()[:-10])
    with pytest.raises(CheckpointDamagedError):
        await storage.export_run("run", tmp_path / "run")
    record = await storage.store.run("run")
    assert record is not None
    assert record.halt is None
    assert not (tmp_path / "run").exists()
    await storage.close()
