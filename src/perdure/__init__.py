"""perdure: durable multi-agent workflows. This module is only a list of names."""

from perdure.checkpoint.compat import CompatibilityReport
from perdure.checkpoint.record import WorkflowCheckpoint
from perdure.checkpoint.trust import register_type
from perdure.clock import Clock, SystemClock
from perdure.errors import (
    AgentFrameworkException,
    AlreadyAnsweredError,
    AnswerTypeError,
    CheckpointDamagedError,
    CheckpointNotFoundError,
    CheckpointWriteError,
    ClaimLostError,
    EdgeDuplicationError,
    EncodeError,
    GraphConnectivityError,
    IncompatibleGraphError,
    IncompatibleTypeError,
    MissingRunKwargsError,
    PartDamagedError,
    RequestError,
    RunBusyError,
    RunError,
    RunExistsError,
    RunNotFoundError,
    RunUnfinishedError,
    StaleHeadError,
    StateConflictError,
    TypeCompatibilityError,
    UndeliveredError,
    UnknownRequestError,
    UntrustedTypeError,
    ValidationTypeEnum,
    WorkflowCheckpointException,
    WorkflowConvergenceException,
    WorkflowException,
    WorkflowRunnerException,
    WorkflowValidationError,
)
from perdure.events import (
    CheckpointInfo,
    UndeliveredMessage,
    WorkflowErrorDetails,
    WorkflowEvent,
    WorkflowEventSource,
    WorkflowEventType,
    WorkflowRunState,
)
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
from perdure.graph.validation import validate_workflow_graph
from perdure.records import FullHistory, KeepFor, KeepLast, LatestOnly, Retention
from perdure.secrets import Secret
from perdure.storages.protocol import CheckpointID, CheckpointStorage
from perdure.storages.shipped import FileCheckpointStorage, InMemoryCheckpointStorage, SqliteCheckpointStorage
from perdure.streams import ResponseStream
from perdure.viz import WorkflowViz
from perdure.workflow.builder import WorkflowBuilder
from perdure.workflow.edit import Edit
from perdure.workflow.result import WorkflowRunResult
from perdure.workflow.run import Run
from perdure.workflow.sub import SubWorkflowRequestMessage, SubWorkflowResponseMessage, WorkflowExecutor
from perdure.workflow.workflow import Workflow

__all__ = [
    "DEFAULT_MAX_ITERATIONS",
    "INTERNAL_SOURCE_ID",
    "AgentFrameworkException",
    "AlreadyAnsweredError",
    "AnswerTypeError",
    "Case",
    "CheckpointDamagedError",
    "CheckpointID",
    "CheckpointInfo",
    "CheckpointNotFoundError",
    "CheckpointStorage",
    "CheckpointWriteError",
    "ClaimLostError",
    "Clock",
    "CompatibilityReport",
    "Default",
    "Edge",
    "EdgeCondition",
    "EdgeDuplicationError",
    "Edit",
    "EncodeError",
    "Executor",
    "FanInEdgeGroup",
    "FanOutEdgeGroup",
    "FileCheckpointStorage",
    "FullHistory",
    "FunctionExecutor",
    "GraphConnectivityError",
    "InMemoryCheckpointStorage",
    "IncompatibleGraphError",
    "IncompatibleTypeError",
    "KeepFor",
    "KeepLast",
    "LatestOnly",
    "MessageType",
    "Migration",
    "MissingRunKwargsError",
    "PartDamagedError",
    "RequestError",
    "ResponseStream",
    "Retention",
    "Run",
    "RunBusyError",
    "RunError",
    "RunExistsError",
    "RunNotFoundError",
    "RunUnfinishedError",
    "Secret",
    "SingleEdgeGroup",
    "SqliteCheckpointStorage",
    "StaleHeadError",
    "State",
    "StateConflictError",
    "SubWorkflowRequestMessage",
    "SubWorkflowResponseMessage",
    "SwitchCaseEdgeGroup",
    "SwitchCaseEdgeGroupCase",
    "SwitchCaseEdgeGroupDefault",
    "SystemClock",
    "TypeCompatibilityError",
    "UndeliveredError",
    "UndeliveredMessage",
    "UnknownRequestError",
    "UntrustedTypeError",
    "ValidationTypeEnum",
    "Workflow",
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
    "executor",
    "handler",
    "register_type",
    "response_handler",
    "validate_workflow_graph",
]
