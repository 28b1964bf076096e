"""One handler call: it collects what the handler does through its context, and tells it live."""

from __future__ import annotations

import asyncio
import inspect
from types import CoroutineType, MappingProxyType
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from perdure.checkpoint import counts_in, counts_record, value_digest
from perdure.clock import moment_of
from perdure.codec import Kept
from perdure.engine.branches import branch_path, trunk_of
from perdure.engine.logbook import FRAMEWORK, Logbook
from perdure.engine.parking import Parked, Parking
from perdure.engine.spending import Spending, require_amounts
from perdure.engine.staging import Staging
from perdure.engine.surroundings import Surroundings
from perdure.events import WorkflowEvent, WorkflowEventSource
from perdure.graph import Place, Terms, TimersDue, enter, private_scope
from perdure.kernel import ActivationResult, Effects, Output, Suspension, UnroutedMessage
from perdure.streams import has_pieces
from perdure.tracing import NO_SPAN

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence
    from datetime import datetime, timedelta

    from perdure.engine.asking import Asking
    from perdure.engine.branches import Branch
    from perdure.engine.flight import Inside
    from perdure.engine.questions import Questions
    from perdure.engine.reading import Reading
    from perdure.engine.steps import Steps
    from perdure.events import WorkflowErrorDetails
    from perdure.graph import Executor, Numbering, OutputKind, StepCall
    from perdure.kernel import Activation, Moment, PendingEvent, Request, Snapshot
    from perdure.tracing import Span

__all__ = ["FRAMEWORK", "ActivationRecorder", "Surroundings"]

_ENGINE_ONLY = frozenset({"output", "intermediate", "started", "status", "failed"})


class ActivationRecorder:
    """The context's port for one attempt at an activation, and the maker of its effects."""

    child: Snapshot | None = None
    asked_inside: Mapping[str, Request] = MappingProxyType({})
    """What an agent that is a workflow has asked when it was left, with its deadlines."""
    span: Span = NO_SPAN
    failure: WorkflowErrorDetails | None = None
    """What the handler raised."""
    reading: Reading | None = None
    """How the function reads that the handler is; None if it is none."""
    _is_over = False
    _has_returned = False
    _warned: frozenset[str] = frozenset()
    # Most handlers do nothing but send: what they don't use is never made.
    _used_staging: Staging | None = None
    _used_asking: Asking | None = None
    _used_steps: Steps | None = None
    _used_questions: Questions | None = None
    _used_spending: Spending | None = None
    _used_trunk: Branch | None = None
    _used_tasks: WeakSet[asyncio.Task[Any]] | None = None
    _task: asyncio.Task[Any] | None = None

    def __init__(self, activation: Activation, executor: Executor, around: Surroundings) -> None:
        self.activation = activation
        self.executor = executor
        self.around = around
        self.book = Logbook(around, executor.id)
        self.parking = Parking(executor.id)
        self._sent: list[tuple[Any, str | None, Moment | None]] = []
        self._outputs: list[tuple[OutputKind, Any, bool]] = []
        self._yielded: list[Any] = []
        self._shown: list[Any] = []
        self.message: Any = self._message()

    @property
    def home(self) -> str:
        """Where the activation was entered first."""
        return self.around.home_of(self.activation)

    @property
    def _staging(self) -> Staging:
        if self._used_staging is None:
            self._used_staging = Staging(self.executor, self.around)
        return self._used_staging

    @property
    def _asking(self) -> Asking:
        if self._used_asking is None:
            from perdure.engine.asking import Asking  # noqa: PLC0415 - loaded when used

            self._used_asking = Asking(self.executor, self.around, self.home, self.book)
        return self._used_asking

    @property
    def _steps(self) -> Steps:
        if self._used_steps is None:
            from perdure.engine.steps import Steps  # noqa: PLC0415 - few programs need it: loaded when used

            self._used_steps = Steps(self)
        return self._used_steps

    @property
    def _questions(self) -> Questions:
        if self._used_questions is None:
            from perdure.engine.questions import Questions  # noqa: PLC0415 - loaded when used

            self._used_questions = Questions(self)
        return self._used_questions

    @property
    def trunk(self) -> Branch:
        """Where the counting begins of what the handler asks in tasks of its own."""
        if self._used_trunk is None:
            self._used_trunk = trunk_of(self, self._task)
        return self._used_trunk

    @property
    def tasks(self) -> WeakSet[asyncio.Task[Any]]:
        """The tasks that functions have begun which are part of the handler."""
        if self._used_tasks is None:
            self._used_tasks = WeakSet()
        return self._used_tasks

    @property
    def _spending(self) -> Spending:
        if self._used_spending is None:
            self._used_spending = Spending(self)
        return self._used_spending

    @property
    def enclosing(self) -> Inside | None:
        """The step of this activation whose function is running here, if one is."""
        return self._enclosing

    @property
    def _enclosing(self) -> Inside | None:
        """The step of this activation whose function is running here, if one is."""
        return None if self._used_steps is None else self._used_steps.enclosing

    @property
    def reading_here(self) -> Reading | None:
        """How the function reads that is running here; None if it is none."""
        return self.reading if self._used_steps is None else self._used_steps.reading

    @property
    def is_running(self) -> bool:
        """Whether the handler has not ended, or a step of it is being finished here."""
        return not self._is_over or self._enclosing is not None

    @property
    def is_left(self) -> bool:
        """Whether the handler is being left, to be entered again."""
        return self.parking.parked is not None

    def require_running(self) -> None:
        """Raise RuntimeError if the handler has ended, but for a step that is being finished."""
        if not self.is_running:
            raise RuntimeError(
                f"the handler of executor {self.executor.id!r} has returned: what it does through its context now "
                "would be lost; await every task that uses the context inside of the handler"
            )

    def _message(self) -> Any:
        delivery, give = self.activation.delivery, self.around.values.give
        if delivery.woken_at is not None:
            return TimersDue(delivery.woken_at)
        if delivery.is_gathered:
            return [give(value) for value in delivery.values]
        return give(delivery.values[0])

    @property
    def executor_id(self) -> str:
        """Whose activation it is."""
        return self.executor.id

    @property
    def request_data(self) -> Any:
        """The request that the message answers."""
        request = self.activation.delivery.answers
        assert request is not None, "the message is no answer"
        return self.around.values.give(request.data)

    @property
    def source_executor_ids(self) -> Sequence[str]:
        """Where the message came from."""
        return self.activation.delivery.sources

    @property
    def request_id(self) -> str | None:
        """The request that is being answered, if one is."""
        request = self.activation.delivery.answers
        return None if request is None else request.id

    @property
    def run_id(self) -> str:
        """The run that it is part of."""
        return self.around.run_id

    @property
    def idempotency_key(self) -> str:
        """What names this activation to others: the same however often it is entered."""
        return self.around.derived_id(f"{self.home}/key")

    @property
    def streaming(self) -> bool:
        """Whether the caller reads a stream."""
        return self.around.streaming

    @property
    def sent(self) -> Sequence[Any]:
        """The messages sent so far."""
        return [message for message, _, _ in self._sent]

    @property
    def yielded(self) -> Sequence[Any]:
        """The outputs yielded so far."""
        return self._yielded

    def send(self, message: Any, target_id: str | None, delay: timedelta | float | None = None) -> None:
        """Queue a message for the next superstep, or for later."""
        self.require_running()
        due = None if delay is None else moment_of(self.around.clock, delay, "the delay of a message")
        self._sent.append((message, target_id, due))

    def output(self, value: Any, *, in_pieces: bool = False) -> None:
        """Tell an output, as the builder designated this executor; or only record it, since its pieces are shown."""
        self.require_running()
        self._yielded.append(value)
        kind = self._output_kind
        if kind is not None:
            self.tell_output(kind, value, in_pieces=in_pieces)

    @property
    def _output_kind(self) -> OutputKind | None:
        return self.around.graph.output_kinds[self.executor.id]

    def tell_output(self, kind: OutputKind, value: Any, *, in_pieces: bool = False) -> None:
        """Tell an output of a given kind."""
        self._outputs.append((kind, value, has_pieces(value) and not in_pieces))
        if not (in_pieces and self.around.streaming):
            self.book.show(kind, value)
        self.book.output(len(self._outputs) - 1)

    def show(self, value: Any) -> None:
        """Tell a piece of an output to who reads a stream now."""
        self.require_running()
        self._shown.append(value)
        kind = self._output_kind
        if kind is not None and self.around.streaming:
            self.book.show(kind, value)

    def tell(self, event: WorkflowEvent[Any], *, transient: bool = False) -> None:
        """Tell an event of the executor's own; the engine's own kinds are not for users to tell."""
        self.require_running()
        if event.type in _ENGINE_ONLY and event.origin is WorkflowEventSource.EXECUTOR:
            self.warn(
                f"executor {self.executor.id!r} tried to tell a {event.type!r} event, which only the engine tells; "
                "use yield_output for outputs, or a type of your own"
            )
        elif transient:
            self.book.tell(event, is_kept=False)
        else:
            self.book.tell_own(event, self._told_before)

    @property
    def _told_before(self) -> Mapping[str, int]:
        """How often entries before this one have told each event of the handler's own."""
        if self.activation.delivery.activation_id is None:
            return {}
        found = self.around.journal.find(f"{self.home}/told")
        return {} if found is None else counts_in(found)

    def pass_on(self, told: PendingEvent) -> None:
        """Keep what the workflow inside of this executor told, as a `sub_workflow` event."""
        self.book.inner(told)

    def warn(self, text: str) -> None:
        """Tell a warning."""
        self.book.warn(text)

    def warn_once(self, text: str) -> None:
        """Tell a warning, unless this attempt has told it."""
        if text not in self._warned:
            self._warned |= {text}
            self.book.warn(text)

    def request(self, data: Any, response_type: Any, request_id: str | None, terms: Terms = Terms()) -> None:  # noqa: B008 - frozen
        """Open a request."""
        self.require_running()
        self._asking.request(data, response_type, request_id, terms)

    def is_open(self, request_id: str) -> bool:
        """Whether a request of this id waits for its answer, or was just opened."""
        return request_id in self.around.snapshot.requests or request_id in self.around.opened

    def wait_for(self, request_id: str, data: Any, response_type: Any, terms: Terms = Terms()) -> None:  # noqa: B008 - frozen
        """Open a request that the activation itself goes on with."""
        self._asking.wait_for(request_id, data, response_type, terms)

    def ask(
        self,
        data: Any,
        response_type: Any,
        request_id: str | None,
        terms: Terms = Terms(),  # noqa: B008 - frozen
        *,
        place: Place = Place(),  # noqa: B008 - frozen
    ) -> Coroutine[Any, Any, Any]:
        """A question, to be awaited. Which one it is does not depend on the order in which they are awaited."""
        from perdure.engine.questions import Question  # noqa: PLC0415 - loaded when used

        self.require_running()
        return self._questions.begin(Question(data, response_type, request_id, terms), place)

    def digest(self, value: Any) -> str:
        """What tells a value that is approved from any other."""
        return value_digest(value, self.around.values)

    def require_approved(self, value: Any) -> None:
        """Raise ApprovalMismatchError unless the request that is being answered was about this value."""
        from perdure.engine.asking import require_approved  # noqa: PLC0415 - loaded when used

        require_approved(value, self.activation.delivery.answers, self.around)

    def step(self, call: StepCall) -> Coroutine[Any, Any, Any]:
        """A step, to be awaited."""
        self.require_running()
        return self._steps.begin(call)

    def number(self, name: str) -> int:
        """How often something of this name was begun before, here or in the step that is running here."""
        return self.numbering(name).take()

    @property
    def memo(self) -> dict[str, object]:
        """What attempts before this one have left for it."""
        return self.around.memo(self.home)

    def numbering(self, name: str) -> Numbering:
        """Numbers for things of this name, here or in the step that is running here."""
        self.require_running()
        return self._steps.numbering(name)

    @property
    def branch(self) -> str:
        """Which of the tasks of a function this is called in; nothing in its own, and where there is no function."""
        return branch_path(self)

    def _warn_of_steps_left_out(self) -> None:
        from perdure.engine.left_out import steps_left_out, warning_of  # noqa: PLC0415 - loaded when used

        begun = () if self._used_steps is None else self._used_steps.begun
        again = self.activation.delivery.activation_id is not None
        names = steps_left_out(self.around.journal, self.home, begun, is_entered_again=again)
        if names:
            self.warn(warning_of(self.executor.id, names))

    def sleep(self, until: datetime | timedelta | float) -> Coroutine[Any, Any, None]:
        """A wait, to be awaited. Until when is settled by the first life that comes here."""
        from perdure.engine.sleeping import begin_sleep  # noqa: PLC0415 - loaded when used

        self.require_running()
        return begin_sleep(self, self._steps, until)

    def spend(self, amounts: Mapping[str, float]) -> None:
        """Count what was spent. Raises ValueError, and counts nothing then."""
        self.require_running()
        require_amounts(amounts)
        self.count(amounts)

    def count(self, spent: Mapping[str, float]) -> None:
        """Count what was spent: in a step, with its record."""
        self._spending.count(spent)

    def require_budget(self) -> None:
        """Raise BudgetExceededError if the run has spent all that it may of something, what runs beside it included."""
        self._spending.require_budget()

    @property
    def left(self) -> Mapping[str, float]:
        """What may still be spent of what is limited, without what this attempt has spent."""
        return self._spending.left

    def private_scope(self) -> str:
        """The scope that belongs to this executor alone."""
        return private_scope(self.executor.id)

    def common_scope(self) -> str | None:
        """The scope of what this executor has in common with others: that of the first of them."""
        first_id = self.around.graph.sharing.get(self.executor.id)
        return None if first_id is None else private_scope(first_id)

    def read(self, scope: str, key: str) -> Any:
        """A value of the state, a copy if it could be changed. Raises KeyError."""
        return self._staging.read((scope, key))

    def write(self, scope: str, key: str, value: Any) -> None:
        """Stage a value."""
        self.require_running()
        self._staging.write((scope, key), value)

    def erase(self, scope: str, key: str) -> None:
        """Stage the removal of a value. Raises KeyError."""
        self.require_running()
        self._staging.erase((scope, key))

    def has(self, scope: str, key: str) -> bool:
        """Whether a key has a value, as this activation sees it."""
        return self._staging.has((scope, key))

    def keys(self, scope: str) -> Sequence[str]:
        """The keys of a scope as this activation sees it."""
        return self._staging.keys(scope)

    async def called(self, handler: Callable[..., Any], *args: Any) -> None:
        """Call the handler. Steps that it left in flight are finished; if it was cancelled, they are cancelled, too."""
        enter(self)
        self._task = self.parking.task = asyncio.current_task()
        try:
            with self.parking:
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
                self._end_tasks()

    def _end_tasks(self) -> None:
        """Tasks of a function that was left or has failed do not go on without it: its next entry begins them anew."""
        if self._used_tasks is not None and not self._has_returned:
            for task in list(self._used_tasks):
                task.cancel()

    def let_go(self) -> None:
        """The attempt is over. What knows this and is known by it would keep all of it until garbage is collected."""
        self._task = self._used_trunk = self._used_steps = self._used_questions = self._used_spending = None

    def finish(
        self,
        *,
        earlier: Sequence[PendingEvent] = (),
        warning: str | None = None,
        is_told: bool = True,
        has_acted: bool = True,
    ) -> ActivationResult:
        """Fix all values as they are now, and tell that the handler has returned. The messages are still to be routed.

        `earlier` is what attempts before this one told, `warning` what there is to say about this one. If it has not
        acted, it only hands a message on.
        """
        self._is_over = True
        staging, asking, name = self._used_staging, self._used_asking, self.executor.id
        writes = staging.writes() if staging is not None else ()
        requests = asking.opened() if asking is not None else ()
        outputs = self._fixed_outputs(name) if self._outputs else ()
        unrouted = self._fixed_messages(name) if self._sent else ()
        for heavy in self.around.values.warnings():
            self.book.tell(WorkflowEvent("warning", heavy, origin=FRAMEWORK))
        if is_told:
            made = [*[message for message, _, _ in self._sent], *self._yielded]
            self.book.completed(made or list(self._shown))
        if warning is not None:
            self.warn(warning)
        if has_acted and self.around.goes_on:
            self._warn_of_steps_left_out()
        effects = Effects(
            self.activation,
            writes=writes,
            requests=requests,
            outputs=outputs,
            child=self.child,
            events=(*earlier, *self.book.told(outputs, requests)),
            spent={} if self._used_spending is None else self._used_spending.spent,
        )
        return ActivationResult(effects, unrouted, staging.updates() if staging is not None else {})

    def _fixed_outputs(self, name: str) -> tuple[Output, ...]:
        fix, path = self.around.values.fix, f"output of executor {name!r}"
        return tuple([Output(name, kind, fix(value, path), is_whole) for kind, value, is_whole in self._outputs])

    def _fixed_messages(self, name: str) -> tuple[UnroutedMessage, ...]:
        fix, path = self.around.values.fix, f"message of executor {name!r}"
        return tuple([UnroutedMessage(fix(message, path), target, message, due) for message, target, due in self._sent])

    def failed(self, error: BaseException) -> None:
        """Tell that the handler raised. What it did comes to nothing."""
        self._come_to_nothing()
        if self._used_steps is not None:
            self._used_steps.failed(error)
        self.failure = self.book.failed(error)

    def _come_to_nothing(self) -> None:
        self._is_over = True
        if self._used_asking is not None:
            self._used_asking.discard()

    def suspended(self, parked: Parked, earlier: Sequence[PendingEvent] = ()) -> ActivationResult:
        """Tell that the handler was left, and for what. What it did comes to nothing but for what is recorded."""
        self._come_to_nothing()
        self.book.suspended(parked.wake_at or parked.awaits)
        effects = Effects(
            self.activation,
            requests=self._used_asking.awaited if self._used_asking is not None else (),
            events=(*earlier, *self.book.rest()),
            suspension=Suspension(
                parked.wake_at,
                parked.awaits,
                self._carried(),
                self._used_questions.given_up if self._used_questions is not None else (),
            ),
        )
        return ActivationResult(effects, (), {})

    def _carried(self) -> Mapping[str, object]:
        """What is recorded of this activation. Answers are, where there is no journal too."""
        answers = f"{self.home}/answer/"
        given = {key: value for key, value in self.around.snapshot.carried.items() if key.startswith(answers)}
        caught: Mapping[str, object] = {} if self._used_steps is None else self._used_steps.left()
        return {**given, **self.around.journal.records(self.home), **caught, **self._counted_events()}

    def _counted_events(self) -> Mapping[str, object]:
        key, counts = f"{self.home}/told", self.book.counted_own(self._told_before)
        return {key: Kept(path=f"record {key!r}", encoded=counts_record(counts))} if counts else {}
