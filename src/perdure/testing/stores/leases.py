"""Leases: the right to write to a run, and the start of a run."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from perdure.errors import (
    LeaseLostError,
    RunBusyError,
    RunExportedError,
    RunNotFoundError,
    StaleHeadError,
    WorkflowCheckpointException,
)
from perdure.records import Halt
from perdure.testing.stores.base import (
    REFUSED,
    RunDriver,
    StoreSuite,
    TenantStoreSuite,
    command,
    finished,
    halted,
    in_a_loop,
    make_sample_run,
    new_run,
    read_run,
)
from perdure.testing.stores.event_log import watching

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from perdure.storage import Store, TenantStore
    from perdure.testing.clock import ManualClock


class LeaseConformance(StoreSuite):
    """A run has at most one owner, and begins with its first commit."""

    @in_a_loop
    async def test_an_unknown_run_is_acquired_only_with_what_it_begins_as(self, store: Store) -> None:
        with pytest.raises(RunNotFoundError):
            await store.acquire("r")
        assert (await store.acquire("r", create=new_run("r"))).run_id == "r"

    @in_a_loop
    async def test_a_token_is_larger_than_all_before_it(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        tokens = [run.lease.token if run.lease else 0]
        for _ in range(3):
            lease = await store.acquire("r")
            tokens.append(lease.token)
            await store.release(lease)
        assert tokens == sorted(set(tokens))

    @in_a_loop
    async def test_a_run_has_an_owner_until_it_is_released(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        assert run.lease is not None
        assert (await run.record()).owner == run.lease.owner
        await run.release()
        assert (await run.record()).owner is None

    @in_a_loop
    async def test_a_lease_tells_the_run_as_it_was_acquired_if_it_tells_it(
        self, store: Store, clock: ManualClock
    ) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        for halt in (None, Halt("failed", "2026-01-01T00:00:00+00:00", "it could not be helped")):
            lease = await store.acquire("r")
            assert lease.record in {None, await store.run("r")}
            await store.release(lease, halt=halt)
        lease = await store.acquire("r")
        assert lease.record in {None, await store.run("r")}

    @in_a_loop
    async def test_a_run_that_committed_nothing_never_began(self, store: Store) -> None:
        lease = await store.acquire("r", create=new_run("r"))
        assert await store.run("r") is None
        await store.release(lease)
        assert await store.run("r") is None
        with pytest.raises(RunNotFoundError):
            await store.acquire("r")

    @in_a_loop
    async def test_a_run_that_never_began_begins_as_its_last_lease_says(self, store: Store, clock: ManualClock) -> None:
        await store.acquire("r", create=replace(new_run("r"), nonce="first"))
        run = RunDriver(store, clock, "r", "flow")
        run.lease = await store.acquire("r", create=replace(new_run("r"), nonce="second"))
        await run.commit()
        assert (await run.record()).nonce == "second"

    @in_a_loop
    async def test_a_run_that_has_begun_stays_as_it_began(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        await store.acquire("r", create=replace(new_run("r"), nonce="late"))
        assert (await run.record()).nonce == "nonce of r"

    @in_a_loop
    async def test_releasing_a_replaced_lease_changes_nothing(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        newer = await store.acquire("r")
        await run.release()
        assert (await run.record()).owner == newer.owner


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

    @pytest.mark.parametrize("instant", _INSTANTS)
    @in_a_loop
    async def test_a_lease_that_is_cancelled_leaves_the_run_as_it_was(
        self, store: Store, clock: ManualClock, instant: int
    ) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        await run.release(halt=halted("failed"))
        if await _cancelled(store.acquire("r"), after=instant):
            record = await run.record()
            assert (record.owner, record.halt) == (None, halted("failed"))
        await run.reacquire()
        await run.commit()
        await store.close()

    @pytest.mark.parametrize("instant", _INSTANTS)
    @in_a_loop
    async def test_a_run_whose_first_lease_is_cancelled_never_began(
        self, store: Store, clock: ManualClock, instant: int
    ) -> None:
        await _cancelled(store.acquire("r", create=new_run("r")), after=instant)
        assert await store.run("r") is None
        await (await RunDriver.start(store, clock, "r")).commit()
        await store.close()

    @pytest.mark.parametrize("instant", _INSTANTS)
    @in_a_loop
    async def test_a_release_that_is_cancelled_is_a_release(
        self, store: Store, clock: ManualClock, instant: int
    ) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        if await _cancelled(run.release(halt=halted("parked")), after=max(1, instant)):
            mark = await run.mark()
            while not mark.is_halted:
                mark = await store.watch("r", seen=mark)
        record = await run.record()
        assert (record.owner, record.halt) == (None, halted("parked"))
        await store.close()

    @pytest.mark.parametrize("instant", _INSTANTS)
    @in_a_loop
    async def test_a_run_whose_commit_is_cancelled_can_be_given_free(
        self, store: Store, clock: ManualClock, instant: int
    ) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        await _cancelled(run.commit(), after=instant)
        await run.release()
        record = await run.record()
        assert record.owner is None
        run.head, run.position = record.head, record.position
        await run.reacquire()
        await run.commit()
        await store.close()


CLOSED = halted("exported", "it was exported")


class ClosingConformance(TenantStoreSuite):
    """A run is closed exactly as it was read, or not at all."""

    @pytest.mark.parametrize("before", [None, halted("failed"), halted("parked")])
    @in_a_loop
    async def test_a_closed_run_is_what_it_was_but_for_its_halt(
        self, store: TenantStore, clock: ManualClock, before: Halt | None
    ) -> None:
        run = await make_sample_run(store, clock)
        await run.release(halt=before)
        record, picture = await run.record(), await read_run(store)
        assert await store.close_run("r", halt=CLOSED, instead_of=before) is True
        await store.close()
        assert await run.record() == replace(record, halt=CLOSED)
        assert await read_run(store) == picture
        with pytest.raises(RunExportedError):
            await store.acquire("r")
        with pytest.raises(RunExportedError):
            await run.post(command("late"))
        with pytest.raises(RunExportedError):
            await store.close_run("r", halt=CLOSED, instead_of=CLOSED)

    @in_a_loop
    async def test_a_run_that_is_halted_otherwise_than_was_seen_is_left_as_it_is(
        self, store: TenantStore, clock: ManualClock
    ) -> None:
        run = await make_sample_run(store, clock)
        await run.release(halt=halted("failed"))
        for seen in (None, halted("parked"), halted("failed", "another reason")):
            assert await store.close_run("r", halt=CLOSED, instead_of=seen) is False
            assert (await run.record()).halt == halted("failed")

    @in_a_loop
    async def test_what_this_process_advances_is_closed_only_by_a_takeover(
        self, store: TenantStore, clock: ManualClock
    ) -> None:
        run = await make_sample_run(store, clock)
        before = await run.record()
        with pytest.raises(RunBusyError, match="'r'"):
            await store.close_run("r", halt=CLOSED)
        assert await run.record() == before
        assert await store.close_run("r", halt=CLOSED, takeover=True) is True
        with pytest.raises(REFUSED):
            await run.commit()
        await run.release()
        record = await run.record()
        assert (record.owner, record.attempts, record.standing) == (None, 0, "exported")

    @in_a_loop
    async def test_what_is_not_there_is_not_closed(self, store: TenantStore, clock: ManualClock) -> None:
        with pytest.raises(RunNotFoundError):
            await store.close_run("nothing", halt=CLOSED)
        await (await RunDriver.start(store, clock, "r")).commit()
        fork = await store.acquire("fork", create=new_run("fork", parent="r@0"))
        await store.release(fork)
        with pytest.raises(WorkflowCheckpointException, match="'fork' is a fork"):
            await store.close_run("fork", halt=CLOSED)
        assert (await store.acquire("fork")).halt is None

    @in_a_loop
    async def test_of_many_who_close_a_run_one_does(self, store: TenantStore, clock: ManualClock) -> None:
        run = await make_sample_run(store, clock)
        await run.release(halt=halted("failed"))
        halts = [halted("exported", f"by {number}") for number in range(8)]
        results = await asyncio.gather(
            *(store.close_run("r", halt=each, instead_of=halted("failed")) for each in halts), return_exceptions=True
        )
        (closer,) = [each for each, result in zip(halts, results, strict=True) if result is True]
        assert [type(result) for result in results].count(RunExportedError) == len(halts) - 1
        assert (await run.record()).halt == closer

    @in_a_loop
    async def test_who_watches_a_run_hears_that_it_is_closed(self, store: TenantStore, clock: ManualClock) -> None:
        run = await make_sample_run(store, clock)
        await run.release()
        async with watching(store, "r", seen=await run.mark()) as waiting:
            await store.close_run("r", halt=CLOSED)
        assert waiting.result().is_halted

    @in_a_loop
    async def test_a_run_is_restored_with_the_halt_of_its_record(self, store: TenantStore, clock: ManualClock) -> None:
        run = await make_sample_run(store, clock)
        await run.release()
        archive = await store.archive("r")
        await store.close_run("r", halt=CLOSED)
        await store.restore(replace(archive, record=replace(archive.record, halt=halted("parked"))))
        await store.close()
        assert await store.run("r") == replace(archive.record, halt=halted("parked"))
        assert (await store.acquire("r")).halt == halted("parked")


_FROM_ELSEWHERE = 2**60
"""A token from another source, as large as a clock's nanoseconds."""


class TokenConformance(StoreSuite):
    """A larger token replaces a smaller one, no matter who made it."""

    @in_a_loop
    async def test_a_token_from_elsewhere_replaces_whoever_owns_the_run(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        lease = await store.acquire("r", token=_FROM_ELSEWHERE)
        assert (lease.run_id, lease.token) == ("r", _FROM_ELSEWHERE)
        with pytest.raises(LeaseLostError):
            await run.commit()
        with pytest.raises(LeaseLostError):
            await run.note(finished("a"))
        run.lease = lease
        await run.commit()
        record = await run.record()
        assert (record.head, record.owner) == ("r@1", lease.owner)

    @in_a_loop
    async def test_a_token_that_is_not_larger_is_refused_and_changes_nothing(
        self, store: Store, clock: ManualClock
    ) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        await run.reacquire(token=500)
        before = await run.record()
        for token in (1, 499, 500):
            with pytest.raises(LeaseLostError):
                await store.acquire("r", token=token)
        assert await run.record() == before
        await run.commit()
        await run.release()
        for token in (499, 500):
            with pytest.raises(LeaseLostError):
                await store.acquire("r", token=token)
        assert (await run.record()).owner is None
        assert (await store.acquire("r", token=501)).token == 501

    @in_a_loop
    async def test_the_tokens_of_the_store_go_on_above_one_from_elsewhere(
        self, store: Store, clock: ManualClock
    ) -> None:
        runs = [await RunDriver.start(store, clock, name) for name in "rs"]
        for run in runs:
            await run.commit()
        await runs[0].reacquire(token=_FROM_ELSEWHERE)
        tokens = [_FROM_ELSEWHERE]
        for _ in range(3):
            tokens.append((await runs[0].reacquire()).token)
            await store.close()
        assert tokens == sorted(set(tokens))
        before = runs[1].lease.token if runs[1].lease else 0
        assert (await runs[1].reacquire()).token > before
        for run in runs:
            await run.commit()

    @in_a_loop
    async def test_a_run_begins_under_a_token_from_elsewhere(self, store: Store, clock: ManualClock) -> None:
        with pytest.raises(RunNotFoundError):
            await store.acquire("r", token=7)
        run = RunDriver(store, clock, "r", "flow")
        run.lease = await store.acquire("r", create=new_run("r"), token=7)
        assert (run.lease.token, run.lease.attempts) == (7, 1)
        await run.commit()
        assert (await run.record()).head == "r@0"

    @in_a_loop
    async def test_a_run_that_never_began_has_a_token_too(self, store: Store, clock: ManualClock) -> None:
        late = RunDriver(store, clock, "r", "flow")
        late.lease = await store.acquire("r", create=new_run("r"), token=7)
        for token in (6, 7):
            with pytest.raises(LeaseLostError):
                await store.acquire("r", create=new_run("r"), token=token)
        run = RunDriver(store, clock, "r", "flow")
        run.lease = await store.acquire("r", create=new_run("r"), token=8)
        with pytest.raises(LeaseLostError):
            await late.commit()
        await run.commit()
        assert (await run.record()).head == "r@0"

    @in_a_loop
    async def test_each_lease_is_one_more_attempt(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        assert run.lease is not None
        assert run.lease.attempts == 1
        await run.commit()
        assert (await run.record()).attempts == 0
        for number in (1, 2, 3):
            assert (await run.reacquire()).attempts == number
            assert (await run.record()).attempts == number
            await store.close()
        assert (await run.reacquire(token=_FROM_ELSEWHERE)).attempts == 4
        assert (await store.acquire("r", takeover=True)).attempts == 5

    @pytest.mark.parametrize("progress", ["commit", "release", "record", "record that is not durable"])
    @in_a_loop
    async def test_who_gets_on_begins_to_count_anew(self, store: Store, clock: ManualClock, progress: str) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        for _ in range(3):
            await run.reacquire()
        match progress:
            case "commit":
                await run.commit()
            case "release":
                await run.release()
            case _:
                await run.note(finished("a"), durable=progress == "record")
        assert (await run.record()).attempts == 0
        await store.close()
        assert (await run.record()).attempts == 0
        assert (await run.reacquire()).attempts == 1

    @in_a_loop
    async def test_every_record_tells_that_its_lease_got_on(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        for number in range(3):
            assert (await run.reacquire()).attempts == 1
            await run.note(finished(f"{number}"))
            await run.note(finished(f"{number} again"))
            assert (await run.record()).attempts == 0
        assert len(await run.noted()) == 6

    @in_a_loop
    async def test_to_record_nothing_is_no_progress(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        await run.reacquire()
        await run.note()
        await run.note(durable=False)
        assert (await run.record()).attempts == 1
        assert (await run.reacquire()).attempts == 2
        assert await run.noted() == []

    @in_a_loop
    async def test_what_is_refused_is_no_progress(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        late = run.lease
        await run.reacquire()
        await run.reacquire()
        with pytest.raises(StaleHeadError):
            await run.write(replace(run.next_commit(), expected_head="elsewhere"))
        assert run.lease is not None
        with pytest.raises(StaleHeadError):
            await store.record(run.lease, head="elsewhere", records=[finished("a")])
        assert late is not None
        with pytest.raises(LeaseLostError):
            await store.record(late, head="r@0", records=[finished("a")])
        await store.release(late)
        assert (await run.record()).attempts == 2

    @in_a_loop
    async def test_a_run_that_never_began_is_at_its_first_attempt(self, store: Store) -> None:
        for _ in range(3):
            assert (await store.acquire("r", create=new_run("r"))).attempts == 1

    @in_a_loop
    async def test_attempts_of_a_fork_count_from_its_beginning(self, store: Store, clock: ManualClock) -> None:
        await (await RunDriver.start(store, clock, "r")).commit()
        fork = await RunDriver.start(store, clock, "f", parent="r@0")
        assert (await fork.record()).attempts == 1
        assert (await fork.reacquire()).attempts == 2
        await fork.note(finished("a"))
        assert (await fork.record()).attempts == 0
        assert (await fork.reacquire()).attempts == 1
