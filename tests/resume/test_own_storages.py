"""Any object with the six methods is a storage, whatever it does to what it is given."""

from __future__ import annotations

import copy
import pickle
from typing import TYPE_CHECKING, Any

import pytest
from shapes import Breaking, Clerk, Tally, asking, breaking, counting, nested, requests, uneven
from tests.storages.many_keys import EXPECTED, half_way, keeping

from perdure import (
    AlreadyAnsweredError,
    CheckpointNotFoundError,
    CheckpointStorage,
    CheckpointWriteError,
    RunExistsError,
    WorkflowCheckpoint,
    WorkflowCheckpointException,
    WorkflowRunState,
)

if TYPE_CHECKING:
    from collections.abc import Sequence


class Dict:
    """Keeps the dicts of checkpoints, in a dict."""

    def __init__(self) -> None:
        self.kept: dict[str, Any] = {}

    def put(self, checkpoint: WorkflowCheckpoint) -> Any:
        return checkpoint.to_dict()

    def get(self, kept: Any) -> WorkflowCheckpoint:
        return WorkflowCheckpoint.from_dict(kept)

    async def save(self, checkpoint: WorkflowCheckpoint) -> str:
        self.kept[checkpoint.checkpoint_id] = self.put(checkpoint)
        return checkpoint.checkpoint_id

    async def load(self, checkpoint_id: str) -> WorkflowCheckpoint:
        return self.get(self.kept[checkpoint_id])

    async def list_checkpoints(self, *, workflow_name: str) -> Sequence[WorkflowCheckpoint]:
        every = [self.get(kept) for kept in self.kept.values()]
        # A storage promises no order.
        return [checkpoint for checkpoint in reversed(every) if checkpoint.workflow_name == workflow_name]

    async def delete(self, checkpoint_id: str) -> bool:
        return self.kept.pop(checkpoint_id, None) is not None

    async def get_latest(self, *, workflow_name: str) -> WorkflowCheckpoint | None:
        mine = await self.list_checkpoints(workflow_name=workflow_name)
        return max(mine, key=lambda checkpoint: checkpoint.timestamp, default=None)

    async def list_checkpoint_ids(self, *, workflow_name: str) -> Sequence[str]:
        return [c.checkpoint_id for c in await self.list_checkpoints(workflow_name=workflow_name)]


class Copying(Dict):
    """Keeps deep copies of the objects."""

    def put(self, checkpoint: WorkflowCheckpoint) -> Any:
        return copy.deepcopy(checkpoint)

    def get(self, kept: Any) -> WorkflowCheckpoint:
        return copy.deepcopy(kept)


class Pickling(Dict):
    """Keeps pickles."""

    def put(self, checkpoint: WorkflowCheckpoint) -> Any:
        return pickle.dumps(checkpoint)

    def get(self, kept: Any) -> WorkflowCheckpoint:
        return pickle.loads(kept)


class Careless(Dict):
    """Keeps the documented fields, and forgets the metadata."""

    def put(self, checkpoint: WorkflowCheckpoint) -> Any:
        fields = checkpoint.to_dict()
        return {**fields, "metadata": {}}


class Old(Dict):
    """Written before checkpoints had a run id."""

    def put(self, checkpoint: WorkflowCheckpoint) -> Any:
        fields = checkpoint.to_dict()
        del fields["metadata"], fields["run_id"]
        return fields


KINDS = [Dict, Copying, Pickling, Careless]


@pytest.fixture(params=KINDS)
def own(request: pytest.FixtureRequest) -> Dict:
    return request.param()


async def in_order(storage: Dict, name: str) -> list[WorkflowCheckpoint]:
    del name
    return [storage.get(kept) for kept in storage.kept.values()]


def test_they_are_storages(own: Dict) -> None:
    assert isinstance(own, CheckpointStorage)


async def test_a_run_writes_its_checkpoints_and_resumes_from_each(own: Dict) -> None:
    await counting(own).run(1)
    checkpoints = await in_order(own, "counting")
    assert [c.iteration_count for c in checkpoints] == [0, 1, 2, 3]
    assert checkpoints[1].state["last"] == 1
    assert checkpoints[1].state["_executor_state"] == {"tally": {"seen": [1]}}
    for checkpoint in checkpoints[:-1]:
        tally = Tally()
        result = await counting(own, tally=tally).run(checkpoint_id=checkpoint.checkpoint_id)
        assert result.get_outputs() == [[1, 2, 3]]


async def test_a_run_goes_on_from_its_id(own: Dict) -> None:
    node = Breaking(at=2)
    workflow = breaking(own, node=node)
    with pytest.raises(ArithmeticError):
        await workflow.run(1)
    assert workflow.run_id is not None
    result = await breaking(own, node=Breaking(at=0)).run(run_id=workflow.run_id)
    assert result.get_outputs() == [[1, 2, 3]]


async def test_requests_are_answered_one_by_one_by_one_instance_and_by_others(own: Dict) -> None:
    workflow = asking(own)
    await workflow.run(["a", "b", "c"])
    assert (await workflow.run(responses={"about-b": "B"})).get_outputs() == ["b: B"]
    assert workflow.run_id is not None
    clerk = Clerk()
    second = asking(own, clerk=clerk)
    assert list(requests(await second.run(run_id=workflow.run_id))) == ["about-a", "about-c"]
    await second.run(responses={"about-a": "A"})
    result = await asking(own).run(run_id=workflow.run_id, responses={"about-c": "C"})
    assert result.get_outputs() == ["c: C"]
    assert result.get_final_state() is WorkflowRunState.IDLE
    assert clerk.log == ["B", "A"]


async def test_a_second_turn_follows_the_first(own: Dict) -> None:
    workflow = counting(own, limit=2)
    await workflow.run(1)
    assert (await workflow.run(2)).get_outputs() == [[1, 2, 2]]
    checkpoints = await in_order(own, "counting")
    assert [c.iteration_count for c in checkpoints] == [0, 1, 2, 0, 1]
    assert [c.previous_checkpoint_id for c in checkpoints[1:]] == [c.checkpoint_id for c in checkpoints[:-1]]
    assert workflow.run_id is not None
    again = counting(own, limit=2)
    await again.run(run_id=workflow.run_id)
    assert (await again.run(2)).get_outputs() == [[1, 2, 2, 2]]


async def test_a_sub_workflow_resumes_where_all_is_kept() -> None:
    for storage in (Dict(), Copying(), Pickling()):
        workflow = nested(storage)
        await workflow.run(["hue"])
        assert workflow.run_id is not None
        clerk = Clerk()
        result = await nested(storage, clerk=clerk).run(run_id=workflow.run_id, responses={"about-hue": "red"})
        assert result.get_outputs() == ["heard hue: red"]
        assert clerk.log == ["red"]


async def test_what_a_fan_in_has_gathered_survives_where_all_is_kept() -> None:
    for storage in (Dict(), Copying(), Pickling()):
        await uneven(storage).run("x")
        for checkpoint in (await in_order(storage, "uneven"))[:-1]:
            resumed = await uneven(storage).run(checkpoint_id=checkpoint.checkpoint_id)
            assert resumed.get_outputs() == ["xs+xlm"]


async def test_a_finished_run_tells_its_outputs_again_where_all_is_kept() -> None:
    for storage in (Dict(), Copying(), Pickling()):
        workflow = counting(storage)
        await workflow.run(1)
        assert workflow.run_id is not None
        count = len(storage.kept)
        assert (await counting(storage).run(run_id=workflow.run_id)).get_outputs() == [[1, 2, 3]]
        assert len(storage.kept) == count


async def test_a_message_attaches_to_its_run_where_all_is_kept() -> None:
    for storage in (Dict(), Copying(), Pickling()):
        await counting(storage).run(1, run_id="order-17")
        assert (await counting(storage).run(1, run_id="order-17")).get_outputs() == [[1, 2, 3]]
        with pytest.raises(RunExistsError):
            await counting(storage).run(2, run_id="order-17")


async def test_an_answer_is_taken_once_where_all_is_kept() -> None:
    for storage in (Dict(), Copying(), Pickling()):
        workflow = asking(storage)
        await workflow.run(["a", "b"])
        assert workflow.run_id is not None
        await workflow.run(responses={"about-a": "A"})
        with pytest.raises(AlreadyAnsweredError):
            await asking(storage).run(run_id=workflow.run_id, responses={"about-a": "again"})


async def test_a_fork_leaves_its_source_alone_and_can_be_found_by_its_id(own: Dict) -> None:
    source = counting(own)
    await source.run(1)
    older = (await in_order(own, "counting"))[1]
    fork = counting(own, limit=4)
    assert (await fork.run(checkpoint_id=older.checkpoint_id)).get_outputs() == [[1, 2, 3, 4]]
    assert fork.run_id not in {None, source.run_id}
    assert (await source.run(3)).get_outputs() == [[1, 2, 3, 3]]
    assert fork.run_id is not None
    again = counting(own, limit=4)
    await again.run(run_id=fork.run_id)
    assert (await again.run(4)).get_outputs() == [[1, 2, 3, 4, 4]]


async def test_the_handle_forks_there_too(own: Dict) -> None:
    workflow = asking(own)
    run = workflow.start(["hue"])
    await run.result()
    fork = await run.fork()
    await fork
    await fork.respond({"about-hue": "blue"})
    assert (await fork.result()).get_outputs() == ["hue: blue"]
    await run.respond({"about-hue": "red"})
    assert "hue: red" in (await run.result()).get_outputs()


async def test_the_handle_cannot_rewind_there_and_says_so(own: Dict) -> None:
    run = counting(own).start(1)
    await run.result()
    (first, *_) = await in_order(own, "counting")
    with pytest.raises(WorkflowCheckpointException, match="use fork"):
        await run.restore(first.checkpoint_id)


async def test_an_unknown_checkpoint_is_named_though_the_storage_does_not(own: Dict) -> None:
    with pytest.raises(CheckpointNotFoundError, match="'nowhere'"):
        await counting(own).run(checkpoint_id="nowhere")


async def test_a_storage_that_raises_stops_the_run_with_the_reason() -> None:
    class Full(Dict):
        async def save(self, checkpoint: WorkflowCheckpoint) -> str:
            if checkpoint.iteration_count == 2:
                raise OSError("disk full")
            return await super().save(checkpoint)

    storage = Full()
    tally = Tally()
    with pytest.raises(CheckpointWriteError, match="OSError: disk full"):
        await counting(storage, tally=tally).run(1)
    assert tally.seen == [1]
    assert len(storage.kept) == 2


async def test_deleting_the_newest_checkpoint_steps_back_to_the_one_before(own: Dict) -> None:
    workflow = counting(own)
    await workflow.run(1)
    (_, _, third, newest) = await in_order(own, "counting")
    await own.delete(newest.checkpoint_id)
    assert workflow.run_id is not None
    again = counting(own)
    assert (await again.run(run_id=workflow.run_id)).get_outputs() == [[1, 2, 3]]
    (*_, last) = await in_order(own, "counting")
    assert last.previous_checkpoint_id == third.checkpoint_id


async def test_checkpoints_without_a_run_id_are_resumed_by_their_own() -> None:
    storage = Old()
    await asking(storage).run(["hue"])
    (*_, head) = await in_order(storage, "asking")
    result = await asking(storage).run(checkpoint_id=head.checkpoint_id, responses={"about-hue": "red"})
    assert result.get_outputs() == ["hue: red"]


async def test_the_public_fields_are_there_to_be_read(own: Dict) -> None:
    workflow = asking(own)
    await workflow.run(["hue"])
    (entry, waiting) = await in_order(own, "asking")
    assert entry.messages["internal:clerk"][0].data == ["hue"]
    assert list(waiting.pending_request_info_events) == ["about-hue"]
    assert waiting.graph_signature_hash == workflow.graph_signature_hash
    assert waiting.run_id == workflow.run_id
    assert waiting.previous_checkpoint_id == entry.checkpoint_id


async def test_what_is_no_storage_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match="list_checkpoint_ids"):
        await counting(object()).run(1)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("error", [KeyError("x"), LookupError("x"), FileNotFoundError("x")])
async def test_a_load_that_finds_nothing_means_that_there_is_no_such_checkpoint(error: Exception) -> None:
    class Empty(Dict):
        async def load(self, checkpoint_id: str) -> WorkflowCheckpoint:
            del checkpoint_id
            raise error

    with pytest.raises(CheckpointNotFoundError, match="'x@1'"):
        await counting(Empty()).run(checkpoint_id="x@1")


async def test_a_load_that_fails_is_told_with_its_reason() -> None:
    class Unreachable(Dict):
        async def load(self, checkpoint_id: str) -> WorkflowCheckpoint:
            del checkpoint_id
            raise ConnectionError("the database is away")

    with pytest.raises(WorkflowCheckpointException, match="'x@1': ConnectionError: the database is away") as caught:
        await counting(Unreachable()).run(checkpoint_id="x@1")
    assert not isinstance(caught.value, CheckpointNotFoundError)
    assert isinstance(caught.value.__cause__, ConnectionError)


async def test_a_long_table_of_contents_is_kept_whole() -> None:
    storage = Dict()
    await half_way(storage)
    assert (await keeping(storage).run(run_id="r")).get_outputs() == [EXPECTED]
    third = list(storage.kept)[2]
    assert (await keeping(storage).run(checkpoint_id=third)).get_outputs() == [EXPECTED]
