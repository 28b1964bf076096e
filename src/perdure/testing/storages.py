"""Conformance tests of a checkpoint storage. Needs pytest.

    class TestMyStorage(StorageConformance):
        def open_storage(self, directory):
            return MyStorage(directory)

`open_storage` opens the storage of one test.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from perdure.checkpoint import WorkflowCheckpoint
from perdure.errors import WorkflowCheckpointException
from perdure.events import WorkflowRunState
from perdure.graph import Executor, WorkflowContext, handler, response_handler
from perdure.testing.stores.base import AsyncSuite
from perdure.workflows import Workflow, WorkflowBuilder

if TYPE_CHECKING:
    from pathlib import Path

    from perdure.storage import CheckpointStorage


@dataclass
class Basket:
    """A message with a user's type."""

    items: list[str]
    prices: dict[int, float] = field(default_factory=dict[int, float])


class Shop(Executor):
    """Takes three rounds, counts them, and asks a question before it ends."""

    def __init__(self) -> None:
        super().__init__(id="shop")
        self._rounds = 0

    @handler
    async def serve(self, basket: Basket, ctx: WorkflowContext[Basket]) -> None:
        """Add an item in each round."""
        self._rounds += 1
        basket.items.append(f"item {self._rounds}")
        basket.prices[self._rounds] = self._rounds * 1.5
        ctx.set_state("rounds", self._rounds)
        if self._rounds < 3:
            await ctx.send_message(basket)
        else:
            await ctx.request_info(basket, bool)

    @response_handler
    async def pay(self, basket: Basket, paid: bool, ctx: WorkflowContext[Basket, str]) -> None:  # noqa: FBT001 - an answer
        """End the workflow."""
        await ctx.yield_output(f"{', '.join(basket.items)}; {sum(basket.prices.values())}; paid: {paid}")

    async def on_checkpoint_save(self) -> dict[str, Any]:
        """Return the number of rounds."""
        return {"rounds": self._rounds}

    async def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        """Restore the number of rounds."""
        self._rounds = state["rounds"]


def shop(storage: CheckpointStorage) -> Workflow:
    """Return a workflow whose checkpoints contain every kind of data."""
    node = Shop()
    return WorkflowBuilder(name="shop", start_executor=node, checkpoint_storage=storage).add_edge(node, node).build()


class StorageConformance(AsyncSuite):
    """Subclass it and define `open_storage`; pytest runs all tests."""

    def open_storage(self, directory: Path) -> CheckpointStorage:
        """Open a storage in a directory. The same directory must open the same storage, if it is persistent."""
        raise TypeError(f"{type(self).__name__} must say how to open its storage in {directory}: define open_storage")

    @pytest.fixture
    def storage(self, tmp_path: Path) -> CheckpointStorage:
        """The storage of one test."""
        return self.open_storage(tmp_path)

    async def test_saved_checkpoint_is_loaded_with_all_fields(self, storage: CheckpointStorage) -> None:
        """Compare all fields."""
        saved = WorkflowCheckpoint("flow", "hash", state={"total": 3, "names": ["a", "b"]}, iteration_count=2)
        assert await storage.save(saved) == saved.checkpoint_id
        loaded = await storage.load(saved.checkpoint_id)
        assert loaded.workflow_name == "flow"
        assert loaded.graph_signature_hash == "hash"
        assert loaded.checkpoint_id == saved.checkpoint_id
        assert loaded.state == {"total": 3, "names": ["a", "b"]}
        assert loaded.iteration_count == 2

    async def test_unknown_checkpoint_is_an_error(self, storage: CheckpointStorage) -> None:
        """Loading must raise, and never return None."""
        with pytest.raises(WorkflowCheckpointException):
            await storage.load("nobody")

    async def test_only_checkpoints_of_the_workflow_are_listed(self, storage: CheckpointStorage) -> None:
        """List by workflow name."""
        mine = [await storage.save(WorkflowCheckpoint("mine", "h", checkpoint_id=f"mine-{n}")) for n in range(3)]
        await storage.save(WorkflowCheckpoint("other", "h", checkpoint_id="other-0"))
        listed = await storage.list_checkpoints(workflow_name="mine")
        assert sorted(checkpoint.checkpoint_id for checkpoint in listed) == sorted(mine)
        assert sorted(await storage.list_checkpoint_ids(workflow_name="mine")) == sorted(mine)

    async def test_deleted_checkpoint_is_gone(self, storage: CheckpointStorage) -> None:
        """A second deletion returns False."""
        checkpoint_id = await storage.save(WorkflowCheckpoint("flow", "h"))
        assert await storage.delete(checkpoint_id) is True
        assert await storage.delete(checkpoint_id) is False
        assert list(await storage.list_checkpoint_ids(workflow_name="flow")) == []
        with pytest.raises(WorkflowCheckpointException):
            await storage.load(checkpoint_id)

    async def test_empty_storage_has_no_latest_checkpoint(self, storage: CheckpointStorage) -> None:
        """The result is None, not an error."""
        assert await storage.get_latest(workflow_name="flow") is None

    async def test_latest_checkpoint_is_that_of_the_last_superstep(self, storage: CheckpointStorage) -> None:
        """Only checkpoints of the given workflow count."""
        await shop(storage).run(Basket([]))
        await storage.save(WorkflowCheckpoint("other", "h"))
        latest = await storage.get_latest(workflow_name="shop")
        assert latest is not None
        assert (latest.iteration_count, len(await storage.list_checkpoints(workflow_name="shop"))) == (3, 4)

    async def test_changes_of_saved_and_loaded_objects_do_not_reach_the_storage(
        self, storage: CheckpointStorage
    ) -> None:
        """Change saved and loaded objects, and load again."""
        names = ["a"]
        checkpoint_id = await storage.save(WorkflowCheckpoint("flow", "h", state={"names": names}))
        names.append("b")
        loaded = await storage.load(checkpoint_id)
        loaded.state["names"].append("c")
        assert (await storage.load(checkpoint_id)).state["names"] == ["a"]

    async def test_every_checkpoint_of_a_run_leads_to_the_same_end(self, storage: CheckpointStorage) -> None:
        """Run a workflow to its question, then resume it from each checkpoint with a new instance."""
        await shop(storage).run(Basket(["bag"]))
        ids = list(await storage.list_checkpoint_ids(workflow_name="shop"))
        ends = [await _to_the_end(storage, checkpoint_id) for checkpoint_id in ids]
        assert ends == [["bag, item 1, item 2, item 3; 9.0; paid: True"]] * 4


async def _to_the_end(storage: CheckpointStorage, checkpoint_id: str) -> list[Any]:
    workflow = shop(storage)
    waiting = await workflow.run(checkpoint_id=checkpoint_id)
    assert waiting.get_final_state() is WorkflowRunState.IDLE_WITH_PENDING_REQUESTS
    [request] = waiting.get_request_info_events()
    return (await workflow.run(responses={request.request_id: True})).get_outputs()
