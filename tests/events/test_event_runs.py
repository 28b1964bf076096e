"""The events that the commits of a run number."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.events.bakery import RUN_ID, Loaf, bakery, facts
from tests.events.samples import LARGE

from perdure import (
    CheckpointInfo,
    Executor,
    UndeliveredMessage,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowEvent,
    WorkflowEventSource,
    executor,
    handler,
    response_handler,
)
from perdure.events import Undecoded

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Storage

UNNUMBERED = frozenset({"status", "smell"})
"""What is told live only."""


async def log(storage: Storage, run_id: str = RUN_ID, **options: Any) -> list[WorkflowEvent[Any]]:
    return [event async for event in storage.events(run_id, **options)]


async def test_the_log_holds_what_was_told_live_once_and_in_plan_order(storage: Storage) -> None:
    stream = bakery(storage).run(2, run_id=RUN_ID, stream=True)
    live = [event async for event in stream if event.type not in UNNUMBERED]
    told = await log(storage)
    assert [event.seq for event in told] == list(range(1, len(told) + 1))
    assert {event.seq for event in live} == {None}
    assert sorted(event.type for event in told) == sorted(event.type for event in live)
    assert [event.data for event in told if event.type == "output"] == [
        *(Loaf(2, f"baker-{number}") for number in range(3)),
        "3 loaves!",
    ]
    baked = [(event.data.baker, event.data.number) for event in told if event.type == "baked"]
    assert baked == [(f"baker-{baker}", number) for baker in range(3) for number in range(2)]


async def test_a_superstep_is_told_from_its_beginning_to_its_commit(storage: Storage) -> None:
    await bakery(storage).run(2, run_id=RUN_ID)
    told = await log(storage)
    first = next(place for place, event in enumerate(told) if event.type == "superstep_started")
    assert [(event.type, event.executor_id, event.iteration) for event in told[first : first + 6]] == [
        ("superstep_started", None, 1),
        ("executor_invoked", "counter", None),
        ("order", "counter", None),
        ("executor_completed", "counter", None),
        ("checkpoint", None, None),
        ("superstep_completed", None, 1),
    ]
    infos = [event.data for event in told if event.type == "checkpoint"]
    assert all(isinstance(info, CheckpointInfo) for info in infos)
    assert [info.checkpoint_id for info in infos] == await storage.list_checkpoint_ids()


async def test_the_origin_of_an_event_is_that_of_the_live_one(storage: Storage) -> None:
    live = {event.type: event.origin async for event in bakery(storage).run(2, run_id=RUN_ID, stream=True)}
    told = {event.type: event.origin for event in await log(storage)}
    assert told == {kind: live[kind] for kind in told}
    assert told["baked"] is WorkflowEventSource.EXECUTOR


async def test_what_was_not_delivered_is_in_the_log(storage: Storage) -> None:
    await bakery(storage).run(2, run_id=RUN_ID)
    (event,) = [event for event in await log(storage) if event.type == "undelivered"]
    assert isinstance(event.data, UndeliveredMessage)
    assert (event.data.message, event.data.target_id) == ("nobody takes this", "nobody")


async def test_what_happens_inside_a_sub_workflow_is_in_the_log_with_its_path(storage: Storage) -> None:
    await bakery(storage).run(2, run_id=RUN_ID)
    inner = [event for event in await log(storage) if event.type == "sub_workflow"]
    assert {event.path for event in inner} == {("labels",)}
    assert {event.executor_id for event in inner} == {"labels"}
    assert [event.data.data for event in inner if event.data.type == "output"] == ["3 loaves!"]


async def test_transient_events_are_told_and_not_kept(storage: Storage) -> None:
    live = [event.type async for event in bakery(storage).run(2, run_id=RUN_ID, stream=True)]
    assert live.count("smell") == 3
    assert "smell" not in [event.type for event in await log(storage)]


@pytest.mark.parametrize("is_kept", [False, True])
async def test_what_executors_were_given_is_kept_only_if_the_workflow_says_so(
    storage: Storage, *, is_kept: bool
) -> None:
    await bakery(storage, record_payloads=is_kept).run(2, run_id=RUN_ID)
    told = [event for event in await log(storage) if event.executor_id == "baker-1"]
    given = {event.type: event.data for event in told if event.type.startswith("executor_")}
    loaf = Loaf(2, "baker-1")
    expected = {"executor_invoked": 2, "executor_completed": [loaf, loaf]}
    assert given == (expected if is_kept else dict.fromkeys(expected))


async def test_a_further_turn_goes_on_with_the_numbers(storage: Storage) -> None:
    workflow = bakery(storage)
    await workflow.run(1, run_id=RUN_ID)
    before = await log(storage)
    await workflow.run(2)
    told = await log(storage)
    assert [event.seq for event in told] == list(range(1, len(told) + 1))
    assert await log_of_types(storage, from_seq=len(before) + 1) == [event.type for event in told[len(before) :]]
    assert [event.data for event in told[len(before) :] if event.type == "order"] == [{"loaves": 2}]


async def log_of_types(storage: Storage, **options: Any) -> list[str]:
    return [event.type for event in await log(storage, **options)]


async def test_resuming_a_run_that_has_ended_adds_nothing(storage: Storage) -> None:
    await bakery(storage).run(2, run_id=RUN_ID)
    before = await facts(storage.events(RUN_ID))
    await bakery(storage).run(run_id=RUN_ID)
    assert await facts(storage.events(RUN_ID)) == before


async def test_the_log_of_a_fork_begins_with_one_and_leaves_its_parents_alone(storage: Storage) -> None:
    await bakery(storage).run(2, run_id=RUN_ID)
    before = await facts(storage.events(RUN_ID))
    ids = await storage.list_checkpoint_ids()
    fork = bakery(storage)
    await fork.run(checkpoint_id=ids[1])
    assert fork.run_id is not None
    told = await log(storage, fork.run_id)
    assert [event.seq for event in told] == list(range(1, len(told) + 1))
    assert [event.data for event in told if event.type == "output"][-1] == "3 loaves!"
    assert await facts(storage.events(RUN_ID)) == before


async def test_the_log_goes_on_after_the_run_was_put_back(storage: Storage) -> None:
    run = await bakery(storage).start(2, run_id=RUN_ID)
    await run.result()
    before = await facts(storage.events(RUN_ID))
    ids = await storage.list_checkpoint_ids()
    await run.restore(ids[-2])
    await run.result()
    after = await facts(storage.events(RUN_ID))
    assert after[: len(before)] == before
    assert [seq for seq, *_ in after] == list(range(1, len(after) + 1))
    assert after[-1][1] == "superstep_completed"


class Fickle(Executor):
    """Fails the first time, after it has told something."""

    def __init__(self) -> None:
        super().__init__("fickle")
        self.calls = 0

    @handler
    async def work(self, message: str, ctx: WorkflowContext[str, str]) -> None:
        self.calls += 1
        await ctx.add_event(WorkflowEvent("attempt", message))
        if self.calls == 1:
            raise ValueError("not yet")
        await ctx.yield_output(message)


async def test_what_a_failed_superstep_told_is_in_the_log_only_of_the_life_that_committed_it(storage: Storage) -> None:
    workflow = WorkflowBuilder(start_executor=Fickle(), checkpoint_storage=storage).build()
    with pytest.raises(ValueError, match="not yet"):
        await workflow.run("x", run_id="r")
    assert "attempt" not in await log_of_types(storage, run_id="r")
    await workflow.run(run_id="r")
    types = await log_of_types(storage, run_id="r")
    assert types.count("attempt") == 1
    assert "executor_failed" not in types


class Asking(Executor):
    @handler
    async def ask(self, text: str, ctx: WorkflowContext[str, bool]) -> None:
        await ctx.request_info(Loaf(1, text), bool, request_id="q1")

    @response_handler
    async def answered(self, loaf: Loaf, is_good: bool, ctx: WorkflowContext[str, bool]) -> None:  # noqa: FBT001
        del loaf
        await ctx.yield_output(is_good)


async def test_a_request_is_in_the_log_with_its_types_and_so_is_its_answer(storage: Storage) -> None:
    workflow = WorkflowBuilder(start_executor=Asking("asking"), checkpoint_storage=storage).build()
    await workflow.run("ada", run_id="r")
    (request,) = [event for event in await log(storage, "r") if event.type == "request_info"]
    assert (request.request_id, request.source_executor_id, request.data) == ("q1", "asking", Loaf(1, "ada"))
    assert (request.request_type, request.response_type) == (Loaf, bool)
    asked = len(await log(storage, "r"))
    await workflow.run(responses={"q1": True})
    told = await log_of_types(storage, run_id="r", from_seq=asked + 1)
    assert "answered" in told
    assert told.index("answered") < told.index("executor_invoked")


async def test_large_outputs_are_told_whole(storage: Storage) -> None:
    @executor(id="large")
    async def large(text: str, ctx: WorkflowContext[str, list[str]]) -> None:
        await ctx.yield_output([text] * 3)

    await WorkflowBuilder(start_executor=large, checkpoint_storage=storage).build().run("x" * LARGE, run_id="r")
    (output,) = [event for event in await log(storage, "r") if event.type == "output"]
    assert output.data == ["x" * LARGE] * 3


async def test_events_that_can_not_be_kept_are_told_and_do_not_fail_the_run(storage: Storage) -> None:
    @executor(id="odd")
    async def odd(text: str, ctx: WorkflowContext[str, str]) -> None:
        await ctx.add_event(WorkflowEvent("odd", iter([text])))
        await ctx.yield_output(text)

    result = await WorkflowBuilder(start_executor=odd, checkpoint_storage=storage).build().run("x", run_id="r")
    assert result.get_outputs() == ["x"]
    (event,) = [event for event in await log(storage, "r") if event.type == "odd"]
    assert isinstance(event.data, Undecoded)
    assert event.data.json is None


async def test_a_program_that_does_not_know_the_types_can_read_the_log(open_on_disk: Callable[..., Storage]) -> None:
    async with open_on_disk() as storage:
        await bakery(storage).run(2, run_id=RUN_ID)
    async with open_on_disk() as storage:
        told = await log(storage)
    outputs = [event.data for event in told if event.type == "output"]
    assert [data.json["fields"] for data in outputs[:3]] == [
        {"number": 2, "baker": f"baker-{number}"} for number in range(3)
    ]
    assert outputs[3] == "3 loaves!"


async def test_two_runs_of_one_workflow_have_logs_of_their_own(storage: Storage) -> None:
    for run_id in ("one", "two"):
        await bakery(storage).run(2, run_id=run_id)
    logs = [await log(storage, run_id) for run_id in ("one", "two")]
    assert [event.seq for event in logs[0]] == [event.seq for event in logs[1]]
    owners = [{event.data.run_id for event in told if event.type == "checkpoint"} for told in logs]
    assert owners == [{"one"}, {"two"}]
