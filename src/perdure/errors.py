"""Every error that perdure raises on purpose, in one tree.

AgentFrameworkException
├── AgentException                                an agent could not run
│   ├── AgentInvalidRequestException              the request to the agent is invalid
│   └── AgentInvalidResponseException             the response is invalid
│       └── ResponseValueError                    the response does not hold the requested value (a ValueError)
├── ChatClientException                           a model could not be called
│   ├── ChatClientInvalidAuthException            the provider refused the credentials
│   ├── ChatClientInvalidRequestException         the provider refused the request; a retry fails too
│   │   └── ChatClientContextLengthException      the conversation is too long for the model
│   └── ChatClientInvalidResponseException        the provider's response can't be read
├── ToolException                                 a tool could not be called
│   ├── ToolExecutionException                    the tool failed
│   └── UserInputRequiredException                the tool needs an answer from the user
├── MiddlewareException                           a middleware failed
│   └── MiddlewareTermination                     a middleware ended the call with its own result
├── ContentError                                  a message or its options are invalid
│   ├── AdditionItemMismatch                      two contents of different kinds can't be added (a TypeError)
│   └── OptionsError                              a chat option is invalid (a ValueError)
└── WorkflowException
    ├── WorkflowRunnerException
    │   ├── WorkflowConvergenceException          max_iterations reached with messages left
    │   ├── UndeliveredError                      a message has no receiver, and the workflow is strict about it
    │   ├── StateConflictError                    two executors wrote one key, and the workflow is strict about it
    │   ├── ExecutorTimeoutError                  a handler exceeded its executor's timeout (a TimeoutError)
    │   ├── BudgetExceededError                   the run exceeded its budget
    │   ├── StepError
    │   │   ├── StepMismatchError                 a call can't be matched with the recorded ones
    │   │   ├── StepTimeoutError                  a step exceeded its timeout (a TimeoutError)
    │   │   └── StepUnsettledError                a crash interrupted a step, and its outcome is unknown
    │   ├── WorkflowCheckpointException
    │   │   ├── CheckpointNotFoundError           the checkpoint does not exist
    │   │   ├── CheckpointDamagedError            stored bytes of a checkpoint are damaged
    │   │   ├── BlobDamagedError                  stored bytes are damaged, and the checkpoint is not known yet
    │   │   ├── CheckpointWriteError              a checkpoint could not be written
    │   │   ├── EncodeError                       a value could not be read back, so it is not stored
    │   │   │   └── ValueTooLargeError            a value exceeds the storage's size limit
    │   │   ├── UntrustedTypeError                stored data names a type that this program does not trust
    │   │   ├── IncompatibleTypeError             a stored object does not fit its class
    │   │   ├── IncompatibleGraphError            the graph changed in a way that the checkpoint can't follow
    │   │   ├── StaleHeadError                    another process advanced the run
    │   │   ├── StaleCommandError                 the run no longer has what a command refers to
    │   │   └── CommandWaitsError                 a commit would ignore a command that waits in the inbox
    │   └── RunError
    │       ├── RunBusyError                      another process is advancing the run
    │       ├── RunExistsError                    the run id belongs to a run with another first input
    │       ├── RunNotFoundError                  the run does not exist
    │       ├── RunExportedError                  the run moved to another store
    │       ├── RunFailedError                    a run that a host advances failed
    │       ├── RunQuarantinedError               a run was taken out of rotation because it ended too many processes
    │       ├── RunBlockedError                   no living host can load the run
    │       ├── UnknownWorkflowError              the host has no such workflow
    │       ├── RunUnfinishedError                a new message for a run with work left (a RuntimeError)
    │       ├── LeaseLostError                    another process took over the lease
    │       ├── MissingRunKwargsError             run kwargs that are not stored must be given again
    │       ├── EventsForgottenError              retention removed the requested events
    │       └── RequestError                      (a ValueError and a RuntimeError)
    │           ├── UnknownRequestError           the request does not exist
    │           ├── AlreadyAnsweredError          the request was answered before
    │           ├── AnswerTypeError               the answer does not have the requested type
    │           └── ApprovalMismatchError         the approval covers something else
    └── WorkflowValidationError
        ├── EdgeDuplicationError
        ├── TypeCompatibilityError
        └── GraphConnectivityError

Former names still work: ClaimLostError (LeaseLostError), PartDamagedError (BlobDamagedError) and RunParkedError
(RunQuarantinedError).
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from perdure.failures import Failure


class AgentFrameworkException(Exception):
    """The root of the tree. `inner_exception` is also the cause."""

    def __init__(
        self,
        message: str = "",
        inner_exception: BaseException | None = None,
        *args: object,
        log_level: int | None = None,
    ) -> None:
        super().__init__(message, *args)
        self.message, self.inner_exception, self.log_level = message, inner_exception, log_level
        if inner_exception is not None:
            self.__cause__ = inner_exception

    def __str__(self) -> str:
        return self.message


class AgentException(AgentFrameworkException):
    """An agent could not run."""


class AgentInvalidAuthException(AgentException):
    """An agent's service refused the credentials."""


class AgentContentFilterException(AgentException):
    """An agent's service refused the content."""


class AgentInvalidRequestException(AgentException):
    """The request to the agent is invalid."""


class AgentInvalidResponseException(AgentException):
    """The response is invalid: an answer to no request, or a text that is not the expected JSON."""


class ResponseValueError(AgentInvalidResponseException, ValueError):
    """The response does not hold a value of the requested type, or the type is not known."""


class ChatClientException(AgentFrameworkException):
    """A model could not be called. Recorded results of the turn are kept, and a retry continues after them."""


class ChatClientInvalidAuthException(ChatClientException):
    """The provider refused the credentials."""


class ChatClientInvalidRequestException(ChatClientException):
    """The provider refused the request. A retry with the same request fails too."""


class ChatClientContextLengthException(ChatClientInvalidRequestException):
    """The conversation is too long for the model, also after compaction."""


class ChatClientInvalidResponseException(ChatClientException):
    """The provider's response can't be read."""


class ChatClientContentFilterException(ChatClientException):
    """The provider's content filter rejected the conversation. Sending it again fails again."""


class ResponseInvalidatedException(ChatClientException):
    """Raised by a client whose provider took back a part of a response. Its tool calls are not made."""


class IntegrationException(AgentFrameworkException):
    """Base of the errors of other services, for programs that raise or catch them."""


class IntegrationInitializationError(IntegrationException):
    """A service could not be set up."""


class IntegrationInvalidAuthException(IntegrationException):
    """A service refused the credentials."""


class IntegrationInvalidRequestException(IntegrationException):
    """A service refused the request."""


class IntegrationInvalidResponseException(IntegrationException):
    """The response of a service can't be read."""


class IntegrationContentFilterException(IntegrationException):
    """A service refused the content."""


class ToolException(AgentFrameworkException):
    """A tool could not be called. The model receives the message."""


class ToolExecutionException(ToolException):
    """A tool failed. The model receives the message, so a tool may raise it with a text for the model."""


class UserInputRequiredException(ToolException):
    """Raised by a tool that needs an answer from the user; `contents` are the questions."""

    def __init__(self, contents: Sequence[Any], message: str = "the tool needs an answer from the user") -> None:
        self.contents = list(contents)
        super().__init__(message)


class MiddlewareException(AgentFrameworkException):
    """A middleware failed."""


class MiddlewareFailure(MiddlewareException):
    """Raised by a middleware to fail the run. Other errors around a tool call are results that the model gets."""


class MiddlewareTermination(MiddlewareException):
    """Raised by a middleware to end the call; `result`, if given, is returned to the caller."""

    def __init__(self, message: str = "a middleware ended the call", *, result: Any = None) -> None:
        self.result = result
        super().__init__(message)


class ContentError(AgentFrameworkException):
    """A message or its options are invalid."""


class AdditionItemMismatch(ContentError, TypeError):
    """Two contents of different kinds can't be added."""


class OptionsError(ContentError, ValueError):
    """A chat option is invalid."""


class WorkflowException(AgentFrameworkException):
    """An error in the definition or execution of a workflow."""


class WorkflowRunnerException(WorkflowException):
    """An error in the execution of a workflow."""


class WorkflowConvergenceException(WorkflowRunnerException):
    """The run made `max_iterations` supersteps since its last input and still has messages."""


class UndeliveredError(WorkflowRunnerException):
    """A message has no receiver, in a workflow built with `undelivered="error"`."""

    def __init__(self, *, source_id: str, target_id: str | None, reason: str, is_from_outside: bool = False) -> None:
        self.source_id, self.target_id, self.reason = source_id, target_id, reason
        sender = f"{source_id} to executor {target_id!r}" if is_from_outside else f"executor {source_id!r}"
        super().__init__(f"a message of {sender} was not delivered: {reason}")


class StateConflictError(WorkflowRunnerException):
    """Two executors wrote one key of the shared state in one superstep, in a strict workflow."""

    def __init__(self, *, key: str, executor_ids: Sequence[str]) -> None:
        self.key, self.executor_ids = key, tuple(executor_ids)
        names = " and ".join(repr(executor_id) for executor_id in self.executor_ids)
        super().__init__(
            f"state key {key!r} was written by {names} in the same superstep; "
            f"declare a reducer for it (WorkflowBuilder(reducers={{{key!r}: ...}})) or let one executor own it"
        )


class ExecutorTimeoutError(WorkflowRunnerException, TimeoutError):
    """A handler exceeded the timeout of its executor."""

    def __init__(self, executor_id: str, *, seconds: float) -> None:
        self.executor_id, self.seconds = executor_id, seconds
        super().__init__(
            f"executor {executor_id!r} did not finish within {seconds:g} seconds; raise its timeout, or give it a "
            "retry policy"
        )


class BudgetExceededError(WorkflowRunnerException):
    """The run exceeded its budget for a resource. It stays at its last checkpoint."""

    def __init__(self, run_id: str, *, name: str, spent: float, limit: float) -> None:
        self.run_id, self.name, self.spent, self.limit = run_id, name, spent, limit
        super().__init__(
            f"run {run_id!r} has spent {spent:g} of {limit:g} {name}; raise its budget with "
            f"run(run_id={run_id!r}, budget={{{name!r}: ...}}), or on a host with "
            f"host.recover({run_id!r}, budget={{{name!r}: ...}})"
        )


class StepError(WorkflowRunnerException):
    """An error about a step, other than the errors that the step itself raises."""

    def __init__(self, name: str, message: str) -> None:
        self.name = name
        super().__init__(message)


class StepMismatchError(StepError):
    """A call of a step can't be matched with the recorded ones."""

    def __init__(self, name: str, *, executor_id: str, reason: str | None = None) -> None:
        self.executor_id = executor_id
        why = reason or (
            "was recorded with other arguments: the order or the inputs of its calls have changed; restore the former "
            "code for this run or start again from an earlier checkpoint, and give each call its own key=... where the "
            "order may differ"
        )
        super().__init__(name, f"step {name!r} of executor {executor_id!r} {why}")


class StepTimeoutError(StepError, TimeoutError):
    """A step exceeded its timeout."""

    def __init__(self, name: str, *, seconds: float) -> None:
        self.seconds = seconds
        super().__init__(name, f"step {name!r} did not finish within {seconds:g} seconds")


class StepUnsettledError(StepError):
    """A crash interrupted a step, and its outcome is unknown."""

    def __init__(self, name: str, *, reason: str) -> None:
        self.reason = reason
        super().__init__(name, f"step {name!r} was interrupted, and it is not known whether it was done: {reason}")


class WorkflowCheckpointException(WorkflowRunnerException):
    """An error in writing, reading or restoring a checkpoint."""


class CheckpointNotFoundError(WorkflowCheckpointException):
    """The checkpoint does not exist in this storage."""

    def __init__(self, checkpoint_id: str) -> None:
        self.checkpoint_id = checkpoint_id
        super().__init__(
            f"there is no checkpoint {checkpoint_id!r} in this storage; list_checkpoint_ids lists the existing ones"
        )


class CheckpointDamagedError(WorkflowCheckpointException):
    """The store returned other bytes than were written."""

    def __init__(self, checkpoint_id: str, reason: str) -> None:
        self.checkpoint_id, self.reason = checkpoint_id, reason
        super().__init__(
            f"checkpoint {checkpoint_id!r} is damaged: {reason}; "
            "restore the storage from a backup, or resume from another checkpoint by its id"
        )


class BlobDamagedError(WorkflowCheckpointException):
    """A blob has other bytes than were written. The reader of a checkpoint adds the checkpoint's id."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"{reason}; restore the storage from a backup")


class StorageReadOnlyError(WorkflowCheckpointException):
    """The storage was opened read-only, and something was to be written."""

    def __init__(self, place: str) -> None:
        self.place = place
        super().__init__(f"the storage {place!r} was opened read-only; open it without read_only=True to change it")


class StorageOutdatedError(WorkflowCheckpointException):
    """The storage was opened read-only, and must be migrated before this release can read it."""

    def __init__(self, place: str) -> None:
        self.place = place
        super().__init__(
            f"the storage {place!r} was written by an earlier release; run `perdure store migrate`, or open it once "
            "without read_only=True"
        )


class CheckpointWriteError(WorkflowCheckpointException):
    """A checkpoint could not be written. The run stays at the one before."""

    def __init__(self, *, run_id: str, reason: str) -> None:
        self.run_id, self.reason = run_id, reason
        super().__init__(
            f"the checkpoint of run {run_id!r} could not be written: {reason}; this superstep was not saved, "
            f"continue with run(run_id={run_id!r}) once the cause is fixed"
        )


class EncodeError(WorkflowCheckpointException, TypeError):
    """A value could not be read back by this program, so it is not stored."""

    def __init__(self, *, path: str, reason: str, remedy: str) -> None:
        self.path, self.reason, self.remedy = path, reason, remedy
        super().__init__(f"{path} can't be stored: {reason}; {remedy}")


class ValueTooLargeError(EncodeError):
    """A value exceeds the storage's size limit, so it is not stored."""

    def __init__(self, *, path: str, size: int, limit: int, can_be_raised: bool = True) -> None:
        self.size, self.limit = size, limit
        raised = ", or raise the storage's limit: size_limits=SizeLimits(hard=...)" if can_be_raised else ""
        super().__init__(
            path=path,
            reason=f"it takes {size:,} bytes, and {limit:,} is the limit",
            remedy=f"keep it in a file or an object store and store the reference{raised}",
        )


class UntrustedTypeError(WorkflowCheckpointException):
    """Stored data names a type that this program does not trust. `checkpoint_id` has the data, if it is known."""

    checkpoint_id: str | None = None

    def __init__(self, *, type_name: str, path: str) -> None:
        self.type_name, self.path = type_name, path
        super().__init__(
            f"{path} holds a {type_name!r}, a type that this workflow does not trust; "
            "use it in a handler's annotations, register it with perdure.register_type, "
            "or list it in allowed_checkpoint_types"
        )


class IncompatibleTypeError(WorkflowCheckpointException):
    """A stored object does not fit the present definition of its class. `checkpoint_id` has it, if that is known."""

    checkpoint_id: str | None = None

    def __init__(self, *, type_name: str, path: str, reason: str) -> None:
        self.type_name, self.path, self.reason = type_name, path, reason
        super().__init__(
            f"{path} holds a {type_name!r} that does not fit its class: {reason}; change the class so that it does, "
            "or upgrade the stored state with WorkflowBuilder(migrations=[...])"
        )


class IncompatibleGraphError(WorkflowCheckpointException):
    """The graph changed in a way that the checkpoint can't follow; `report` has the differences."""

    def __init__(self, *, checkpoint_id: str, report: object, remedy: str | None = None) -> None:
        self.checkpoint_id, self.report = checkpoint_id, report
        usual = "Rebuild the original graph, or declare the change with WorkflowBuilder(migrations=[...])"
        super().__init__(
            f"checkpoint {checkpoint_id!r} does not fit this workflow: the graph has changed.\n{report}\n"
            f"{usual if remedy is None else remedy}"
        )


class StaleHeadError(WorkflowCheckpointException):
    """A commit found another head than it expected: the run was advanced or deleted meanwhile."""

    def __init__(self, run_id: str, *, expected: str | None, head: str | None) -> None:
        self.run_id, self.expected, self.head = run_id, expected, head
        if head is None:
            super().__init__(
                f"run {run_id!r} was at {expected!r} and does not exist any more: it was deleted; start a new run"
            )
            return
        super().__init__(
            f"run {run_id!r} is at {head!r}, not at {expected!r}: another process has advanced it, "
            "or a commit of this one whose caller was cancelled; reload the run before going on"
        )


class StaleCommandError(WorkflowCheckpointException):
    """The run no longer has what a command refers to."""

    def __init__(self, run_id: str, *, path: str) -> None:
        self.run_id, self.path = run_id, path
        super().__init__(
            f"run {run_id!r} has moved on and {path!r} has changed; read it again before sending the command"
        )


class CommandWaitsError(WorkflowCheckpointException):
    """A commit would ignore a command that waits in the inbox."""

    def __init__(self, run_id: str, *, command_id: str) -> None:
        self.run_id, self.command_id = run_id, command_id
        super().__init__(f"command {command_id!r} waits in the inbox of run {run_id!r}; apply it first")


class RunError(WorkflowRunnerException):
    """The run refuses a call: its identity, its lease or its inputs don't allow it."""


class RunBusyError(RunError):
    """A living process, which may be this one, is advancing the run."""

    def __init__(self, run_id: str, *, owner: str, advice: str | None = None) -> None:
        self.run_id, self.owner = run_id, owner
        otherwise = "wait for it, or use takeover=True if you know that it is gone"
        super().__init__(f"run {run_id!r} is being advanced by {owner}; {advice or otherwise}")


class RunExistsError(RunError, ValueError):
    """The run id belongs to a run with another first input, or to one that an import would replace."""

    def __init__(self, run_id: str, *, is_imported: bool = False, workflow_name: str | None = None) -> None:
        self.run_id = run_id
        if workflow_name is not None:
            message = f"run {run_id!r} exists and is a run of workflow {workflow_name!r}; choose another run_id"
        elif is_imported:
            message = f"run {run_id!r} exists here and was not exported; continue it, or remove it before importing"
        else:
            message = (
                f"run {run_id!r} exists and started with another input; continue with run(run_id={run_id!r}) without "
                "a message, or choose another run_id"
            )
        super().__init__(message)


class RunExportedError(RunError):
    """The run moved to another store and is closed here."""

    def __init__(self, run_id: str, *, at: str) -> None:
        self.run_id, self.at = run_id, at
        super().__init__(
            f"run {run_id!r} was exported at {at} and is closed here; import the file where the run is to continue "
            "(this store is possible too), or export it again if the file was lost"
        )


class RunFailedError(RunError):
    """A run that a host advances failed; `reason` is the error, `failure` has the traceback and the place."""

    def __init__(self, run_id: str, *, reason: str, at: str, failure: Failure | None = None) -> None:
        self.run_id, self.reason, self.at, self.failure = run_id, reason, at, failure
        super().__init__(f"run {run_id!r} failed at {at}: {reason}; continue it with host.recover({run_id!r})")


class RunQuarantinedError(RunError):
    """A run was taken out of rotation, because every process that advanced it died."""

    def __init__(self, run_id: str, *, reason: str, at: str) -> None:
        self.run_id, self.reason, self.at = run_id, reason, at
        super().__init__(f"run {run_id!r} was quarantined at {at}: {reason}; try again with host.recover({run_id!r})")


class RunBlockedError(RunError):
    """A run has work to do, but no living host can load it. It goes on by itself when such a host appears.

    `reasons` has the reason of each living host that could not load it, by host id. It is empty if no living host
    serves the workflow.
    """

    def __init__(self, run_id: str, *, reason: str, reasons: Mapping[str, str]) -> None:
        self.run_id = run_id
        self.reason = reason
        self.reasons = dict(reasons)
        super().__init__(f"run {run_id!r} is blocked: {reason}; start a host that can load it, and the run goes on")


class UnknownWorkflowError(RunError, ValueError):
    """The host has no workflow of that name."""

    def __init__(self, workflow_name: str, *, known: Sequence[str]) -> None:
        self.workflow_name = workflow_name
        registered = f"it has {', '.join(map(repr, known))}" if known else "none is registered"
        super().__init__(
            f"this host has no workflow {workflow_name!r}, {registered}; register its factory with host.register"
        )


class RunNotFoundError(RunError, ValueError):
    """The run does not exist, or the call names none and the workflow has none."""

    def __init__(self, run_id: str | None, *, has_storage: bool = True) -> None:
        self.run_id = run_id
        if run_id is None:
            message = (
                "this workflow instance has no run to continue; give a message to start one, "
                "or the run_id or checkpoint_id of a stored one"
            )
        elif has_storage:
            message = f"there is no run {run_id!r} in this storage; give a message to start it"
        else:
            message = (
                f"there is no run {run_id!r} in this workflow instance, and no storage to look it up; give a message "
                "to start it, or give checkpoint_storage here or to WorkflowBuilder to resume it"
            )
        super().__init__(message)


class RunUnfinishedError(RunError, RuntimeError):
    """A new message for a run that has work left: it failed, was abandoned, or sleeps."""

    def __init__(self, run_id: str, *, checkpoint_id: str | None, sleeps_until: str | None = None) -> None:
        self.run_id, self.checkpoint_id, self.sleeps_until = run_id, checkpoint_id, sleeps_until
        way = f"run(run_id={run_id!r})"
        if checkpoint_id is not None:
            way += f" or run(checkpoint_id={checkpoint_id!r})"
        if sleeps_until is None:
            why = "has undelivered messages: its last turn failed or was abandoned"
        else:
            why = f"sleeps until {sleeps_until}: its turn is not over"
        super().__init__(f"run {run_id!r} {why}; continue with {way} before giving it a new message")


class LeaseLostError(RunError):
    """The lease is gone: somebody took it over, or it was released. `owner` holds it now, if anybody does."""

    def __init__(self, run_id: str, *, owner: str | None) -> None:
        self.run_id, self.owner = run_id, owner
        what = "has lost its lease, which nobody holds now" if owner is None else f"was taken over by {owner}"
        super().__init__(
            f"run {run_id!r} {what}; this call can no longer write to it, and nothing more was written; "
            "if no other process continues the run, resume it with run(run_id=...)"
        )


class MissingRunKwargsError(RunError, ValueError):
    """Run kwargs that are secret or can't be encoded must be given again: only their names are stored."""

    def __init__(self, *, run_id: str, names: Sequence[str]) -> None:
        self.run_id, self.names = run_id, tuple(names)
        super().__init__(
            f"run {run_id!r} was started with kwargs that are not stored: {', '.join(self.names)}; "
            "give them again in the call that resumes it"
        )


class EventsForgottenError(RunError, ValueError):
    """Retention removed the requested events."""

    def __init__(self, run_id: str, *, asked: int, first: int) -> None:
        self.run_id, self.asked, self.first = run_id, asked, first
        super().__init__(
            f"event {asked} of run {run_id!r} was removed by retention; the oldest one left is {first}: "
            f"read with from_seq={first}, or keep more with Retention(events=...)"
        )


class RequestError(RunError, ValueError, RuntimeError):
    """An answer was refused. Nothing changed."""

    def __init__(self, request_id: str, message: str) -> None:
        self.request_id = request_id
        super().__init__(message)


class UnknownRequestError(RequestError):
    """An answer to a request that does not exist."""

    def __init__(self, request_id: str, *, pending: Sequence[str]) -> None:
        self.pending = tuple(pending)
        known = "no request is pending; run the workflow first, or name the run with run_id=..."
        if self.pending:
            known = f"pending are {', '.join(map(repr, self.pending))}; use one of these ids"
        super().__init__(request_id, f"there is no request {request_id!r} to answer: {known}")


class AlreadyAnsweredError(RequestError):
    """The request was answered before."""

    def __init__(
        self,
        request_id: str,
        *,
        run_id: str,
        answered_at: datetime | str,
        by: str | None = None,
        what: str | None = None,
    ) -> None:
        self.run_id, self.answered_at, self.by, self.what = run_id, answered_at, by, what
        who = f" by {by}" if by else ""
        how = f" with {what}" if what else ""
        super().__init__(
            request_id,
            f"request {request_id!r} of run {run_id!r} was answered{who} at {answered_at}{how}; "
            f"continue with run(run_id={run_id!r}), or ask again in a fork of the checkpoint",
        )


class AnswerTypeError(RequestError):
    """The answer does not have the requested type, or no handler takes it."""

    def __init__(self, request_id: str, *, expected: str, got: str) -> None:
        self.expected, self.got = expected, got
        super().__init__(
            request_id,
            f"request {request_id!r} asks for {expected}, the answer is {got}; answer again, with {expected}",
        )


class ApprovalMismatchError(RequestError):
    """The approval covers something else than what is about to be done."""

    def __init__(self, request_id: str, *, approved: str | None, now: str) -> None:
        self.approved, self.now = approved, now
        shown = f"it approves {approved}" if approved else "the request did not say what it approves"
        super().__init__(
            request_id,
            f"the approval of request {request_id!r} does not cover this: {shown}, this is {now}; ask again for "
            "what is to be done now",
        )


class ValidationTypeEnum(Enum):
    """The kinds of validation errors."""

    EDGE_DUPLICATION = "EDGE_DUPLICATION"
    EXECUTOR_DUPLICATION = "EXECUTOR_DUPLICATION"
    TYPE_COMPATIBILITY = "TYPE_COMPATIBILITY"
    GRAPH_CONNECTIVITY = "GRAPH_CONNECTIVITY"
    HANDLER_OUTPUT_ANNOTATION = "HANDLER_OUTPUT_ANNOTATION"
    OUTPUT_VALIDATION = "OUTPUT_VALIDATION"


class WorkflowValidationError(WorkflowException):
    """The graph is not a valid workflow. Raised by `build()`."""

    def __init__(self, message: str, validation_type: ValidationTypeEnum) -> None:
        super().__init__(message)
        self.validation_type = validation_type

    def __str__(self) -> str:
        return f"[{self.validation_type.value}] {self.message}"


class EdgeDuplicationError(WorkflowValidationError):
    """Two edges join the same pair of executors."""

    def __init__(self, edge_id: str) -> None:
        super().__init__(
            f"Duplicate edge detected: {edge_id}. Each pair of executors may be joined once; "
            "put both conditions into one edge",
            ValidationTypeEnum.EDGE_DUPLICATION,
        )
        self.edge_id = edge_id


class TypeCompatibilityError(WorkflowValidationError):
    """The target has no handler for anything that the source sends."""

    def __init__(
        self,
        source_executor_id: str,
        target_executor_id: str,
        source_types: Sequence[object],
        target_types: Sequence[object],
    ) -> None:
        sends = ", ".join(_name(t) for t in source_types)
        takes = ", ".join(_name(t) for t in target_types)
        super().__init__(
            f"Type incompatibility between executors {source_executor_id!r} -> {target_executor_id!r}: "
            f"{source_executor_id!r} sends [{sends}], {target_executor_id!r} handles [{takes}]; "
            "change one annotation, or put an executor between them that converts",
            ValidationTypeEnum.TYPE_COMPATIBILITY,
        )
        self.source_executor_id, self.target_executor_id = source_executor_id, target_executor_id
        self.source_types, self.target_types = list(source_types), list(target_types)


class GraphConnectivityError(WorkflowValidationError):
    """An executor can't be reached from the start."""

    def __init__(self, message: str) -> None:
        super().__init__(message, ValidationTypeEnum.GRAPH_CONNECTIVITY)


def _name(type_: object) -> str:
    return type_.__name__ if isinstance(type_, type) else str(type_)


ClaimLostError = LeaseLostError
PartDamagedError = BlobDamagedError
RunParkedError = RunQuarantinedError
