"""Inboxes: input from outside waits until a commit consumes it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from perdure.errors import (
    CommandWaitsError,
    LeaseLostError,
    RunNotFoundError,
    StaleCommandError,
    StaleHeadError,
    WorkflowCheckpointException,
)
from perdure.records import Command
from perdure.testing.stores.base import (
    RunDriver,
    StoreSuite,
    command,
    events,
    in_a_loop,
    new_run,
    raw_blob,
    text_blob,
    wait_for_collection,
)
from perdure.testing.stores.tenants import ODD_IDS, REFUSED_IDS

if TYPE_CHECKING:
    from perdure.storage import Store
    from perdure.testing.clock import ManualClock


class InboxConformance(StoreSuite):
    """A command waits under its id and takes effect once."""

    @in_a_loop
    async def test_a_command_comes_back_as_it_was_posted(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit({"asked \udcff": text_blob("x")})
        refs = (text_blob("x").hash, text_blob("y").hash)
        contents = [b"", b'{"a":[1,2.50]}', b"\xff\x00\n", "ünï\u2028\r\n日本".encode(), b"large " * 30_000]
        expectations = [None, ("asked \udcff", text_blob("x").hash)]
        posted = [
            Command(f"id {number}", f"kind {number}", data, refs[:number], expects=expectations[number % 2])
            for number, data in enumerate(contents)
        ]
        returned = [await store.post("r", each) for each in posted]
        assert [replace(each, number=0) for each in returned] == posted
        assert list(await store.inbox("r")) == returned
        await store.close()
        assert list(await store.inbox("r")) == returned

    @in_a_loop
    async def test_any_string_is_the_id_of_a_command(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        ids = [*ODD_IDS, *REFUSED_IDS, "file \udcff", "a\u2028b", "\n"]
        await run.post(*(command(each) for each in ids))
        await run.post(*(command(each, "again") for each in ids))
        assert [(each.id, each.data) for each in await store.inbox("r")] == [(each, b"") for each in ids]
        await run.commit(consumed=tuple(ids[1:]))
        assert [each.id for each in await store.inbox("r")] == ids[:1]

    @in_a_loop
    async def test_of_two_commands_with_one_id_the_first_stands(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        first = await store.post("r", command("a", "first", text_blob("of the first")))
        lost = text_blob("of the second")
        assert await store.post("r", command("a", "second", lost)) == first
        assert list(await store.inbox("r")) == [first]
        await store.collect()
        assert await store.blobs([lost.hash]) == {}

    @in_a_loop
    async def test_of_many_who_post_at_once_one_stands(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        outcomes = await asyncio.gather(*(store.post("r", command("a", f"{number}")) for number in range(8)))
        assert len(set(outcomes)) == 1
        assert list(await store.inbox("r")) == outcomes[:1]

    @in_a_loop
    async def test_runs_have_inboxes_of_their_own(self, store: Store, clock: ManualClock) -> None:
        runs = [await RunDriver.start(store, clock, name) for name in "rs"]
        for run in runs:
            await run.commit()
            await run.post(command("a", f"for {run.run_id}"))
        await runs[0].commit(consumed=("a",))
        assert await runs[0].inbox() == []
        assert await runs[1].inbox() == ["a=for s"]

    @in_a_loop
    async def test_commands_need_no_lease_and_outlast_all(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        await run.release()
        await run.post(command("a", "x"))
        run.lease = await store.acquire("r", create=new_run("r"))
        await run.post(command("b", "y"))
        await run.commit()
        await run.release()
        assert await run.inbox() == ["a=x", "b=y"]

    @in_a_loop
    async def test_an_unknown_run_has_no_inbox(self, store: Store, clock: ManualClock) -> None:
        with pytest.raises(RunNotFoundError):
            await store.post("nowhere", command("a"))
        assert list(await store.inbox("nowhere")) == []
        run = await RunDriver.start(store, clock, "r")
        with pytest.raises(RunNotFoundError):
            await run.post(command("a", "", text_blob("lost")))
        assert await run.inbox() == []
        await run.commit()
        assert await run.inbox() == []
        await store.collect()
        assert await store.blobs([text_blob("lost").hash]) == {}

    @in_a_loop
    async def test_a_run_that_is_gone_takes_its_inbox_with_it(self, store: Store, clock: ManualClock) -> None:
        blob = raw_blob(b"part" * 3000)
        for _ in range(2):
            run = await RunDriver.start(store, clock, "r")
            await run.commit()
            assert await run.inbox() == []
            await run.post(command("a", "", blob))
            await store.delete("r@0")
            assert await run.inbox() == []
            with pytest.raises(RunNotFoundError):
                await run.post(command("late"))
        assert await store.collect() == 1

    @in_a_loop
    async def test_a_command_is_consumed_once(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        await run.post(*(command(each, "x") for each in "abcd"))
        await run.commit(consumed=("c", "a"))
        assert await run.inbox() == ["b=x", "d=x"]
        await run.commit(consumed=("a", "b", "never posted"))
        assert await run.inbox() == ["d=x"]
        await store.close()
        assert await run.inbox() == ["d=x"]

    @in_a_loop
    async def test_an_id_can_be_posted_again_when_it_was_consumed(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        for turn in range(3):
            await run.post(command("a", f"{turn}"))
            assert await run.inbox() == [f"a={turn}"]
            await run.commit(consumed=("a",))
            assert await run.inbox() == []

    @in_a_loop
    async def test_numbers_grow_and_are_never_given_twice(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit({"a": text_blob("x")})
        numbers = list(await run.post(command("a"), command("b")))
        await run.commit({"a": text_blob("x")}, consumed=("a", "b"))
        numbers += await run.post(command("a"), command("b", expects=("a", text_blob("x").hash)))
        await run.rewind("r@0")
        await store.close()
        numbers += await run.post(command("b"))
        await run.commit(consumed=("a", "b"))
        await run.release()
        run.lease = await store.acquire("r")
        numbers += await run.post(command("c"))
        assert numbers == sorted(set(numbers))
        assert numbers[0] > 0

    @in_a_loop
    async def test_a_commit_says_which_command_is_the_newest(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        assert run.waiting == 0
        first, second = await run.post(command("a"), command("b"))
        await run.commit()
        assert run.waiting == second
        await run.commit(consumed=("b",))
        assert run.waiting == first
        await run.commit(consumed=("a",))
        assert run.waiting == 0

    @in_a_loop
    async def test_a_refused_commit_consumes_nothing_and_tells_nothing(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        await run.post(command("a", "kept"))
        lost = text_blob("lost")
        refused = run.next_commit(consumed=("a",), events=events("lost", blobs=(lost,)))
        newer = await store.acquire("r")
        with pytest.raises(LeaseLostError):
            await run.write(refused)
        run.lease = newer
        with pytest.raises(StaleHeadError):
            await run.write(replace(refused, expected_head="elsewhere"))
        with pytest.raises(WorkflowCheckpointException):
            await run.write(replace(refused, manifest=run.next_commit(checkpoint_id="r@0").manifest))
        assert await run.inbox() == ["a=kept"]
        assert await run.events() == []
        assert (await run.record()).events == 0
        await store.collect()
        assert await store.blobs([lost.hash]) == {}

    @in_a_loop
    async def test_what_a_waiting_command_asks_for_is_not_done_beside_it(
        self, store: Store, clock: ManualClock
    ) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        await run.post(command("a", "x"), command("b", "y"))
        with pytest.raises(CommandWaitsError) as caught:
            await run.commit(taken=("other", "b"), consumed=("a",), events=events("lost"))
        assert (caught.value.run_id, caught.value.command_id) == ("r", "b")
        assert await run.inbox() == ["a=x", "b=y"]
        assert list(await store.ids()) == ["r@0"]
        assert await run.events() == []
        await run.commit(taken=("other", "b"), consumed=("b",))
        await run.commit(taken=("b",))
        assert await run.inbox() == ["a=x"]

    @in_a_loop
    async def test_a_command_is_taken_only_if_the_head_is_what_it_expects(
        self, store: Store, clock: ManualClock
    ) -> None:
        run = await RunDriver.start(store, clock, "r")
        asked, other = text_blob("asked"), text_blob("other")
        await run.commit({"requests/1": asked})
        for path, blob in (("requests/1", other), ("requests/2", asked)):
            with pytest.raises(StaleCommandError) as caught:
                await run.post(command("a", "", text_blob("lost"), expects=(path, blob.hash)))
            assert (caught.value.run_id, caught.value.path) == ("r", path)
        assert await run.inbox() == []
        await store.collect()
        assert await store.blobs([text_blob("lost").hash]) == {}
        await run.post(command("a", "held", expects=("requests/1", asked.hash)))
        await run.commit({"requests/1": other})
        with pytest.raises(StaleCommandError):
            await run.post(command("b", "late", expects=("requests/1", asked.hash)))
        assert await run.inbox() == ["a=held"]

    @in_a_loop
    async def test_what_waits_is_found_though_the_head_has_moved(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        asked = text_blob("asked")
        await run.commit({"requests/1": asked})
        first = await store.post("r", command("a", "first", expects=("requests/1", asked.hash)))
        await run.commit()
        assert await store.post("r", command("a", "second", expects=("requests/1", asked.hash))) == first

    @in_a_loop
    async def test_rewinding_drops_what_expected_something_of_the_head(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        asked, blob = text_blob("asked"), raw_blob(b"part" * 3000)
        for _ in range(2):
            await run.commit({"requests/1": asked})
        await run.post(command("a", "kept"), command("b", "dropped", blob, expects=("requests/1", asked.hash)))
        await run.rewind("r@0")
        assert await run.inbox() == ["a=kept"]
        assert await store.collect() == 1
        await run.post(command("b", "anew", expects=("requests/1", asked.hash)))
        await run.rewind("r@0", nonce="third")
        assert await run.inbox() == ["a=kept"]

    @in_a_loop
    async def test_deleting_the_head_drops_what_expected_something_of_it(
        self, store: Store, clock: ManualClock
    ) -> None:
        run = await RunDriver.start(store, clock, "r")
        asked = text_blob("asked")
        for _ in range(3):
            await run.commit({"requests/1": asked})
        await run.post(command("a", "kept"), command("b", "x", expects=("requests/1", asked.hash)))
        await store.delete("r@0")
        assert await run.inbox() == ["a=kept", "b=x"]
        await store.delete("r@2")
        assert await run.inbox() == ["a=kept"]

    @in_a_loop
    async def test_a_fork_takes_commands_before_its_first_commit(self, store: Store, clock: ManualClock) -> None:
        source = await RunDriver.start(store, clock, "r")
        asked = text_blob("asked")
        await source.commit({"requests/1": asked})
        await source.post(command("a", "of the source"))
        fork = await RunDriver.start(store, clock, "f", parent="r@0")
        assert await fork.inbox() == []
        with pytest.raises(StaleCommandError):
            await fork.post(command("a", expects=("requests/1", text_blob("other").hash)))
        await fork.post(command("a", "of the fork", expects=("requests/1", asked.hash)))
        await fork.release()
        fork.lease = await store.acquire("f")
        assert await fork.inbox() == ["a=of the fork"]
        await fork.commit(consumed=("a",))
        assert await fork.inbox() == []
        assert await source.inbox() == ["a=of the source"]

    @in_a_loop
    async def test_the_blobs_of_commands_stay_until_they_are_consumed(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        leaf = raw_blob(b"leaf" * 3000)
        tree, adopted, small = raw_blob(b"tree" * 3000, leaf), raw_blob(b"adopted" * 3000), text_blob("small")
        await store.post("r", Command("a", "message", b"", (tree.hash, small.hash), blobs=(leaf, tree, small)))
        await run.post(command("b", "", adopted))
        assert await store.collect() == 0
        await store.close()
        expected = {blob.hash: blob.data for blob in (leaf, tree, small, adopted)}
        assert await store.blobs([tree.hash, small.hash, adopted.hash]) == expected
        assert [each.blobs for each in await store.inbox("r")] == [(), ()]
        await run.commit({"x": adopted}, consumed=("a", "b"))
        await store.collect()
        assert await store.blobs([tree.hash, leaf.hash, adopted.hash]) == {adopted.hash: adopted.data}

    @in_a_loop
    async def test_blobs_of_consumed_commands_go_by_themselves(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        blobs = [raw_blob(f"{step} ".encode() * 2000) for step in range(300)]
        for start in range(0, 300, 5):
            await run.post(*(command(f"{start + each}", "", blobs[start + each]) for each in range(5)))
            await run.commit(consumed=tuple(f"{start + each}" for each in range(5)))
        assert await wait_for_collection(run, blobs)
        await store.close()
