"""Running executions: one call of `run` or `resume`, its events, its subscribers and its result."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from datetime import timedelta  # noqa: TC003 - RunOptions is read at run time
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypedDict, cast

from perdure import (
    AgentExecutorResponse,
    AlreadyAnsweredError,
    Message,
    ResponseStream,
    RunExistsError,
    UnknownRequestError,
    WorkflowEvent,
)
from perdure.agent_workflows.conductor.state import seconds_since
from perdure.agent_workflows.errors import AgentWorkflowError, ExecutionNotFoundError, quoted
from perdure.agent_workflows.graph import WaitingRoom
from perdure.agent_workflows.history import (
    EventSummary,
    FailureTracker,
    has_execution,
    latest_execution,
    open_requests,
    partial_result,
    requests_of,
    require_execution,
    result_in,
    start_time,
    stored_events,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from perdure import Workflow, WorkflowRunResult
    from perdure.agent_workflows.graph import Parts
    from perdure.agent_workflows.messages import AgentWorkflowResult

logger = logging.getLogger(__name__)

Listener: TypeAlias = Callable[[Any], object | Awaitable[object]]
RunErrors: TypeAlias = RunExistsError | AlreadyAnsweredError | UnknownRequestError
RUN_ERRORS: Final = (RunExistsError, AlreadyAnsweredError, UnknownRequestError)
"""Errors of the engine whose messages advise about runs."""


class RunOptions(TypedDict, total=False):
    """Options of `run` and `resume`."""

    timeout: timedelta | None
    budget: Mapping[str, float] | None
    function_invocation_kwargs: Mapping[str, Any] | None
    client_kwargs: Mapping[str, Any] | None


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
            if kind is None:
                await _call(listener, event)
            elif isinstance(event.data, kind):
                await _call(listener, event.data)


async def _call(listener: Listener, argument: object) -> None:
    try:
        outcome = listener(argument)
        if inspect.isawaitable(outcome):
            await outcome
    except Exception:
        logger.exception("a subscriber of an agent workflow failed at %s; the execution goes on", _name_event(argument))


def _name_event(argument: object) -> str:
    """Name an event without its contents: texts of users and models must not get into logs."""
    if isinstance(argument, WorkflowEvent):
        event = cast("WorkflowEvent[Any]", argument)
        data: object = event.data
        kind, node_id = f"{event.type} ({type(data).__name__})", getattr(data, "node_id", event.executor_id)
    else:
        kind, node_id = type(argument).__name__, getattr(argument, "node_id", None)
    return kind if node_id is None else f"{kind} of {node_id!r}"


@dataclass(frozen=True, slots=True)
class LiveExecution:
    """An execution in this process: its graph, and a summary of its events."""

    graph: Workflow
    summary: EventSummary
    since: str


class Runner:
    """Runs executions of one workflow, any number in parallel: each has its own executors."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.subscribers = Subscribers()
        self._waiting = WaitingRoom[LiveExecution](f"the execution of workflow {parts.name!r}")

    def begin(self, message: Any, execution_id: str | None, *, stream: bool, options: RunOptions) -> Call:
        """Return a call that begins an execution. Raises TypeError or ValueError for a wrong request or id."""
        _require_request(message)
        _require_id(execution_id)
        given = {**_engine_options(options), "message": message}
        return Call(self, execution_id, is_streamed=stream, options=given, is_new=True)

    def resume(
        self,
        execution_id: str | None,
        *,
        responses: Mapping[str, Any] | None,
        stream: bool,
        takeover: bool,
        options: RunOptions,
    ) -> Call:
        """Return a call that continues an execution, by default the latest. Raises TypeError or ValueError."""
        _require_id(execution_id)
        if responses is not None and not isinstance(cast("object", responses), Mapping):
            raise TypeError(f"responses are answers by the id of the request, as {{id: answer}}, not {responses!r}")
        given = {**_engine_options(options), "responses": responses, "takeover": takeover}
        return Call(self, execution_id, is_streamed=stream, options=given, is_new=False)

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
        storage = self.parts.execution_storage
        return storage is not None and await has_execution(storage, self.parts.name, execution_id)

    def live(self, execution_id: str) -> LiveExecution:
        """Return the execution that waits in this process, or a new object for it."""
        found = self._waiting.get(execution_id)
        if found is not None:
            return found
        graph = self.parts.graph("result", storage=self.parts.execution_storage)
        return LiveExecution(graph, EventSummary(self.parts.plan), self.parts.active_clock.now().isoformat())

    def _find_waiting(self, execution_id: str | None) -> str:
        waiting = self._waiting.ids
        if execution_id is None and len(waiting) == 1:
            return waiting[0]
        if execution_id is not None and self._waiting.get(execution_id) is not None:
            return execution_id
        name, there = self.parts.name, quoted(waiting)
        if not there:
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

    def release(self, execution_id: str, live: LiveExecution, result: AgentWorkflowResult) -> None:
        """Keep an execution that has no store and waits for answers; let go of any other."""
        if self.parts.execution_storage is None and result.is_waiting:
            self._waiting.add(execution_id, live)
        else:
            self._waiting.remove(execution_id)


@dataclass
class Call:
    """One call of `run` or `resume`: it runs an execution until it is idle."""

    runner: Runner
    execution_id: str | None
    is_streamed: bool
    options: dict[str, Any] = field(repr=False)
    is_new: bool
    _has_begun: bool = field(default=False, init=False)
    """The execution began before this call."""
    _live_execution: LiveExecution | None = field(default=None, init=False, repr=False)

    def stream(self) -> ResponseStream[WorkflowEvent[Any], AgentWorkflowResult]:
        """Return the events as a stream, whose final response is the result."""
        return ResponseStream(self._events(), finalizer=self._result)

    @property
    def _id(self) -> str:
        assert self.execution_id is not None, "the call has started"
        return self.execution_id

    @property
    def _live(self) -> LiveExecution:
        assert self._live_execution is not None, "the call has started"
        return self._live_execution

    async def _events(self) -> AsyncGenerator[WorkflowEvent[Any]]:
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
        answered = await self._answered_requests() if self._has_begun else frozenset[str]()
        failures = FailureTracker(parts.active_clock, parts.stopping)
        async with aclosing(self._run_events(self._live.graph)) as events:
            async for event in events:
                if event.type == "request_info" and event.request_id in answered:
                    continue
                self._live.summary.note(event)
                failures.note(event)
                if event.type == "failed" and failures:
                    for failure in failures.events(await self._summary()):
                        yield failure
                yield event

    async def _start(self) -> None:
        """Find the execution and its graph."""
        runner = self.runner
        if not self.is_new:
            self.execution_id, self._has_begun = await runner.find(self.execution_id), True
        elif self.execution_id is None:
            self.execution_id = runner.parts.active_clock.new_id()
        else:
            self._has_begun = await runner.has_begun(self.execution_id)
        if not self._has_begun:
            # For an execution that has begun, the timeout counts from its start.
            self.options.setdefault("deadline", runner.parts.definition.timeout)
        self._live_execution = runner.live(self._id)

    async def _run_events(self, graph: Workflow) -> AsyncGenerator[WorkflowEvent[Any]]:
        if not (self.is_streamed or self.runner.subscribers):
            # Nobody reads events live, so agents need not stream.
            result: Awaitable[WorkflowRunResult] = graph.run(
                run_id=self.execution_id, stream=False, include_status_events=True, **self.options
            )
            for event in await result:
                yield event
            return
        stream = graph.run(run_id=self.execution_id, stream=True, **self.options)
        try:
            async for event in stream:
                yield event
        finally:
            await stream.aclose()

    async def _answered_requests(self) -> frozenset[str]:
        """Return the requests whose answers are stored and not applied yet."""
        asked = await requests_of(self.runner.parts.execution_storage, self._id) or ()
        return frozenset(each.request_id for each in asked if each.answered_by is not None)

    async def _summary(self) -> EventSummary:
        """Summarize the events of this process, or the stored ones if the execution began elsewhere."""
        live, storage = self._live.summary, self.runner.parts.execution_storage
        if live.has_begun or storage is None:
            return live
        summary = EventSummary(live.plan)
        async for event in stored_events(storage, self._id):
            summary.note(event)
        return summary if summary.has_begun else live

    async def _result(self, events: Sequence[WorkflowEvent[Any]]) -> AgentWorkflowResult:
        result = result_in(events, self._id)
        if result is None:
            requests = await self._requests(events)
            result = partial_result(self._id, await self._summary(), events, requests)
            result = result if result.duration else replace(result, duration=await self._duration())
        self.runner.release(self._id, self._live, result)
        return result

    async def _requests(self, events: Sequence[WorkflowEvent[Any]]) -> Mapping[str, Any]:
        asked = await requests_of(self.runner.parts.execution_storage, self._id)
        if asked is None:
            return open_requests(events)
        return {each.request_id: each.data for each in asked if each.answered_by is None}

    async def _duration(self) -> float:
        since = await start_time(self.runner.parts.execution_storage, self._id) if self._has_begun else None
        return seconds_since(self.runner.parts.active_clock, since or self._live.since)


def _engine_options(options: RunOptions) -> dict[str, Any]:
    """Return the options by their names in the engine. Raises TypeError for an unknown one."""
    given: dict[str, Any] = dict(options)
    unknown = given.keys() - RunOptions.__annotations__.keys()
    if unknown:
        known = ", ".join(RunOptions.__annotations__)
        raise TypeError(f"there is no option {min(unknown)!r}; there are {known}")
    if "timeout" in given:
        given["deadline"] = given.pop("timeout")
    return given


def _require_request(request: object) -> None:  # noqa: C901 - one case per kind of request
    match request:
        case str():
            if not request.strip():
                raise ValueError("an agent workflow begins with a request, and this text is empty")
        case Message() | AgentExecutorResponse():
            pass
        case list():
            messages = cast("list[object]", request)
            if not messages:
                raise ValueError("an agent workflow begins with a request, and this list of messages is empty")
            for place, each in enumerate(messages):
                if not isinstance(each, str | Message):
                    raise TypeError(f"a request that is a list has texts and Messages; its item {place} is {each!r}")
        case dict():
            wrong = [key for key in cast("dict[object, object]", request) if not isinstance(key, str)]
            if wrong:
                raise TypeError(
                    f"a request of values has texts as keys, which nodes read as input.<key>; {wrong[0]!r} is none"
                )
        case Mapping():
            kind = type(cast("object", request)).__name__
            raise TypeError(f"a request of values is a dict, not a {kind}; give dict(...)")
        case _:
            given = "None" if request is None else f"a {type(request).__name__}"
            raise TypeError(
                "an agent workflow begins with a text, a Message, a list of them, or a dict of values, not with "
                f"{given}; to go on with an execution call resume(execution_id)"
            )


def _require_id(execution_id: object) -> None:
    if execution_id is None:
        return
    if not isinstance(execution_id, str):
        raise TypeError(f"an execution_id is a text, not {execution_id!r}")
    if not execution_id:
        raise ValueError("an execution_id is a text that is not empty; leave it out to have one made")


def translate(error: RunErrors) -> RunErrors:
    """Return an error of the engine with a message about executions instead of runs."""
    error.message = _message_of(error)
    error.args = (error.message,)
    return error


def _message_of(error: RunErrors) -> str:
    match error:
        case RunExistsError():
            began, remedy = "began with another input", f"go on with it with resume({error.run_id!r}), or "
            if "is a run of workflow" in str(error):
                began, remedy = "is one of another workflow", ""
            return f"execution {error.run_id!r} exists and {began}; {remedy}choose another execution_id"
        case AlreadyAnsweredError():
            who = f" by {error.by}" if error.by else ""
            how = f" with {error.what}" if error.what else ""
            return (
                f"request {error.request_id!r} of execution {error.run_id!r} was answered{who} at {error.answered_at}"
                f"{how}; go on with resume({error.run_id!r}), without an answer to it"
            )
        case UnknownRequestError():
            asked = quoted(error.pending)
            open_ = (
                f"; open are {asked}: answer these, by their ids" if asked else ": the execution has no open requests"
            )
            return f"there is no request {error.request_id!r} to answer{open_}"
