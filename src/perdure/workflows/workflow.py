"""`Workflow`: a definition that can be run, and the run that this instance stands for."""

from __future__ import annotations

import json
import logging
import math
import weakref
from asyncio import CancelledError
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, overload

from perdure.clock import SystemClock, moment_of
from perdure.engine import (
    ABSENT,
    FRAMEWORK,
    Blueprint,
    Call,
    ChangeDetector,
    Closing,
    Session,
    accepts,
    final_state,
    is_unfinished,
)
from perdure.errors import RunError, RunUnfinishedError, WorkflowException
from perdure.events import WorkflowErrorDetails, WorkflowEvent, WorkflowRunState
from perdure.graph import WorkflowMessage
from perdure.storage import given_storage
from perdure.streams import ResponseStream

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Iterable, Iterator, Mapping, Sequence
    from datetime import datetime, timedelta

    from perdure.agents import ContextProvider
    from perdure.clock import Clock
    from perdure.engine import Events, LoadedRun
    from perdure.graph import EdgeGroup, Executor, Graph
    from perdure.storage import CheckpointStorage
    from perdure.workflows.as_agent.agent import WorkflowAgent
    from perdure.workflows.run import Run

logger = logging.getLogger(__name__)


def warn_of_separation(graph: Graph) -> None:
    """Warn of executors that were given the same session, in a graph and in a sub-workflow of it.

    The state of a sub-workflow is its own, so each of the two graphs goes on with a session of its own.
    """
    here = {id(what): executor_id for executor_id, what in _given(graph)}
    for child_id, child in graph.children.items():
        for executor_id, what in _given_inside(child):
            if id(what) in here:
                logger.warning(
                    "executor %r and executor %r inside of sub-workflow %r were given one session, and will have one "
                    "each: the state of a sub-workflow is its own",
                    here[id(what)],
                    executor_id,
                    child_id,
                )


def _given(graph: Graph) -> Iterator[tuple[str, object]]:
    for executor_id, executor in graph.executors.items():
        shared = executor.shares()
        if shared is not None:
            yield executor_id, shared.what


def _given_inside(graph: Graph) -> Iterator[tuple[str, object]]:
    yield from _given(graph)
    for child in graph.children.values():
        yield from _given_inside(child)


class WorkflowRunResult(list[WorkflowEvent[Any]]):
    """The events of a call, without `started` and, unless asked for, `status`."""

    def __init__(
        self, events: Iterable[WorkflowEvent[Any]] = (), status_events: Iterable[WorkflowEvent[Any]] | None = None
    ) -> None:
        super().__init__(events)
        self._status_events = list(status_events or ())

    @classmethod
    def of(cls, events: Iterable[WorkflowEvent[Any]], *, include_status_events: bool = False) -> WorkflowRunResult:
        """The result of a call that told these events."""
        told = list(events)
        hidden = {"started"} if include_status_events else {"started", "status"}
        return cls(
            [event for event in told if event.type not in hidden], [event for event in told if event.type == "status"]
        )

    def get_outputs(self) -> list[Any]:
        """The outputs, in order."""
        return [event.data for event in self if event.type == "output"]

    def get_intermediate_outputs(self) -> list[Any]:
        """The intermediate outputs, in order."""
        return [event.data for event in self if event.type == "intermediate"]

    def get_request_info_events(self) -> list[WorkflowEvent[Any]]:
        """The requests that were told."""
        return [event for event in self if event.type == "request_info"]

    def get_spent(self) -> dict[str, float]:
        """What the run has spent in all, by name, tokens of models among it; empty if this call has spent nothing."""
        for event in reversed(self):
            if event.type == "superstep_completed" and event.data:
                return dict(event.data)
        return {}

    def get_final_state(self) -> WorkflowRunState:
        """Where the run stood at the end. Raises RuntimeError if no status was told."""
        if not self._status_events or self._status_events[-1].state is None:
            raise RuntimeError("no status was told: the run has not begun")
        return self._status_events[-1].state

    def status_timeline(self) -> list[WorkflowEvent[Any]]:
        """All status events, in order."""
        return list(self._status_events)


class Workflow:
    """A graph of executors, made by `WorkflowBuilder.build()`.

    An instance stands for one run at a time: a fresh message is the next turn of its run. `run(run_id=...)` and
    `run(checkpoint_id=...)` let it stand for another.
    """

    def __init__(
        self, graph: Graph, *, checkpoint_storage: CheckpointStorage | str | None = None, clock: Clock | None = None
    ) -> None:
        self.graph = graph
        self.blueprint = Blueprint(graph, clock or SystemClock())
        self.checkpoint_storage = given_storage(checkpoint_storage)
        if self.checkpoint_storage is not None:
            # The storage learns what this workflow trusts, so that checkpoints can be looked at before it runs.
            self.blueprint.bound(self.checkpoint_storage)
        self.name = graph.name
        self.description = graph.description
        self.id = self.blueprint.clock.new_id()
        self.start_executor_id = graph.start_id
        self.max_iterations = graph.rules.max_iterations
        self.edge_groups: list[EdgeGroup] = list(graph.groups)
        self.executors: dict[str, Executor] = dict(graph.executors)
        self.tenure: LoadedRun | None = None
        self._status = WorkflowRunState.IDLE
        self._changes = ChangeDetector()
        self._session: Session | None = None
        self._active: weakref.ref[ResponseStream[Any, Any]] | None = None

    @property
    def status(self) -> WorkflowRunState:
        """Where the run of this instance stands."""
        return self._status

    @property
    def run_id(self) -> str | None:
        """The run that this instance stands for, if it has begun one."""
        return None if self.tenure is None else self.tenure.run_id

    @property
    def graph_signature(self) -> dict[str, Any]:
        """The start, the executors' classes and the edges."""
        return self.blueprint.signature

    @property
    def graph_signature_hash(self) -> str:
        """The same as one hash."""
        return self.blueprint.signature_hash

    @property
    def input_types(self) -> list[Any]:
        """What the start executor takes."""
        return self.get_start_executor().input_types

    @property
    def output_types(self) -> list[Any]:
        """What the executors declare to yield."""
        found: list[Any] = []
        for executor in self.executors.values():
            found.extend(type_ for type_ in executor.workflow_output_types if type_ not in found)
        return found

    def get_start_executor(self) -> Executor:
        """The executor that gets the message of a run."""
        return self.executors[self.start_executor_id]

    def get_executors_list(self) -> list[Executor]:
        """All executors."""
        return list(self.executors.values())

    def get_output_executors(self) -> list[Executor]:
        """The executors whose yields are outputs."""
        return [e for e in self.executors.values() if self.graph.designation.kind_of(e.id) == "output"]

    def get_intermediate_executors(self) -> list[Executor]:
        """The executors whose yields are intermediate."""
        return [e for e in self.executors.values() if self.graph.designation.kind_of(e.id) == "intermediate"]

    def is_terminal_executor(self, executor_id: str) -> bool:
        """Whether an executor's yields are outputs."""
        return self.graph.designation.kind_of(executor_id) == "output"

    def is_intermediate_executor(self, executor_id: str) -> bool:
        """Whether an executor's yields are intermediate."""
        return self.graph.designation.kind_of(executor_id) == "intermediate"

    @overload
    def run(
        self,
        message: Any = ABSENT,
        *,
        stream: Literal[True],
        responses: Mapping[str, Any] | None = None,
        checkpoint_id: str | None = None,
        checkpoint_storage: CheckpointStorage | str | None = None,
        run_id: str | None = None,
        takeover: bool = False,
        include_status_events: bool = False,
        function_invocation_kwargs: Mapping[str, Any] | None = None,
        client_kwargs: Mapping[str, Any] | None = None,
        deadline: timedelta | datetime | None = None,
        budget: Mapping[str, float] | None = None,
        wait_for_timers: bool = True,
    ) -> ResponseStream[WorkflowEvent[Any], WorkflowRunResult]: ...
    @overload
    def run(
        self,
        message: Any = ABSENT,
        *,
        stream: Literal[False] = False,
        responses: Mapping[str, Any] | None = None,
        checkpoint_id: str | None = None,
        checkpoint_storage: CheckpointStorage | str | None = None,
        run_id: str | None = None,
        takeover: bool = False,
        include_status_events: bool = False,
        function_invocation_kwargs: Mapping[str, Any] | None = None,
        client_kwargs: Mapping[str, Any] | None = None,
        deadline: timedelta | datetime | None = None,
        budget: Mapping[str, float] | None = None,
        wait_for_timers: bool = True,
    ) -> Awaitable[WorkflowRunResult]: ...
    def run(
        self,
        message: Any = ABSENT,
        *,
        stream: bool = False,
        responses: Mapping[str, Any] | None = None,
        checkpoint_id: str | None = None,
        checkpoint_storage: CheckpointStorage | str | None = None,
        run_id: str | None = None,
        takeover: bool = False,
        include_status_events: bool = False,
        function_invocation_kwargs: Mapping[str, Any] | None = None,
        client_kwargs: Mapping[str, Any] | None = None,
        deadline: timedelta | datetime | None = None,
        budget: Mapping[str, float] | None = None,
        wait_for_timers: bool = True,
    ) -> ResponseStream[WorkflowEvent[Any], WorkflowRunResult] | Awaitable[WorkflowRunResult]:
        """Run until nothing is left to do but to wait for the outside.

        Give one of: `message`, a turn of the run; `responses`, answers to pending requests by id; `checkpoint_id`, to
        resume from a checkpoint (an older one than the newest of its run begins a fork); `run_id`, to go on from the
        newest. `responses` go together with the last two, and `run_id` with a message names a run to be started.
        `takeover` replaces an owner that can't be seen to be dead.

        `deadline` and `budget` are limits of the run that are part of its checkpoints: when the deadline has passed it
        is cancelled, in the middle of a superstep too; when it has spent more of something than its budget has
        (`supersteps`, `activations`, and what executors report with `ctx.spend`), it stops with BudgetExceededError and
        can be resumed with a larger one. A run that only waits for its timers is waited for, unless `wait_for_timers`
        is False.

        Without `stream` the result is to be awaited; with it, it is to be read: `async for event in ...`.
        """
        message = self._message(message, is_optional=any((responses, checkpoint_id, run_id)))
        call = Call(
            message=message,
            responses=responses,
            checkpoint_id=checkpoint_id,
            run_id=run_id,
            storage=self.checkpoint_storage if checkpoint_storage is None else given_storage(checkpoint_storage),
            kwargs={"function_invocation_kwargs": function_invocation_kwargs, "client_kwargs": client_kwargs},
            streaming=stream,
            takeover=takeover,
            deadline=None if deadline is None else moment_of(self.blueprint.clock, deadline, "the deadline of a run"),
            budget=None if budget is None else checked_budget(budget),
            waits=wait_for_timers,
            tells_what_is_open=bool(responses),
        )
        _require_one_way(call)
        events = self.stream(call, include_status_events=include_status_events)
        return events if stream else events.get_final_response()

    def _message(self, message: Any, *, is_optional: bool) -> Any:
        """None is a message where the start executor takes it, and nothing else says what to do."""
        if isinstance(message, WorkflowMessage):
            message = message.data
        if message is None and (is_optional or not accepts(self.get_start_executor(), None)):
            return ABSENT
        return message

    def stream(
        self, call: Call, *, include_status_events: bool = False
    ) -> ResponseStream[WorkflowEvent[Any], WorkflowRunResult]:
        """The events of a call. Raises WorkflowException if another of this instance is under way."""
        if self._is_taken:
            raise WorkflowException(
                f"workflow {self.name!r} is already running: read its stream to the end, drop it, or build another "
                "instance; concurrent runs need an instance each"
            )
        session = Session(self.blueprint, call, run=self.tenure, changes=self._changes)

        def finish(events: Any) -> WorkflowRunResult:
            return WorkflowRunResult.of(events, include_status_events=include_status_events)

        stream: ResponseStream[WorkflowEvent[Any], WorkflowRunResult] = ResponseStream.of_batches(
            self._events(call, session),
            finalizer=finish,
            cleanup_hooks=[partial(self._make_room, session)],
            # Whoever advances runs for others needs no list of all that they ever told.
            keeps_updates=not call.is_unasked,
        )
        session.lease.bind(stream)
        self._session, self._active = session, weakref.ref(stream)
        return stream

    @property
    def _is_taken(self) -> bool:
        """Whether a call of this instance is under way: its stream has not ended, and somebody has it."""
        return self._active is not None and self._active() is not None

    def _make_room(self, session: Session) -> None:
        if self._session is session:
            self._active = None

    async def _events(self, call: Call, session: Session) -> AsyncGenerator[Events]:
        before, has_begun = self._status, False
        try:
            if call.has_message and not call.names_a_run:
                await self._require_idle()
            yield [WorkflowEvent("started", origin=FRAMEWORK)]
            yield [self._now(session, WorkflowRunState.IN_PROGRESS)]
            async with Closing(self._advanced(session)) as batches:
                async for events in batches:
                    has_begun = has_begun or events[0].type == "superstep_started"
                    yield events
        except Exception as error:
            if isinstance(error, RunError) and not has_begun:
                # A refusal: nothing ran and nothing changed, the run stands where it stood.
                self._now(session, before)
                raise
            status = self._now(session, WorkflowRunState.FAILED)
            details = WorkflowErrorDetails.from_exception(error)
            yield [WorkflowEvent("failed", details=details, origin=FRAMEWORK), status]
            raise
        except (GeneratorExit, CancelledError):
            self._now(session, WorkflowRunState.CANCELLED)
            raise
        finally:
            self._make_room(session)
        assert session.run is not None, "a run that has ended well has begun"
        yield [self._now(session, final_state(session.run.snapshot))]

    async def _advanced(self, session: Session) -> AsyncGenerator[Events]:
        is_pending_told = False
        try:
            await session.open()
            self.tenure = session.run
            async with Closing(session.events()) as batches:
                async for events in batches:
                    asked = None if is_pending_told else _first_request(events)
                    if asked is None:
                        yield events
                        continue
                    is_pending_told = True
                    yield events[: asked + 1]
                    yield [self._now(session, WorkflowRunState.IN_PROGRESS_PENDING_REQUESTS), *events[asked + 1 :]]
        finally:
            await session.close()

    async def _require_idle(self) -> None:
        tenure = self.tenure
        if tenure is not None and await is_unfinished(tenure):
            raise RunUnfinishedError(tenure.run_id, checkpoint_id=tenure.head_id)

    def _now(self, session: Session, state: WorkflowRunState) -> WorkflowEvent[Any]:
        """The status from here on. One that is being finalised has no say once another has taken its place."""
        if self._session is session:
            self._status = state
        return WorkflowEvent("status", state=state, origin=FRAMEWORK)

    def start(
        self,
        message: Any = ABSENT,
        *,
        checkpoint_id: str | None = None,
        run_id: str | None = None,
        checkpoint_storage: CheckpointStorage | str | None = None,
        takeover: bool = False,
        function_invocation_kwargs: Mapping[str, Any] | None = None,
        client_kwargs: Mapping[str, Any] | None = None,
        deadline: timedelta | datetime | None = None,
        budget: Mapping[str, float] | None = None,
        wait_for_timers: bool = True,
    ) -> Run:
        """A live handle on a run. `await` it to have it durable.

        A message is the next turn of this instance's run, its first if it has none; with `run_id` it starts or finds
        that run. Without one, the run of the `run_id` or of the `checkpoint_id` goes on. `deadline`, `budget` and
        `wait_for_timers` are those of `run`.
        """
        from perdure.workflows.run import Run  # noqa: PLC0415 - loaded where somebody wants a handle

        call = Call(
            message=self._message(message, is_optional=bool(checkpoint_id or run_id)),
            checkpoint_id=checkpoint_id,
            run_id=run_id,
            storage=self.checkpoint_storage if checkpoint_storage is None else given_storage(checkpoint_storage),
            kwargs={"function_invocation_kwargs": function_invocation_kwargs, "client_kwargs": client_kwargs},
            streaming=True,
            takeover=takeover,
            deadline=None if deadline is None else moment_of(self.blueprint.clock, deadline, "the deadline of a run"),
            budget=None if budget is None else checked_budget(budget),
            waits=wait_for_timers,
        )
        _require_one_way(call)
        return Run(self, call)

    def twin(self) -> Workflow:
        """Another instance of the same definition, which stands for no run yet."""
        return Workflow(self.graph, checkpoint_storage=self.checkpoint_storage, clock=self.blueprint.clock)

    def as_agent(
        self,
        name: str | None = None,
        *,
        description: str | None = None,
        context_providers: Sequence[ContextProvider] | None = None,
        **kwargs: Any,
    ) -> WorkflowAgent:
        """This workflow as an agent, with its name and description unless others are given.

        Raises ValueError if the start executor can't handle a list of messages.
        """
        from perdure.workflows.as_agent.agent import WorkflowAgent  # noqa: PLC0415 - loaded where there are agents

        return WorkflowAgent(
            self,
            name=self.name if name is None else name,
            description=self.description if description is None else description,
            context_providers=context_providers,
            **kwargs,
        )

    def note_cancelled(self, run_id: str) -> None:
        """A run was cancelled through its handle, perhaps the one that this instance stands for."""
        if self.run_id == run_id:
            self._status = WorkflowRunState.CANCELLED

    def run_stream(
        self, message: Any = ABSENT, **options: Any
    ) -> ResponseStream[WorkflowEvent[Any], WorkflowRunResult]:
        """The former spelling of `run(message, stream=True)`."""
        return self.run(message, stream=True, **options)

    run_streaming = run_stream

    def run_stream_from_checkpoint(
        self,
        checkpoint_id: str,
        checkpoint_storage: CheckpointStorage | str | None = None,
        responses: Mapping[str, Any] | None = None,
    ) -> ResponseStream[WorkflowEvent[Any], WorkflowRunResult]:
        """The former spelling of `run(checkpoint_id=..., stream=True)`."""
        return self.run(
            checkpoint_id=checkpoint_id, checkpoint_storage=checkpoint_storage, responses=responses, stream=True
        )

    def run_from_checkpoint(
        self,
        checkpoint_id: str,
        checkpoint_storage: CheckpointStorage | str | None = None,
        responses: Mapping[str, Any] | None = None,
    ) -> Awaitable[WorkflowRunResult]:
        """The former spelling of `run(checkpoint_id=...)`."""
        return self.run(checkpoint_id=checkpoint_id, checkpoint_storage=checkpoint_storage, responses=responses)

    def send_responses(self, responses: Mapping[str, Any]) -> Awaitable[WorkflowRunResult]:
        """The former spelling of `run(responses=...)`."""
        return self.run(responses=responses)

    def send_responses_streaming(
        self, responses: Mapping[str, Any]
    ) -> ResponseStream[WorkflowEvent[Any], WorkflowRunResult]:
        """The former spelling of `run(responses=..., stream=True)`."""
        return self.run(responses=responses, stream=True)

    def to_dict(self) -> dict[str, Any]:
        """The definition as plain data."""
        designation = self.graph.designation
        told: dict[str, Any] = {
            "name": self.name,
            "id": self.id,
            "start_executor_id": self.start_executor_id,
            "max_iterations": self.max_iterations,
            "edge_groups": [group.to_dict() for group in self.edge_groups],
            "executors": {executor_id: executor.to_dict() for executor_id, executor in self.executors.items()},
            "output_executors": None if not designation.is_explicit else list(designation.outputs or ()),
            "intermediate_executors": None if not designation.is_explicit else list(designation.intermediates or ()),
        }
        if self.description is not None:
            told["description"] = self.description
        return told

    def to_json(self) -> str:
        """The same as JSON."""
        return json.dumps(self.to_dict())


def _first_request(events: Events) -> int | None:
    for place, event in enumerate(events):
        if event.type == "request_info":
            return place
    return None


def _require_one_way(call: Call) -> None:
    if call.has_message and call.responses is not None:
        raise ValueError("give a message or responses, not both: answer first, then send the message")
    if call.has_message and call.checkpoint_id is not None:
        raise ValueError("give a message or a checkpoint_id, not both: resume first, then send the message")
    if call.checkpoint_id is not None and call.run_id is not None:
        raise ValueError("give a checkpoint_id or a run_id, not both: a checkpoint knows its run")
    if not call.has_message and call.responses is None and not call.names_a_run:
        raise ValueError("give a message, responses, a checkpoint_id or a run_id: there is nothing to do otherwise")


def checked_budget(budget: Mapping[str, float]) -> dict[str, float]:
    """The same, if every amount is one. Raises TypeError, ValueError."""
    for name, amount in budget.items():
        if isinstance(amount, bool) or not isinstance(amount, (int, float)):  # pyright: ignore[reportUnnecessaryIsInstance] - users' code is not always checked
            raise TypeError(f"the budget of {name!r} is a number, not {amount!r}")
        if not math.isfinite(amount) or amount < 0:
            raise ValueError(f"the budget of {name!r} is finite and not negative, not {amount!r}")
    return dict(budget)
