# The public names as type checkers see them. `__init__.py` has the same list, and loads them when they are used.

from perdure.agent_errors import (
    AdditionItemMismatch,
    AgentException,
    AgentInvalidRequestException,
    AgentInvalidResponseException,
    ChatClientException,
    ChatClientInvalidAuthException,
    ChatClientInvalidRequestException,
    ChatClientInvalidResponseException,
    ContentError,
    MiddlewareException,
    MiddlewareTermination,
    OptionsError,
    ResponseValueError,
    ToolException,
    ToolExecutionException,
    UserInputRequiredException,
)
from perdure.agents.agent import Agent, BaseAgent, SupportsAgentRun
from perdure.agents.clients import BaseChatClient, prepend_instructions_to_messages
from perdure.agents.compaction import CompactionStrategy, TokenizerProtocol
from perdure.agents.content import Content, ContentType, UsageDetails, add_usage_details
from perdure.agents.contexts import AgentContext, AgentMiddleware, ChatContext, ChatMiddleware, FunctionMiddleware
from perdure.agents.executor import AgentExecutor
from perdure.agents.executor_messages import AgentExecutorRequest, AgentExecutorResponse, resolve_agent_id
from perdure.agents.history import HistoryProvider, InMemoryHistoryProvider
from perdure.agents.invocation import FunctionInvocationLayer
from perdure.agents.invocation_settings import (
    FunctionInvocationConfiguration,
    normalize_function_invocation_configuration,
)
from perdure.agents.layers import SupportsChatGetResponse
from perdure.agents.messages import AgentRunInputs, Message, Role, RoleLiteral, normalize_messages
from perdure.agents.middleware import ChatMiddlewareLayer
from perdure.agents.middleware_kinds import MiddlewareTypes, agent_middleware, chat_middleware, function_middleware
from perdure.agents.options import (
    ChatOptions,
    ToolMode,
    merge_chat_options,
    validate_chat_options,
    validate_tool_mode,
)
from perdure.agents.providers import ContextProvider, SessionContext
from perdure.agents.responses import AgentResponse, AgentResponseUpdate, ChatResponse, ChatResponseUpdate
from perdure.agents.session_state import register_state_type
from perdure.agents.sessions import AgentSession
from perdure.agents.telemetry import ChatTelemetryLayer
from perdure.agents.tool_context import FunctionInvocationContext
from perdure.agents.tool_results import SKIP_PARSING
from perdure.agents.tools import FunctionTool, ToolTypes, normalize_tools, tool
from perdure.checkpoint.compat import CompatibilityReport
from perdure.checkpoint.record import WorkflowCheckpoint
from perdure.checkpoint.size_limits import SizeLimits
from perdure.checkpoint.steps import InterruptedStep, StepDecision
from perdure.checkpoint.trust import register_type
from perdure.clock import Clock, SystemClock
from perdure.errors import (
    AgentFrameworkException,
    AlreadyAnsweredError,
    AnswerTypeError,
    ApprovalMismatchError,
    BudgetExceededError,
    CheckpointDamagedError,
    CheckpointNotFoundError,
    CheckpointWriteError,
    ClaimLostError,
    CommandWaitsError,
    EdgeDuplicationError,
    EncodeError,
    EventsForgottenError,
    ExecutorTimeoutError,
    GraphConnectivityError,
    IncompatibleGraphError,
    IncompatibleTypeError,
    MissingRunKwargsError,
    PartDamagedError,
    RequestError,
    RunBusyError,
    RunError,
    RunExistsError,
    RunExportedError,
    RunFailedError,
    RunNotFoundError,
    RunParkedError,
    RunUnfinishedError,
    StaleCommandError,
    StaleHeadError,
    StateConflictError,
    StepError,
    StepMismatchError,
    StepTimeoutError,
    StepUnsettledError,
    TypeCompatibilityError,
    UndeliveredError,
    UnknownRequestError,
    UnknownWorkflowError,
    UntrustedTypeError,
    ValidationTypeEnum,
    ValueTooLargeError,
    WorkflowCheckpointException,
    WorkflowConvergenceException,
    WorkflowException,
    WorkflowRunnerException,
    WorkflowValidationError,
)
from perdure.events import (
    CheckpointInfo,
    Undecoded,
    UndeliveredMessage,
    WorkflowErrorDetails,
    WorkflowEvent,
    WorkflowEventSource,
    WorkflowEventType,
    WorkflowRunState,
)
from perdure.functional.agent import FunctionalWorkflowAgent
from perdure.functional.context import RunContext, get_run_context
from perdure.functional.steps import StepWrapper, step
from perdure.functional.workflows import FunctionalWorkflow, workflow
from perdure.graph.context import State, WorkflowContext
from perdure.graph.definition import DEFAULT_MAX_ITERATIONS, Migration
from perdure.graph.edges import (
    Case,
    Default,
    Edge,
    EdgeCondition,
    FanInEdgeGroup,
    FanOutEdgeGroup,
    SingleEdgeGroup,
    SwitchCaseEdgeGroup,
    SwitchCaseEdgeGroupCase,
    SwitchCaseEdgeGroupDefault,
)
from perdure.graph.executor import Executor
from perdure.graph.function import FunctionExecutor, executor
from perdure.graph.handlers import handler, response_handler
from perdure.graph.messages import INTERNAL_SOURCE_ID, MessageType, WorkflowMessage
from perdure.graph.policy import FailedMessage, Retry
from perdure.graph.validation import validate_workflow_graph
from perdure.hosting.embedded import EmbeddedScheduler
from perdure.hosting.handle import HostedRun
from perdure.hosting.host import Host
from perdure.hosting.info import RunInfo
from perdure.hosting.scheduler import Dispatch, Rest, Scheduler
from perdure.log import Log
from perdure.mcp.servers import MCPStdioTool, MCPStreamableHTTPTool
from perdure.mcp.tool import MCPSpecificApproval, MCPTool
from perdure.records import FullHistory, KeepFor, KeepLast, LatestOnly, Retention, RunStatus
from perdure.runtime.steps import NOT_DONE, step_key
from perdure.secrets import Secret
from perdure.storages.desk import PendingRequest
from perdure.storages.protocol import CheckpointID, CheckpointStorage
from perdure.storages.shipped import (
    FileCheckpointStorage,
    InMemoryCheckpointStorage,
    PostgresCheckpointStorage,
    SqliteCheckpointStorage,
)
from perdure.storages.sizes import PartSize, SizeReport
from perdure.storages.urls import open_storage
from perdure.streams import ResponseStream
from perdure.viz import WorkflowViz
from perdure.workflows.agent import WorkflowAgent
from perdure.workflows.blocking import run_sync
from perdure.workflows.builder import WorkflowBuilder
from perdure.workflows.edit import Edit
from perdure.workflows.result import WorkflowRunResult
from perdure.workflows.run import Run
from perdure.workflows.sub import SubWorkflowRequestMessage, SubWorkflowResponseMessage, WorkflowExecutor
from perdure.workflows.workflow import Workflow

__all__ = [
    "DEFAULT_MAX_ITERATIONS",
    "INTERNAL_SOURCE_ID",
    "NOT_DONE",
    "SKIP_PARSING",
    "AdditionItemMismatch",
    "Agent",
    "AgentContext",
    "AgentException",
    "AgentExecutor",
    "AgentExecutorRequest",
    "AgentExecutorResponse",
    "AgentFrameworkException",
    "AgentInvalidRequestException",
    "AgentInvalidResponseException",
    "AgentMiddleware",
    "AgentResponse",
    "AgentResponseUpdate",
    "AgentRunInputs",
    "AgentSession",
    "AlreadyAnsweredError",
    "AnswerTypeError",
    "ApprovalMismatchError",
    "BaseAgent",
    "BaseChatClient",
    "BudgetExceededError",
    "Case",
    "ChatClientException",
    "ChatClientInvalidAuthException",
    "ChatClientInvalidRequestException",
    "ChatClientInvalidResponseException",
    "ChatContext",
    "ChatMiddleware",
    "ChatMiddlewareLayer",
    "ChatOptions",
    "ChatResponse",
    "ChatResponseUpdate",
    "ChatTelemetryLayer",
    "CheckpointDamagedError",
    "CheckpointID",
    "CheckpointInfo",
    "CheckpointNotFoundError",
    "CheckpointStorage",
    "CheckpointWriteError",
    "ClaimLostError",
    "Clock",
    "CommandWaitsError",
    "CompactionStrategy",
    "CompatibilityReport",
    "Content",
    "ContentError",
    "ContentType",
    "ContextProvider",
    "Default",
    "Dispatch",
    "Edge",
    "EdgeCondition",
    "EdgeDuplicationError",
    "Edit",
    "EmbeddedScheduler",
    "EncodeError",
    "EventsForgottenError",
    "Executor",
    "ExecutorTimeoutError",
    "FailedMessage",
    "FanInEdgeGroup",
    "FanOutEdgeGroup",
    "FileCheckpointStorage",
    "FullHistory",
    "FunctionExecutor",
    "FunctionInvocationConfiguration",
    "FunctionInvocationContext",
    "FunctionInvocationLayer",
    "FunctionMiddleware",
    "FunctionTool",
    "FunctionalWorkflow",
    "FunctionalWorkflowAgent",
    "GraphConnectivityError",
    "HistoryProvider",
    "Host",
    "HostedRun",
    "InMemoryCheckpointStorage",
    "InMemoryHistoryProvider",
    "IncompatibleGraphError",
    "IncompatibleTypeError",
    "InterruptedStep",
    "KeepFor",
    "KeepLast",
    "LatestOnly",
    "Log",
    "MCPSpecificApproval",
    "MCPStdioTool",
    "MCPStreamableHTTPTool",
    "MCPTool",
    "Message",
    "MessageType",
    "MiddlewareException",
    "MiddlewareTermination",
    "MiddlewareTypes",
    "Migration",
    "MissingRunKwargsError",
    "OptionsError",
    "PartDamagedError",
    "PartSize",
    "PendingRequest",
    "PostgresCheckpointStorage",
    "RequestError",
    "ResponseStream",
    "ResponseValueError",
    "Rest",
    "Retention",
    "Retry",
    "Role",
    "RoleLiteral",
    "Run",
    "RunBusyError",
    "RunContext",
    "RunError",
    "RunExistsError",
    "RunExportedError",
    "RunFailedError",
    "RunInfo",
    "RunNotFoundError",
    "RunParkedError",
    "RunStatus",
    "RunUnfinishedError",
    "Scheduler",
    "Secret",
    "SessionContext",
    "SingleEdgeGroup",
    "SizeLimits",
    "SizeReport",
    "SqliteCheckpointStorage",
    "StaleCommandError",
    "StaleHeadError",
    "State",
    "StateConflictError",
    "StepDecision",
    "StepError",
    "StepMismatchError",
    "StepTimeoutError",
    "StepUnsettledError",
    "StepWrapper",
    "SubWorkflowRequestMessage",
    "SubWorkflowResponseMessage",
    "SupportsAgentRun",
    "SupportsChatGetResponse",
    "SwitchCaseEdgeGroup",
    "SwitchCaseEdgeGroupCase",
    "SwitchCaseEdgeGroupDefault",
    "SystemClock",
    "TokenizerProtocol",
    "ToolException",
    "ToolExecutionException",
    "ToolMode",
    "ToolTypes",
    "TypeCompatibilityError",
    "Undecoded",
    "UndeliveredError",
    "UndeliveredMessage",
    "UnknownRequestError",
    "UnknownWorkflowError",
    "UntrustedTypeError",
    "UsageDetails",
    "UserInputRequiredException",
    "ValidationTypeEnum",
    "ValueTooLargeError",
    "Workflow",
    "WorkflowAgent",
    "WorkflowBuilder",
    "WorkflowCheckpoint",
    "WorkflowCheckpointException",
    "WorkflowContext",
    "WorkflowConvergenceException",
    "WorkflowErrorDetails",
    "WorkflowEvent",
    "WorkflowEventSource",
    "WorkflowEventType",
    "WorkflowException",
    "WorkflowExecutor",
    "WorkflowMessage",
    "WorkflowRunResult",
    "WorkflowRunState",
    "WorkflowRunnerException",
    "WorkflowValidationError",
    "WorkflowViz",
    "add_usage_details",
    "agent_middleware",
    "chat_middleware",
    "executor",
    "function_middleware",
    "get_run_context",
    "handler",
    "merge_chat_options",
    "normalize_function_invocation_configuration",
    "normalize_messages",
    "normalize_tools",
    "open_storage",
    "prepend_instructions_to_messages",
    "register_state_type",
    "register_type",
    "resolve_agent_id",
    "response_handler",
    "run_sync",
    "step",
    "step_key",
    "tool",
    "validate_chat_options",
    "validate_tool_mode",
    "validate_workflow_graph",
    "workflow",
]
