"""Versions of definitions: saved whenever an execution begins, and never by a resume."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.agent_workflows.building import Cast, review, writers

from perdure import Agent, Host, InMemoryCheckpointStorage, WorkflowBuilder
from perdure.agent_workflows import (
    AgentWorkflow,
    AgentWorkflowError,
    DefinitionStore,
    ExecutionNotFoundError,
    NodeApprovalRequest,
    WorkflowStartedEvent,
)
from perdure.testing import ScriptedChatClient, ToolCall

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from perdure import CheckpointStorage


def kept(storage: CheckpointStorage) -> AgentWorkflow:
    return review(writers()).with_checkpointing().with_workflow_store(storage).build()


async def versions_begun_with(workflow: AgentWorkflow, execution_id: str) -> list[int | None]:
    events = [event.data async for event in workflow.events(execution_id)]
    return [data.version for data in events if isinstance(data, WorkflowStartedEvent)]


async def begun_by_a_host(workflow: AgentWorkflow, storage: InMemoryCheckpointStorage) -> None:
    host = Host(storage)
    host.register(workflow.as_workflow)
    async with host:
        await (await host.start("Review", "lamps")).result()


async def begun_as_an_agent(workflow: AgentWorkflow, _: object) -> None:
    await workflow.as_agent().run("lamps")


async def begun_as_a_tool(workflow: AgentWorkflow, _: object) -> None:
    client = ScriptedChatClient([ToolCall("Review", input="lamps"), "Done."])
    await Agent(client, name="editor", tools=[workflow.as_tool(approval_mode="never_require")]).run("go")


async def begun_as_a_node(workflow: AgentWorkflow, _: object) -> None:
    await WorkflowBuilder(start_executor=workflow.as_executor("review")).build().run("lamps")


@pytest.mark.parametrize("begin", [begun_by_a_host, begun_as_an_agent, begun_as_a_tool, begun_as_a_node])
async def test_a_definition_is_kept_however_an_execution_begins(
    begin: Callable[[AgentWorkflow, InMemoryCheckpointStorage], Awaitable[None]],
) -> None:
    storage = InMemoryCheckpointStorage()
    await begin(kept(storage), storage)
    assert await DefinitionStore(storage).versions("Review") == [1]


async def test_going_on_keeps_no_definition(storage: CheckpointStorage) -> None:
    cast = writers()
    first = (
        AgentWorkflow.create()
        .with_name("Review")
        .with_checkpointing()
        .with_workflow_store(storage)
        .add_agent("draft", cast["drafter"], approval=True)
        .add_agent("review", cast["reviewer"])
        .from_("draft")
        .to("review")
    )
    [request_id] = (await first.build().run("lamps", execution_id="one")).requests
    changed = first.add_agent("print", cast["reviewer"]).from_("review").to("print").build()
    with pytest.raises(ExecutionNotFoundError):
        await changed.resume("nobody")
    with pytest.raises(AgentWorkflowError, match="have changed"):
        await changed.resume("one", responses={request_id: NodeApprovalRequest.approve()})
    definitions = DefinitionStore(storage)
    assert await definitions.versions("Review") == [1]
    await changed.run("tables", execution_id="two")
    assert await definitions.versions("Review") == [1, 2]
    assert await definitions.versions("nobody's") == []
    assert [await versions_begun_with(changed, each) for each in ("one", "two")] == [[1], [2]]


async def test_an_execution_without_a_store_has_no_version() -> None:
    cast = Cast(drafter=["A draft"], reviewer=["good"])
    stream = review(cast).build().run("lamps", stream=True)
    [version] = [event.data.version async for event in stream if event.type == "workflow_started"]
    assert version is None
