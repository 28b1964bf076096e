"""Every error that perdure raises on purpose; those of agents, models and tools are in `agent_errors`.

AgentFrameworkException
├── AgentException, ChatClientException, ToolException, MiddlewareException, ContentError
└── WorkflowException
    ├── WorkflowRunnerException
    │   ├── WorkflowConvergenceException      max_iterations reached with messages left
    │   ├── UndeliveredError                  a message found no taker, and the workflow is strict about it
    │   ├── StateConflictError                two executors wrote one key, and the workflow is strict about it
    │   ├── ExecutorTimeoutError              a handler took longer than its executor allows (a TimeoutError)
    │   ├── BudgetExceededError               the run has spent more than it may
    │   ├── StepError
    │   │   ├── StepMismatchError             a step was recorded with other arguments
    │   │   ├── StepTimeoutError              a step took longer than it may (a TimeoutError)
    │   │   └── StepUnsettledError            a crash interrupted a step, and nobody can say whether it was done
    │   ├── WorkflowCheckpointException
    │   │   ├── CheckpointNotFoundError       no such checkpoint
    │   │   ├── CheckpointDamagedError        stored bytes are not what was written
    │   │   ├── PartDamagedError              the same, where it is not known which checkpoint needs them
    │   │   ├── CheckpointWriteError          a checkpoint could not be written
    │   │   ├── EncodeError                   a value this program could not read back
    │   │   │   └── ValueTooLargeError        a value that is larger than the storage allows
    │   │   ├── UntrustedTypeError            stored data names a type that this program does not trust
    │   │   ├── IncompatibleTypeError         a stored object does not fit its class
    │   │   ├── IncompatibleGraphError        the graph changed in a way that the checkpoint can't follow
    │   │   ├── StaleHeadError                another process advanced the run
    │   │   ├── StaleCommandError             a command expects something of the run that is not so any more
    │   │   └── CommandWaitsError             a commit would do the work of a command that waits
    │   └── RunError
    │       ├── RunBusyError                  somebody else is advancing the run
    │       ├── RunExistsError                the run id is taken by a run with another first input
    │       ├── RunNotFoundError              no such run
    │       ├── RunExportedError              the run has moved to another store
    │       ├── RunFailedError                a run that a host advances has failed
    │       ├── RunParkedError                a run was given up after it had ended too many processes
    │       ├── UnknownWorkflowError          a host has no such workflow
    │       ├── RunUnfinishedError            a fresh message for a run that has work left (a RuntimeError)
    │       ├── ClaimLostError                the claim was replaced while we held it
    │       ├── MissingRunKwargsError         run kwargs that were not stored have to be given again
    │       ├── EventsForgottenError          the retention has removed the events that were asked for
    │       └── RequestError                  (a ValueError and a RuntimeError)
    │           ├── UnknownRequestError       no such request
    │           ├── AlreadyAnsweredError      the request has been answered
    │           ├── AnswerTypeError           the answer is not of the type that was asked for
    │           └── ApprovalMismatchError     what was approved is not what is about to be done
    └── WorkflowValidationError
        ├── EdgeDuplicationError
        ├── TypeCompatibilityError
        └── GraphConnectivityError
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime


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
        self.message = message
        self.inner_exception = inner_exception
        self.log_level = log_level
        if inner_exception is not None:
            self.__cause__ = inner_exception

    def __str__(self) -> str:
        return self.message


class WorkflowException(AgentFrameworkException):
    """Anything that goes wrong in defining or running a workflow."""


class WorkflowRunnerException(WorkflowException):
    """Anything that goes wrong in running one."""


class WorkflowConvergenceException(WorkflowRunnerException):
    """`max_iterations` supersteps since the last outside input, and messages are left."""


class UndeliveredError(WorkflowRunnerException):
    """A message found no taker, in a workflow built with `undelivered="error"`."""

    def __init__(self, *, source_id: str, target_id: str | None, reason: str, is_from_outside: bool = False) -> None:
        self.source_id = source_id
        self.target_id = target_id
        self.reason = reason
        sender = f"{source_id} to executor {target_id!r}" if is_from_outside else f"executor {source_id!r}"
        super().__init__(f"a message of {sender} was not delivered: {reason}")


class StateConflictError(WorkflowRunnerException):
    """Two executors wrote one key of the shared state in one superstep, in a strict workflow."""

    def __init__(self, *, key: str, executor_ids: Sequence[str]) -> None:
        self.key = key
        self.executor_ids = tuple(executor_ids)
        names = " and ".join(repr(executor_id) for executor_id in self.executor_ids)
        super().__init__(
            f"state key {key!r} was written by {names} in the same superstep; "
            f"declare a reducer for it (WorkflowBuilder(reducers={{{key!r}: ...}})) or let one executor own it"
        )


class ExecutorTimeoutError(WorkflowRunnerException, TimeoutError):
    """A handler took longer than its executor allows."""

    def __init__(self, executor_id: str, *, seconds: float) -> None:
        self.executor_id = executor_id
        self.seconds = seconds
        super().__init__(f"executor {executor_id!r} did not finish within {seconds:g} seconds")


class BudgetExceededError(WorkflowRunnerException):
    """The run has spent more of something than it may. It stands at its last checkpoint."""

    def __init__(self, run_id: str, *, name: str, spent: float, limit: float) -> None:
        self.run_id = run_id
        self.name = name
        self.spent = spent
        self.limit = limit
        super().__init__(
            f"run {run_id!r} may not go on: it has spent {spent:g} of {limit:g} {name}; give it more with "
            f"run(run_id={run_id!r}, budget={{{name!r}: ...}})"
        )


class StepError(WorkflowRunnerException):
    """Anything that goes wrong with a step, beside what the step itself raises."""

    def __init__(self, name: str, message: str) -> None:
        self.name = name
        super().__init__(message)


class StepMismatchError(StepError):
    """A step was recorded with other arguments than it is called with now."""

    def __init__(self, name: str, *, executor_id: str) -> None:
        self.executor_id = executor_id
        super().__init__(
            name,
            f"step {name!r} of executor {executor_id!r} was recorded with other arguments: its calls have changed "
            "their order or their inputs since; let this run find them as they were, or begin it again from an "
            "earlier checkpoint, and give each call its own key=... where the order may differ",
        )


class StepTimeoutError(StepError, TimeoutError):
    """A step took longer than it may."""

    def __init__(self, name: str, *, seconds: float) -> None:
        self.seconds = seconds
        super().__init__(name, f"step {name!r} did not finish within {seconds:g} seconds")


class StepUnsettledError(StepError):
    """A crash interrupted a step, and nobody can say whether it was done."""

    def __init__(self, name: str, *, reason: str) -> None:
        self.reason = reason
        super().__init__(name, f"step {name!r} was interrupted, and it is not known whether it was done: {reason}")


class WorkflowCheckpointException(WorkflowRunnerException):
    """Anything that goes wrong in writing, reading or restoring a checkpoint."""


class CheckpointNotFoundError(WorkflowCheckpointException):
    """The store has no such checkpoint."""

    def __init__(self, checkpoint_id: str) -> None:
        self.checkpoint_id = checkpoint_id
        super().__init__(
            f"there is no checkpoint {checkpoint_id!r} in this storage; list_checkpoint_ids tells what there is"
        )


class CheckpointDamagedError(WorkflowCheckpointException):
    """What the store returned is not what was written."""

    def __init__(self, checkpoint_id: str, reason: str) -> None:
        self.checkpoint_id = checkpoint_id
        self.reason = reason
        super().__init__(
            f"checkpoint {checkpoint_id!r} is damaged: {reason}; "
            "restore the storage from a copy, or resume from another checkpoint by its id"
        )


class PartDamagedError(WorkflowCheckpointException):
    """A part is not what was written. Whoever reads a checkpoint says which one that is."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"{reason}; restore the storage from a copy")


class CheckpointWriteError(WorkflowCheckpointException):
    """A checkpoint could not be written. The run stops at the one before."""

    def __init__(self, *, run_id: str, reason: str) -> None:
        self.run_id = run_id
        self.reason = reason
        super().__init__(
            f"the checkpoint of run {run_id!r} could not be written: {reason}; nothing of this superstep was kept, "
            f"go on with run(run_id={run_id!r}) when the cause is mended"
        )


class EncodeError(WorkflowCheckpointException, TypeError):
    """A value that this program could not read back is refused when it is saved."""

    def __init__(self, *, path: str, reason: str, remedy: str) -> None:
        self.path = path
        self.reason = reason
        self.remedy = remedy
        super().__init__(f"{path} can't be stored: {reason}; {remedy}")


class ValueTooLargeError(EncodeError):
    """A value that is larger than the storage allows is refused when it is saved."""

    def __init__(self, *, path: str, size: int, limit: int, can_be_raised: bool = True) -> None:
        self.size = size
        self.limit = limit
        raised = ", or raise the storage's limit: size_limits=SizeLimits(hard=...)" if can_be_raised else ""
        super().__init__(
            path=path,
            reason=f"it takes {size:,} bytes, and {limit:,} is the limit",
            remedy=f"keep it in a file or an object store and store the reference{raised}",
        )


class UntrustedTypeError(WorkflowCheckpointException):
    """Stored data names a type that this program has not declared."""

    checkpoint_id: str | None = None
    """Where the data was read from, if it is a checkpoint."""

    def __init__(self, *, type_name: str, path: str) -> None:
        self.type_name = type_name
        self.path = path
        super().__init__(
            f"{path} holds a {type_name!r}, a type that this workflow does not trust; "
            "use it in a handler's annotations, register it with perdure.register_type, "
            "or list it in allowed_checkpoint_types"
        )


class IncompatibleTypeError(WorkflowCheckpointException):
    """A stored object does not fit its class as this program has it."""

    checkpoint_id: str | None = None
    """Where the object was read from, if it is a checkpoint."""

    def __init__(self, *, type_name: str, path: str, reason: str) -> None:
        self.type_name = type_name
        self.path = path
        self.reason = reason
        super().__init__(
            f"{path} holds a {type_name!r} that does not fit its class: {reason}; change the class so that it does, "
            "or upgrade the stored state with WorkflowBuilder(migrations=[...])"
        )


class IncompatibleGraphError(WorkflowCheckpointException):
    """The graph changed in a way that the checkpoint can't follow; `report` says how."""

    def __init__(self, *, checkpoint_id: str, report: object, remedy: str | None = None) -> None:
        self.checkpoint_id = checkpoint_id
        self.report = report
        usual = "Rebuild the original graph, or declare the change with WorkflowBuilder(migrations=[...])"
        super().__init__(
            f"checkpoint {checkpoint_id!r} does not fit this workflow: the graph has changed.\n{report}\n"
            f"{usual if remedy is None else remedy}"
        )


class StaleHeadError(WorkflowCheckpointException):
    """Another process has advanced the run: a commit found another head than it expected."""

    def __init__(self, run_id: str, *, expected: str | None, head: str | None) -> None:
        self.run_id = run_id
        self.expected = expected
        self.head = head
        super().__init__(
            f"run {run_id!r} is at {head!r}, not at {expected!r}: another process has advanced it; "
            "reload the run before going on"
        )


class StaleCommandError(WorkflowCheckpointException):
    """A command for a run whose head is not what the command expects."""

    def __init__(self, run_id: str, *, path: str) -> None:
        self.run_id = run_id
        self.path = path
        super().__init__(f"run {run_id!r} has gone on, {path!r} is not what it was; look at the run again")


class CommandWaitsError(WorkflowCheckpointException):
    """A commit would do the work of a command that waits in the inbox."""

    def __init__(self, run_id: str, *, command_id: str) -> None:
        self.run_id = run_id
        self.command_id = command_id
        super().__init__(f"the command {command_id!r} waits in the inbox of run {run_id!r}; take it in first")


class RunError(WorkflowRunnerException):
    """A call that the run refuses: about who it is, who may advance it, or what it has to be given."""


class RunBusyError(RunError):
    """Somebody who lives is advancing the run."""

    def __init__(self, run_id: str, *, owner: str, advice: str | None = None) -> None:
        self.run_id = run_id
        self.owner = owner
        otherwise = "wait for it, or take it over with takeover=True if you know that it is gone"
        super().__init__(f"run {run_id!r} is being advanced by {owner}; {advice or otherwise}")


class RunExistsError(RunError, ValueError):
    """The run id belongs to a run that began otherwise, or that an imported one would replace."""

    def __init__(self, run_id: str, *, is_imported: bool = False, workflow_name: str | None = None) -> None:
        self.run_id = run_id
        if workflow_name is not None:
            message = f"run {run_id!r} exists and is a run of workflow {workflow_name!r}; choose another run_id"
        elif is_imported:
            message = f"run {run_id!r} exists here and was not exported; go on with it, or remove it before importing"
        else:
            message = (
                f"run {run_id!r} exists and began with another input; go on with run(run_id={run_id!r}) without a "
                "message, or choose another run_id"
            )
        super().__init__(message)


class RunExportedError(RunError):
    """The run has moved to another store: here it is closed."""

    def __init__(self, run_id: str, *, at: str) -> None:
        self.run_id = run_id
        self.at = at
        super().__init__(
            f"run {run_id!r} was exported at {at} and is closed here: import the file where it is to go on, which may "
            "be here, or export it again if the file was lost"
        )


class RunFailedError(RunError):
    """A run that a host advances has failed. `reason` says of what."""

    def __init__(self, run_id: str, *, reason: str, at: str) -> None:
        self.run_id = run_id
        self.reason = reason
        self.at = at
        super().__init__(f"run {run_id!r} failed at {at}: {reason}; go on with host.recover({run_id!r})")


class RunParkedError(RunError):
    """A run was given up: every process that went on with it has died."""

    def __init__(self, run_id: str, *, reason: str, at: str) -> None:
        self.run_id = run_id
        self.reason = reason
        self.at = at
        super().__init__(f"run {run_id!r} was parked at {at}: {reason}; try again with host.recover({run_id!r})")


class UnknownWorkflowError(RunError, ValueError):
    """A host has no workflow of that name."""

    def __init__(self, workflow_name: str, *, known: Sequence[str]) -> None:
        self.workflow_name = workflow_name
        there_are = f"there are {', '.join(map(repr, known))}" if known else "none is registered"
        super().__init__(f"this host has no workflow {workflow_name!r}, {there_are}; give its factory to host.register")


class RunNotFoundError(RunError, ValueError):
    """There is no such run in the storage, or no run at all that the call could mean."""

    def __init__(self, run_id: str | None, *, has_storage: bool = True) -> None:
        self.run_id = run_id
        if run_id is None:
            message = (
                "this workflow instance has no run to go on with; give a message to start one, "
                "or the run_id or checkpoint_id of a stored one"
            )
        elif has_storage:
            message = f"there is no run {run_id!r} in this storage; give a message to start it"
        else:
            message = (
                f"there is no run {run_id!r} in this workflow instance, and no storage to look for it; give a message "
                "to start it, or give checkpoint_storage here or to WorkflowBuilder to resume it"
            )
        super().__init__(message)


class RunUnfinishedError(RunError, RuntimeError):
    """A fresh message for a run that failed or was abandoned and has work left, or that sleeps."""

    def __init__(self, run_id: str, *, checkpoint_id: str | None, sleeps_until: str | None = None) -> None:
        self.run_id = run_id
        self.checkpoint_id = checkpoint_id
        self.sleeps_until = sleeps_until
        way = f"run(run_id={run_id!r})"
        if checkpoint_id is not None:
            way += f" or run(checkpoint_id={checkpoint_id!r})"
        if sleeps_until is None:
            why = "has undelivered messages: its last turn failed or was abandoned"
        else:
            why = f"sleeps until {sleeps_until}: its turn is not over"
        super().__init__(f"run {run_id!r} {why}; go on with {way} before giving it a fresh message")


class ClaimLostError(RunError):
    """The claim on a run was replaced while this process held it."""

    def __init__(self, run_id: str, *, owner: str) -> None:
        self.run_id = run_id
        self.owner = owner
        super().__init__(
            f"run {run_id!r} was taken over by {owner}; this process may no longer write to it, "
            "and nothing more was written"
        )


class MissingRunKwargsError(RunError, ValueError):
    """Run kwargs that are secret or can't be encoded are kept by name only."""

    def __init__(self, *, run_id: str, names: Sequence[str]) -> None:
        self.run_id = run_id
        self.names = tuple(names)
        super().__init__(
            f"run {run_id!r} was started with kwargs that are not stored: {', '.join(self.names)}; "
            "give them again in the call that resumes it"
        )


class EventsForgottenError(RunError, ValueError):
    """Events that the retention has removed."""

    def __init__(self, run_id: str, *, asked: int, first: int) -> None:
        self.run_id = run_id
        self.asked = asked
        self.first = first
        super().__init__(
            f"event {asked} of run {run_id!r} is not kept any more; the first that is kept is {first}: "
            f"read with from_seq={first}, or keep more with Retention(events=...)"
        )


class RequestError(RunError, ValueError, RuntimeError):
    """An answer that can't be accepted. Nothing was changed."""

    def __init__(self, request_id: str, message: str) -> None:
        self.request_id = request_id
        super().__init__(message)


class UnknownRequestError(RequestError):
    """An answer to a request that the run does not have."""

    def __init__(self, request_id: str, *, pending: Sequence[str]) -> None:
        self.pending = tuple(pending)
        known = "no request is pending; run what asks it first, or name its run with run_id=..."
        if self.pending:
            known = f"pending are {', '.join(map(repr, self.pending))}; answer these, by their request_id"
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
        self.run_id = run_id
        self.answered_at = answered_at
        self.by = by
        self.what = what
        who = f" by {by}" if by else ""
        how = f" with {what}" if what else ""
        super().__init__(
            request_id,
            f"request {request_id!r} of run {run_id!r} was answered{who} at {answered_at}{how}; "
            f"go on with run(run_id={run_id!r}), or ask again in a fork of the checkpoint",
        )


class AnswerTypeError(RequestError):
    """The answer is not of the type that was asked for, or nobody handles it."""

    def __init__(self, request_id: str, *, expected: str, got: str) -> None:
        self.expected = expected
        self.got = got
        super().__init__(
            request_id,
            f"request {request_id!r} asks for {expected}, the answer is {got}; answer again, with {expected}",
        )


class ApprovalMismatchError(RequestError):
    """What was approved is not what is about to be done."""

    def __init__(self, request_id: str, *, approved: str | None, now: str) -> None:
        self.approved = approved
        self.now = now
        shown = f"approved was {approved}" if approved else "the request did not say what would be approved"
        super().__init__(
            request_id,
            f"the approval of request {request_id!r} does not cover this: {shown}, this is {now}; ask again with what "
            "is to be done now",
        )


class ValidationTypeEnum(Enum):
    """What a validation error is about."""

    EDGE_DUPLICATION = "EDGE_DUPLICATION"
    EXECUTOR_DUPLICATION = "EXECUTOR_DUPLICATION"
    TYPE_COMPATIBILITY = "TYPE_COMPATIBILITY"
    GRAPH_CONNECTIVITY = "GRAPH_CONNECTIVITY"
    HANDLER_OUTPUT_ANNOTATION = "HANDLER_OUTPUT_ANNOTATION"
    OUTPUT_VALIDATION = "OUTPUT_VALIDATION"


class WorkflowValidationError(WorkflowException):
    """The graph is not a workflow; found by `build()`."""

    def __init__(self, message: str, validation_type: ValidationTypeEnum) -> None:
        super().__init__(message)
        self.validation_type = validation_type

    def __str__(self) -> str:
        return f"[{self.validation_type.value}] {self.message}"


class EdgeDuplicationError(WorkflowValidationError):
    """The same two executors are joined twice."""

    def __init__(self, edge_id: str) -> None:
        super().__init__(
            f"Duplicate edge detected: {edge_id}. Each pair of executors may be joined once; "
            "put both conditions into one edge",
            ValidationTypeEnum.EDGE_DUPLICATION,
        )
        self.edge_id = edge_id


class TypeCompatibilityError(WorkflowValidationError):
    """Nothing that the source sends can be handled by the target."""

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
        self.source_executor_id = source_executor_id
        self.target_executor_id = target_executor_id
        self.source_types = list(source_types)
        self.target_types = list(target_types)


class GraphConnectivityError(WorkflowValidationError):
    """An executor can't be reached from the start."""

    def __init__(self, message: str) -> None:
        super().__init__(message, ValidationTypeEnum.GRAPH_CONNECTIVITY)


def _name(type_: object) -> str:
    return type_.__name__ if isinstance(type_, type) else str(type_)
