"""Transfers: a complete run leaves one store and continues in another."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from perdure.errors import RunExistsError, RunNotFoundError, WorkflowCheckpointException
from perdure.records import Archive, FullHistory, Halt, KeepFor, KeepLast, LatestOnly, Mark, Retention
from perdure.testing.clock import ManualClock
from perdure.testing.stores.base import (
    HEAD,
    LATE,
    NOTHING,
    REFUSED,
    SOON,
    RunDriver,
    TenantStoreSuite,
    command,
    comparable,
    events,
    finished,
    halted,
    keeps,
    latest_id,
    make_sample_run,
    read_contents,
    read_run,
    refused,
    text_blob,
    watching,
)

if TYPE_CHECKING:
    from pathlib import Path

    from perdure.storage import MemoryStore, Store, TenantStore


async def _resume(store: Store, archive: Archive) -> RunDriver:
    """Take the lease of a restored run."""
    record = archive.record
    run = RunDriver(store, ManualClock(), record.run_id, record.workflow_name, record.head, record.position)
    await run.reacquire()
    return run


class ArchiveConformance(TenantStoreSuite):
    """An archive has all data of a run."""

    async def test_archive_has_the_run_and_nothing_else(self, store: TenantStore, sample: RunDriver) -> None:
        await make_sample_run(store, sample.clock, "other", of="others")
        await sample.reacquire()
        record, archive = await sample.record(), await store.archive("r")
        assert archive.record == replace(record, owner=None, halt=None, attempts=0)
        assert [(each.status, each.wake_at, each.settled) for each in archive.checkpoints] == [
            ("running", None, False),
            ("waiting", SOON, False),
            ("sleeping", LATE, False),
            ("running", None, False),
            ("idle", None, True),
        ]
        picture = await read_run(store)
        assert comparable(archive).checkpoints == tuple(
            replace(each, manifest=manifest)
            for each, manifest in zip(archive.checkpoints, picture.manifests, strict=True)
        )
        assert {blob.hash: blob.data for blob in archive.blobs} == picture.contents
        assert len({blob.hash for blob in archive.blobs}) == len(archive.blobs)
        assert list(archive.journal) == picture.journal
        assert list(archive.inbox) == list(await store.inbox("r"))
        assert list(archive.events) == picture.events

    @pytest.mark.parametrize("halt", [None, halted("failed"), halted("parked"), halted("exported")])
    async def test_archiving_changes_nothing(self, store: TenantStore, sample: RunDriver, halt: Halt | None) -> None:
        await sample.release(halt=halt)
        before, record = await read_run(store), await sample.record()
        archive = await store.archive("r")
        assert archive.record == replace(record, halt=None)
        assert comparable(archive) == comparable(await store.archive("r"))
        assert (await read_run(store), await sample.record()) == (before, record)

    async def test_run_without_checkpoints_is_not_archived(self, store: TenantStore, fresh: RunDriver) -> None:
        for run_id in ("nowhere", fresh.run_id):
            await refused(RunNotFoundError, store.archive(run_id))

    async def test_fork_is_archived_after_its_first_commit(
        self, store: TenantStore, fresh: RunDriver, elsewhere: MemoryStore
    ) -> None:
        shared = text_blob("shared", text_blob("leaf"))
        await fresh.commit({"a": shared}, text_blob("leaf"))
        fork = await fresh.another("f", parent="r@0")
        await refused(WorkflowCheckpointException, store.archive("f"))
        await fork.commit({"a": shared}, blobs=())
        archive = await store.archive("f")
        assert [each.manifest.checkpoint_id for each in archive.checkpoints] == ["f@0"]
        await elsewhere.restore(archive)
        assert await elsewhere.run("f") == archive.record
        assert archive.record.parent_checkpoint_id == "r@0"
        assert await read_contents(elsewhere, "f@0") == {"a": shared.data}
        assert await elsewhere.blobs([text_blob("leaf").hash]) == {text_blob("leaf").hash: b'"leaf"'}


class TransferConformance(TenantStoreSuite):
    """A run is the same in every store."""

    @pytest.mark.parametrize("comes_here", [True, False])
    async def test_moved_run_is_unchanged(
        self, store: TenantStore, clock: ManualClock, elsewhere: MemoryStore, *, comes_here: bool
    ) -> None:
        source, target = (elsewhere, store) if comes_here else (store, elsewhere)
        runs = [await make_sample_run(source, clock), await RunDriver.start(source, clock, "empty", commits=1)]
        for run in runs:
            await run.release()
            archive = await source.archive(run.run_id)
            await target.restore(archive)
            assert await target.run(run.run_id) == archive.record
            assert await read_run(target, run.run_id) == await read_run(source, run.run_id)
            assert comparable(await target.archive(run.run_id)) == comparable(archive)
        assert list(await target.ids()) == list(await source.ids())
        assert await latest_id(target, "flöw") == "r@4"

    async def test_restored_run_continues(self, store: TenantStore, archive: Archive) -> None:
        await store.restore(archive)
        run = await _resume(store, archive)
        assert await run.noted() == ["a=second of another place", "b=another place"]
        numbers = [each.number for each in await store.inbox("r")]
        assert numbers == sorted(set(numbers))
        (later,) = await run.post(command("later"))
        assert later > max(numbers)
        await run.commit(consumed=("expecting", "z"), events=events("5", "6"), status="waiting")
        await run.require(head="r@7", position=7, events=archive.record.events + 2)
        assert await run.inbox() == ["a=another place", "later="]
        assert await run.noted() == []
        assert (await run.events())[-3:] == ["4=4 another place", "5=5", "6=6"]
        assert await latest_id(store, "flöw") == "r@7"

    async def test_restored_run_can_be_rewound_to_any_checkpoint(self, store: TenantStore, archive: Archive) -> None:
        await store.restore(archive)
        run = await _resume(store, archive)
        for number, each in enumerate(archive.checkpoints):
            await run.rewind(each.manifest.checkpoint_id, nonce=f"nonce {number}")
            await run.require(status=each.status, wake_at=each.wake_at, settled=each.settled)
        assert await run.inbox() == ["z=another place", "a=another place"]

    async def test_whole_run_that_comes_or_goes_wakes_watchers(self, store: TenantStore, archive: Archive) -> None:
        async with watching(store, "r", seen=Mark()) as watch:
            await store.restore(archive)
        restored = watch.result()
        assert (restored.head, restored.events, restored.owner, restored.is_halted) == (HEAD, 4, None, False)
        async with watching(store, "r", seen=restored) as watch:
            await store.close_run("r", halt=halted("exported"))
        assert watch.result() == replace(restored, is_halted=True, is_blocked=False)
        async with watching(store, "r", seen=watch.result()) as watch:
            assert await store.remove("r")
        assert watch.result() == Mark()

    async def test_restored_run_does_not_affect_other_runs(
        self, store: TenantStore, clock: ManualClock, archive: Archive
    ) -> None:
        other = await make_sample_run(store, clock, "other", of="others")
        before, ids = await read_run(store, "other"), list(await store.ids())
        await store.restore(archive)
        assert await read_run(store, "other") == before
        assert list(await store.ids()) == [*ids, *(each.manifest.checkpoint_id for each in archive.checkpoints)]
        assert [record.run_id for record in await store.runs()] == ["other", "r"]
        await other.commit()
        assert await latest_id(store, "flöw") == "other@7"

    @pytest.mark.parametrize("halt", [None, halted("failed"), halted("parked")])
    async def test_existing_run_is_not_replaced(
        self, store: TenantStore, sample: RunDriver, archive: Archive, halt: Halt | None
    ) -> None:
        await sample.release(halt=halt)
        before, record = await read_run(store), await sample.record()
        await refused(RunExistsError, store.restore(archive))
        assert (await read_run(store), await sample.record()) == (before, record)
        await store.collect()
        assert await read_run(store) == before
        assert await store.blobs([text_blob("tree of another place").hash]) == {}

    async def test_run_is_not_restored_if_a_checkpoint_id_is_taken(
        self, store: TenantStore, clock: ManualClock, archive: Archive
    ) -> None:
        other = await RunDriver.start(store, clock, "other")
        await other.commit(checkpoint_id="r by name")
        before = await read_run(store, "other")
        await refused(WorkflowCheckpointException, store.restore(archive))
        assert await read_run(store, "other") == before
        assert await read_run(store) == NOTHING
        assert list(await store.ids()) == ["r by name"]
        await store.collect()
        assert await store.blobs([text_blob("tree of another place").hash]) == {}
        await store.delete("r by name")
        await store.restore(archive)
        assert await store.run("r") == archive.record

    async def test_restored_run_replaces_one_that_never_began(
        self, store: TenantStore, fresh: RunDriver, archive: Archive
    ) -> None:
        await fresh.note(finished("a", "of one that never began"))
        await store.restore(archive)
        assert await store.run("r") == archive.record
        await refused(REFUSED, fresh.commit())
        assert await store.run("r") == archive.record
        assert [each.key for each in await store.journal("r")] == ["a", "b"]

    async def test_restored_run_has_no_events_that_were_deleted_before(
        self, tmp_path: Path, clock: ManualClock
    ) -> None:
        stores = [
            self.open_store(tmp_path / name, retention=Retention(events=kept), clock=clock)
            for name, kept in {"source": KeepLast(1), "target": FullHistory()}.items()
        ]
        await (await make_sample_run(stores[0], clock)).release()
        archive = await stores[0].archive("r")
        assert [each.first for each in archive.events] == [4]
        await stores[1].restore(archive)
        assert await read_run(stores[1]) == await read_run(stores[0])
        run = await _resume(stores[1], archive)
        await run.commit(events=events("5"))
        assert await run.events() == ["4=4 us", "5=5"]
        for store in stores:
            await store.close()

    @keeps(checkpoints=LatestOnly(), events=KeepLast(1), finished_runs=KeepFor(timedelta(days=7)))
    async def test_retention_applies_to_restored_runs(
        self, store: TenantStore, clock: ManualClock, archive: Archive, elsewhere: MemoryStore
    ) -> None:
        await store.restore(archive)
        old = await RunDriver.start(elsewhere, clock, "finished")
        await old.commit(settled=True)
        await store.restore(await elsewhere.archive("finished"))
        run = await _resume(store, archive)
        await run.commit({"a": text_blob("new")}, events=events("5"))
        assert list(await store.ids()) == ["finished@0", "r@7"]
        assert await run.events() == ["5=5"]
        await store.collect()
        assert await read_contents(store, "r@7") == {"a": b'"new"'}
        clock.advance(timedelta(days=8))
        await run.commit()
        assert [record.run_id for record in await store.runs()] == ["r"]


class ReopeningConformance(TenantStoreSuite):
    """An exported run comes back with all of its data."""

    async def test_returning_run_replaces_the_exported_one(
        self, store: TenantStore, sample: RunDriver, elsewhere: MemoryStore
    ) -> None:
        await sample.release(halt=halted("exported"))
        archive = await store.archive("r")
        await elsewhere.restore(archive)
        moved = await _resume(elsewhere, archive)
        await moved.commit({"e": text_blob("of elsewhere")}, consumed=("z",), events=events("5"))
        await moved.note(finished("c", "of elsewhere"))
        await moved.release()
        await store.restore(await elsewhere.archive("r"))
        assert await store.run("r") == await elsewhere.run("r")
        assert await read_run(store) == await read_run(elsewhere)
        assert [record.run_id for record in await store.runs()] == ["r"]
        (number,) = await sample.post(command("later"))
        assert number > max(each.number for each in archive.inbox)
        back = await _resume(store, await store.archive("r"))
        assert back.lease.token > sample.lease.token
        await back.commit()
        assert (await back.record()).head == "r@8"

    async def test_exported_run_can_be_replaced_by_another_one(
        self, store: TenantStore, clock: ManualClock, sample: RunDriver, elsewhere: MemoryStore
    ) -> None:
        await sample.release(halt=halted("exported"))
        another = await RunDriver.start(elsewhere, clock, "r")
        for number in range(8):
            await another.commit({"a": text_blob(f"another {number}")}, events=events("of another"))
        await store.restore(await elsewhere.archive("r"))
        assert await read_run(store) == await read_run(elsewhere)
        assert list(await store.ids()) == [f"r@{number}" for number in range(8)]
        await store.collect()
        assert await read_contents(store, "r@0") == {"a": b'"another 0"'}

    @pytest.mark.parametrize("later", ["by a commit", "by an event"])
    async def test_run_is_not_replaced_by_an_older_archive(
        self, store: TenantStore, sample: RunDriver, later: str
    ) -> None:
        archive = await store.archive("r")
        if later == "by a commit":
            await sample.commit()
        else:
            older = replace(archive.record, position=archive.record.position + 1, events=archive.record.events)
            await sample.commit(events=events("5"))
            archive = replace(archive, record=older)
        await sample.release(halt=halted("exported"))
        before, record = await read_run(store), await sample.record()
        await refused(WorkflowCheckpointException, store.restore(archive), match="before the run went on")
        assert (await read_run(store), await sample.record()) == (before, record)
        await store.restore(await store.archive("r"))
        assert await sample.record() == replace(record, halt=None)

    async def test_parent_of_a_fork_is_kept_when_a_run_comes_back(self, store: TenantStore, sample: RunDriver) -> None:
        fork = await sample.another("f", parent="r@0")
        await sample.release(halt=halted("exported"))
        whole, before = await store.archive("r"), await read_run(store)
        partial = replace(whole, checkpoints=whole.checkpoints[1:])
        await refused(WorkflowCheckpointException, store.restore(partial), match="'f', a fork of it")
        assert await read_run(store) == before
        await store.restore(whole)
        assert (await store.manifest("r@0")).checkpoint_id == "r@0"
        await refused(WorkflowCheckpointException, store.remove("r"), match="'f', a fork of it")
        await fork.commit()
        await sample.reacquire()
        await sample.release(halt=halted("exported"))
        await store.restore(partial)
        assert (await store.manifests(run_id="r"))[0].checkpoint_id == "r@1"

    async def test_commands_get_new_numbers(self, store: TenantStore, clock: ManualClock, archive: Archive) -> None:
        other = await RunDriver.start(store, clock, "other", commits=1)
        (before,) = await other.post(command("before"))
        inbox = tuple(replace(each, number=_LARGEST_NUMBER - 2 + n) for n, each in enumerate(archive.inbox))
        await store.restore(replace(archive, inbox=inbox))
        numbers = [each.number for each in await store.inbox("r")]
        assert [each.id for each in await store.inbox("r")] == [each.id for each in inbox]
        assert [before, *numbers] == sorted({before, *numbers})
        (after,) = await other.post(command("after"))
        assert max(numbers) < after < _LARGEST_NUMBER


_LARGEST_NUMBER = 2**63 - 1
