"""A call on a run: its input is checked against the run, then applied. A refusal changes nothing.

The kwargs of a run are part of that: each has a target, and some must not be stored.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from perdure.checkpoint import AnswerCommand, answer_id, shown
from perdure.data_classes import new_dict, value_class
from perdure.engine.inbox import accepted, checked_answer
from perdure.engine.routing import accepts
from perdure.errors import (
    AlreadyAnsweredError,
    AnswerTypeError,
    EncodeError,
    IncompatibleTypeError,
    MissingRunKwargsError,
    RequestError,
    UntrustedTypeError,
)
from perdure.graph import ABSENT, Executor, Graph, WorkflowMessage
from perdure.kernel import Effects, Limits, Request, Snapshot, answer, begin_turn, fold, plan, revoke_cancel
from perdure.secrets import Secret
from perdure.typenames import describe, type_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from perdure.codec import Kept, Values
    from perdure.engine.recovery import LoadedRun
    from perdure.records import Lease


GLOBAL_KWARGS_KEY = "__global__"
_KINDS = ("function_invocation_kwargs", "client_kwargs")
_SECRET_SUFFIXES = (
    *("apikey", "accesskey", "secretkey", "privatekey", "api_key", "access_key", "secret_key", "private_key"),
    *("token", "secret", "password", "passwd", "credential", "credentials", "authorization"),
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class WorkflowInvocationKwargs:
    """Kwargs of a run for all executors, overlaid by those for single ones: by executor id or unique agent name."""

    global_kwargs: Mapping[str, Any] = field(default_factory=new_dict)
    executor_kwargs: Mapping[str, Mapping[str, Any]] = field(default_factory=new_dict)


InvocationKwargs: TypeAlias = "WorkflowInvocationKwargs | Mapping[str, Any]"


@value_class
class Call:
    """The arguments of a call on a run.

    Attributes:
        message_id: Identifies the message, so that one given twice is applied once.
        deadline: The deadline of the run: UTC, ISO 8601.
        waits: True to wait for timers, or to leave the run asleep.
        attach_if_exists: True if the message is for a new run only: an existing one simply continues.
        skip_past_events: True if events of earlier calls are of no interest.
        commit_input_only: True if the input is made durable and nothing is run.
        token: The fencing token of the lease, if a scheduler chose it.
        lease: The lease, if the caller has acquired it.
        is_hosted: True if nobody asked for this very run: a failed, quarantined or cancelled one is left as it is.
        repeats_answers: True if answers that the run already has may be given again.
        emit_open_requests: True to emit the requests that are still open after the answers are applied.
        only_cancels: True if only a cancellation is applied and nothing is run.
    """

    message: Any = ABSENT
    message_id: str | None = None
    responses: Mapping[str, Any] | None = None
    cancels: frozenset[str] = frozenset()
    """Ids of requests to cancel. Those that are not open are ignored."""
    checkpoint_id: str | None = None
    run_id: str | None = None
    storage: object = None
    kwargs: Mapping[str, InvocationKwargs | None] = field(default_factory=new_dict)
    tools: list[Any] | None = None
    """Tools for the agents during this call. They are not stored."""
    streaming: bool = False
    takeover: bool = False
    deadline: str | None = None
    budget: Mapping[str, float] | None = None
    abandons: bool = False
    """True if the message abandons a superstep that failed or was cancelled in this process."""
    tags: str | None = None
    """The tags of a new run, as a JSON object."""
    waits: bool = True
    attach_if_exists: bool = False
    skip_past_events: bool = False
    commit_input_only: bool = False
    token: int | None = None
    lease: Lease | None = None
    is_hosted: bool = False
    repeats_answers: bool = False
    emit_open_requests: bool = False
    only_cancels: bool = False

    @property
    def names_a_run(self) -> bool:
        """Return whether the call says which run it means."""
        return self.run_id is not None or self.checkpoint_id is not None

    @property
    def brings_something(self) -> bool:
        """Return whether the call has any input for the run."""
        return self.message is not ABSENT or bool(self.responses or self.cancels)


@value_class
class CallInput:
    """The accepted input of a call.

    Attributes:
        kind: The kind of the checkpoint that applies it; None if there is nothing to apply.
        done: The ids of commands that would give the same answers.
        shown: A short form of each answer, by request id.
    """

    kind: str | None
    answers: tuple[tuple[Request, object], ...]
    dropped: tuple[Request, ...]
    """Requests that are closed without an answer."""
    kwargs: dict[str, Any]
    limits: Limits
    done: tuple[str, ...]
    shown: Mapping[str, str]
    revokes_cancel: bool = False
    message_id: str | None = None

    @property
    def closed(self) -> list[Request]:
        """Return the requests that are answered or dropped."""
        return [*(request for request, _ in self.answers), *self.dropped]


def check_input(
    graph: Graph,
    call: Call,
    run: LoadedRun,
    *,
    is_turn: bool,
    live_kwargs: Mapping[str, Any],
    later: Snapshot | None,
    waiting: Mapping[str, AnswerCommand],
) -> CallInput:
    """Check the input of a call against the run.

    `later` is the head of the run that a fork leaves, `live_kwargs` are the run's kwargs in this process, `waiting`
    the answers in its inbox by request id. Raises RequestError, MissingRunKwargsError.
    """
    responses = _new_responses(call, graph, run, waiting) if call.responses else {}
    dropped: list[Request] = []
    answers: list[tuple[Request, object]] = []
    for request_id in sorted(call.cancels & run.snapshot.requests.keys() - waiting.keys()):
        request = run.snapshot.requests[request_id]
        cancelled = _cancelled_answer(graph, run.snapshot, request, run.values)
        if cancelled is ABSENT:
            dropped.append(request)
        else:
            responses[request_id] = cancelled
    if responses:
        answers = accepted(
            responses,
            graph=graph,
            snapshot=run.snapshot,
            values=run.values,
            run_id=run.run_id if run.head is None else run.head.run_id,
            later=later,
        )
    has_kwargs = any(each is not None for each in call.kwargs.values())
    kwargs = resolve_kwargs(call.kwargs, graph.executors) if has_kwargs else {}
    before = run.snapshot
    if not is_turn:
        stored: dict[str, Any] = {} if before.kwargs is None else run.values.give(before.kwargs)
        kwargs = _completed(stored, before.withheld_kwargs, live_kwargs) | kwargs
        missing = _missing(before.withheld_kwargs, kwargs)
        if missing and not (before.is_settled and not (answers or dropped)):
            raise MissingRunKwargsError(run_id=run.run_id, names=missing)
    limits = before.limits
    if call.deadline is not None or call.budget is not None:
        budget = limits.budget if call.budget is None else {**limits.budget, **call.budget}
        limits = replace(limits, deadline=call.deadline or limits.deadline, budget=budget)
    revokes_cancel = before.cancelled is not None and not (call.only_cancels or call.is_hosted)
    closed = [*(request for request, _ in answers), *dropped]
    kind = "entry" if is_turn else "response" if closed else None
    if kind is None and (revokes_cancel or limits != before.limits):
        kind = "resume"
    return CallInput(
        kind,
        tuple(answers),
        tuple(dropped),
        kwargs,
        limits,
        tuple(answer_id(request.id) for request in closed),
        {key: shown(answer) for key, answer in responses.items()} | dict.fromkeys(call.cancels, "cancelled"),
        revokes_cancel=revokes_cancel,
        message_id=call.message_id,
    )


def _new_responses(call: Call, graph: Graph, run: LoadedRun, waiting: Mapping[str, AnswerCommand]) -> dict[str, Any]:
    """Return the responses of a call without those that the run or its inbox already has."""
    responses = dict(call.responses or {})
    if call.repeats_answers:
        responses = {key: answer for key, answer in responses.items() if not _is_given(key, answer, run.snapshot)}
    for request_id, command in waiting.items():
        if request_id in responses:
            _require_same(responses.pop(request_id), command, graph, run)
    return responses


def _cancelled_answer(graph: Graph, snapshot: Snapshot, request: Request, values: Values) -> Any:
    """Ask the executor that opened a request, also inside sub-workflows, what a cancellation means as an answer.

    Raises RequestError if the request can't be cancelled.
    """
    if request.resumes is not None:
        raise RequestError(
            request.id,
            f"request {request.id!r} can't be cancelled, because the handler that asked waits for the answer; answer "
            "it, or cancel the run",
        )
    executor, child = graph.executors[request.executor_id], graph.children.get(request.executor_id)
    inner = snapshot.children.get(request.executor_id, Snapshot()).requests.get(request.id)
    if child is not None and inner is not None and type(executor).cancelled_answer is Executor.cancelled_answer:
        return _cancelled_answer(child, snapshot.children[executor.id], inner, values)
    try:
        return executor.cancelled_answer(values.give(request.data))
    except ValueError as error:
        raise RequestError(request.id, f"request {request.id!r} can't be cancelled: {error}") from error


def _is_given(request_id: str, answer: Any, snapshot: Snapshot) -> bool:
    """Return whether a closed request was answered with just this."""
    given = snapshot.answers_to(request_id)
    return request_id not in snapshot.requests and bool(given) and given[-1].what == shown(answer)


def _require_same(answer: Any, command: AnswerCommand, graph: Graph, run: LoadedRun) -> None:
    """Raise AlreadyAnsweredError unless the waiting answer is the same, AnswerTypeError if this one does not fit."""
    request, values = run.snapshot.requests.get(command.request_id), run.values
    if request is not None:
        given = checked_answer(request, answer, graph, values)
        # One that does not fit is reported by the run when it applies the command.
        with suppress(AnswerTypeError, UntrustedTypeError, IncompatibleTypeError):
            if given == checked_answer(request, values.give(command.value), graph, values):
                return
    raise AlreadyAnsweredError(
        command.request_id, run_id=run.run_id, answered_at=command.at, by=command.by, what=command.shown
    )


def apply_input(given: CallInput, graph: Graph, run: LoadedRun, message: Any, *, at: str, by: str | None) -> Snapshot:
    """Return the snapshot of the run with the input applied."""
    snapshot, is_turn = run.snapshot, given.kind == "entry"
    if snapshot.cancelled is not None and (given.revokes_cancel or is_turn or given.answers or given.dropped):
        snapshot = revoke_cancel(snapshot)
    if given.limits is not snapshot.limits:
        snapshot = replace(snapshot, limits=given.limits)
    if is_turn:
        if snapshot.deliveries:
            # The superstep that was cut off is abandoned: its activations have no effects.
            snapshot = fold(snapshot, [Effects(activation) for activation in plan(snapshot)], fan_ins={})
        value = run.values.fix(require_handled(graph, message), "the message of the run")
        snapshot = begin_turn(snapshot, target_id=graph.start_id, value=value, message_id=given.message_id)
    elif given.answers or given.dropped:
        snapshot = answer(snapshot, given.answers, at=at, by=by, what=given.shown, dropped=given.dropped)
    if not given.kwargs and not snapshot.withheld_kwargs and snapshot.kwargs is None:
        return snapshot
    if not is_turn and _missing(snapshot.withheld_kwargs, given.kwargs):
        # A settled run no longer needs them, but must not forget that it had them.
        return snapshot
    kept, withheld = storable_kwargs(given.kwargs, run.values)
    return replace(snapshot, kwargs=kept, withheld_kwargs=withheld)


def require_handled(graph: Graph, message: Any) -> Any:
    """Return the unwrapped message if the start executor can handle it. Raises RuntimeError."""
    if isinstance(message, WorkflowMessage):
        message = message.data
    start = graph.executors[graph.start_id]
    if not accepts(start, message):
        takes = ", ".join(describe(type_) for type_ in start.input_types)
        raise RuntimeError(
            f"start executor {start.id!r} can't handle a message of type {type_of(message)}; it takes {takes}"
        )
    return message


@value_class
class _Entry:
    """One value and its target. Without a key, it is everything that the target gets."""

    kind: str
    target: str
    key: str | None
    value: Any

    @property
    def name(self) -> str:
        """Return the name under which a value that is not stored is remembered."""
        steps = (self.kind, None if self.target == GLOBAL_KWARGS_KEY else self.target, self.key)
        return ".".join(step for step in steps if step is not None)

    def put(self, kwargs: dict[str, Any]) -> None:
        """Set the value in its place."""
        targets: dict[str, Any] = kwargs.setdefault(self.kind, {})
        if self.key is None:
            targets[self.target] = self.value
        else:
            targets.setdefault(self.target, {})[self.key] = self.value


def _entries(kwargs: Mapping[str, Any]) -> Iterator[_Entry]:
    for kind, by_target in kwargs.items():
        for target, entries in by_target.items():
            if isinstance(entries, dict) and entries:
                for key, value in cast("dict[str, Any]", entries).items():
                    yield _Entry(kind, target, key, value)
            else:
                yield _Entry(kind, target, None, entries)


def resolve_kwargs(
    given: Mapping[str, InvocationKwargs | None], executors: Mapping[str, Executor]
) -> dict[str, dict[str, Any]]:
    """Return kwargs as they are kept: by executor id, with those for all executors under `__global__`.

    A plain mapping is by executor if one of its keys is an executor's id. Raises ValueError for a name of two agents.
    """
    return {kind: _by_target(kwargs, executors) for kind in _KINDS if (kwargs := given.get(kind)) is not None}


def _by_target(kwargs: InvocationKwargs, executors: Mapping[str, Executor]) -> dict[str, Any]:
    if not isinstance(kwargs, WorkflowInvocationKwargs):
        return dict(kwargs) if kwargs.keys() & executors.keys() else {GLOBAL_KWARGS_KEY: dict(kwargs)}
    found: dict[str, Any] = {GLOBAL_KWARGS_KEY: dict(kwargs.global_kwargs)}
    for name, own in kwargs.executor_kwargs.items():
        target = _target_of(name, executors)
        if target in found:
            raise ValueError(f"executor_kwargs has two entries for executor {target!r}, one by its agent's name")
        found[target] = dict(own) if isinstance(own, dict) else own
    return found


def _target_of(name: str, executors: Mapping[str, Executor]) -> str:
    """Return the id of the executor that a key means. One that is unknown here may be inside a sub-workflow."""
    if name in executors:
        return name
    named = [key for key, each in executors.items() if getattr(getattr(each, "agent", None), "name", None) == name]
    if len(named) > 1:
        raise ValueError(f"several agents are called {name!r}; use the ids of their executors: {', '.join(named)}")
    return named[0] if named else name


def kwargs_for_child(
    kwargs: Mapping[str, Mapping[str, Any]], child_id: str, executors: Mapping[str, Executor], parent: Iterable[str]
) -> dict[str, dict[str, Any]]:
    """Return the kwargs of a run as its sub-workflow sees them: without those for executors of the parent.

    The entry of the sub-workflow itself is passed on if it contains an executor with the same id.
    """
    taken = set(parent) - ({child_id} & executors.keys())
    given: dict[str, InvocationKwargs | None] = {}
    for kind, by_target in kwargs.items():
        own = {key: value for key, value in by_target.items() if key not in taken and key != GLOBAL_KWARGS_KEY}
        shared = by_target.get(GLOBAL_KWARGS_KEY)
        if own and shared is not None:
            given[kind] = WorkflowInvocationKwargs(shared, own)
        else:
            given[kind] = own or None if shared is None else shared
    return resolve_kwargs(given, executors)


def kwargs_of_executor(kwargs: Mapping[str, Mapping[str, Any]], executor_id: str) -> dict[str, Any]:
    """Return the kwargs that an executor passes to its agent, by kind: those for all, overlaid by its own."""
    found: dict[str, Any] = {}
    for kind in _KINDS:
        by_target = kwargs.get(kind, {})
        given = [by_target[key] for key in (GLOBAL_KWARGS_KEY, executor_id) if by_target.get(key) is not None]
        strange = [each for each in given if not isinstance(each, dict)]
        if strange:
            kind_of = type(strange[0]).__name__
            logger.warning("executor %r: %s of type %s are ignored; give a dict", executor_id, kind, kind_of)
        found[kind] = {key: value for each in given for key, value in each.items()} if given and not strange else None
    return found


def storable_kwargs(kwargs: Mapping[str, Any], values: Values) -> tuple[Kept | None, tuple[str, ...]]:
    """Encode the kwargs that can be stored. Return them, and the names of those that can't or must not be."""
    kept: dict[str, Any] = {}
    withheld: list[str] = []
    for entry in _entries(kwargs):
        if _is_storable(entry.value, values):
            _warn_of_secret(entry)
            entry.put(kept)
        else:
            withheld.append(entry.name)
    return (values.fix(kept, "run kwargs") if kept else None), tuple(withheld)


def _completed(stored: Mapping[str, Any], withheld: Iterable[str], live: Mapping[str, Any]) -> dict[str, Any]:
    """Return the stored kwargs, plus those withheld ones that this process still has."""
    wanted = set(withheld)
    kwargs: dict[str, Any] = {}
    for entry in _entries(stored):
        entry.put(kwargs)
    for entry in _entries(live):
        if entry.name in wanted:
            entry.put(kwargs)
    return kwargs


def _missing(withheld: Iterable[str], kwargs: Mapping[str, Any]) -> list[str]:
    """Return the withheld names that are not among these kwargs."""
    present = {entry.name for entry in _entries(kwargs)}
    return [name for name in withheld if name not in present]


def _warn_of_secret(entry: _Entry) -> None:
    if isinstance(entry.value, str) and entry.key is not None and entry.key.casefold().endswith(_SECRET_SUFFIXES):
        logger.warning(
            "%s looks like a secret and is stored in checkpoints as it is; pass Secret(...) to keep it out of them",
            entry.name,
        )


def _is_storable(value: object, values: Values) -> bool:
    if isinstance(value, Secret):
        return False
    try:
        kept = values.fix(value, "run kwargs")
    except EncodeError:
        return False
    return kept.refusal is None
