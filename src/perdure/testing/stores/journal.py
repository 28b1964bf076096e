"""Journals: finished work of the current superstep."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from perdure.errors import LeaseLostError, StaleHeadError, WorkflowCheckpointException
from perdure.records import Blob, JournalRecord
from perdure.testing.stores.base import RunDriver, StoreSuite, finished, in_a_loop, new_run, raw_blob, text_blob
from perdure.testing.stores.tenants import ODD_IDS, REFUSED_IDS

if TYPE_CHECKING:
    from perdure.storage import Store
    from perdure.testing.clock import ManualClock


class JournalConformance(StoreSuite):
    """Records belong to the head on which they were written, and go with it."""

    @in_a_loop
    async def test_a_record_comes_back_as_it_was_recorded(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        refs = (text_blob("x").hash, text_blob("y").hash)
        contents = [b"", b'{"a":[1,2.50]}', b"\xff\x00\n", "ünï\u2028\r\n日本".encode(), b"large " * 30_000]
        records = [JournalRecord(f"key {number}", data, refs[:number]) for number, data in enumerate(contents)]
        await run.note(*records[:3])
        await run.note(*records[3:])
        assert list(await store.journal("r")) == records

    @in_a_loop
    async def test_any_string_is_a_key(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        keys = [*ODD_IDS, *REFUSED_IDS, "file \udcff", "a\u2028b", "\n"]
        for key in keys:
            await run.note(finished(key, "first"))
        await run.note(*(finished(key, "second") for key in keys))
        assert [(record.key, record.data) for record in await store.journal("r")] == [(key, b"second") for key in keys]

    @in_a_loop
    async def test_an_unknown_run_and_a_fresh_head_have_no_records(self, store: Store, clock: ManualClock) -> None:
        assert list(await store.journal("nowhere")) == []
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        await run.note()
        assert await run.noted() == []

    @in_a_loop
    async def test_a_later_record_takes_the_place_of_the_one_with_its_key(
        self, store: Store, clock: ManualClock
    ) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        await run.note(finished("a", "1"), finished("b", "1", text_blob("of b")))
        await run.note(finished("c", "1"), finished("a", "2"))
        await run.note(finished("b", "2"), finished("d", "1"), finished("b", "3"))
        assert await run.noted() == ["a=2", "b=3", "c=1", "d=1"]
        assert [record.refs for record in await store.journal("r")] == [()] * 4

    @in_a_loop
    async def test_records_can_be_read_whether_they_are_durable_or_not(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        for number, durable in enumerate((False, False, True, False)):
            await run.note(finished(f"{number}", "x"), durable=durable)
        await store.close()
        assert await run.noted() == ["0=x", "1=x", "2=x", "3=x"]

    @in_a_loop
    async def test_records_outlast_the_lease_that_wrote_them(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        await run.note(finished("a", "first"))
        run.lease = await store.acquire("r", create=new_run("r"))
        await run.note(finished("b", "second"))
        await run.release()
        assert await run.noted() == ["a=first", "b=second"]
        run.lease = await store.acquire("r")
        await run.note(finished("c", "third"))
        assert await run.noted() == ["a=first", "b=second", "c=third"]

    @in_a_loop
    async def test_a_commit_voids_the_journal(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        for step in range(3):
            await run.commit({"a": text_blob(f"v{step}")})
            assert await run.noted() == []
            await run.note(finished("one", f"{step}"), durable=False)
            await run.note(finished("two", f"{step}"))
            assert await run.noted() == [f"one={step}", f"two={step}"]

    @in_a_loop
    async def test_a_refused_commit_leaves_the_journal(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        await run.note(finished("a", "kept"))
        for refused in (replace(run.next_commit(), expected_head="elsewhere"), run.next_commit(checkpoint_id="r@0")):
            with pytest.raises(WorkflowCheckpointException):
                await run.write(refused)
        assert await run.noted() == ["a=kept"]

    @in_a_loop
    async def test_rewinding_drops_the_journal_for_good(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        for _ in range(3):
            await run.commit()
        await run.note(finished("a"))
        await run.rewind("r@0", nonce="second")
        assert await run.noted() == []
        await run.note(finished("b"))
        await run.rewind("r@2", nonce="third")
        assert await run.noted() == []
        await run.note(finished("c"))
        await run.rewind("r@2", nonce="fourth")
        assert await run.noted() == []

    @in_a_loop
    async def test_deleting_the_head_drops_the_journal(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        for _ in range(3):
            await run.commit()
        await run.note(finished("a", "kept"))
        await store.delete("r@0")
        assert await run.noted() == ["a=kept"]
        await store.delete("r@2")
        assert await run.noted() == []
        with pytest.raises(StaleHeadError):
            await run.note(finished("late"))
        run.head = "r@1"
        await run.note(finished("b", "after"))
        assert await run.noted() == ["b=after"]

    @in_a_loop
    async def test_a_run_that_is_gone_takes_its_journal_with_it(self, store: Store, clock: ManualClock) -> None:
        blob = raw_blob(b"part" * 3000)
        for _ in range(2):
            run = await RunDriver.start(store, clock, "r")
            assert await run.noted() == []
            await run.commit()
            assert await run.noted() == []
            await run.note(finished("a", "", blob))
            await store.delete("r@0")
            assert await run.noted() == []
            with pytest.raises(StaleHeadError):
                await run.note(finished("late"))
        assert await store.collect() == 1

    @in_a_loop
    async def test_before_the_first_commit_records_are_kept_while_the_run_is_acquired(
        self, store: Store, clock: ManualClock
    ) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.note(finished("a", "early"))
        assert await run.noted() == ["a=early"]
        await run.release()
        assert await run.noted() == []
        run = await RunDriver.start(store, clock, "r")
        assert await run.noted() == []
        await run.note(finished("b", "early"))
        run = await RunDriver.start(store, clock, "r")
        assert await run.noted() == []
        await run.note(finished("c", "early"))
        await run.commit()
        assert await run.noted() == []

    @in_a_loop
    async def test_a_stale_record_writes_nothing(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        blob = text_blob("lost")
        assert run.lease is not None
        with pytest.raises(StaleHeadError):
            await store.record(run.lease, head="r@0", records=[finished("early", "", blob)])
        await run.commit()
        for head in (None, "r@1", "elsewhere"):
            with pytest.raises(StaleHeadError) as caught:
                await store.record(run.lease, head=head, records=[finished("a", "", blob)])
            assert (caught.value.expected, caught.value.head) == (head, "r@0")
        await self._assert_unrecorded(run, blob)

    @in_a_loop
    async def test_a_record_without_a_lease_writes_nothing(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        blob = text_blob("lost")
        newer = await store.acquire("r")
        with pytest.raises(LeaseLostError):
            await run.note(finished("a", "", blob))
        await store.release(newer)
        with pytest.raises(LeaseLostError):
            await run.note(finished("a", "", blob))
        await self._assert_unrecorded(run, blob)

    async def _assert_unrecorded(self, run: RunDriver, blob: Blob) -> None:
        assert await run.noted() == []
        await run.store.collect()
        assert await run.store.blobs([blob.hash]) == {}

    @in_a_loop
    async def test_records_of_many_at_once_all_get_through(self, store: Store, clock: ManualClock) -> None:
        runs = [await RunDriver.start(store, clock, f"r{number}") for number in range(4)]
        await asyncio.gather(*(run.commit() for run in runs))
        await asyncio.gather(
            *(
                run.note(finished(f"{number}", run.run_id, text_blob(f"{number}")), durable=number % 3 == 0)
                for number in range(10)
                for run in runs
            )
        )
        for run in runs:
            assert await run.noted() == [f"{number}={run.run_id}" for number in range(10)]

    @in_a_loop
    async def test_what_is_written_at_once_is_written_in_order(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        other = await RunDriver.start(store, clock, "s")
        await run.commit()
        assert run.lease is not None
        outcomes = await asyncio.gather(
            run.note(finished("before")),
            other.note(finished("of the other", "x")),
            store.commit(run.lease, run.next_commit()),
            store.record(run.lease, head="r@1", records=[finished("after", "y")]),
            store.record(run.lease, head="r@0", records=[finished("late")]),
            return_exceptions=True,
        )
        assert outcomes[:4] == [None, None, 0, None]
        assert isinstance(outcomes[4], StaleHeadError)
        assert await run.noted() == ["after=y"]
        assert await other.noted() == ["of the other=x"]

    @in_a_loop
    async def test_a_fork_has_a_journal_of_its_own(self, store: Store, clock: ManualClock) -> None:
        source = await RunDriver.start(store, clock, "r")
        await source.commit()
        await source.note(finished("a", "source"))
        fork = await RunDriver.start(store, clock, "f", parent="r@0")
        assert await fork.noted() == []
        await fork.note(finished("a", "fork"))
        await fork.release()
        fork.lease = await store.acquire("f")
        assert await fork.noted() == ["a=fork"]
        await source.commit()
        assert await source.noted() == []
        assert await fork.noted() == ["a=fork"]
        await fork.commit()
        assert await fork.noted() == []

    @in_a_loop
    async def test_a_fork_whose_parent_is_deleted_has_no_journal(self, store: Store, clock: ManualClock) -> None:
        source = await RunDriver.start(store, clock, "r")
        for _ in range(2):
            await source.commit()
        await source.note(finished("a", "source"))
        fork = await RunDriver.start(store, clock, "f", parent="r@0")
        await fork.note(finished("a", "fork"))
        await store.delete("r@0")
        assert await fork.noted() == []
        assert await source.noted() == ["a=source"]

    @in_a_loop
    async def test_the_blobs_of_records_are_there_with_all_that_they_refer_to(
        self, store: Store, clock: ManualClock
    ) -> None:
        leaf, kept = raw_blob(b"\xffleaf"), text_blob("of the head")
        twig = raw_blob(b"twig" * 5000, leaf, kept)
        branch = text_blob("branch", twig)
        run = await RunDriver.start(store, clock, "r")
        await run.commit({"a": kept})
        await run.note(JournalRecord("a", b"", (branch.hash,), (leaf, twig, branch)))
        await run.note(JournalRecord("b", b"", (twig.hash,)))
        assert [record.blobs for record in await store.journal("r")] == [(), ()]
        expected = {blob.hash: blob.data for blob in (branch, twig, leaf, kept)}
        assert await store.collect() == 0
        for _ in range(2):
            assert await store.blobs([branch.hash]) == expected
            assert await asyncio.to_thread(store.read_blobs, [branch.hash]) == expected
            await store.close()

    @in_a_loop
    async def test_blobs_of_a_journal_go_when_it_is_void(self, store: Store, clock: ManualClock) -> None:
        adopted, leaf, dropped = (raw_blob(name * 3000) for name in (b"adopted", b"leaf", b"dropped"))
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        tree = raw_blob(b"tree" * 3000, leaf)
        await run.note(finished("a", "", adopted, dropped))
        await run.note(JournalRecord("b", b"", (tree.hash,), (tree, leaf)), durable=False)
        assert await store.collect() == 0
        await run.commit({"a": adopted})
        assert await store.collect() == 3
        assert await store.blobs([adopted.hash, tree.hash, dropped.hash]) == {adopted.hash: adopted.data}

    @in_a_loop
    async def test_blobs_of_a_replaced_record_are_not_kept_by_it(self, store: Store, clock: ManualClock) -> None:
        first, second = raw_blob(b"first" * 3000), raw_blob(b"second" * 3000)
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        await run.note(finished("a", "", first))
        await run.note(finished("a", "", second))
        assert await store.collect() == 1
        assert await store.blobs([first.hash, second.hash]) == {second.hash: second.data}

    @in_a_loop
    async def test_a_blob_that_others_have_too_stays_when_the_journal_goes(
        self, store: Store, clock: ManualClock
    ) -> None:
        small, large = text_blob("shared"), raw_blob(b"shared" * 3000)
        run, other = [await RunDriver.start(store, clock, name) for name in "rs"]
        await run.commit({"small": small, "large": large})
        await other.commit()
        await other.note(finished("a", "", small, large))
        await run.note(finished("b", "", small, large))
        await run.commit()
        await store.delete("r@0")
        await store.collect()
        assert await store.blobs([small.hash, large.hash]) == {small.hash: small.data, large.hash: large.data}

    @in_a_loop
    async def test_a_journal_can_grow_by_far(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        leaf = text_blob("leaf")
        await run.note(finished("first", "", text_blob("root", leaf), leaf))
        for step in range(120):
            value = text_blob(f"{step} " * 1000)
            await run.note(JournalRecord("state", b"", (value.hash,), (value,)), durable=False)
            await run.note(finished(f"step {step}", f"{step}"), durable=False)
        journal = await store.journal("r")
        assert [record.key for record in journal] == ["first", "state", *(f"step {step}" for step in range(120))]
        await store.close()
        assert await store.journal("r") == journal
        last = text_blob("119 " * 1000)
        assert journal[1].refs == (last.hash,)
        assert (await store.blobs([*journal[0].refs, last.hash])).keys() >= {leaf.hash, last.hash}
