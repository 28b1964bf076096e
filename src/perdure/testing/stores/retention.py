"""Retention: data that a store deletes by itself, and data that it always keeps."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from perdure.errors import CheckpointNotFoundError, RunNotFoundError, WorkflowCheckpointException
from perdure.records import KeepFor, KeepLast, LatestOnly, Mark, Retention
from perdure.testing.clock import ManualClock
from perdure.testing.stores.base import (
    HEAD,
    NOTHING,
    REFUSED,
    UNWOKEN_SECONDS,
    RunDriver,
    StoreSuite,
    TenantStoreSuite,
    command,
    events,
    finished,
    halted,
    in_a_loop,
    latest_id,
    make_sample_run,
    new_run,
    raw_blob,
    read_contents,
    read_run,
    text_blob,
    wait_for_collection,
)
from perdure.testing.stores.event_log import watcher

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from perdure.records import HaltKind
    from perdure.storage import Store, TenantStore


class RetentionConformance(StoreSuite):
    """A store deletes what its retention allows, but no head and nothing that a fork needs."""

    async def _history(
        self, directory: Path, retention: Retention, steps: int, *, every: timedelta = timedelta(0)
    ) -> tuple[RunDriver, Sequence[str]]:
        clock = ManualClock()
        run = await RunDriver.start(self.open_store(directory, retention=retention, clock=clock), clock, "r")
        for step in range(steps):
            await run.commit({"a": text_blob(f"v{step}")})
            clock.advance(every)
        return run, list(await run.store.ids())

    @in_a_loop
    async def test_latest_only_keeps_the_newest(self, tmp_path: Path) -> None:
        run, ids = await self._history(tmp_path, Retention(checkpoints=LatestOnly()), 5)
        assert ids == ["r@4"]
        assert await read_contents(run.store, "r@4") == {"a": b'"v4"'}
        assert await latest_id(run.store, "flow") == "r@4"
        await run.store.close()

    @in_a_loop
    async def test_keep_last_keeps_so_many(self, tmp_path: Path) -> None:
        run, ids = await self._history(tmp_path, Retention(checkpoints=KeepLast(3)), 7)
        assert ids == ["r@4", "r@5", "r@6"]
        await run.store.close()

    @in_a_loop
    async def test_keep_last_counts_what_there_is(self, tmp_path: Path) -> None:
        run, _ = await self._history(tmp_path, Retention(checkpoints=KeepLast(3)), 3)
        await run.store.delete("r@1")
        await run.commit()
        assert list(await run.store.ids()) == ["r@0", "r@2", "r@3"]
        await run.store.close()

    @in_a_loop
    async def test_keep_for_keeps_what_is_young(self, tmp_path: Path) -> None:
        retention = Retention(checkpoints=KeepFor(timedelta(hours=2)))
        run, ids = await self._history(tmp_path, retention, 6, every=timedelta(hours=1))
        assert ids == ["r@3", "r@4", "r@5"]
        await run.store.close()

    @in_a_loop
    async def test_the_head_is_kept_however_old_it_is(self, tmp_path: Path) -> None:
        retention = Retention(checkpoints=KeepFor(timedelta(0)), finished_runs=KeepFor(timedelta(days=30)))
        run, ids = await self._history(tmp_path, retention, 4, every=timedelta(days=1))
        assert ids == ["r@3"]
        assert isinstance(run.clock, ManualClock)
        run.clock.advance(timedelta(days=365))
        other = await RunDriver.start(run.store, run.clock, "s")
        await other.commit()
        await other.commit()
        assert (await run.record()).head == "r@3"
        assert "r@3" in await run.store.ids()
        await run.store.close()

    @in_a_loop
    async def test_what_a_fork_rests_on_is_kept_until_it_has_its_own(self, tmp_path: Path) -> None:
        run, _ = await self._history(tmp_path, Retention(checkpoints=LatestOnly()), 2)
        fork = await RunDriver.start(run.store, run.clock, "f", parent="r@1")
        await fork.release()
        await run.commit()
        await run.commit()
        assert list(await run.store.ids()) == ["r@1", "r@3"]
        await run.store.collect()
        assert await read_contents(run.store, "r@1") == {"a": b'"v1"'}
        fork.lease = await run.store.acquire("f")
        await fork.commit()
        await run.commit()
        assert list(await run.store.ids()) == ["f@0", "r@4"]
        await run.store.close()

    @in_a_loop
    async def test_after_rewinding_only_the_new_line_is_kept(self, tmp_path: Path) -> None:
        run, _ = await self._history(tmp_path, Retention(checkpoints=KeepLast(4)), 4)
        await run.rewind("r@1")
        assert list(await run.store.ids()) == ["r@0", "r@1", "r@2", "r@3"]
        await run.commit()
        assert list(await run.store.ids()) == ["r@1", "r@2", "r@3", "r@4"]
        await run.store.close()

    @in_a_loop
    async def test_finished_runs_go_when_they_are_old(self, tmp_path: Path) -> None:
        clock = ManualClock()
        store = self.open_store(tmp_path, retention=Retention(finished_runs=KeepFor(timedelta(days=7))), clock=clock)
        finished = await RunDriver.start(store, clock, "finished")
        await finished.commit()
        await finished.commit(settled=True)
        await finished.release()
        unfinished = await RunDriver.start(store, clock, "unfinished")
        await unfinished.commit()
        await unfinished.release()
        held = await RunDriver.start(store, clock, "held")
        await held.commit(settled=True)
        clock.advance(timedelta(days=8))
        young = await RunDriver.start(store, clock, "young")
        await young.commit(settled=True)
        await young.release()
        busy = await RunDriver.start(store, clock, "busy")
        await busy.commit()
        assert await store.run("finished") is None
        assert list(await store.ids()) == ["unfinished@0", "held@0", "young@0", "busy@0"]
        again = await RunDriver.start(store, clock, "finished")
        await again.commit()
        assert (await again.record()).position == 0
        await store.close()

    @in_a_loop
    async def test_a_finished_run_that_a_fork_rests_on_is_kept(self, tmp_path: Path) -> None:
        clock = ManualClock()
        store = self.open_store(tmp_path, retention=Retention(finished_runs=KeepFor(timedelta(days=7))), clock=clock)
        finished = await RunDriver.start(store, clock, "finished")
        await finished.commit()
        await finished.commit(settled=True)
        await finished.release()
        fork = await RunDriver.start(store, clock, "fork", parent="finished@0")
        clock.advance(timedelta(days=8))
        busy = await RunDriver.start(store, clock, "busy")
        await busy.commit()
        assert list(await store.ids()) == ["finished@0", "finished@1", "busy@0"]
        await fork.commit()
        await busy.commit()
        assert list(await store.ids()) == ["busy@0", "fork@0", "busy@1"]
        await store.close()

    @in_a_loop
    async def test_a_finished_run_for_which_a_command_waits_is_kept(self, tmp_path: Path) -> None:
        clock = ManualClock()
        store = self.open_store(tmp_path, retention=Retention(finished_runs=KeepFor(timedelta(days=7))), clock=clock)
        run = await RunDriver.start(store, clock, "finished")
        await run.commit(settled=True)
        await run.post(command("wake up"))
        await run.release()
        clock.advance(timedelta(days=8))
        busy = await RunDriver.start(store, clock, "busy")
        await busy.commit()
        assert list(await store.ids()) == ["finished@0", "busy@0"]
        run.lease = await store.acquire("finished")
        await run.commit(settled=True, consumed=("wake up",))
        await run.release()
        clock.advance(timedelta(days=8))
        await busy.commit()
        assert await store.run("finished") is None
        await store.close()

    @in_a_loop
    async def test_blobs_of_what_was_forgotten_go_by_themselves(self, tmp_path: Path) -> None:
        clock = ManualClock()
        store = self.open_store(tmp_path, retention=Retention(checkpoints=LatestOnly()), clock=clock)
        run = await RunDriver.start(store, clock, "r")
        blobs = [raw_blob(f"{step} ".encode() * 2000) for step in range(300)]
        for blob in blobs:
            await run.commit({"a": blob})
        assert await wait_for_collection(run, blobs[:-1], a=blobs[-1])
        assert await store.blobs([blobs[-1].hash])
        await store.close()

    @in_a_loop
    async def test_the_journal_of_a_finished_run_goes_with_it(self, tmp_path: Path) -> None:
        clock = ManualClock()
        store = self.open_store(tmp_path, retention=Retention(finished_runs=KeepFor(timedelta(days=7))), clock=clock)
        finished_run = await RunDriver.start(store, clock, "r")
        await finished_run.commit(settled=True)
        await finished_run.note(finished("a", "", raw_blob(b"next turn" * 3000)))
        await finished_run.release()
        clock.advance(timedelta(days=8))
        await (await RunDriver.start(store, clock, "s")).commit()
        assert await store.run("r") is None
        assert await finished_run.noted() == []
        assert await store.collect() == 1
        await store.close()

    @in_a_loop
    async def test_blobs_of_journals_go_by_themselves(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        blobs = [raw_blob(f"{step} ".encode() * 2000) for step in range(300)]
        for number, blob in enumerate(blobs):
            await run.note(finished("a", "", blob), durable=False)
            if number % 5 == 4:
                await run.commit()
        assert await wait_for_collection(run, blobs)


_HASH = raw_blob(b"of nobody").hash

ODD_PATHS = (
    "",
    "a:",
    "a: ",
    ':"',
    '":"',
    '"',
    "\\",
    '\\"',
    '\\\\":"',
    "{}",
    "[],",
    "\0",
    "a\0:",
    "\\u0000",
    "\ud800",
    "\ufdd0:",
    "\n\u2028",
    "\U0001d11e:",
    f'":"{_HASH}",',
    f'"{_HASH}"',
)
"""Paths that look like the store's own syntax."""


class ForgettingConformance(StoreSuite):
    """Deleted data is gone, and nothing that others need."""

    @in_a_loop
    async def test_a_deleted_checkpoint_is_gone(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        for _ in range(3):
            await run.commit()
        assert await store.delete("r@1") is True
        assert await store.delete("r@1") is False
        with pytest.raises(CheckpointNotFoundError):
            await store.manifest("r@1")
        assert list(await store.ids()) == ["r@0", "r@2"]
        assert (await run.record()).head == "r@2"

    @in_a_loop
    async def test_when_the_head_is_deleted_the_newest_remaining_takes_over(
        self, store: Store, clock: ManualClock
    ) -> None:
        run = await RunDriver.start(store, clock, "r")
        for step in range(3):
            await run.commit(settled=step == 1)
        await store.delete("r@2")
        record = await run.record()
        assert (record.head, record.position, record.settled) == ("r@1", 2, True)
        assert await latest_id(store, "flow") == "r@1"
        run.head = "r@1"
        await run.commit()
        assert (await run.record()).head == "r@3"

    @in_a_loop
    async def test_when_a_rewound_head_is_deleted_the_newest_remaining_takes_over(
        self, store: Store, clock: ManualClock
    ) -> None:
        run = await RunDriver.start(store, clock, "r")
        for _ in range(4):
            await run.commit()
        await run.rewind("r@1")
        await store.delete("r@1")
        assert (await run.record()).head == "r@3"

    @in_a_loop
    async def test_a_run_whose_checkpoints_are_all_deleted_is_gone(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        await run.commit()
        await run.release()
        for checkpoint_id in ("r@1", "r@0"):
            await store.delete(checkpoint_id)
        assert await store.run("r") is None
        assert await store.latest(workflow_name="flow") is None
        again = await RunDriver.start(store, clock, "r")
        await again.commit()
        assert (await again.record()).position == 0

    @in_a_loop
    async def test_the_latest_survives_deletions_of_newer_ones(self, store: Store, clock: ManualClock) -> None:
        runs = {name: await RunDriver.start(store, clock, name) for name in "qrs"}
        written = [await runs[name].commit() for name in "qrsrqqsr"]
        while written:
            assert await latest_id(store, "flow") == written[-1]
            await store.delete(written.pop())
        assert await store.latest(workflow_name="flow") is None

    @in_a_loop
    async def test_a_deleted_id_can_be_used_again(self, store: Store, clock: ManualClock) -> None:
        first = await RunDriver.start(store, clock, "r")
        await first.commit()
        await first.commit(checkpoint_id="mine")
        await store.delete("mine")
        second = await RunDriver.start(store, clock, "s")
        await second.commit({"a": text_blob("again")}, checkpoint_id="mine")
        assert (await store.manifest("mine")).run_id == "s"
        assert (await first.record()).head == "r@0"
        assert [manifest.checkpoint_id for manifest in await store.manifests(run_id="r")] == ["r@0"]

    @in_a_loop
    async def test_collecting_removes_what_nobody_needs_and_nothing_else(
        self, store: Store, clock: ManualClock
    ) -> None:
        leaf, shared = raw_blob(b"leaf" * 3000), raw_blob(b"shared" * 3000)
        gone = raw_blob(b"gone" * 3000)
        tree = text_blob("tree", leaf)
        run = await RunDriver.start(store, clock, "r")
        await run.commit({"a": gone, "b": shared})
        await run.commit({"b": shared, "c": tree}, leaf)
        assert await store.collect() == 0
        await store.delete("r@0")
        assert await store.collect() == 1
        assert await store.collect() == 0
        assert await store.blobs([gone.hash]) == {}
        assert (await store.blobs([tree.hash, shared.hash])).keys() == {leaf.hash, shared.hash, tree.hash}

    @in_a_loop
    async def test_collecting_spares_the_blobs_of_every_path(self, store: Store, clock: ManualClock) -> None:
        blobs = {path: raw_blob(f"at {path!r}".encode() * 1000) for path in ODD_PATHS}
        gone = raw_blob(b"gone" * 3000)
        run = await RunDriver.start(store, clock, "r")
        await run.commit({"a": gone})
        await run.commit(blobs)
        await store.delete("r@0")
        assert await store.collect() == 1
        assert await read_contents(store, "r@1") == {path: blob.data for path, blob in blobs.items()}

    @in_a_loop
    async def test_a_collected_blob_can_be_written_again(self, store: Store, clock: ManualClock) -> None:
        blob = raw_blob(b"again" * 3000)
        run = await RunDriver.start(store, clock, "r")
        await run.commit({"a": blob})
        await run.commit()
        await store.delete("r@0")
        await store.collect()
        await run.commit({"a": blob})
        assert await read_contents(store, "r@2") == {"a": blob.data}


class RemovalConformance(TenantStoreSuite):
    """A removed run leaves nothing behind, and the data of others stays."""

    @in_a_loop
    async def test_a_removed_run_leaves_nothing(self, store: TenantStore, clock: ManualClock) -> None:
        assert await store.remove("r") is False
        run = await make_sample_run(store, clock)
        await run.release()
        blobs = (await store.archive("r")).blobs
        assert await store.remove("r") is True
        assert await store.remove("r") is False
        assert await read_run(store) == NOTHING
        assert (list(await store.runs()), list(await store.ids())) == ([], [])
        assert await store.latest(workflow_name="flöw") is None
        assert await run.mark() == Mark()
        with pytest.raises(WorkflowCheckpointException):
            await store.manifest(HEAD)
        with pytest.raises(RunNotFoundError):
            await run.post(command("late"))
        assert await store.collect() > 0
        assert await store.blobs(blob.hash for blob in blobs) == {}
        await store.close()
        assert list(await store.runs()) == []

    @in_a_loop
    async def test_others_keep_what_they_share_with_a_removed_run(self, store: TenantStore, clock: ManualClock) -> None:
        other = await make_sample_run(store, clock, "other")
        run = await make_sample_run(store, clock)
        own = raw_blob(b"of this one only" * 900)
        await run.commit({"own": own})
        before = await read_run(store, "other")
        assert await store.remove("r")
        assert await store.collect() == 1
        assert await store.blobs([own.hash]) == {}
        assert await read_run(store, "other") == before
        assert await latest_id(store, "flöw") == "other@4"
        await other.commit()

    @in_a_loop
    async def test_a_run_of_this_process_can_be_removed_under_its_hands(
        self, store: TenantStore, clock: ManualClock
    ) -> None:
        late = await make_sample_run(store, clock)
        assert await store.remove("r")
        await self._assert_void(late)
        again = await RunDriver.start(store, clock, "r")
        await again.commit()
        await self._assert_void(late)
        record = await again.record()
        assert (record.head, record.position, record.events) == ("r@0", 0, 0)

    async def _assert_void(self, late: RunDriver) -> None:
        with pytest.raises(REFUSED):
            await late.commit({"a": text_blob("late")})
        with pytest.raises(REFUSED):
            await late.note(finished("late", "late"))
        await late.release(halt=halted())
        assert await late.noted() == []

    @pytest.mark.parametrize("kind", ["failed", "parked", "exported"])
    @in_a_loop
    async def test_a_halted_run_can_be_removed(self, store: TenantStore, clock: ManualClock, kind: HaltKind) -> None:
        run = await make_sample_run(store, clock)
        await run.release(halt=halted(kind))
        assert await store.remove("r")
        assert await store.run("r") is None
        again = await RunDriver.start(store, clock, "r")
        await again.commit()
        assert (await again.record()).halt is None

    @in_a_loop
    async def test_a_run_that_never_began_is_not_there_to_be_removed(
        self, store: TenantStore, clock: ManualClock
    ) -> None:
        run = await RunDriver.start(store, clock, "r")
        assert await store.remove("r") is False
        await run.commit()
        assert (await run.record()).head == "r@0"

    @in_a_loop
    async def test_a_run_that_a_fork_rests_on_is_not_removed(self, store: TenantStore, clock: ManualClock) -> None:
        run = await make_sample_run(store, clock)
        await run.release()
        fork = await RunDriver.start(store, clock, "f", parent="r by name")
        await fork.release()
        before = await read_run(store)
        with pytest.raises(WorkflowCheckpointException, match="'f'"):
            await store.remove("r")
        with pytest.raises(WorkflowCheckpointException, match="'f'"):
            await store.remove("r", takeover=True)
        assert await read_run(store) == before
        shared = raw_blob(b"c of us" * 900)
        await fork.reacquire()
        await fork.write(replace(fork.next_commit({"c": shared}), blobs=()))
        assert await store.remove("r")
        await store.collect()
        assert await read_contents(store, "f@0") == {"c": shared.data}
        assert (await fork.record()).parent_checkpoint_id == "r by name"

    @in_a_loop
    async def test_a_fork_can_be_removed_before_its_first_commit(self, store: TenantStore, clock: ManualClock) -> None:
        run = await make_sample_run(store, clock)
        fork = await RunDriver.start(store, clock, "f", parent=HEAD)
        await fork.note(finished("a", "", raw_blob(b"of the fork" * 900)))
        before = await read_run(store)
        assert await store.remove("f")
        assert (await store.run("f"), await fork.noted()) == (None, [])
        assert await store.collect() == 1
        assert await read_run(store) == before
        await run.release()
        assert await store.remove("r")

    @in_a_loop
    async def test_a_run_that_is_removed_wakes_who_waits(self, store: TenantStore, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        watch = await watcher(store, "r", seen=run.at("r@0"))
        assert await store.remove("r")
        assert await asyncio.wait_for(watch, UNWOKEN_SECONDS) == Mark()
        await store.close()

    @in_a_loop
    async def test_a_run_that_begins_again_has_nothing_of_the_removed_one(
        self, store: TenantStore, clock: ManualClock
    ) -> None:
        run = await make_sample_run(store, clock)
        await run.release()
        await store.remove("r")
        again = RunDriver(store, clock, "r", "flow")
        again.lease = await store.acquire("r", create=replace(new_run("r"), nonce="another"))
        await again.commit(events=events("first"))
        record = await again.record()
        assert (record.nonce, record.workflow_name, record.position) == ("another", "flow", 0)
        assert [*await again.events(), *await again.inbox(), *await again.noted()] == ["1=first"]
        (number,) = await again.post(command("z"))
        assert number > 0
        assert list(await store.ids()) == ["r@0"]
