"""Executions: results, live events, and stored data."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from tests.agent_workflows.building import Cast, review, writers

from perdure import ChatClientException, InMemoryCheckpointStorage, Message, Retry, RunExistsError
from perdure.agent_workflows import (
    END,
    START,
    AgentConfig,
    AgentWorkflow,
    AgentWorkflowBuildError,
    AgentWorkflowError,
    DefinitionStore,
    WorkflowAgentCompletedEvent,
    WorkflowCompletedEvent,
    WorkflowStartedEvent,
)
from perdure.testing.clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from perdure import WorkflowEvent


async def test_an_execution_has_an_answer_and_the_outputs_of_all_nodes() -> None:
    result = await review(writers()).build().run("lamps")
    assert (result.success, result.state, result.error) == (True, "completed", None)
    assert result.final_answer == str(result) == "A draft of lamps, reviewed"
    assert result.outputs == {"draft.draft": "A draft of lamps", "review.answer": "A draft of lamps, reviewed"}


@pytest.mark.parametrize(
    "request_", ["lamps", Message("user", ["lamps"]), ["lamps"], [Message("user", ["lamps"])]], ids=type
)
async def test_a_request_is_a_text_a_message_or_several(request_: Any) -> None:
    assert (await review(writers()).build().run(request_)).final_answer == "A draft of lamps, reviewed"


async def test_a_request_may_be_values_that_nodes_read_by_name() -> None:
    cast = writers()
    workflow = AgentWorkflow.create().add_agent("a", cast["drafter"], template="{{input.count}} {{input.what}}").build()
    assert (await workflow.run({"count": 3, "what": "lamps"})).final_answer == "A draft of 3 lamps"


async def test_each_run_is_an_execution_of_its_own_and_several_go_on_at_once() -> None:
    workflow = review(writers()).with_checkpointing().with_in_memory_workflow_store().build()
    results = await asyncio.gather(*[workflow.run(f"lamp {number}") for number in range(5)])
    assert [result.final_answer for result in results] == [f"A draft of lamp {number}, reviewed" for number in range(5)]
    assert len({result.execution_id for result in results}) == 5
    assert {info.run_id for info in await workflow.executions()} == {result.execution_id for result in results}


async def test_the_same_id_with_the_same_input_is_the_same_execution() -> None:
    cast = writers()
    workflow = review(cast).with_checkpointing().with_in_memory_workflow_store().build()
    first = await workflow.run("lamps", execution_id="one")
    again = await workflow.run("lamps", execution_id="one")
    assert first.execution_id == "one"
    assert first == again
    assert cast.asked == ["drafter", "reviewer"]
    with pytest.raises(RunExistsError):
        await workflow.run("tables", execution_id="one")


async def test_a_stream_tells_what_happens_and_ends_in_the_result() -> None:
    stream = review(writers()).build().run("lamps", execution_id="one", stream=True)
    events = [event async for event in stream]
    result = await stream.get_final_response()
    assert result.final_answer == "A draft of lamps, reviewed"
    told = [event.type for event in events if event.type.startswith(("workflow_", "agent_", "layer_", "edge_"))]
    assert told[0] == "workflow_started"
    assert told[-1] == "workflow_completed"
    assert [event.data.node_id for event in events if event.type == "agent_started"] == ["draft", "review"]
    said = [event for event in events if event.type == "intermediate" and event.executor_id == "draft"]
    assert "".join(event.data.text for event in said) == "A draft of lamps"
    [begun] = [event.data for event in events if event.type == "workflow_started"]
    assert begun == WorkflowStartedEvent("Review", "one", node_count=2, layer_count=2)


async def test_subscribers_are_told_of_what_they_asked_for_and_one_that_fails_breaks_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    workflow = review(writers()).build()
    told: list[str] = []
    all_of_it: list[WorkflowEvent[Any]] = []

    async def completed(event: WorkflowAgentCompletedEvent) -> None:
        await asyncio.sleep(0)
        told.append(event.node_id)

    def broken(_: WorkflowCompletedEvent) -> None:
        raise ValueError("not my day")

    end = workflow.subscribe(WorkflowAgentCompletedEvent, completed)
    workflow.subscribe(WorkflowCompletedEvent, broken)
    workflow.subscribe_any(all_of_it.append)
    assert (await workflow.run("lamps")).success
    assert told == ["draft", "review"]
    assert {"started", "agent_started", "output", "workflow_completed"} <= {event.type for event in all_of_it}
    assert "a subscriber of an agent workflow failed" in caplog.text
    end()
    await workflow.run("tables")
    assert told == ["draft", "review"]


async def test_a_node_that_stops_the_execution_is_told_to_have_failed() -> None:
    cast = Cast(drafter=[ChatClientException("no model today")], reviewer=["never"])
    workflow = review(cast).build()
    failed: list[WorkflowAgentCompletedEvent] = []
    workflow.subscribe(WorkflowAgentCompletedEvent, failed.append)
    types: list[str] = []
    workflow.subscribe_any(lambda event: types.append(event.type))
    with pytest.raises(ChatClientException, match="no model today"):
        await workflow.run("lamps")
    [event] = failed
    assert (event.node_id, event.success, event.error) == ("draft", False, "ChatClientException: no model today")
    assert (event.progress, event.iteration, event.fallback_for) == (0.5, 0, None)
    assert types.index("agent_completed") < types.index("failed")


async def test_a_node_that_succeeds_after_all_is_not_told_to_have_failed() -> None:
    cast = Cast(drafter=[ChatClientException("once"), "A draft"], reviewer=[ChatClientException("no reviewer")])
    workflow = (
        AgentWorkflow.create()
        .add_agent("draft", cast["drafter"], retry=Retry(2, backoff=0))
        .add_agent("review", cast["reviewer"])
        .from_("draft")
        .to("review")
        .build()
    )
    told: list[tuple[str, bool]] = []
    workflow.subscribe(WorkflowAgentCompletedEvent, lambda event: told.append((event.node_id, event.success)))
    with pytest.raises(ChatClientException, match="no reviewer"):
        await workflow.run("lamps")
    assert told == [("draft", True), ("review", False)]


async def test_the_limit_of_the_engine_is_not_what_ends_a_loop() -> None:
    schema = {"type": "object", "properties": {"count": {"type": "integer"}}}
    loop = (
        AgentWorkflow.create()
        .with_max_iterations(200)
        .add_agent("next", Cast(next=_counted)["next"], template="{{next.count?}}", structured_output=schema)
        .from_(START)
        .to("next")
        .from_("next")
        .to("next")
        .when_less_than("count", 80)
        .to(END)
        .as_default()
        .build()
    )
    assert (await loop.run("go")).outputs["next.count"] == 80


def _counted(messages: Sequence[Message], _: Mapping[str, Any]) -> dict[str, Any]:
    return {"count": int(messages[-1].text or "0") + 1}


async def test_an_execution_whose_time_is_up_is_cancelled_and_goes_on_when_it_gets_more() -> None:
    forever = asyncio.Event()
    slow = True

    async def draft(*_: object) -> str:
        if slow:
            await forever.wait()
        return "at last"

    cast = Cast(drafter=draft, reviewer=["good"])
    builder = review(cast).with_timeout(timedelta(milliseconds=50))
    workflow = builder.with_checkpointing().with_in_memory_workflow_store().build()
    result = await workflow.run("lamps")
    assert (result.success, result.state) == (False, "cancelled")
    assert "its time was up" in (result.error or "")
    slow = False
    resumed = await workflow.resume(result.execution_id, timeout=timedelta(hours=1))
    assert (resumed.success, resumed.final_answer) == (True, "good")


async def test_the_time_of_an_execution_counts_from_where_it_began() -> None:
    clock = ManualClock()
    cast = writers()
    workflow = (
        AgentWorkflow.create(clock=clock)
        .with_name("Review")
        .with_timeout(timedelta(hours=1))
        .with_checkpointing()
        .with_workflow_store(InMemoryCheckpointStorage(clock=clock))
        .add_agent("draft", cast["drafter"], approval=True)
        .build()
    )
    assert (await workflow.run("lamps", execution_id="one")).state == "waiting"
    clock.advance(timedelta(minutes=40))
    assert (await workflow.run("lamps", execution_id="one")).state == "waiting"
    clock.advance(timedelta(minutes=40))
    assert (await workflow.run("lamps", execution_id="one")).state == "cancelled"


async def test_options_that_there_are_not_are_refused() -> None:
    workflow = review(writers()).build()
    wrong: Any = {"time_out": 3}
    with pytest.raises(TypeError, match="time_out"):
        await workflow.run("lamps", **wrong)


async def test_without_checkpointing_a_store_keeps_definitions_and_no_executions() -> None:
    storage = InMemoryCheckpointStorage()
    workflow = review(writers()).with_workflow_store(storage).build()
    await workflow.run("lamps")
    assert await storage.list_checkpoints() == []
    assert await DefinitionStore(storage).names() == ["Review"]
    with pytest.raises(AgentWorkflowError, match="keeps no executions, and executions"):
        await workflow.executions()


async def test_a_definition_is_kept_when_an_execution_begins_and_found_by_its_name(tmp_path: Path) -> None:
    def built(instructions: str) -> AgentWorkflow:
        return (
            AgentWorkflow.create()
            .with_name("Lamps")
            .with_chat_client(Cast(only=["Lamps last."]).client)
            .with_sqlite_workflow_store(tmp_path / "workflows.db")
            .add_agent("only", AgentConfig(instructions=instructions))
            .build()
        )

    for instructions in ("Be brief.", "Be brief.", "Be long."):
        await built(instructions).run("lamps")
    cast = Cast(only=["Lamps last."])
    url = f"sqlite:///{tmp_path / 'workflows.db'}"
    newest = await AgentWorkflow.load(url, "Lamps", client=cast.client)
    first = await AgentWorkflow.load(url, "Lamps", version=1, client=cast.client)
    assert [cast_config(each) for each in (newest, first)] == ["Be long.", "Be brief."]
    assert (await newest.run("lamps", execution_id="one")).final_answer == "Lamps last."
    assert [info.run_id for info in await newest.executions()] == ["one"]
    with pytest.raises(AgentWorkflowError, match="versions are 1 to 2"):
        await AgentWorkflow.load(url, "Lamps", version=3, client=cast.client)


def cast_config(workflow: AgentWorkflow) -> str | None:
    [node] = workflow.definition.nodes
    assert isinstance(node.agent, AgentConfig)
    return node.agent.instructions


async def test_a_definition_goes_to_json_and_back(tmp_path: Path) -> None:
    cast = Cast(draft=["Lamps last."], review=["Good."])
    workflow = (
        AgentWorkflow.create()
        .with_name("Review")
        .with_chat_client(cast.client)
        .add_agent("draft", AgentConfig(), output_key="draft")
        .add_agent("review", AgentConfig(), input_key="draft")
        .from_("draft")
        .to("review")
        .when_not_empty("draft")
        .build()
    )
    text = workflow.to_json()
    path = tmp_path / "review.json"
    path.write_text(text, encoding="utf-8")
    exported = workflow.to_config()
    assert exported.left_out == ()
    for builder in (
        AgentWorkflow.from_json(text, client=cast.client),
        AgentWorkflow.from_json(path, client=cast.client),
        AgentWorkflow.from_json(str(path), client=cast.client),
        AgentWorkflow.from_config(exported, client=cast.client),
        AgentWorkflow.from_config(exported.config, client=cast.client),
    ):
        again = builder.build()
        assert again.definition == workflow.definition
        assert (await again.run("lamps")).final_answer == "Good."
    assert "draft" in workflow.to_mermaid()
    assert AgentWorkflow.config_schema()["type"] == "object"


def test_what_is_no_definition_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AgentWorkflowBuildError, match="this is not JSON"):
        AgentWorkflow.from_json("{not json")
    with pytest.raises(AgentWorkflowBuildError, match="can't be read: No such file"):
        AgentWorkflow.from_json(tmp_path / "nowhere.json")
    with pytest.raises(AgentWorkflowBuildError, match="agents"):
        AgentWorkflow.from_json(json.dumps({"name": "Review", "agents": 3}))


def test_a_workflow_says_what_it_is() -> None:
    workflow = review(writers()).build()
    assert repr(workflow) == "AgentWorkflow('Review', nodes=['draft', 'review'])"
    assert (workflow.storage, workflow.session_store) == (None, None)
