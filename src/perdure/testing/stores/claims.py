"""Claims: who may write to a run, and when a run begins."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from perdure.errors import RunNotFoundError
from perdure.records import Halt
from perdure.testing.stores.driver import RunDriver, new_run
from perdure.testing.stores.suite import StoreSuite, in_a_loop

if TYPE_CHECKING:
    from perdure.storage import Store
    from perdure.testing.clock import ManualClock


class ClaimConformance(StoreSuite):
    """A run has at most one owner, and begins with its first commit."""

    @in_a_loop
    async def test_an_unknown_run_is_claimed_only_with_what_it_begins_as(self, store: Store) -> None:
        with pytest.raises(RunNotFoundError):
            await store.claim("r")
        assert (await store.claim("r", create=new_run("r"))).run_id == "r"

    @in_a_loop
    async def test_a_token_is_larger_than_all_before_it(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        tokens = [run.claim.token if run.claim else 0]
        for _ in range(3):
            claim = await store.claim("r")
            tokens.append(claim.token)
            await store.release(claim)
        assert tokens == sorted(set(tokens))

    @in_a_loop
    async def test_a_run_has_an_owner_until_it_is_released(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        assert run.claim is not None
        assert (await run.record()).owner == run.claim.owner
        await run.release()
        assert (await run.record()).owner is None

    @in_a_loop
    async def test_a_claim_tells_the_run_as_it_was_claimed_if_it_tells_it(
        self, store: Store, clock: ManualClock
    ) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        for halt in (None, Halt("failed", "2026-01-01T00:00:00+00:00", "it could not be helped")):
            claim = await store.claim("r")
            assert claim.record in {None, await store.run("r")}
            await store.release(claim, halt=halt)
        claim = await store.claim("r")
        assert claim.record in {None, await store.run("r")}

    @in_a_loop
    async def test_a_run_that_committed_nothing_never_began(self, store: Store) -> None:
        claim = await store.claim("r", create=new_run("r"))
        assert await store.run("r") is None
        await store.release(claim)
        assert await store.run("r") is None
        with pytest.raises(RunNotFoundError):
            await store.claim("r")

    @in_a_loop
    async def test_a_run_that_never_began_begins_as_its_last_claim_says(self, store: Store, clock: ManualClock) -> None:
        await store.claim("r", create=replace(new_run("r"), nonce="first"))
        run = RunDriver(store, clock, "r", "flow")
        run.claim = await store.claim("r", create=replace(new_run("r"), nonce="second"))
        await run.commit()
        assert (await run.record()).nonce == "second"

    @in_a_loop
    async def test_a_run_that_has_begun_stays_as_it_began(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        await store.claim("r", create=replace(new_run("r"), nonce="late"))
        assert (await run.record()).nonce == "nonce of r"

    @in_a_loop
    async def test_releasing_a_replaced_claim_changes_nothing(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        newer = await store.claim("r")
        await run.release()
        assert (await run.record()).owner == newer.owner
