"""Going on with a run: on the same instance, on another, from a checkpoint or a run id, with answers or without."""

from __future__ import annotations

from typing import TYPE_CHECKING, Never

import pytest
from shapes import Clerk, Tally, asking, commits, counting, nested, requests, types_of

from perdure import (
    CheckpointNotFoundError,
    Executor,
    InMemoryCheckpointStorage,
    RunNotFoundError,
    Workflow,
    WorkflowBuilder,
    WorkflowCheckpointException,
    WorkflowContext,
    WorkflowEvent,
    WorkflowRunState,
    handler,
)

if TYPE_CHECKING:
    from conftest import Storage


async def first_events_of(storage: Storage, number: int) -> str:
    """Run a counting workflow up to its n-th checkpoint and drop it there; the id of its run."""
    workflow = counting(storage)
    seen = 0
    stream = workflow.run(1, stream=True)
    async for event in stream:
        seen += event.type == "checkpoint"
        if seen == number:
            break
    await stream.aclose()
    assert workflow.run_id is not None
    return workflow.run_id


@pytest.mark.parametrize("number", [1, 2, 3, 4])
async def test_a_run_that_stopped_anywhere_goes_on_from_its_id_alone(storage: Storage, number: int) -> None:
    run_id = await first_events_of(storage, number)
    tally = Tally()
    resumed = await counting(storage, tally=tally).run(run_id=run_id)
    assert resumed.get_outputs() == [[1, 2, 3]]
    assert tally.seen == [1, 2, 3]
    counts = [checkpoint.iteration_count for checkpoint in await storage.list_checkpoints(run_id=run_id)]
    assert counts == [0, 1, 2, 3]


@pytest.mark.parametrize("number", [1, 2, 3, 4])
async def test_a_run_that_stopped_anywhere_goes_on_from_its_newest_checkpoint(storage: Storage, number: int) -> None:
    run_id = await first_events_of(storage, number)
    head = await storage.get_latest(workflow_name="counting")
    assert head is not None
    workflow = counting(storage)
    resumed = await workflow.run(checkpoint_id=head.checkpoint_id)
    assert resumed.get_outputs() == [[1, 2, 3]]
    assert workflow.run_id == run_id


async def test_a_resumed_run_tells_only_what_is_still_to_happen(storage: Storage) -> None:
    run_id = await first_events_of(storage, 3)
    events = await counting(storage).run(run_id=run_id, include_status_events=True)
    assert [(event.type, event.iteration) for event in events] == [
        ("status", None),
        ("superstep_started", 3),
        ("executor_invoked", None),
        ("output", None),
        ("executor_completed", None),
        ("checkpoint", None),
        ("superstep_completed", 3),
        ("status", None),
    ]


async def test_the_same_instance_goes_on_from_its_newest_checkpoint(storage: Storage) -> None:
    workflow = asking(storage)
    await workflow.run(["hue"])
    run_id = workflow.run_id
    head = await storage.get_latest(workflow_name="asking")
    assert head is not None
    result = await workflow.run(checkpoint_id=head.checkpoint_id, responses={"about-hue": "red"})
    assert result.get_outputs() == ["hue: red"]
    assert workflow.run_id == run_id


async def test_answers_can_be_given_with_the_run_id(storage: Storage) -> None:
    first = asking(storage)
    await first.run(["hue"])
    assert first.run_id is not None
    clerk = Clerk()
    result = await asking(storage, clerk=clerk).run(run_id=first.run_id, responses={"about-hue": "red"})
    assert result.get_outputs() == ["hue: red"]
    assert clerk.log == ["red"]


async def test_another_instance_can_answer_and_the_first_goes_on_from_there(storage: Storage) -> None:
    first = asking(storage)
    await first.run(["hue", "mood"])
    assert first.run_id is not None
    await asking(storage).run(run_id=first.run_id, responses={"about-hue": "red"})
    result = await first.run(responses={"about-mood": "calm"})
    assert result.get_outputs() == ["mood: calm"]
    assert result.get_final_state() is WorkflowRunState.IDLE
    last = await storage.get_latest(workflow_name="asking")
    assert last is not None
    assert last.state["_executor_state"] == {"clerk": {"log": ["red", "calm"]}}


async def test_a_storage_can_be_given_when_the_workflow_is_run(storage: Storage) -> None:
    await counting(None).run(1, checkpoint_storage=storage)
    ids = await storage.list_checkpoint_ids(workflow_name="counting")
    assert len(ids) == 4
    resumed = await counting(None).run(checkpoint_id=ids[1], checkpoint_storage=storage)
    assert resumed.get_outputs() == [[1, 2, 3]]


async def test_a_storage_given_to_a_call_is_used_instead_of_the_one_given_to_the_builder(storage: Storage) -> None:
    memory = InMemoryCheckpointStorage()
    await counting(storage).run(1, checkpoint_storage=memory)
    assert await storage.list_checkpoint_ids() == []
    assert len(await memory.list_checkpoint_ids()) == 4


async def test_a_run_that_began_in_memory_goes_on_in_a_storage(storage: Storage) -> None:
    workflow = asking(None)
    await workflow.run(["hue", "mood"])
    await workflow.run(responses={"about-hue": "red"})
    assert await storage.list_checkpoint_ids() == []
    await workflow.run(responses={"about-mood": "calm"}, checkpoint_storage=storage)
    (answered, handled) = await storage.list_checkpoints(workflow_name="asking")
    assert answered.state["_executor_state"] == {"clerk": {"log": ["red"]}}
    assert handled.state["_executor_state"] == {"clerk": {"log": ["red", "calm"]}}
    clerk = Clerk()
    again = await asking(None, clerk=clerk).run(checkpoint_id=answered.checkpoint_id, checkpoint_storage=storage)
    assert again.get_outputs() == ["mood: calm"]
    assert clerk.log == ["red", "calm"]


async def test_the_head_of_a_finished_run_tells_its_outputs_again_and_writes_nothing(storage: Storage) -> None:
    await counting(storage).run(1)
    ids = await storage.list_checkpoint_ids()
    tally = Tally()
    workflow = counting(storage, tally=tally)
    for _ in range(2):
        result = await workflow.run(checkpoint_id=ids[-1], include_status_events=True)
        assert types_of(result) == ["status", "output", "status"]
        assert result.get_outputs() == [[1, 2, 3]]
        assert result.get_final_state() is WorkflowRunState.IDLE
    assert tally.seen == [1, 2, 3]
    assert await storage.list_checkpoint_ids() == ids


async def test_a_finished_run_tells_the_outputs_of_its_last_turn_only(storage: Storage) -> None:
    workflow = counting(storage, limit=2)
    await workflow.run(1)
    await workflow.run(2)
    assert workflow.run_id is not None
    assert (await counting(storage, limit=2).run(run_id=workflow.run_id)).get_outputs() == [[1, 2, 2]]


async def test_a_finished_run_takes_its_next_turn_on_another_instance(storage: Storage) -> None:
    first = counting(storage, limit=2)
    await first.run(1)
    assert first.run_id is not None
    second = counting(storage, limit=2)
    await second.run(run_id=first.run_id)
    assert (await second.run(2)).get_outputs() == [[1, 2, 2]]
    assert second.run_id == first.run_id


async def test_the_head_of_a_waiting_run_tells_its_requests_again_and_writes_nothing(storage: Storage) -> None:
    await asking(storage).run(["hue", "mood"])
    ids = await storage.list_checkpoint_ids()
    workflow = asking(storage)
    result = await workflow.run(checkpoint_id=ids[-1], include_status_events=True)
    assert [(event.type, event.state and event.state.value) for event in result] == [
        ("status", "IN_PROGRESS"),
        ("request_info", None),
        ("status", "IN_PROGRESS_PENDING_REQUESTS"),
        ("request_info", None),
        ("status", "IDLE_WITH_PENDING_REQUESTS"),
    ]
    assert workflow.status is WorkflowRunState.IDLE_WITH_PENDING_REQUESTS
    assert await storage.list_checkpoint_ids() == ids
    assert (await workflow.run(responses={"about-mood": "calm"})).get_outputs() == ["mood: calm"]


async def test_a_request_that_is_answered_in_the_same_call_is_not_told_again(storage: Storage) -> None:
    await asking(storage).run(["hue", "mood"])
    head = await storage.get_latest(workflow_name="asking")
    assert head is not None
    result = await asking(storage).run(checkpoint_id=head.checkpoint_id, responses={"about-hue": "red"})
    assert list(requests(result)) == ["about-mood"]
    assert result.get_final_state() is WorkflowRunState.IDLE_WITH_PENDING_REQUESTS
    last = await storage.get_latest(workflow_name="asking")
    assert last is not None
    ended = await asking(storage).run(checkpoint_id=last.checkpoint_id, responses={"about-mood": "calm"})
    assert list(requests(ended)) == []
    assert ended.get_final_state() is WorkflowRunState.IDLE


async def test_empty_answers_are_no_answers(storage: Storage) -> None:
    await counting(storage).run(1)
    ids = await storage.list_checkpoint_ids()
    result = await counting(storage).run(checkpoint_id=ids[-1], responses={})
    assert result.get_outputs() == [[1, 2, 3]]
    assert await storage.list_checkpoint_ids() == ids


async def test_resuming_twice_gives_the_same_run(storage: Storage) -> None:
    await asking(storage).run(["hue", "mood"])
    (_, waiting) = await storage.list_checkpoints(workflow_name="asking")
    outcomes: list[object] = []
    for _ in range(2):
        workflow = asking(storage)
        run = workflow.start(checkpoint_id=waiting.checkpoint_id)
        fork = await (await run).fork(waiting.checkpoint_id)
        await fork
        await fork.respond({"about-mood": "calm", "about-hue": "red"})
        result = await fork.result()
        (*_, last) = await fork.checkpoints()
        outcomes.append((result.get_outputs(), last.state, last.iteration_count))
    assert outcomes[0] == outcomes[1]


async def test_request_ids_that_the_engine_makes_are_the_same_in_every_life(storage: Storage) -> None:
    class Unsure(Executor):
        @handler
        async def go(self, text: str, ctx: WorkflowContext[int]) -> None:
            await ctx.send_message(len(text))

        @handler
        async def ask(self, number: int, ctx: WorkflowContext[Never, str]) -> None:
            await ctx.request_info(str(number), str)
            await ctx.request_info(str(number), str)

    def build() -> Workflow:
        unsure = Unsure("unsure")
        builder = WorkflowBuilder(start_executor=unsure, name="unsure", checkpoint_storage=storage)
        return builder.add_edge(unsure, unsure).build()

    workflow = build()
    stream = workflow.run("x", stream=True)
    told: list[WorkflowEvent[str]] = []
    async for event in stream:
        if event.type == "request_info":
            told.append(event)
        if len(told) == 2:
            break
    await stream.aclose()
    assert workflow.run_id is not None
    again = await build().run(run_id=workflow.run_id)
    assert [event.request_id for event in told] == list(requests(again))
    assert len(requests(again)) == 2


async def test_a_checkpoint_id_without_any_storage_is_refused() -> None:
    with pytest.raises(ValueError, match="checkpoint_id needs a storage"):
        await counting(None).run(checkpoint_id="whatever")


async def test_an_unknown_checkpoint_is_named(storage: Storage) -> None:
    with pytest.raises(CheckpointNotFoundError, match="'nowhere@3'") as caught:
        await counting(storage).run(checkpoint_id="nowhere@3")
    assert isinstance(caught.value, WorkflowCheckpointException)


async def test_an_unknown_run_is_named(storage: Storage) -> None:
    workflow = counting(storage)
    with pytest.raises(RunNotFoundError, match="'nobody'"):
        await workflow.run(run_id="nobody")
    assert workflow.status is WorkflowRunState.IDLE
    with pytest.raises(RunNotFoundError, match="'nobody'"):
        await counting(None).run(run_id="nobody")


async def test_a_run_in_memory_goes_on_by_its_id_on_the_instance_that_has_it() -> None:
    workflow = asking(None)
    await workflow.run(["hue"])
    assert workflow.run_id is not None
    result = await workflow.run(run_id=workflow.run_id, responses={"about-hue": "red"})
    assert result.get_outputs() == ["hue: red"]


async def test_the_former_spellings_resume_too(storage: Storage) -> None:
    await asking(storage).run(["hue"])
    head = await storage.get_latest(workflow_name="asking")
    assert head is not None
    workflow = asking(None)
    events = [e async for e in workflow.run_stream_from_checkpoint(head.checkpoint_id, storage)]
    assert "request_info" in types_of(events)
    result = await asking(storage).run_from_checkpoint(head.checkpoint_id, responses={"about-hue": "red"})
    assert result.get_outputs() == ["hue: red"]


async def test_a_run_with_a_sub_workflow_resumes_from_every_checkpoint(storage: Storage) -> None:
    workflow = nested(storage)
    await workflow.run(["hue"])
    await workflow.run(responses={"about-hue": "red"})
    ids = await storage.list_checkpoint_ids()
    assert len(ids) == 5
    for checkpoint_id in ids[2:]:
        assert (await nested(storage).run(checkpoint_id=checkpoint_id)).get_outputs() == ["heard hue: red"]
    for checkpoint_id in ids[:2]:
        assert list(requests(await nested(storage).run(checkpoint_id=checkpoint_id))) == ["about-hue"]


async def test_the_checkpoint_events_of_a_resumed_run_follow_the_stored_ones(storage: Storage) -> None:
    run_id = await first_events_of(storage, 2)
    (_, head) = await storage.list_checkpoints(run_id=run_id)
    told = commits(await counting(storage).run(run_id=run_id))
    assert told[0].previous_checkpoint_id == head.checkpoint_id
    assert [info.run_id for info in told] == [run_id, run_id]
