"""Agent workflows: agents as nodes, edges with conditions, and named inputs and outputs, in one fluent builder."""

from perdure.agent_workflows.builder import AgentWorkflowBuilder as AgentWorkflowBuilder, NodeOptions as NodeOptions
from perdure.agent_workflows.definition.conditions import (
    And as And,
    AtLeast as AtLeast,
    AtMost as AtMost,
    Condition as Condition,
    Contains as Contains,
    ContainsAll as ContainsAll,
    ContainsAny as ContainsAny,
    Empty as Empty,
    EndsWith as EndsWith,
    Equals as Equals,
    Exists as Exists,
    GreaterThan as GreaterThan,
    LessThan as LessThan,
    Matches as Matches,
    Not as Not,
    NotEmpty as NotEmpty,
    NotEquals as NotEquals,
    NotExists as NotExists,
    Or as Or,
    StartsWith as StartsWith,
    condition_of as condition_of,
)
from perdure.agent_workflows.definition.document import Exported as Exported
from perdure.agent_workflows.definition.values import (
    END as END,
    START as START,
    AgentConfig as AgentConfig,
    Approval as Approval,
    Conversation as Conversation,
    ConversationKind as ConversationKind,
    ConversationPolicies as ConversationPolicies,
    Definition as Definition,
    Edge as Edge,
    EdgeContext as EdgeContext,
    ErrorMode as ErrorMode,
    Handoffs as Handoffs,
    Iterations as Iterations,
    Node as Node,
    OnError as OnError,
    Output as Output,
    Predicate as Predicate,
    StructuredOutput as StructuredOutput,
    TextOutput as TextOutput,
    UnionOutput as UnionOutput,
    fallback as fallback,
)
from perdure.agent_workflows.errors import (
    AgentWorkflowBuildError as AgentWorkflowBuildError,
    AgentWorkflowError as AgentWorkflowError,
    ExecutionNotFoundError as ExecutionNotFoundError,
    IterationLimitError as IterationLimitError,
    MissingInputError as MissingInputError,
)
from perdure.agent_workflows.execution import RunOptions as RunOptions
from perdure.agent_workflows.messages import (
    AgentWorkflowEvent as AgentWorkflowEvent,
    AgentWorkflowResult as AgentWorkflowResult,
    ExecutionState as ExecutionState,
    NodeApprovalRequest as NodeApprovalRequest,
    NodeApprovalResponse as NodeApprovalResponse,
    WorkflowAgentCompletedEvent as WorkflowAgentCompletedEvent,
    WorkflowAgentSkippedEvent as WorkflowAgentSkippedEvent,
    WorkflowAgentStartedEvent as WorkflowAgentStartedEvent,
    WorkflowCompletedEvent as WorkflowCompletedEvent,
    WorkflowDiagnosticEvent as WorkflowDiagnosticEvent,
    WorkflowEdgeTraversedEvent as WorkflowEdgeTraversedEvent,
    WorkflowLayerCompletedEvent as WorkflowLayerCompletedEvent,
    WorkflowLayerStartedEvent as WorkflowLayerStartedEvent,
    WorkflowStartedEvent as WorkflowStartedEvent,
)
from perdure.agent_workflows.stores import DefinitionStore as DefinitionStore, Keep as Keep
from perdure.agent_workflows.workflow import AgentWorkflow as AgentWorkflow, GivenOptions as GivenOptions
