"""Workflows that are written as functions: steps, questions and waits, in the order of the code."""

from typing import TYPE_CHECKING

from perdure.functional.context import RunContext, get_run_context
from perdure.functional.steps import StepWrapper, step
from perdure.functional.workflows import FunctionalWorkflow, workflow

if TYPE_CHECKING:
    from perdure.functional.agent import FunctionalWorkflowAgent

__all__ = [
    "FunctionalWorkflow",
    "FunctionalWorkflowAgent",
    "RunContext",
    "StepWrapper",
    "get_run_context",
    "step",
    "workflow",
]


def __getattr__(name: str) -> object:
    if name == "FunctionalWorkflowAgent":
        from perdure.functional.agent import FunctionalWorkflowAgent  # noqa: PLC0415 - loaded where there are agents

        return FunctionalWorkflowAgent
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
