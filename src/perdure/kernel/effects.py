"""Activations and their effects: the values that go into and come out of a superstep."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from perdure.kernel.snapshot import Delivery, Moment, Output, Request, Snapshot, StateKey, Value


@dataclass(frozen=True, slots=True)
class Activation:
    """One handler call in one superstep. `ordinal` counts the calls of its executor."""

    executor_id: str
    ordinal: int
    delivery: Delivery

    @property
    def key(self) -> str:
        """Return a name that is unique in the superstep and stable across attempts."""
        return f"{self.executor_id}#{self.ordinal}"


@dataclass(frozen=True, slots=True)
class RoutedMessage:
    """A sent message with its destinations: executors, fan-in groups; now, or when it is due."""

    data: Value
    asked_for: str | None
    targets: tuple[str, ...]
    fan_ins: tuple[str, ...]
    due: Moment | None = None


@dataclass(frozen=True, slots=True)
class PendingEvent:
    """An event that the commit will number."""

    type: str
    data: Value | None = None
    executor_id: str | None = None
    path: tuple[str, ...] = ()
    request_id: str | None = None
    iteration: int | None = None
    details: Value | None = None
    lost: str | None = None
    """Why the data is missing, if it could not be encoded."""
    inner: PendingEvent | None = None
    """For a `sub_workflow` event: the event of the sub-workflow."""


@dataclass(frozen=True, slots=True)
class Suspension:
    """The wait of a suspended activation: until a moment or for a request, with its records so far by key.

    `given_up` lists requests of an earlier attempt that it no longer waits for.
    """

    wake_at: Moment | None
    awaits: str | None
    carried: Mapping[str, Value]
    given_up: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Write:
    """A new value for a state key; `erase` removes the key."""

    key: StateKey
    value: Value
    erase: bool = False


@dataclass(frozen=True, slots=True)
class Effects:
    """Everything one activation produced. `executor_state` and `child` are None if there is none or it is unchanged.

    A suspended activation has only `suspension`, `events` and the requests that it waits for. Its handler repeats
    everything else when it is re-entered.
    """

    activation: Activation
    sends: tuple[RoutedMessage, ...] = ()
    writes: tuple[Write, ...] = ()
    requests: tuple[Request, ...] = ()
    outputs: tuple[Output, ...] = ()
    executor_state: Value = None
    child: Snapshot | None = None
    events: tuple[PendingEvent, ...] = ()
    spent: Mapping[str, float] = field(default_factory=dict[str, float])
    suspension: Suspension | None = None

    @property
    def only_sends(self) -> bool:
        """Return whether there is nothing but messages and events."""
        return (
            not (self.writes or self.requests or self.outputs or self.spent)
            and self.executor_state is None
            and self.child is None
            and self.suspension is None
        )


@dataclass(frozen=True, slots=True)
class UnroutedMessage:
    """A sent message before routing. Routing looks at `message`; `data` is its encoded form."""

    data: Value
    asked_for: str | None
    message: object
    due: Moment | None = None


@dataclass(frozen=True, slots=True)
class ActivationResult:
    """An ended activation before its messages are routed. This is what a journal records.

    `updates` holds the updates of keys with a reducer, which are merged when the superstep ends; None removes the key.
    """

    effects: Effects
    unrouted: tuple[UnroutedMessage, ...]
    updates: Mapping[StateKey, tuple[Value | None, ...]]


@dataclass(frozen=True, slots=True)
class Conflict:
    """A state key that several executors wrote in one superstep."""

    key: StateKey
    executor_ids: tuple[str, ...]
