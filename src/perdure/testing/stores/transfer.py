"""Transfers: a complete run leaves one store and continues in another."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from perdure.errors import RunExistsError, RunNotFoundError, WorkflowCheckpointException
from perdure.records import FullHistory, KeepFor, KeepLast, LatestOnly, Mark, Retention
from perdure.storage import MemoryStore
from perdure.testing.stores.base import (
    HEAD,
    LATE,
    NOTHING,
    REFUSED,
    SOON,
    UNWOKEN_SECONDS,
    RunDriver,
    TenantStoreSuite,
    command,
    comparable,
    events,
    finished,
    halted,
    in_a_loop,
    latest_id,
    make_sample_run,
    read_contents,
    read_run,
    text_blob,
)
from perdure.testing.stores.event_log import watcher

if TYPE_CHECKING:
    from pathlib import Path

    from perdure.records import Archive, HaltKind
    from perdure.storage import Store, TenantStore
    from perdure.testing.clock import ManualClock


async def archive_from_elsewhere(clock: ManualClock, run_id: str = "r", *, of: str = "another place") -> Archive:
    """Return the archive of a run from another store."""
    store = MemoryStore(clock=clock)
    await make_sample_run(store, clock, run_id, of=of)
    return await store.archive(run_id)


async def _going_on(store: Store, clock: ManualClock, archive: Archive) -> RunDriver:
    """Take the lease of a restored run."""
    run = RunDriver(store, clock, archive.record.run_id, archive.record.workflow_name)
    run.head, run.position = archive.record.head, archive.record.position
    await run.reacquire()
    return run


class TransferConformance(TenantStoreSuite):
    """A run is the same in every store."""

    @pytest.mark.parametrize("comes_here", [True, False])
    @in_a_loop
    async def test_a_run_that_moves_stays_what_it_was(
        self, store: TenantStore, clock: ManualClock, *, comes_here: bool
    ) -> None:
        elsewhere = MemoryStore(clock=clock)
        source, target = (elsewhere, store) if comes_here else (store, elsewhere)
        run = await make_sample_run(source, clock)
        await run.release()
        archive = await source.archive("r")
        await target.restore(archive)
        assert await target.run("r") == archive.record
        assert await read_run(target) == await read_run(source)
        assert comparable(await target.archive("r")) == comparable(archive)
        assert list(await target.ids()) == list(await source.ids())
        assert await latest_id(target, "flöw") == "r@4"
        await store.close()
        assert await read_run(target) == await read_run(source)
        await store.close()

    @in_a_loop
    async def test_a_run_that_went_there_and_back_is_what_it_was(self, store: TenantStore, clock: ManualClock) -> None:
        run = await make_sample_run(store, clock)
        await run.release()
        before, archive = await read_run(store), await store.archive("r")
        elsewhere = MemoryStore(clock=clock)
        await elsewhere.restore(archive)
        assert await store.remove("r")
        await store.restore(await elsewhere.archive("r"))
        assert await read_run(store) == before
        assert comparable(await store.archive("r")) == comparable(archive)

    @in_a_loop
    async def test_an_archive_holds_the_run_and_nothing_else(self, store: TenantStore, clock: ManualClock) -> None:
        await make_sample_run(store, clock, "other", of="others")
        run = await make_sample_run(store, clock)
        await run.reacquire()
        record, archive = await run.record(), await store.archive("r")
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

    @in_a_loop
    async def test_blobs_are_archived_as_they_were_written(self, store: TenantStore, clock: ManualClock) -> None:
        elsewhere = MemoryStore(clock=clock)
        for each in (store, elsewhere):
            await make_sample_run(each, clock)
        assert comparable(await store.archive("r")).blobs == comparable(await elsewhere.archive("r")).blobs

    @in_a_loop
    async def test_archiving_changes_nothing(self, store: TenantStore, clock: ManualClock) -> None:
        run = await make_sample_run(store, clock)
        before, record = await read_run(store), await run.record()
        assert comparable(await store.archive("r")) == comparable(await store.archive("r"))
        assert (await read_run(store), await run.record()) == (before, record)
        await run.commit()
        assert (await run.record()).head == "r@7"

    @pytest.mark.parametrize("kind", ["failed", "parked", "exported"])
    @in_a_loop
    async def test_a_halted_run_is_archived_without_its_halt(
        self, store: TenantStore, clock: ManualClock, kind: HaltKind
    ) -> None:
        run = await make_sample_run(store, clock)
        await run.release(halt=halted(kind))
        archive = await store.archive("r")
        assert archive.record == replace(await run.record(), halt=None)
        assert (await run.record()).halt == halted(kind)

    @in_a_loop
    async def test_a_run_with_little_to_it_moves_as_well(self, store: TenantStore, clock: ManualClock) -> None:
        elsewhere = MemoryStore(clock=clock)
        await (await RunDriver.start(elsewhere, clock, "r")).commit()
        archive = await elsewhere.archive("r")
        assert (archive.blobs, archive.journal, archive.inbox, archive.events) == ((), (), (), ())
        await store.restore(archive)
        assert comparable(await store.archive("r")) == comparable(archive)

    @in_a_loop
    async def test_what_is_not_there_is_not_archived(self, store: TenantStore, clock: ManualClock) -> None:
        with pytest.raises(RunNotFoundError):
            await store.archive("r")
        await RunDriver.start(store, clock, "r")
        with pytest.raises(RunNotFoundError):
            await store.archive("r")

    @in_a_loop
    async def test_a_fork_is_archived_once_it_has_a_checkpoint_of_its_own(
        self, store: TenantStore, clock: ManualClock
    ) -> None:
        source, shared = await RunDriver.start(store, clock, "r"), text_blob("shared", text_blob("leaf"))
        await source.commit({"a": shared}, text_blob("leaf"))
        fork = await RunDriver.start(store, clock, "f", parent="r@0")
        with pytest.raises(WorkflowCheckpointException):
            await store.archive("f")
        await fork.write(replace(fork.next_commit({"a": shared}), blobs=()))
        archive = await store.archive("f")
        assert [each.manifest.checkpoint_id for each in archive.checkpoints] == ["f@0"]
        elsewhere = MemoryStore(clock=clock)
        await elsewhere.restore(archive)
        assert await elsewhere.run("f") == archive.record
        assert archive.record.parent_checkpoint_id == "r@0"
        assert await read_contents(elsewhere, "f@0") == {"a": shared.data}
        assert await elsewhere.blobs([text_blob("leaf").hash]) == {text_blob("leaf").hash: b'"leaf"'}

    @in_a_loop
    async def test_a_restored_run_goes_on_where_it_was(self, store: TenantStore, clock: ManualClock) -> None:
        archive = await archive_from_elsewhere(clock)
        await store.restore(archive)
        run = await _going_on(store, clock, archive)
        assert await run.noted() == ["a=second of another place", "b=another place"]
        numbers = [each.number for each in await store.inbox("r")]
        assert numbers == sorted(set(numbers))
        (later,) = await run.post(command("later"))
        assert later > max(numbers)
        await run.commit(consumed=("expecting", "z"), events=events("5", "6"), status="waiting")
        record = await run.record()
        assert (record.head, record.position, record.events) == ("r@7", 7, archive.record.events + 2)
        assert await run.inbox() == ["a=another place", "later="]
        assert await run.noted() == []
        assert (await run.events())[-3:] == ["4=4 another place", "5=5", "6=6"]
        assert await latest_id(store, "flöw") == "r@7"

    @in_a_loop
    async def test_a_restored_run_can_be_moved_to_each_of_its_checkpoints(
        self, store: TenantStore, clock: ManualClock
    ) -> None:
        archive = await archive_from_elsewhere(clock)
        await store.restore(archive)
        run = await _going_on(store, clock, archive)
        for number, each in enumerate(archive.checkpoints):
            await run.rewind(each.manifest.checkpoint_id, nonce=f"nonce {number}")
            record = await run.record()
            assert (record.status, record.wake_at, record.settled) == (each.status, each.wake_at, each.settled)
        assert await run.inbox() == ["z=another place", "a=another place"]

    @in_a_loop
    async def test_a_run_that_is_restored_wakes_who_waits(self, store: TenantStore, clock: ManualClock) -> None:
        archive = await archive_from_elsewhere(clock)
        watch = await watcher(store, "r", seen=Mark())
        await store.restore(archive)
        mark = await asyncio.wait_for(watch, UNWOKEN_SECONDS)
        assert (mark.head, mark.events, mark.owner) == (HEAD, 4, None)
        await store.close()

    @in_a_loop
    async def test_restored_beside_others_a_run_keeps_its_order_and_they_theirs(
        self, store: TenantStore, clock: ManualClock
    ) -> None:
        other = await make_sample_run(store, clock, "other", of="others")
        before, ids = await read_run(store, "other"), list(await store.ids())
        archive = await archive_from_elsewhere(clock)
        await store.restore(archive)
        assert await read_run(store, "other") == before
        assert list(await store.ids()) == [*ids, *(each.manifest.checkpoint_id for each in archive.checkpoints)]
        assert [record.run_id for record in await store.runs()] == ["other", "r"]
        await other.commit()
        assert await latest_id(store, "flöw") == "other@7"

    @in_a_loop
    async def test_what_was_handed_in_can_change_afterwards(self, store: TenantStore, clock: ManualClock) -> None:
        archive = comparable(await archive_from_elsewhere(clock))
        await store.restore(archive)
        before = await read_run(store)
        for each in archive.checkpoints:
            assert isinstance(each.manifest.toc, dict)
            each.manifest.toc.clear()
        assert await read_run(store) == before

    @in_a_loop
    async def test_a_run_comes_back_in_place_of_the_one_that_was_exported(
        self, store: TenantStore, clock: ManualClock
    ) -> None:
        run = await make_sample_run(store, clock)
        await run.release(halt=halted("exported"))
        elsewhere, archive = MemoryStore(clock=clock), await store.archive("r")
        await elsewhere.restore(archive)
        gone_on = await _going_on(elsewhere, clock, archive)
        await gone_on.commit({"e": text_blob("of elsewhere")}, consumed=("z",), events=events("5"))
        await gone_on.note(finished("c", "of elsewhere"))
        await gone_on.release()
        await store.restore(await elsewhere.archive("r"))
        assert await store.run("r") == await elsewhere.run("r")
        assert await read_run(store) == await read_run(elsewhere)
        assert [record.run_id for record in await store.runs()] == ["r"]
        (number,) = await run.post(command("later"))
        assert number > max(each.number for each in archive.inbox)
        back = await _going_on(store, clock, await store.archive("r"))
        assert run.lease is not None
        assert back.lease is not None
        assert back.lease.token > run.lease.token
        await back.commit()
        assert (await back.record()).head == "r@8"

    @in_a_loop
    async def test_a_run_that_comes_back_can_be_another_one(self, store: TenantStore, clock: ManualClock) -> None:
        run = await make_sample_run(store, clock)
        await run.release(halt=halted("exported"))
        elsewhere = MemoryStore(clock=clock)
        another = await RunDriver.start(elsewhere, clock, "r")
        for number in range(8):
            await another.commit({"a": text_blob(f"another {number}")}, events=events("of another"))
        await store.restore(await elsewhere.archive("r"))
        assert await read_run(store) == await read_run(elsewhere)
        assert list(await store.ids()) == [f"r@{number}" for number in range(8)]
        await store.collect()
        assert await read_contents(store, "r@0") == {"a": b'"another 0"'}

    @in_a_loop
    async def test_a_fork_rests_on_a_run_that_goes_and_comes_back(self, store: TenantStore, clock: ManualClock) -> None:
        run = await make_sample_run(store, clock)
        fork = await RunDriver.start(store, clock, "f", workflow_name="flöw", parent=HEAD)
        await fork.release()
        await run.release(halt=halted("exported"))
        await store.restore(await store.archive("r"))
        assert (await fork.record()).head == HEAD
        await fork.reacquire()
        await fork.commit()
        assert (await fork.record()).head == "f@0"

    @pytest.mark.parametrize("halt", [None, "failed", "parked"])
    @in_a_loop
    async def test_a_run_that_is_here_is_not_replaced(
        self, store: TenantStore, clock: ManualClock, halt: HaltKind | None
    ) -> None:
        run = await make_sample_run(store, clock)
        await run.release(halt=halted(halt) if halt else None)
        before, record = await read_run(store), await run.record()
        with pytest.raises(RunExistsError):
            await store.restore(await archive_from_elsewhere(clock))
        assert (await read_run(store), await run.record()) == (before, record)
        await store.collect()
        assert await read_run(store) == before
        assert await store.blobs([text_blob("tree of another place").hash]) == {}

    @in_a_loop
    async def test_a_fork_that_is_here_is_not_replaced(self, store: TenantStore, clock: ManualClock) -> None:
        await make_sample_run(store, clock, "source")
        fork = await RunDriver.start(store, clock, "r", workflow_name="flöw", parent="source@0")
        with pytest.raises(RunExistsError):
            await store.restore(await archive_from_elsewhere(clock))
        await fork.commit()
        assert (await fork.record()).parent_checkpoint_id == "source@0"

    @in_a_loop
    async def test_a_run_is_not_restored_if_an_id_of_it_is_taken(self, store: TenantStore, clock: ManualClock) -> None:
        other = await RunDriver.start(store, clock, "other")
        await other.commit(checkpoint_id="r by name")
        before, archive = await read_run(store, "other"), await archive_from_elsewhere(clock)
        with pytest.raises(WorkflowCheckpointException):
            await store.restore(archive)
        assert await read_run(store, "other") == before
        assert await read_run(store) == NOTHING
        assert list(await store.ids()) == ["r by name"]
        await store.collect()
        assert await store.blobs([text_blob("tree of another place").hash]) == {}
        await store.delete("r by name")
        await store.restore(archive)
        assert await store.run("r") == archive.record

    @in_a_loop
    async def test_a_run_that_never_began_makes_way(self, store: TenantStore, clock: ManualClock) -> None:
        late, archive = await RunDriver.start(store, clock, "r"), await archive_from_elsewhere(clock)
        await late.note(finished("a", "of one that never began"))
        await store.restore(archive)
        assert await store.run("r") == archive.record
        with pytest.raises(REFUSED):
            await late.commit()
        assert await store.run("r") == archive.record
        assert [each.key for each in await store.journal("r")] == ["a", "b"]

    @in_a_loop
    async def test_events_that_are_forgotten_stay_forgotten(self, tmp_path: Path, clock: ManualClock) -> None:
        stores = [
            self.open_store(tmp_path / name, retention=Retention(events=kept), clock=clock)
            for name, kept in {"source": KeepLast(1), "target": FullHistory()}.items()
        ]
        await (await make_sample_run(stores[0], clock)).release()
        archive = await stores[0].archive("r")
        assert [each.first for each in archive.events] == [4]
        await stores[1].restore(archive)
        assert await read_run(stores[1]) == await read_run(stores[0])
        run = await _going_on(stores[1], clock, archive)
        await run.commit(events=events("5"))
        assert await run.events() == ["4=4 us", "5=5"]
        for store in stores:
            await store.close()

    @in_a_loop
    async def test_the_retention_goes_for_what_was_restored(self, tmp_path: Path, clock: ManualClock) -> None:
        retention = Retention(checkpoints=LatestOnly(), events=KeepLast(1))
        store = self.open_store(tmp_path, retention=retention, clock=clock)
        archive = await archive_from_elsewhere(clock)
        await store.restore(archive)
        run = await _going_on(store, clock, archive)
        await run.commit({"a": text_blob("new")}, events=events("5"))
        assert list(await store.ids()) == ["r@7"]
        assert await run.events() == ["5=5"]
        await store.collect()
        assert await read_contents(store, "r@7") == {"a": b'"new"'}
        await store.close()

    @in_a_loop
    async def test_a_finished_run_that_was_restored_goes_when_it_is_old(
        self, tmp_path: Path, clock: ManualClock
    ) -> None:
        retention = Retention(finished_runs=KeepFor(timedelta(days=7)))
        store, elsewhere = self.open_store(tmp_path, retention=retention, clock=clock), MemoryStore(clock=clock)
        for name, settled in {"finished": True, "unfinished": False}.items():
            await (await RunDriver.start(elsewhere, clock, name)).commit(settled=settled)
            await store.restore(await elsewhere.archive(name))
        busy = await RunDriver.start(store, clock, "busy")
        await busy.commit()
        assert await store.run("finished") is not None
        clock.advance(timedelta(days=8))
        await busy.commit()
        assert [record.run_id for record in await store.runs()] == ["unfinished", "busy"]
        await store.close()


_LARGEST_NUMBER = 2**63 - 1


class ReopeningConformance(TenantStoreSuite):
    """A reopened run has all of its data."""

    @pytest.mark.parametrize("has_gone_on", ["by a commit", "by an event"])
    @in_a_loop
    async def test_a_run_is_not_replaced_by_what_it_was_before(
        self, store: TenantStore, clock: ManualClock, has_gone_on: str
    ) -> None:
        run = await make_sample_run(store, clock)
        archive = await store.archive("r")
        if has_gone_on == "by a commit":
            await run.commit()
        else:
            older = replace(archive.record, position=archive.record.position + 1, events=archive.record.events)
            await run.commit(events=events("5"))
            archive = replace(archive, record=older)
        await run.release(halt=halted("exported"))
        before, record = await read_run(store), await run.record()
        with pytest.raises(WorkflowCheckpointException, match="before the run went on"):
            await store.restore(archive)
        assert (await read_run(store), await run.record()) == (before, record)
        await store.restore(await store.archive("r"))
        assert await run.record() == replace(record, halt=None)

    @in_a_loop
    async def test_a_run_is_not_replaced_by_one_without_what_a_fork_rests_on(
        self, store: TenantStore, clock: ManualClock
    ) -> None:
        run = await make_sample_run(store, clock)
        fork = await RunDriver.start(store, clock, "f", workflow_name="flöw", parent="r@0")
        await fork.release()
        await run.release(halt=halted("exported"))
        whole = await store.archive("r")
        partial = replace(whole, checkpoints=whole.checkpoints[1:])
        before = await read_run(store)
        with pytest.raises(WorkflowCheckpointException, match="'f', a fork of it"):
            await store.restore(partial)
        assert await read_run(store) == before
        await fork.reacquire()
        await fork.commit()
        await store.restore(partial)
        assert (await store.manifests(run_id="r"))[0].checkpoint_id == "r@1"

    @in_a_loop
    async def test_a_fork_keeps_what_it_rests_on_when_a_run_comes_back(
        self, store: TenantStore, clock: ManualClock
    ) -> None:
        run = await make_sample_run(store, clock)
        fork = await RunDriver.start(store, clock, "f", workflow_name="flöw", parent="r@0")
        await run.release(halt=halted("exported"))
        await store.restore(await store.archive("r"))
        assert (await store.manifest("r@0")).checkpoint_id == "r@0"
        with pytest.raises(WorkflowCheckpointException, match="'f', a fork of it"):
            await store.remove("r")
        await fork.commit()
        assert await store.remove("r")

    @in_a_loop
    async def test_the_numbers_of_commands_are_given_anew(self, store: TenantStore, clock: ManualClock) -> None:
        other = await RunDriver.start(store, clock, "other")
        await other.commit()
        (before,) = await other.post(command("before"))
        elsewhere = MemoryStore(clock=clock)
        await make_sample_run(elsewhere, clock)
        archive = await elsewhere.archive("r")
        inbox = tuple(replace(each, number=_LARGEST_NUMBER - 2 + n) for n, each in enumerate(archive.inbox))
        await store.restore(replace(archive, inbox=inbox))
        numbers = [each.number for each in await store.inbox("r")]
        assert [each.id for each in await store.inbox("r")] == [each.id for each in inbox]
        assert [before, *numbers] == sorted({before, *numbers})
        (after,) = await other.post(command("after"))
        assert max(numbers) < after < _LARGEST_NUMBER
