"""A run between two supersteps, as one frozen value. What users' values are, the kernel never asks."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, TypeAlias

from perdure.data import value
from perdure.kernel.trail import Trail

if TYPE_CHECKING:
    from collections.abc import Mapping

    from perdure.graph import OutputKind

Value: TypeAlias = object
"""A user's value as the runtime keeps it: opaque here."""

StateKey: TypeAlias = tuple[str, str]
"""A scope and a key in it."""


Moment: TypeAlias = str
"""A time in UTC as ISO 8601. Their order as text is their order in time."""


@value
class Request:
    """A question to the outside that has no answer yet."""

    id: str
    executor_id: str
    data: Value
    request_type: object
    response_type: object
    opened_at: Moment | None = None
    deadline: Moment | None = None
    default: Value | None = None
    """The answer that stands when the deadline has passed."""
    approves: str | None = None
    """The digest of what is done if the answer approves."""
    resumes: str | None = None
    """The home of the suspended activation that goes on with the answer; None if a response handler gets it."""
    refusals: tuple[str, ...] = ()
    """Why answers that were accepted without the program did not fit."""


@value
class Delivery:
    """A message that is addressed and waits for the next superstep.

    `values` holds one message, or those that a fan-in gathered. `send` names the sending, so that the copies which one
    sending put before several targets can be told to be one message; `asked_for` is the target that the sender named.
    """

    target_id: str
    sources: tuple[str, ...]
    values: tuple[Value, ...]
    send: str
    is_gathered: bool = False
    asked_for: str | None = None
    answers: Request | None = None
    home: str | None = None
    """Of an activation that was suspended: where it was entered first, which its records and keys are named after."""
    woken_at: Moment | None = None
    """Tells a sub-workflow that its timers up to this moment are due; there is no message then."""


@value
class Output:
    """Something that an executor yielded, and how it is told."""

    executor_id: str
    kind: OutputKind
    data: Value
    is_whole: bool = False
    """Whether who reads a stream is told it as a whole, though it could be told in pieces."""


@value
class Answered:
    """A request that has been answered: when, by whom, and what, in short."""

    request_id: str
    at: Moment
    by: str | None = None
    what: str | None = None


@value
class Suspended:
    """An activation that waits for a moment or for the answer to a request; then its message is delivered again."""

    delivery: Delivery
    wake_at: Moment | None = None
    awaits: str | None = None


@value
class Delayed:
    """A message that is routed and waits for its time."""

    due: Moment
    source_id: str
    send: str
    data: Value
    asked_for: str | None
    targets: tuple[str, ...]
    fan_ins: tuple[str, ...]


@value
class Cancelled:
    """The wish to stop, taken in."""

    at: Moment
    by: str | None = None
    reason: str | None = None


@value
class Limits:
    """What a run may take: time, and of each resource how much; and what it has spent."""

    deadline: Moment | None = None
    budget: Mapping[str, float] = field(default_factory=dict[str, float])
    spent: Mapping[str, float] = field(default_factory=dict[str, float])


@value
class Snapshot:
    """The run as a value, or a sub-workflow as one.

    `iteration` counts the supersteps of the turn, `since_input` those since anything came from outside.
    `fan_in` holds what fan-in groups have gathered so far: by group, by source, in the order of sending.
    """

    turn: int = 0
    iteration: int = 0
    since_input: int = 0
    deliveries: tuple[Delivery, ...] = ()
    fan_in: Mapping[str, Mapping[str, tuple[Value, ...]]] = field(
        default_factory=dict[str, "Mapping[str, tuple[Value, ...]]"]
    )
    state: Mapping[StateKey, Value] = field(default_factory=dict[StateKey, "Value"])
    executors: Mapping[str, Value] = field(default_factory=dict[str, "Value"])
    requests: Mapping[str, Request] = field(default_factory=dict[str, Request])
    answered: Trail[Answered] = Trail()
    outputs: Trail[Output] = Trail()
    children: Mapping[str, Snapshot] = field(default_factory=dict[str, "Snapshot"])
    kwargs: Value = None
    withheld_kwargs: tuple[str, ...] = ()
    received: Trail[str] = Trail()
    """The ids of the messages that were sent to the run: one that is sent again is no news."""
    suspended: tuple[Suspended, ...] = ()
    delayed: tuple[Delayed, ...] = ()
    carried: Mapping[str, Value] = field(default_factory=dict[str, "Value"])
    """Records of work inside activations that have not ended: by key, as a journal has them."""
    cancelled: Cancelled | None = None
    limits: Limits = Limits()
    scope: str = ""
    """Of a sub-workflow at work: names the activation of its parent. Between two of them it has none."""

    @property
    def is_idle(self) -> bool:
        """No message waits: only the outside or the passing of time can move the run."""
        return not self.deliveries

    @property
    def is_asleep(self) -> bool:
        """Idle, and time alone will move it on."""
        return not self.deliveries and self.next_timer is not None

    @property
    def is_settled(self) -> bool:
        """Idle, nobody is asked anything, and nothing waits for its time."""
        return (
            not (self.deliveries or self.requests or self.suspended)
            and self.cancelled is None
            and self.next_timer is None
            and not self.deadlines()
        )

    @property
    def next_timer(self) -> Moment | None:
        """When the next message or activation is due that waits for its time, in sub-workflows too."""
        if not (self.suspended or self.delayed or self.children):
            return None
        moments = [each.wake_at for each in self.suspended if each.wake_at is not None]
        moments += [each.due for each in self.delayed]
        moments += [moment for child in self.children.values() if (moment := child.next_timer) is not None]
        return min(moments, default=None)

    @property
    def left(self) -> Mapping[str, float]:
        """What may still be spent of what is limited, once the next superstep has begun."""
        begins = {"supersteps": 1, "activations": len(self.deliveries)}
        spent = self.limits.spent
        return {name: limit - spent.get(name, 0) - begins.get(name, 0) for name, limit in self.limits.budget.items()}

    @property
    def wake_at(self) -> Moment | None:
        """When the run has to be looked at, though nobody has sent anything."""
        if not (self.suspended or self.delayed or self.requests or self.children) and self.limits.deadline is None:
            # There is nothing at all that time could move.
            return None
        if self.is_settled or self.cancelled is not None:
            return None
        moments = [self.next_timer, self.limits.deadline, *self.deadlines().values()]
        return min((moment for moment in moments if moment is not None), default=None)

    def deadlines(self) -> Mapping[str, Moment]:
        """When defaults stand for answers that have not come, by request; in sub-workflows too.

        A request that a sub-workflow has passed on is its parent's alone.
        """
        if not (self.requests or self.children):
            return {}
        inside = {key: moment for child in self.children.values() for key, moment in child.deadlines().items()}
        own = {key: request.deadline for key, request in self.requests.items()}
        return {key: moment for key, moment in {**inside, **own}.items() if moment is not None}

    def answers_to(self, request_id: str) -> tuple[Answered, ...]:
        """The answers that requests of this id have had, in order."""
        return tuple(answered for answered in self.answered if answered.request_id == request_id)
