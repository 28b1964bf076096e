"""An agent workflow as the agent of a node: each execution has an inner workflow of its own."""

from __future__ import annotations

import asyncio
import gc
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from tests.agent_workflows.building import Cast, review, writers

from perdure import Agent, SqliteCheckpointStorage, WorkflowBuilder
from perdure.agent_workflows import (
    AgentWorkflow,
    AgentWorkflowBuilder,
    AgentWorkflowBuildError,
    Approval,
    NodeApprovalRequest,
)
from perdure.agent_workflows.conductor.conductor import Conductor
from perdure.testing import ScriptedChatClient, ToolCall
from perdure.testing.clock import ManualClock

if TYPE_CHECKING:
    from pathlib import Path

    from perdure import WorkflowAgent


def around(*inner: AgentWorkflow | WorkflowAgent) -> AgentWorkflowBuilder:
    """A workflow of nodes that are workflows, one after the other."""
    builder = AgentWorkflow.create().with_name("Around")
    for number, each in enumerate(inner):
        builder.add_agent(f"n{number}", each)
        if number:
            builder.from_(f"n{number - 1}").to(f"n{number}")
    return builder


@pytest.mark.parametrize("is_agent", [True, False])
async def test_executions_go_on_at_once_though_a_node_is_a_workflow(is_agent: bool) -> None:  # noqa: FBT001
    inner = review(writers()).build()
    workflow = around(inner.as_agent() if is_agent else inner).build()
    results = await asyncio.gather(*(workflow.run(topic) for topic in ("lamps", "tables", "chairs")))
    assert [each.final_answer for each in results] == [
        f"A draft of {topic}, reviewed" for topic in ("lamps", "tables", "chairs")
    ]


async def test_one_workflow_may_be_several_nodes() -> None:
    inner = review(writers()).build()
    result = await around(inner, inner).build().run("lamps")
    assert result.final_answer == "A draft of A draft of lamps, reviewed, reviewed"


async def test_a_workflow_that_is_a_node_is_given_anew_with_a_definition() -> None:
    inner = review(writers()).build()
    config = around(inner).build().to_config()
    assert (await AgentWorkflow.from_config(config, agents={"n0": inner}).build().run("lamps")).success


async def test_what_a_workflow_asks_as_a_node_is_answered_in_another_life(tmp_path: Path) -> None:
    def life(cast: Cast, storage: SqliteCheckpointStorage) -> AgentWorkflow:
        inner = AgentWorkflow.create().with_name("Inner").add_agent("draft", cast["drafter"], approval=True).build()
        return around(inner).with_workflow_store(storage).with_checkpointing().build()

    first, second = writers(), writers()
    async with SqliteCheckpointStorage(tmp_path / "runs.db") as storage:
        waiting = await life(first, storage).run("lamps", execution_id="e")
        [request_id] = waiting.requests
        approved = {request_id: NodeApprovalRequest.approve()}
        ended = await life(second, storage).resume("e", responses=approved)
    assert ended.final_answer == "A draft of lamps"
    assert (first.asked, second.asked) == (["drafter"], [])


def test_what_can_never_run_is_not_built() -> None:
    cast = Cast(worker=lambda _messages, _options: "done")
    agent = WorkflowBuilder(name="inner", start_executor=cast["worker"]).build().as_agent("inner")
    with pytest.raises(AgentWorkflowBuildError, match=r"no execution can begin: .*are the same executor"):
        around(agent, agent).build()


@pytest.mark.parametrize("is_kept", [True, False])
async def test_a_tool_that_waits_is_held_in_the_process_only_if_no_store_keeps_it(
    tmp_path: Path,
    is_kept: bool,  # noqa: FBT001
) -> None:
    builder = AgentWorkflow.create().with_name("Review").add_agent("draft", writers()["drafter"], approval=True)
    if is_kept:
        builder.with_checkpointing().with_sqlite_workflow_store(tmp_path / "runs.db")
    tool = builder.build().as_tool(approval_mode="never_require")
    client = ScriptedChatClient([ToolCall("Review", input="lamps"), "Done."])
    editor = Agent(client, name="editor", tools=[tool])
    session, before = editor.create_session(), conductors()
    [request] = (await editor.run("go", session=session)).user_input_requests
    assert conductors() - before == (0 if is_kept else 1)
    await editor.run(request.to_function_approval_response(approved=True), session=session)
    assert client.calls[-1].messages[-1].contents[0].result == "A draft of lamps"
    assert conductors() == before


def conductors() -> int:
    """Count the workflows in memory."""
    gc.collect()
    return sum(isinstance(each, Conductor) for each in gc.get_objects())


@pytest.mark.parametrize("depth", [1, 2])
async def test_the_time_for_an_approval_inside_is_looked_at_from_outside(depth: int) -> None:
    clock = ManualClock()
    asking = AgentWorkflowBuilder(clock=clock).with_name("Asking")
    approval = Approval("May it?", timeout=timedelta(hours=1))
    inner = asking.add_agent("draft", writers()["drafter"], approval=approval).build()
    for number in range(depth):
        builder = AgentWorkflowBuilder(clock=clock).with_name(f"Around {number}").add_agent("n", inner)
        inner = builder.with_in_memory_workflow_store().with_checkpointing().build()
    waiting = await inner.run("lamps", execution_id="e")
    assert waiting.is_waiting
    clock.advance(timedelta(hours=2))
    result = await inner.resume("e")
    assert result.final_answer == "'draft' was denied: nobody has approved it in time"
