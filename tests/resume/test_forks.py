"""An older checkpoint begins a fork: a new run, the source untouched; its requests may be asked again."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from shapes import Clerk, Tally, asking, counting, requests

from perdure import (
    AlreadyAnsweredError,
    Edit,
    FunctionExecutor,
    UnknownRequestError,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowRunState,
)
from perdure.testing.clock import ManualClock

if TYPE_CHECKING:
    from conftest import Storage
    from perdure import Run, Workflow


async def snapshot_of(storage: Storage, run_id: str) -> list[tuple[object, ...]]:
    """All that is stored of a run, as bytes."""
    return [
        (manifest.header, dict(manifest.toc), await storage.store.blobs(manifest.toc.values()))
        for manifest in await storage.store.manifests(run_id=run_id)
    ]


async def test_an_older_checkpoint_becomes_a_run_of_its_own_and_leaves_the_source_alone(storage: Storage) -> None:
    source = counting(storage)
    await source.run(1)
    assert source.run_id is not None
    before = await snapshot_of(storage, source.run_id)
    older = (await storage.list_checkpoint_ids())[2]
    fork = counting(storage, limit=5)
    assert (await fork.run(checkpoint_id=older)).get_outputs() == [[1, 2, 3, 4, 5]]
    assert fork.run_id != source.run_id
    assert await snapshot_of(storage, source.run_id) == before
    assert (await source.run(3)).get_outputs() == [[1, 2, 3, 3]]


async def test_the_instance_stands_for_the_fork_from_then_on(storage: Storage) -> None:
    workflow = counting(storage)
    await workflow.run(1)
    source = workflow.run_id
    older = (await storage.list_checkpoint_ids())[1]
    await workflow.run(checkpoint_id=older)
    fork = workflow.run_id
    assert fork not in {source, None}
    await workflow.run(3)
    assert workflow.run_id == fork
    assert [c.run_id for c in await storage.list_checkpoints()].count(fork or "") == 4


async def test_each_resume_of_an_older_checkpoint_is_a_fork_of_its_own(storage: Storage) -> None:
    await counting(storage).run(1)
    older = (await storage.list_checkpoint_ids())[1]
    one, two = counting(storage), counting(storage)
    await one.run(checkpoint_id=older)
    await two.run(checkpoint_id=older)
    assert one.run_id != two.run_id


async def test_a_fork_can_be_forked(storage: Storage) -> None:
    await counting(storage, limit=4).run(1)
    older = (await storage.list_checkpoint_ids())[1]
    fork = counting(storage, limit=4)
    await fork.run(checkpoint_id=older)
    (first, *_) = await storage.list_checkpoints(run_id=fork.run_id)
    again = counting(storage, limit=4)
    assert (await again.run(checkpoint_id=first.checkpoint_id)).get_outputs() == [[1, 2, 3, 4]]
    (second, *_) = await storage.list_checkpoints(run_id=again.run_id)
    assert second.previous_checkpoint_id == first.checkpoint_id


async def test_a_fork_that_has_nothing_to_do_yet_waits_at_its_parent(storage: Storage) -> None:
    source = asking(storage)
    await source.run(["hue"])
    (_, waiting) = await storage.list_checkpoint_ids()
    await source.run(responses={"about-hue": "red"})
    fork = asking(storage)
    assert list(requests(await fork.run(checkpoint_id=waiting))) == ["about-hue"]
    assert fork.run_id is not None
    assert await storage.list_checkpoints(run_id=fork.run_id) == []
    elsewhere = asking(storage)
    await elsewhere.run(run_id=fork.run_id)
    result = await elsewhere.run(responses={"about-hue": "blue"})
    assert result.get_outputs() == ["hue: blue"]
    (first, _) = await storage.list_checkpoints(run_id=fork.run_id)
    assert first.previous_checkpoint_id == waiting


async def test_an_answer_to_what_the_run_has_answered_already_is_refused(storage: Storage) -> None:
    source = asking(storage)
    await source.run(["hue", "mood"])
    (_, waiting) = await storage.list_checkpoint_ids()
    await source.run(responses={"about-hue": "red"})
    ids = await storage.list_checkpoint_ids()
    workflow = asking(storage)
    with pytest.raises(AlreadyAnsweredError, match=f"of run {source.run_id!r}") as caught:
        await workflow.run(checkpoint_id=waiting, responses={"about-hue": "blue"})
    assert caught.value.run_id == source.run_id
    assert await storage.list_checkpoint_ids() == ids
    assert workflow.run_id is None
    assert workflow.status is WorkflowRunState.IDLE


async def test_a_request_that_the_run_has_not_answered_is_answered_in_a_fork(storage: Storage) -> None:
    source = asking(storage)
    await source.run(["hue", "mood"])
    (_, waiting) = await storage.list_checkpoint_ids()
    await source.run(responses={"about-hue": "red"})
    fork = asking(storage)
    result = await fork.run(checkpoint_id=waiting, responses={"about-mood": "calm"})
    assert result.get_outputs() == ["mood: calm"]
    assert list(requests(result)) == ["about-hue"]
    assert fork.run_id != source.run_id


async def test_an_explicit_fork_asks_again(storage: Storage) -> None:
    source = asking(storage)
    await source.run(["hue"])
    (_, waiting) = await storage.list_checkpoint_ids()
    await source.run(responses={"about-hue": "red"})
    assert source.run_id is not None
    handle = await source.start(run_id=source.run_id)
    fork = await handle.fork(waiting)
    await fork
    assert list(fork.requests) == ["about-hue"]
    await fork.respond({"about-hue": "blue"})
    assert (await fork.result()).get_outputs() == ["hue: blue"]
    assert (await asking(storage).run(run_id=source.run_id)).get_outputs() == ["hue: red"]


async def test_two_forks_with_the_same_answers_end_the_same(storage: Storage) -> None:
    source = asking(storage)
    await source.run(["hue", "mood"])
    (_, waiting) = await storage.list_checkpoint_ids()
    assert source.run_id is not None
    handle = await source.start(run_id=source.run_id)
    ends: list[object] = []
    for _ in range(2):
        fork = await handle.fork(waiting)
        await fork
        await fork.respond({"about-hue": "red"})
        await fork.respond({"about-mood": "calm"})
        await fork.result()
        (*_, last) = await fork.checkpoints()
        ends.append((last.state, last.iteration_count, last.messages))
    assert ends[0] == ends[1]


async def forked(storage: Storage, edit: Edit, *, at: int = 1) -> Run:
    workflow = counting(storage)
    await workflow.run(1)
    assert workflow.run_id is not None
    handle = await workflow.start(run_id=workflow.run_id)
    return await handle.fork((await storage.list_checkpoint_ids())[at], edit=edit)


async def test_a_fork_can_change_messages(storage: Storage) -> None:
    fork = await forked(storage, Edit(messages={"tally": [3]}))
    assert (await fork.result()).get_outputs() == [[1, 3]]


async def test_a_fork_can_change_the_state_of_executors(storage: Storage) -> None:
    fork = await forked(storage, Edit(executors={"tally": {"seen": [7]}}))
    assert (await fork.result()).get_outputs() == [[7, 2, 3]]


async def test_a_fork_can_change_the_shared_state(storage: Storage) -> None:
    fork = await forked(storage, Edit(state={"last": 70, "extra": ["new"]}), at=3)
    await fork
    (first,) = await fork.checkpoints()
    assert first.state["last"] == 70
    assert first.state["extra"] == ["new"]
    removed = await forked(storage, Edit(delete=["last"]), at=3)
    await removed
    (first,) = await removed.checkpoints()
    assert "last" not in first.state


async def test_an_edit_is_the_first_commit_of_its_fork(storage: Storage) -> None:
    fork = await forked(storage, Edit(state={"last": 70}))
    await fork
    (first, *_) = await fork.checkpoints()
    assert first.previous_checkpoint_id == (await storage.list_checkpoint_ids())[1]
    assert first.run_id == fork.run_id
    assert first.iteration_count == 1


@pytest.mark.parametrize(
    ("edit", "error", "match"),
    [
        (Edit(state={"last": "seventy"}), TypeError, r"state\['last'\] is a int, the edit makes it a str"),
        (Edit(delete=["unheard of"]), ValueError, "no state key 'unheard of'"),
        (Edit(executors={"nobody": {}}), ValueError, "'nobody'"),
        (Edit(messages={"nobody": [1]}), ValueError, "'nobody'"),
        (Edit(messages={"tally": ["text"]}), TypeError, "'tally' has no handler for a str"),
    ],
)
async def test_an_edit_that_does_not_fit_is_refused_and_makes_no_fork(
    storage: Storage, edit: Edit, error: type[Exception], match: str
) -> None:
    workflow = counting(storage)
    await workflow.run(1)
    ids = await storage.list_checkpoint_ids()
    assert workflow.run_id is not None
    handle = await workflow.start(run_id=workflow.run_id)
    with pytest.raises(error, match=match):
        await handle.fork(ids[1], edit=edit)
    assert await storage.list_checkpoint_ids() == ids


class Bids:
    """Two who bid side by side after a first step; the second does not come to its end at first."""

    def __init__(self) -> None:
        self.is_stuck = True
        self.stuck = asyncio.Event()
        self.entered: list[str] = []
        self.prepared: list[str] = []

    def built(self, storage: Storage) -> Workflow:
        """The workflow."""

        async def open_(item: str, ctx: WorkflowContext[str, str]) -> None:
            ctx.set_state("price", 10)
            await ctx.send_message(item)

        async def first(item: str, ctx: WorkflowContext[str, str]) -> None:
            self.entered.append("first")
            await ctx.yield_output(f"first: {item} for {ctx.get_state('price')}")

        async def second(item: str, ctx: WorkflowContext[str, str]) -> None:
            self.entered.append("second")
            await ctx.step("prepare", self.prepared.append, item)
            if self.is_stuck:
                self.stuck.set()
                await asyncio.get_running_loop().create_future()
            await ctx.yield_output(f"second: {item} for {ctx.get_state('price')}")

        start, *others = [
            FunctionExecutor(do, name) for name, do in {"start": open_, "first": first, "second": second}.items()
        ]
        builder = WorkflowBuilder(start_executor=start, name="bids", checkpoint_storage=storage)
        return builder.add_fan_out_edges(start, others).build()

    async def cancelled(self, storage: Storage) -> Run:
        """A run that was stopped when one of the two was done."""
        run = await self.built(storage).start("vase", run_id="bids")
        reading = asyncio.ensure_future(run.result())
        await self.stuck.wait()
        await run.cancel()
        await reading
        self.is_stuck = False
        self.entered.clear()
        return run


@pytest.mark.parametrize(
    ("edit", "item", "price"),
    [
        (Edit(messages={"first": ["lamp"], "second": ["lamp"]}), "lamp", 10),
        (Edit(state={"price": 99}), "vase", 99),
        (Edit(messages={"first": ["lamp"], "second": ["lamp"]}, state={"price": 99}), "lamp", 99),
    ],
)
async def test_a_change_reaches_what_a_stopped_superstep_had_finished(
    storage: Storage, edit: Edit, item: str, price: int
) -> None:
    bids = Bids()
    fork = await (await bids.cancelled(storage)).fork(edit=edit)
    assert (await fork.result()).get_outputs() == [f"first: {item} for {price}", f"second: {item} for {price}"]
    assert bids.prepared == ["vase", item]


@pytest.mark.parametrize("edit", [None, Edit()])
async def test_a_fork_that_changes_nothing_does_nothing_again(storage: Storage, edit: Edit | None) -> None:
    bids = Bids()
    fork = await (await bids.cancelled(storage)).fork(edit=edit)
    assert (await fork.result()).get_outputs() == ["first: vase for 10", "second: vase for 10"]
    assert (bids.entered, bids.prepared) == (["second"], ["vase"])


@pytest.mark.parametrize("is_awake", [False, True])
async def test_an_activation_that_waited_keeps_its_steps_whatever_is_changed(
    storage: Storage, *, is_awake: bool
) -> None:
    clock, prepared = ManualClock(), list[str]()

    async def wait(item: str, ctx: WorkflowContext[str, str]) -> None:
        await ctx.step("prepare", prepared.append, item)
        await ctx.sleep(timedelta(hours=1))
        if failures:
            raise failures.pop()
        await ctx.yield_output(f"{item} for {ctx.get_state('price')}")

    failures = [ValueError("not yet")] if is_awake else []
    builder = WorkflowBuilder(start_executor=FunctionExecutor(wait, "waiter"), name="waiting", clock=clock)
    workflow = builder.build()
    await workflow.run("vase", run_id="waiting", checkpoint_storage=storage, wait_for_timers=False)
    clock.advance(timedelta(hours=1))
    if is_awake:
        with pytest.raises(ValueError, match="not yet"):
            await workflow.run(run_id="waiting", checkpoint_storage=storage)
    run = await workflow.start(run_id="waiting", checkpoint_storage=storage)
    fork = await run.fork((await storage.list_checkpoint_ids())[-1], edit=Edit(state={"price": 99}))
    assert (await fork.result()).get_outputs() == ["vase for 99"]
    assert prepared == ["vase"]


async def test_a_change_of_type_that_is_meant_is_accepted(storage: Storage) -> None:
    fork = await forked(storage, Edit(state={"last": "seventy"}, retype=["last"]))
    await fork
    (first, *_) = await fork.checkpoints()
    assert first.state["last"] == "seventy"


async def test_the_fork_and_its_source_go_on_side_by_side_with_the_same_executors(storage: Storage) -> None:
    clerk = Clerk()
    workflow = asking(storage, clerk=clerk)
    source = workflow.start(["hue", "mood"])
    await source.result()
    fork = await source.fork()
    await fork
    await source.respond({"about-hue": "red"})
    await source.result()
    assert clerk.log == ["red"]
    await fork.respond({"about-hue": "blue"})
    await fork.result()
    assert clerk.log == ["blue"]
    await source.respond({"about-mood": "calm"})
    await source.result()
    assert clerk.log == ["red", "calm"]


async def test_a_fork_of_an_unknown_checkpoint_makes_no_run(storage: Storage) -> None:
    workflow = counting(storage)
    handle = workflow.start(1)
    await handle.result()
    with pytest.raises(Exception, match="nowhere"):
        await handle.fork("nowhere")
    assert len(await storage.list_checkpoint_ids()) == 4


async def test_an_answer_to_an_unknown_request_of_an_older_checkpoint_makes_no_fork(storage: Storage) -> None:
    source = asking(storage)
    await source.run(["hue"])
    await source.run(responses={"about-hue": "red"})
    ids = await storage.list_checkpoint_ids()
    workflow = asking(storage)
    with pytest.raises(UnknownRequestError, match="'about-time'"):
        await workflow.run(checkpoint_id=ids[1], responses={"about-time": "late"})
    assert workflow.run_id is None
    assert await storage.list_checkpoint_ids() == ids


async def test_a_fork_does_not_answer_for_its_source(storage: Storage) -> None:
    source = asking(storage)
    await source.run(["hue"])
    (_, waiting) = await storage.list_checkpoint_ids()
    handle = await source.start(run_id=source.run_id)
    fork = await handle.fork(waiting)
    await fork
    await fork.respond({"about-hue": "blue"})
    await fork.result()
    result = await asking(storage).run(checkpoint_id=waiting, responses={"about-hue": "red"})
    assert result.get_outputs() == ["hue: red"]


async def test_tallies_of_forks_do_not_share_lists(storage: Storage) -> None:
    await counting(storage).run(1)
    older = (await storage.list_checkpoint_ids())[2]
    one, two = Tally(), Tally()
    await counting(storage, tally=one).run(checkpoint_id=older)
    await counting(storage, tally=two).run(checkpoint_id=older)
    one.seen.append(99)
    assert two.seen == [1, 2, 3]
