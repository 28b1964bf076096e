"""A run between two supersteps, as one frozen value. The kernel never looks inside users' values."""

from __future__ import annotations

from dataclasses import field
from itertools import chain
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from perdure.data_classes import new_dict, value_class

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from perdure.graph import OutputKind

ItemT = TypeVar("ItemT")

CHUNK_LENGTH = 32


@value_class
class Trail(Generic[ItemT]):
    """A frozen sequence that is cheap to extend."""

    sealed: tuple[tuple[ItemT, ...], ...] = ()
    tail: tuple[ItemT, ...] = ()

    def extended(self, items: Iterable[ItemT]) -> Trail[ItemT]:
        """Return this sequence with `items` appended."""
        tail = (*self.tail, *items)
        if len(tail) == len(self.tail):
            return self
        full = len(tail) // CHUNK_LENGTH * CHUNK_LENGTH
        sealed = tuple(tail[start : start + CHUNK_LENGTH] for start in range(0, full, CHUNK_LENGTH))
        return Trail((*self.sealed, *sealed), tail[full:])

    def __iter__(self) -> Iterator[ItemT]:
        yield from chain.from_iterable(self.sealed)
        yield from self.tail

    def __len__(self) -> int:
        return len(self.sealed) * CHUNK_LENGTH + len(self.tail)


_EMPTY: Trail[Any] = Trail()

# A user's value as the engine keeps it; opaque to the kernel.
Value: TypeAlias = object

# A scope and a key in it.
StateKey: TypeAlias = tuple[str, str]

# A time in UTC as ISO 8601 text, which sorts like time.
Moment: TypeAlias = str


@value_class
class Request:
    """A question to the outside that has no answer yet.

    Attributes:
        default: The answer that applies once the deadline has passed.
        approves: The digest of the value that the answer approves.
        resumes: The activation_id of the suspended activation that awaits the answer; None if a response handler gets
            it.
        refusals: Why stored answers did not fit.
    """

    id: str
    executor_id: str
    data: Value
    request_type: object
    response_type: object
    opened_at: Moment | None = None
    deadline: Moment | None = None
    default: Value | None = None
    approves: str | None = None
    resumes: str | None = None
    refusals: tuple[str, ...] = ()


@value_class
class Delivery:
    """An addressed message that waits for the next superstep.

    `values` holds one message, or those that a fan-in gathered. `send` identifies the sending: copies for several
    targets share it. `asked_for` is the target that the sender named. `activation_id` is set for a suspended
    activation, which keeps the id of its first attempt. `woken_at` is set for a sub-workflow whose timers are due up to
    this moment; there is no message then.
    """

    target_id: str
    sources: tuple[str, ...]
    values: tuple[Value, ...]
    send: str
    is_gathered: bool = False
    asked_for: str | None = None
    answers: Request | None = None
    activation_id: str | None = None
    woken_at: Moment | None = None


@value_class
class Output:
    """A value that an executor yielded.

    `is_whole` is True if a streaming reader gets it as one event although it could be streamed in pieces.
    """

    executor_id: str
    kind: OutputKind
    data: Value
    is_whole: bool = False


@value_class
class Answered:
    """An answered request: when, by whom, and a short form of the answer."""

    request_id: str
    at: Moment
    by: str | None = None
    what: str | None = None


@value_class
class Suspended:
    """An activation that waits for a moment or an answer. Its message is delivered again then."""

    delivery: Delivery
    wake_at: Moment | None = None
    awaits: str | None = None


@value_class
class Delayed:
    """A routed message that waits for its time."""

    due: Moment
    source_id: str
    send: str
    data: Value
    asked_for: str | None
    targets: tuple[str, ...]
    fan_ins: tuple[str, ...]


@value_class
class Cancelled:
    """An applied cancel command."""

    at: Moment
    by: str | None = None
    reason: str | None = None


@value_class
class Limits:
    """The deadline and budget of a run, and its spending by resource."""

    deadline: Moment | None = None
    budget: Mapping[str, float] = field(default_factory=new_dict)
    spent: Mapping[str, float] = field(default_factory=new_dict)


@value_class
class Snapshot:
    """A run, or a sub-workflow, as a value.

    `iteration` counts the supersteps of the turn, `since_input` those since the last input from outside.
    `fan_in` holds the messages gathered so far: by group, by source, in the order of sending.

    Attributes:
        received: Ids of the messages received from outside, so that one sent twice is applied once.
        carried: Journal records of activations that have not ended, by key.
        scope: Set while a sub-workflow runs: the activation of its parent that runs it.
    """

    turn: int = 0
    iteration: int = 0
    since_input: int = 0
    deliveries: tuple[Delivery, ...] = ()
    fan_in: Mapping[str, Mapping[str, tuple[Value, ...]]] = field(default_factory=new_dict)
    state: Mapping[StateKey, Value] = field(default_factory=new_dict)
    executors: Mapping[str, Value] = field(default_factory=new_dict)
    requests: Mapping[str, Request] = field(default_factory=new_dict)
    answered: Trail[Answered] = _EMPTY
    outputs: Trail[Output] = _EMPTY
    children: Mapping[str, Snapshot] = field(default_factory=new_dict)
    kwargs: Value = None
    withheld_kwargs: tuple[str, ...] = ()
    received: Trail[str] = _EMPTY
    suspended: tuple[Suspended, ...] = ()
    delayed: tuple[Delayed, ...] = ()
    carried: Mapping[str, Value] = field(default_factory=new_dict)
    cancelled: Cancelled | None = None
    limits: Limits = Limits()
    scope: str = ""

    @property
    def is_idle(self) -> bool:
        """Return whether no message waits: only the outside or time can advance the run."""
        return not self.deliveries

    @property
    def is_settled(self) -> bool:
        """Return whether the run is idle with no open request and no timer."""
        return (
            not (self.deliveries or self.requests or self.suspended)
            and self.cancelled is None
            and self.next_timer is None
            and not (self.children and self.deadlines())
        )

    @property
    def next_timer(self) -> Moment | None:
        """Return when the next delayed message or suspended activation is due, sub-workflows included."""
        if not (self.suspended or self.delayed or self.children):
            return None
        moments = [each.wake_at for each in self.suspended if each.wake_at is not None]
        moments += [each.due for each in self.delayed]
        moments += [moment for child in self.children.values() if (moment := child.next_timer) is not None]
        return min(moments, default=None)

    @property
    def left(self) -> Mapping[str, float]:
        """Return the remaining budget, not counting the superstep that begins next."""
        begins = {"supersteps": 1, "activations": len(self.deliveries)}
        spent = self.limits.spent
        return {name: limit - spent.get(name, 0) - begins.get(name, 0) for name, limit in self.limits.budget.items()}

    @property
    def wake_at(self) -> Moment | None:
        """Return when the run needs attention even if no command arrives."""
        if not (self.suspended or self.delayed or self.requests or self.children) and self.limits.deadline is None:
            return None
        if self.is_settled or self.cancelled is not None:
            return None
        moments = [self.next_timer, self.limits.deadline, *self.deadlines().values()]
        return min((moment for moment in moments if moment is not None), default=None)

    def deadlines(self) -> Mapping[str, Moment]:
        """Return the deadlines of open requests by id, sub-workflows included.

        A request that a sub-workflow passed on belongs to its parent alone.
        """
        if not (self.requests or self.children):
            return {}
        inside = {key: moment for child in self.children.values() for key, moment in child.deadlines().items()}
        own = {key: request.deadline for key, request in self.requests.items()}
        return {key: moment for key, moment in {**inside, **own}.items() if moment is not None}

    def answers_to(self, request_id: str) -> tuple[Answered, ...]:
        """Return the answers given to requests with this id, in order."""
        return tuple(answered for answered in self.answered if answered.request_id == request_id)
