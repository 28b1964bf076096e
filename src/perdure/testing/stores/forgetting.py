"""Forgetting: checkpoints that are deleted, and parts that are collected."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from perdure.errors import CheckpointNotFoundError
from perdure.testing.stores.driver import RunDriver, raw_part, text_part
from perdure.testing.stores.suite import StoreSuite, contents_of, in_a_loop, latest_id

if TYPE_CHECKING:
    from perdure.storage import Store
    from perdure.testing.clock import ManualClock

_HASH = raw_part(b"of nobody").hash

ODD_PATHS = (
    "",
    "a:",
    "a: ",
    ':"',
    '":"',
    '"',
    "\\",
    '\\"',
    '\\\\":"',
    "{}",
    "[],",
    "\0",
    "a\0:",
    "\\u0000",
    "\ud800",
    "\ufdd0:",
    "\n\u2028",
    "\U0001d11e:",
    f'":"{_HASH}",',
    f'"{_HASH}"',
)
"""Paths that look like what stands around them, wherever that is kept."""


class ForgettingConformance(StoreSuite):
    """What is deleted is gone, and takes along nothing that others need."""

    @in_a_loop
    async def test_a_deleted_checkpoint_is_gone(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        for _ in range(3):
            await run.commit()
        assert await store.delete("r@1") is True
        assert await store.delete("r@1") is False
        with pytest.raises(CheckpointNotFoundError):
            await store.manifest("r@1")
        assert list(await store.ids()) == ["r@0", "r@2"]
        assert (await run.record()).head == "r@2"

    @in_a_loop
    async def test_when_the_head_is_deleted_the_newest_remaining_takes_over(
        self, store: Store, clock: ManualClock
    ) -> None:
        run = await RunDriver.start(store, clock, "r")
        for step in range(3):
            await run.commit(settled=step == 1)
        await store.delete("r@2")
        record = await run.record()
        assert (record.head, record.position, record.settled) == ("r@1", 2, True)
        assert await latest_id(store, "flow") == "r@1"
        run.head = "r@1"
        await run.commit()
        assert (await run.record()).head == "r@3"

    @in_a_loop
    async def test_when_a_rewound_head_is_deleted_the_newest_remaining_takes_over(
        self, store: Store, clock: ManualClock
    ) -> None:
        run = await RunDriver.start(store, clock, "r")
        for _ in range(4):
            await run.commit()
        await run.rewind("r@1")
        await store.delete("r@1")
        assert (await run.record()).head == "r@3"

    @in_a_loop
    async def test_a_run_whose_checkpoints_are_all_deleted_is_gone(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        await run.commit()
        await run.release()
        for checkpoint_id in ("r@1", "r@0"):
            await store.delete(checkpoint_id)
        assert await store.run("r") is None
        assert await store.latest(workflow_name="flow") is None
        again = await RunDriver.start(store, clock, "r")
        await again.commit()
        assert (await again.record()).position == 0

    @in_a_loop
    async def test_the_latest_survives_deletions_of_newer_ones(self, store: Store, clock: ManualClock) -> None:
        runs = {name: await RunDriver.start(store, clock, name) for name in "qrs"}
        written = [await runs[name].commit() for name in "qrsrqqsr"]
        while written:
            assert await latest_id(store, "flow") == written[-1]
            await store.delete(written.pop())
        assert await store.latest(workflow_name="flow") is None

    @in_a_loop
    async def test_a_deleted_id_can_be_used_again(self, store: Store, clock: ManualClock) -> None:
        first = await RunDriver.start(store, clock, "r")
        await first.commit()
        await first.commit(checkpoint_id="mine")
        await store.delete("mine")
        second = await RunDriver.start(store, clock, "s")
        await second.commit({"a": text_part("again")}, checkpoint_id="mine")
        assert (await store.manifest("mine")).run_id == "s"
        assert (await first.record()).head == "r@0"
        assert [manifest.checkpoint_id for manifest in await store.manifests(run_id="r")] == ["r@0"]

    @in_a_loop
    async def test_collecting_removes_what_nobody_needs_and_nothing_else(
        self, store: Store, clock: ManualClock
    ) -> None:
        leaf, shared = raw_part(b"leaf" * 3000), raw_part(b"shared" * 3000)
        gone = raw_part(b"gone" * 3000)
        tree = text_part("tree", leaf)
        run = await RunDriver.start(store, clock, "r")
        await run.commit({"a": gone, "b": shared})
        await run.commit({"b": shared, "c": tree}, leaf)
        assert await store.collect() == 0
        await store.delete("r@0")
        assert await store.collect() == 1
        assert await store.collect() == 0
        assert await store.parts([gone.hash]) == {}
        assert (await store.parts([tree.hash, shared.hash])).keys() == {leaf.hash, shared.hash, tree.hash}

    @in_a_loop
    async def test_collecting_spares_the_parts_of_every_path(self, store: Store, clock: ManualClock) -> None:
        parts = {path: raw_part(f"at {path!r}".encode() * 1000) for path in ODD_PATHS}
        gone = raw_part(b"gone" * 3000)
        run = await RunDriver.start(store, clock, "r")
        await run.commit({"a": gone})
        await run.commit(parts)
        await store.delete("r@0")
        assert await store.collect() == 1
        assert await contents_of(store, "r@1") == {path: part.data for path, part in parts.items()}

    @in_a_loop
    async def test_a_collected_part_can_be_written_again(self, store: Store, clock: ManualClock) -> None:
        part = raw_part(b"again" * 3000)
        run = await RunDriver.start(store, clock, "r")
        await run.commit({"a": part})
        await run.commit()
        await store.delete("r@0")
        await store.collect()
        await run.commit({"a": part})
        assert await contents_of(store, "r@2") == {"a": part.data}
