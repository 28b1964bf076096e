"""Errors of agent workflows, beside those of every workflow.

AgentWorkflowError             (a WorkflowException)
├── AgentWorkflowBuildError    the definition is wrong; it lists all problems
├── MissingInputError          a node reads a value that no node has written
├── IterationLimitError        a loop reached its limit
└── ExecutionNotFoundError     the store of the workflow has no such execution
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure import WorkflowException

if TYPE_CHECKING:
    from collections.abc import Sequence


class AgentWorkflowError(WorkflowException):
    """An agent workflow, or a call of it, is wrong."""


class AgentWorkflowBuildError(AgentWorkflowError, ValueError):
    """A definition is wrong. `problems` has all problems, and the message lists them."""

    def __init__(self, problems: Sequence[str] | str) -> None:
        """Take one or several problem texts."""
        self.problems: tuple[str, ...] = (problems,) if isinstance(problems, str) else tuple(problems)
        if len(self.problems) == 1:
            super().__init__(f"this agent workflow can't be built: {self.problems[0]}")
        else:
            lines = "".join(f"\n- {problem}" for problem in self.problems)
            super().__init__(
                f"this agent workflow can't be built, {len(self.problems)} things are wrong with it:{lines}"
            )


class MissingInputError(AgentWorkflowError):
    """A node reads a value that no node has written in this execution."""


class IterationLimitError(AgentWorkflowError):
    """A loop reached its limit. Resume the execution with a larger limit to continue it."""


class ExecutionNotFoundError(AgentWorkflowError):
    """The store has no such execution of this workflow."""

    def __init__(self, workflow_name: str, execution_id: str | None, *, reason: str) -> None:
        """Name the workflow and the execution, and give the message as `reason`."""
        self.workflow_name = workflow_name
        self.execution_id = execution_id
        super().__init__(reason)
