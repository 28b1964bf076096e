"""Messages that find no taker are told, or are an error if the workflow says so."""

import threading
from typing import Any

import pytest
from tests.workflow.nodes import MaybeStorage, ending, live_and_checkpointed, passing, read, sending, told

from perdure import (
    Case,
    Default,
    InMemoryCheckpointStorage,
    UndeliveredError,
    UndeliveredMessage,
    WorkflowBuilder,
    WorkflowRunState,
)


async def lost(builder: WorkflowBuilder) -> list[UndeliveredMessage]:
    events = [event for event in await builder.build().run(0) if event.type == "undelivered"]
    assert all(event.executor_id == event.data.source_id for event in events)
    return [event.data for event in events]


async def test_a_message_to_an_executor_that_is_not_connected_is_told() -> None:
    a, b, c = sending("a", "hello", target_id="c"), passing("b"), ending("c")
    (message,) = await lost(WorkflowBuilder(start_executor=a).add_edge(a, b).add_edge(b, c))
    assert (message.message, message.source_id, message.target_id) == ("hello", "a", "c")
    assert message.reason == "executor 'c' is not connected to 'a'"


async def test_a_message_to_an_executor_that_does_not_exist_is_told() -> None:
    a = sending("a", "hello", target_id="nobody")
    (message,) = await lost(WorkflowBuilder(start_executor=a))
    assert message.reason == "executor 'nobody' is not connected to 'a'"


async def test_a_message_to_an_executor_that_can_not_take_it_is_told() -> None:
    a, b, c = sending("a", "hello", target_id="b"), ending("b", takes=int), ending("c", takes=str)
    (message,) = await lost(WorkflowBuilder(start_executor=a).add_edge(a, b).add_edge(a, c))
    assert message.reason == "a str can't be handled by 'b'"


async def test_a_message_that_no_target_can_take_is_told_once() -> None:
    a, b, c, d = sending("a", 1.5), ending("b", takes=int), ending("c", takes=str), ending("d", takes=bytes)
    builder = WorkflowBuilder(start_executor=a).add_edge(a, b).add_fan_out_edges(a, [c, d])
    (message,) = await lost(builder)
    assert message.reason == "a float can't be handled by 'b', 'c', 'd'"


async def test_a_message_that_one_target_takes_is_not_lost() -> None:
    a, b, c = sending("a", 1), ending("b", takes=int), ending("c", takes=str)
    assert await lost(WorkflowBuilder(start_executor=a).add_fan_out_edges(a, [b, c])) == []


async def test_a_message_that_the_default_of_a_switch_can_not_take_is_told() -> None:
    a, b, c = sending("a", 1.5), ending("b", takes=int), ending("c", takes=str)
    builder = WorkflowBuilder(start_executor=a).add_switch_case_edge_group(a, [Case(lambda _: True, b), Default(c)])
    (message,) = await lost(builder)
    assert "'c'" in message.reason


async def test_no_edge_a_false_condition_and_an_empty_selection_are_no_losses() -> None:
    a = sending("a", 1)
    assert await lost(WorkflowBuilder(start_executor=a)) == []
    a, b = sending("a", 1), ending("b")
    assert await lost(WorkflowBuilder(start_executor=a).add_edge(a, b, lambda _: False)) == []
    a, b, c = sending("a", 1), ending("b"), ending("c")
    assert (
        await lost(WorkflowBuilder(start_executor=a).add_multi_selection_edge_group(a, [b, c], lambda _, __: [])) == []
    )


async def test_a_selection_without_the_named_target_is_no_loss() -> None:
    a, b, c = sending("a", 1, target_id="c"), ending("b"), ending("c")
    builder = WorkflowBuilder(start_executor=a).add_multi_selection_edge_group(a, [b, c], lambda _, __: ["b"])
    assert await lost(builder) == []


@live_and_checkpointed
async def test_a_strict_workflow_fails_with_the_reason(storage: MaybeStorage) -> None:
    a, b = sending("a", "text"), ending("b", takes=int)
    workflow = (
        WorkflowBuilder(start_executor=a, undelivered="error", checkpoint_storage=storage()).add_edge(a, b).build()
    )
    events, error = await read(workflow.run(0, stream=True))
    assert isinstance(error, UndeliveredError)
    assert (error.source_id, error.target_id) == ("a", None)
    assert "a str can't be handled by 'b'" in str(error)
    assert told(events)[-2:] == ["failed", "FAILED"]
    assert "superstep_completed#1" not in told(events)


async def test_the_event_is_told_in_the_superstep_of_the_sender_before_its_end() -> None:
    a, b = sending("a", "text"), ending("b", takes=int)
    events, error = await read(WorkflowBuilder(start_executor=a).add_edge(a, b).build().run(0, stream=True))
    assert error is None
    words = told(events)
    assert words[words.index("executor_completed(a)") + 1 :] == ["undelivered(a)", "superstep_completed#1", "IDLE"]


@pytest.mark.parametrize("message", [None, 0, "", [], False])
async def test_a_message_that_is_falsy_is_lost_or_delivered_like_any_other(message: Any) -> None:
    a, b = sending("a", message), ending("b", takes=dict)
    (missed,) = await lost(WorkflowBuilder(start_executor=a).add_edge(a, b))
    assert missed.message is message
    a, b = sending("a", message), ending("b")
    result = await WorkflowBuilder(start_executor=a).add_edge(a, b).build().run(0)
    assert result.get_outputs() == [message]


async def test_a_message_of_an_executor_without_edges_is_not_stored() -> None:
    workflow = WorkflowBuilder(start_executor=sending("a", threading.Lock())).build()
    result = await workflow.run(0, checkpoint_storage=InMemoryCheckpointStorage())
    assert result.get_final_state() is WorkflowRunState.IDLE
