"""Reading JSON that somebody wrote by hand: every problem is noted with its path, and reading goes on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, cast

from perdure.agent_workflows.conditions_values import json_of
from perdure.agent_workflows.errors import AgentWorkflowBuildError

if TYPE_CHECKING:
    from collections.abc import Iterable

_SHOWN_MAX: Final = 60


@dataclass(slots=True)
class Problems:
    """What is wrong, in the order in which it was found."""

    found: list[str] = field(default_factory=list[str])

    def note(self, path: str, what: str) -> None:
        """Note that something is wrong at a path."""
        self.found.append(f"{path}: {what}" if path else what)

    def require_none(self) -> None:
        """Raise AgentWorkflowBuildError with all that is wrong, if something is."""
        if self.found:
            raise AgentWorkflowBuildError(self.found)


@dataclass(frozen=True, slots=True)
class Entry:
    """A JSON object with the path that leads to it.

    What is asked for and not there is None. What is there and wrong is noted, and comes back as None, too.
    """

    values: Mapping[str, Any]
    path: str
    problems: Problems

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def __getitem__(self, key: str) -> Any:
        return self.values.get(key)

    def at(self, key: str) -> str:
        """The path of a key in here."""
        return joined(self.path, key)

    def only(self, *known: str) -> None:
        """Note keys that there are not."""
        for key in self.values:
            if key not in known:
                self.problems.note(self.at(key), f"there is no such key; there are {', '.join(known)}")

    def need(self, *keys: str) -> bool:
        """Whether the keys are there; note those that are not."""
        missing = [key for key in keys if key not in self]
        for key in missing:
            self.problems.note(self.at(key), "it is missing; give it")
        return not missing

    def text(self, key: str) -> str | None:
        """A text."""
        return self[key] if key not in self or isinstance(self[key], str) else self.wrong(key, "a text")

    def name(self, key: str) -> str | None:
        """A text that is not empty."""
        return self[key] if key not in self or is_name(self[key]) else self.wrong(key, "a text that is not empty")

    def choice(self, key: str, choices: Iterable[str]) -> Any:
        """One of several words."""
        words = list(choices)
        if key not in self or self[key] in words:
            return self[key]
        return self.wrong(key, "one of " + ", ".join(map(repr, words)))

    def flag(self, key: str) -> bool | None:
        """True or false."""
        return self[key] if key not in self or isinstance(self[key], bool) else self.wrong(key, "true or false")

    def whole(self, key: str) -> int | None:
        """A whole number from 1 on."""
        value = self[key]
        if key not in self or (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
            return value
        return self.wrong(key, "a whole number of 1 or more")

    def number(self, key: str) -> float | None:
        """A number from 0 on."""
        value = self[key]
        if key not in self or (_is_number(value) and value >= 0):
            return value
        return self.wrong(key, "a number of 0 or more")

    def seconds(self, key: str) -> float | None:
        """A number of seconds, more than 0."""
        value = self[key]
        if key not in self or (_is_number(value) and value > 0):
            return value
        return self.wrong(key, "a number of seconds, more than 0")

    def duration(self, key: str) -> timedelta | None:
        """A number of seconds, as a duration."""
        seconds = self.seconds(key)
        if seconds is None:
            return None
        try:
            return timedelta(seconds=seconds) or self.wrong(key, "at least a millionth of a second")
        except OverflowError:
            return self.wrong(key, "a number of seconds that a timedelta can hold")

    def elements(self, key: str) -> list[tuple[str, Any]]:
        """The elements of a list, each with its path."""
        if key not in self:
            return []
        if not isinstance(self[key], list):
            self.wrong(key, "a list")
            return []
        return [(joined(self.at(key), place), each) for place, each in enumerate(self[key])]

    def names(self, key: str) -> tuple[str, ...]:
        """The texts in a list, of which none is empty."""
        elements = self.elements(key)
        for path, each in elements:
            if not is_name(each):
                self.problems.note(path, f"it is {shown(each)}; give a text that is not empty")
        return tuple(each for _, each in elements if is_name(each))

    def name_or_names(self, key: str) -> tuple[str, ...]:
        """The texts in a list, or one by itself."""
        return (self[key],) if is_name(self[key]) else self.names(key)

    def json(self, key: str) -> dict[str, Any] | None:
        """An object with whatever JSON in it, as a copy."""
        return json_at(self[key], self.at(key), self.problems) if key in self else None

    def entry(self, key: str) -> Entry | None:
        """An object."""
        return entry_of(self[key], self.at(key), self.problems) if key in self else None

    def wrong(self, key: str, wanted: str) -> None:
        """Note that something else is to be there."""
        self.problems.note(self.at(key), f"it is {shown(self[key])}; give {wanted}")


def entry_of(value: object, path: str, problems: Problems) -> Entry | None:
    """A value as an object, or None if it is not."""
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in cast("Mapping[object, object]", value)):
        return Entry(cast("Mapping[str, Any]", value), path, problems)
    return problems.note(path, f"it is {shown(cast('object', value))}; give an object with texts as keys")


def json_at(value: object, path: str, problems: Problems) -> dict[str, Any] | None:
    """A value as an object with whatever JSON in it, as a copy, or None if it is not."""
    entry = entry_of(value, path, problems)
    try:
        return None if entry is None else json_of(entry.values, "it")
    except (TypeError, ValueError, RecursionError) as error:
        return problems.note(path, str(error))


def joined(path: str, key: str | int) -> str:
    """The path of a key or place in what stands at a path."""
    if isinstance(key, int):
        return f"{path}[{key}]"
    return f"{path}.{key}" if path else key


def is_name(value: object) -> bool:
    """Whether it is a text that is not empty."""
    return isinstance(value, str) and bool(value)


def shown(value: object) -> str:
    """A value as it stands in an error: short, and in the words of JSON."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, list | tuple | Mapping):
        return "an object" if isinstance(value, Mapping) else "a list"
    if not isinstance(value, str | int | float):
        return f"a {type(value).__name__}"
    text = repr(value[:_SHOWN_MAX] if isinstance(value, str) else value)
    return text if len(text) <= _SHOWN_MAX else f"{text[: _SHOWN_MAX - 3]}..."


def _is_number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # A whole number that is too large for a float is no number of seconds.
        return False
