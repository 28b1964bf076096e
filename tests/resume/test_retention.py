"""Retention through the public storages: deleted checkpoints, and those that are always kept."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from shapes import Clerk, Tally, asking, counting

from perdure import CheckpointNotFoundError, FullHistory, KeepFor, KeepLast, LatestOnly, Retention, WorkflowBuilder
from perdure.testing.clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Storage
    from perdure import Workflow


class Hours(ManualClock):
    """A clock that a test moves on."""

    def pass_by(self, hours: int) -> None:
        self.advance(timedelta(hours=hours))


def timed(storage: Storage, clock: Hours, *, limit: int = 3) -> Workflow:
    tally = Tally(limit=limit)
    builder = WorkflowBuilder(start_executor=tally, name="counting", checkpoint_storage=storage, clock=clock)
    return builder.add_edge(tally, tally).build()


async def counts(storage: Storage) -> list[int]:
    return [checkpoint.iteration_count for checkpoint in await storage.list_checkpoints()]


@pytest.mark.parametrize(
    ("checkpoints", "kept"),
    [(FullHistory(), [0, 1, 2, 3]), (LatestOnly(), [3]), (KeepLast(1), [3]), (KeepLast(3), [1, 2, 3])],
)
async def test_of_a_run_as_many_checkpoints_are_kept_as_the_retention_says(
    open_storage: Callable[..., Storage], checkpoints: LatestOnly | FullHistory | KeepLast, kept: list[int]
) -> None:
    async with open_storage(retention=Retention(checkpoints=checkpoints)) as storage:
        workflow = counting(storage)
        assert (await workflow.run(1)).get_outputs() == [[1, 2, 3]]
        assert await counts(storage) == kept
        assert workflow.run_id is not None
        assert (await counting(storage).run(run_id=workflow.run_id)).get_outputs() == [[1, 2, 3]]


async def test_everything_is_kept_by_default(storage: Storage) -> None:
    workflow = counting(storage)
    for _ in range(5):
        await workflow.run(1)
    assert len(await storage.list_checkpoint_ids()) == 20


async def test_each_run_has_a_history_of_its_own(open_storage: Callable[..., Storage]) -> None:
    async with open_storage(retention=Retention(checkpoints=KeepLast(2))) as storage:
        first, second = counting(storage), counting(storage)
        await first.run(1)
        await second.run(1)
        for workflow in (first, second):
            mine = await storage.list_checkpoints(run_id=workflow.run_id)
            assert [checkpoint.iteration_count for checkpoint in mine] == [2, 3]


async def test_what_a_pending_request_needs_is_kept(open_storage: Callable[..., Storage]) -> None:
    async with open_storage(retention=Retention(checkpoints=LatestOnly())) as storage:
        workflow = asking(storage)
        await workflow.run(["hue", "mood"])
        assert workflow.run_id is not None
        clerk = Clerk()
        other = asking(storage, clerk=clerk)
        await other.run(run_id=workflow.run_id, responses={"about-hue": "red"})
        await other.run(responses={"about-mood": "calm"})
        assert clerk.log == ["red", "calm"]
        assert len(await storage.list_checkpoint_ids()) == 1


async def test_what_a_fork_rests_on_is_kept(open_storage: Callable[..., Storage]) -> None:
    async with open_storage(retention=Retention(checkpoints=KeepLast(2))) as storage:
        source = asking(storage).start(["hue", "mood"])
        await source.result()
        (_, waiting) = await storage.list_checkpoint_ids()
        fork = await source.fork(waiting)
        await source.respond({"about-hue": "red"})
        await source.respond({"about-mood": "calm"})
        await source.result()
        assert waiting in await storage.list_checkpoint_ids()
        await fork
        await fork.respond({"about-hue": "blue"})
        assert (await fork.result()).get_outputs() == ["hue: blue"]


async def test_old_checkpoints_are_forgotten_by_their_age(open_storage: Callable[..., Storage]) -> None:
    clock = Hours()
    retention = Retention(checkpoints=KeepFor(timedelta(hours=5)))
    async with open_storage(retention=retention, clock=clock) as storage:
        workflow = timed(storage, clock, limit=1)
        await workflow.run(1)
        clock.pass_by(4)
        await workflow.run(1)
        assert await counts(storage) == [0, 1, 0, 1]
        clock.pass_by(2)
        await workflow.run(1)
        assert await counts(storage) == [0, 1, 0, 1]
        assert (await workflow.run(1)).get_outputs() == [[1, 1, 1, 1]]


async def test_finished_runs_are_forgotten_by_their_age_and_waiting_ones_are_not(
    open_storage: Callable[..., Storage],
) -> None:
    clock = Hours()
    retention = Retention(finished_runs=KeepFor(timedelta(hours=5)))
    async with open_storage(retention=retention, clock=clock) as storage:
        finished = timed(storage, clock)
        await finished.run(1)
        waiting = WorkflowBuilder(
            start_executor=Clerk(), name="asking", checkpoint_storage=storage, clock=clock
        ).build()
        await waiting.run(["hue"])
        clock.pass_by(6)
        await timed(storage, clock).run(1)
        left = {checkpoint.run_id for checkpoint in await storage.list_checkpoints()}
        assert finished.run_id not in left
        assert waiting.run_id in left
        assert (await waiting.run(responses={"about-hue": "red"})).get_outputs() == ["hue: red"]


async def test_a_forgotten_checkpoint_is_not_found(open_storage: Callable[..., Storage]) -> None:
    async with open_storage(retention=Retention(checkpoints=LatestOnly())) as storage:
        workflow = counting(storage)
        stream = workflow.run(1, stream=True)
        infos = [event.data async for event in stream if event.type == "checkpoint"]
        with pytest.raises(CheckpointNotFoundError):
            await storage.load(infos[0].checkpoint_id)
        with pytest.raises(CheckpointNotFoundError):
            await counting(storage).run(checkpoint_id=infos[1].checkpoint_id)


async def test_a_rewound_run_stays_whole(open_storage: Callable[..., Storage]) -> None:
    async with open_storage(retention=Retention(checkpoints=KeepLast(3))) as storage:
        run = counting(storage).start(1)
        await run.result()
        (oldest, *_) = await run.checkpoints()
        await run.restore(oldest.checkpoint_id)
        assert [event.data async for event in run.events() if event.type == "output"] == [[1, 2, 3]]
        assert len(await run.checkpoints()) == 3


async def test_deleting_a_checkpoint_forgets_it_and_its_blobs(storage: Storage) -> None:
    tally = Tally(limit=1)
    tally.seen = list(range(20_000))
    workflow = counting(storage, tally=tally)
    await workflow.run(1)
    (entry, last) = await storage.list_checkpoint_ids()
    assert await storage.delete(entry)
    assert not await storage.delete(entry)
    await storage.collect()
    assert await storage.list_checkpoint_ids() == [last]
    assert workflow.run_id is not None
    other = Tally(limit=1)
    await counting(storage, tally=other).run(run_id=workflow.run_id)
    assert other.seen == [*range(20_000), 1]
    assert await storage.delete(last)
    assert await storage.collect() > 0
    assert await storage.get_latest(workflow_name="counting") is None


async def test_deleting_the_head_steps_back_because_somebody_asked_for_it(storage: Storage) -> None:
    workflow = counting(storage)
    await workflow.run(1)
    ids = await storage.list_checkpoint_ids()
    await storage.delete(ids[-1])
    latest = await storage.get_latest(workflow_name="counting")
    assert latest is not None
    assert latest.checkpoint_id == ids[-2]
    assert workflow.run_id is not None
    assert (await counting(storage).run(run_id=workflow.run_id)).get_outputs() == [[1, 2, 3]]


async def test_an_instance_whose_run_was_deleted_goes_on_from_what_it_has(storage: Storage) -> None:
    workflow = counting(storage, limit=1)
    await workflow.run(1)
    for checkpoint_id in await storage.list_checkpoint_ids():
        await storage.delete(checkpoint_id)
    assert (await workflow.run(1)).get_outputs() == [[1, 1]]
    assert workflow.run_id is not None
    assert (await counting(storage, limit=1).run(run_id=workflow.run_id)).get_outputs() == [[1, 1]]
