"""Journal, inbox and events: finished work of a superstep, input from outside, and the numbered events of commits."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from perdure.errors import RunNotFoundError, StaleCommandError, StaleHeadError
from perdure.records import Blob, Command, EventBatch, JournalRecord, NewEvents
from perdure.testing.stores.base import (
    ODD_IDS,
    REFUSED_IDS,
    RunDriver,
    StoreSuite,
    command,
    events,
    finished,
    halted,
    new_run,
    raw_blob,
    refused,
    text_blob,
)

if TYPE_CHECKING:
    from perdure.storage import Store
    from perdure.testing.clock import ManualClock

_CONTENTS = (b"", b'{"a":[1,2.50]}', b"\xff\x00\n", "ünï\u2028\r\n日本".encode(), b"large " * 30_000)
_REFS = (text_blob("x").hash, text_blob("y").hash)
_ANY_STRINGS = (*ODD_IDS, *REFUSED_IDS, "file \udcff", "a\u2028b", "\n")


async def _require_lost(store: Store, *blobs: Blob) -> None:
    await store.collect()
    assert await store.blobs([blob.hash for blob in blobs]) == {}


class LifetimeConformance(StoreSuite):
    """Journal, inbox and events go with their run. Blobs stay as long as one of them needs them."""

    async def test_deleted_run_leaves_no_journal_inbox_or_events(self, store: Store, clock: ManualClock) -> None:
        blobs = [raw_blob(name * 3000) for name in (b"record", b"command", b"event")]
        for _ in range(2):
            run = await RunDriver.start(store, clock, "r")
            await run.commit(events=events("a", blobs=(blobs[2],)))
            assert [*await run.noted(), *await run.inbox(), *await run.events()] == ["1=a"]
            await run.note(finished("a", "", blobs[0]))
            await run.post(command("a", "", blobs[1]))
            await store.delete("r@0")
            assert [*await run.noted(), *await run.inbox(), *await run.events()] == []
            assert (await store.run("r"), list(await store.runs())) == (None, [])
            await refused(StaleHeadError, run.note(finished("late")))
            await refused(RunNotFoundError, run.post(command("late")))
        assert await store.collect() == 3

    async def test_unknown_run_has_no_journal_inbox_or_events(self, store: Store, fresh: RunDriver) -> None:
        for run_id in ("nowhere", "r"):
            assert [*await store.journal(run_id), *await store.inbox(run_id), *await store.events(run_id)] == []
            await refused(RunNotFoundError, store.post(run_id, command("a", "", text_blob("lost"))))
        await fresh.commit()
        await fresh.note()
        await fresh.commit(events=events())
        assert [*await fresh.noted(), *await fresh.inbox(), *await fresh.events()] == []
        assert (await fresh.record()).events == 0
        await _require_lost(store, text_blob("lost"))

    async def test_records_commands_and_events_come_back_unchanged(self, store: Store, fresh: RunDriver) -> None:
        first, asked = 1, text_blob("x")
        for number, data in enumerate(_CONTENTS):
            refs = _REFS[:number]
            await fresh.commit({"asked \udcff": asked}, events=NewEvents(number + 1, data, refs))
            record = JournalRecord(f"key {number}", data, refs)
            await fresh.note(record, durable=number % 2 == 0)
            expects = ("asked \udcff", asked.hash) if number % 2 else None
            posted = Command(f"id {number}", f"kind {number}", data, refs, expects=expects)
            returned = await store.post("r", posted)
            assert replace(returned, number=0) == posted
            batch = EventBatch("r", f"r@{number}", first, number + 1, data, refs)
            first += number + 1
            for _ in range(2):
                assert list(await store.journal("r")) == [record]
                assert (await store.inbox("r"))[-1] == returned
                assert (await store.events("r"))[-1] == batch
                await store.close()
        await fresh.require(events=first - 1)

    async def test_blobs_stay_with_all_that_they_refer_to(self, store: Store, run: RunDriver) -> None:
        kept = text_blob("of the head")

        def tree(name: bytes) -> tuple[Blob, Blob]:
            leaf = raw_blob(b"\xffleaf of " + name)
            return leaf, raw_blob(name * 5000, leaf, kept)

        trees = of_event, of_record, of_command = [tree(name) for name in (b"event", b"record", b"command")]
        roots = [root.hash for _, root in trees]
        await run.commit({"a": kept}, events=NewEvents(1, b"a", (of_event[1].hash,), of_event))
        await run.commit({"a": kept})
        await store.delete("r@1")
        await run.note(JournalRecord("a", b"", (of_record[1].hash,), of_record))
        await run.note(JournalRecord("b", b"", (of_record[0].hash,)))
        await store.post("r", Command("a", "message", b"", (of_command[1].hash,), blobs=of_command))
        assert [each.blobs for each in (*await store.journal("r"), *await store.inbox("r"))] == [()] * 3
        assert await store.collect() == 0
        expected = {blob.hash: blob.data for each in trees for blob in (*each, kept)}
        assert await store.blobs(roots) == await asyncio.to_thread(store.read_blobs, roots) == expected
        await run.commit(consumed=("a",))
        assert await store.collect() > 0
        assert (await store.blobs(roots)).keys() == {blob.hash for blob in (*of_event, kept)}

    async def test_blobs_of_a_journal_are_collected_when_it_is_void(self, store: Store, run: RunDriver) -> None:
        adopted, dropped, replaced = (raw_blob(name * 3000) for name in (b"adopted", b"dropped", b"replaced"))
        await run.note(finished("a", "", replaced))
        await run.note(finished("a", "", adopted, dropped))
        assert await store.collect() == 1
        assert await store.blobs([replaced.hash]) == {}
        await run.commit({"a": adopted})
        assert await store.collect() == 1
        assert await store.blobs([adopted.hash, dropped.hash]) == {adopted.hash: adopted.data}

    async def test_blob_that_another_run_has_outlives_the_journal(self, store: Store, fresh: RunDriver) -> None:
        small, large = text_blob("shared"), raw_blob(b"shared" * 3000)
        await fresh.commit({"small": small, "large": large})
        other = await fresh.another("s", commits=1)
        await other.note(finished("a", "", small, large))
        await fresh.note(finished("b", "", small, large))
        await fresh.commit()
        await store.delete("r@0")
        await store.collect()
        assert await store.blobs([small.hash, large.hash]) == {small.hash: small.data, large.hash: large.data}


class JournalConformance(StoreSuite):
    """Records belong to the head on which they were written, and go with it."""

    async def test_any_string_is_the_key_of_a_record_or_the_id_of_a_command(self, run: RunDriver) -> None:
        for data in ("first", "second"):
            await run.note(*(finished(key, data) for key in _ANY_STRINGS))
            await run.post(*(command(each, data) for each in _ANY_STRINGS))
        assert await run.noted() == [f"{each}=second" for each in _ANY_STRINGS]
        assert await run.inbox() == [f"{each}=first" for each in _ANY_STRINGS]
        await run.commit(consumed=_ANY_STRINGS[1:])
        assert await run.inbox() == [f"{_ANY_STRINGS[0]}=first"]

    async def test_later_record_replaces_the_one_with_its_key(self, store: Store, run: RunDriver) -> None:
        await run.note(finished("a", "1"), finished("b", "1", text_blob("of b")))
        await run.note(finished("c", "1"), finished("a", "2"))
        await run.note(finished("b", "2"), finished("d", "1"), finished("b", "3"))
        assert await run.noted() == ["a=2", "b=3", "c=1", "d=1"]
        assert [record.refs for record in await store.journal("r")] == [()] * 4

    async def test_records_and_commands_outlive_leases(self, store: Store, run: RunDriver) -> None:
        await run.note(finished("a", "1"))
        await run.post(command("a", "1"))
        run.lease = await store.acquire("r", create=new_run("r"))
        await run.note(finished("b", "2"))
        await run.release()
        await run.post(command("b", "2"))
        assert await run.noted() == await run.inbox() == ["a=1", "b=2"]
        await run.reacquire()
        await run.note(finished("c", "3"))
        assert await run.noted() == ["a=1", "b=2", "c=3"]
        await run.commit()
        assert await run.inbox() == ["a=1", "b=2"]

    async def test_rewinding_drops_data_that_expected_the_head(self, store: Store, fresh: RunDriver) -> None:
        asked, blob = text_blob("asked"), raw_blob(b"dropped" * 3000)
        for _ in range(3):
            await fresh.commit({"requests/1": asked})
        await fresh.post(command("a", "kept"), command("b", "dropped", blob, expects=("requests/1", asked.hash)))
        for number, to in enumerate(("r@0", "r@2", "r@2")):
            await fresh.note(finished("a"))
            await fresh.rewind(to, nonce=f"nonce {number}")
            assert await fresh.noted() == []
            assert await fresh.inbox() == ["a=kept"]
            await fresh.post(command("b", "anew", expects=("requests/1", asked.hash)))
        assert await store.collect() == 1

    async def test_deleting_the_head_drops_data_that_expected_it(self, store: Store, fresh: RunDriver) -> None:
        asked = text_blob("asked")
        for _ in range(3):
            await fresh.commit({"requests/1": asked})
        await fresh.note(finished("a", "kept"))
        await fresh.post(command("a", "kept"), command("b", "x", expects=("requests/1", asked.hash)))
        await store.delete("r@0")
        assert [*await fresh.noted(), *await fresh.inbox()] == ["a=kept", "a=kept", "b=x"]
        await store.delete("r@2")
        assert [*await fresh.noted(), *await fresh.inbox()] == ["a=kept"]
        await refused(StaleHeadError, fresh.note(finished("late")))
        fresh.head = "r@1"
        await fresh.note(finished("b", "after"))
        assert await fresh.noted() == ["b=after"]

    async def test_records_before_the_first_commit_are_kept_under_their_lease_only(self, fresh: RunDriver) -> None:
        await fresh.note(finished("a", "early"))
        assert await fresh.noted() == ["a=early"]
        await fresh.release()
        assert await fresh.noted() == []
        fresh = await fresh.another("r")
        assert await fresh.noted() == []
        await fresh.note(finished("b", "early"))
        fresh = await fresh.another("r")
        assert await fresh.noted() == []
        await fresh.note(finished("c", "early"))
        await fresh.commit()
        assert await fresh.noted() == []

    async def test_concurrent_writes_of_a_run_keep_their_order(self, store: Store, fresh: RunDriver) -> None:
        other = await fresh.another("s")
        await fresh.commit()
        outcomes = await asyncio.gather(
            fresh.note(finished("before")),
            other.note(finished("of the other", "x")),
            store.commit(fresh.lease, fresh.next_commit()),
            store.record(fresh.lease, head="r@1", records=[finished("after", "y")]),
            store.record(fresh.lease, head="r@0", records=[finished("late")]),
            return_exceptions=True,
        )
        assert outcomes[:4] == [None, None, 0, None]
        assert isinstance(outcomes[4], StaleHeadError)
        assert await fresh.noted() == ["after=y"]
        assert await other.noted() == ["of the other=x"]

    async def test_fork_has_its_own_journal_inbox_and_events(self, fresh: RunDriver) -> None:
        source, asked = fresh, text_blob("asked")
        await source.commit({"requests/1": asked}, events=events("a", "b"))
        await source.note(finished("a", "source"))
        await source.post(command("a", "source"))
        fork = await source.another("f", parent="r@0")
        assert [*await fork.noted(), *await fork.inbox(), *await fork.events()] == []
        assert (await fork.record()).events == 0
        await refused(StaleCommandError, fork.post(command("a", expects=("requests/1", text_blob("other").hash))))
        await fork.note(finished("a", "fork"))
        await fork.post(command("a", "fork", expects=("requests/1", asked.hash)))
        await fork.release()
        await fork.reacquire()
        await source.commit(events=events("c"))
        assert [*await source.noted(), *await source.inbox()] == ["a=source"]
        assert await fork.noted() == await fork.inbox() == ["a=fork"]
        await fork.commit(consumed=("a",), events=events("of the fork"))
        assert [*await fork.noted(), *await fork.inbox(), *await source.inbox()] == ["a=source"]
        assert [*await fork.events(), *await source.events()] == ["1=of the fork", "1=a", "2=b", "3=c"]

    async def test_fork_of_a_deleted_checkpoint_has_no_journal(self, store: Store, run: RunDriver) -> None:
        await run.commit()
        await run.note(finished("a", "run"))
        fork = await run.another("f", parent="r@0")
        await fork.note(finished("a", "fork"))
        await store.delete("r@0")
        assert await fork.noted() == []
        assert await run.noted() == ["a=run"]

    async def test_journal_may_have_hundreds_of_records(self, store: Store, run: RunDriver) -> None:
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


class InboxConformance(StoreSuite):
    """A command waits under its id and takes effect once."""

    async def test_first_of_two_commands_with_one_id_counts(self, store: Store, run: RunDriver) -> None:
        first = await store.post("r", command("a", "first", text_blob("of the first")))
        assert await store.post("r", command("a", "second", text_blob("lost"))) == first
        assert await run.inbox() == ["a=first"]
        await _require_lost(store, text_blob("lost"))
        outcomes = await asyncio.gather(*(store.post("r", command("b", f"{number}")) for number in range(8)))
        assert len(set(outcomes)) == 1
        assert list(await store.inbox("r")) == [first, outcomes[0]]

    async def test_command_is_consumed_once(self, run: RunDriver) -> None:
        numbers = await run.post(*(command(each, "x") for each in "abcd"))
        await run.commit(consumed=("c", "a"), taken=("c", "never posted"))
        assert (await run.inbox(), run.waiting) == (["b=x", "d=x"], numbers[3])
        await run.commit(consumed=("a", "d", "never posted"), taken=("a",))
        assert (await run.inbox(), run.waiting) == (["b=x"], numbers[1])
        await run.commit(consumed=("b",))
        assert (await run.inbox(), run.waiting) == ([], 0)

    async def test_numbers_of_commands_grow_and_are_never_reused(self, fresh: RunDriver) -> None:
        await fresh.commit({"a": text_blob("x")})
        numbers = list(await fresh.post(command("a"), command("b")))
        await fresh.commit({"a": text_blob("x")}, consumed=("a", "b"))
        numbers += await fresh.post(command("a"), command("b", expects=("a", text_blob("x").hash)))
        await fresh.rewind("r@0")
        numbers += await fresh.post(command("b"))
        await fresh.commit(consumed=("a", "b"))
        await fresh.release()
        await fresh.reacquire()
        numbers += await fresh.post(command("c"))
        assert numbers == sorted(set(numbers))
        assert numbers[0] > 0

    async def test_command_waits_when_its_expectation_is_no_longer_met(self, store: Store, fresh: RunDriver) -> None:
        asked = ("requests/1", text_blob("asked").hash)
        await fresh.commit({"requests/1": text_blob("asked")})
        first = await store.post("r", command("a", "kept", expects=asked))
        await fresh.commit({"requests/1": text_blob("other")})
        await refused(StaleCommandError, fresh.post(command("b", "late", expects=asked)))
        assert await store.post("r", command("a", "again", expects=asked)) == first
        assert await fresh.inbox() == ["a=kept"]


class EventConformance(StoreSuite):
    """A commit numbers its events, and the numbers never change."""

    async def test_numbers_of_events_have_no_gap(self, store: Store, fresh: RunDriver) -> None:
        await fresh.commit(events=events("a", "b"))
        await fresh.commit()
        await fresh.commit(events=events("c"))
        await fresh.rewind("r@0")
        assert (await fresh.record()).events == 3
        await fresh.commit(events=events("d", "e"))
        fresh.lease = await store.acquire("r", takeover=True)
        await fresh.commit(events=events("f"))
        await fresh.release()
        await store.delete("r@2")
        await store.delete("r@4")
        fresh.lease, fresh.head, fresh.position = await store.acquire("r"), "r@3", 4
        await fresh.commit(events=events("g"))
        assert await fresh.events() == ["1=a", "2=b", "3=c", "4=d", "5=e", "6=f", "7=g"]
        assert [batch.checkpoint_id for batch in await store.events("r")] == ["r@0", "r@2", "r@3", "r@4", "r@5"]
        assert (await fresh.record()).events == 7

    async def test_release_with_a_halt_numbers_its_events(self, store: Store, fresh: RunDriver) -> None:
        large = text_blob("x" * 10_000)
        halt = replace(halted(), events=NewEvents(2, b"failed\nagain", (large.hash,), (large,)))
        await fresh.commit(events=events("a"))
        stale = fresh.lease
        await fresh.reacquire()
        await store.release(stale, halt=halt)
        assert await fresh.events() == ["1=a"]
        for _ in range(2):
            # The second release finds no lease, and writes nothing.
            await fresh.release(halt=halt)
        assert await fresh.events() == ["1=a", "2=failed", "3=again"]
        await fresh.require(head="r@0", position=0, events=3, run_status="failed")
        batch = (await store.events("r", after=1))[0]
        assert (batch.first, batch.refs) == (2, (large.hash,))
        assert batch.moment == datetime.fromisoformat(halt.at).timestamp()
        assert await store.collect() == 0
        assert await store.blobs(batch.refs) == {large.hash: large.data}
        await fresh.reacquire()
        await fresh.commit(events=events("b"))
        await fresh.release(halt=halt)
        assert (await fresh.events())[2:] == ["3=again", "4=b", "5=failed", "6=again"]
        assert [len(await store.events("r", limit=limit)) for limit in (1, 2, 3, 4)] == [1, 2, 3, 4]

    async def test_events_are_read_after_any_number_up_to_a_limit(self, store: Store, fresh: RunDriver) -> None:
        for size in (1, 3, 2, 1):
            await fresh.commit(events=events(*("abc"[:size])))

        async def firsts(after: int, limit: int = 9) -> list[int]:
            return [batch.first for batch in await store.events("r", after=after, limit=limit)]

        assert [await firsts(after) for after in (0, 1, 3, 4)] == [[1, 2, 5, 7], [2, 5, 7], [2, 5, 7], [5, 7]]
        assert [await firsts(after) for after in (6, 7, 9)] == [[7], [], []]
        assert [await firsts(0, limit) for limit in (0, 1, 3, 4)] == [[], [1], [1, 2, 5], [1, 2, 5, 7]]
        assert await firsts(1, 2) == [2, 5]
