"""A function that waits often: what a wait costs does not depend on the number of earlier waits."""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self

import pytest

from perdure import RunContext, WorkflowEvent, step, workflow
from perdure.storage import MemoryStore, StoreStorage
from perdure.testing.clock import ManualClock

if TYPE_CHECKING:
    from types import FrameType

    from perdure.records import Commit, Lease


class CountingStore(MemoryStore):
    """A store that counts the bytes of the values that each commit writes, without tables of contents."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[int] = []

    async def commit(self, lease: Lease, commit: Commit) -> Any:
        values = [blob.data for blob in commit.blobs if not blob.data.startswith(b'{"~":"toc"')]
        self.written.append(sum(map(len, values)) + len(commit.manifest.pieces))
        return await super().commit(lease, commit)


class ParseCounter:
    """Count the JSON documents that are parsed in a block."""

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> Self:
        sys.setprofile(self._profile)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _profile(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code is json.JSONDecoder.decode.__code__:
            self.count += 1


@step
async def look(number: int) -> str:
    return f"nothing yet, {number}"


@workflow(clock=ManualClock(skips=True))
async def poll(times: int, ctx: RunContext) -> str:
    found = ""
    for number in range(times):
        found = await look(number)
        await ctx.add_event(WorkflowEvent("progress", number))
        await ctx.sleep(timedelta(minutes=1))
    return found


async def parses_of(times: int) -> int:
    with ParseCounter() as parses:
        await poll.copy().run(times, checkpoint_storage=StoreStorage(CountingStore()))
    return parses.count


async def test_a_re_entered_function_parses_no_record_twice_in_one_process() -> None:
    ten, forty = await parses_of(10), await parses_of(40)
    # Each wait brings a step with its event, a sleep and an event. Without the rule, 30 more parse 4,700 documents.
    assert forty - ten <= 30 * 5


async def test_a_wait_writes_as_much_whatever_was_recorded_before() -> None:
    store = CountingStore()
    await poll.copy().run(40, checkpoint_storage=StoreStorage(store))
    assert len(store.written) >= 80
    early, late = max(store.written[4:20]), max(store.written[60:76])
    assert late == pytest.approx(early, abs=16)


async def test_events_before_a_wait_are_committed_once() -> None:
    storage = StoreStorage(CountingStore())
    await poll.copy().run(5, run_id="r", checkpoint_storage=storage)
    told = [event.data async for event in storage.events("r") if event.type == "progress"]
    assert told == [0, 1, 2, 3, 4]
