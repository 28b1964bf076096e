"""Conditions over one key that compare: greater and less.

With a number as bound, numbers are compared, and texts that are nothing but a number: "7" is greater than 5, because
what agents say are texts. "7 points" is no number. With a text as bound, texts are compared, by the numbers of their
characters: dates as "2031-05-01" come in their order, and "9" after "10". All else makes every one of them False: a
missing key, None, True and False, lists, dicts, and a value that is not a number.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from perdure.agent_workflows.conditions_fields import OfKey
from perdure.agent_workflows.conditions_values import found, order, require_key

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, eq=False)
class OfBound(OfKey):
    """What conditions have in common that compare with a bound, a finite number or a text."""

    value: float | str

    def __post_init__(self) -> None:
        require_key(self.key)
        what = f"the bound of {type(self).__name__}({self.key!r}, ...)"
        given = cast("object", self.value)
        if isinstance(given, bool) or not isinstance(given, int | float | str):
            raise TypeError(f"{what} is {given!r}; give a number or a text")
        if isinstance(given, float) and not math.isfinite(given):
            raise ValueError(f"{what} is {given!r}; give a finite number")

    def to_dict(self) -> dict[str, Any]:
        """The type, the key and the bound."""
        return {"type": self.type, "key": self.key, "value": self.value}

    def compared(self, outputs: Mapping[str, Any]) -> int | None:
        """-1, 0 or 1: the value is less than the bound, as much, or greater. None if they can't be compared."""
        return order(found(outputs, self.key), self.value)


@dataclass(frozen=True, slots=True, eq=False)
class GreaterThan(OfBound):
    """Holds if the value is greater than the bound. See the module for what can be compared."""

    type = "greater_than"

    def holds(self, outputs: Mapping[str, Any]) -> bool:
        """Whether the value is greater."""
        return self.compared(outputs) == 1

    def describe(self) -> str:
        """As "score > 5"."""
        return self.said(f"> {self.value!r}")


@dataclass(frozen=True, slots=True, eq=False)
class LessThan(OfBound):
    """Holds if the value is less than the bound. See the module for what can be compared."""

    type = "less_than"

    def holds(self, outputs: Mapping[str, Any]) -> bool:
        """Whether the value is less."""
        return self.compared(outputs) == -1

    def describe(self) -> str:
        """As "score < 5"."""
        return self.said(f"< {self.value!r}")


@dataclass(frozen=True, slots=True, eq=False)
class AtLeast(OfBound):
    """Holds if the value is the bound or greater. See the module for what can be compared."""

    type = "at_least"

    def holds(self, outputs: Mapping[str, Any]) -> bool:
        """Whether the value is as much, or greater."""
        return self.compared(outputs) in {0, 1}

    def describe(self) -> str:
        """As "score >= 5"."""
        return self.said(f">= {self.value!r}")


@dataclass(frozen=True, slots=True, eq=False)
class AtMost(OfBound):
    """Holds if the value is the bound or less. See the module for what can be compared."""

    type = "at_most"

    def holds(self, outputs: Mapping[str, Any]) -> bool:
        """Whether the value is as much, or less."""
        return self.compared(outputs) in {0, -1}

    def describe(self) -> str:
        """As "score <= 5"."""
        return self.said(f"<= {self.value!r}")
