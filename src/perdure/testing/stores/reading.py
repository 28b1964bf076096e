"""Reading: the order of checkpoints, and the parts that they are made of."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

from perdure.records import Part
from perdure.testing.stores.driver import RunDriver, raw_part, text_part
from perdure.testing.stores.suite import StoreSuite, contents_of, in_a_loop, latest_id

if TYPE_CHECKING:
    from perdure.storage import Store
    from perdure.testing.clock import ManualClock


class ReadingConformance(StoreSuite):
    """Checkpoints come in commit order, parts with all that they refer to."""

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
        assert await contents_of(store, "r@0") == {str(number): part.data for number, part in enumerate(parts)}

    @in_a_loop
    async def test_a_checkpoint_keeps_its_parts_when_others_go(self, store: Store, clock: ManualClock) -> None:
        first, second = text_part("A"), text_part("B")
        run = await RunDriver.start(store, clock, "r")
        for part in (first, second, first):
            await run.commit({"a": part})
        await store.delete("r@0")
        await store.collect()
        assert await contents_of(store, "r@2") == {"a": first.data}
        assert await contents_of(store, "r@1") == {"a": second.data}

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
        assert await contents_of(store, "r@3") == {
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
