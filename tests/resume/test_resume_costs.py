"""Resuming a run reads nothing from its store twice."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, cast

from shapes import Tally, counting
from tests.inbox.meddling import meddled

from perdure import WorkflowBuilder
from perdure.clock import SystemClock
from perdure.codec import LiveValues
from perdure.engine.inbox import Inbox
from perdure.kernel import Snapshot
from perdure.storage import StoreStorage, TenantStore

if TYPE_CHECKING:
    from conftest import Storage
    from perdure.records import Commit, Lease, SinceHead, WholeCheckpoint
    from perdure.storage import Store

ENDS = ["commit", "release"]
"""Calls for the last superstep. The commit returns the newest command, so the inbox is not read."""

GOES_ON = ["blobs", "journal", "inbox", *ENDS]
"""Calls after the lease is acquired and the head is read, for a store without combined reads."""


class Asked:
    """A store that notes what it is asked for."""

    def __init__(self, inner: Store) -> None:
        self._inner = inner
        self.names: list[str] = []

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if inspect.iscoroutinefunction(found):
            self.names.append(name)
        return found


class AskedAtOnce(Asked):
    """The same for a store that reads at once what a run is opened with."""

    async def whole_checkpoint(self, checkpoint_id: str) -> WholeCheckpoint:
        return await self.__getattr__("whole_checkpoint")(checkpoint_id)

    async def since_head(self, run_id: str) -> SinceHead:
        return await self.__getattr__("since_head")(run_id)


async def stopped(storage: Storage, first: int, *, commits: int) -> str:
    """Run "r", given a number and dropped after so many commits; its head."""
    stream = counting(storage).run(first, run_id="r", stream=True)
    seen = 0
    async for event in stream:
        seen += event.type == "checkpoint"
        if seen == commits:
            break
    await stream.aclose()
    head = await storage.get_latest(workflow_name="counting")
    assert head is not None
    return head.checkpoint_id


async def asked_by(
    storage: Storage, kind: type[Asked], *, run_id: str | None = None, checkpoint_id: str | None = None
) -> list[str]:
    """What a store is asked for by one that goes on with the last superstep of a run."""
    asked = kind(storage.store)
    resumed = await counting(StoreStorage(cast("Store", asked))).run(run_id=run_id, checkpoint_id=checkpoint_id)
    assert resumed.get_outputs() == [[1, 2, 3]]
    return asked.names


async def test_going_on_from_a_checkpoint_reads_nothing_twice(storage: Storage) -> None:
    head = await stopped(storage, 1, commits=3)
    at_once = ["whole_checkpoint", "acquire", "since_head", *ENDS]
    assert await asked_by(storage, AskedAtOnce, checkpoint_id=head) == at_once


async def test_a_run_that_is_streamed_looks_for_what_its_reader_may_have_sent(storage: Storage) -> None:
    await stopped(storage, 1, commits=3)
    asked = Asked(storage.store)
    stream = counting(StoreStorage(cast("Store", asked))).run(run_id="r", stream=True)
    async for event in stream:
        if event.type == "superstep_completed" and "send" not in asked.names:
            asked.names.append("send")
            await storage.send("r", 2)
    assert (await stream.get_final_response()).get_outputs() == [[1, 2, 3], [1, 2, 3, 2, 3]]
    assert asked.names[-3:] == ["commit", "inbox", "release"]


async def test_a_run_whose_last_commit_failed_looks_for_what_was_sent_since(storage: Storage) -> None:
    class FailsOnce(Asked):
        async def commit(self, lease: Lease, commit: Commit) -> int:
            self.names.append("commit")
            if self.names.count("commit") == 3:
                await storage.send("r", 2)
                raise OSError("the disk is gone")
            return await self._inner.commit(lease, commit)

    node = Tally(limit=2)
    workflow = (
        WorkflowBuilder(
            start_executor=node,
            name="counting",
            checkpoint_storage=StoreStorage(cast("Store", FailsOnce(storage.store))),
            on_checkpoint_error="warn",
        )
        .add_edge(node, node)
        .build()
    )
    assert (await workflow.run(1, run_id="r")).get_outputs() == [[1, 2], [1, 2, 2]]


async def test_going_on_with_a_run_reads_nothing_twice(storage: Storage) -> None:
    await stopped(storage, 1, commits=3)
    at_once = ["run", "acquire", "whole_checkpoint", "since_head", *ENDS]
    assert await asked_by(storage, AskedAtOnce, run_id="r") == at_once


async def test_a_store_that_does_not_read_at_once_is_asked_one_by_one(storage: Storage) -> None:
    head = await stopped(storage, 1, commits=3)
    assert await asked_by(storage, Asked, checkpoint_id=head) == ["manifest", "run", "acquire", *GOES_ON]


async def test_a_run_of_a_store_that_does_not_read_at_once_is_asked_for_one_by_one(storage: Storage) -> None:
    await stopped(storage, 1, commits=3)
    assert await asked_by(storage, Asked, run_id="r") == ["run", "acquire", "manifest", *GOES_ON]


async def test_a_checkpoint_that_was_read_is_not_taken_for_one_of_its_id_that_was_written_since(
    storage: Storage,
) -> None:
    head = await stopped(storage, 1, commits=2)

    async def begin_anew() -> None:
        assert isinstance(storage.store, TenantStore)
        await storage.store.remove("r")
        assert await stopped(storage, 2, commits=2) == head

    resumed = await counting(meddled(storage, run=begin_anew)).run(checkpoint_id=head)
    assert resumed.get_outputs() == [[2, 3]]


async def test_what_was_read_at_once_is_not_taken_for_what_was_written_since(storage: Storage) -> None:
    head = await stopped(storage, 1, commits=2)

    async def begin_anew() -> None:
        assert isinstance(storage.store, TenantStore)
        await storage.store.remove("r")
        assert await stopped(storage, 2, commits=2) == head

    class ReadBefore(AskedAtOnce):
        async def whole_checkpoint(self, checkpoint_id: str) -> WholeCheckpoint:
            found = await super().whole_checkpoint(checkpoint_id)
            if self.names == ["whole_checkpoint"]:
                await begin_anew()
            return found

    resumed = await counting(StoreStorage(cast("Store", ReadBefore(storage.store)))).run(checkpoint_id=head)
    assert resumed.get_outputs() == [[2, 3]]


async def test_what_was_read_of_an_inbox_holds_until_there_is_news(storage: Storage) -> None:
    await stopped(storage, 1, commits=2)
    graph = counting(None).blueprint.graph
    inbox = Inbox(
        graph=graph,
        values=LiveValues(),
        clock=SystemClock(),
        run_id="r",
        store=storage.store,
        waits=False,
        is_streamed=False,
    )
    await storage.cancel("r")
    inbox.offer(())
    assert await inbox.apply(Snapshot()) is None
    inbox.offer(())
    inbox.refresh()
    taken = await inbox.apply(Snapshot())
    assert taken is not None
    assert len(taken.consumed) == 1
