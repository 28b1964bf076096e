# The public names as type checkers see them. `__init__.py` has the same list, and loads them when they are used.

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
from perdure.workflow.blocking import run_sync
from perdure.workflow.builder import WorkflowBuilder
from perdure.workflow.edit import Edit
from perdure.workflow.result import WorkflowRunResult
from perdure.workflow.run import Run
from perdure.workflow.sub import SubWorkflowRequestMessage, SubWorkflowResponseMessage, WorkflowExecutor
from perdure.workflow.workflow import Workflow

__all__ = [
    "DEFAULT_MAX_ITERATIONS",
    "INTERNAL_SOURCE_ID",
    "NOT_DONE",
    "AgentFrameworkException",
    "AlreadyAnsweredError",
    "AnswerTypeError",
    "ApprovalMismatchError",
    "BudgetExceededError",
    "Case",
    "CheckpointDamagedError",
    "CheckpointID",
    "CheckpointInfo",
    "CheckpointNotFoundError",
    "CheckpointStorage",
    "CheckpointWriteError",
    "ClaimLostError",
    "Clock",
    "CommandWaitsError",
    "CompatibilityReport",
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
    "GraphConnectivityError",
    "Host",
    "HostedRun",
    "InMemoryCheckpointStorage",
    "IncompatibleGraphError",
    "IncompatibleTypeError",
    "InterruptedStep",
    "KeepFor",
    "KeepLast",
    "LatestOnly",
    "Log",
    "MessageType",
    "Migration",
    "MissingRunKwargsError",
    "PartDamagedError",
    "PartSize",
    "PendingRequest",
    "PostgresCheckpointStorage",
    "RequestError",
    "ResponseStream",
    "Rest",
    "Retention",
    "Retry",
    "Run",
    "RunBusyError",
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
    "SubWorkflowRequestMessage",
    "SubWorkflowResponseMessage",
    "SwitchCaseEdgeGroup",
    "SwitchCaseEdgeGroupCase",
    "SwitchCaseEdgeGroupDefault",
    "SystemClock",
    "TypeCompatibilityError",
    "Undecoded",
    "UndeliveredError",
    "UndeliveredMessage",
    "UnknownRequestError",
    "UnknownWorkflowError",
    "UntrustedTypeError",
    "ValidationTypeEnum",
    "ValueTooLargeError",
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
    "open_storage",
    "register_type",
    "response_handler",
    "run_sync",
    "step_key",
    "validate_workflow_graph",
]
