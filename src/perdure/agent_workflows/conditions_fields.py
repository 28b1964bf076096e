"""Conditions over one key of the outputs: whether something stands there, whether it is this, whether it is empty.

What stands there is JSON. A missing key, and a value of another kind than a condition is about, make it False and never
an error. `NotEquals`, `NotExists` and `Empty` hold for a missing key: it is not equal, not there, and empty. A key may
be a dotted path into dicts, as `result.score`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from perdure.agent_workflows.conditions_base import And, Condition, Not, Or
from perdure.agent_workflows.conditions_values import MISSING, found, is_empty, json_of, require_key, same

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, eq=False)
class OfKey(Condition):
    """What conditions over one key have in common."""

    key: str

    def __post_init__(self) -> None:
        require_key(self.key)

    def to_dict(self) -> dict[str, Any]:
        """The type and the key."""
        return {"type": self.type, "key": self.key}

    def fields(self) -> frozenset[str]:
        """The key, or the first part of the path."""
        return frozenset({self.key.partition(".")[0]})

    def said(self, words: str) -> str:
        """The key with these words behind it, on one line."""
        return f"{self.key if self.key.isprintable() else repr(self.key)} {words}"


def paths_of(condition: Condition) -> frozenset[str]:
    """The keys that a condition asks about, with what it asks about inside of them."""
    match condition:
        case And(conditions) | Or(conditions):
            return frozenset[str]().union(*map(paths_of, conditions))
        case Not(inner):
            return paths_of(inner)
        case OfKey(key):
            return frozenset({key})
        case _:
            return condition.fields()


@dataclass(frozen=True, slots=True, eq=False)
class OfValue(OfKey):
    """What conditions have in common that compare with a value of any kind. They keep a copy of it."""

    value: Any

    def __post_init__(self) -> None:
        require_key(self.key)
        what = f"the value of {type(self).__name__}({self.key!r}, ...)"
        object.__setattr__(self, "value", json_of(self.value, what))

    def to_dict(self) -> dict[str, Any]:
        """The type, the key and the value."""
        return {"type": self.type, "key": self.key, "value": json_of(self.value, "the value")}


@dataclass(frozen=True, slots=True, eq=False)
class Equals(OfValue):
    """Holds if the value is this one.

    Numbers are compared as numbers (1 is 1.0), lists and dicts by all that is in them. Kinds are kept apart: True is
    not 1, "7" is not 7. None is a value: it equals None, and a missing key does not.
    """

    type = "equals"

    def holds(self, outputs: Mapping[str, Any]) -> bool:
        """Whether the value is this one."""
        return same(found(outputs, self.key), self.value)

    def describe(self) -> str:
        """As "intent == 'billing'"."""
        return self.said(f"== {self.value!r}")


@dataclass(frozen=True, slots=True, eq=False)
class NotEquals(OfValue):
    """Holds if `Equals` does not: for any other value, one of another kind, and a missing key."""

    type = "not_equals"

    def holds(self, outputs: Mapping[str, Any]) -> bool:
        """Whether the value is another one, or missing."""
        return not same(found(outputs, self.key), self.value)

    def describe(self) -> str:
        """As "intent != 'billing'"."""
        return self.said(f"!= {self.value!r}")


@dataclass(frozen=True, slots=True, eq=False)
class Exists(OfKey):
    """Holds if there is a value that is not None. False, 0 and empty texts are values."""

    type = "exists"

    def holds(self, outputs: Mapping[str, Any]) -> bool:
        """Whether there is a value."""
        value = found(outputs, self.key)
        return value is not MISSING and value is not None

    def describe(self) -> str:
        """As "intent exists"."""
        return self.said("exists")


@dataclass(frozen=True, slots=True, eq=False)
class NotExists(OfKey):
    """Holds if `Exists` does not: the key is missing, or its value is None."""

    type = "not_exists"

    def holds(self, outputs: Mapping[str, Any]) -> bool:
        """Whether there is no value."""
        value = found(outputs, self.key)
        return value is MISSING or value is None

    def describe(self) -> str:
        """As "intent does not exist"."""
        return self.said("does not exist")


@dataclass(frozen=True, slots=True, eq=False)
class Empty(OfKey):
    """Holds if the key is missing, or its value None, a text of white space alone, or a list or dict without entries.

    Numbers and bools are never empty, 0 and False included.
    """

    type = "empty"

    def holds(self, outputs: Mapping[str, Any]) -> bool:
        """Whether there is nothing in the value."""
        return is_empty(found(outputs, self.key))

    def describe(self) -> str:
        """As "answer is empty"."""
        return self.said("is empty")


@dataclass(frozen=True, slots=True, eq=False)
class NotEmpty(OfKey):
    """Holds if `Empty` does not. A missing key is empty."""

    type = "not_empty"

    def holds(self, outputs: Mapping[str, Any]) -> bool:
        """Whether there is something in the value."""
        return not is_empty(found(outputs, self.key))

    def describe(self) -> str:
        """As "answer is not empty"."""
        return self.said("is not empty")
