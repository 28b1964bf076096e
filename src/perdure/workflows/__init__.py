"""The public objects: WorkflowBuilder, Workflow, Run, WorkflowExecutor, WorkflowAgent."""

from perdure.workflows.agent import WorkflowAgent
from perdure.workflows.agent_requests import REQUEST_INFO_FUNCTION_NAME, answered_ids, plain
from perdure.workflows.agent_telling import Teller
from perdure.workflows.blocking import run_sync
from perdure.workflows.builder import WorkflowBuilder
from perdure.workflows.edit import Edit, edited
from perdure.workflows.result import WorkflowRunResult
from perdure.workflows.run import Run
from perdure.workflows.sub import SubWorkflowRequestMessage, SubWorkflowResponseMessage, WorkflowExecutor
from perdure.workflows.workflow import Workflow, checked_budget

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
