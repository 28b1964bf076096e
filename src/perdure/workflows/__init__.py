"""The public objects: WorkflowBuilder, Workflow, Run, WorkflowExecutor, WorkflowAgent."""

from perdure.workflows.as_agent.agent import WorkflowAgent
from perdure.workflows.as_agent.translation import REQUEST_INFO_FUNCTION_NAME, Teller, answered_ids, plain
from perdure.workflows.builder import WorkflowBuilder
from perdure.workflows.run import Edit, Run, edited, run_sync
from perdure.workflows.sub import SubWorkflowRequestMessage, SubWorkflowResponseMessage, WorkflowExecutor
from perdure.workflows.workflow import Workflow, WorkflowRunResult, checked_budget

__all__ = [
    "REQUEST_INFO_FUNCTION_NAME",
    "Edit",
    "Run",
    "SubWorkflowRequestMessage",
    "SubWorkflowResponseMessage",
    "Teller",
    "Workflow",
    "WorkflowAgent",
    "WorkflowBuilder",
    "WorkflowExecutor",
    "WorkflowRunResult",
    "answered_ids",
    "checked_budget",
    "edited",
    "plain",
    "run_sync",
]
