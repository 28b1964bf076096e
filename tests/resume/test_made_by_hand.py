"""Checkpoints that a program makes, changes or carries from one storage to another."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import TYPE_CHECKING, Any

import pytest
from shapes import Clerk, Question, Tally, asking, counting, nested, requests, uneven

from perdure import (
    EncodeError,
    Executor,
    FileCheckpointStorage,
    IncompatibleGraphError,
    InMemoryCheckpointStorage,
    SqliteCheckpointStorage,
    WorkflowBuilder,
    WorkflowCheckpoint,
    WorkflowCheckpointException,
    WorkflowContext,
    WorkflowEvent,
    WorkflowMessage,
    handler,
)

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Storage
    from perdure import Workflow


def made(workflow: Workflow, **fields: Any) -> WorkflowCheckpoint:
    return WorkflowCheckpoint(workflow.name, workflow.graph_signature_hash, **fields)


async def test_a_checkpoint_made_by_hand_is_saved_and_resumed(storage: Storage) -> None:
    workflow = counting(storage)
    checkpoint = made(
        workflow,
        messages={"internal:tally": [WorkflowMessage(2, "internal:tally", "tally")]},
        state={"last": 1, "_executor_state": {"tally": {"seen": [10]}}},
        iteration_count=5,
    )
    assert await storage.save(checkpoint) == checkpoint.checkpoint_id
    result = await workflow.run(checkpoint_id=checkpoint.checkpoint_id)
    assert result.get_outputs() == [[10, 2, 3]]
    (given, *written) = await storage.list_checkpoints(workflow_name="counting")
    assert given.to_dict() == checkpoint.to_dict() | {"run_id": given.run_id}
    assert [c.iteration_count for c in written] == [6, 7]
    assert written[0].previous_checkpoint_id == checkpoint.checkpoint_id


async def test_its_messages_are_routed_along_the_edges(storage: Storage) -> None:
    workflow = uneven(storage)
    checkpoint = made(
        workflow, messages={"s": [WorkflowMessage("xs", "s")], "m": [WorkflowMessage("xlm", "m")]}, iteration_count=3
    )
    await storage.save(checkpoint)
    assert (await workflow.run(checkpoint_id=checkpoint.checkpoint_id)).get_outputs() == ["xs+xlm"]


async def test_its_requests_are_told_and_answered(storage: Storage) -> None:
    workflow = asking(storage)
    event = WorkflowEvent.request_info("about-hue", "clerk", Question("hue"), str)
    checkpoint = made(workflow, pending_request_info_events={"about-hue": event}, iteration_count=1)
    await storage.save(checkpoint)
    assert requests(await workflow.run(checkpoint_id=checkpoint.checkpoint_id)) == {"about-hue": Question("hue")}
    assert (await workflow.run(responses={"about-hue": "red"})).get_outputs() == ["hue: red"]


async def test_executors_without_a_state_in_it_are_left_as_they_are(storage: Storage) -> None:
    tally = Tally()
    tally.seen = [7]
    workflow = counting(storage, tally=tally)
    checkpoint = made(workflow, messages={"internal:tally": [WorkflowMessage(3, "internal:tally", "tally")]})
    await storage.save(checkpoint)
    assert (await workflow.run(checkpoint_id=checkpoint.checkpoint_id)).get_outputs() == [[7, 3]]


@pytest.mark.parametrize(
    ("state", "match"),
    [
        ({"_executor_state": {"nobody": {}}}, "'nobody'"),
        ({"_executor_state": {"tally": [1]}}, "'tally' must be a dict"),
        ({"_executor_state": {"tally": {1: 2}}}, "'tally' must be a dict with str keys"),
        ({"_executor_state": [1]}, "must be a dict"),
    ],
)
async def test_executor_states_that_make_no_sense_are_refused(
    storage: Storage, state: dict[str, Any], match: str
) -> None:
    workflow = counting(storage)
    checkpoint = made(workflow, state=state)
    await storage.save(checkpoint)
    with pytest.raises(WorkflowCheckpointException, match=match):
        await workflow.run(checkpoint_id=checkpoint.checkpoint_id)


async def test_one_for_another_graph_is_refused(storage: Storage) -> None:
    checkpoint = WorkflowCheckpoint("counting", "no such hash")
    await storage.save(checkpoint)
    with pytest.raises(IncompatibleGraphError, match=checkpoint.checkpoint_id):
        await counting(storage).run(checkpoint_id=checkpoint.checkpoint_id)


async def test_saving_the_same_again_is_fine_and_another_under_its_id_is_refused(storage: Storage) -> None:
    workflow = counting(storage)
    checkpoint = made(workflow, checkpoint_id="mine", timestamp="2030-01-01T00:00:00+00:00")
    await storage.save(checkpoint)
    await storage.save(checkpoint)
    other = made(workflow, checkpoint_id="mine", timestamp="2030-01-01T00:00:00+00:00", state={"x": 1})
    with pytest.raises(WorkflowCheckpointException, match="'mine'"):
        await storage.save(other)
    assert await storage.list_checkpoint_ids() == ["mine"]


async def test_what_it_holds_is_stored_as_it_was_when_it_was_saved(storage: Storage) -> None:
    state: dict[str, Any] = {"items": [1]}
    checkpoint = made(counting(storage), state=state)
    await storage.save(checkpoint)
    state["items"].append(2)
    assert (await storage.load(checkpoint.checkpoint_id)).state == {"items": [1]}


async def test_metadata_is_kept(storage: Storage) -> None:
    checkpoint = made(counting(storage), metadata={"author": "ada", "tags": ["a"]}, version="2.5")
    await storage.save(checkpoint)
    loaded = await storage.load(checkpoint.checkpoint_id)
    assert loaded.metadata == {"author": "ada", "tags": ["a"]}
    assert loaded.version == "2.5"


async def test_metadata_that_is_no_plain_data_is_refused_by_its_path(storage: Storage) -> None:
    checkpoint = made(counting(storage), metadata={"author": object()})
    with pytest.raises(EncodeError, match="metadata"):
        await storage.save(checkpoint)
    assert await storage.list_checkpoint_ids() == []


async def test_a_value_that_cannot_be_stored_is_refused_by_its_path(storage: Storage) -> None:
    with pytest.raises(EncodeError, match=r"\['state'\]\['x'\]"):
        await storage.save(made(counting(storage), state={"x": object()}))
    assert await storage.list_checkpoint_ids() == []


async def test_a_checkpoint_is_a_dataclass(storage: Storage) -> None:
    await counting(storage).run(1)
    (entry, *_) = await storage.list_checkpoints()
    names = [field.name for field in dataclasses.fields(entry)]
    assert names[:3] == ["workflow_name", "graph_signature_hash", "checkpoint_id"]
    assert dataclasses.asdict(entry)["iteration_count"] == 0
    changed = dataclasses.replace(made(counting(storage)), checkpoint_id="other")
    assert changed.checkpoint_id == "other"


async def test_a_loaded_checkpoint_that_was_changed_is_not_taken_for_the_stored_one(storage: Storage) -> None:
    await counting(storage).run(1)
    ids = await storage.list_checkpoint_ids()
    first = await storage.load(ids[1])
    first.state["last"] = 50
    with pytest.raises(WorkflowCheckpointException, match="checkpoints never change"):
        await storage.save(first)
    first.checkpoint_id = "mine"
    first.run_id = "mine"
    await storage.save(first)
    assert (await storage.load("mine")).state["last"] == 50
    assert (await storage.load(ids[1])).state["last"] == 1
    replaced = dataclasses.replace(await storage.load(ids[1]), checkpoint_id="other", run_id="other")
    await storage.save(replaced)
    assert (await counting(storage).run(checkpoint_id="other")).get_outputs() == [[1, 2, 3]]


async def test_a_copy_of_a_loaded_checkpoint_knows_no_storage(storage: Storage) -> None:
    await asking(storage).run(["hue"])
    (_, waiting) = await storage.list_checkpoints()
    for copied in (copy.deepcopy(waiting), pickle.loads(pickle.dumps(waiting))):
        assert copied.checkpoint_id == waiting.checkpoint_id
        assert copied.state == waiting.state
        assert list(copied.pending_request_info_events) == ["about-hue"]


async def test_a_message_of_it_that_nobody_can_take_is_refused(storage: Storage) -> None:
    workflow = uneven(storage)
    checkpoint = made(workflow, messages={"s": [WorkflowMessage(5, "s")]})
    await storage.save(checkpoint)
    with pytest.raises(WorkflowCheckpointException, match="'s' that can't be delivered"):
        await workflow.run(checkpoint_id=checkpoint.checkpoint_id)


async def test_the_documented_fields_alone_carry_what_a_fan_in_has_released(storage: Storage) -> None:
    await uneven(storage).run("x")
    gathered = (await storage.list_checkpoints())[3]
    again = WorkflowCheckpoint.from_dict(gathered.to_dict() | {"checkpoint_id": "mine", "run_id": "mine"})
    await storage.save(again)
    assert (await uneven(storage).run(checkpoint_id="mine")).get_outputs() == ["xs+xlm"]


async def test_a_loaded_checkpoint_can_be_changed_and_saved_as_another(storage: Storage) -> None:
    await counting(storage).run(1)
    (_, first, *_) = await storage.list_checkpoints()
    fields: dict[str, Any] = {**first.to_dict(), "checkpoint_id": "mine", "run_id": "mine"}
    fields["state"]["_executor_state"]["tally"]["seen"] = [50]
    await storage.save(WorkflowCheckpoint.from_dict(fields))
    assert (await counting(storage).run(checkpoint_id="mine")).get_outputs() == [[50, 2, 3]]
    assert (await counting(storage).run(checkpoint_id=first.checkpoint_id)).get_outputs() == [[1, 2, 3]]


def kinds(directory: Path) -> list[Storage]:
    return [
        InMemoryCheckpointStorage(),
        FileCheckpointStorage(directory / "copy"),
        SqliteCheckpointStorage(directory / "copy.db"),
    ]


async def test_a_run_that_was_carried_to_any_other_storage_goes_on_there_as_the_same_run(
    storage: Storage, tmp_path: Path
) -> None:
    source = nested(storage)
    await source.run(["hue", "mood"])
    await source.run(responses={"about-hue": "red"})
    run_id = source.run_id
    assert run_id is not None
    originals = await storage.list_checkpoints(run_id=run_id)
    ends: list[Any] = []
    for other in kinds(tmp_path):
        for checkpoint in originals:
            await other.save(checkpoint)
        clerk = Clerk()
        workflow = nested(other, clerk=clerk)
        assert [c.state for c in await other.list_checkpoints()] == [c.state for c in originals]
        result = await workflow.run(run_id=run_id, responses={"about-mood": "calm"})
        assert result.get_outputs() == ["heard mood: calm"]
        assert clerk.log == ["red", "calm"]
        (*_, last) = await other.list_checkpoints(run_id=run_id)
        ends.append((last.checkpoint_id, last.previous_checkpoint_id, last.iteration_count, last.state))
        await other.close()
    assert ends[0] == ends[1] == ends[2]
    await source.run(responses={"about-mood": "calm"})
    (*_, last) = await storage.list_checkpoints(run_id=run_id)
    assert ends[0] == (last.checkpoint_id, last.previous_checkpoint_id, last.iteration_count, last.state)


async def test_a_single_checkpoint_that_was_carried_elsewhere_goes_on_there(storage: Storage, tmp_path: Path) -> None:
    await counting(storage).run(1)
    originals = await storage.list_checkpoint_ids()
    second = await storage.load(originals[1])
    for other in kinds(tmp_path):
        await other.save(second)
        assert (await other.load(second.checkpoint_id)).to_dict() == second.to_dict()
        workflow = counting(other)
        assert (await workflow.run(checkpoint_id=second.checkpoint_id)).get_outputs() == [[1, 2, 3]]
        assert workflow.run_id == second.run_id
        assert await other.list_checkpoint_ids() == originals[1:]
        await other.close()


async def test_a_carried_run_asks_with_the_same_ids_as_the_original(storage: Storage) -> None:
    class Unsure(Executor):
        @handler
        async def go(self, text: str, ctx: WorkflowContext[int]) -> None:
            await ctx.send_message(len(text))

        @handler
        async def ask(self, number: int, ctx: WorkflowContext) -> None:
            await ctx.request_info(str(number), str)

    def build(where: Storage) -> Workflow:
        unsure = Unsure("unsure")
        builder = WorkflowBuilder(start_executor=unsure, name="unsure", checkpoint_storage=where)
        return builder.add_edge(unsure, unsure).build()

    original = requests(await build(storage).run("x", run_id="carried"))
    other = InMemoryCheckpointStorage()
    for checkpoint in (await storage.list_checkpoints())[:2]:
        await other.save(checkpoint)
    assert requests(await build(other).run(run_id="carried")) == original


async def test_a_carried_run_knows_its_first_message(storage: Storage) -> None:
    await counting(storage).run(1, run_id="order-17")
    other = InMemoryCheckpointStorage()
    for checkpoint in await storage.list_checkpoints():
        await other.save(checkpoint)
    assert (await counting(other).run(1, run_id="order-17")).get_outputs() == [[1, 2, 3]]


async def test_a_carried_checkpoint_is_saved_twice_as_once(storage: Storage) -> None:
    await counting(storage).run(1)
    other = InMemoryCheckpointStorage()
    for _ in range(2):
        for checkpoint in await storage.list_checkpoints():
            await other.save(checkpoint)
    assert await other.list_checkpoint_ids() == await storage.list_checkpoint_ids()
