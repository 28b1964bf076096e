"""Commits: a checkpoint is written whole, on the head that was expected, or not at all."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from perdure.errors import ClaimLostError, StaleHeadError, WorkflowCheckpointException
from perdure.testing.stores.driver import RunDriver, new_run, raw_part, text_part
from perdure.testing.stores.suite import StoreSuite, in_a_loop

if TYPE_CHECKING:
    from perdure.records import Part
    from perdure.storage import Store
    from perdure.testing.clock import ManualClock


class CommitConformance(StoreSuite):
    """What is committed comes back as it was; what is refused leaves no trace."""

    @in_a_loop
    async def test_a_checkpoint_comes_back_as_it_was_written(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r", workflow_name="flöw")
        await run.commit()
        commit = run.next_commit({"state/ключ": text_part("v"), "empty": raw_part(b"")})
        await run.write(commit)
        manifest = await store.manifest("r@1")
        assert replace(manifest, toc=dict(manifest.toc)) == replace(commit.manifest, toc=dict(commit.manifest.toc))
        assert manifest.checksum() == commit.manifest.checksum()

    @in_a_loop
    async def test_a_header_comes_back_byte_by_byte(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        headers = [
            b"{}",
            b'{"b":1,"a":{"z":[1.0,1e100,-0.0,12345678901234567890123]}}',
            b'{ "spaced" : true }',
            b'{"twice":1,"twice":2}',
            b'{"toc":1,"parts":2,"checksum":3,"run_id":"other","position":null}',
            b'{"checkpoint_id":"r@5","workflow_name":"flow"}',
            '{"text":"ünï\u2028\\u0001\\"日本"}'.encode(),
            b"not json",
            b"\xff\x00",
            b"",
        ]
        for header in headers:
            commit = run.next_commit()
            await run.write(replace(commit, manifest=replace(commit.manifest, header=header)))
        assert [manifest.header for manifest in await store.manifests(run_id="r")] == headers

    @in_a_loop
    async def test_a_commit_moves_the_head(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        for position in range(3):
            await run.commit()
            record = await run.record()
            assert (record.head, record.position) == (f"r@{position}", position)

    @in_a_loop
    async def test_a_run_is_settled_as_its_last_commit_says(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        for settled in (False, True, False):
            await run.commit(settled=settled)
            assert (await run.record()).settled is settled

    @in_a_loop
    async def test_a_run_is_recorded_as_it_began(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r", workflow_name="flöw")
        await run.commit()
        record = await run.record()
        began = new_run("r", "flöw")
        assert (record.workflow_name, record.created_at, record.nonce, record.input_digest) == (
            began.workflow_name,
            began.created_at,
            began.nonce,
            began.input_digest,
        )

    @in_a_loop
    async def test_a_stale_commit_writes_nothing(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        part = text_part("lost")
        commit = replace(run.next_commit({"a": part}), expected_head="r@-1")
        with pytest.raises(StaleHeadError) as caught:
            await run.write(commit)
        assert (caught.value.expected, caught.value.head) == ("r@-1", "r@0")
        await self._assert_untouched(run, part)

    @in_a_loop
    async def test_a_commit_with_a_replaced_claim_writes_nothing(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        await store.claim("r")
        part = text_part("lost")
        with pytest.raises(ClaimLostError):
            await run.commit({"a": part})
        await self._assert_untouched(run, part)

    @in_a_loop
    async def test_a_commit_after_the_release_writes_nothing(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        await run.release()
        part = text_part("lost")
        with pytest.raises(ClaimLostError):
            await run.commit({"a": part})
        await self._assert_untouched(run, part)

    @in_a_loop
    async def test_a_commit_whose_number_was_passed_writes_nothing(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        part = text_part("lost")
        commit = run.next_commit({"a": part})
        with pytest.raises(WorkflowCheckpointException):
            await run.write(replace(commit, manifest=replace(commit.manifest, position=0)))
        await self._assert_untouched(run, part)

    @in_a_loop
    async def test_numbers_may_be_left_out(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        commit = run.next_commit({})
        await run.write(replace(commit, manifest=replace(commit.manifest, position=5)))
        assert (await run.record()).position == 5
        assert [manifest.position for manifest in await store.manifests(run_id="r")] == [0, 5]

    @in_a_loop
    async def test_a_checkpoint_is_never_replaced(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        other = await RunDriver.start(store, clock, "s")
        part = text_part("lost")
        with pytest.raises(WorkflowCheckpointException):
            await other.commit({"a": part}, checkpoint_id="r@0")
        await self._assert_untouched(run, part)
        assert await store.run("s") is None

    async def _assert_untouched(self, run: RunDriver, part: Part) -> None:
        assert (await run.record()).head == "r@0"
        assert await run.store.ids() == ["r@0"]
        await run.store.collect()
        assert await run.store.parts([part.hash]) == {}

    @in_a_loop
    async def test_of_two_commits_on_one_head_one_is_refused(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        assert run.claim is not None
        rivals = [run.next_commit(checkpoint_id=name) for name in ("left", "right")]
        outcomes = await asyncio.gather(*(store.commit(run.claim, rival) for rival in rivals), return_exceptions=True)
        assert sorted(type(outcome).__name__ for outcome in outcomes) == ["StaleHeadError", "int"]
        winner = rivals[outcomes.index(0)].manifest.checkpoint_id
        assert list(await store.ids()) == ["r@0", winner]

    @in_a_loop
    async def test_runs_that_commit_at_once_all_get_through(self, store: Store, clock: ManualClock) -> None:
        runs = [await RunDriver.start(store, clock, f"r{number}") for number in range(8)]

        async def advance(run: RunDriver) -> None:
            for step in range(4):
                await run.commit({"a": text_part(f"{run.run_id} {step}"), "b": text_part(f"common {step}")})

        await asyncio.gather(*(advance(run) for run in runs))
        for run in runs:
            assert (await run.record()).position == 3
            assert [manifest.position for manifest in await store.manifests(run_id=run.run_id)] == [0, 1, 2, 3]
        assert len(await store.ids()) == 32

    @in_a_loop
    async def test_a_refused_commit_spoils_no_other_beside_it(self, store: Store, clock: ManualClock) -> None:
        good = await RunDriver.start(store, clock, "good")
        bad = await RunDriver.start(store, clock, "bad")
        assert bad.claim is not None
        outcomes = await asyncio.gather(
            store.commit(bad.claim, replace(bad.next_commit(), expected_head="nowhere")),
            good.commit({"a": text_part("kept")}),
            return_exceptions=True,
        )
        assert isinstance(outcomes[0], StaleHeadError)
        assert list(await store.ids()) == ["good@0"]
