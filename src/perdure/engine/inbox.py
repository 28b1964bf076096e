"""The inbox of a run: commands from outside and due timers, applied between supersteps; and the checks of answers."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from perdure.checkpoint import (
    AnswerCommand,
    AnyCommand,
    BudgetCommand,
    CancelCommand,
    MessageCommand,
    answer_id,
    coerce,
    read_command,
    request_event,
)
from perdure.clock import Clock, now, seconds_until
from perdure.data_classes import new_list, value_class
from perdure.engine.commit import encode_data
from perdure.engine.routing import accepts, fan_ins_of
from perdure.engine.tasks import OutOfTimeError, within
from perdure.errors import (
    AlreadyAnsweredError,
    AnswerTypeError,
    IncompatibleTypeError,
    UndeliveredError,
    UnknownRequestError,
    UntrustedTypeError,
)
from perdure.events import UndeliveredMessage
from perdure.graph import Executor, Graph, WorkflowMessage, response_handler_of
from perdure.kernel import Cancelled, PendingEvent, Request, Snapshot, answer, begin_turn, receive, reopen, wake
from perdure.records import Command, Mark
from perdure.typenames import describe, type_of, with_article
from perdure.types import is_instance_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from perdure.codec import Values
    from perdure.storage import Binding, Store

BY_DEADLINE = "its deadline"
_BY_DEFAULT = "the default"


@value_class
class Applied:
    """A run with its commands and timers applied, ready to be committed.

    Attributes:
        consumed: The ids of the applied commands.
        done: The ids of commands whose work is done without them.
        failure: The error that ends the run after the commit.
    """

    snapshot: Snapshot
    events: tuple[PendingEvent, ...] = ()
    consumed: tuple[str, ...] = ()
    done: tuple[str, ...] = ()
    failure: Exception | None = None

    def then(
        self, snapshot: Snapshot, *events: PendingEvent, consumed: str | None = None, done: str | None = None
    ) -> Applied:
        """Return this with one more change."""
        return Applied(
            snapshot,
            self.events + events,
            self.consumed + ((consumed,) if consumed is not None else ()),
            self.done + ((done,) if done is not None else ()),
            self.failure,
        )


@dataclass(kw_only=True, slots=True)
class Inbox:
    """The commands of a run, if its storage has an inbox, and its timers.

    Attributes:
        waits: True to wait for timers of an idle run.
        is_stale: True if the inbox must be read.
        _applied: Applied commands that may still be in the inbox: their commit may have failed.
        _changed: The snapshot of the loop when it last got a changed one.
        _known_at: The snapshot at which the content of the inbox was known.
        _read: Commands that were read with the journal and not looked at yet.
    """

    graph: Graph
    values: Values
    clock: Clock
    run_id: str
    store: Store | None
    waits: bool
    is_streamed: bool
    is_stale: bool = True
    _commands: list[AnyCommand] = field(default_factory=new_list, init=False)
    _applied: tuple[str, ...] = field(default=(), init=False)
    _changed: Snapshot | None = field(default=None, init=False)
    _newest: int = field(default=0, init=False)
    _known_at: Snapshot | None = field(default=None, init=False)
    _read: Sequence[Command] | None = field(default=None, init=False)

    def offer(self, commands: Sequence[Command]) -> None:
        """Use these commands for the next look: they were read together with the journal."""
        self._read = commands

    def on_commit(self, newest: int, at: Snapshot) -> None:
        """Note the number of the newest waiting command, as the commit reported it."""
        self._read = None
        self.is_stale = self.is_stale or newest > self._newest or bool(self._applied)
        # A reader of a stream may take any time for the events of the commit, and somebody may send a command.
        self._known_at = None if self.is_streamed else at

    def refresh(self) -> None:
        """Read the inbox at the next look: a command is certainly there."""
        self._read = None
        self.is_stale = True
        self._known_at = None

    async def apply(self, snapshot: Snapshot) -> Applied | None:
        """Apply the commands in order, then due timers; None if there is nothing to commit."""
        if snapshot is self._changed:
            # The commit of the last change failed.
            self._applied = ()
        if self.is_stale:
            await self._refresh()
        if not (self._commands or self._applied) and snapshot.wake_at is None:
            self._changed = None
            return None
        applied = Applied(snapshot, consumed=self._applied)
        for command in list(self._commands):
            after = self._apply_command(applied, command)
            if after is not None:
                applied = after
                self._commands.remove(command)
        applied = self._apply_timers(applied)
        self._applied = applied.consumed
        self._changed = snapshot if applied.snapshot is not snapshot else None
        return None if applied == Applied(snapshot) else applied

    async def _refresh(self) -> bool:
        """Read the inbox. Return whether there are new commands."""
        self.is_stale = False
        if self.store is None:
            return False
        found, self._read = self._read, None
        if found is None:
            found = await self.store.inbox(self.run_id)
        before = self._newest
        self._newest = max((command.number for command in found), default=before)
        new = [command for command in found if command.id not in self._applied]
        self._commands = await _read_commands(self.store, new, self.run_id)
        self._applied = tuple(command.id for command in found if command.id in self._applied)
        return self._newest > before

    def _apply_command(self, applied: Applied, command: AnyCommand) -> Applied | None:
        """Apply one command; None if its time has not come."""
        match command:
            case AnswerCommand():
                return self._apply_answer(applied, command)
            case MessageCommand():
                return self._apply_message(applied, command)
            case CancelCommand():
                snapshot, command_id = applied.snapshot, command.command_id
                if snapshot.is_settled or snapshot.cancelled is not None:
                    return applied.then(snapshot, consumed=command_id)
                cancelled = Cancelled(command.at, command.by, command.reason)
                return self._cancel(applied, cancelled, consumed=command_id)
            case BudgetCommand():
                limits = applied.snapshot.limits
                limits = replace(limits, budget={**limits.budget, **command.budget})
                return applied.then(replace(applied.snapshot, limits=limits), consumed=command.command_id)

    def _apply_answer(self, applied: Applied, command: AnswerCommand) -> Applied:
        snapshot, values = applied.snapshot, self.values
        request = snapshot.requests.get(command.request_id)
        if request is None:
            text = f"request {command.request_id!r} is no longer open, so the answer of {command.by} is ignored"
            return applied.then(snapshot, self._warning(text), consumed=command.command_id)
        try:
            given = checked_answer(request, values.give(command.value), self.graph, values)
        except (AnswerTypeError, UntrustedTypeError, IncompatibleTypeError) as error:
            text = f"the answer of {command.by} does not fit: {error}"
            reopened = reopen(snapshot, request, reason=text)
            return applied.then(reopened, self._warning(text), consumed=command.command_id)
        value = values.fix(given, f"answer to request {request.id!r}")
        after = answer(snapshot, [(request, value)], at=command.at, by=command.by, what={request.id: command.shown})
        event = answered_event(request, values, by=command.by, what=command.shown)
        return applied.then(after, event, consumed=command.command_id)

    def _apply_message(self, applied: Applied, command: MessageCommand) -> Applied | None:
        snapshot, command_id = applied.snapshot, command.command_id
        if command_id in snapshot.received:
            return applied.then(snapshot, consumed=command_id)
        if command.target_id is None and not (snapshot.is_idle and snapshot.next_timer is None):
            # The next turn begins when this one has ended. Open requests don't hold it up.
            return None
        target_id = command.target_id or self.graph.start_id
        try:
            message = self._deliverable(command, target_id)
        except (LookupError, TypeError, UntrustedTypeError, IncompatibleTypeError) as error:
            return self._undelivered(applied, command, target_id, str(error))
        value = self.values.fix(message, f"message for executor {target_id!r}")
        if command.target_id is None:
            after = begin_turn(snapshot, target_id=target_id, value=value, message_id=command_id)
            return applied.then(after, PendingEvent("started"), consumed=command_id)
        after = receive(snapshot, target_id=target_id, value=value, message_id=command_id)
        return applied.then(after, PendingEvent("received", executor_id=target_id), consumed=command_id)

    def _deliverable(self, command: MessageCommand, target_id: str) -> object:
        """Return the message if the executor exists and can handle it."""
        target = self.graph.executors.get(target_id)
        if target is None:
            raise LookupError(f"there are only {', '.join(self.graph.executors)}")
        message = self.values.give(command.value)
        if not accepts(target, message):
            takes = ", ".join(describe(type_) for type_ in target.input_types)
            raise TypeError(f"it takes {takes}, not a {type_of(message)}")
        return message

    def _undelivered(self, applied: Applied, command: MessageCommand, target_id: str, reason: str) -> Applied:
        """Drop a message with an `undelivered` event. A strict workflow fails, once."""
        try:
            message = self.values.give(command.value)
        except (UntrustedTypeError, IncompatibleTypeError):
            data: object = command.value
        else:
            undelivered = UndeliveredMessage(message, command.by, target_id, reason)
            data, _ = encode_data(undelivered, "an undelivered message", self.values)
        event = PendingEvent("undelivered", data, executor_id=target_id)
        after = applied.then(applied.snapshot, event, consumed=command.command_id)
        if self.graph.rules.undelivered != "error" or after.failure is not None:
            return after
        failure = UndeliveredError(source_id=command.by, target_id=target_id, reason=reason, is_from_outside=True)
        return replace(after, failure=failure)

    def _cancel(self, applied: Applied, cancelled: Cancelled, consumed: str | None = None) -> Applied:
        after = replace(applied.snapshot, cancelled=cancelled)
        why = {"by": cancelled.by, "reason": cancelled.reason}
        event = PendingEvent("cancelled", self.values.fix(why, "the reason of a cancellation"))
        return applied.then(after, event, consumed=consumed)

    def _apply_timers(self, applied: Applied) -> Applied:
        """Apply everything that is due. A cancelled run has no timers."""
        wake_at = applied.snapshot.wake_at
        if wake_at is None or wake_at > (present := now(self.clock)):
            return applied
        for request in list(applied.snapshot.requests.values()):
            if request.deadline is not None and request.deadline <= present:
                applied = self._expire(applied, request, present)
        deadline = applied.snapshot.limits.deadline
        if deadline is not None and deadline <= present:
            reason = f"the deadline of the run, {deadline}, has passed"
            return self._cancel(applied, Cancelled(present, BY_DEADLINE, reason))
        after = wake(applied.snapshot, now=present, fan_ins=fan_ins_of(self.graph))
        return applied if after is applied.snapshot else applied.then(after, PendingEvent("woken"))

    def _expire(self, applied: Applied, request: Request, present: str) -> Applied:
        assert request.default is not None, "a deadline has a default"
        given, what = [(request, request.default)], {request.id: _BY_DEFAULT}
        after = answer(applied.snapshot, given, at=present, by=BY_DEADLINE, what=what)
        event = answered_event(request, self.values, by=BY_DEADLINE, what=_BY_DEFAULT)
        return applied.then(after, event, done=answer_id(request.id))

    def _warning(self, text: str) -> PendingEvent:
        return PendingEvent("warning", self.values.fix(text, "a warning"))

    async def wait(self, snapshot: Snapshot) -> bool:
        """Wait for the next timer or command. Return False if there is nothing to wait for."""
        timer = snapshot.wake_at if self.waits and snapshot.next_timer is not None else None
        if self.store is not None and (self.is_stale or snapshot is not self._known_at) and await self._refresh():
            return True
        if timer is None:
            return False
        with suppress(OutOfTimeError):
            await within(self.clock, seconds_until(self.clock, timer), self._wait_for_command())
        self.is_stale, self._known_at = self.store is not None, None
        return True

    async def _wait_for_command(self) -> None:
        if self.store is None:
            await asyncio.get_running_loop().create_future()
            return
        seen = await self.store.watch(self.run_id, seen=Mark())
        while seen.commands <= self._newest:
            seen = await self.store.watch(self.run_id, seen=seen, commands_only=True)

    async def wait_for_cancel(self) -> None:
        """Wait until a cancel command is in the inbox."""
        assert self.store is not None, "only an inbox can be watched"
        seen = await self.store.watch(self.run_id, seen=Mark())
        while not any(command.kind == "cancel" for command in await self.store.inbox(self.run_id)):
            seen = await self.store.watch(self.run_id, seen=seen, commands_only=True)
        self.is_stale = True


async def waiting_answers(binding: Binding | None, run_id: str) -> Mapping[str, AnswerCommand]:
    """Return the answers in the inbox of a run, by request id."""
    if binding is None or binding.foreign is not None:
        return {}
    found = await binding.store.inbox(run_id)
    commands = await _read_commands(binding.store, found, run_id)
    return {command.request_id: command for command in commands if isinstance(command, AnswerCommand)}


async def _read_commands(store: Store, found: Sequence[Command], run_id: str) -> list[AnyCommand]:
    refs = [ref for command in found for ref in command.refs]
    blobs: Mapping[str, bytes] = await store.blobs(refs) if refs else {}
    return [read_command(command, blobs, checkpoint_id=run_id) for command in found]


def answered_event(request: Request, values: Values, *, by: str | None, what: str | None) -> PendingEvent:
    """Return the event of an answer: who gave it, and its short form."""
    data = values.fix({"by": by, "answer": what}, "an answer")
    return PendingEvent("answered", data, executor_id=request.executor_id, request_id=request.id)


def accepted(
    responses: Mapping[str, Any],
    *,
    graph: Graph,
    snapshot: Snapshot,
    values: Values,
    run_id: str,
    later: Snapshot | None = None,
) -> list[tuple[Request, object]]:
    """Check answers and return each with its request, encoded. `later` is the head of the run, if it has advanced.

    Raises UnknownRequestError, AlreadyAnsweredError, AnswerTypeError.
    """
    checked: list[tuple[Request, Any]] = []
    for request_id, given in responses.items():
        request = _require_open(request_id, snapshot, later, run_id)
        checked.append((request, checked_answer(request, given, graph, values)))
    return [(request, values.fix(given, f"answer to request {request.id!r}")) for request, given in checked]


def _require_open(request_id: str, snapshot: Snapshot, later: Snapshot | None, run_id: str) -> Request:
    """Return the open request with this id. An id may be used again after its answer, so the answers are counted."""
    given = snapshot.answers_to(request_id)
    given_since = () if later is None else later.answers_to(request_id)[len(given) :]
    request = snapshot.requests.get(request_id)
    if request is not None and not given_since:
        return request
    if given_since or given:
        last = (given_since or given)[-1]
        raise AlreadyAnsweredError(request_id, run_id=run_id, answered_at=last.at, by=last.by, what=last.what)
    raise UnknownRequestError(request_id, pending=list(snapshot.requests))


def checked_answer(request: Request, given: Any, graph: Graph, values: Values) -> Any:
    """Return the answer as the type that was asked for. Raises AnswerTypeError."""
    expected = with_article(describe(request.response_type))
    try:
        coerced = coerce(given, request.response_type)
    except (TypeError, ValueError) as error:
        raise AnswerTypeError(request.id, expected=expected, got=f"{given!r}, which does not fit: {error}") from error
    if not is_instance_of(coerced, request.response_type):
        raise AnswerTypeError(request.id, expected=expected, got=with_article(type_of(given)))
    executor = graph.executors[request.executor_id]
    if request.resumes is None and not _takes_answer(executor, request, coerced, values):
        raise AnswerTypeError(
            request.id,
            expected=f"what a @response_handler of executor {executor.id!r} takes",
            got=f"{with_article(type_of(coerced))}, which none of them takes",
        )
    return coerced


def _takes_answer(executor: Executor, request: Request, given: Any, values: Values) -> bool:
    """Return whether an executor has a response handler for this answer to this request."""
    if executor.__class__.can_handle is Executor.can_handle:
        return response_handler_of(executor, values.give(request.data), given) is not None
    event = request_event(request, values)
    return executor.can_handle(WorkflowMessage(given, executor.id, original_request_info_event=event))
