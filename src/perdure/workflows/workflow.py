"""`Workflow`: a definition that can be run, and the run of this instance."""

from __future__ import annotations

import json
import logging
import weakref
from asyncio import CancelledError
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, cast, overload

from typing_extensions import TypedDict, Unpack

from perdure import engine
from perdure.checkpoint import check_budget
from perdure.clock import Clock, SystemClock, is_same_time, moment_of
from perdure.errors import CheckpointNotFoundError, RunError, RunUnfinishedError, WorkflowException
from perdure.events import WorkflowErrorDetails, WorkflowEvent, WorkflowRunState
from perdure.graph import EdgeGroup, Executor, Graph, WorkflowMessage, private_scope
from perdure.storage import CheckpointStorage, clock_on, given_storage, tags_text
from perdure.streams import ResponseStream, without_discarded

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Collection, Iterable, Mapping, Sequence
    from datetime import datetime, timedelta

    from perdure.agents import ContextProvider, UsageDetails
    from perdure.workflows.as_agent.agent import WorkflowAgent
    from perdure.workflows.run import Run

logger = logging.getLogger(__name__)


class CallOptions(TypedDict, total=False):
    """The options of every call of a workflow."""

    checkpoint_id: str | None
    checkpoint_storage: CheckpointStorage | str | None
    tools: Any
    function_invocation_kwargs: engine.InvocationKwargs | None
    client_kwargs: engine.InvocationKwargs | None


class StartOptions(CallOptions, total=False):
    """The options of `Workflow.start`, which `Workflow.run` takes too."""

    run_id: str | None
    takeover: bool
    deadline: timedelta | datetime | None
    budget: Mapping[str, float] | None
    tags: Mapping[str, str] | None
    wait_for_timers: bool


class WorkflowRunOptions(StartOptions, total=False):
    """The options of `Workflow.run`, beside `stream`."""

    responses: Mapping[str, Any] | None
    include_status_events: bool


class WorkflowRunResult(list[WorkflowEvent[Any]]):
    """The events of a call, without `started` and, unless requested, `status`."""

    def __init__(
        self, events: Iterable[WorkflowEvent[Any]] = (), status_events: Iterable[WorkflowEvent[Any]] | None = None
    ) -> None:
        super().__init__(events)
        self._status_events = list(status_events or ())

    @classmethod
    def of(cls, events: Iterable[WorkflowEvent[Any]], *, include_status_events: bool = False) -> WorkflowRunResult:
        """Make the result of a call from its events, without what discarded attempts have shown."""
        plain = without_discarded(events)
        hidden = {"started"} if include_status_events else {"started", "status"}
        return cls(
            [event for event in plain if event.type not in hidden], [event for event in plain if event.type == "status"]
        )

    def get_outputs(self) -> list[Any]:
        """Return the outputs in order."""
        return [event.data for event in self if event.type == "output"]

    def get_intermediate_outputs(self) -> list[Any]:
        """Return the intermediate outputs in order."""
        return [event.data for event in self if event.type == "intermediate"]

    def get_request_info_events(self) -> list[WorkflowEvent[Any]]:
        """Return the request events."""
        return [event for event in self if event.type == "request_info"]

    def get_spent(self) -> dict[str, float]:
        """Return the run's total spending by name, including tokens; empty if this call has spent nothing."""
        for event in reversed(self):
            if event.type == "superstep_completed" and event.data:
                return dict(event.data)
        return {}

    @property
    def usage_details(self) -> UsageDetails:
        """Return the tokens that the run has used so far, of all its agents; empty if this call has used none."""
        spent = self.get_spent()
        kinds = [kind for kind in ("input", "output", "total") if f"{kind}_tokens" in spent]
        return cast("UsageDetails", {f"{kind}_token_count": int(spent[f"{kind}_tokens"]) for kind in kinds})

    def get_final_state(self) -> WorkflowRunState:
        """Return the last status. Raises RuntimeError if there was none."""
        if not self._status_events or self._status_events[-1].state is None:
            raise RuntimeError("there is no status: the run has not begun")
        return self._status_events[-1].state

    def status_timeline(self) -> list[WorkflowEvent[Any]]:
        """Return all status events in order."""
        return list(self._status_events)


class Workflow:
    """A graph of executors, made by `WorkflowBuilder.build()`.

    An instance has one run at a time, and a new message is the next turn of that run. `run(run_id=...)` and
    `run(checkpoint_id=...)` switch to another run.
    """

    _none_is_message: ClassVar[bool] = False
    """True for functions: they say themselves which calls have a message."""

    def __init__(
        self, graph: Graph, *, checkpoint_storage: CheckpointStorage | str | None = None, clock: Clock | None = None
    ) -> None:
        self.graph = graph
        self._clock = clock
        self.blueprint = engine.Blueprint(graph, clock or SystemClock())
        self.checkpoint_storage = given_storage(checkpoint_storage)
        if self.checkpoint_storage is not None:
            # The storage learns the workflow's trusted types, so that checkpoints can be read before it runs.
            self.blueprint_on(self.checkpoint_storage).bound(self.checkpoint_storage)
        self.name = graph.name
        self.description = graph.description
        self.id = self.blueprint.clock.new_id()
        self.start_executor_id = graph.start_id
        self.max_iterations = graph.rules.max_iterations
        self.edge_groups: list[EdgeGroup] = list(graph.groups)
        self.executors: dict[str, Executor] = dict(graph.executors)
        self.loaded_run: engine.LoadedRun | None = None
        self._status = WorkflowRunState.IDLE
        self._changes = engine.ChangeDetector()
        self._session: engine.Session | None = None
        self._active: weakref.ref[ResponseStream[Any, Any]] | None = None

    def blueprint_on(self, storage: object) -> engine.Blueprint:
        """Return the blueprint for runs on a storage, with its clock. Raises ValueError if the workflow has another."""
        clock = clock_on(storage, self._clock)
        if clock is not None and not is_same_time(clock, self.blueprint.clock):
            self.blueprint = replace(self.blueprint, clock=clock)
        return self.blueprint

    @property
    def status(self) -> WorkflowRunState:
        """Return the status of this instance's run."""
        return self._status

    @property
    def run_id(self) -> str | None:
        """Return the id of this instance's run; None before it has one."""
        return None if self.loaded_run is None else self.loaded_run.run_id

    def executor_scope(self, executor_id: str) -> dict[str, Any]:
        """Return a copy of an executor's private scope in this instance's run; empty before it has one."""
        run, scope = self.loaded_run, private_scope(executor_id)
        if run is None:
            return {}
        return {key: run.values.give_state(value) for (name, key), value in run.snapshot.state.items() if name == scope}

    @property
    def graph_signature(self) -> dict[str, Any]:
        """Return the start, the executors' classes and the edges."""
        return self.graph.signature

    @property
    def graph_signature_hash(self) -> str:
        """Return the hash of the graph signature."""
        return self.graph.signature_hash

    @property
    def input_types(self) -> list[Any]:
        """Return the input types of the start executor."""
        return self.get_start_executor().input_types

    @property
    def output_types(self) -> list[Any]:
        """Return the declared output types of all executors."""
        found: list[Any] = []
        for executor in self.executors.values():
            found.extend(each for each in executor.workflow_output_types if each not in found)
        return found

    def get_start_executor(self) -> Executor:
        """Return the executor that gets the input message."""
        return self.executors[self.start_executor_id]

    def get_executors_list(self) -> list[Executor]:
        """Return all executors."""
        return list(self.executors.values())

    def get_output_executors(self) -> list[Executor]:
        """Return the executors whose yields are outputs."""
        return [each for each in self.executors.values() if self.is_terminal_executor(each.id)]

    def get_intermediate_executors(self) -> list[Executor]:
        """Return the executors whose yields are intermediate."""
        return [each for each in self.executors.values() if self.is_intermediate_executor(each.id)]

    def is_terminal_executor(self, executor_id: str) -> bool:
        """Return True if an executor's yields are outputs."""
        return self.graph.designation.kind_of(executor_id) == "output"

    def is_intermediate_executor(self, executor_id: str) -> bool:
        """Return True if an executor's yields are intermediate."""
        return self.graph.designation.kind_of(executor_id) == "intermediate"

    @overload
    def run(
        self, message: Any = engine.ABSENT, *, stream: Literal[True], **options: Unpack[WorkflowRunOptions]
    ) -> ResponseStream[WorkflowEvent[Any], WorkflowRunResult]: ...
    @overload
    def run(
        self, message: Any = engine.ABSENT, *, stream: Literal[False] = False, **options: Unpack[WorkflowRunOptions]
    ) -> Awaitable[WorkflowRunResult]: ...
    def run(
        self,
        message: Any = engine.ABSENT,
        *,
        stream: bool = False,
        include_status_events: bool = False,
        responses: Mapping[str, Any] | None = None,
        **options: Unpack[StartOptions],
    ) -> ResponseStream[WorkflowEvent[Any], WorkflowRunResult] | Awaitable[WorkflowRunResult]:
        """Run until the workflow is idle or waits for the outside.

        Give one of: `message`, the next turn of the run; `responses`, answers to pending requests by id;
        `checkpoint_id`, to resume from a checkpoint (an older one than the head starts a fork); `run_id`, to continue
        from the head. `responses` can be combined with the last two. `run_id` with a message names the run to start.
        `takeover` replaces an owner that can't be proven dead.

        `deadline` and `budget` limit the run and are part of its checkpoints. After the deadline the run is cancelled,
        even in the middle of a superstep. When it has spent more of a resource than its budget (`supersteps`,
        `activations`, and whatever executors report with `ctx.spend`), it stops with BudgetExceededError and can be
        resumed with a larger budget. With `wait_for_timers=False` the call doesn't wait for timers. A new run gets the
        `tags` by which listings find it.

        If the last superstep of this instance's run failed or was cancelled, a message abandons that superstep: an
        `undelivered` event names each of its messages. To continue it instead, give the `run_id` and no message.

        `tools` are for the agents of this call, in addition to their own, in sub-workflows too. They are not stored:
        give them again when the run is resumed.

        Without `stream`, await the result. With it, read the events: `async for event in ...`.
        """
        call = self._call(message, responses=responses, streaming=stream, abandons=True, **options)
        events = self.stream(call, include_status_events=include_status_events)
        return events if stream else events.get_final_response()

    def start(self, message: Any = engine.ABSENT, **options: Unpack[StartOptions]) -> Run:
        """Return a live handle on a run. `await` it to make the run durable.

        A message is the next turn of this instance's run, or its first; with `run_id` it starts or finds that run.
        Without a message, the run of `run_id` or `checkpoint_id` continues. The options are those of `run`.
        """
        from perdure.workflows.run import Run  # noqa: PLC0415 - run.py imports this module

        return Run(self, self._call(message, streaming=True, **options))

    def _call(
        self,
        message: Any,
        *,
        streaming: bool,
        responses: Mapping[str, Any] | None = None,
        checkpoint_id: str | None = None,
        run_id: str | None = None,
        checkpoint_storage: CheckpointStorage | str | None = None,
        takeover: bool = False,
        abandons: bool = False,
        tools: Any = None,
        function_invocation_kwargs: engine.InvocationKwargs | None = None,
        client_kwargs: engine.InvocationKwargs | None = None,
        deadline: timedelta | datetime | None = None,
        budget: Mapping[str, float] | None = None,
        tags: Mapping[str, str] | None = None,
        wait_for_timers: bool = True,
    ) -> engine.Call:
        """Check the arguments of `run` or `start`."""
        if isinstance(message, WorkflowMessage):
            message = message.data
        names_a_run = checkpoint_id is not None or run_id is not None
        # Otherwise it is a message only if it is all that was given, and the start executor accepts it.
        if message is None and not self._none_is_message:
            is_alone = not (responses or names_a_run)
            message = None if is_alone and engine.accepts(self.get_start_executor(), None) else engine.ABSENT
        if message is engine.ABSENT:
            if responses is None and not names_a_run:
                raise ValueError(
                    "give a message, responses, a checkpoint_id or a run_id: there is nothing to do otherwise"
                )
        elif responses is not None:
            raise ValueError("give a message or responses, not both: answer first, then send the message")
        elif checkpoint_id is not None:
            raise ValueError("give a message or a checkpoint_id, not both: resume first, then send the message")
        if checkpoint_id is not None and run_id is not None:
            raise ValueError("give a checkpoint_id or a run_id, not both: a checkpoint knows its run")
        if tools is not None:
            from perdure.agents import normalize_tools  # noqa: PLC0415 - workflows without agents don't import them

            tools = normalize_tools(tools)
        storage = self.checkpoint_storage if checkpoint_storage is None else given_storage(checkpoint_storage)
        clock = self.blueprint_on(storage).clock
        return engine.Call(
            message=message,
            responses=responses,
            checkpoint_id=checkpoint_id,
            run_id=run_id,
            storage=storage,
            kwargs={"function_invocation_kwargs": function_invocation_kwargs, "client_kwargs": client_kwargs},
            tools=tools,
            streaming=streaming,
            takeover=takeover,
            abandons=abandons,
            deadline=None if deadline is None else moment_of(clock, deadline, "the deadline of a run"),
            budget=None if budget is None else check_budget(budget),
            tags=None if tags is None else tags_text(tags),
            waits=wait_for_timers,
            emit_open_requests=bool(responses),
        )

    async def cancel_pending_requests(
        self, request_ids: Collection[str], **options: Unpack[CallOptions]
    ) -> WorkflowRunResult:
        """Cancel open requests and run until the workflow is idle. Ids of requests that are not open are ignored.

        An agent takes it as a refused approval, or as an error of the call that the user was to answer. Other executors
        are not told. `checkpoint_id` first resumes the run from a checkpoint. Raises ValueError for ids that are empty
        or no str, and RequestError if a handler waits for the answer (`ctx.ask`).
        """
        ids = frozenset(request_ids)
        if isinstance(request_ids, str) or not all(isinstance(each, str) and each for each in ids):  # pyright: ignore[reportUnnecessaryIsInstance] - programs may be unchecked
            raise ValueError(f"request ids must be a collection of strings that are not empty, not {request_ids!r}")
        call = self._call(engine.ABSENT, streaming=False, responses={}, **options)
        return await self.stream(replace(call, cancels=ids, emit_open_requests=True)).get_final_response()

    def get_last_checkpoint_id(self) -> str | None:
        """Return the id of the checkpoint that this instance wrote or restored last; None before there is one."""
        return None if self.loaded_run is None else self.loaded_run.head_id

    async def resolve_pause_checkpoint_id(
        self,
        request_ids: Collection[str],
        *,
        checkpoint_storage: CheckpointStorage | str | None = None,
        known_checkpoint_id: str | None = None,
        baseline_checkpoint_id: object = engine.ABSENT,
    ) -> str | None:
        """Return the id of a checkpoint in which all these requests are open; None if there is none.

        That is the newest checkpoint of this instance's run, unless it is `baseline_checkpoint_id`, or else
        `known_checkpoint_id`.
        """
        run, last_id = self.loaded_run, self.get_last_checkpoint_id()
        storage: Any = given_storage(checkpoint_storage)
        if storage is None:
            storage = self.checkpoint_storage if run is None or run.binding is None else run.binding.storage
        candidates = [None if last_id == baseline_checkpoint_id else last_id, known_checkpoint_id]
        for candidate in dict.fromkeys(filter(None, candidates)):
            if storage is None or not request_ids:
                return None
            with suppress(CheckpointNotFoundError):
                if {*request_ids} <= (await storage.load(candidate)).pending_request_info_events.keys():
                    return candidate
        return None

    def stream(
        self, call: engine.Call, *, include_status_events: bool = False
    ) -> ResponseStream[WorkflowEvent[Any], WorkflowRunResult]:
        """Return the events of a call. Raises WorkflowException if another call of this instance is active."""
        if self._active is not None and self._active() is not None:
            raise WorkflowException(
                f"workflow {self.name!r} is already running: read its stream to the end, drop it, or use another "
                "instance; each concurrent run needs its own"
            )
        session = engine.Session(self.blueprint_on(call.storage), call, self.loaded_run, self._changes)
        stream: ResponseStream[WorkflowEvent[Any], WorkflowRunResult] = ResponseStream.of_batches(
            self._events(call, session),
            finalizer=partial(WorkflowRunResult.of, include_status_events=include_status_events),
            cleanup_hooks=[partial(self._release, session)],
            # A host that advances runs doesn't need the list of all their events.
            keeps_updates=not call.is_hosted,
        )
        session.lock.stream = weakref.ref(stream)
        self._session, self._active = session, weakref.ref(stream)
        return stream

    def _release(self, session: engine.Session) -> None:
        if self._session is session:
            self._active = None

    async def _events(self, call: engine.Call, session: engine.Session) -> AsyncGenerator[engine.Events]:
        before, has_begun, has_requests = self._status, False, False
        run = self.loaded_run
        try:
            is_turn = call.message is not engine.ABSENT and not call.names_a_run
            if is_turn and run and not (call.abandons and run.is_cut_off) and await engine.is_unfinished(run):
                raise RunUnfinishedError(run.run_id, checkpoint_id=run.head_id)  # noqa: TRY301 - handled as other refusals
            yield [WorkflowEvent("started", origin=engine.FRAMEWORK)]
            yield [self._set_status(session, WorkflowRunState.IN_PROGRESS)]
            try:
                await session.open()
                self.loaded_run = session.run
                async with engine.Closing(session.events()) as batches:
                    async for events in batches:
                        has_begun = has_begun or events[0].type == "superstep_started"
                        engine.warnings_emitted(session.run, events)
                        asked = [index for index, event in enumerate(events, 1) if event.type == "request_info"]
                        if has_requests or not asked:
                            yield events
                            continue
                        # The status changes as soon as the first request is out.
                        has_requests = True
                        yield events[: asked[0]]
                        status = self._set_status(session, WorkflowRunState.IN_PROGRESS_PENDING_REQUESTS)
                        yield [status, *events[asked[0] :]]
            finally:
                await session.close()
        except Exception as raised:
            if isinstance(raised, RunError) and not has_begun:
                # The call was refused: nothing ran and nothing changed.
                self._set_status(session, before)
                raise
            error = self._explain(raised)
            status = self._set_status(session, WorkflowRunState.FAILED)
            details = WorkflowErrorDetails.from_exception(error)
            yield [WorkflowEvent("failed", details=details, origin=engine.FRAMEWORK), status]
            if error is raised:
                raise
            raise error from None
        except (GeneratorExit, CancelledError):
            self._set_status(session, WorkflowRunState.CANCELLED)
            raise
        finally:
            self._release(session)
        assert session.run is not None, "a successful run has a lease"
        yield [self._set_status(session, engine.final_state(session.run.snapshot))]

    def _explain(self, error: Exception) -> Exception:
        """Return the error of a failed call for its reader. Functional workflows add a remedy."""
        return error

    def _set_status(self, session: engine.Session, state: WorkflowRunState) -> WorkflowEvent[Any]:
        """Set the status and return its event. A call that was replaced by another one no longer sets it."""
        if self._session is session:
            self._status = state
        return WorkflowEvent("status", state=state, origin=engine.FRAMEWORK)

    def copy(self) -> Workflow:
        """Return another instance of the same definition, without a run."""
        return Workflow(self.graph, checkpoint_storage=self.checkpoint_storage, clock=self._clock)

    def twin(self) -> Self:
        """Call `copy`. Former name."""
        return cast("Self", self.copy())

    def as_agent(
        self,
        name: str | None = None,
        *,
        description: str | None = None,
        context_providers: Sequence[ContextProvider] | None = None,
        **kwargs: Any,
    ) -> WorkflowAgent:
        """Return this workflow as an agent, by default with its own name and description.

        Raises ValueError if the start executor can't handle a list of messages.
        """
        from perdure.workflows.as_agent.agent import WorkflowAgent  # noqa: PLC0415 - as_agent imports this module

        return WorkflowAgent(
            self,
            name=self.name if name is None else name,
            description=self.description if description is None else description,
            context_providers=context_providers,
            **kwargs,
        )

    def note_cancelled(self, run_id: str) -> None:
        """Set the status after a run was cancelled through its handle."""
        if self.run_id == run_id:
            self._status = WorkflowRunState.CANCELLED

    def run_stream(
        self, message: Any = engine.ABSENT, **options: Any
    ) -> ResponseStream[WorkflowEvent[Any], WorkflowRunResult]:
        """Call `run(message, stream=True)`. Deprecated spelling."""
        return self.run(message, stream=True, **options)

    run_streaming = run_stream

    def run_stream_from_checkpoint(
        self,
        checkpoint_id: str,
        checkpoint_storage: CheckpointStorage | str | None = None,
        responses: Mapping[str, Any] | None = None,
    ) -> ResponseStream[WorkflowEvent[Any], WorkflowRunResult]:
        """Call `run(checkpoint_id=..., stream=True)`. Deprecated spelling."""
        return self.run(
            checkpoint_id=checkpoint_id, checkpoint_storage=checkpoint_storage, responses=responses, stream=True
        )

    def run_from_checkpoint(
        self,
        checkpoint_id: str,
        checkpoint_storage: CheckpointStorage | str | None = None,
        responses: Mapping[str, Any] | None = None,
    ) -> Awaitable[WorkflowRunResult]:
        """Call `run(checkpoint_id=...)`. Deprecated spelling."""
        return self.run(checkpoint_id=checkpoint_id, checkpoint_storage=checkpoint_storage, responses=responses)

    def send_responses(self, responses: Mapping[str, Any]) -> Awaitable[WorkflowRunResult]:
        """Call `run(responses=...)`. Deprecated spelling."""
        return self.run(responses=responses)

    def send_responses_streaming(
        self, responses: Mapping[str, Any]
    ) -> ResponseStream[WorkflowEvent[Any], WorkflowRunResult]:
        """Call `run(responses=..., stream=True)`. Deprecated spelling."""
        return self.run(responses=responses, stream=True)

    def to_dict(self) -> dict[str, Any]:
        """Convert the definition to plain data."""
        designation = self.graph.designation
        plain: dict[str, Any] = {
            "name": self.name,
            "id": self.id,
            "start_executor_id": self.start_executor_id,
            "max_iterations": self.max_iterations,
            "edge_groups": [group.to_dict() for group in self.edge_groups],
            "executors": {executor_id: executor.to_dict() for executor_id, executor in self.executors.items()},
            "output_executors": list(designation.outputs or ()) if designation.is_explicit else None,
            "intermediate_executors": list(designation.intermediates or ()) if designation.is_explicit else None,
        }
        if self.description is not None:
            plain["description"] = self.description
        return plain

    def to_json(self) -> str:
        """Convert the definition to JSON."""
        return json.dumps(self.to_dict())
