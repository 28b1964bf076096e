"""Workflows written as functions: `@workflow`, `@step`, questions and waits in the order of the code."""

from perdure.functional.agent import FunctionalWorkflowAgent
from perdure.functional.context import RunContext, get_run_context
from perdure.functional.step import StepWrapper, step
from perdure.functional.workflow import FunctionalWorkflow, FunctionalWorkflowDefinition, workflow

__all__ = [
    "FunctionalWorkflow",
    "FunctionalWorkflowAgent",
    "FunctionalWorkflowDefinition",
    "RunContext",
    "StepWrapper",
    "get_run_context",
    "step",
    "workflow",
]
