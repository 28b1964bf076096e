"""Tokens and attempts: who decides by a token of its own who may write, and how often a run was tried in vain."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from perdure.errors import ClaimLostError, RunNotFoundError, StaleHeadError
from perdure.testing.stores.driver import RunDriver, finished, new_run
from perdure.testing.stores.suite import StoreSuite, in_a_loop

if TYPE_CHECKING:
    from perdure.storage import Store
    from perdure.testing.clock import ManualClock

_FROM_ELSEWHERE = 2**60
"""As large as those are that are made of the nanoseconds of a clock."""


class TokenConformance(StoreSuite):
    """A larger token replaces a smaller one, whoever has made it."""

    @in_a_loop
    async def test_a_token_from_elsewhere_replaces_whoever_owns_the_run(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        claim = await store.claim("r", token=_FROM_ELSEWHERE)
        assert (claim.run_id, claim.token) == ("r", _FROM_ELSEWHERE)
        with pytest.raises(ClaimLostError):
            await run.commit()
        with pytest.raises(ClaimLostError):
            await run.note(finished("a"))
        run.claim = claim
        await run.commit()
        record = await run.record()
        assert (record.head, record.owner) == ("r@1", claim.owner)

    @in_a_loop
    async def test_a_token_that_is_not_larger_is_refused_and_changes_nothing(
        self, store: Store, clock: ManualClock
    ) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        await run.reclaim(token=500)
        before = await run.record()
        for token in (1, 499, 500):
            with pytest.raises(ClaimLostError):
                await store.claim("r", token=token)
        assert await run.record() == before
        await run.commit()
        await run.release()
        for token in (499, 500):
            with pytest.raises(ClaimLostError):
                await store.claim("r", token=token)
        assert (await run.record()).owner is None
        assert (await store.claim("r", token=501)).token == 501

    @in_a_loop
    async def test_the_tokens_of_the_store_go_on_above_one_from_elsewhere(
        self, store: Store, clock: ManualClock
    ) -> None:
        runs = [await RunDriver.start(store, clock, name) for name in "rs"]
        for run in runs:
            await run.commit()
        await runs[0].reclaim(token=_FROM_ELSEWHERE)
        tokens = [_FROM_ELSEWHERE]
        for _ in range(3):
            tokens.append((await runs[0].reclaim()).token)
            await store.close()
        assert tokens == sorted(set(tokens))
        before = runs[1].claim.token if runs[1].claim else 0
        assert (await runs[1].reclaim()).token > before
        for run in runs:
            await run.commit()

    @in_a_loop
    async def test_a_run_begins_under_a_token_from_elsewhere(self, store: Store, clock: ManualClock) -> None:
        with pytest.raises(RunNotFoundError):
            await store.claim("r", token=7)
        run = RunDriver(store, clock, "r", "flow")
        run.claim = await store.claim("r", create=new_run("r"), token=7)
        assert (run.claim.token, run.claim.attempts) == (7, 1)
        await run.commit()
        assert (await run.record()).head == "r@0"

    @in_a_loop
    async def test_a_run_that_never_began_has_a_token_too(self, store: Store, clock: ManualClock) -> None:
        late = RunDriver(store, clock, "r", "flow")
        late.claim = await store.claim("r", create=new_run("r"), token=7)
        for token in (6, 7):
            with pytest.raises(ClaimLostError):
                await store.claim("r", create=new_run("r"), token=token)
        run = RunDriver(store, clock, "r", "flow")
        run.claim = await store.claim("r", create=new_run("r"), token=8)
        with pytest.raises(ClaimLostError):
            await late.commit()
        await run.commit()
        assert (await run.record()).head == "r@0"

    @in_a_loop
    async def test_each_claim_is_one_more_attempt(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        assert run.claim is not None
        assert run.claim.attempts == 1
        await run.commit()
        assert (await run.record()).attempts == 0
        for number in (1, 2, 3):
            assert (await run.reclaim()).attempts == number
            assert (await run.record()).attempts == number
            await store.close()
        assert (await run.reclaim(token=_FROM_ELSEWHERE)).attempts == 4
        assert (await store.claim("r", takeover=True)).attempts == 5

    @pytest.mark.parametrize("progress", ["commit", "release", "record", "record that is not durable"])
    @in_a_loop
    async def test_who_gets_on_begins_to_count_anew(self, store: Store, clock: ManualClock, progress: str) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        for _ in range(3):
            await run.reclaim()
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
        assert (await run.reclaim()).attempts == 1

    @in_a_loop
    async def test_every_record_tells_that_its_claim_got_on(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        for number in range(3):
            assert (await run.reclaim()).attempts == 1
            await run.note(finished(f"{number}"))
            await run.note(finished(f"{number} again"))
            assert (await run.record()).attempts == 0
        assert len(await run.noted()) == 6

    @in_a_loop
    async def test_to_record_nothing_is_no_progress(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        await run.reclaim()
        await run.note()
        await run.note(durable=False)
        assert (await run.record()).attempts == 1
        assert (await run.reclaim()).attempts == 2
        assert await run.noted() == []

    @in_a_loop
    async def test_what_is_refused_is_no_progress(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        late = run.claim
        await run.reclaim()
        await run.reclaim()
        with pytest.raises(StaleHeadError):
            await run.write(replace(run.next_commit(), expected_head="elsewhere"))
        assert run.claim is not None
        with pytest.raises(StaleHeadError):
            await store.record(run.claim, head="elsewhere", records=[finished("a")])
        assert late is not None
        with pytest.raises(ClaimLostError):
            await store.record(late, head="r@0", records=[finished("a")])
        await store.release(late)
        assert (await run.record()).attempts == 2

    @in_a_loop
    async def test_a_run_that_never_began_is_at_its_first_attempt(self, store: Store) -> None:
        for _ in range(3):
            assert (await store.claim("r", create=new_run("r"))).attempts == 1

    @in_a_loop
    async def test_attempts_of_a_fork_count_from_its_beginning(self, store: Store, clock: ManualClock) -> None:
        await (await RunDriver.start(store, clock, "r")).commit()
        fork = await RunDriver.start(store, clock, "f", parent="r@0")
        assert (await fork.record()).attempts == 1
        assert (await fork.reclaim()).attempts == 2
        await fork.note(finished("a"))
        assert (await fork.record()).attempts == 0
        assert (await fork.reclaim()).attempts == 1
