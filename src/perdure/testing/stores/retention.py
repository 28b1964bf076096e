"""Retention: data that a store deletes by itself or on request, and data that it always keeps."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from perdure.errors import CheckpointNotFoundError, RunNotFoundError, WorkflowCheckpointException
from perdure.records import Blob, Halt, KeepFor, KeepLast, LatestOnly, Mark, Retention
from perdure.testing.stores.base import (
    HEAD,
    NOTHING,
    REFUSED,
    RunDriver,
    StoreSuite,
    TenantStoreSuite,
    command,
    events,
    finished,
    halted,
    keeps,
    latest_id,
    make_sample_run,
    raw_blob,
    read_contents,
    read_run,
    refused,
    text_blob,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from perdure.storage import Store, TenantStore
    from perdure.testing.clock import ManualClock

_HOUR, _DAY = timedelta(hours=1), timedelta(days=1)
_WEEK = KeepFor(7 * _DAY)
_LATE_COMMITS_MAX = 200
"""Number of commits within which a background collection must happen."""


def _large(step: int) -> Blob:
    return raw_blob(f"{step} ".encode() * 2000)


async def _history(store: Store, clock: ManualClock, steps: int, *, every: timedelta = timedelta(0)) -> RunDriver:
    """Make a run whose checkpoints have an event each, with a large blob."""
    run = await RunDriver.start(store, clock, "r")
    for step in range(steps):
        await run.commit({"a": text_blob(f"v{step}")}, events=events(f"{step}", blobs=(_large(step),)))
        clock.advance(every)
    return run


_LEAVERS: Mapping[str, Callable[[RunDriver, Blob, str], Awaitable[object]]] = {
    "checkpoint": lambda run, blob, _: run.commit({"a": blob}),
    "event": lambda run, blob, _: run.commit(events=events("a", blobs=(blob,))),
    "record": lambda run, blob, _: run.note(finished("a", "", blob), durable=False),
    "command": lambda run, blob, name: run.post(command(name, "", blob)),
}
"""Writes of a blob that is unused after a few more."""


class RetentionConformance(StoreSuite):
    """A store deletes what its retention allows, but no head and nothing that a fork needs."""

    @pytest.mark.parametrize(
        ("retention", "checkpoints", "kept"),
        [
            (Retention(checkpoints=LatestOnly()), 1, 7),
            (Retention(checkpoints=KeepLast(3)), 3, 7),
            (Retention(checkpoints=KeepFor(2 * _HOUR)), 3, 7),
            (Retention(events=KeepLast(3)), 7, 3),
            (Retention(events=KeepFor(2 * _HOUR)), 7, 3),
            (Retention(checkpoints=KeepLast(2), events=KeepLast(4)), 2, 4),
        ],
    )
    async def test_old_checkpoints_and_events_are_deleted(
        self, store: Store, clock: ManualClock, checkpoints: int, kept: int
    ) -> None:
        run = await _history(store, clock, 7, every=_HOUR)
        assert list(await store.ids()) == [f"r@{position}" for position in range(7 - checkpoints, 7)]
        assert await read_contents(store, "r@6") == {"a": b'"v6"'}
        assert await latest_id(store, "flow") == "r@6"
        left = [f"{number + 1}={number}" for number in range(7 - kept, 7)]
        assert await run.events() == await run.events(after=7 - kept) == left
        await store.collect()
        assert len(await store.blobs(_large(step).hash for step in range(7))) == kept
        await run.rewind("r@6")
        await run.commit(events=events("anew"))
        assert (await run.events())[-2:] == ["7=6", "8=anew"]

    @keeps(events=KeepFor(2 * _HOUR))
    async def test_old_events_are_deleted_by_a_commit_without_events(self, store: Store, clock: ManualClock) -> None:
        run = await _history(store, clock, 3)
        clock.advance(_DAY)
        await run.commit()
        assert await run.events() == []
        await run.commit(events=events("later"))
        assert await run.events() == ["4=later"]
        assert await store.collect() == 3

    @keeps(checkpoints=KeepFor(timedelta(0)), finished_runs=KeepFor(30 * _DAY))
    async def test_head_is_kept_at_any_age(self, store: Store, clock: ManualClock) -> None:
        run = await _history(store, clock, 4, every=_DAY)
        clock.advance(365 * _DAY)
        await RunDriver.start(store, clock, "s", commits=2)
        assert (await run.record()).head == "r@3"
        assert (await store.ids())[0] == "r@3"

    @keeps(checkpoints=LatestOnly())
    async def test_parent_is_kept_until_the_first_commit_of_a_fork(self, store: Store, clock: ManualClock) -> None:
        run = await _history(store, clock, 2)
        fork = await run.another("f", parent="r@1")
        await fork.release()
        await run.commit()
        await run.commit()
        assert list(await store.ids()) == ["r@1", "r@3"]
        await store.collect()
        assert await read_contents(store, "r@1") == {"a": b'"v1"'}
        await fork.reacquire()
        await fork.commit()
        await run.commit()
        assert list(await store.ids()) == ["f@0", "r@4"]

    @keeps(checkpoints=KeepLast(4))
    async def test_keep_last_counts_all_checkpoints_that_exist(self, store: Store, clock: ManualClock) -> None:
        run = await _history(store, clock, 4)
        await run.rewind("r@1")
        await run.commit()
        assert list(await store.ids()) == ["r@1", "r@2", "r@3", "r@4"]
        await store.delete("r@2")
        await run.commit()
        assert list(await store.ids()) == ["r@1", "r@3", "r@4", "r@5"]

    @keeps(finished_runs=_WEEK)
    async def test_old_finished_runs_are_deleted(self, store: Store, clock: ManualClock) -> None:
        old = await RunDriver.start(store, clock, "finished", commits=1)
        await old.commit(settled=True, events=events("a", blobs=(raw_blob(b"event" * 3000),)))
        await old.note(finished("a", "", raw_blob(b"next turn" * 3000)))
        await old.release()
        unfinished = await RunDriver.start(store, clock, "unfinished", commits=1)
        await unfinished.release()
        leased = await RunDriver.start(store, clock, "leased")
        await leased.commit(settled=True)
        clock.advance(8 * _DAY)
        young = await RunDriver.start(store, clock, "young")
        await young.commit(settled=True)
        await young.release()
        await RunDriver.start(store, clock, "busy", commits=1)
        assert await store.run("finished") is None
        assert [record.run_id for record in await store.runs()] == ["unfinished", "leased", "young", "busy"]
        assert [*await old.noted(), *await old.events()] == []
        assert list(await store.ids()) == ["unfinished@0", "leased@0", "young@0", "busy@0"]
        assert await store.collect() == 2
        again = await RunDriver.start(store, clock, "finished", commits=1)
        assert (await again.record()).position == 0

    @keeps(finished_runs=_WEEK)
    async def test_a_collection_deletes_all_old_finished_runs_without_a_commit(
        self, store: Store, clock: ManualClock
    ) -> None:
        for number in range(25):
            old = await RunDriver.start(store, clock, f"finished {number}", commits=1)
            await old.commit({"a": raw_blob(b"%d" % number * 3000)}, settled=True)
            await old.release()
        leased = await RunDriver.start(store, clock, "leased")
        await leased.commit(settled=True)
        posted = await RunDriver.start(store, clock, "posted")
        await posted.commit(settled=True)
        await posted.release()
        await posted.post(command("wake up"))
        clock.advance(6 * _DAY)
        await store.collect()
        assert len(await store.runs()) == 27
        clock.advance(2 * _DAY)
        assert await store.collect() >= 25
        assert [record.run_id for record in await store.runs()] == ["leased", "posted"]

    @keeps(finished_runs=_WEEK)
    async def test_finished_run_with_a_fork_or_a_command_is_kept(self, store: Store, clock: ManualClock) -> None:
        runs = [await RunDriver.start(store, clock, name, commits=1) for name in ("forked", "posted")]
        for run in runs:
            await run.commit(settled=True)
        await runs[1].post(command("wake up"))
        for run in runs:
            await run.release()
        fork = await RunDriver.start(store, clock, "fork", parent="forked@0")
        clock.advance(8 * _DAY)
        busy = await RunDriver.start(store, clock, "busy", commits=1)
        assert list(await store.ids()) == ["forked@0", "posted@0", "forked@1", "posted@1", "busy@0"]
        await fork.commit()
        await runs[1].reacquire()
        await runs[1].commit(settled=True, consumed=("wake up",))
        await runs[1].release()
        clock.advance(8 * _DAY)
        await busy.commit()
        assert list(await store.ids()) == ["busy@0", "fork@0", "busy@1"]

    @keeps(checkpoints=LatestOnly(), events=KeepLast(1))
    @pytest.mark.parametrize("kind", _LEAVERS)
    async def test_unused_blobs_are_collected_in_the_background(self, store: Store, run: RunDriver, kind: str) -> None:
        blobs = [_large(step) for step in range(300)]
        for number, blob in enumerate(blobs):
            await _LEAVERS[kind](run, blob, f"{number}")
            if kind in {"record", "command"} and number % 5 == 4:
                await run.commit(consumed=tuple(f"{number - each}" for each in range(5)))
        hashes = [blob.hash for blob in blobs[:-1]]
        for _ in range(_LATE_COMMITS_MAX):
            if len(await store.blobs(hashes)) < 200:
                break
            await run.commit({"a": blobs[-1]})
        # Closing the store waits for a background collection.
        await store.close()
        assert len(await store.blobs(hashes)) < 200
        if kind == "checkpoint":
            assert await store.blobs([blobs[-1].hash])


_HASH = raw_blob(b"of nobody").hash

ODD_PATHS = (
    "",
    "a:",
    "a: ",
    '":"',
    "\\",
    '\\\\":"',
    "{}",
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

    async def test_newest_remaining_checkpoint_replaces_a_deleted_head(self, store: Store, run: RunDriver) -> None:
        for settled in (False, True, False):
            await run.commit(settled=settled)
        assert [await store.delete("r@3"), await store.delete("r@3")] == [True, False]
        await refused(CheckpointNotFoundError, store.manifest("r@3"))
        assert await latest_id(store, "flow") == "r@2"
        await run.require(head="r@2", position=3, settled=True)
        run.head = "r@2"
        await run.commit()
        await store.delete("r@2")
        await run.rewind("r@1")
        await store.delete("r@1")
        assert ((await run.record()).head, list(await store.ids())) == ("r@4", ["r@0", "r@4"])

    async def test_latest_survives_deletions_of_newer_checkpoints(self, store: Store, clock: ManualClock) -> None:
        runs = {name: await RunDriver.start(store, clock, name) for name in "qrs"}
        written = [await runs[name].commit() for name in "qrsrqqsr"]
        while written:
            assert await latest_id(store, "flow") == written[-1]
            await store.delete(written.pop())
        assert await store.latest(workflow_name="flow") is None

    async def test_deleted_id_can_be_used_again(self, store: Store, run: RunDriver) -> None:
        await run.commit(checkpoint_id="mine")
        await store.delete("mine")
        second = await run.another("s")
        await second.commit({"a": text_blob("again")}, checkpoint_id="mine")
        assert (await store.manifest("mine")).run_id == "s"
        assert (await run.record()).head == "r@0"
        assert [manifest.checkpoint_id for manifest in await store.manifests(run_id="r")] == ["r@0"]

    async def test_collection_deletes_only_unused_blobs(self, store: Store, fresh: RunDriver) -> None:
        leaf, shared = raw_blob(b"leaf" * 3000), raw_blob(b"shared" * 3000)
        gone = raw_blob(b"gone" * 3000)
        tree = text_blob("tree", leaf)
        await fresh.commit({"a": gone, "b": shared})
        await fresh.commit({"b": shared, "c": tree}, leaf)
        assert await store.collect() == 0
        await store.delete("r@0")
        assert await store.collect() == 1
        assert await store.collect() == 0
        assert await store.blobs([gone.hash]) == {}
        assert (await store.blobs([tree.hash, shared.hash])).keys() == {leaf.hash, shared.hash, tree.hash}

    async def test_collection_keeps_the_blobs_of_every_path(self, store: Store, fresh: RunDriver) -> None:
        blobs = {path: raw_blob(f"at {path!r}".encode() * 1000) for path in ODD_PATHS}
        gone = raw_blob(b"gone" * 3000)
        await fresh.commit({"a": gone})
        await fresh.commit(blobs)
        await store.delete("r@0")
        assert await store.collect() == 1
        assert await read_contents(store, "r@1") == {path: blob.data for path, blob in blobs.items()}


class RemovalConformance(TenantStoreSuite):
    """A removed run leaves nothing behind, and the data of others stays."""

    @pytest.mark.parametrize("halt", [None, halted("failed"), halted("parked"), halted("exported")])
    async def test_removed_run_leaves_nothing(self, store: TenantStore, sample: RunDriver, halt: Halt | None) -> None:
        assert await store.remove("nowhere") is False
        await sample.release(halt=halt)
        blobs = (await store.archive("r")).blobs
        assert await store.remove("r") is True
        assert await store.remove("r") is False
        assert await read_run(store) == NOTHING
        assert (list(await store.runs()), list(await store.ids())) == ([], [])
        assert await store.latest(workflow_name="flöw") is None
        assert await sample.mark() == Mark()
        await refused(WorkflowCheckpointException, store.manifest(HEAD))
        await refused(RunNotFoundError, sample.post(command("late")))
        assert await store.collect() > 0
        assert await store.blobs(blob.hash for blob in blobs) == {}
        await store.close()
        again = await sample.another("r")
        await again.commit(events=events("first"))
        await again.require(nonce="nonce of r", workflow_name="flow", position=0, halt=None)
        assert [*await again.events(), *await again.inbox(), *await again.noted()] == ["1=first"]
        assert list(await store.ids()) == ["r@0"]

    async def test_other_runs_keep_blobs_of_a_removed_run(self, store: TenantStore, sample: RunDriver) -> None:
        other = await make_sample_run(store, sample.clock, "other")
        own = raw_blob(b"of this one only" * 900)
        await sample.commit({"own": own})
        before = await read_run(store, "other")
        assert await store.remove("r")
        assert await store.collect() == 1
        assert await store.blobs([own.hash]) == {}
        assert await read_run(store, "other") == before
        assert await latest_id(store, "flöw") == "other@4"
        await other.commit()

    async def test_leased_run_of_this_process_can_be_removed(self, store: TenantStore, sample: RunDriver) -> None:
        assert await store.remove("r")
        for begins_again in (True, False):
            await refused(REFUSED, sample.commit({"a": text_blob("late")}))
            await refused(REFUSED, sample.note(finished("late", "late")))
            await sample.release(halt=halted())
            assert await sample.noted() == []
            if begins_again:
                await sample.another("r", commits=1)
        await sample.require(head="r@0", position=0, events=0)

    async def test_run_that_never_began_is_not_removed(self, store: TenantStore, fresh: RunDriver) -> None:
        assert await store.remove("r") is False
        await fresh.commit()
        assert (await fresh.record()).head == "r@0"

    async def test_run_that_a_fork_needs_is_not_removed(self, store: TenantStore, sample: RunDriver) -> None:
        await sample.release()
        fork = await sample.another("f", parent="r by name")
        await fork.release()
        before = await read_run(store)
        await refused(WorkflowCheckpointException, store.remove("r"), match="'f'")
        await refused(WorkflowCheckpointException, store.remove("r", takeover=True), match="'f'")
        assert await read_run(store) == before
        shared = raw_blob(b"c of us" * 900)
        await fork.reacquire()
        await fork.commit({"c": shared}, blobs=())
        assert await store.remove("r")
        await store.collect()
        assert await read_contents(store, "f@0") == {"c": shared.data}
        assert (await fork.record()).parent_checkpoint_id == "r by name"

    async def test_fork_can_be_removed_before_its_first_commit(self, store: TenantStore, sample: RunDriver) -> None:
        fork = await sample.another("f", parent=HEAD)
        await fork.note(finished("a", "", raw_blob(b"of the fork" * 900)))
        before = await read_run(store)
        assert await store.remove("f")
        assert (await store.run("f"), await fork.noted()) == (None, [])
        assert await store.collect() == 1
        assert await read_run(store) == before
        await sample.release()
        assert await store.remove("r")
