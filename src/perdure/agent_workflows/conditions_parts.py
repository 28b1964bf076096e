"""Conditions over one key that look into what stands there: into texts, lists and dicts. Letters count as written."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from perdure.agent_workflows.conditions_fields import OfKey, OfValue
from perdure.agent_workflows.conditions_values import found, holds_in, json_of, require_key

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True, eq=False)
class Contains(OfValue):
    """Holds if a text has this text in it, a list has this element, or a dict has this key.

    Elements of a list are the same as for `Equals`. A number has nothing in it, and neither has None.
    """

    type = "contains"

    def holds(self, outputs: Mapping[str, Any]) -> bool:
        """Whether it is in there."""
        return holds_in(found(outputs, self.key), self.value)

    def describe(self) -> str:
        """As "tags contains 'urgent'"."""
        return self.said(f"contains {self.value!r}")


@dataclass(frozen=True, slots=True, eq=False, init=False)
class OfValues(OfKey):
    """What conditions have in common that compare with several values. They keep copies of them."""

    values: tuple[Any, ...]

    def __init__(self, key: str, values: Iterable[Any]) -> None:
        require_key(key)
        what = f"the values of {type(self).__name__}({key!r}, ...)"
        # A text and a dict can be gone through, too, and nobody means its characters or keys.
        if isinstance(values, str | bytes | Mapping) or not hasattr(values, "__iter__"):
            raise TypeError(f"{what} are {values!r}; give a list")
        listed = tuple(json_of(list(values), what))
        if not listed:
            raise ValueError(f"{what} are none; give at least one")
        object.__setattr__(self, "key", key)
        object.__setattr__(self, "values", listed)

    def to_dict(self) -> dict[str, Any]:
        """The type, the key and the values."""
        return {"type": self.type, "key": self.key, "values": json_of(self.values, "the values")}

    def listed(self) -> str:
        """The values with commas between."""
        return ", ".join(map(repr, self.values))


@dataclass(frozen=True, slots=True, eq=False, init=False)
class ContainsAny(OfValues):
    """Holds if `Contains` does for one of the values at least."""

    type = "contains_any"

    def holds(self, outputs: Mapping[str, Any]) -> bool:
        """Whether one of them is in there."""
        there = found(outputs, self.key)
        return any(holds_in(there, value) for value in self.values)

    def describe(self) -> str:
        """As "tags contains any of 'urgent', 'new'"."""
        return self.said(f"contains any of {self.listed()}")


@dataclass(frozen=True, slots=True, eq=False, init=False)
class ContainsAll(OfValues):
    """Holds if `Contains` does for each of the values."""

    type = "contains_all"

    def holds(self, outputs: Mapping[str, Any]) -> bool:
        """Whether all of them are in there."""
        there = found(outputs, self.key)
        return all(holds_in(there, value) for value in self.values)

    def describe(self) -> str:
        """As "tags contains all of 'urgent', 'new'"."""
        return self.said(f"contains all of {self.listed()}")


@dataclass(frozen=True, slots=True, eq=False)
class OfText(OfKey):
    """What conditions have in common that compare with a text."""

    value: str

    def __post_init__(self) -> None:
        require_key(self.key)
        _require_text(self, self.value)

    def to_dict(self) -> dict[str, Any]:
        """The type, the key and the text."""
        return {"type": self.type, "key": self.key, "value": self.value}


@dataclass(frozen=True, slots=True, eq=False)
class StartsWith(OfText):
    """Holds if the value is a text that begins with this one. Lists have no beginning here."""

    type = "starts_with"

    def holds(self, outputs: Mapping[str, Any]) -> bool:
        """Whether it begins so."""
        there = found(outputs, self.key)
        return isinstance(there, str) and there.startswith(self.value)

    def describe(self) -> str:
        """As "answer starts with 'Yes'"."""
        return self.said(f"starts with {self.value!r}")


@dataclass(frozen=True, slots=True, eq=False)
class EndsWith(OfText):
    """Holds if the value is a text that ends with this one. Lists have no end here."""

    type = "ends_with"

    def holds(self, outputs: Mapping[str, Any]) -> bool:
        """Whether it ends so."""
        there = found(outputs, self.key)
        return isinstance(there, str) and there.endswith(self.value)

    def describe(self) -> str:
        """As "answer ends with 'DONE'"."""
        return self.said(f"ends with {self.value!r}")


@dataclass(frozen=True, slots=True, eq=False)
class Matches(OfKey):
    """Holds if the value is a text in which this regular expression is found; for a whole text, write "^...$".

    The pattern is compiled at once, and ValueError says what is wrong with it. It is that of whoever writes the
    definition: take none from users or models. A pattern with one repetition inside of another, as "(a+)+$", can take
    years for a text of a few dozen characters, and stops everything in the process meanwhile. Write "a+$".
    """

    type = "matches"
    pattern: str
    ignore_case: bool = False
    _compiled: re.Pattern[str] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        require_key(self.key)
        _require_text(self, self.pattern)
        if not isinstance(self.ignore_case, bool):  # pyright: ignore[reportUnnecessaryIsInstance] - users may err
            raise TypeError(f"ignore_case of Matches is True or False, not {self.ignore_case!r}")
        object.__setattr__(self, "_compiled", _compiled(self.pattern, ignore_case=self.ignore_case))

    def holds(self, outputs: Mapping[str, Any]) -> bool:
        """Whether it is found."""
        there = found(outputs, self.key)
        return isinstance(there, str) and self._compiled.search(there) is not None

    def describe(self) -> str:
        """As "answer matches '^[0-9]+$'"."""
        return self.said(f"matches {self.pattern!r}{', in letters of any case' if self.ignore_case else ''}")

    def to_dict(self) -> dict[str, Any]:
        """The type, the key, the pattern, and whether the case of letters does not count."""
        written: dict[str, Any] = {"type": self.type, "key": self.key, "pattern": self.pattern}
        return {**written, "ignore_case": True} if self.ignore_case else written


def _compiled(pattern: str, *, ignore_case: bool) -> re.Pattern[str]:
    try:
        return re.compile(pattern, re.IGNORECASE if ignore_case else 0)
    except (re.error, OverflowError, RecursionError) as error:
        wrong = f"{pattern!r} is no regular expression: {error}"
        raise ValueError(f"{wrong}; see the module re for how to write one") from error


def _require_text(condition: OfKey, value: object) -> None:
    if not isinstance(value, str):
        name = type(condition).__name__
        raise TypeError(f"{name}({condition.key!r}, ...) is about a text, not {value!r}; give a text")
