"""Running executions: one call of `run` or `resume`, its events, its subscribers and its result."""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from datetime import timedelta  # noqa: TC003 - RunOptions is read at run time
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypedDict, cast

from perdure import (
    AgentExecutorResponse,
    AgentResponse,
    AlreadyAnsweredError,
    Message,
    ResponseStream,
    RunExistsError,
    UnknownRequestError,
    WorkflowEvent,
    WorkflowRunState,
)
from perdure.agent_workflows.conductor.conductor import RESULT_PROPERTY
from perdure.agent_workflows.conductor.state import ExecutionState, completion_event, make_result
from perdure.agent_workflows.errors import AgentWorkflowError, ExecutionNotFoundError, describe, quoted
from perdure.agent_workflows.graph import Parts, keep_waiting
from perdure.agent_workflows.messages import AgentWorkflowResult, ExecutionState as ExecutionStatus
from perdure.agent_workflows.stores import answered_requests, find_run, latest_execution, require_execution
from perdure.agent_workflows.validation import CONDUCTOR

if TYPE_CHECKING:
    from perdure import State, Workflow, WorkflowRunResult

logger = logging.getLogger(__name__)

Listener: TypeAlias = Callable[[Any], object | Awaitable[object]]
RunErrors: TypeAlias = RunExistsError | AlreadyAnsweredError | UnknownRequestError
RUN_ERRORS: Final = (RunExistsError, AlreadyAnsweredError, UnknownRequestError)
"""Errors of the engine whose messages advise about runs."""


class RunOptions(TypedDict, total=False):
    """Options of `run`, which `resume` takes too."""

    timeout: timedelta | None
    budget: Mapping[str, float] | None
    function_invocation_kwargs: Mapping[str, Any] | None
    client_kwargs: Mapping[str, Any] | None


class ResumeOptions(RunOptions, total=False):
    """Options of `resume`."""

    responses: Mapping[str, Any] | None
    takeover: bool


class Subscribers:
    """Functions that receive events in order. A failing one is logged, and the execution goes on."""

    def __init__(self) -> None:
        self._listeners: dict[object, tuple[type[Any] | None, Listener]] = {}

    def __bool__(self) -> bool:
        return bool(self._listeners)

    def add(self, kind: type[Any] | None, listener: Listener) -> Callable[[], None]:
        """Subscribe to events with data of a class, or to all. Call the returned function to end it."""
        key = object()
        self._listeners[key] = (kind, listener)

        def end() -> None:
            self._listeners.pop(key, None)

        return end

    async def notify(self, event: WorkflowEvent[Any]) -> None:
        """Call the functions that subscribed to an event."""
        for kind, listener in list(self._listeners.values()):
            if kind is not None and not isinstance(event.data, kind):
                continue
            try:
                outcome = listener(event if kind is None else event.data)
                if inspect.isawaitable(outcome):
                    await outcome
            except Exception:
                # The event is named without its contents: texts of users and models must not get into logs.
                logger.exception("a subscriber of an agent workflow failed at %s; the execution goes on", event.type)


class Runner:
    """Runs executions of one workflow, any number in parallel: each has its own executors."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.subscribers = Subscribers()
        self.waiting: dict[str, Workflow] = {}

    def call(
        self, execution_id: str | None, *, stream: bool, options: RunOptions, is_new: bool, **given: Any
    ) -> ResponseStream[WorkflowEvent[Any], AgentWorkflowResult] | Coroutine[Any, Any, AgentWorkflowResult]:
        """Begin or continue an execution. `given` are options of the engine. Raises TypeError or ValueError."""
        _require_id(execution_id)
        given |= options
        if "timeout" in given:
            given["deadline"] = given.pop("timeout")
        call = Call(self, execution_id, is_streamed=stream, options=given, is_new=is_new)
        events = ResponseStream(call.events(), finalizer=call.result)
        return events if stream else events.get_final_response()

    async def find(self, execution_id: str | None) -> str:
        """Return the id of an execution to continue. Raises AgentWorkflowError."""
        storage = self.parts.execution_storage
        if storage is None:
            return self._find_waiting(execution_id)
        if execution_id is None:
            return await latest_execution(storage, self.parts.name)
        await require_execution(storage, self.parts.name, execution_id)
        return execution_id

    async def has_begun(self, execution_id: str) -> bool:
        """Return True if the store has an execution. Raises RunExistsError if it is one of another workflow."""
        info = await find_run(self.parts.execution_storage, execution_id)
        if info is not None and info.workflow_name != self.parts.name:
            raise RunExistsError(execution_id, workflow_name=info.workflow_name)
        return info is not None

    def graph(self, execution_id: str) -> Workflow:
        """Return the graph of the execution that waits in this process, or a new one."""
        return self.waiting.get(execution_id) or self.parts.graph("result", storage=self.parts.execution_storage)

    def _find_waiting(self, execution_id: str | None) -> str:
        waiting = list(self.waiting)
        if execution_id is None and len(waiting) == 1:
            return waiting[0]
        if execution_id is not None and execution_id in self.waiting:
            return execution_id
        name, there = self.parts.name, quoted(waiting)
        if not waiting:
            raise AgentWorkflowError(
                f"workflow {name!r} keeps no executions, so there is nothing to resume: build it with "
                "with_checkpointing() and a workflow store"
            )
        if execution_id is None:
            raise AgentWorkflowError(f"several executions of workflow {name!r} wait, name one of them: {there}")
        raise ExecutionNotFoundError(
            name,
            execution_id,
            reason=f"workflow {name!r} keeps no executions, and {execution_id!r} is none of those that wait in this "
            f"process: {there}; to find it later, build it with with_checkpointing() and a workflow store",
        )


@dataclass
class Call:
    """One call of `run` or `resume`: it runs an execution until it is idle.

    Attributes:
        _has_begun: The execution began before this call.
    """

    runner: Runner
    execution_id: str | None
    is_streamed: bool
    options: dict[str, Any] = field(repr=False)
    is_new: bool
    _has_begun: bool = field(default=False, init=False)
    _id: str = field(init=False)
    _graph: Workflow = field(init=False, repr=False)

    async def events(self) -> AsyncGenerator[WorkflowEvent[Any]]:
        """Run the execution until it is idle, and yield its events."""
        try:
            await self._start()
            async with aclosing(self._completed_events()) as events:
                async for event in events:
                    await self.runner.subscribers.notify(event)
                    yield event
        except RUN_ERRORS as error:
            raise translate(error) from error.__cause__

    async def _completed_events(self) -> AsyncGenerator[WorkflowEvent[Any]]:
        """Yield the events of the run, without requests that are answered, and with failures that stop it."""
        parts = self.runner.parts
        storage, stopping = parts.execution_storage, parts.stopping
        # Their answers are stored and not applied yet.
        answered = await answered_requests(storage, self._id) if self._has_begun else ()
        failures: dict[str, WorkflowEvent[Any]] = {}
        async with aclosing(self._run_events()) as events:
            async for event in events:
                if event.type == "request_info" and event.request_id in answered:
                    continue
                if event.executor_id in stopping and not event.path:
                    if event.type == "executor_invoked":
                        failures.pop(event.executor_id, None)  # It is tried again, so it has not failed for good.
                    elif event.type == "executor_failed":
                        failures[event.executor_id] = event
                for actor, failure in failures.items() if event.type == "failed" else ():
                    # The conductor is not called any more.
                    state, details = self._state(), failure.details
                    if (task := state.active.get(actor)) is not None:
                        error = "" if details is None else f"{details.error_type}: {details.message}"
                        data = completion_event(parts.plan, state.progress, task, parts.active_clock, error=error)
                        yield WorkflowEvent(data.type, data, executor_id=actor)
                yield event

    def _state(self) -> ExecutionState:
        """Return the state of the execution, to be read only."""
        return ExecutionState(cast("State", self._graph.executor_scope(CONDUCTOR)))

    async def _start(self) -> None:
        """Find the execution and its graph."""
        runner = self.runner
        if not self.is_new:
            self._id, self._has_begun = await runner.find(self.execution_id), True
        elif self.execution_id is None:
            self._id = runner.parts.active_clock.new_id()
        else:
            self._id, self._has_begun = self.execution_id, await runner.has_begun(self.execution_id)
        if not self._has_begun:
            # For an execution that has begun, the timeout counts from its start.
            self.options.setdefault("deadline", runner.parts.definition.timeout)
        self._graph = runner.graph(self._id)

    async def _run_events(self) -> AsyncGenerator[WorkflowEvent[Any]]:
        if not (self.is_streamed or self.runner.subscribers):
            # Nobody reads events live, so agents need not stream.
            result: Awaitable[WorkflowRunResult] = self._graph.run(
                run_id=self._id, stream=False, include_status_events=True, **self.options
            )
            for event in await result:
                yield event
            return
        stream = self._graph.run(run_id=self._id, stream=True, **self.options)
        try:
            async for event in stream:
                yield event
        finally:
            await stream.aclose()

    def result(self, events: Sequence[WorkflowEvent[Any]]) -> AgentWorkflowResult:
        """Return the result: the one that the execution yielded, or what follows from its state."""
        runner, parts, state = self.runner, self.runner.parts, self._state()
        result = _result_in(events)
        if result is None and state.has_started:
            known = make_result(parts.plan, state, parts.active_clock)
            result = known if state.record.is_finished else _partial_result(known, events)
        elif result is None:
            result = _partial_result(AgentWorkflowResult(self._id, success=False), events)
        if parts.execution_storage is None and result.is_waiting:
            keep_waiting(runner.waiting, self._id, self._graph, f"the execution of workflow {parts.name!r}")
        else:
            runner.waiting.pop(self._id, None)
        # Inside another run, an execution knows itself by another id.
        return replace(result, execution_id=self._id)


# The name under which the engine cancels a run whose time is up.
_DEADLINE: Final = "its deadline"
_STATUS: Final[Mapping[WorkflowRunState, ExecutionStatus]] = {
    WorkflowRunState.IDLE_WITH_PENDING_REQUESTS: "waiting",
    WorkflowRunState.IN_PROGRESS_PENDING_REQUESTS: "waiting",
    WorkflowRunState.SLEEPING: "sleeping",
    WorkflowRunState.CANCELLED: "cancelled",
}


def _result_in(events: Iterable[WorkflowEvent[Any]]) -> AgentWorkflowResult | None:
    """Return the result that an execution yielded, in whichever form."""
    found: AgentWorkflowResult | None = None
    for event in events:
        if event.type != "output":
            continue
        data: object = event.data
        if isinstance(data, AgentResponse):
            data = cast("AgentResponse[Any]", data).additional_properties.get(RESULT_PROPERTY)
        if isinstance(data, Mapping):
            found = AgentWorkflowResult(**cast("Mapping[str, Any]", data))
        elif isinstance(data, AgentWorkflowResult):
            found = data
    return found


def _partial_result(known: AgentWorkflowResult, events: Sequence[WorkflowEvent[Any]]) -> AgentWorkflowResult:
    """Return the result of an execution that has yielded none. `known` is what follows from its state."""
    states = [event.state for event in events if event.state is not None]
    status: ExecutionStatus = _STATUS.get(states[-1], "completed") if states else "completed"
    requests = _open_requests(events) if status == "waiting" else {}
    reasons = {
        "waiting": "it waits for answers: give them to resume(responses={id: ...}), the ids are those of `requests`"
        if requests
        else "what it has asked is answered: resume() goes on with it",
        "sleeping": "it waits for its time: resume() goes on with it",
        "cancelled": _cancellation_text(events),
        "completed": "it has ended without a result",
    }
    error = reasons[status]
    return replace(known, success=False, final_answer=None, state=status, requests=requests, error=error)


def _cancellation_text(events: Sequence[WorkflowEvent[Any]]) -> str:
    found = [dict(event.data) for event in events if event.type == "cancelled" and event.data]
    about: dict[str, Any] = found[-1] if found else {}
    reason = f" ({about['reason']})" if about.get("reason") else ""
    if about.get("by") == _DEADLINE:
        return f"its time was up{reason}: resume(timeout=...) goes on with it, with more time"
    by = f" by {about['by']}" if about.get("by") else ""
    return f"it was cancelled{by}{reason}: resume() goes on with it"


def _open_requests(events: Iterable[WorkflowEvent[Any]]) -> dict[str, Any]:
    """Return the requests by id that these events ask and do not answer."""
    found: dict[str, Any] = {}
    for event in events:
        if event.type == "request_info":
            found[event.request_id] = event.data
        elif event.type == "answered":
            found.pop(event.request_id, None)
    return found


def require_request(request: Any) -> None:
    """Raise TypeError or ValueError for a request that no execution can begin with."""
    if not isinstance(request, str | Message | AgentExecutorResponse | list | dict):
        raise TypeError(
            "an agent workflow begins with a text, a Message, a list of them, or a dict of values, not with "
            f"{describe(request)}; to go on with an execution call resume(execution_id)"
        )
    parts = cast("list[Any] | dict[Any, Any]", request) if isinstance(request, list | dict) else ()
    kinds = str | Message if isinstance(request, list) else str
    for part in parts:
        if not isinstance(part, kinds):
            raise TypeError(f"a request has texts and Messages, or a dict with texts as keys, not {describe(part)}")
    if request == [] or (isinstance(request, str) and not request.strip()):
        raise ValueError("an agent workflow begins with a request, and this one is empty")


def _require_id(execution_id: object) -> None:
    if execution_id is not None and not isinstance(execution_id, str):
        raise TypeError(f"an execution_id is a text, not {execution_id!r}")
    if execution_id == "":
        raise ValueError("an execution_id is a text that is not empty; leave it out to have one made")


_WORDS: Final = (("run(run_id=", "resume("), ("run_id", "execution_id"), ("a run of", "one of"), ("run ", "execution "))


def translate(error: RunErrors) -> RunErrors:
    """Return an error of the engine with a message about executions instead of runs."""
    text = str(error)
    for ours, theirs in _WORDS:
        text = text.replace(ours, theirs)
    error.message = text
    error.args = (text,)
    return error
