"""One call of an agent workflow: an execution that begins, or goes on, until it rests."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypedDict

from perdure import ResponseStream
from perdure.agent_workflows.config import to_config
from perdure.agent_workflows.errors import AgentWorkflowError
from perdure.agent_workflows.workflow_events import Narrator, result_of
from perdure.agent_workflows.workflow_finding import definitions_in, found_execution, is_known, latest_execution
from perdure.agent_workflows.workflow_listening import Listeners

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


class Runner:
    """Runs executions of one workflow, any number side by side: each has executors of its own."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.listeners = Listeners()
        self._resting: dict[str, Workflow] = {}
        """Those that wait for answers and are kept nowhere else: by execution, what goes on with it."""
        self._is_saved = False

    def begin(self, message: Any, execution_id: str | None, *, stream: bool, options: RunOptions) -> Call:
        """A call that begins an execution."""
        chosen = execution_id or self.parts.time().new_id()
        given = {**_engine_options(options), "message": message}
        return Call(self, chosen, is_streamed=stream, options=given, is_new=True)

    def go_on(
        self,
        execution_id: str | None,
        *,
        responses: Mapping[str, Any] | None,
        stream: bool,
        takeover: bool,
        options: RunOptions,
    ) -> Call:
        """A call that goes on with an execution, the latest if none is named."""
        given = {**_engine_options(options), "responses": responses, "takeover": takeover}
        return Call(self, execution_id, is_streamed=stream, options=given, is_new=False)

    async def save_definition(self) -> None:
        """Keep the definition in the workflow store. The same again is no new version."""
        definitions = None if self.parts.storage is None or self._is_saved else definitions_in(self.parts.storage)
        if definitions is not None:
            await definitions.save(to_config(self.parts.definition).config)
        self._is_saved = True

    async def graph_of(self, execution_id: str | None, *, is_new: bool) -> tuple[str, Workflow]:
        """The id of an execution, and what goes on with it. Raises AgentWorkflowError."""
        kept_in = self.parts.kept_in
        if kept_in is None and not is_new:
            return self._rested(execution_id)
        if execution_id is None or not is_new:
            execution_id = await self._found(execution_id)
        return execution_id, self.parts.graph("result", storage=kept_in, execution_id=execution_id)

    async def _found(self, execution_id: str | None) -> str:
        kept_in = self.parts.kept_in
        assert kept_in is not None, "what is looked for is kept somewhere"
        if execution_id is None:
            return await latest_execution(kept_in, self.parts.name)
        await found_execution(kept_in, self.parts.name, execution_id)
        return execution_id

    async def has_begun(self, execution_id: str) -> bool:
        """Whether the store has it, of a workflow with a limit of time: that counts from where it began."""
        kept_in = self.parts.kept_in
        if kept_in is None or self.parts.definition.timeout is None:
            return False
        return await is_known(kept_in, execution_id)

    def _rested(self, execution_id: str | None) -> tuple[str, Workflow]:
        if execution_id is None and len(self._resting) == 1:
            execution_id = next(iter(self._resting))
        if execution_id in self._resting:
            return execution_id, self._resting[execution_id]
        raise AgentWorkflowError(
            f"workflow {self.parts.name!r} keeps no executions, so there is nothing to resume: build it with "
            "with_checkpointing() and a workflow store"
        )

    def rest(self, execution_id: str, graph: Workflow, result: AgentWorkflowResult) -> None:
        """Hold what has no store and waits for answers, as long as it does."""
        if self.parts.kept_in is None and result.is_waiting:
            self._resting[execution_id] = graph
        else:
            self._resting.pop(execution_id, None)


@dataclass
class Call:
    """An execution from where it stands until it rests."""

    runner: Runner
    execution_id: str | None
    is_streamed: bool
    options: dict[str, Any] = field(repr=False)
    is_new: bool
    _graph: Workflow | None = field(default=None, init=False, repr=False)

    def stream(self) -> ResponseStream[WorkflowEvent[Any], AgentWorkflowResult]:
        """Its events, and at the end what it has come to."""
        return ResponseStream(self._events(), finalizer=self._result)

    async def _events(self) -> AsyncGenerator[WorkflowEvent[Any]]:
        runner = self.runner
        await runner.save_definition()
        self.execution_id, self._graph = await runner.graph_of(self.execution_id, is_new=self.is_new)
        if self.is_new and "deadline" not in self.options and not await runner.has_begun(self.execution_id):
            self.options["deadline"] = runner.parts.definition.timeout
        narrator = Narrator(runner.parts.definition)
        events = self._told(self._graph)
        try:
            async for told in events:
                for event in narrator.told(told):
                    await runner.listeners.tell(event)
                    yield event
        finally:
            await events.aclose()

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

    def _result(self, events: Sequence[WorkflowEvent[Any]]) -> AgentWorkflowResult:
        assert self.execution_id is not None, "a call that has ended has an execution"
        assert self._graph is not None, "a call that has ended has run something"
        result = result_of(self.execution_id, events)
        self.runner.rest(self.execution_id, self._graph, result)
        return result


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
