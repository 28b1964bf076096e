"""A run between two supersteps, as one frozen value. What users' values are, the kernel never asks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from perdure.kernel.trail import Trail

if TYPE_CHECKING:
    from collections.abc import Mapping

    from perdure.graph.definition import OutputKind

Value: TypeAlias = object
"""A user's value as the runtime keeps it: opaque here."""

StateKey: TypeAlias = tuple[str, str]
"""A scope and a key in it."""


@dataclass(frozen=True, slots=True)
class Request:
    """A question to the outside that has no answer yet."""

    id: str
    executor_id: str
    data: Value
    request_type: object
    response_type: object


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
class Output:
    """Something that an executor yielded, and how it is told."""

    executor_id: str
    kind: OutputKind
    data: Value


@dataclass(frozen=True, slots=True)
class Answered:
    """A request that has been answered, and when."""

    request_id: str
    at: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The run as a value.

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
    answered: Trail[Answered] = Trail()  # noqa: RUF009 - frozen
    outputs: Trail[Output] = Trail()  # noqa: RUF009 - frozen
    children: Mapping[str, Snapshot] = field(default_factory=dict[str, "Snapshot"])
    kwargs: Value = None
    withheld_kwargs: tuple[str, ...] = ()

    @property
    def is_idle(self) -> bool:
        """No message waits: only the outside can move the run."""
        return not self.deliveries

    @property
    def is_settled(self) -> bool:
        """Idle, and nobody is asked anything."""
        return not self.deliveries and not self.requests

    def answers_to(self, request_id: str) -> tuple[Answered, ...]:
        """The answers that requests of this id have had, in order."""
        return tuple(answered for answered in self.answered if answered.request_id == request_id)
