"""An agent workflow as something else: an agent, a tool of an agent, a node of a graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from perdure import WorkflowExecutor
from perdure.agent_workflows.workflow_tool import CallableWorkflow

if TYPE_CHECKING:
    from perdure import FunctionTool, WorkflowAgent
    from perdure.agent_workflows.workflow_graph import Parts

    ApprovalMode = Literal["always_require", "never_require"]


def agent_of(parts: Parts, name: str | None, description: str | None) -> WorkflowAgent:
    """The workflow as an agent: each message to it is an execution, and its answer the final one."""
    graph = parts.graph("response", storage=parts.kept_in)
    return graph.as_agent(name or parts.name, description=description or parts.definition.description)


def tool_of(parts: Parts, name: str | None, description: str | None, approval_mode: ApprovalMode) -> FunctionTool:
    """The workflow as a tool with one argument, `input`."""
    agent = CallableWorkflow(
        lambda: agent_of(parts, name, description),
        name=name or parts.name,
        description=description or parts.definition.description,
    )
    return agent.as_tool(
        name=name,
        description=description,
        arg_name="input",
        arg_description="What the workflow is to work on",
        approval_mode=approval_mode,
    )


def executor_of(parts: Parts, executor_id: str) -> WorkflowExecutor:
    """The workflow as a node of a graph. What it asks is asked by the run around it, which also keeps it."""
    return WorkflowExecutor(parts.graph("text"), executor_id, propagate_request=True)
