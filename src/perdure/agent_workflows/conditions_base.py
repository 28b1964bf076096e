"""What every condition is, and how several make one: `And`, `Or`, `Not`."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

DEPTH_MAX: Final = 50
"""How deeply conditions may stand inside of each other."""


class Condition(ABC):
    """A question about the outputs of a node. It combines with others: `one & another`, `one | another`, `~one`.

    It is data: it can be written down with `to_dict` and read back with `condition_of`. It is total: whatever the
    outputs are, it holds or it does not. Two are equal if they are the same when written down.
    """

    __slots__ = ()

    type: ClassVar[str]
    """What it is called when it is written down."""

    @abstractmethod
    def holds(self, outputs: Mapping[str, Any]) -> bool:
        """Whether it holds for these outputs."""

    @abstractmethod
    def describe(self) -> str:
        """The condition in words, on one line."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """The condition as JSON."""

    @abstractmethod
    def fields(self) -> frozenset[str]:
        """The keys of outputs that it asks about; of a dotted path its first part."""

    def __and__(self, other: Condition) -> And:
        return And(*_flat(And, self), *_flat(And, other))

    def __or__(self, other: Condition) -> Or:
        return Or(*_flat(Or, self), *_flat(Or, other))

    def __invert__(self) -> Condition:
        return Not(self)

    def __bool__(self) -> bool:
        # `one and another` would silently be another, and `not one` False.
        raise TypeError(
            f"the condition {self.describe()!r} is neither true nor false by itself; "
            "combine conditions with &, | and ~ in place of and, or and not, and ask with holds(outputs)"
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Condition) and _written(self) == _written(other)

    def __hash__(self) -> int:
        return hash(_written(self))


@dataclass(frozen=True, slots=True, eq=False, init=False)
class And(Condition):
    """Holds if all of the conditions do. They are asked in order, up to the first that does not."""

    type = "and"
    conditions: tuple[Condition, ...]

    def __init__(self, *conditions: Condition) -> None:
        object.__setattr__(self, "conditions", _checked("And", conditions))

    def holds(self, outputs: Mapping[str, Any]) -> bool:
        """Whether all hold."""
        return all(condition.holds(outputs) for condition in self.conditions)

    def describe(self) -> str:
        """All of them, with "and" between."""
        return " and ".join(map(_inside, self.conditions))

    def to_dict(self) -> dict[str, Any]:
        """The conditions under `conditions`."""
        return {"type": self.type, "conditions": [condition.to_dict() for condition in self.conditions]}

    def fields(self) -> frozenset[str]:
        """The keys that any of them asks about."""
        return _all_fields(self.conditions)


@dataclass(frozen=True, slots=True, eq=False, init=False)
class Or(Condition):
    """Holds if one of the conditions does. They are asked in order, up to the first that does."""

    type = "or"
    conditions: tuple[Condition, ...]

    def __init__(self, *conditions: Condition) -> None:
        object.__setattr__(self, "conditions", _checked("Or", conditions))

    def holds(self, outputs: Mapping[str, Any]) -> bool:
        """Whether one holds."""
        return any(condition.holds(outputs) for condition in self.conditions)

    def describe(self) -> str:
        """All of them, with "or" between."""
        return " or ".join(map(_inside, self.conditions))

    def to_dict(self) -> dict[str, Any]:
        """The conditions under `conditions`."""
        return {"type": self.type, "conditions": [condition.to_dict() for condition in self.conditions]}

    def fields(self) -> frozenset[str]:
        """The keys that any of them asks about."""
        return _all_fields(self.conditions)


@dataclass(frozen=True, slots=True, eq=False)
class Not(Condition):
    """Holds if the condition does not: for a missing key, too, and for a value that it can't be asked about."""

    type = "not"
    condition: Condition

    def __post_init__(self) -> None:
        _checked("Not", (self.condition,))

    def holds(self, outputs: Mapping[str, Any]) -> bool:
        """Whether it does not hold."""
        return not self.condition.holds(outputs)

    def describe(self) -> str:
        """The condition in brackets, with "not" before it."""
        return f"not ({self.condition.describe()})"

    def to_dict(self) -> dict[str, Any]:
        """The condition under `condition`."""
        return {"type": self.type, "condition": self.condition.to_dict()}

    def fields(self) -> frozenset[str]:
        """The keys that it asks about."""
        return self.condition.fields()

    def __invert__(self) -> Condition:
        return self.condition


def _flat(kind: type[And | Or], condition: Condition) -> tuple[Condition, ...]:
    # `a & b & c` is one And of three: a long row does not get deep.
    return condition.conditions if isinstance(condition, kind) else (condition,)


def _checked(name: str, conditions: tuple[Condition, ...]) -> tuple[Condition, ...]:
    if not conditions:
        raise ValueError(f"{name} has no conditions in it; give at least one")
    for condition in conditions:
        if not isinstance(condition, Condition):  # pyright: ignore[reportUnnecessaryIsInstance] - users may err
            raise TypeError(f"{name} is made of conditions, as Equals('intent', 'billing'), not of {condition!r}")
    if _depth(conditions) >= DEPTH_MAX:
        raise ValueError(f"conditions stand more than {DEPTH_MAX} deep in each other; make them flatter")
    return conditions


def _depth(conditions: Iterable[Condition]) -> int:
    return max(1 + _depth(_parts(condition)) if _parts(condition) else 1 for condition in conditions)


def _parts(condition: Condition) -> tuple[Condition, ...]:
    if isinstance(condition, And | Or):
        return condition.conditions
    return (condition.condition,) if isinstance(condition, Not) else ()


def _inside(condition: Condition) -> str:
    return f"({condition.describe()})" if isinstance(condition, And | Or) else condition.describe()


def _all_fields(conditions: Iterable[Condition]) -> frozenset[str]:
    return frozenset(key for condition in conditions for key in condition.fields())


def _written(condition: Condition) -> str:
    return json.dumps(condition.to_dict(), sort_keys=True)
