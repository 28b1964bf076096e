"""Pieces: small things that stand in the manifest itself, and a base for most of its table of contents."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from perdure.records import KeepLast, LatestOnly, Part, Retention
from perdure.storage import MemoryStore
from perdure.testing.stores.driver import RunDriver, raw_part, text_part
from perdure.testing.stores.suite import HostStoreSuite, StoreSuite, in_a_loop

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from perdure.records import Commit, Manifest
    from perdure.storage import HostStore, Store
    from perdure.testing.clock import ManualClock

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
"""What may stand in a manifest; the last ones only because a store does not look."""


def _base(**parts: Part) -> Part:
    """A part that holds entries of a table of contents."""
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
    """The commit with this in its manifest, and further parts that come with it."""
    manifest = replace(
        commit.manifest,
        pieces=pieces,
        refs=tuple(part.hash for part in refs),
        base=base.hash if base else None,
        gone=tuple(gone),
    )
    return replace(commit, manifest=manifest, parts=(*commit.parts, *parts))


async def _whole(store: Store, manifest: Manifest, *parts: Part) -> None:
    """What the manifest needs is there, and these parts are among it."""
    found = await store.parts(manifest.roots)
    assert found.keys() >= {*manifest.roots, *(part.hash for part in parts)}
    assert {part.hash: found[part.hash] for part in parts} == {part.hash: part.data for part in parts}


class PieceConformance(StoreSuite):
    """A manifest comes back as it was given, and what it needs stays as long as it does."""

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


class PieceTransferConformance(HostStoreSuite):
    """A run that moves takes along what stands in its manifests."""

    @pytest.mark.parametrize("comes_here", [True, False])
    @in_a_loop
    async def test_pieces_and_what_they_need_move_with_their_run(
        self, store: HostStore, clock: ManualClock, *, comes_here: bool
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
