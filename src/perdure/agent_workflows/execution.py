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
from perdure.agent_workflows.errors import AgentWorkflowError, ExecutionNotFoundError, describe, quoted
from perdure.agent_workflows.graph import keep_waiting
from perdure.agent_workflows.history import (
    EventSummary,
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
    from collections.abc import AsyncGenerator, Coroutine, Sequence

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
            if kind is not None and not isinstance(event.data, kind):
                continue
            try:
                outcome = listener(event if kind is None else event.data)
                if inspect.isawaitable(outcome):
                    await outcome
            except Exception:
                # The event is named without its contents: texts of users and models must not get into logs.
                logger.exception("a subscriber of an agent workflow failed at %s; the execution goes on", event.type)


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
        self._waiting: dict[str, LiveExecution] = {}

    def call(
        self, execution_id: str | None, *, stream: bool, options: RunOptions, is_new: bool, **given: Any
    ) -> ResponseStream[WorkflowEvent[Any], AgentWorkflowResult] | Coroutine[Any, Any, AgentWorkflowResult]:
        """Begin or continue an execution. `given` are options of the engine. Raises TypeError or ValueError."""
        _require_id(execution_id)
        given |= options
        if "timeout" in given:
            given["deadline"] = given.pop("timeout")
        call = Call(self, execution_id, is_streamed=stream, options=given, is_new=is_new).stream()
        return call if stream else call.get_final_response()

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
        waiting = list(self._waiting)
        if execution_id is None and len(waiting) == 1:
            return waiting[0]
        if execution_id is not None and execution_id in self._waiting:
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
            keep_waiting(self._waiting, execution_id, live, f"the execution of workflow {self.parts.name!r}")
        else:
            self._waiting.pop(execution_id, None)


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
    _id: str = field(init=False)
    _live: LiveExecution = field(init=False, repr=False)

    def stream(self) -> ResponseStream[WorkflowEvent[Any], AgentWorkflowResult]:
        """Return the events as a stream, whose final response is the result."""
        return ResponseStream(self._events(), finalizer=self._result)

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
        stopping, clock = self.runner.parts.stopping, self.runner.parts.active_clock
        since: dict[str, str] = {}
        asked = await requests_of(self.runner.parts.execution_storage, self._id) if self._has_begun else ()
        # Their answers are stored and not applied yet.
        answered = {each.request_id for each in asked or () if each.answered_by is not None}
        failures: dict[str, WorkflowEvent[Any]] = {}
        async with aclosing(self._run_events(self._live.graph)) as events:
            async for event in events:
                if event.type == "request_info" and event.request_id in answered:
                    continue
                self._live.summary.note(event)
                if event.executor_id in stopping and not event.path:
                    if event.type == "executor_invoked":
                        failures.pop(event.executor_id, None)  # It is tried again, so it has not failed for good.
                        since.setdefault(event.executor_id, clock.now().isoformat())
                    elif event.type == "executor_failed":
                        failures[event.executor_id] = event
                if event.type == "failed":
                    # The conductor is not called any more, so it cannot emit that these nodes have ended.
                    summary = await self._summary() if failures else self._live.summary
                    now = clock.now().isoformat()
                    for actor, failure in failures.items():
                        data = summary.failure_event(
                            actor, failure, duration=seconds_since(clock, since.get(actor, now))
                        )
                        yield WorkflowEvent(data.type, data, executor_id=actor)
                yield event

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
        self._live = runner.live(self._id)

    async def _run_events(self, graph: Workflow) -> AsyncGenerator[WorkflowEvent[Any]]:
        if not (self.is_streamed or self.runner.subscribers):
            # Nobody reads events live, so agents need not stream.
            result: Awaitable[WorkflowRunResult] = graph.run(
                run_id=self._id, stream=False, include_status_events=True, **self.options
            )
            for event in await result:
                yield event
            return
        stream = graph.run(run_id=self._id, stream=True, **self.options)
        try:
            async for event in stream:
                yield event
        finally:
            await stream.aclose()

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
            asked = await requests_of(self.runner.parts.execution_storage, self._id)
            still_open = {each.request_id: each.data for each in asked or () if each.answered_by is None}
            requests = open_requests(events) if asked is None else still_open
            result = partial_result(self._id, await self._summary(), events, requests)
            result = result if result.duration else replace(result, duration=await self._duration())
        self.runner.release(self._id, self._live, result)
        return result

    async def _duration(self) -> float:
        since = await start_time(self.runner.parts.execution_storage, self._id) if self._has_begun else None
        return seconds_since(self.runner.parts.active_clock, since or self._live.since)


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
