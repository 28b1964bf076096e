"""One attempt at an activation: it collects the effects of a handler call and emits its events live."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
from dataclasses import dataclass, field
from types import CoroutineType, MappingProxyType
from typing import TYPE_CHECKING, Any

from perdure.checkpoint import counts_in, counts_record, value_digest
from perdure.clock import moment_of
from perdure.codec import Kept
from perdure.engine.budget import COUNTED_BY_ENGINE, BudgetTracker, require_amounts
from perdure.engine.events import ActivationEvents, warning_event
from perdure.engine.questions import Question, Questions, Requests, require_approved
from perdure.engine.steps import Steps, skipped_steps
from perdure.engine.suspension import Suspender, Wait, begin_sleep
from perdure.engine.tasks import finished
from perdure.errors import BudgetExceededError, LeaseLostError, StaleHeadError, WorkflowCheckpointException
from perdure.events import WorkflowEvent, WorkflowEventSource
from perdure.graph import SHARED_SCOPE, Terms, TimersDue, enter, private_scope, wiring
from perdure.kernel import (
    ActivationResult,
    Effects,
    Output,
    Suspension,
    UnroutedMessage,
    Write,
    activation_id_of,
)
from perdure.streams import has_pieces
from perdure.tracing import NO_SPAN

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence
    from datetime import datetime, timedelta

    from perdure.clock import Clock
    from perdure.codec import Encoded, Held, Values
    from perdure.engine.journal import Journal
    from perdure.engine.running_step import RunningStep
    from perdure.events import WorkflowErrorDetails
    from perdure.graph import Executor, Graph, Numbering, OutputKind, StepCall
    from perdure.kernel import Activation, Moment, PendingEvent, Request, Snapshot, StateKey
    from perdure.tracing import Span

RUN_KWARGS_KEY = "_workflow_run_kwargs"

_ENGINE_ONLY = frozenset({"output", "intermediate", "started", "status", "failed"})


@dataclass(slots=True)
class ActivationContext:
    """Everything the activations of a superstep share."""

    graph: Graph
    snapshot: Snapshot
    values: Values
    root_id: str
    """Identifies run, fork and sub-workflow, so that ids derived from it are the same for every attempt."""
    run_kwargs: dict[str, Any]
    """The kwargs of the run, including those that are not stored."""
    journal: Journal
    clock: Clock
    emit: Callable[[WorkflowEvent[Any]], None]
    """Emit an event to the reader of the run."""
    run_id: str = ""
    """The id of the run; inside a sub-workflow, followed by the names of the enclosing executors."""
    span: Span = NO_SPAN
    streaming: bool = False
    is_checkpointed: bool = False
    budget: BudgetTracker = field(default_factory=BudgetTracker)
    overlays: dict[str, dict[StateKey, Write]] = field(default_factory=dict[str, "dict[StateKey, Write]"])
    """By executor: the writes of its earlier activations in this superstep."""
    children: dict[str, Snapshot] = field(default_factory=dict[str, "Snapshot"])
    """By executor: its sub-workflow as its earlier activations in this superstep left it."""
    opened: set[str] = field(default_factory=set[str])
    """The ids of the requests opened in this superstep."""
    keeps_records: bool = field(init=False)
    """True if a later attempt will find what an activation records."""
    has_records: bool = field(init=False)
    """True if an earlier attempt has recorded anything."""

    def __post_init__(self) -> None:
        self.keeps_records = self.is_checkpointed and self.journal.is_open
        self.has_records = self.keeps_records and not self.journal.is_empty

    def derived_id(self, name: str) -> str:
        """Return an id that is the same for every attempt, and differs in a fork."""
        return hashlib.blake2b(f"{self.root_id}/{name}".encode(), digest_size=16).hexdigest()

    def held(self, activation_id: str) -> dict[str, Held]:
        """Return an activation's step results that could not be recorded, by place."""
        return self.values.held.setdefault(f"{self.root_id}/{activation_id}", {})

    def memo(self, activation_id: str) -> dict[str, object]:
        """Return what attempts at an activation leave in memory for later ones in this process."""
        return self.values.memos.setdefault(f"{self.root_id}/{activation_id}", {})

    def forget(self, activation: Activation) -> None:
        """Drop what was held in memory for an activation that has ended."""
        name = f"{self.root_id}/{activation_id_of(self.snapshot, activation)}"
        self.values.held.pop(name, None)
        self.values.memos.pop(name, None)

    async def put(self, key: str, encoded: Encoded, *, is_progress: bool = True) -> bool:
        """Record something durably, even if the waiting task is cancelled. Return whether it is recorded.

        Raises CheckpointWriteError.
        """
        if not self.keeps_records:
            return False
        try:
            await finished(self.journal.put(key, encoded, is_progress=is_progress))
        except (LeaseLostError, StaleHeadError):
            raise
        except WorkflowCheckpointException as error:
            if self.graph.rules.on_checkpoint_error == "stop":
                raise
            self.emit(warning_event(f"finished work is not recorded: {error}"))
            return False
        return True

    def add(self, result: ActivationResult) -> None:
        """Make the effects of an ended activation visible to later activations of its executor."""
        effects = result.effects
        executor_id = effects.activation.executor_id
        if effects.writes:
            self.overlays.setdefault(executor_id, {}).update((write.key, write) for write in effects.writes)
        if effects.requests:
            self.opened.update(request.id for request in effects.requests)
        if effects.child is not None:
            self.children[executor_id] = effects.child
        if self.snapshot.limits.budget:
            self.budget.child(activation_id_of(self.snapshot, effects.activation)).report(effects.spent)


class StateView:
    """The state as one activation sees it: committed, plus earlier writes of its executor, plus its own writes."""

    def __init__(self, executor: Executor, context: ActivationContext) -> None:
        self._context = context
        self._own: dict[StateKey, Any] = {}
        self._erased: set[StateKey] = set()
        self._updates: dict[StateKey, list[object | None]] = {}
        # An executor that handles several messages at once has no earlier writes: the result must not be a race.
        is_parallel = wiring(executor).max_concurrency > 1
        self._earlier: Mapping[StateKey, Write] = {} if is_parallel else context.overlays.get(executor.id, {})

    def read(self, place: StateKey) -> Any:
        """Return a value, a copy if it is mutable. Raises KeyError."""
        if place in self._own:
            return self._own[place]
        if place in self._erased:
            raise KeyError(place[1])
        values, earlier = self._context.values, self._earlier.get(place)
        if earlier is not None:
            if earlier.erase:
                raise KeyError(place[1])
            return values.give_state(earlier.value)
        if place == (SHARED_SCOPE, RUN_KWARGS_KEY):
            return {kind: dict(by_target) for kind, by_target in self._context.run_kwargs.items()}
        return values.give_state(self._context.snapshot.state[place])

    def write(self, place: StateKey, value: Any) -> None:
        """Stage a value. For a key with a reducer it is an update that is merged when the superstep ends."""
        reducer = self._context.graph.reducers.get(place)
        if reducer is not None:
            values = self._context.values
            fixed = values.fix(value, _state_path(place))
            self._updates.setdefault(place, []).append(fixed)
            try:
                current = self.read(place)
            except KeyError:
                value = values.give_state(fixed)
            else:
                value = reducer(current, values.give_state(fixed))
        self._own[place] = value
        self._erased.discard(place)

    def erase(self, place: StateKey) -> None:
        """Stage the removal of a key. Raises KeyError."""
        self.read(place)
        self._own.pop(place, None)
        if place in self._context.graph.reducers:
            self._updates[place] = [None]
        self._erased.add(place)

    def has(self, place: StateKey) -> bool:
        """Return whether a key has a value, without reading it."""
        if place in self._own:
            return True
        if place in self._erased:
            return False
        earlier = self._earlier.get(place)
        return place in self._context.snapshot.state if earlier is None else not earlier.erase

    def keys(self, scope: str) -> Sequence[str]:
        """Return the keys of a scope."""
        found = dict.fromkeys(key for place, key in self._context.snapshot.state if place == scope)
        for (place, key), write in self._earlier.items():
            if place == scope:
                found.pop(key, None) if write.erase else found.setdefault(key)
        found.update(dict.fromkeys(key for place, key in self._own if place == scope))
        return [key for key in found if (scope, key) not in self._erased]

    def writes(self) -> tuple[Write, ...]:
        """Encode the writes as they are now."""
        fix = self._context.values.fix
        erased = [Write(place, None, erase=True) for place in sorted(self._erased)]
        return (*erased, *(Write(place, fix(value, _state_path(place))) for place, value in self._own.items()))

    def updates(self) -> dict[StateKey, tuple[object | None, ...]]:
        """Return the updates that reducers merge, by key."""
        return {place: tuple(updates) for place, updates in self._updates.items()}


def _state_path(place: StateKey) -> str:
    scope, key = place
    return f"state[{key!r}]" if scope == SHARED_SCOPE else f"state[{key!r}] of scope {scope!r}"


class ActivationRecorder:
    """The effects of one attempt, collected behind the `WorkflowContext` of its handler.

    Most handlers only send messages, so the rest (state, requests, steps, questions) is created on first use.
    """

    child: Snapshot | None = None
    """The sub-workflow of the executor, if this activation advanced it."""
    asked_inside: Mapping[str, Request] = MappingProxyType({})
    """Open requests of an agent that is a workflow, with their deadlines."""
    span: Span = NO_SPAN
    failure: WorkflowErrorDetails | None = None
    is_function: bool = False
    """True if the handler is a functional workflow."""
    _is_over = False
    _has_returned = False
    _warned: frozenset[str] = frozenset()
    _state: StateView | None = None
    _requests: Requests | None = None
    _used_steps: Steps | None = None
    _used_questions: Questions | None = None

    def __init__(self, activation: Activation, executor: Executor, context: ActivationContext) -> None:
        self.activation = activation
        self.executor = executor
        self.context = context
        self.events = ActivationEvents(context, executor.id)
        self.suspender = Suspender(executor.id, context.clock)
        self._sent: list[tuple[Any, str | None, Moment | None]] = []
        self._outputs: list[tuple[OutputKind, Any, bool]] = []
        self._yielded: list[Any] = []
        self._shown: list[Any] = []
        self._spent: dict[str, float] = {}
        delivery, give = activation.delivery, context.values.give
        self.message: Any
        if delivery.woken_at is not None:
            self.message = TimersDue(delivery.woken_at)
        elif delivery.is_gathered:
            self.message = [give(value) for value in delivery.values]
        else:
            self.message = give(delivery.values[0])

    @property
    def activation_id(self) -> str:
        """Return the activation_id, which is the same for every attempt."""
        return activation_id_of(self.context.snapshot, self.activation)

    @property
    def executor_id(self) -> str:
        """Return the id of the executor."""
        return self.executor.id

    @property
    def run_id(self) -> str:
        """Return the id of the run."""
        return self.context.run_id

    @property
    def streaming(self) -> bool:
        """Return whether the caller reads a stream."""
        return self.context.streaming

    @property
    def source_executor_ids(self) -> Sequence[str]:
        """Return the executors that sent the message."""
        return self.activation.delivery.sources

    @property
    def request_id(self) -> str | None:
        """Return the id of the request that the message answers, if it is an answer."""
        request = self.activation.delivery.answers
        return None if request is None else request.id

    @property
    def request_data(self) -> Any:
        """Return the request that the message answers."""
        request = self.activation.delivery.answers
        assert request is not None, "the message is no answer"
        return self.context.values.give(request.data)

    @property
    def idempotency_key(self) -> str:
        """Return a key for outside services that is the same for every attempt."""
        return self.context.derived_id(f"{self.activation_id}/key")

    @property
    def memo(self) -> dict[str, object]:
        """Return what earlier attempts left in memory."""
        return self.context.memo(self.activation_id)

    @property
    def sent(self) -> Sequence[Any]:
        """Return the messages sent so far."""
        return [message for message, _, _ in self._sent]

    @property
    def yielded(self) -> Sequence[Any]:
        """Return the outputs yielded so far."""
        return self._yielded

    # The life of the attempt.

    @property
    def running_step(self) -> RunningStep | None:
        """Return the step of this activation whose function runs here, if any."""
        return None if self._used_steps is None else self._used_steps.running

    @property
    def is_running(self) -> bool:
        """Return whether the handler has not ended, or a step of it is still being finished here."""
        return not self._is_over or self.running_step is not None

    @property
    def is_suspending(self) -> bool:
        """Return whether the handler is being suspended."""
        return self.suspender.waits_for is not None

    def require_running(self) -> None:
        """Raise RuntimeError if the handler has ended."""
        if self._is_over and self.running_step is None:
            raise RuntimeError(
                f"the handler of executor {self.executor.id!r} has returned, so the effects of this call would be "
                "lost; await every task that uses the context inside the handler"
            )

    async def call(self, handler: Callable[..., Any], *args: Any) -> None:
        """Call the handler and finish the steps that it left running. If it is cancelled, cancel them too."""
        enter(self)
        self.suspender.task = asyncio.current_task()
        try:
            with self.suspender:
                outcome = handler(*args)
                if type(outcome) is CoroutineType or inspect.isawaitable(outcome):
                    await outcome
                self._has_returned = True
        except asyncio.CancelledError:
            if self._used_steps is not None:
                self._used_steps.interrupt()
            raise
        finally:
            self._is_over = True
            try:
                if self._used_steps is not None:
                    await self._used_steps.settle()
            finally:
                if not self._has_returned:
                    self.suspender.cancel_subtasks()

    def release(self) -> None:
        """Break the reference cycles of an attempt that is over, so that its memory is freed at once."""
        self._used_steps = self._used_questions = self._requests = None

    # Messages, outputs and events.

    def send(self, message: Any, target_id: str | None, delay: timedelta | float | None = None) -> None:
        """Queue a message for the next superstep, or for later."""
        self.require_running()
        due = None if delay is None else moment_of(self.context.clock, delay, "the delay of a message")
        self._sent.append((message, target_id, due))

    def output(self, value: Any, *, in_pieces: bool = False) -> None:
        """Yield an output. With `in_pieces`, a streaming reader has already seen its pieces."""
        self.require_running()
        self._yielded.append(value)
        kind = self.context.graph.designation.kind_of(self.executor.id)
        if kind is not None:
            self.emit_output(kind, value, in_pieces=in_pieces)

    def emit_output(self, kind: OutputKind, value: Any, *, in_pieces: bool = False) -> None:
        """Emit an output of a given kind."""
        self._outputs.append((kind, value, has_pieces(value) and not in_pieces))
        is_live = not (in_pieces and self.context.streaming)
        self.events.emit_output(kind, value, len(self._outputs) - 1, is_live=is_live)

    def show(self, value: Any) -> None:
        """Emit a piece of an output to a streaming reader. It is not recorded."""
        self.require_running()
        self._shown.append(value)
        kind = self.context.graph.designation.kind_of(self.executor.id)
        if kind is not None and self.context.streaming:
            self.events.show(kind, value)

    def emit(self, event: WorkflowEvent[Any], *, transient: bool = False) -> None:
        """Emit an event of the handler. Types that belong to the engine become a warning."""
        self.require_running()
        if event.type in _ENGINE_ONLY and event.origin is WorkflowEventSource.EXECUTOR:
            self.warn(
                f"executor {self.executor.id!r} tried to emit a {event.type!r} event, which only the engine emits; "
                "use yield_output for outputs, or an event type of your own"
            )
        elif transient:
            self.events.emit(event, is_kept=False)
        else:
            self.events.emit_own(event, self._emitted_before())

    def _emitted_before(self) -> Mapping[str, int]:
        """Return how often earlier attempts emitted each event of the handler."""
        if self.activation.delivery.activation_id is None:
            return {}
        found = self.context.journal.find(f"{self.activation_id}/told")
        return {} if found is None else counts_in(found)

    def pass_on(self, event: PendingEvent) -> None:
        """Keep an event of the sub-workflow as a `sub_workflow` event."""
        self.events.keep_inner(event)

    def warn(self, text: str) -> None:
        """Emit a warning."""
        self.events.warn(text)

    def warn_once(self, text: str) -> None:
        """Emit a warning unless this attempt has emitted it."""
        if text not in self._warned:
            self._warned |= {text}
            self.events.warn(text)

    # Requests, questions, steps and timers.

    def _used_requests(self) -> Requests:
        if self._requests is None:
            self._requests = Requests(self)
        return self._requests

    def request(self, data: Any, response_type: Any, request_id: str | None, terms: Terms = Terms()) -> None:  # noqa: B008 - frozen
        """Open a request for a response handler."""
        self.require_running()
        self._used_requests().open(data, response_type, request_id, terms)

    def wait_for(self, request_id: str, data: Any, response_type: Any, terms: Terms = Terms()) -> None:  # noqa: B008 - frozen
        """Open a request that this activation awaits."""
        self._used_requests().wait_for(request_id, data, response_type, terms)

    def is_open(self, request_id: str) -> bool:
        """Return whether a request with this id is open."""
        return request_id in self.context.snapshot.requests or request_id in self.context.opened

    def ask(
        self,
        data: Any,
        response_type: Any,
        request_id: str | None,
        terms: Terms = Terms(),  # noqa: B008 - frozen
        *,
        is_numbered: bool = False,
    ) -> Coroutine[Any, Any, Any]:
        """Return a question to await. The call fixes its identity, not the order of awaiting."""
        self.require_running()
        if self._used_questions is None:
            self._used_questions = Questions(self, self._steps())
        return self._used_questions.begin(Question(data, response_type, request_id, terms, is_numbered))

    def digest(self, value: Any) -> str:
        """Return the digest that identifies an approved value."""
        return value_digest(value, self.context.values)

    def require_approved(self, value: Any) -> None:
        """Raise ApprovalMismatchError unless the answered request approved this value."""
        require_approved(value, self.activation.delivery.answers, self.context)

    def _steps(self) -> Steps:
        if self._used_steps is None:
            self._used_steps = Steps(self)
        return self._used_steps

    def step(self, call: StepCall) -> Coroutine[Any, Any, Any]:
        """Return a step to await."""
        self.require_running()
        return self._steps().begin(call)

    def sleep(self, until: datetime | timedelta | float) -> Coroutine[Any, Any, None]:
        """Return a wait to await. The first attempt fixes its end."""
        self.require_running()
        return begin_sleep(self._steps(), until)

    def number(self, name: str) -> int:
        """Return how many things of this name were begun before, here or in the step that is running here."""
        return self.numbering(name).take()

    def numbering(self, name: str) -> Numbering:
        """Return the counter for things of this name, here or in the step that is running here."""
        self.require_running()
        return self._steps().numbering(name)

    def turn_key(self, make_key: Callable[[str], str]) -> str:
        """Return the key of an agent's turn, as an earlier version made it if that has recorded one."""
        self.require_running()
        return self._steps().turn_key(make_key)

    # Budget.

    def spend(self, amounts: Mapping[str, float]) -> None:
        """Count spending. Raises ValueError for amounts that are not finite or negative, and counts nothing then."""
        self.require_running()
        require_amounts(amounts)
        self.count(amounts)

    def count(self, spent: Mapping[str, float]) -> None:
        """Count spending; inside a step, as part of the step's record."""
        inside = self.running_step
        totals = self._spent if inside is None else inside.spent
        for name, amount in spent.items():
            totals[name] = totals.get(name, 0) + amount
        if inside is None and self.context.snapshot.limits.budget:
            self.context.budget.child(self.activation_id).report(self._spent)

    def require_budget(self) -> None:
        """Raise BudgetExceededError if nothing is left of a resource, counting parallel activations."""
        left = self.context.snapshot.left
        for name in left.keys() - COUNTED_BY_ENGINE:
            spent = self._spent_of(name) + self.context.budget.child(self.activation_id).spent_by_siblings(name)
            if spent >= left[name]:
                # The loop of the run reports the totals of the whole run.
                raise BudgetExceededError(self.context.root_id, name=name, spent=spent, limit=left[name])

    @property
    def left(self) -> Mapping[str, float]:
        """Return the remaining budget after this attempt's spending."""
        return {name: left - self._spent_of(name) for name, left in self.context.snapshot.left.items()}

    def _spent_of(self, name: str) -> float:
        inside = self.running_step
        return self._spent.get(name, 0) + (0 if inside is None else inside.spent_of(name))

    # State.

    def private_scope(self) -> str:
        """Return the scope that belongs to this executor alone."""
        return private_scope(self.executor.id)

    def common_scope(self) -> str | None:
        """Return the scope that this executor shares with others: that of the first of them."""
        first_id = self.context.graph.sharing.get(self.executor.id)
        return None if first_id is None else private_scope(first_id)

    def _view(self) -> StateView:
        if self._state is None:
            self._state = StateView(self.executor, self.context)
        return self._state

    def read(self, scope: str, key: str) -> Any:
        """Return a value of the state, a copy if it is mutable. Raises KeyError."""
        return self._view().read((scope, key))

    def write(self, scope: str, key: str, value: Any) -> None:
        """Stage a value."""
        self.require_running()
        self._view().write((scope, key), value)

    def erase(self, scope: str, key: str) -> None:
        """Stage the removal of a key. Raises KeyError."""
        self.require_running()
        self._view().erase((scope, key))

    def has(self, scope: str, key: str) -> bool:
        """Return whether a key has a value."""
        return self._view().has((scope, key))

    def keys(self, scope: str) -> Sequence[str]:
        """Return the keys of a scope."""
        return self._view().keys(scope)

    # The end of the attempt.

    def finish(
        self,
        *,
        earlier: Sequence[PendingEvent] = (),
        warning: str | None = None,
        is_called: bool = True,
    ) -> ActivationResult:
        """Encode all effects as they are now and emit that the handler has returned.

        `earlier` are the events of earlier attempts, `warning` is one about this attempt. `is_called` is False if no
        handler was called and the activation only passes its message on.
        """
        self._is_over = True
        state, context, name = self._state, self.context, self.executor.id
        fix = context.values.fix
        writes = state.writes() if state is not None else ()
        requests = self._requests.opened() if self._requests is not None else ()
        outputs = tuple(
            [
                Output(name, kind, fix(value, f"output of executor {name!r}"), is_whole)
                for kind, value, is_whole in self._outputs
            ]
        )
        unrouted = tuple(
            [
                UnroutedMessage(fix(message, f"message of executor {name!r}"), target, message, due)
                for message, target, due in self._sent
            ]
        )
        for text in context.values.warnings():
            self.events.emit(warning_event(text))
        if is_called:
            produced = [*[message for message, _, _ in self._sent], *self._yielded] or list(self._shown)
            self.events.emit_call("executor_completed", produced or None)
        if warning is not None:
            self.warn(warning)
        if is_called and context.has_records:
            self._warn_of_skipped_steps()
        effects = Effects(
            self.activation,
            writes=writes,
            requests=requests,
            outputs=outputs,
            child=self.child,
            events=(*earlier, *self.events.collect(outputs, requests)),
            spent=self._spent,
        )
        return ActivationResult(effects, unrouted, state.updates() if state is not None else {})

    def _warn_of_skipped_steps(self) -> None:
        """Warn of recorded steps that the handler has not called: it may have done their work in another way, too."""
        again = self.activation.delivery.activation_id is not None
        called = frozenset[str]() if self._used_steps is None else self._used_steps.called
        names = skipped_steps(self, called, is_entered_again=again)
        if names:
            self.warn(
                f"executor {self.executor.id!r} has returned without calling steps that are recorded for it: "
                f"{', '.join(names)}; let its actions depend on nothing but its message, state, steps and answers"
            )

    def fail(self, error: BaseException) -> None:
        """Discard the effects and emit that the handler raised."""
        self._discard()
        if self._used_steps is not None:
            self._used_steps.fail(error)
        self.failure = self.events.emit_failure(error)

    def _discard(self) -> None:
        self._is_over = True
        if self._requests is not None:
            self._requests.discard()

    def suspend(self, wait: Wait, earlier: Sequence[PendingEvent] = ()) -> ActivationResult:
        """Discard the effects except recorded ones, and emit that the handler was suspended."""
        self._discard()
        self.events.emit_suspension(wait.wake_at or wait.request_id)
        suspension = Suspension(
            wait.wake_at,
            wait.request_id,
            self._carried(),
            self._used_questions.given_up if self._used_questions is not None else (),
        )
        effects = Effects(
            self.activation,
            requests=self._requests.awaited if self._requests is not None else (),
            events=(*earlier, *self.events.collect_discarded()),
            suspension=suspension,
        )
        return ActivationResult(effects, (), {})

    def _carried(self) -> Mapping[str, object]:
        """Return the records of this activation for the snapshot. Answers are kept even without a journal."""
        answers = f"{self.activation_id}/answer/"
        given = {key: value for key, value in self.context.snapshot.carried.items() if key.startswith(answers)}
        caught: Mapping[str, object] = {} if self._used_steps is None else self._used_steps.error_records()
        found = {**given, **self.context.journal.records(self.activation_id), **caught}
        counts = self.events.count_own(self._emitted_before())
        if counts:
            key = f"{self.activation_id}/told"
            found[key] = Kept(path=f"record {key!r}", encoded=counts_record(counts))
        return found
