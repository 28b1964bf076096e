"""Commits: a checkpoint is written completely, on the expected head, or not at all."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from perdure.errors import CheckpointNotFoundError, LeaseLostError, StaleHeadError, WorkflowCheckpointException
from perdure.records import Blob, KeepLast, LatestOnly, Retention, SinceHead, WholeCheckpoint
from perdure.storage import MemoryStore, reads_at_once
from perdure.testing.stores.base import (
    RunDriver,
    StoreSuite,
    TenantStoreSuite,
    command,
    finished,
    in_a_loop,
    latest_id,
    new_run,
    raw_blob,
    read_contents,
    text_blob,
)
from perdure.testing.stores.tenants import REFUSED_IDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from perdure.records import Commit, Manifest
    from perdure.storage import Openings, Store, TenantStore
    from perdure.testing.clock import ManualClock


class CommitConformance(StoreSuite):
    """Committed data is read back unchanged; a refused commit leaves no trace."""

    @in_a_loop
    async def test_a_checkpoint_comes_back_as_it_was_written(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r", workflow_name="flöw")
        await run.commit()
        commit = run.next_commit({"state/ключ": text_blob("v"), "empty": raw_blob(b"")})
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
        blob = text_blob("lost")
        commit = replace(run.next_commit({"a": blob}), expected_head="r@-1")
        with pytest.raises(StaleHeadError) as caught:
            await run.write(commit)
        assert (caught.value.expected, caught.value.head) == ("r@-1", "r@0")
        await self._assert_untouched(run, blob)

    @in_a_loop
    async def test_a_commit_with_a_replaced_lease_writes_nothing(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        await store.acquire("r")
        blob = text_blob("lost")
        with pytest.raises(LeaseLostError):
            await run.commit({"a": blob})
        await self._assert_untouched(run, blob)

    @in_a_loop
    async def test_a_commit_after_the_release_writes_nothing(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        await run.release()
        blob = text_blob("lost")
        with pytest.raises(LeaseLostError):
            await run.commit({"a": blob})
        await self._assert_untouched(run, blob)

    @in_a_loop
    async def test_a_commit_whose_number_was_passed_writes_nothing(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        blob = text_blob("lost")
        commit = run.next_commit({"a": blob})
        with pytest.raises(WorkflowCheckpointException):
            await run.write(replace(commit, manifest=replace(commit.manifest, position=0)))
        await self._assert_untouched(run, blob)

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
        blob = text_blob("lost")
        with pytest.raises(WorkflowCheckpointException):
            await other.commit({"a": blob}, checkpoint_id="r@0")
        await self._assert_untouched(run, blob)
        assert await store.run("s") is None

    async def _assert_untouched(self, run: RunDriver, blob: Blob) -> None:
        assert (await run.record()).head == "r@0"
        assert await run.store.ids() == ["r@0"]
        await run.store.collect()
        assert await run.store.blobs([blob.hash]) == {}

    @in_a_loop
    async def test_of_two_commits_on_one_head_one_is_refused(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        assert run.lease is not None
        rivals = [run.next_commit(checkpoint_id=name) for name in ("left", "right")]
        outcomes = await asyncio.gather(*(store.commit(run.lease, rival) for rival in rivals), return_exceptions=True)
        assert sorted(type(outcome).__name__ for outcome in outcomes) == ["StaleHeadError", "int"]
        winner = rivals[outcomes.index(0)].manifest.checkpoint_id
        assert list(await store.ids()) == ["r@0", winner]

    @in_a_loop
    async def test_runs_that_commit_at_once_all_get_through(self, store: Store, clock: ManualClock) -> None:
        runs = [await RunDriver.start(store, clock, f"r{number}") for number in range(8)]

        async def advance(run: RunDriver) -> None:
            for step in range(4):
                await run.commit({"a": text_blob(f"{run.run_id} {step}"), "b": text_blob(f"common {step}")})

        await asyncio.gather(*(advance(run) for run in runs))
        for run in runs:
            assert (await run.record()).position == 3
            assert [manifest.position for manifest in await store.manifests(run_id=run.run_id)] == [0, 1, 2, 3]
        assert len(await store.ids()) == 32

    @in_a_loop
    async def test_a_refused_commit_spoils_no_other_beside_it(self, store: Store, clock: ManualClock) -> None:
        good = await RunDriver.start(store, clock, "good")
        bad = await RunDriver.start(store, clock, "bad")
        assert bad.lease is not None
        outcomes = await asyncio.gather(
            store.commit(bad.lease, replace(bad.next_commit(), expected_head="nowhere")),
            good.commit({"a": text_blob("kept")}),
            return_exceptions=True,
        )
        assert isinstance(outcomes[0], StaleHeadError)
        assert list(await store.ids()) == ["good@0"]


class ForkConformance(StoreSuite):
    """An older checkpoint becomes the head again, or the start of another run."""

    @in_a_loop
    async def test_rewinding_moves_the_head_and_keeps_what_came_after(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        for step in range(4):
            await run.commit({"a": text_blob(f"v{step}")}, settled=step == 3)
        await run.rewind("r@1", nonce="renewed")
        record = await run.record()
        assert (record.head, record.position, record.nonce, record.settled) == ("r@1", 3, "renewed", False)
        later = await store.manifest("r@3")
        assert await store.blobs(later.toc.values()) == {text_blob("v3").hash: b'"v3"'}

    @in_a_loop
    async def test_after_rewinding_the_numbers_go_on(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        for step in range(3):
            await run.commit({"a": text_blob(f"v{step}")})
        await run.rewind("r@0")
        await run.commit({"a": text_blob("other")})
        record = await run.record()
        assert (record.head, record.position) == ("r@3", 3)
        assert (await store.manifest("r@3")).previous_id == "r@0"
        assert list(await store.ids()) == ["r@0", "r@1", "r@2", "r@3"]

    @in_a_loop
    async def test_a_rewound_run_keeps_its_head_over_a_new_lease(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        for _ in range(3):
            await run.commit()
        await run.rewind("r@1")
        await run.release()
        run.lease = await store.acquire("r")
        record = await run.record()
        assert (record.head, record.position) == ("r@1", 2)

    @in_a_loop
    async def test_rewinding_is_refused_without_lease_head_or_target(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        await run.commit()
        other = await RunDriver.start(store, clock, "s")
        await other.commit()
        assert run.lease is not None
        with pytest.raises(StaleHeadError):
            await store.rewind(run.lease, expected_head="r@0", to="r@0", nonce="n")
        for missing in ("s@0", "nowhere"):
            with pytest.raises(CheckpointNotFoundError):
                await store.rewind(run.lease, expected_head="r@1", to=missing, nonce="n")
        await store.acquire("r")
        with pytest.raises(LeaseLostError):
            await run.rewind("r@0")
        record = await run.record()
        assert (record.head, record.nonce) == ("r@1", "nonce of r")

    @in_a_loop
    async def test_a_fork_rests_on_its_parent_until_its_first_commit(self, store: Store, clock: ManualClock) -> None:
        source = await RunDriver.start(store, clock, "r")
        for step in range(3):
            await source.commit({"a": text_blob(f"v{step}")})
        fork = await RunDriver.start(store, clock, "f", parent="r@1")
        record = await fork.record()
        assert (record.head, record.position, record.parent_checkpoint_id) == ("r@1", -1, "r@1")
        await fork.commit({"a": text_blob("v1")})
        record = await fork.record()
        assert (record.head, record.position, record.parent_checkpoint_id) == ("f@0", 0, "r@1")
        assert (await source.record()).head == "r@2"

    @in_a_loop
    async def test_a_fork_survives_its_release_before_the_first_commit(self, store: Store, clock: ManualClock) -> None:
        source = await RunDriver.start(store, clock, "r")
        await source.commit()
        fork = await RunDriver.start(store, clock, "f", parent="r@0")
        await fork.release()
        fork.lease = await store.acquire("f")
        await fork.commit()
        assert (await fork.record()).head == "f@0"

    @in_a_loop
    async def test_a_fork_whose_parent_is_gone_has_to_write_all_that_it_needs(
        self, store: Store, clock: ManualClock
    ) -> None:
        leaf = text_blob("leaf")
        blobs = {"small": text_blob("small", leaf), "large": raw_blob(b"large" * 20_000)}
        source = await RunDriver.start(store, clock, "r")
        await source.commit(blobs, leaf)
        await source.commit()
        fork = await RunDriver.start(store, clock, "f", parent="r@0")
        await store.delete("r@0")
        await store.collect()
        whole = replace(fork.next_commit(blobs), blobs=(*blobs.values(), leaf))
        for left_out in whole.blobs:
            present = tuple(blob for blob in whole.blobs if blob is not left_out)
            with pytest.raises(WorkflowCheckpointException, match="'r@0', from which it was forked, was deleted"):
                await fork.write(replace(whole, blobs=present))
        await fork.write(whole)
        assert await read_contents(store, "f@0") == {path: blob.data for path, blob in blobs.items()}

    @in_a_loop
    async def test_a_fork_needs_not_write_what_its_parent_has(self, store: Store, clock: ManualClock) -> None:
        small, large = text_blob("small"), raw_blob(b"large" * 20_000)
        source = await RunDriver.start(store, clock, "r")
        await source.commit({"small": small, "large": large})
        fork = await RunDriver.start(store, clock, "f", parent="r@0")
        await fork.write(replace(fork.next_commit({"small": small, "large": large}), blobs=()))
        await store.delete("r@0")
        await store.collect()
        assert await read_contents(store, "f@0") == {"small": small.data, "large": large.data}


PIECES = (
    b"{}",
    b'{"a":1,"b":["f\xc3\xbcr dich",null]}',
    b'{"lone":"\xed\xa0\x80"}',
    b'{"a":{"~":"part","part":"0123"}}',
    b'{"\\n":"\\u0000 , \\"parts\\": {"}',
    b'{"a":1,\n  "parts": {\n    "b": {"refs": [], "value": 1}}}',
    b'"no object"',
    b"no JSON \xff\0",
)
"""Entries of a manifest. The last ones are accepted only because a store does not check them."""


def _base(**blobs: Blob) -> Blob:
    """Return a blob with entries of a table of contents."""
    entries = ",".join(f'"{path}":"{blob.hash}"' for path, blob in blobs.items())
    return Blob.of(f"{{{entries}}}".encode(), tuple(blob.hash for blob in blobs.values()))


def _holding(
    commit: Commit,
    *,
    pieces: bytes = b"{}",
    refs: Iterable[Blob] = (),
    base: Blob | None = None,
    gone: Sequence[str] = (),
    blobs: Iterable[Blob] = (),
) -> Commit:
    """Return a commit with this in its manifest, and with further blobs."""
    manifest = replace(
        commit.manifest,
        pieces=pieces,
        refs=tuple(blob.hash for blob in refs),
        base=base.hash if base else None,
        gone=tuple(gone),
    )
    return replace(commit, manifest=manifest, blobs=(*commit.blobs, *blobs))


async def _whole(store: Store, manifest: Manifest, *blobs: Blob) -> None:
    """Check that everything the manifest needs is there, including these blobs."""
    found = await store.blobs(manifest.roots)
    assert found.keys() >= {*manifest.roots, *(blob.hash for blob in blobs)}
    assert {blob.hash: found[blob.hash] for blob in blobs} == {blob.hash: blob.data for blob in blobs}


class PieceConformance(StoreSuite):
    """A manifest is read back unchanged, and its blobs stay as long as it does."""

    @pytest.mark.parametrize("pieces", PIECES)
    @in_a_loop
    async def test_a_manifest_comes_back_with_its_pieces(self, store: Store, clock: ManualClock, pieces: bytes) -> None:
        run = await RunDriver.start(store, clock, "r")
        inner = text_blob("inner")
        near, far = text_blob("near", inner), raw_blob(b"far" * 3000)
        base = _base(**{"state/a": near, "state/b": far})
        values = {"request/1": text_blob("asked")}
        commit = _holding(run.next_commit(values), pieces=pieces, refs=(near, far), base=base, gone=("state/b", "x/y"))
        await run.write(commit, inner, near, far, base)
        latest = await store.latest(workflow_name="flow")
        assert latest is not None
        for manifest in (await store.manifest("r@0"), latest, *(await store.manifests(run_id="r"))):
            assert manifest == commit.manifest
            assert manifest.checksum() == commit.manifest.checksum()
        await _whole(store, commit.manifest, inner, near, far, base)

    @in_a_loop
    async def test_a_commit_may_leave_out_what_the_base_before_it_has(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        small = {f"state/{number}": text_blob(f"small {number}") for number in range(50)}
        large = raw_blob(b"large" * 3000)
        base = _base(**small, large=large)
        await run.write(_holding(run.next_commit(), base=base, blobs=(*small.values(), large, base)))
        for step in range(3):
            held = text_blob(f"held {step}")
            await run.write(_holding(run.next_commit(), refs=(held,), base=base, gone=("state/1",), blobs=(held,)))
            await store.collect()
            await _whole(store, await store.manifest(f"r@{step + 1}"), held, base, large, *small.values())
        fork = await RunDriver.start(store, clock, "f", parent="r@3")
        another = _base(**small)
        await fork.write(_holding(fork.next_commit(), base=another, blobs=(another,)))
        await _whole(store, await store.manifest("f@0"), another, *small.values())

    @in_a_loop
    async def test_what_refs_and_a_base_need_is_not_collected_and_goes_with_them(
        self, tmp_path: Path, clock: ManualClock
    ) -> None:
        store = self.open_store(tmp_path, retention=Retention(checkpoints=LatestOnly()), clock=clock)
        run = await RunDriver.start(store, clock, "r")
        deep = raw_blob(b"deep" * 3000)
        kept, small = text_blob("kept", deep), text_blob("small")
        base = _base(small=small, kept=kept)
        brief = raw_blob(b"brief" * 3000)
        await run.write(_holding(run.next_commit(), refs=(brief,), base=base, blobs=(deep, kept, small, base, brief)))
        await run.write(_holding(run.next_commit(), base=base))
        await store.collect()
        await _whole(store, await store.manifest("r@1"), base, small, kept, deep)
        assert not await store.blobs([brief.hash])
        await run.write(_holding(run.next_commit({"kept": kept}), blobs=(kept, deep)))
        await store.collect()
        await _whole(store, await store.manifest("r@2"), kept, deep)
        assert not await store.blobs([base.hash, small.hash])
        await store.close()

    @in_a_loop
    async def test_a_value_that_comes_back_is_there_however_often_blobs_are_collected(
        self, tmp_path: Path, clock: ManualClock
    ) -> None:
        store = self.open_store(tmp_path, retention=Retention(checkpoints=KeepLast(1)), clock=clock)
        run = await RunDriver.start(store, clock, "r")
        values = raw_blob(b"A" * 9000), raw_blob(b"B" * 9000), text_blob("small A"), text_blob("small B")
        for step in range(8):
            large, small = values[step % 2], values[2 + step % 2]
            await run.write(_holding(run.next_commit({"large": large}), refs=(small,), blobs=(small,)))
            if step % 3:
                await store.collect()
            await _whole(store, await store.manifest(f"r@{step}"), large, small)
        await store.close()


class PieceTransferConformance(TenantStoreSuite):
    """A moved run takes along the contents of its manifests."""

    @pytest.mark.parametrize("comes_here", [True, False])
    @in_a_loop
    async def test_pieces_and_what_they_need_move_with_their_run(
        self, store: TenantStore, clock: ManualClock, *, comes_here: bool
    ) -> None:
        elsewhere = MemoryStore(clock=clock)
        source, target = (elsewhere, store) if comes_here else (store, elsewhere)
        run = await RunDriver.start(source, clock, "r")
        inner, held = text_blob("inner"), raw_blob(b"held" * 3000)
        base = _base(inner=inner)
        await run.write(_holding(run.next_commit(), base=base, blobs=(inner, base)))
        commit = _holding(run.next_commit(), pieces=PIECES[1], refs=(held,), base=base, gone=("inner",), blobs=(held,))
        await run.write(commit)
        await run.release()
        await target.restore(await source.archive("r"))
        assert await target.manifest("r@1") == commit.manifest
        await target.collect()
        await _whole(target, commit.manifest, inner, held, base)


class OpeningConformance(StoreSuite):
    """A combined read returns the same as separate reads."""

    @in_a_loop
    async def test_a_checkpoint_comes_with_its_blobs_and_its_run(self, store: Store, clock: ManualClock) -> None:
        opened = _opened(store)
        leaf = text_blob("leaf")
        branch = raw_blob(b"branch" * 5000, leaf)
        run = await RunDriver.start(store, clock, "r")
        await run.commit({"a": branch}, leaf)
        await run.commit({"b": text_blob("newer")})
        for checkpoint_id in ("r@0", "r@1"):
            manifest = await store.manifest(checkpoint_id)
            assert await opened.whole_checkpoint(checkpoint_id) == WholeCheckpoint(
                manifest, await store.blobs(manifest.roots), await run.record()
            )
        assert (await opened.whole_checkpoint("r@0")).blobs == {blob.hash: blob.data for blob in (leaf, branch)}

    @in_a_loop
    async def test_a_checkpoint_that_is_not_there_is_not_found_with_its_run_either(
        self, store: Store, clock: ManualClock
    ) -> None:
        opened = _opened(store)
        await (await RunDriver.start(store, clock, "r")).commit()
        with pytest.raises(CheckpointNotFoundError):
            await opened.whole_checkpoint("r@1")

    @in_a_loop
    async def test_a_journal_comes_with_the_inbox(self, store: Store, clock: ManualClock) -> None:
        opened = _opened(store)
        assert _listed(await opened.since_head("r")) == ([], [])
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        assert _listed(await opened.since_head("r")) == ([], [])
        await run.note(finished("a", "1"), finished("b", "2", text_blob("of b")))
        await run.post(command("c", "3", text_blob("of c")), command("d", "4"))
        since = await opened.since_head("r")
        assert _listed(since) == (list(await store.journal("r")), list(await store.inbox("r")))
        assert [record.key for record in since.journal] == ["a", "b"]
        assert [each.id for each in since.inbox] == ["c", "d"]

    @in_a_loop
    async def test_what_can_not_be_an_id_is_refused_by_who_reads_at_once(self, store: Store) -> None:
        opened = _opened(store)
        for name in REFUSED_IDS:
            with pytest.raises(WorkflowCheckpointException):
                await opened.whole_checkpoint(name)
            with pytest.raises(WorkflowCheckpointException):
                await opened.since_head(name)


def _opened(store: Store) -> Openings:
    """Return the store if it supports combined reads."""
    if not reads_at_once(store):
        pytest.skip("this store is asked for one after the other")
    return store


def _listed(since: SinceHead) -> tuple[list[object], list[object]]:
    return list(since.journal), list(since.inbox)


class ReadingConformance(StoreSuite):
    """Checkpoints come in commit order, blobs with everything they refer to."""

    @in_a_loop
    async def test_the_latest_is_the_newest_commit_whatever_its_time(self, store: Store, clock: ManualClock) -> None:
        first = await RunDriver.start(store, clock, "b")
        second = await RunDriver.start(store, clock, "a")
        await first.commit()
        await second.commit()
        clock.advance(timedelta(days=-1))
        await first.commit()
        assert await latest_id(store, "flow") == "b@1"
        await second.commit()
        assert await latest_id(store, "flow") == "a@1"

    @in_a_loop
    async def test_workflows_have_each_their_latest(self, store: Store, clock: ManualClock) -> None:
        assert await store.latest(workflow_name="flow") is None
        for name in ("x", "y"):
            await (await RunDriver.start(store, clock, f"run of {name}", workflow_name=name)).commit()
        assert await latest_id(store, "x") == "run of x@0"
        assert await latest_id(store, "y") == "run of y@0"
        assert await store.latest(workflow_name="z") is None

    @in_a_loop
    async def test_checkpoints_are_listed_in_commit_order(self, store: Store, clock: ManualClock) -> None:
        runs = {name: await RunDriver.start(store, clock, name, workflow_name=f"flow {name}") for name in "zay"}
        written = [await runs[name].commit() for name in "zazzyaz"]
        assert list(await store.ids()) == written
        assert [manifest.checkpoint_id for manifest in await store.manifests()] == written
        of_z = [checkpoint_id for checkpoint_id in written if checkpoint_id.startswith("z")]
        assert list(await store.ids(workflow_name="flow z")) == of_z
        assert [manifest.checkpoint_id for manifest in await store.manifests(workflow_name="flow z")] == of_z
        assert [manifest.checkpoint_id for manifest in await store.manifests(run_id="z")] == of_z
        assert list(await store.manifests(workflow_name="flow z", run_id="a")) == []

    @in_a_loop
    async def test_blobs_come_with_all_that_they_refer_to(self, store: Store, clock: ManualClock) -> None:
        leaf = text_blob("leaf")
        twig = raw_blob(b"twig" * 5000, leaf)
        branch = text_blob("branch", twig, leaf)
        unrelated = text_blob("unrelated")
        run = await RunDriver.start(store, clock, "r")
        await run.commit({"tree": branch, "other": unrelated}, twig, leaf)
        expected = {blob.hash: blob.data for blob in (leaf, twig, branch)}
        assert await store.blobs([branch.hash]) == expected
        assert await asyncio.to_thread(store.read_blobs, [branch.hash]) == expected

    @in_a_loop
    async def test_blobs_can_be_read_blocking_inside_a_loop(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        blob = text_blob("seen")
        await run.commit({"a": blob})
        assert store.read_blobs([blob.hash]) == {blob.hash: blob.data}

    @in_a_loop
    async def test_a_blob_that_is_missing_is_left_out(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        present, absent = text_blob("present"), text_blob("absent")
        await run.commit({"a": present})
        assert await store.blobs([absent.hash, present.hash]) == {present.hash: present.data}
        assert await store.blobs([]) == {}

    @in_a_loop
    async def test_blobs_of_any_size_and_content_come_back(self, store: Store, clock: ManualClock) -> None:
        blobs = [
            raw_blob(b""),
            raw_blob(b"\n{}\n"),
            raw_blob(bytes(range(256)) * 20_000),
            Blob.of(b'{"a": [1, 2.50]}'),
            Blob.of(b"[1,1.0,-0.0,1e+400,NaN]"),
            Blob.of(b'"\\ud800"'),
            Blob.of(b"null"),
            Blob.of(b'{"b":1,"a":"\xf0\x9f\x98\x80"}'),
            Blob.of(b'["' + b"x" * 10_000 + b'"]'),
        ]
        run = await RunDriver.start(store, clock, "r")
        await run.commit({str(number): blob for number, blob in enumerate(blobs)})
        await run.commit({"again": blobs[-2]})
        assert await read_contents(store, "r@0") == {str(number): blob.data for number, blob in enumerate(blobs)}

    @in_a_loop
    async def test_a_checkpoint_keeps_its_blobs_when_others_go(self, store: Store, clock: ManualClock) -> None:
        first, second = text_blob("A"), text_blob("B")
        run = await RunDriver.start(store, clock, "r")
        for blob in (first, second, first):
            await run.commit({"a": blob})
        await store.delete("r@0")
        await store.collect()
        assert await read_contents(store, "r@2") == {"a": first.data}
        assert await read_contents(store, "r@1") == {"a": second.data}

    @in_a_loop
    async def test_what_the_head_has_needs_not_be_written_again(self, store: Store, clock: ManualClock) -> None:
        leaf = text_blob("leaf")
        kept = {f"small {number}": text_blob(f"{number}" * 100, leaf) for number in range(40)}
        kept |= {f"large {number}": raw_blob(bytes([number]) * 9000, leaf) for number in range(3)}
        run = await RunDriver.start(store, clock, "r")
        await run.commit(kept, leaf)
        for step in range(3):
            changed = text_blob(f"step {step}")
            await run.write(replace(run.next_commit({**kept, "changed": changed}), blobs=(changed,)))
        for position in range(3):
            await store.delete(f"r@{position}")
        await store.collect()
        assert await read_contents(store, "r@3") == {
            **{path: blob.data for path, blob in kept.items()},
            "changed": text_blob("step 2").data,
        }
        closure = await store.blobs(blob.hash for blob in kept.values())
        assert leaf.hash in closure

    @in_a_loop
    async def test_what_is_handed_out_is_the_callers_own(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        blob = text_blob("v")
        toc = {"a": blob.hash}
        commit = run.next_commit({"a": blob})
        await run.write(replace(commit, manifest=replace(commit.manifest, toc=toc)))
        toc["a"] = "changed"
        manifest = await store.manifest("r@0")
        if isinstance(manifest.toc, dict):
            manifest.toc["b"] = "added"
        blobs = await store.blobs([blob.hash])
        if isinstance(blobs, dict):
            blobs.clear()
        assert dict((await store.manifest("r@0")).toc) == {"a": blob.hash}
        assert await store.blobs([blob.hash]) == {blob.hash: blob.data}
