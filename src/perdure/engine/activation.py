"""One attempt at an activation: it collects the effects of a handler call and emits its events live."""

from __future__ import annotations

import asyncio
import inspect
import math
from collections import Counter
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from perdure.checkpoint import AttemptsRecord, StepRecord, plain_record, value_digest
from perdure.clock import moment_of
from perdure.codec import Kept, as_kept, document
from perdure.data_classes import new_dict, new_list, new_set, value_class
from perdure.engine.commit import FRAMEWORK, encode_data, pending_event, request_opened, warning_event
from perdure.engine.questions import Question, Questions, Requests, require_approved
from perdure.engine.state import StateView
from perdure.engine.step_identity import skipped_steps
from perdure.engine.steps import Steps
from perdure.engine.suspension import Suspender, Wait, begin_sleep
from perdure.engine.tasks import ATTEMPTS, StepSlot
from perdure.errors import BudgetExceededError
from perdure.events import WorkflowErrorDetails, WorkflowEvent, WorkflowEventSource
from perdure.graph import (
    Executor,
    Numbering,
    OutputKind,
    StepCall,
    Terms,
    TimersDue,
    enter,
    private_scope,
    require_no_result,
    wiring,
)
from perdure.kernel import (
    Activation,
    ActivationResult,
    Effects,
    Moment,
    Output,
    PendingEvent,
    Request,
    Snapshot,
    Suspension,
    UnroutedMessage,
    activation_id_of,
)
from perdure.records import digest
from perdure.streams import has_pieces
from perdure.tracing import NO_SPAN, Span

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Mapping, Sequence
    from datetime import datetime, timedelta

    from perdure.engine.superstep import ActivationContext
    from perdure.engine.tasks import RunningStep

_ENGINE_ONLY = frozenset({"output", "intermediate", "started", "status", "failed", "attempt_discarded"})
_COUNTED_BY_ENGINE = frozenset({"supersteps", "activations"})
"""Resources that are checked when a superstep begins: nothing inside a handler spends them."""
_has_reserved: ContextVar[bool] = ContextVar("perdure_has_reserved", default=False)
"""True inside a call that has reserved budget, which covers the calls inside it."""


@value_class
class _Placeholder:
    """An event whose data is encoded when the activation ends."""

    of: Literal["output", "request"]
    index: int


@dataclass(eq=False)
class ActivationRecorder:
    """The effects of one attempt, collected behind the `WorkflowContext` of its handler.

    Most handlers only send messages, so the rest (state, requests, steps, questions) is created on first use.

    Attributes:
        streaming: True if the caller reads a stream.
        source_executor_ids: The executors that sent the message.
        child: The sub-workflow of the executor, if this activation advanced it.
        asked_inside: Open requests of an agent that is a workflow, with their deadlines.
        task: The handler's own task.
        _own_events: The number of times the handler itself emitted each event.
    """

    activation: Activation
    executor: Executor
    context: ActivationContext
    message: Any = field(init=False)
    executor_id: str = field(init=False)
    run_id: str = field(init=False)
    streaming: bool = field(init=False)
    source_executor_ids: Sequence[str] = field(init=False)
    child: Snapshot | None = field(default=None, init=False)
    asked_inside: Mapping[str, Request] = field(default_factory=new_dict, init=False)
    span: Span = field(default=NO_SPAN, init=False)
    failure: WorkflowErrorDetails | None = field(default=None, init=False)
    task: asyncio.Task[Any] | None = field(default=None, init=False)
    cancelled_before: int = field(default=0, init=False)
    yielded: list[Any] = field(default_factory=new_list, init=False)
    requests: Requests | None = field(default=None, init=False)
    steps: Steps | None = field(default=None, init=False)
    questions: Questions | None = field(default=None, init=False)
    _suspender: Suspender | None = field(default=None, init=False)
    _state: StateView | None = field(default=None, init=False)
    _is_over: bool = field(default=False, init=False)
    _events: list[PendingEvent | _Placeholder | StepSlot] = field(default_factory=new_list, init=False)
    _own_events: Counter[str] | None = field(default=None, init=False)
    _sent: list[tuple[Any, str | None, Moment | None]] = field(default_factory=new_list, init=False)
    _outputs: list[tuple[OutputKind, Any, bool]] = field(default_factory=new_list, init=False)
    _shown: list[Any] = field(default_factory=new_list, init=False)
    _spent: dict[str, float] = field(default_factory=new_dict, init=False)
    _warned: set[str] = field(default_factory=new_set, init=False)

    def __post_init__(self) -> None:
        context, delivery, give = self.context, self.activation.delivery, self.context.values.give
        self.executor_id, self.run_id, self.streaming = self.executor.id, context.run_id, context.streaming
        self.source_executor_ids = delivery.sources
        if delivery.woken_at is not None:
            self.message = TimersDue(delivery.woken_at)
        elif delivery.is_gathered:
            self.message = [give(value) for value in delivery.values]
        else:
            self.message = give(delivery.values[0])

    @cached_property
    def activation_id(self) -> str:
        """Return the activation_id, which is the same for every attempt."""
        return activation_id_of(self.context.snapshot, self.activation)

    @property
    def is_function(self) -> bool:
        """Return whether the handler is a functional workflow."""
        return wiring(self.executor).is_function

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
    def tools(self) -> list[Any] | None:
        """Return the tools that the caller gave to this call of the run."""
        return self.context.tools

    @property
    def sent(self) -> Sequence[Any]:
        """Return the messages sent so far."""
        return [message for message, _, _ in self._sent]

    # The life of the attempt.

    @property
    def suspender(self) -> Suspender:
        """Return the object that suspends the handler when it waits."""
        if self._suspender is None:
            assert self.task is not None, "a handler runs in a task"
            self._suspender = Suspender(self.executor.id, self.context.clock, self.task, self.cancelled_before)
        return self._suspender

    @property
    def waits_for(self) -> Wait | None:
        """Return why the handler is being suspended; None if it is not."""
        return None if self._suspender is None else self._suspender.waits_for

    @property
    def is_suspending(self) -> bool:
        """Return whether the handler is being suspended."""
        return self.waits_for is not None

    @property
    def running_step(self) -> RunningStep | None:
        """Return the step of this activation whose function runs here, if any."""
        return None if self.steps is None else self.steps.running

    @property
    def is_running(self) -> bool:
        """Return whether the handler has not ended, or a step of it is still being finished here."""
        return not self._is_over or self.running_step is not None

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
        task = self.task = asyncio.current_task()
        assert task is not None, "a handler runs in a task"
        self.cancelled_before = task.cancelling()
        has_returned = False
        try:
            outcome = handler(*args)
            if inspect.isawaitable(outcome):
                await outcome
            else:
                require_no_result(self.executor_id, outcome)
            has_returned = True
        except BaseException as error:
            if not self.suspender.end(error):
                if self.steps is not None and isinstance(error, asyncio.CancelledError):
                    self.steps.interrupt()
                raise
        else:
            if self._suspender is not None:
                self._suspender.end(None)
        finally:
            self._is_over = True
            try:
                if self.steps is not None:
                    await self.steps.settle()
            finally:
                if not has_returned and self._suspender is not None:
                    self._suspender.cancel_subtasks()

    # Messages, outputs and events.

    def send(self, message: Any, target_id: str | None, delay: timedelta | float | None = None) -> None:
        """Queue a message for the next superstep, or for later."""
        self.require_running()
        due = None if delay is None else moment_of(self.context.clock, delay, "the delay of a message")
        self._sent.append((message, target_id, due))

    def output(self, value: Any, *, in_pieces: bool = False) -> None:
        """Yield an output. With `in_pieces`, a streaming reader has already seen its pieces."""
        self.require_running()
        self.yielded.append(value)
        kind = self.context.graph.designation.kind_of(self.executor.id)
        if kind is not None:
            self.emit_output(kind, value, in_pieces=in_pieces)

    def emit_output(self, kind: OutputKind, value: Any, *, in_pieces: bool = False) -> None:
        """Keep an output of a given kind, and emit it unless its pieces were shown."""
        if not (in_pieces and self.context.streaming):
            self._show_live(WorkflowEvent(kind, value, executor_id=self.executor.id, origin=FRAMEWORK))
        if self.context.is_checkpointed:
            self._events.append(_Placeholder("output", len(self._outputs)))
        self._outputs.append((kind, value, has_pieces(value) and not in_pieces))

    def show(self, value: Any) -> None:
        """Emit a piece of an output to a streaming reader. It is not recorded."""
        self.require_running()
        self._shown.append(value)
        kind = self.context.graph.designation.kind_of(self.executor.id)
        if kind is not None and self.context.streaming:
            self._show_live(WorkflowEvent(kind, value, executor_id=self.executor.id, origin=FRAMEWORK))

    def take_back(self, pieces: Sequence[Any]) -> None:
        """Emit that pieces of an output don't count."""
        gone = set(map(id, pieces))
        self._shown = [piece for piece in self._shown if id(piece) not in gone]
        self.context.discard_shown(self.activation, lambda event: id(event.data) in gone)

    def _show_live(self, event: WorkflowEvent[Any]) -> None:
        self.context.show(self.activation, event)

    def emit(self, event: WorkflowEvent[Any], *, transient: bool = False) -> None:
        """Emit an event of the handler. Types that belong to the engine become a warning."""
        self.require_running()
        if event.type in _ENGINE_ONLY and event.origin is WorkflowEventSource.EXECUTOR:
            self.warn(
                f"executor {self.executor.id!r} tried to emit a {event.type!r} event, which only the engine emits; "
                "use yield_output for outputs, or an event type of your own"
            )
            return
        if not transient and self.context.is_checkpointed and not self._keep(event):
            return
        if event.type == "data":
            # It is part of an agent's response, as an output is.
            self._show_live(event)
        else:
            self.context.emit(event)

    def _keep(self, event: WorkflowEvent[Any]) -> bool:
        """Keep an event of the handler for the commit. Return False if an earlier entry has committed it."""
        pending = self._pending(event)
        data = b"" if pending.data is None else as_kept(pending.data).require_encoded().text
        name = digest(f"{pending.type} {pending.executor_id} ".encode() + data)[:16]
        self._own_events = Counter() if self._own_events is None else self._own_events
        self._own_events[name] += 1
        is_new = self._own_events[name] > self._emitted_before(name)
        if is_new:
            self._events.append(pending)
        return is_new

    def _emitted_before(self, name: str) -> int:
        """Return how often earlier entries emitted an event of the handler."""
        if self.activation.delivery.activation_id is None:
            return 0
        key, journal = f"{self.activation_id}/told", self.context.journal
        found = journal.find(f"{key}/{name}")
        if found is not None:
            return plain_record(found, int)
        # Earlier versions kept the counts of all events in one record.
        every = journal.find(key)
        return 0 if every is None else plain_record(every, dict).get(name, 0)

    def _pending(self, event: WorkflowEvent[Any]) -> PendingEvent:
        pending = pending_event(event, self.context.values)
        # A reader of the log wants to know the executor even if the handler did not name it.
        return pending if pending.executor_id else replace(pending, executor_id=self.executor.id)

    def _emit_kept(self, event: WorkflowEvent[Any]) -> None:
        self.context.emit(event)
        if self.context.is_checkpointed:
            self._events.append(self._pending(event))

    def emit_call(self, kind: str, data: Any) -> None:
        """Emit the start or end of the handler. The payload is kept only if the workflow records payloads."""
        event, context = WorkflowEvent(kind, data, executor_id=self.executor.id, origin=FRAMEWORK), self.context
        if not self.is_function:
            context.emit(event)
        if context.is_checkpointed:
            records = context.graph.rules.record_payloads
            self._events.append(self._pending(event) if records else PendingEvent(kind, executor_id=self.executor.id))

    def emit_request(self, event: WorkflowEvent[Any], request: Request | int) -> None:
        """Emit a request: one that this activation awaits, or the index of one for a response handler."""
        self._show_live(event)
        if self.context.is_checkpointed:
            is_placeholder = isinstance(request, int)
            self._events.append(_Placeholder("request", request) if is_placeholder else request_opened(request))

    def pass_on(self, event: PendingEvent) -> None:
        """Keep an event of the sub-workflow as a `sub_workflow` event. A later attempt gets it from the journal."""
        inner, path = (event.inner, event.path) if event.inner is not None else (event, ())
        name = self.executor.id
        # The sub-workflow's superstep is recorded, so another attempt doesn't show it again.
        self.context.shown.pop(self.activation.key, None)
        if self.context.is_checkpointed:
            self._events.append(PendingEvent("sub_workflow", executor_id=name, path=(name, *path), inner=inner))

    def warn(self, text: str) -> None:
        """Emit a warning."""
        self._emit_kept(WorkflowEvent.warning(text))

    def warn_once(self, text: str) -> None:
        """Emit a warning unless this attempt has emitted it."""
        if text not in self._warned:
            self._warned.add(text)
            self.warn(text)

    def warn_once_per_run(self, text: str) -> None:
        """Emit a warning unless another activation of this call of the run has emitted it."""
        if self.context.budget.warned.setdefault(text, self.activation_id) == self.activation_id:
            self.warn_once(text)

    # Requests, questions, steps and timers.

    def _used_requests(self) -> Requests:
        if self.requests is None:
            self.requests = Requests(self)
        return self.requests

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
        steps = self._used_steps()
        if self.questions is None:
            self.questions = Questions(self, steps)
        return self.questions.begin(Question(data, response_type, request_id, terms, is_numbered))

    def digest(self, value: Any) -> str:
        """Return the digest that identifies an approved value."""
        return value_digest(value, self.context.values)

    def require_approved(self, value: Any) -> None:
        """Raise ApprovalMismatchError unless the answered request approved this value."""
        require_approved(value, self.activation.delivery.answers, self.context)

    def _used_steps(self) -> Steps:
        self.require_running()
        if self.steps is None:
            self.steps = Steps(self)
        return self.steps

    def step(self, call: StepCall) -> Coroutine[Any, Any, Any]:
        """Return a step to await."""
        return self._used_steps().begin(call)

    def sleep(self, until: datetime | timedelta | float) -> Coroutine[Any, Any, None]:
        """Return a wait to await. The first attempt fixes its end."""
        return begin_sleep(self._used_steps(), until)

    def number(self, name: str) -> int:
        """Return how many things of this name were begun before, here or in the step that is running here."""
        return self.numbering(name).take()

    def numbering(self, name: str) -> Numbering:
        """Return the counter for things of this name, here or in the step that is running here."""
        return self._used_steps().scope.numberings[name]

    def turn_key(self, make_key: Callable[[str], str]) -> str:
        """Return the key of an agent's turn, as an earlier version made it if that has recorded one."""
        steps = self._used_steps()
        return steps.identities.turn_key(make_key, steps.scope, is_own=steps.is_in_own_task)

    # Budget.

    def spend(self, amounts: Mapping[str, float]) -> None:
        """Count spending. Raises ValueError for amounts that are not finite or negative, and counts nothing then."""
        self.require_running()
        for name, amount in amounts.items():
            if not math.isfinite(amount) or amount < 0:
                raise ValueError(f"an amount to spend must be finite and not negative, not {name}={amount!r}")
        self.count(amounts)

    def count(self, spent: Mapping[str, float]) -> None:
        """Count spending; inside a step, as part of the step's record."""
        inside = self.running_step
        totals = self._spent if inside is None else inside.spent
        for name, amount in spent.items():
            totals[name] = totals.get(name, 0) + amount
        if budget := self.context.snapshot.limits.budget:
            self.context.budget.child(self.activation_id).report({name: self._spent_of(name) for name in budget})

    def require_budget(self) -> None:
        """Raise BudgetExceededError if nothing is left of a resource, counting parallel activations."""
        left = self.context.snapshot.left
        for name in left.keys() - _COUNTED_BY_ENGINE:
            spent = self._spent_in_superstep(name)
            if spent >= left[name]:
                # The loop of the run reports the totals of the whole run.
                raise BudgetExceededError(self.context.root_id, name=name, spent=spent, limit=left[name])

    @asynccontextmanager
    async def reserve(self, resources: Collection[str]) -> AsyncGenerator[None]:
        """Make a call inside a step, with as much budget reserved as the largest call before it has spent.

        Wait while calls are in flight that may use up what is left. Raises BudgetExceededError if nothing is.
        """
        step, calls, left = self.running_step, self.context.budget.calls, self.context.snapshot.left
        names = left.keys() & set(resources)
        if step is None or not names or _has_reserved.get():
            self.require_budget()
            yield
            return

        def fits() -> bool:
            return all(
                name in calls.largest
                and self._spent_in_superstep(name) + (calls.number + 1) * calls.largest[name] <= left[name]
                for name in names
            )

        await calls.begin(fits)
        token, spent = _has_reserved.set(True), {}
        try:
            self.require_budget()
            yield
            spent = {name: step.spent.get(name, 0) for name in names}
        finally:
            _has_reserved.reset(token)
            calls.end(spent)

    def _spent_in_superstep(self, name: str) -> float:
        return self._spent_of(name) + self.context.budget.child(self.activation_id).spent_by_siblings(name)

    @property
    def left(self) -> Mapping[str, float]:
        """Return the remaining budget after this attempt's spending."""
        return {name: left - self._spent_of(name) for name, left in self.context.snapshot.left.items()}

    def _spent_of(self, name: str) -> float:
        in_flight = () if self.steps is None else self.steps.in_flight
        return self._spent.get(name, 0) + sum(step.spent.get(name, 0) for step in in_flight)

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

    def write(self, scope: str, key: str, value: Any, *, copies: bool = False) -> None:
        """Stage a value, or a copy of it."""
        self.require_running()
        self._view().write((scope, key), value, copies=copies)

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
        self, *, earlier: Sequence[PendingEvent] = (), warning: str | None = None, is_called: bool = True
    ) -> ActivationResult:
        """Encode all effects as they are now and emit that the handler has returned.

        `earlier` are the events of earlier attempts, `warning` is one about this attempt. `is_called` is False if no
        handler was called and the activation only passes its message on.
        """
        self._is_over = True
        state, context, name = self._state, self.context, self.executor.id
        fix = context.values.fix
        writes = state.writes() if state is not None else ()
        requests = self.requests.opened() if self.requests is not None else ()
        outputs = [
            Output(name, kind, fix(value, f"output of executor {name!r}"), is_whole)
            for kind, value, is_whole in self._outputs
        ]
        # A message that no edge can take is not encoded: the response of the last agent is as long as its conversation.
        has_edges = bool(context.graph.groups_from[name])
        unrouted = [
            UnroutedMessage(fix(message, f"message of executor {name!r}"), target, message, due)
            for message, target, due in self._sent
            if has_edges or target is not None or due is not None
        ]
        for text in context.values.warnings():
            self._emit_kept(warning_event(text))
        if is_called:
            produced = [*(message for message, _, _ in self._sent), *self.yielded] or list(self._shown)
            self.emit_call("executor_completed", produced or None)
        if warning is not None:
            self.warn(warning)
        if is_called and context.has_records:
            self._warn_of_skipped_steps()
        events: list[PendingEvent] = [*earlier]
        for event in self._events:
            if isinstance(event, PendingEvent):
                events.append(event)
            elif isinstance(event, StepSlot):
                events += self._events_of(event)
            elif event.of == "request":
                events.append(request_opened(requests[event.index]))
            else:
                output = outputs[event.index]
                events.append(PendingEvent(output.kind, output.data, output.executor_id))
        effects = Effects(
            self.activation,
            writes=writes,
            requests=requests,
            outputs=tuple(outputs),
            child=self.child,
            events=tuple(events),
            spent=self._spent,
        )
        return ActivationResult(effects, tuple(unrouted), state.updates() if state is not None else {})

    def _warn_of_skipped_steps(self) -> None:
        """Warn of recorded steps that the handler has not called: it may have done their work in another way, too."""
        names = skipped_steps(self, frozenset() if self.steps is None else self.steps.identities.called)
        if names:
            self.warn(
                f"executor {self.executor.id!r} has returned without calling steps that are recorded for it: "
                f"{', '.join(names)}; let its actions depend on nothing but its message, state, steps and answers"
            )

    def fail(self, error: BaseException) -> None:
        """Discard the effects and emit that the handler raised."""
        self._discard()
        if self.steps is not None:
            self.steps.errors.forget_causes(error)
        name = self.executor.id
        details = self.failure = WorkflowErrorDetails.from_exception(error, executor_id=name)
        if not self.is_function:
            self.context.emit(
                WorkflowEvent("executor_failed", details, executor_id=name, details=details, origin=FRAMEWORK)
            )
        if self.context.is_checkpointed:
            kept, lost = encode_data(details, "details of an 'executor_failed' event", self.context.values)
            self._events.append(PendingEvent("executor_failed", executor_id=name, details=kept, lost=lost))

    def _discard(self) -> None:
        self._is_over = True
        if self.requests is not None:
            self.requests.discard()

    def events_without_effects(self, *, with_steps: bool) -> list[PendingEvent]:
        """Return the events of an attempt whose outputs and requests are discarded.

        The next attempt calls the recorded steps again, and has their events.
        """
        events: list[PendingEvent] = []
        for event in self._events:
            if isinstance(event, StepSlot):
                events += self._events_of(event) if with_steps else ()
            elif isinstance(event, PendingEvent) and event.inner is None:
                events.append(event)
        return events

    def add_slot(self, slot: StepSlot) -> None:
        """Reserve the place of a step's events."""
        self._events.append(slot)

    def _events_of(self, slot: StepSlot) -> list[PendingEvent]:
        return [PendingEvent(kind, data, self.executor_id) for kind, data in (*slot.failed, *slot.recorded())]

    def describe_step(self, **about: object) -> None:
        """Report fields of the StepInfo of the step that is running here."""
        if self.running_step is not None:
            self.running_step.about.update(about)

    def suspend(self, wait: Wait, earlier: Sequence[PendingEvent] = ()) -> ActivationResult:
        """Discard the effects except recorded ones, and emit that the handler was suspended."""
        self._discard()
        reason = wait.wake_at or wait.request_id
        self._emit_kept(WorkflowEvent("executor_suspended", reason, executor_id=self.executor.id, origin=FRAMEWORK))
        given_up = self.questions.given_up if self.questions is not None else ()
        awaited = self.requests.awaited if self.requests is not None else ()
        kept = {request.id for request in awaited}
        self.context.discard_shown(
            self.activation,
            lambda event: (
                event.type in {"output", "intermediate"}
                or (event.type == "request_info" and event.request_id not in kept)
            ),
        )
        effects = Effects(
            self.activation,
            requests=awaited,
            events=(*earlier, *self.events_without_effects(with_steps=True)),
            suspension=Suspension(wait.wake_at, wait.request_id, self._carried(), given_up),
        )
        return ActivationResult(effects, (), {})

    def _carried(self) -> Mapping[str, object]:
        """Return the records of this activation for the snapshot. Answers are kept even without a journal."""
        answers = f"{self.activation_id}/answer/"
        given = {key: value for key, value in self.context.snapshot.carried.items() if key.startswith(answers)}
        caught: Mapping[str, object] = {} if self.steps is None else self.steps.errors.records()
        found = {**given, **self.context.journal.records(self.activation_id), **caught}
        self._strip_events(found)
        for name, count in (self._own_events or {}).items():
            if count > self._emitted_before(name):
                key = f"{self.activation_id}/told/{name}"
                found[key] = Kept(path=f"record {key!r}", encoded=document(count))
        return found

    def _strip_events(self, records: dict[str, object]) -> None:
        """Take the events that this commit numbers out of the records, so that no later entry emits them again."""
        held = self.context.held(self.activation_id) if self.context.values.held else {}
        slots = [each for each in self._events if isinstance(each, StepSlot)]
        for place in (f"{self.activation_id}{ATTEMPTS}", *(place for slot in slots for place in slot.places())):
            if place in held:
                held[place] = replace(held[place], events=())
            if place not in records:
                continue
            kept = as_kept(records[place])
            if place.endswith(ATTEMPTS):
                attempts = AttemptsRecord.of(kept)
                bare = replace(attempts, failures=()).encoded() if attempts.failures else None
            else:
                step = StepRecord.of(kept, place)
                bare = replace(step, events=()).encoded() if step.events else None
            if bare is not None:
                records[place] = Kept(path=kept.path, encoded=bare)
