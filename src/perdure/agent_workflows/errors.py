"""What can go wrong with an agent workflow, beside what can with every workflow.

AgentWorkflowError             (a WorkflowException)
├── AgentWorkflowBuildError    the definition does not make sense; it says all that is wrong at once
├── MissingInputError          a node is to read what nobody has written
├── IterationLimitError        a loop was not left within its limit
└── ExecutionNotFoundError     there is no such execution in the store of the workflow
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure import WorkflowException

if TYPE_CHECKING:
    from collections.abc import Sequence


class AgentWorkflowError(WorkflowException):
    """Something is wrong with an agent workflow, or with how it is used."""


class AgentWorkflowBuildError(AgentWorkflowError, ValueError):
    """A definition does not make sense. `problems` are all that were found, and the text lists them."""

    def __init__(self, problems: Sequence[str] | str) -> None:
        """Name all that is wrong: problems, or one of them."""
        self.problems: tuple[str, ...] = (problems,) if isinstance(problems, str) else tuple(problems)
        super().__init__(_listed(self.problems))


class MissingInputError(AgentWorkflowError):
    """A node is to read a value that nobody has written in this execution."""


class IterationLimitError(AgentWorkflowError):
    """A loop has come to its limit. The execution goes on when it is resumed with a larger one."""


class ExecutionNotFoundError(AgentWorkflowError):
    """There is no such execution of this workflow, or none at all."""

    def __init__(self, workflow_name: str, execution_id: str | None, *, reason: str) -> None:
        """Say what was looked for, and why it was not found."""
        self.workflow_name = workflow_name
        self.execution_id = execution_id
        super().__init__(reason)


def _listed(problems: tuple[str, ...]) -> str:
    if len(problems) == 1:
        return f"this agent workflow can't be built: {problems[0]}"
    lines = "".join(f"\n- {problem}" for problem in problems)
    return f"this agent workflow can't be built, {len(problems)} things are wrong with it:{lines}"
