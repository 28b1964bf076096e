"""Commits: a checkpoint is written completely, on the expected head, or not at all."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from perdure.errors import CheckpointNotFoundError, LeaseLostError, StaleHeadError, WorkflowCheckpointException
from perdure.records import KeepLast, LatestOnly, Part, Retention, SinceHead, WholeCheckpoint
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
    raw_part,
    read_contents,
    text_part,
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
        with pytest.raises(LeaseLostError):
            await run.commit({"a": part})
        await self._assert_untouched(run, part)

    @in_a_loop
    async def test_a_commit_after_the_release_writes_nothing(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        await run.release()
        part = text_part("lost")
        with pytest.raises(LeaseLostError):
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


class ForkConformance(StoreSuite):
    """An older checkpoint becomes the head again, or the start of another run."""

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
        with pytest.raises(LeaseLostError):
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
        assert await read_contents(store, "f@0") == {path: part.data for path, part in parts.items()}

    @in_a_loop
    async def test_a_fork_needs_not_write_what_its_parent_has(self, store: Store, clock: ManualClock) -> None:
        small, large = text_part("small"), raw_part(b"large" * 20_000)
        source = await RunDriver.start(store, clock, "r")
        await source.commit({"small": small, "large": large})
        fork = await RunDriver.start(store, clock, "f", parent="r@0")
        await fork.write(replace(fork.next_commit({"small": small, "large": large}), parts=()))
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


def _base(**parts: Part) -> Part:
    """Return a blob with entries of a table of contents."""
    entries = ",".join(f'"{path}":"{part.hash}"' for path, part in parts.items())
    return Part.of(f"{{{entries}}}".encode(), tuple(part.hash for part in parts.values()))


def _holding(
    commit: Commit,
    *,
    pieces: bytes = b"{}",
    refs: Iterable[Part] = (),
    base: Part | None = None,
    gone: Sequence[str] = (),
    parts: Iterable[Part] = (),
) -> Commit:
    """Return a commit with this in its manifest, and with further blobs."""
    manifest = replace(
        commit.manifest,
        pieces=pieces,
        refs=tuple(part.hash for part in refs),
        base=base.hash if base else None,
        gone=tuple(gone),
    )
    return replace(commit, manifest=manifest, parts=(*commit.parts, *parts))


async def _whole(store: Store, manifest: Manifest, *parts: Part) -> None:
    """Check that everything the manifest needs is there, including these blobs."""
    found = await store.parts(manifest.roots)
    assert found.keys() >= {*manifest.roots, *(part.hash for part in parts)}
    assert {part.hash: found[part.hash] for part in parts} == {part.hash: part.data for part in parts}


class PieceConformance(StoreSuite):
    """A manifest is read back unchanged, and its blobs stay as long as it does."""

    @pytest.mark.parametrize("pieces", PIECES)
    @in_a_loop
    async def test_a_manifest_comes_back_with_its_pieces(self, store: Store, clock: ManualClock, pieces: bytes) -> None:
        run = await RunDriver.start(store, clock, "r")
        inner = text_part("inner")
        near, far = text_part("near", inner), raw_part(b"far" * 3000)
        base = _base(**{"state/a": near, "state/b": far})
        values = {"request/1": text_part("asked")}
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
        small = {f"state/{number}": text_part(f"small {number}") for number in range(50)}
        large = raw_part(b"large" * 3000)
        base = _base(**small, large=large)
        await run.write(_holding(run.next_commit(), base=base, parts=(*small.values(), large, base)))
        for step in range(3):
            held = text_part(f"held {step}")
            await run.write(_holding(run.next_commit(), refs=(held,), base=base, gone=("state/1",), parts=(held,)))
            await store.collect()
            await _whole(store, await store.manifest(f"r@{step + 1}"), held, base, large, *small.values())
        fork = await RunDriver.start(store, clock, "f", parent="r@3")
        another = _base(**small)
        await fork.write(_holding(fork.next_commit(), base=another, parts=(another,)))
        await _whole(store, await store.manifest("f@0"), another, *small.values())

    @in_a_loop
    async def test_what_refs_and_a_base_need_is_not_collected_and_goes_with_them(
        self, tmp_path: Path, clock: ManualClock
    ) -> None:
        store = self.open_store(tmp_path, retention=Retention(checkpoints=LatestOnly()), clock=clock)
        run = await RunDriver.start(store, clock, "r")
        deep = raw_part(b"deep" * 3000)
        kept, small = text_part("kept", deep), text_part("small")
        base = _base(small=small, kept=kept)
        brief = raw_part(b"brief" * 3000)
        await run.write(_holding(run.next_commit(), refs=(brief,), base=base, parts=(deep, kept, small, base, brief)))
        await run.write(_holding(run.next_commit(), base=base))
        await store.collect()
        await _whole(store, await store.manifest("r@1"), base, small, kept, deep)
        assert not await store.parts([brief.hash])
        await run.write(_holding(run.next_commit({"kept": kept}), parts=(kept, deep)))
        await store.collect()
        await _whole(store, await store.manifest("r@2"), kept, deep)
        assert not await store.parts([base.hash, small.hash])
        await store.close()

    @in_a_loop
    async def test_a_value_that_comes_back_is_there_however_often_parts_are_collected(
        self, tmp_path: Path, clock: ManualClock
    ) -> None:
        store = self.open_store(tmp_path, retention=Retention(checkpoints=KeepLast(1)), clock=clock)
        run = await RunDriver.start(store, clock, "r")
        values = raw_part(b"A" * 9000), raw_part(b"B" * 9000), text_part("small A"), text_part("small B")
        for step in range(8):
            large, small = values[step % 2], values[2 + step % 2]
            await run.write(_holding(run.next_commit({"large": large}), refs=(small,), parts=(small,)))
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
        inner, held = text_part("inner"), raw_part(b"held" * 3000)
        base = _base(inner=inner)
        await run.write(_holding(run.next_commit(), base=base, parts=(inner, base)))
        commit = _holding(run.next_commit(), pieces=PIECES[1], refs=(held,), base=base, gone=("inner",), parts=(held,))
        await run.write(commit)
        await run.release()
        await target.restore(await source.archive("r"))
        assert await target.manifest("r@1") == commit.manifest
        await target.collect()
        await _whole(target, commit.manifest, inner, held, base)


class OpeningConformance(StoreSuite):
    """A combined read returns the same as separate reads."""

    @in_a_loop
    async def test_a_checkpoint_comes_with_its_parts_and_its_run(self, store: Store, clock: ManualClock) -> None:
        opened = _opened(store)
        leaf = text_part("leaf")
        branch = raw_part(b"branch" * 5000, leaf)
        run = await RunDriver.start(store, clock, "r")
        await run.commit({"a": branch}, leaf)
        await run.commit({"b": text_part("newer")})
        for checkpoint_id in ("r@0", "r@1"):
            manifest = await store.manifest(checkpoint_id)
            assert await opened.whole_checkpoint(checkpoint_id) == WholeCheckpoint(
                manifest, await store.parts(manifest.roots), await run.record()
            )
        assert (await opened.whole_checkpoint("r@0")).parts == {part.hash: part.data for part in (leaf, branch)}

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
        await run.note(finished("a", "1"), finished("b", "2", text_part("of b")))
        await run.post(command("c", "3", text_part("of c")), command("d", "4"))
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
    async def test_parts_come_with_all_that_they_refer_to(self, store: Store, clock: ManualClock) -> None:
        leaf = text_part("leaf")
        twig = raw_part(b"twig" * 5000, leaf)
        branch = text_part("branch", twig, leaf)
        unrelated = text_part("unrelated")
        run = await RunDriver.start(store, clock, "r")
        await run.commit({"tree": branch, "other": unrelated}, twig, leaf)
        expected = {part.hash: part.data for part in (leaf, twig, branch)}
        assert await store.parts([branch.hash]) == expected
        assert await asyncio.to_thread(store.read_parts, [branch.hash]) == expected

    @in_a_loop
    async def test_parts_can_be_read_blocking_inside_a_loop(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        part = text_part("seen")
        await run.commit({"a": part})
        assert store.read_parts([part.hash]) == {part.hash: part.data}

    @in_a_loop
    async def test_a_part_that_is_missing_is_left_out(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        present, absent = text_part("present"), text_part("absent")
        await run.commit({"a": present})
        assert await store.parts([absent.hash, present.hash]) == {present.hash: present.data}
        assert await store.parts([]) == {}

    @in_a_loop
    async def test_parts_of_any_size_and_content_come_back(self, store: Store, clock: ManualClock) -> None:
        parts = [
            raw_part(b""),
            raw_part(b"\n{}\n"),
            raw_part(bytes(range(256)) * 20_000),
            Part.of(b'{"a": [1, 2.50]}'),
            Part.of(b"[1,1.0,-0.0,1e+400,NaN]"),
            Part.of(b'"\\ud800"'),
            Part.of(b"null"),
            Part.of(b'{"b":1,"a":"\xf0\x9f\x98\x80"}'),
            Part.of(b'["' + b"x" * 10_000 + b'"]'),
        ]
        run = await RunDriver.start(store, clock, "r")
        await run.commit({str(number): part for number, part in enumerate(parts)})
        await run.commit({"again": parts[-2]})
        assert await read_contents(store, "r@0") == {str(number): part.data for number, part in enumerate(parts)}

    @in_a_loop
    async def test_a_checkpoint_keeps_its_parts_when_others_go(self, store: Store, clock: ManualClock) -> None:
        first, second = text_part("A"), text_part("B")
        run = await RunDriver.start(store, clock, "r")
        for part in (first, second, first):
            await run.commit({"a": part})
        await store.delete("r@0")
        await store.collect()
        assert await read_contents(store, "r@2") == {"a": first.data}
        assert await read_contents(store, "r@1") == {"a": second.data}

    @in_a_loop
    async def test_what_the_head_has_needs_not_be_written_again(self, store: Store, clock: ManualClock) -> None:
        leaf = text_part("leaf")
        kept = {f"small {number}": text_part(f"{number}" * 100, leaf) for number in range(40)}
        kept |= {f"large {number}": raw_part(bytes([number]) * 9000, leaf) for number in range(3)}
        run = await RunDriver.start(store, clock, "r")
        await run.commit(kept, leaf)
        for step in range(3):
            changed = text_part(f"step {step}")
            await run.write(replace(run.next_commit({**kept, "changed": changed}), parts=(changed,)))
        for position in range(3):
            await store.delete(f"r@{position}")
        await store.collect()
        assert await read_contents(store, "r@3") == {
            **{path: part.data for path, part in kept.items()},
            "changed": text_part("step 2").data,
        }
        closure = await store.parts(part.hash for part in kept.values())
        assert leaf.hash in closure

    @in_a_loop
    async def test_what_is_handed_out_is_the_callers_own(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        part = text_part("v")
        toc = {"a": part.hash}
        commit = run.next_commit({"a": part})
        await run.write(replace(commit, manifest=replace(commit.manifest, toc=toc)))
        toc["a"] = "changed"
        manifest = await store.manifest("r@0")
        if isinstance(manifest.toc, dict):
            manifest.toc["b"] = "added"
        parts = await store.parts([part.hash])
        if isinstance(parts, dict):
            parts.clear()
        assert dict((await store.manifest("r@0")).toc) == {"a": part.hash}
        assert await store.parts([part.hash]) == {part.hash: part.data}
