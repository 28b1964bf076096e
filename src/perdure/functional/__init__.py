"""Workflows written as functions: `@workflow`, `@step`, questions and waits in the order of the code."""
# pyright: reportUnusedImport=false

from perdure.functional.agent import FunctionalWorkflowAgent
from perdure.functional.context import RunContext, get_run_context
from perdure.functional.step import StepWrapper, step
from perdure.functional.workflow import FunctionalWorkflow, FunctionalWorkflowDefinition, workflow
