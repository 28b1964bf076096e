"""Agent workflows: agents as nodes, edges with conditions, and named inputs and outputs, in one fluent builder."""

from perdure.agent_workflows.builder import AgentWorkflowBuilder as AgentWorkflowBuilder
from perdure.agent_workflows.builder import NodeOptions as NodeOptions
from perdure.agent_workflows.definition import END as END
from perdure.agent_workflows.definition import START as START
from perdure.agent_workflows.definition import AgentConfig as AgentConfig
from perdure.agent_workflows.definition import And as And
from perdure.agent_workflows.definition import Approval as Approval
from perdure.agent_workflows.definition import AtLeast as AtLeast
from perdure.agent_workflows.definition import AtMost as AtMost
from perdure.agent_workflows.definition import Condition as Condition
from perdure.agent_workflows.definition import Contains as Contains
from perdure.agent_workflows.definition import ContainsAll as ContainsAll
from perdure.agent_workflows.definition import ContainsAny as ContainsAny
from perdure.agent_workflows.definition import Conversation as Conversation
from perdure.agent_workflows.definition import ConversationKind as ConversationKind
from perdure.agent_workflows.definition import ConversationPolicies as ConversationPolicies
from perdure.agent_workflows.definition import Definition as Definition
from perdure.agent_workflows.definition import DefinitionStore as DefinitionStore
from perdure.agent_workflows.definition import Edge as Edge
from perdure.agent_workflows.definition import EdgeContext as EdgeContext
from perdure.agent_workflows.definition import Empty as Empty
from perdure.agent_workflows.definition import EndsWith as EndsWith
from perdure.agent_workflows.definition import Equals as Equals
from perdure.agent_workflows.definition import ErrorMode as ErrorMode
from perdure.agent_workflows.definition import Exists as Exists
from perdure.agent_workflows.definition import Exported as Exported
from perdure.agent_workflows.definition import GreaterThan as GreaterThan
from perdure.agent_workflows.definition import Handoffs as Handoffs
from perdure.agent_workflows.definition import Iterations as Iterations
from perdure.agent_workflows.definition import LessThan as LessThan
from perdure.agent_workflows.definition import Matches as Matches
from perdure.agent_workflows.definition import Node as Node
from perdure.agent_workflows.definition import Not as Not
from perdure.agent_workflows.definition import NotEmpty as NotEmpty
from perdure.agent_workflows.definition import NotEquals as NotEquals
from perdure.agent_workflows.definition import NotExists as NotExists
from perdure.agent_workflows.definition import OnError as OnError
from perdure.agent_workflows.definition import Or as Or
from perdure.agent_workflows.definition import Output as Output
from perdure.agent_workflows.definition import Predicate as Predicate
from perdure.agent_workflows.definition import StartsWith as StartsWith
from perdure.agent_workflows.definition import StructuredOutput as StructuredOutput
from perdure.agent_workflows.definition import TextOutput as TextOutput
from perdure.agent_workflows.definition import UnionOutput as UnionOutput
from perdure.agent_workflows.definition import condition_of as condition_of
from perdure.agent_workflows.definition import fallback as fallback
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
from perdure.agent_workflows.messages import AgentWorkflowResult as AgentWorkflowResult
from perdure.agent_workflows.messages import ExecutionStatus as ExecutionState
from perdure.agent_workflows.messages import NodeApprovalRequest as NodeApprovalRequest
from perdure.agent_workflows.messages import NodeApprovalResponse as NodeApprovalResponse
from perdure.agent_workflows.stores import Keep as Keep
from perdure.agent_workflows.workflow.execution import RunOptions as RunOptions
from perdure.agent_workflows.workflow.workflow import AgentWorkflow as AgentWorkflow
from perdure.agent_workflows.workflow.workflow import GivenOptions as GivenOptions

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
