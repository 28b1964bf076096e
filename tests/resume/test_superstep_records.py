"""Finished activations are recorded while the commit is held up, and an interrupted superstep leaves nothing behind."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import pytest
from tests.tracing.collected import SAMPLER
from typing_extensions import override

from perdure import (
    Executor,
    InMemoryCheckpointStorage,
    SqliteCheckpointStorage,
    WorkflowBuilder,
    WorkflowContext,
    executor,
    handler,
)
from perdure.storage import MemoryStore

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from perdure.records import JournalRecord, Lease


class Slow(Executor):
    """Takes its time to save its state."""

    def __init__(self, id: str, **options: Any) -> None:  # noqa: A002 - as in the base
        super().__init__(id, **options)
        self.seen: list[int] = []
        self.may_save = asyncio.Event()
        self.is_saving = asyncio.Event()

    @handler
    async def handle(self, message: int, _: WorkflowContext[int, int]) -> None:
        self.seen.append(message)

    async def on_checkpoint_save(self) -> dict[str, Any]:
        if self.seen:
            self.is_saving.set()
            await self.may_save.wait()
        return {"seen": list(self.seen)}

    async def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        self.seen = list(state["seen"])


async def test_a_sibling_is_recorded_while_a_parallel_executor_saves_its_state() -> None:
    storage, slow = InMemoryCheckpointStorage(), Slow("slow", max_concurrency=2)

    @executor
    async def start(message: int, ctx: WorkflowContext[int]) -> None:
        await ctx.send_message(message)
        await ctx.send_message(message + 1, "slow")

    @executor
    async def sibling(message: int, ctx: WorkflowContext[int, int]) -> None:
        await slow.is_saving.wait()
        await ctx.yield_output(message)

    flow = WorkflowBuilder(start_executor=start, checkpoint_storage=storage)
    flow = flow.add_edge(start, slow).add_edge(start, sibling)
    running = asyncio.ensure_future(flow.build().run(1, run_id="r"))
    await slow.is_saving.wait()
    async with asyncio.timeout(30):
        while not any("sibling" in each.key for each in await storage.store.journal("r")):
            await asyncio.to_thread(str)
    slow.may_save.set()
    assert (await running).get_outputs() == [1]


class SlowStore(MemoryStore):
    """Writes no record before it may."""

    def __init__(self) -> None:
        super().__init__()
        self.may_record = asyncio.Event()
        self.is_recording = asyncio.Event()

    @override
    async def record(
        self, lease: Lease, *, head: str | None, records: Sequence[JournalRecord], durable: bool = True
    ) -> None:
        self.is_recording.set()
        await self.may_record.wait()
        await super().record(lease, head=head, records=records, durable=durable)


class Counter(Executor):
    """Counts its messages, and keeps the count."""

    count = 0

    @handler
    async def handle(self, _: int, ctx: WorkflowContext[int, int]) -> None:
        self.count += 1
        await ctx.yield_output(self.count)

    async def on_checkpoint_save(self) -> dict[str, Any]:
        return {"count": self.count}

    async def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        await asyncio.sleep(0)
        self.count = state["count"]


async def test_executors_are_restored_however_often_the_reader_is_cancelled() -> None:
    store, counter = SlowStore(), Counter("counter")
    storage = InMemoryCheckpointStorage()
    storage.store = store
    may_end = asyncio.Event()

    @executor
    async def start(message: int, ctx: WorkflowContext[int]) -> None:
        await ctx.send_message(message)

    @executor
    async def other(_: int) -> None:
        await may_end.wait()

    flow = WorkflowBuilder(start_executor=start, checkpoint_storage=storage)
    workflow = flow.add_edge(start, counter).add_edge(start, other).build()
    running = asyncio.ensure_future(workflow.run(1, run_id="r"))
    await store.is_recording.wait()
    assert counter.count == 1
    for _ in range(3):
        running.cancel()
        for _ in range(5):
            await asyncio.sleep(0)
    store.may_record.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert counter.count == 0
    may_end.set()
    assert (await workflow.run(run_id="r")).get_outputs() == [1]


async def test_a_traced_answer_waits_for_the_records_before_its_commit(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(SAMPLER, "is_asked", True)
    storage = SqliteCheckpointStorage(tmp_path / "runs.db")

    @executor
    async def ask(_: int, ctx: WorkflowContext[int, str]) -> None:
        await ctx.yield_output(await ctx.ask("which?", str))

    first = await WorkflowBuilder(start_executor=ask).build().run(1, run_id="r", checkpoint_storage=storage)
    (asked,) = first.get_request_info_events()
    answers = {asked.request_id: "this"}
    workflow = WorkflowBuilder(start_executor=ask).build()
    with caplog.at_level(logging.WARNING):
        result = await workflow.run(run_id="r", responses=answers, checkpoint_storage=storage)
    assert result.get_outputs() == ["this"]
    assert not caplog.records
