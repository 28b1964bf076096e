"""An agent workflow as something else: an agent, a tool of an agent, a node of a graph."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from perdure import InMemoryCheckpointStorage, WorkflowAgent, WorkflowExecutor
from perdure.agent_workflows.workflow_tool import CallableWorkflow

if TYPE_CHECKING:
    from perdure import CheckpointStorage, FunctionTool
    from perdure.agent_workflows.workflow_graph import Parts

    ApprovalMode = Literal["always_require", "never_require"]


class AgentOfWorkflow(WorkflowAgent):
    """An agent workflow as an agent."""

    def __init__(
        self,
        parts: Parts,
        name: str | None,
        description: str | None,
        *,
        storage: CheckpointStorage | None = None,
        id: str | None = None,  # noqa: A002 - the documented name
    ) -> None:
        super().__init__(
            parts.graph("response", storage=storage, author_name=name),
            id=id,
            name=name or parts.name,
            description=description or parts.definition.description,
        )
        self._as_callable = partial(callable_of, parts, name, description)
        self._again = partial(AgentOfWorkflow, parts, name, description, id=self.id)

    def twin(self) -> AgentOfWorkflow:
        """The same agent with executors of its own, for one more run around it, which keeps what it does."""
        return self._again()

    def as_tool(self, **options: Any) -> FunctionTool:
        """The agent as a tool of another one. In a workflow it is part of the run around it."""
        return self._as_callable().as_tool(**options)


def agent_of(
    parts: Parts, name: str | None, description: str | None, *, storage: CheckpointStorage | None = None
) -> WorkflowAgent:
    """The workflow as an agent: each message to it is an execution, and its answer the final one."""
    return AgentOfWorkflow(parts, name, description, storage=storage)


def callable_of(parts: Parts, name: str | None, description: str | None) -> CallableWorkflow:
    """The workflow as an agent that can be a tool."""
    return CallableWorkflow(
        # In a run that is kept nowhere it still needs a place of its own, where what it asks waits for the answer.
        lambda: agent_of(parts, name, description, storage=parts.kept_in or InMemoryCheckpointStorage()),
        lambda: agent_of(parts, name, description),
        name=name or parts.name,
        description=description or parts.definition.description,
        is_kept=parts.kept_in is not None,
    )


def tool_of(parts: Parts, name: str | None, description: str | None, approval_mode: ApprovalMode) -> FunctionTool:
    """The workflow as a tool with one argument, `input`."""
    return callable_of(parts, name, description).as_tool(
        name=name,
        description=description,
        arg_name="input",
        arg_description="What the workflow is to work on",
        approval_mode=approval_mode,
    )


def executor_of(parts: Parts, executor_id: str) -> WorkflowExecutor:
    """The workflow as a node of a graph. What it asks is asked by the run around it, which also keeps it."""
    return WorkflowExecutor(parts.graph("text"), executor_id, propagate_request=True)
