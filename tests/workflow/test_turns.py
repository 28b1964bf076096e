"""One instance, one run, many turns."""

from typing import Any

import pytest
from tests.workflow.nodes import MaybeStorage, ending, live_and_checkpointed, passing, told

from perdure import Executor, InMemoryCheckpointStorage, RunExistsError, WorkflowBuilder, WorkflowContext, handler


class Counter(Executor):
    """Counts its messages in an attribute that its hooks save."""

    def __init__(self, id: str = "counter") -> None:  # noqa: A002 - as the base class has it
        super().__init__(id)
        self.n = 0

    @handler
    async def go(self, message: str, ctx: WorkflowContext[str, str]) -> None:
        self.n += 1
        await ctx.yield_output(f"{message}{self.n}")

    async def on_checkpoint_save(self) -> dict[str, Any]:
        return {"n": self.n}

    async def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        self.n = state["n"]


@live_and_checkpointed
async def test_a_fresh_message_is_the_next_turn_of_the_same_run(storage: MaybeStorage) -> None:
    workflow = WorkflowBuilder(start_executor=Counter(), checkpoint_storage=storage()).build()
    assert (await workflow.run("a")).get_outputs() == ["a1"]
    run_id = workflow.run_id
    assert (await workflow.run("b")).get_outputs() == ["b2"]
    assert workflow.run_id == run_id


@live_and_checkpointed
async def test_the_superstep_count_begins_again_with_each_turn(storage: MaybeStorage) -> None:
    a, b = passing("a"), ending("b")
    workflow = WorkflowBuilder(start_executor=a, checkpoint_storage=storage()).add_edge(a, b).build()
    await workflow.run(1)
    words = [word for word in told(await workflow.run(2)) if word.startswith("superstep_started")]
    assert words == ["superstep_started#1", "superstep_started#2"]


async def test_the_checkpoints_of_all_turns_are_one_chain() -> None:
    storage = InMemoryCheckpointStorage()
    workflow = WorkflowBuilder(start_executor=Counter(), checkpoint_storage=storage, name="w").build()
    await workflow.run("a")
    await workflow.run("b")
    checkpoints = await storage.list_checkpoints(workflow_name="w")
    ids = [checkpoint.checkpoint_id for checkpoint in checkpoints]
    assert [checkpoint.previous_checkpoint_id for checkpoint in checkpoints] == [None, *ids[:-1]]
    assert [checkpoint.iteration_count for checkpoint in checkpoints] == [0, 1, 0, 1]


@live_and_checkpointed
async def test_a_turn_tells_only_its_own_outputs(storage: MaybeStorage) -> None:
    workflow = WorkflowBuilder(start_executor=Counter(), checkpoint_storage=storage()).build()
    results = [(await workflow.run("x")).get_outputs() for _ in range(3)]
    assert results == [["x1"], ["x2"], ["x3"]]


@live_and_checkpointed
async def test_a_run_may_be_named_and_naming_it_again_with_its_first_input_attaches(storage: MaybeStorage) -> None:
    workflow = WorkflowBuilder(start_executor=Counter(), checkpoint_storage=storage()).build()
    assert (await workflow.run("a", run_id="r1")).get_outputs() == ["a1"]
    assert workflow.run_id == "r1"
    again = await workflow.run("a", run_id="r1")
    assert again.get_outputs() == ["a1"]
    assert [event.type for event in again if event.type == "executor_invoked"] == []


@live_and_checkpointed
async def test_naming_a_run_with_another_first_input_is_refused(storage: MaybeStorage) -> None:
    workflow = WorkflowBuilder(start_executor=Counter(), checkpoint_storage=storage()).build()
    await workflow.run("a", run_id="r1")
    with pytest.raises(RunExistsError, match="run 'r1' exists and started with another input"):
        await workflow.run("b", run_id="r1")
    assert (await workflow.run("c")).get_outputs() == ["c2"]


@live_and_checkpointed
async def test_another_name_is_another_run(storage: MaybeStorage) -> None:
    workflow = WorkflowBuilder(start_executor=Counter(), checkpoint_storage=storage()).build()
    await workflow.run("a", run_id="r1")
    await workflow.run("a", run_id="r2")
    assert workflow.run_id == "r2"


async def test_a_turn_continues_the_run_as_another_instance_left_it() -> None:
    storage = InMemoryCheckpointStorage()
    first, second = (
        WorkflowBuilder(name="counting", start_executor=Counter(), checkpoint_storage=storage).build() for _ in range(2)
    )
    await first.run("a", run_id="r")
    await second.run(run_id="r")
    assert (await second.run("b")).get_outputs() == ["b2"]
    assert (await first.run("c")).get_outputs() == ["c3"]


async def test_a_turn_after_its_run_was_deleted_stores_the_run_again() -> None:
    storage = InMemoryCheckpointStorage()
    workflow = WorkflowBuilder(start_executor=Counter(), checkpoint_storage=storage).build()
    await workflow.run("a", run_id="r")
    for checkpoint_id in reversed(await storage.list_checkpoint_ids()):
        await storage.delete(checkpoint_id)
    assert (await workflow.run("b")).get_outputs() == ["b2"]
    assert workflow.run_id == "r"
