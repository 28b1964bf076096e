"""Workflows: the builder, the workflow, its runs, sub-workflows, and workflows as agents."""

from perdure.engine import WorkflowInvocationKwargs
from perdure.workflows.as_agent.agent import WorkflowAgent
from perdure.workflows.as_agent.translation import REQUEST_INFO_FUNCTION_NAME, ResponseBuilder, answered_ids, to_plain
from perdure.workflows.builder import WorkflowBuilder
from perdure.workflows.run import Edit, Run, apply_edit, run_sync
from perdure.workflows.sub import SubWorkflowRequestMessage, SubWorkflowResponseMessage, WorkflowExecutor
from perdure.workflows.workflow import Workflow, WorkflowRunOptions, WorkflowRunResult

__all__ = [
    "REQUEST_INFO_FUNCTION_NAME",
    "Edit",
    "ResponseBuilder",
    "Run",
    "SubWorkflowRequestMessage",
    "SubWorkflowResponseMessage",
    "Workflow",
    "WorkflowAgent",
    "WorkflowBuilder",
    "WorkflowExecutor",
    "WorkflowInvocationKwargs",
    "WorkflowRunOptions",
    "WorkflowRunResult",
    "answered_ids",
    "apply_edit",
    "run_sync",
    "to_plain",
]
