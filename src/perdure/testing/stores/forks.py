"""Rewinding and forks: a history goes on from one of its checkpoints, in place or as a run of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from perdure.errors import CheckpointNotFoundError, ClaimLostError, StaleHeadError, WorkflowCheckpointException
from perdure.testing.stores.driver import RunDriver, raw_part, text_part
from perdure.testing.stores.suite import StoreSuite, contents_of, in_a_loop

if TYPE_CHECKING:
    from perdure.storage import Store
    from perdure.testing.clock import ManualClock


class ForkConformance(StoreSuite):
    """An older checkpoint becomes the head again, or the beginning of another run."""

    @in_a_loop
    async def test_rewinding_moves_the_head_and_keeps_what_came_after(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        for step in range(4):
            await run.commit({"a": text_part(f"v{step}")}, settled=step == 3)
        await run.rewind("r@1", nonce="renewed")
        record = await run.record()
        assert (record.head, record.position, record.nonce, record.settled) == ("r@1", 3, "renewed", False)
        later = await store.manifest("r@3")
        assert await store.parts(later.toc.values()) == {text_part("v3").hash: b'"v3"'}

    @in_a_loop
    async def test_after_rewinding_the_numbers_go_on(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        for step in range(3):
            await run.commit({"a": text_part(f"v{step}")})
        await run.rewind("r@0")
        await run.commit({"a": text_part("other")})
        record = await run.record()
        assert (record.head, record.position) == ("r@3", 3)
        assert (await store.manifest("r@3")).previous_id == "r@0"
        assert list(await store.ids()) == ["r@0", "r@1", "r@2", "r@3"]

    @in_a_loop
    async def test_a_rewound_run_keeps_its_head_over_a_new_claim(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        for _ in range(3):
            await run.commit()
        await run.rewind("r@1")
        await run.release()
        run.claim = await store.claim("r")
        record = await run.record()
        assert (record.head, record.position) == ("r@1", 2)

    @in_a_loop
    async def test_rewinding_is_refused_without_claim_head_or_target(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        await run.commit()
        other = await RunDriver.start(store, clock, "s")
        await other.commit()
        assert run.claim is not None
        with pytest.raises(StaleHeadError):
            await store.rewind(run.claim, expected_head="r@0", to="r@0", nonce="n")
        for missing in ("s@0", "nowhere"):
            with pytest.raises(CheckpointNotFoundError):
                await store.rewind(run.claim, expected_head="r@1", to=missing, nonce="n")
        await store.claim("r")
        with pytest.raises(ClaimLostError):
            await run.rewind("r@0")
        record = await run.record()
        assert (record.head, record.nonce) == ("r@1", "nonce of r")

    @in_a_loop
    async def test_a_fork_rests_on_its_parent_until_its_first_commit(self, store: Store, clock: ManualClock) -> None:
        source = await RunDriver.start(store, clock, "r")
        for step in range(3):
            await source.commit({"a": text_part(f"v{step}")})
        fork = await RunDriver.start(store, clock, "f", parent="r@1")
        record = await fork.record()
        assert (record.head, record.position, record.parent_checkpoint_id) == ("r@1", -1, "r@1")
        await fork.commit({"a": text_part("v1")})
        record = await fork.record()
        assert (record.head, record.position, record.parent_checkpoint_id) == ("f@0", 0, "r@1")
        assert (await source.record()).head == "r@2"

    @in_a_loop
    async def test_a_fork_survives_its_release_before_the_first_commit(self, store: Store, clock: ManualClock) -> None:
        source = await RunDriver.start(store, clock, "r")
        await source.commit()
        fork = await RunDriver.start(store, clock, "f", parent="r@0")
        await fork.release()
        fork.claim = await store.claim("f")
        await fork.commit()
        assert (await fork.record()).head == "f@0"

    @in_a_loop
    async def test_a_fork_whose_parent_is_gone_has_to_write_all_that_it_needs(
        self, store: Store, clock: ManualClock
    ) -> None:
        leaf = text_part("leaf")
        parts = {"small": text_part("small", leaf), "large": raw_part(b"large" * 20_000)}
        source = await RunDriver.start(store, clock, "r")
        await source.commit(parts, leaf)
        await source.commit()
        fork = await RunDriver.start(store, clock, "f", parent="r@0")
        await store.delete("r@0")
        await store.collect()
        whole = replace(fork.next_commit(parts), parts=(*parts.values(), leaf))
        for left_out in whole.parts:
            present = tuple(part for part in whole.parts if part is not left_out)
            with pytest.raises(WorkflowCheckpointException, match="'r@0', from which it was forked, was deleted"):
                await fork.write(replace(whole, parts=present))
        await fork.write(whole)
        assert await contents_of(store, "f@0") == {path: part.data for path, part in parts.items()}

    @in_a_loop
    async def test_a_fork_needs_not_write_what_its_parent_has(self, store: Store, clock: ManualClock) -> None:
        small, large = text_part("small"), raw_part(b"large" * 20_000)
        source = await RunDriver.start(store, clock, "r")
        await source.commit({"small": small, "large": large})
        fork = await RunDriver.start(store, clock, "f", parent="r@0")
        await fork.write(replace(fork.next_commit({"small": small, "large": large}), parts=()))
        await store.delete("r@0")
        await store.collect()
        assert await contents_of(store, "f@0") == {"small": small.data, "large": large.data}
