"""A stream that nobody reads on makes room: for another call, another instance, another loop."""

from __future__ import annotations

import asyncio
import gc
from itertools import permutations
from typing import TYPE_CHECKING, Any
from weakref import ref

import pytest
from shapes import Tally, counting

from perdure import (
    InMemoryCheckpointStorage,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowException,
    WorkflowRunState,
    handler,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from conftest import Storage
    from perdure import CheckpointInfo, ResponseStream, Workflow


async def read_until(stream: ResponseStream[Any, Any], kind: str, count: int = 1) -> Any:
    """Read up to the n-th event of a kind."""
    async for event in stream:
        count -= event.type == kind
        if not count:
            return event
    raise AssertionError(f"no {kind}")


async def test_the_loop_of_the_sample_rebuilds_while_the_old_streams_live(storage: Storage) -> None:
    tally = Tally(limit=6)
    builder = WorkflowBuilder(start_executor=tally, name="sample", checkpoint_storage=storage).add_edge(tally, tally)
    latest: CheckpointInfo | None = None
    streams: list[Any] = []
    output = None
    while output is None:
        workflow = builder.build()
        stream = (
            workflow.run(message=1, stream=True)
            if latest is None
            else workflow.run(checkpoint_id=latest.checkpoint_id, stream=True)
        )
        streams.append(stream)
        supersteps = 0
        async for event in stream:
            if event.type == "checkpoint":
                latest = event.data
                supersteps += 1
                if supersteps == 2:
                    break
            elif event.type == "output":
                output = event.data
    assert output == [1, 2, 3, 4, 5, 6]
    assert len(streams) > 3
    assert len({checkpoint.run_id for checkpoint in await storage.list_checkpoints()}) == 1
    assert len(await storage.list_checkpoint_ids()) == 7


async def test_an_abandoned_stream_in_the_middle_of_a_superstep_leaves_nothing_of_it(storage: Storage) -> None:
    tally = Tally()
    stream = counting(storage, tally=tally).run(1, stream=True)
    await read_until(stream, "executor_completed", 2)
    assert tally.seen == [1, 2]
    second = counting(storage, tally=tally)
    head = await storage.get_latest(workflow_name="counting")
    assert head is not None
    result = await second.run(checkpoint_id=head.checkpoint_id)
    assert result.get_outputs() == [[1, 2, 3]]
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


async def test_the_old_stream_ends_when_another_instance_takes_its_run(storage: Storage) -> None:
    workflow = counting(storage)
    stream = workflow.run(1, stream=True)
    await read_until(stream, "superstep_completed")
    assert workflow.run_id is not None
    other = counting(storage)
    assert (await other.run(run_id=workflow.run_id)).get_outputs() == [[1, 2, 3]]
    assert [event async for event in stream] == []
    assert workflow.status is WorkflowRunState.CANCELLED
    assert (await workflow.run(3)).get_outputs() == [[1, 2, 3, 3]]


async def test_an_instance_whose_stream_lives_says_so_and_is_free_when_it_is_dropped(storage: Storage) -> None:
    workflow = counting(storage)
    stream = workflow.run(1, stream=True)
    await read_until(stream, "superstep_completed")
    with pytest.raises(WorkflowException, match="already running"):
        workflow.run(1, stream=True)
    del stream
    gc.collect()
    assert workflow.run_id is not None
    assert (await workflow.run(run_id=workflow.run_id)).get_outputs() == [[1, 2, 3]]


async def test_a_stream_that_was_never_read_holds_nothing(storage: Storage) -> None:
    tally = Tally()
    unread = counting(storage, tally=tally).run(1, stream=True)
    assert (await counting(storage, tally=tally).run(1)).get_outputs() == [[1, 2, 3]]
    del unread
    assert len({checkpoint.run_id for checkpoint in await storage.list_checkpoints()}) == 1


async def test_a_stream_whose_task_has_ended_is_abandoned(storage: Storage) -> None:
    workflow = counting(storage)
    stream = workflow.run(1, stream=True, run_id="one")
    await asyncio.create_task(read_until(stream, "superstep_completed"))
    assert (await counting(storage).run(run_id="one")).get_outputs() == [[1, 2, 3]]
    assert [event async for event in stream] == []


async def test_a_handler_that_is_interrupted_is_cancelled_and_awaited(storage: Storage) -> None:
    ended: list[str] = []

    class Waiting(Tally):
        @handler
        async def count(self, number: int, ctx: WorkflowContext[int, list[int]]) -> None:
            del number, ctx
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)
                ended.append("cleaned up")

    stream = counting(storage, tally=Waiting()).run(1, stream=True, run_id="one")
    await read_until(stream, "executor_invoked")
    assert (await counting(storage).run(run_id="one")).get_outputs() == [[1, 2, 3]]
    assert ended == ["cleaned up"]


async def test_breaking_out_of_a_stream_runs_nothing_more(storage: Storage) -> None:
    tally = Tally(limit=50)
    stream = counting(storage, tally=tally).run(1, stream=True)
    await read_until(stream, "superstep_completed", 2)
    for _ in range(20):
        await asyncio.sleep(0)
    assert tally.seen == [1, 2]
    assert len(await storage.list_checkpoint_ids()) == 3


async def test_a_run_left_in_one_event_loop_goes_on_in_the_next(storage: Storage) -> None:
    def in_a_loop(work: Any) -> Any:
        return asyncio.run(work)

    async def leave() -> tuple[str, Any]:
        workflow = counting(storage)
        stream = workflow.run(1, stream=True)
        await read_until(stream, "superstep_completed")
        assert workflow.run_id is not None
        return workflow.run_id, stream

    async def go_on(run_id: str) -> Any:
        return (await counting(storage).run(run_id=run_id)).get_outputs()

    run_id, stream = await asyncio.to_thread(in_a_loop, leave())
    assert await asyncio.to_thread(in_a_loop, go_on(run_id)) == [[1, 2, 3]]
    del stream


def test_a_stream_that_outlives_its_event_loop_leaves_the_instance_usable(storage: Storage) -> None:
    workflow = counting(storage)
    kept: list[object] = []

    async def blob() -> None:
        stream = workflow.run(1, stream=True)
        kept.append(stream)
        async for event in stream:
            if event.type == "superstep_completed":
                break

    async def rest() -> list[object]:
        return (await workflow.run(run_id=workflow.run_id)).get_outputs()

    asyncio.run(blob())
    assert workflow.status is WorkflowRunState.CANCELLED
    assert asyncio.run(rest()) == [[1, 2, 3]]


class ClosingInOrder(asyncio.SelectorEventLoop):
    """A loop that closes what was left open in an order that is chosen: others take that of a set."""

    def __init__(self, order: Sequence[int]) -> None:
        super().__init__()
        self._order = order
        self._begun: list[ref[AsyncGenerator[Any]]] = []

    def _asyncgen_firstiter_hook(self, agen: AsyncGenerator[Any]) -> None:
        self._begun.append(ref(agen))

    def _asyncgen_finalizer_hook(self, agen: AsyncGenerator[Any]) -> None:
        self.call_soon_threadsafe(self.create_task, agen.aclose())  # type: ignore[arg-type]

    async def shutdown_asyncgens(self) -> None:
        """Close them all at once, as the loop does."""
        left = [each for weak in self._begun if (each := weak()) is not None]
        assert len(left) == len(self._order), left
        closed = await asyncio.gather(*[left[place].aclose() for place in self._order], return_exceptions=True)
        assert closed == [None] * len(left)


@pytest.mark.parametrize("kind", ["superstep_completed", "executor_completed"])
def test_an_event_loop_that_shuts_down_may_close_a_run_in_any_order(kind: str) -> None:
    for order in permutations(range(3)):
        workflow = counting(InMemoryCheckpointStorage())

        async def blob(workflow: Workflow = workflow) -> object:
            stream = workflow.run(1, stream=True)
            await read_until(stream, kind)
            return stream

        with asyncio.Runner(loop_factory=lambda order=order: ClosingInOrder(order)) as runner:
            kept = runner.run(blob())
        del kept
        assert workflow.status is WorkflowRunState.CANCELLED, order
