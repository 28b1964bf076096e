"""One call of an agent workflow: an execution that begins, or goes on, until it rests."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypedDict

from perdure import ResponseStream
from perdure.agent_workflows.errors import AgentWorkflowError, ExecutionNotFoundError
from perdure.agent_workflows.timing import seconds_since
from perdure.agent_workflows.workflow_events import Failures, given_result, known_result, told_requests
from perdure.agent_workflows.workflow_finding import found_execution, is_begun, latest_execution, requests_of
from perdure.agent_workflows.workflow_held import Held
from perdure.agent_workflows.workflow_known import Known
from perdure.agent_workflows.workflow_listening import Listeners
from perdure.agent_workflows.workflow_origins import begun_at, told_by
from perdure.agent_workflows.workflow_words import (
    ABOUT_RUNS,
    in_own_words,
    require_id,
    require_request,
    require_responses,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Mapping, Sequence
    from datetime import timedelta

    from perdure import Workflow, WorkflowEvent, WorkflowRunResult
    from perdure.agent_workflows.result import AgentWorkflowResult
    from perdure.agent_workflows.workflow_graph import Parts


class RunOptions(TypedDict, total=False):
    """What a call may say of time, cost, tools and models."""

    timeout: timedelta | None
    budget: Mapping[str, float] | None
    function_invocation_kwargs: Mapping[str, Any] | None
    client_kwargs: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class Resting:
    """An execution that waits for answers and is kept nowhere else: what goes on with it, and what is known of it."""

    graph: Workflow
    known: Known
    since: str


class Runner:
    """Runs executions of one workflow, any number side by side: each has executors of its own."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.listeners = Listeners()
        self._resting = Held[Resting](f"the execution of workflow {parts.name!r}")

    def begin(self, message: Any, execution_id: str | None, *, stream: bool, options: RunOptions) -> Call:
        """A call that begins an execution. Raises TypeError or ValueError for what none can begin with."""
        require_request(message)
        require_id(execution_id)
        given = {**_engine_options(options), "message": message}
        return Call(self, execution_id, is_streamed=stream, options=given, is_new=True)

    def go_on(
        self,
        execution_id: str | None,
        *,
        responses: Mapping[str, Any] | None,
        stream: bool,
        takeover: bool,
        options: RunOptions,
    ) -> Call:
        """A call that goes on with an execution, the latest if none is named. Raises TypeError or ValueError."""
        require_id(execution_id)
        require_responses(responses)
        given = {**_engine_options(options), "responses": responses, "takeover": takeover}
        return Call(self, execution_id, is_streamed=stream, options=given, is_new=False)

    async def found(self, execution_id: str | None) -> str:
        """The id of an execution that goes on. Raises AgentWorkflowError."""
        kept_in = self.parts.kept_in
        if kept_in is None:
            return self._resting_id(execution_id)
        if execution_id is None:
            return await latest_execution(kept_in, self.parts.name)
        await found_execution(kept_in, self.parts.name, execution_id)
        return execution_id

    async def is_begun(self, execution_id: str) -> bool:
        """Whether the store has an execution. Raises RunExistsError if it is one of another workflow."""
        kept_in = self.parts.kept_in
        return kept_in is not None and await is_begun(kept_in, self.parts.name, execution_id)

    def resting(self, execution_id: str) -> Resting:
        """What goes on with an execution in this process; anew, if it does not rest here."""
        found = self._resting.get(execution_id)
        if found is not None:
            return found
        graph = self.parts.graph("result", storage=self.parts.kept_in)
        return Resting(graph, Known(self.parts.plan()), self.parts.time().now().isoformat())

    def _resting_id(self, execution_id: str | None) -> str:
        waiting = self._resting.ids
        if execution_id is None and len(waiting) == 1:
            return waiting[0]
        if execution_id is not None and self._resting.get(execution_id) is not None:
            return execution_id
        name, there = self.parts.name, ", ".join(map(repr, waiting))
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

    def rest(self, execution_id: str, resting: Resting, result: AgentWorkflowResult) -> None:
        """Hold what has no store and waits for answers, as long as it does."""
        if self.parts.kept_in is None and result.is_waiting:
            self._resting.hold(execution_id, resting)
        else:
            self._resting.release(execution_id)


@dataclass
class Call:
    """An execution from where it stands until it rests."""

    runner: Runner
    execution_id: str | None
    is_streamed: bool
    options: dict[str, Any] = field(repr=False)
    is_new: bool
    _is_begun: bool = field(default=False, init=False)
    """Whether it has begun before this call."""
    _resting: Resting | None = field(default=None, init=False, repr=False)

    def stream(self) -> ResponseStream[WorkflowEvent[Any], AgentWorkflowResult]:
        """Its events, and at the end what it has come to."""
        return ResponseStream(self._events(), finalizer=self._result)

    @property
    def _id(self) -> str:
        assert self.execution_id is not None, "a call that goes on has an execution"
        return self.execution_id

    @property
    def _here(self) -> Resting:
        assert self._resting is not None, "a call that goes on has something to run"
        return self._resting

    async def _events(self) -> AsyncGenerator[WorkflowEvent[Any]]:
        try:
            await self._enter()
            async with aclosing(self._heard()) as events:
                async for event in events:
                    await self.runner.listeners.tell(event)
                    yield event
        except ABOUT_RUNS as error:
            raise in_own_words(error) from error.__cause__

    async def _heard(self) -> AsyncGenerator[WorkflowEvent[Any]]:
        """What is told, without what was answered meanwhile, and with what the conductor had no chance to tell."""
        parts = self.runner.parts
        answered = await self._answered() if self._is_begun else frozenset[str]()
        failures = Failures(parts.time(), parts.stopping)
        async with aclosing(self._told(self._here.graph)) as events:
            async for told in events:
                if told.type == "request_info" and told.request_id in answered:
                    continue
                self._here.known.note(told)
                failures.note(told)
                if told.type == "failed" and failures:
                    for event in failures.told(await self._known()):
                        yield event
                yield told

    async def _enter(self) -> None:
        """Find out which execution it is, and what goes on with it."""
        runner = self.runner
        if not self.is_new:
            self.execution_id, self._is_begun = await runner.found(self.execution_id), True
        elif self.execution_id is None:
            self.execution_id = runner.parts.time().new_id()
        else:
            self._is_begun = await runner.is_begun(self.execution_id)
        if not self._is_begun:
            # The time of one that has begun counts from where it did.
            self.options.setdefault("deadline", runner.parts.definition.timeout)
        self._resting = runner.resting(self._id)

    async def _told(self, graph: Workflow) -> AsyncGenerator[WorkflowEvent[Any]]:
        if not (self.is_streamed or self.runner.listeners):
            # Nobody hears it while it happens: then it need not be told in pieces.
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

    async def _answered(self) -> frozenset[str]:
        """The requests whose answers wait for the execution to go on: they need not be told any more."""
        asked = await requests_of(self.runner.parts.kept_in, self._id) or ()
        return frozenset(each.request_id for each in asked if each.answered_by is not None)

    async def _known(self) -> Known:
        """What is known of the execution: by what it has told here, or, if it began elsewhere, by what is kept."""
        here, kept_in = self._here.known, self.runner.parts.kept_in
        if here.has_begun or kept_in is None:
            return here
        known = Known(here.plan)
        async for event in told_by(kept_in, self._id):
            known.note(event)
        return known if known.has_begun else here

    async def _result(self, events: Sequence[WorkflowEvent[Any]]) -> AgentWorkflowResult:
        result = given_result(events, self._id)
        if result is None:
            requests = await self._requests(events)
            result = known_result(self._id, await self._known(), events, requests)
            result = result if result.duration else replace(result, duration=await self._duration())
        self.runner.rest(self._id, self._here, result)
        return result

    async def _requests(self, events: Sequence[WorkflowEvent[Any]]) -> Mapping[str, Any]:
        asked = await requests_of(self.runner.parts.kept_in, self._id)
        if asked is None:
            return told_requests(events)
        return {each.request_id: each.data for each in asked if each.answered_by is None}

    async def _duration(self) -> float:
        since = await begun_at(self.runner.parts.kept_in, self._id) if self._is_begun else None
        return seconds_since(self.runner.parts.time(), since or self._here.since)


def _engine_options(options: RunOptions) -> dict[str, Any]:
    """What the engine calls the same. Raises TypeError for what nobody knows."""
    given: dict[str, Any] = dict(options)
    unknown = given.keys() - RunOptions.__annotations__.keys()
    if unknown:
        known = ", ".join(RunOptions.__annotations__)
        raise TypeError(f"there is no option {min(unknown)!r}; there are {known}")
    if "timeout" in given:
        given["deadline"] = given.pop("timeout")
    return given
