"""Leases and halts: the right to write to a run, its start, and runs that wait for someone who takes their lease."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from perdure.errors import LeaseLostError, RunBusyError, RunExportedError, RunNotFoundError, WorkflowCheckpointException
from perdure.records import Halt, HaltKind
from perdure.testing.stores.base import (
    LATE,
    REFUSED,
    SOON,
    RunDriver,
    StoreSuite,
    TenantStoreSuite,
    command,
    events,
    finished,
    halted,
    new_run,
    read_contents,
    read_run,
    refused,
    text_blob,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping

    from perdure.storage import Store, TenantStore
    from perdure.testing.clock import ManualClock


_FROM_ELSEWHERE = 2**60
"""A token from another source, as large as a clock's nanoseconds."""

_PROGRESS: Mapping[str, Callable[[RunDriver], Awaitable[object]]] = {
    "commit": lambda run: run.commit(),
    "release": lambda run: run.release(),
    "record": lambda run: run.note(finished("a")),
    "record that is not durable": lambda run: run.note(finished("a"), durable=False),
}


class LeaseConformance(StoreSuite):
    """A run has at most one owner, and begins with its first commit. A larger token replaces a smaller one.

    Each lease without progress is one more attempt.
    """

    async def test_run_that_committed_nothing_never_began(self, store: Store) -> None:
        await refused(RunNotFoundError, store.acquire("r"))
        lease = await store.acquire("r", create=new_run("r"))
        assert (lease.run_id, await store.run("r")) == ("r", None)
        await store.release(lease, halt=replace(halted(), events=events("failed")))
        assert [await store.run("r"), *await store.runs(), *await store.events("r")] == [None]
        await refused(RunNotFoundError, store.acquire("r"))

    async def test_run_has_an_owner_until_it_is_released(self, store: Store, run: RunDriver) -> None:
        assert (await run.record()).owner == run.lease.owner
        newer = await store.acquire("r")
        await run.release(halt=halted())
        await run.require(owner=newer.owner, halt=None)
        for halt in (None, halted()):
            await store.release(newer, halt=halt)
            await run.require(owner=None, halt=None)

    async def test_lease_has_the_record_of_its_run_if_any(self, run: RunDriver) -> None:
        for halt in (None, halted(), None):
            assert (await run.reacquire()).record in {None, await run.record()}
            await run.release(halt=halt)

    async def test_run_begins_with_the_data_of_the_lease_that_commits(self, store: Store, clock: ManualClock) -> None:
        await store.acquire("r", create=replace(new_run("r"), nonce="first"))
        run = RunDriver(store, clock, "r", "flow")
        run.lease = await store.acquire("r", create=replace(new_run("r"), nonce="second"))
        await run.commit()
        await store.acquire("r", create=replace(new_run("r"), nonce="late"))
        assert (await run.record()).nonce == "second"

    async def test_tokens_grow_and_continue_above_a_given_one(self, run: RunDriver) -> None:
        other = await run.another("s", commits=1)
        before = other.lease.token
        tokens = [(await run.reacquire(token=token)).token for token in (None, None, _FROM_ELSEWHERE, None, None)]
        assert tokens == sorted({run.lease.token, *tokens})
        assert (await other.reacquire()).token > before
        await run.commit()
        await other.commit()

    async def test_run_begins_under_a_given_token(self, store: Store, clock: ManualClock) -> None:
        await refused(RunNotFoundError, store.acquire("r", token=7))
        late, run = (RunDriver(store, clock, "r", "flow") for _ in range(2))
        late.lease = await store.acquire("r", create=new_run("r"), token=7)
        assert (late.lease.token, late.lease.attempts) == (7, 1)
        for token in (6, 7):
            await refused(LeaseLostError, store.acquire("r", create=new_run("r"), token=token))
        run.lease = await store.acquire("r", create=new_run("r"), token=8)
        await refused(LeaseLostError, late.commit())
        await run.commit()
        assert (await run.record()).head == "r@0"

    async def test_each_lease_is_one_more_attempt(self, store: Store, fresh: RunDriver) -> None:
        assert fresh.lease.attempts == 1
        run = await fresh.another("r")
        assert run.lease.attempts == 1
        await run.commit()
        assert (await run.record()).attempts == 0
        for number in (1, 2, 3):
            assert (await run.reacquire()).attempts == number
            # An empty write is no progress.
            await run.note(durable=number == 1)
            assert (await run.record()).attempts == number
        assert (await run.reacquire(token=_FROM_ELSEWHERE)).attempts == 4
        assert (await store.acquire("r", takeover=True)).attempts == 5

    @pytest.mark.parametrize("progress", _PROGRESS)
    async def test_progress_resets_the_attempts(self, run: RunDriver, progress: str) -> None:
        for _ in range(3):
            await run.reacquire()
        await _PROGRESS[progress](run)
        assert (await run.record()).attempts == 0
        assert (await run.reacquire()).attempts == 1

    async def test_attempts_of_a_fork_count_before_its_first_commit(self, run: RunDriver) -> None:
        fork = await run.another("f", parent="r@0")
        assert (await fork.record()).attempts == 1
        assert (await fork.reacquire()).attempts == 2
        await fork.note(finished("a"))
        assert (await fork.record()).attempts == 0
        assert (await fork.reacquire()).attempts == 1


_INSTANTS = (0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 377, 610)
"""Numbers of event-loop turns before a cancellation: before, during and after the operation."""


async def _cancelled(doing: Coroutine[object, object, object], *, after: int) -> bool:
    """Cancel an operation after this many turns. Return False if it ended before."""
    task = asyncio.create_task(doing)
    for _ in range(after):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    return task.cancelled()


class CancelConformance(StoreSuite):
    """A cancelled operation is done completely or not at all, and is over in either case."""

    async def test_cancelled_acquire_changes_nothing(self, store: Store, run: RunDriver) -> None:
        for instant in _INSTANTS:
            await run.release(halt=halted("failed"))
            if await _cancelled(store.acquire("r"), after=instant):
                await run.require(owner=None, halt=halted("failed"))
            await run.reacquire()
            await run.commit()

    async def test_cancelled_first_acquire_begins_no_run(self, store: Store, clock: ManualClock) -> None:
        for instant in _INSTANTS:
            run_id = f"r{instant}"
            await _cancelled(store.acquire(run_id, create=new_run(run_id)), after=instant)
            assert await store.run(run_id) is None
            await RunDriver.start(store, clock, run_id, commits=1)

    async def test_cancelled_release_still_releases(self, store: Store, run: RunDriver) -> None:
        for instant in _INSTANTS[1:]:
            if await _cancelled(run.release(halt=halted("parked")), after=instant):
                mark = await run.mark()
                while not mark.is_halted:
                    mark = await store.watch("r", seen=mark)
            await run.require(owner=None, halt=halted("parked"))
            await run.reacquire()

    async def test_run_with_a_cancelled_commit_can_be_released(self, run: RunDriver) -> None:
        for instant in _INSTANTS:
            await _cancelled(run.commit(), after=instant)
            await run.release()
            record = await run.record()
            assert record.owner is None
            run.head, run.position = record.head, record.position
            await run.reacquire()
            await run.commit()


_REASONS = ("", "it failed", "ünï\u2028日本 'quoted' \"twice\"", "file \udcff", "nul\0 and\nlines", "long " * 2000)


class HaltConformance(StoreSuite):
    """A halted run keeps its state and waits for someone who takes its lease."""

    async def test_halt_comes_back_as_it_was_given_until_the_next_lease(self, store: Store, fresh: RunDriver) -> None:
        await fresh.commit(status="waiting", wake_at=LATE)
        await fresh.commit(status="sleeping", wake_at=SOON)
        before = await fresh.record()
        halts = [Halt("failed", f"{SOON} {number}", reason) for number, reason in enumerate(_REASONS)]
        halts += [Halt("parked", SOON, "reason", data) for data in (b"", b"{}", b"\xff\x00\n", b"large " * 30_000)]
        for token, halt in enumerate(halts, start=_FROM_ELSEWHERE):
            await fresh.release(halt=halt)
            record = await fresh.record()
            assert record == replace(before, owner=None, halt=halt)
            assert (record.run_status, record.status, record.wake_at) == (halt.kind, "sleeping", SOON)
            await fresh.reacquire(token=None if token % 2 else token * 2)
            await fresh.require(halt=None, run_status="sleeping")
        await fresh.release(halt=halted("exported"))
        await store.delete("r@1")
        await fresh.require(head="r@0", halt=halted("exported"), run_status="exported", status="waiting", wake_at=LATE)

    async def test_fork_can_be_halted_before_its_first_commit(self, fresh: RunDriver) -> None:
        await fresh.commit(status="idle")
        fork = await fresh.another("f", parent="r@0")
        await fork.release(halt=halted())
        await fork.require(run_status="failed", status="running", head="r@0")
        await fork.reacquire()
        await fork.commit()
        assert (await fork.record()).run_status == "running"

    @pytest.mark.parametrize("kind", ["failed", "exported"])
    async def test_halted_run_keeps_its_data(self, store: Store, fresh: RunDriver, kind: HaltKind) -> None:
        await fresh.commit({"a": text_blob("v")}, events=events("emitted"))
        await fresh.note(finished("a", "1", text_blob("of the journal")))
        await fresh.post(command("b", "2"))
        await fresh.release(halt=halted(kind))
        expected = ["a=1", "b=2", "1=emitted"]
        if kind != "exported":
            await fresh.post(command("c", "3", text_blob("of the inbox")))
            expected.insert(2, "c=3")
        assert await store.collect() == 0
        assert await read_contents(store, "r@0") == {"a": b'"v"'}
        assert [*await fresh.noted(), *await fresh.inbox(), *await fresh.events()] == expected
        fork = await fresh.another("f", parent="r@0", commits=1)
        assert (await fork.record()).head == "f@0"
        assert (await fresh.record()).halt == halted(kind)

    async def test_exported_run_is_closed(self, store: Store, run: RunDriver) -> None:
        await run.release(halt=halted("exported"))
        before = await run.record()
        caught = await refused(RunExportedError, store.acquire("r"))
        assert (caught.run_id, caught.at) == ("r", halted().at)
        await refused(RunExportedError, store.acquire("r", takeover=True))
        await refused(RunExportedError, store.acquire("r", token=_FROM_ELSEWHERE))
        await refused(RunExportedError, store.acquire("r", create=new_run("r")))
        await refused(RunExportedError, run.post(command("a", "lost", text_blob("lost"))))
        assert (await run.record(), await run.inbox()) == (before, [])
        await store.collect()
        assert await store.blobs([text_blob("lost").hash]) == {}


CLOSED = halted("exported", "it was exported")


class ClosingConformance(TenantStoreSuite):
    """A run is closed exactly as it was read, or not at all."""

    @pytest.mark.parametrize("before", [None, halted("failed"), halted("parked")])
    async def test_closed_run_keeps_its_data(self, store: TenantStore, sample: RunDriver, before: Halt | None) -> None:
        await sample.release(halt=before)
        record, picture = await sample.record(), await read_run(store)
        assert await store.close_run("r", halt=CLOSED, instead_of=before) is True
        await store.close()
        assert await sample.record() == replace(record, halt=CLOSED)
        assert await read_run(store) == picture
        await refused(RunExportedError, store.acquire("r"))
        await refused(RunExportedError, sample.post(command("late")))
        await refused(RunExportedError, store.close_run("r", halt=CLOSED, instead_of=CLOSED))

    async def test_run_with_another_halt_is_not_closed(self, store: TenantStore, sample: RunDriver) -> None:
        await sample.release(halt=halted("failed"))
        for seen in (None, halted("parked"), halted("failed", "another reason")):
            assert await store.close_run("r", halt=CLOSED, instead_of=seen) is False
            assert (await sample.record()).halt == halted("failed")

    async def test_leased_run_is_closed_only_by_a_takeover(self, store: TenantStore, sample: RunDriver) -> None:
        before = await sample.record()
        await refused(RunBusyError, store.close_run("r", halt=CLOSED), match="'r'")
        assert await sample.record() == before
        assert await store.close_run("r", halt=CLOSED, takeover=True) is True
        await refused(REFUSED, sample.commit())
        await sample.release()
        await sample.require(owner=None, attempts=0, run_status="exported")

    async def test_run_without_checkpoints_is_not_closed(self, store: TenantStore, run: RunDriver) -> None:
        await refused(RunNotFoundError, store.close_run("nothing", halt=CLOSED))
        fork = await run.another("fork", parent="r@0")
        await fork.release()
        await refused(WorkflowCheckpointException, store.close_run("fork", halt=CLOSED), match="'fork' is a fork")
        assert (await store.acquire("fork")).halt is None

    async def test_one_of_many_concurrent_closings_succeeds(self, store: TenantStore, sample: RunDriver) -> None:
        await sample.release(halt=halted("failed"))
        halts = [halted("exported", f"by {number}") for number in range(8)]
        results = await asyncio.gather(
            *(store.close_run("r", halt=each, instead_of=halted("failed")) for each in halts), return_exceptions=True
        )
        (closer,) = [each for each, result in zip(halts, results, strict=True) if result is True]
        assert [type(result) for result in results].count(RunExportedError) == len(halts) - 1
        assert (await sample.record()).halt == closer

    async def test_run_is_restored_with_the_halt_of_its_record(self, store: TenantStore, sample: RunDriver) -> None:
        await sample.release()
        archive = await store.archive("r")
        await store.close_run("r", halt=CLOSED)
        await store.restore(replace(archive, record=replace(archive.record, halt=halted("parked"))))
        await store.close()
        assert await store.run("r") == replace(archive.record, halt=halted("parked"))
        assert (await store.acquire("r")).halt == halted("parked")
