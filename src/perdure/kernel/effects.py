"""What a superstep plans and what it did: the values that go into and out of the kernel."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

from perdure.data import value

if TYPE_CHECKING:
    from collections.abc import Mapping

    from perdure.kernel.snapshot import Delivery, Moment, Output, Request, Snapshot, StateKey, Value


@value
class Activation:
    """One handler call in one superstep. `ordinal` counts the calls of its executor."""

    executor_id: str
    ordinal: int
    delivery: Delivery
    key: str = field(init=False, repr=False, compare=False)
    """A name that is unique in the superstep and the same in every life of the run."""

    def __post_init__(self) -> None:
        self.key = f"{self.executor_id}#{self.ordinal}"  # pyright: ignore[reportAttributeAccessIssue]


@value
class Sent:
    """A message, and where routing found that it goes: straight to executors, into fan-in groups; now or later."""

    data: Value
    asked_for: str | None
    targets: tuple[str, ...]
    fan_ins: tuple[str, ...]
    due: Moment | None = None


@value
class Told:
    """An event of an activation, to be numbered by the commit."""

    type: str
    data: Value | None = None
    executor_id: str | None = None
    path: tuple[str, ...] = ()
    request_id: str | None = None
    iteration: int | None = None
    details: Value | None = None
    lost: str | None = None
    """Why its data is not kept, if it had any that could not be."""
    inner: Told | None = None
    """Of a `sub_workflow` event: what was told inside."""


@value
class Suspension:
    """That an activation waits: until when or for which request, and what it has recorded so far, by key.

    `given_up` are requests of an earlier entry that it does not wait for any more.
    """

    wake_at: Moment | None
    awaits: str | None
    carried: Mapping[str, Value]
    given_up: tuple[str, ...] = ()


@value
class Write:
    """A value for a key of the state; `erase` takes the key away."""

    key: StateKey
    value: Value
    erase: bool = False


@value
class Effects:
    """All that one activation did. `executor_state` and `child` are None where there is none or it did not change.

    Of one that is suspended there is nothing beside the suspension but `told` and the requests that it waits for: all
    else is done anew when its handler is entered again.
    """

    activation: Activation
    sends: tuple[Sent, ...] = ()
    writes: tuple[Write, ...] = ()
    requests: tuple[Request, ...] = ()
    outputs: tuple[Output, ...] = ()
    executor_state: Value = None
    child: Snapshot | None = None
    told: tuple[Told, ...] = ()
    spent: Mapping[str, float] = field(default_factory=dict[str, float])
    suspension: Suspension | None = None

    @property
    def only_sends(self) -> bool:
        """Whether there is nothing but messages, and what was told."""
        return (
            not (self.writes or self.requests or self.outputs or self.spent)
            and self.executor_state is None
            and self.child is None
            and self.suspension is None
        )

    def routed(self, sends: tuple[Sent, ...]) -> Effects:
        """The same, with its messages: where each of them goes."""
        return self._with(sends, self.executor_state, self.child)

    def leaving(self, executor_state: Value, child: Snapshot | None) -> Effects:
        """The same, with what its executor is now."""
        return self._with(self.sends, executor_state, child)

    def _with(self, sends: tuple[Sent, ...], executor_state: Value, child: Snapshot | None) -> Effects:
        # Once or twice for each activation: dataclasses.replace takes several times as long.
        return Effects(
            self.activation,
            sends,
            self.writes,
            self.requests,
            self.outputs,
            executor_state,
            child,
            self.told,
            self.spent,
            self.suspension,
        )


@value
class Unrouted:
    """A message that was sent and is not routed yet. `message` is what routing looks at."""

    data: Value
    asked_for: str | None
    message: object
    due: Moment | None = None


@value
class Done:
    """An activation that has ended, before its messages are routed: what a journal keeps.

    `updates` holds, by key with a reducer, what is to be merged when the superstep ends; None stands for a removal.
    """

    effects: Effects
    unrouted: tuple[Unrouted, ...]
    updates: Mapping[StateKey, tuple[Value | None, ...]]


@value
class Conflict:
    """A key that several executors wrote in one superstep."""

    key: StateKey
    executor_ids: tuple[str, ...]
