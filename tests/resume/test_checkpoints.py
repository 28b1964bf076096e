"""Checkpoints: when they are written, their fields, and their order."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from shapes import Tally, asking, commits, counting, types_of

from perdure import WorkflowBuilder, WorkflowCheckpoint

if TYPE_CHECKING:
    from collections.abc import Sequence

    from conftest import Storage


def counts(checkpoints: Sequence[WorkflowCheckpoint]) -> list[int]:
    return [checkpoint.iteration_count for checkpoint in checkpoints]


def assert_chain(checkpoints: Sequence[WorkflowCheckpoint], *, after: str | None = None) -> None:
    expected = [after, *(checkpoint.checkpoint_id for checkpoint in checkpoints[:-1])]
    assert [checkpoint.previous_checkpoint_id for checkpoint in checkpoints] == expected


async def test_a_run_of_n_supersteps_writes_n_plus_1_checkpoints_in_a_chain(storage: Storage) -> None:
    await counting(storage, limit=3).run(1)
    checkpoints = await storage.list_checkpoints(workflow_name="counting")
    assert counts(checkpoints) == [0, 1, 2, 3]
    assert_chain(checkpoints)


async def test_the_entry_checkpoint_holds_the_message_before_anybody_ran(storage: Storage) -> None:
    await counting(storage).run(1)
    entry, *_ = await storage.list_checkpoints(workflow_name="counting")
    (message,) = entry.messages["internal:tally"]
    assert (message.data, message.source_id, message.target_id) == (1, "internal:tally", "tally")
    assert entry.state["_executor_state"] == {"tally": {"seen": []}}
    assert "last" not in entry.state


async def test_a_superstep_checkpoint_holds_what_waits_for_the_next_superstep(storage: Storage) -> None:
    await counting(storage).run(1)
    _, first, *_, last = await storage.list_checkpoints(workflow_name="counting")
    (message,) = first.messages["tally"]
    assert (message.data, message.source_id, message.target_id) == (2, "tally", None)
    assert first.state["last"] == 1
    assert first.state["_executor_state"] == {"tally": {"seen": [1]}}
    assert last.messages == {}
    assert last.state["_executor_state"] == {"tally": {"seen": [1, 2, 3]}}


async def test_answers_are_checkpointed_before_they_are_handled(storage: Storage) -> None:
    workflow = asking(storage)
    await workflow.run(["hue", "mood"])
    waiting = await storage.get_latest(workflow_name="asking")
    assert waiting is not None
    await workflow.run(responses={"about-hue": "red"})
    entry, asked, response, handled = await storage.list_checkpoints(workflow_name="asking")
    assert counts([entry, asked, response, handled]) == [0, 1, 1, 2]
    assert asked.checkpoint_id == waiting.checkpoint_id
    assert_chain([entry, asked, response, handled])
    (message,) = response.messages["internal:clerk"]
    assert message.data == "red"
    assert message.original_request_info_event is not None
    assert message.original_request_info_event.request_id == "about-hue"
    assert list(asked.pending_request_info_events) == ["about-hue", "about-mood"]
    assert list(response.pending_request_info_events) == ["about-mood"]
    assert "hue" not in response.state
    assert handled.state["hue"] == "red"


async def test_a_second_turn_continues_the_chain_and_counts_anew(storage: Storage) -> None:
    workflow = counting(storage, limit=2)
    await workflow.run(1)
    await workflow.run(2)
    checkpoints = await storage.list_checkpoints(workflow_name="counting")
    assert counts(checkpoints) == [0, 1, 2, 0, 1]
    assert_chain(checkpoints)
    assert {checkpoint.run_id for checkpoint in checkpoints} == {workflow.run_id}
    assert checkpoints[3].state["last"] == 2
    assert checkpoints[-1].state["_executor_state"] == {"tally": {"seen": [1, 2, 2]}}


async def test_resuming_the_head_continues_its_chain_and_its_count(storage: Storage) -> None:
    await asking(storage).run(["hue"])
    waiting = await storage.get_latest(workflow_name="asking")
    assert waiting is not None
    await asking(storage).run(checkpoint_id=waiting.checkpoint_id, responses={"about-hue": "red"})
    checkpoints = await storage.list_checkpoints(workflow_name="asking")
    assert counts(checkpoints) == [0, 1, 1, 2]
    assert_chain(checkpoints)
    assert len({checkpoint.run_id for checkpoint in checkpoints}) == 1


async def test_resuming_an_older_checkpoint_branches_the_chain_there(storage: Storage) -> None:
    await counting(storage).run(1)
    before = await storage.list_checkpoints(workflow_name="counting")
    fork = counting(storage)
    await fork.run(checkpoint_id=before[1].checkpoint_id)
    after = await storage.list_checkpoints(workflow_name="counting")
    branch = after[len(before) :]
    assert counts(branch) == [2, 3]
    assert_chain(branch, after=before[1].checkpoint_id)
    assert {checkpoint.run_id for checkpoint in branch} == {fork.run_id}
    assert fork.run_id != before[0].run_id


async def test_each_commit_is_told_before_its_superstep_is_completed(storage: Storage) -> None:
    result = await counting(storage, limit=2).run(1)
    assert types_of(result) == [
        "checkpoint",
        "superstep_started",
        "executor_invoked",
        "executor_completed",
        "checkpoint",
        "superstep_completed",
        "superstep_started",
        "executor_invoked",
        "output",
        "executor_completed",
        "checkpoint",
        "superstep_completed",
    ]
    stored = await storage.list_checkpoints(workflow_name="counting")
    for told, checkpoint in zip(commits(result), stored, strict=True):
        assert told.checkpoint_id == checkpoint.checkpoint_id
        assert told.previous_checkpoint_id == checkpoint.previous_checkpoint_id
        assert told.run_id == checkpoint.run_id
        assert told.workflow_name == "counting"
        assert told.iteration_count == checkpoint.iteration_count
        assert told.timestamp == checkpoint.timestamp


async def test_a_checkpoint_has_the_documented_fields(storage: Storage) -> None:
    workflow = counting(storage)
    await workflow.run(1)
    checkpoint = await storage.get_latest(workflow_name="counting")
    assert checkpoint is not None
    assert checkpoint.workflow_name == "counting"
    assert checkpoint.graph_signature_hash == workflow.graph_signature_hash
    assert checkpoint.run_id == workflow.run_id
    assert checkpoint.metadata == {}
    assert checkpoint.version == "1.0"
    written = datetime.fromisoformat(checkpoint.timestamp)
    assert written.utcoffset() == timedelta(0)
    assert checkpoint.to_dict().keys() == {
        "workflow_name",
        "graph_signature_hash",
        "checkpoint_id",
        "run_id",
        "previous_checkpoint_id",
        "timestamp",
        "messages",
        "state",
        "pending_request_info_events",
        "iteration_count",
        "metadata",
        "version",
    }


async def test_a_checkpoint_is_what_its_dict_says(storage: Storage) -> None:
    workflow = asking(storage)
    await workflow.run(["hue"])
    checkpoint = await storage.get_latest(workflow_name="asking")
    assert checkpoint is not None
    again = WorkflowCheckpoint.from_dict(checkpoint.to_dict())
    assert again.to_dict() == checkpoint.to_dict()


async def test_time_that_runs_backwards_does_not_reorder_a_run(storage: Storage) -> None:
    class Backwards:
        def __init__(self) -> None:
            self.time = datetime(2030, 1, 1, tzinfo=UTC)
            self.ids = 0

        def now(self) -> datetime:
            self.time -= timedelta(minutes=1)
            return self.time

        def new_id(self) -> str:
            self.ids += 1
            return f"id-{self.ids}"

        async def sleep(self, seconds: float) -> None:
            raise AssertionError(f"nobody waits {seconds} seconds here")

    tally = Tally()
    builder = WorkflowBuilder(start_executor=tally, name="back", checkpoint_storage=storage, clock=Backwards())
    await builder.add_edge(tally, tally).build().run(1)
    checkpoints = await storage.list_checkpoints(workflow_name="back")
    assert counts(checkpoints) == [0, 1, 2, 3]
    latest = await storage.get_latest(workflow_name="back")
    assert latest is not None
    assert latest.checkpoint_id == checkpoints[-1].checkpoint_id
    stamps = [checkpoint.timestamp for checkpoint in checkpoints]
    assert stamps == sorted(stamps)


async def test_checkpoints_are_listed_in_commit_order_over_runs_and_workflows(storage: Storage) -> None:
    first, second, other = counting(storage, limit=1), counting(storage, limit=1), asking(storage)
    await first.run(1)
    await other.run(["hue"])
    await second.run(1)
    await first.run(1)
    listed = [(c.workflow_name, c.run_id, c.iteration_count) for c in await storage.list_checkpoints()]
    assert listed == [
        *(("counting", first.run_id, 0), ("counting", first.run_id, 1)),
        *(("asking", other.run_id, 0), ("asking", other.run_id, 1)),
        *(("counting", second.run_id, 0), ("counting", second.run_id, 1)),
        *(("counting", first.run_id, 0), ("counting", first.run_id, 1)),
    ]
    mine = await storage.list_checkpoints(run_id=first.run_id)
    assert counts(mine) == [0, 1, 0, 1]
    ids = await storage.list_checkpoint_ids(workflow_name="counting")
    assert ids == [c.checkpoint_id for c in await storage.list_checkpoints(workflow_name="counting")]


async def test_changing_what_a_checkpoint_hands_out_changes_nothing_stored(storage: Storage) -> None:
    await counting(storage).run(1)
    (_, first, *_) = await storage.list_checkpoints(workflow_name="counting")
    expected = (await storage.load(first.checkpoint_id)).to_dict()
    first.state["last"] = "spoilt"
    first.state["_executor_state"]["tally"]["seen"].append(99)
    first.messages["tally"][0].data = 99
    first.messages.clear()
    first.metadata["spoilt"] = True
    assert (await storage.load(first.checkpoint_id)).to_dict() == expected


async def test_two_restores_of_one_checkpoint_give_the_same(storage: Storage) -> None:
    await counting(storage).run(1)
    older = (await storage.list_checkpoints(workflow_name="counting"))[1]
    tally = Tally()
    workflow = counting(storage, tally=tally)
    first = await workflow.run(checkpoint_id=older.checkpoint_id)
    second = await workflow.run(checkpoint_id=older.checkpoint_id)
    assert first.get_outputs() == second.get_outputs() == [[1, 2, 3]]
    assert (await storage.load(older.checkpoint_id)).state["_executor_state"] == {"tally": {"seen": [1]}}


async def test_an_executor_that_keeps_what_it_was_restored_with_does_not_change_it(storage: Storage) -> None:
    class Hoarder(Tally):
        def on_checkpoint_restore(self, state: dict[str, Any]) -> Any:
            self.seen = state["seen"]
            self.seen.append(-1)

    await counting(storage).run(1)
    older = (await storage.list_checkpoints(workflow_name="counting"))[1]
    for _ in range(2):
        result = await counting(storage, tally=Hoarder()).run(checkpoint_id=older.checkpoint_id)
        assert result.get_outputs() == [[1, -1, 2, 3]]


async def test_a_message_that_is_changed_after_it_was_sent_is_stored_as_it_was_when_the_handler_ended(
    storage: Storage,
) -> None:
    result = await counting(storage, limit=1).run(1)
    (output,) = result.get_outputs()
    output.append("spoilt")
    again = await counting(storage, limit=1).run(run_id=commits(result)[0].run_id)
    assert again.get_outputs() == [[1]]


async def test_nothing_is_written_without_a_storage(storage: Storage) -> None:
    result = await counting(None).run(1)
    assert "checkpoint" not in types_of(result)
    assert await storage.list_checkpoints() == []


async def test_the_latest_of_a_workflow_without_checkpoints_is_none(storage: Storage) -> None:
    assert await storage.get_latest(workflow_name="unheard of") is None
    assert await storage.list_checkpoint_ids(workflow_name="unheard of") == []


@pytest.mark.parametrize("spoiler", [{"unknown": 1}, {}])
def test_a_dict_that_is_no_checkpoint_is_refused(spoiler: dict[str, Any]) -> None:
    with pytest.raises(Exception, match="is not a checkpoint"):
        WorkflowCheckpoint.from_dict(spoiler)
