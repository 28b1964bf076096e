"""Agent workflows: agents as nodes, edges with conditions, what each reads and writes, in one fluent builder.

Each name is loaded when it is first asked for.
"""

import importlib as _importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perdure.agent_workflows.agents import AgentConfig as AgentConfig
    from perdure.agent_workflows.approvals import NodeApprovalRequest as NodeApprovalRequest
    from perdure.agent_workflows.approvals import NodeApprovalResponse as NodeApprovalResponse
    from perdure.agent_workflows.builder import AgentWorkflowBuilder as AgentWorkflowBuilder
    from perdure.agent_workflows.builder_nodes import NodeOptions as NodeOptions
    from perdure.agent_workflows.builder_policies import ConversationPolicies as ConversationPolicies
    from perdure.agent_workflows.builder_policies import fallback as fallback
    from perdure.agent_workflows.conditions import And as And
    from perdure.agent_workflows.conditions import AtLeast as AtLeast
    from perdure.agent_workflows.conditions import AtMost as AtMost
    from perdure.agent_workflows.conditions import Condition as Condition
    from perdure.agent_workflows.conditions import Contains as Contains
    from perdure.agent_workflows.conditions import ContainsAll as ContainsAll
    from perdure.agent_workflows.conditions import ContainsAny as ContainsAny
    from perdure.agent_workflows.conditions import Empty as Empty
    from perdure.agent_workflows.conditions import EndsWith as EndsWith
    from perdure.agent_workflows.conditions import Equals as Equals
    from perdure.agent_workflows.conditions import Exists as Exists
    from perdure.agent_workflows.conditions import GreaterThan as GreaterThan
    from perdure.agent_workflows.conditions import LessThan as LessThan
    from perdure.agent_workflows.conditions import Matches as Matches
    from perdure.agent_workflows.conditions import Not as Not
    from perdure.agent_workflows.conditions import NotEmpty as NotEmpty
    from perdure.agent_workflows.conditions import NotEquals as NotEquals
    from perdure.agent_workflows.conditions import NotExists as NotExists
    from perdure.agent_workflows.conditions import Or as Or
    from perdure.agent_workflows.conditions import StartsWith as StartsWith
    from perdure.agent_workflows.conditions import condition_of as condition_of
    from perdure.agent_workflows.config import Exported as Exported
    from perdure.agent_workflows.config_given import GivenOptions as GivenOptions
    from perdure.agent_workflows.definition import END as END
    from perdure.agent_workflows.definition import START as START
    from perdure.agent_workflows.definition import Approval as Approval
    from perdure.agent_workflows.definition import Conversation as Conversation
    from perdure.agent_workflows.definition import ConversationKind as ConversationKind
    from perdure.agent_workflows.definition import Definition as Definition
    from perdure.agent_workflows.definition import Edge as Edge
    from perdure.agent_workflows.definition import EdgeContext as EdgeContext
    from perdure.agent_workflows.definition import ErrorMode as ErrorMode
    from perdure.agent_workflows.definition import Handoffs as Handoffs
    from perdure.agent_workflows.definition import Iterations as Iterations
    from perdure.agent_workflows.definition import Node as Node
    from perdure.agent_workflows.definition import OnError as OnError
    from perdure.agent_workflows.definition import Output as Output
    from perdure.agent_workflows.definition import Predicate as Predicate
    from perdure.agent_workflows.definition import StructuredOutput as StructuredOutput
    from perdure.agent_workflows.definition import TextOutput as TextOutput
    from perdure.agent_workflows.definition import UnionOutput as UnionOutput
    from perdure.agent_workflows.definition_store import DefinitionStore as DefinitionStore
    from perdure.agent_workflows.errors import AgentWorkflowBuildError as AgentWorkflowBuildError
    from perdure.agent_workflows.errors import AgentWorkflowError as AgentWorkflowError
    from perdure.agent_workflows.errors import ExecutionNotFoundError as ExecutionNotFoundError
    from perdure.agent_workflows.errors import IterationLimitError as IterationLimitError
    from perdure.agent_workflows.errors import MissingInputError as MissingInputError
    from perdure.agent_workflows.events import AgentWorkflowEvent as AgentWorkflowEvent
    from perdure.agent_workflows.events import WorkflowAgentCompletedEvent as WorkflowAgentCompletedEvent
    from perdure.agent_workflows.events import WorkflowAgentSkippedEvent as WorkflowAgentSkippedEvent
    from perdure.agent_workflows.events import WorkflowAgentStartedEvent as WorkflowAgentStartedEvent
    from perdure.agent_workflows.events import WorkflowCompletedEvent as WorkflowCompletedEvent
    from perdure.agent_workflows.events import WorkflowDiagnosticEvent as WorkflowDiagnosticEvent
    from perdure.agent_workflows.events import WorkflowEdgeTraversedEvent as WorkflowEdgeTraversedEvent
    from perdure.agent_workflows.events import WorkflowLayerCompletedEvent as WorkflowLayerCompletedEvent
    from perdure.agent_workflows.events import WorkflowLayerStartedEvent as WorkflowLayerStartedEvent
    from perdure.agent_workflows.events import WorkflowStartedEvent as WorkflowStartedEvent
    from perdure.agent_workflows.result import AgentWorkflowResult as AgentWorkflowResult
    from perdure.agent_workflows.result import ExecutionState as ExecutionState
    from perdure.agent_workflows.stores import Keep as Keep
    from perdure.agent_workflows.workflow import AgentWorkflow as AgentWorkflow
    from perdure.agent_workflows.workflow_running import RunOptions as RunOptions

_NAMES = {
    "agents": ("AgentConfig",),
    "approvals": (
        "NodeApprovalRequest",
        "NodeApprovalResponse",
    ),
    "builder": ("AgentWorkflowBuilder",),
    "builder_nodes": ("NodeOptions",),
    "builder_policies": (
        "ConversationPolicies",
        "fallback",
    ),
    "conditions": (
        "And",
        "AtLeast",
        "AtMost",
        "Condition",
        "Contains",
        "ContainsAll",
        "ContainsAny",
        "Empty",
        "EndsWith",
        "Equals",
        "Exists",
        "GreaterThan",
        "LessThan",
        "Matches",
        "Not",
        "NotEmpty",
        "NotEquals",
        "NotExists",
        "Or",
        "StartsWith",
        "condition_of",
    ),
    "config": ("Exported",),
    "config_given": ("GivenOptions",),
    "definition": (
        "END",
        "START",
        "Approval",
        "Conversation",
        "ConversationKind",
        "Definition",
        "Edge",
        "EdgeContext",
        "ErrorMode",
        "Handoffs",
        "Iterations",
        "Node",
        "OnError",
        "Output",
        "Predicate",
        "StructuredOutput",
        "TextOutput",
        "UnionOutput",
    ),
    "definition_store": ("DefinitionStore",),
    "errors": (
        "AgentWorkflowBuildError",
        "AgentWorkflowError",
        "ExecutionNotFoundError",
        "IterationLimitError",
        "MissingInputError",
    ),
    "events": (
        "AgentWorkflowEvent",
        "WorkflowAgentCompletedEvent",
        "WorkflowAgentSkippedEvent",
        "WorkflowAgentStartedEvent",
        "WorkflowCompletedEvent",
        "WorkflowDiagnosticEvent",
        "WorkflowEdgeTraversedEvent",
        "WorkflowLayerCompletedEvent",
        "WorkflowLayerStartedEvent",
        "WorkflowStartedEvent",
    ),
    "result": (
        "AgentWorkflowResult",
        "ExecutionState",
    ),
    "stores": ("Keep",),
    "workflow": ("AgentWorkflow",),
    "workflow_running": ("RunOptions",),
}

_HOMES = {name: module for module, names in _NAMES.items() for name in names}

__all__ = [
    "END",
    "START",
    "AgentConfig",
    "AgentWorkflow",
    "AgentWorkflowBuildError",
    "AgentWorkflowBuilder",
    "AgentWorkflowError",
    "AgentWorkflowEvent",
    "AgentWorkflowResult",
    "And",
    "Approval",
    "AtLeast",
    "AtMost",
    "Condition",
    "Contains",
    "ContainsAll",
    "ContainsAny",
    "Conversation",
    "ConversationKind",
    "ConversationPolicies",
    "Definition",
    "DefinitionStore",
    "Edge",
    "EdgeContext",
    "Empty",
    "EndsWith",
    "Equals",
    "ErrorMode",
    "ExecutionNotFoundError",
    "ExecutionState",
    "Exists",
    "Exported",
    "GivenOptions",
    "GreaterThan",
    "Handoffs",
    "IterationLimitError",
    "Iterations",
    "Keep",
    "LessThan",
    "Matches",
    "MissingInputError",
    "Node",
    "NodeApprovalRequest",
    "NodeApprovalResponse",
    "NodeOptions",
    "Not",
    "NotEmpty",
    "NotEquals",
    "NotExists",
    "OnError",
    "Or",
    "Output",
    "Predicate",
    "RunOptions",
    "StartsWith",
    "StructuredOutput",
    "TextOutput",
    "UnionOutput",
    "WorkflowAgentCompletedEvent",
    "WorkflowAgentSkippedEvent",
    "WorkflowAgentStartedEvent",
    "WorkflowCompletedEvent",
    "WorkflowDiagnosticEvent",
    "WorkflowEdgeTraversedEvent",
    "WorkflowLayerCompletedEvent",
    "WorkflowLayerStartedEvent",
    "WorkflowStartedEvent",
    "condition_of",
    "fallback",
]


def __getattr__(name: str) -> object:
    if name in _HOMES:
        # Only what is listed here; nothing that comes from outside is ever imported by its name.
        value = getattr(_importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)  # noqa: TID251
        globals()[name] = value  # From now on it is found without this function.
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
