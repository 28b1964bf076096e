"""Workflows: the builder, the workflow, its runs, sub-workflows, and workflows as agents."""
# pyright: reportUnusedImport=false

from perdure.engine import WorkflowInvocationKwargs
from perdure.workflows.as_agent.agent import WorkflowAgent
from perdure.workflows.as_agent.translation import REQUEST_INFO_FUNCTION_NAME, ResponseBuilder, answered_ids, to_plain
from perdure.workflows.builder import WorkflowBuilder
from perdure.workflows.run import Edit, Run, apply_edit, run_sync
from perdure.workflows.sub import SubWorkflowRequestMessage, SubWorkflowResponseMessage, WorkflowExecutor
from perdure.workflows.workflow import Workflow, WorkflowRunOptions, WorkflowRunResult
