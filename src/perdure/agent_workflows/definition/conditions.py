"""Conditions over the outputs of a node, as data: one table of operators, and one union of their JSON forms.

A condition is total: for every output it holds or it does not. A missing key, or a value of a kind that the operator
does not know, makes it not hold. `NotEquals`, `NotExists` and `Empty` hold for a missing key.

`GreaterThan` and its siblings compare numbers with a number as bound, also texts that are nothing but a number: "7" is
greater than 5. With a text as bound they compare texts by code points: "2031-05-01" is before "2031-06-01".
"""

from __future__ import annotations

import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from decimal import Decimal
from typing import Annotated, Any, ClassVar, Final, Literal, TypeAlias, cast

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from typing_extensions import TypeAliasType

from perdure.agent_workflows.definition.json_values import MISSING, copy_json, is_same, look_up
from perdure.agent_workflows.definition.problems import path_of, problems_in
from perdure.agent_workflows.errors import AgentWorkflowBuildError

DEPTH_MAX: Final = 50
"""The deepest nesting of conditions."""

_NUMBER: Final = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,4})?", re.ASCII)
_TOO_DEEP: Final = f"conditions are nested more than {DEPTH_MAX} deep; make them flatter"


def _exists(value: Any) -> bool:
    return value is not MISSING and value is not None


def _is_empty(value: Any) -> bool:
    if isinstance(value, str):
        return not value.strip()
    return not _exists(value) or (isinstance(value, list | tuple | Mapping) and not value)


def _contains(value: Any, part: Any) -> bool:
    if isinstance(value, str):
        return isinstance(part, str) and part in value
    if isinstance(value, list | tuple):
        return any(is_same(each, part) for each in cast("list[Any]", value))
    return isinstance(value, Mapping) and isinstance(part, str) and part in value


def _compare(value: Any, bound: float | str) -> int | None:
    """Return -1, 0 or 1 for less, equal or greater; None if the two cannot be compared."""
    if isinstance(bound, str):
        return _sign(value, bound) if isinstance(value, str) else None
    if isinstance(value, str) and _NUMBER.fullmatch(text := value.strip()):
        # Compare as written: as a float 0.8 is a little more than the "0.8" of a model.
        return _sign(Decimal(text), Decimal(repr(float(bound))) if isinstance(bound, float) else bound)
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and not _is_nan(value)
    return _sign(value, bound) if is_number else None


def _is_nan(value: float) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _sign(one: Any, other: Any) -> int:
    return (one > other) - (one < other)


@dataclass(frozen=True, slots=True)
class Operator:
    """The meaning of a condition over one key: a test of the value, and its words with a place for the operand."""

    test: Callable[[Any, Any], bool]
    words: str


OPERATORS: Final[Mapping[str, Operator]] = {
    "exists": Operator(lambda value, _: _exists(value), "exists"),
    "not_exists": Operator(lambda value, _: not _exists(value), "does not exist"),
    "empty": Operator(lambda value, _: _is_empty(value), "is empty"),
    "not_empty": Operator(lambda value, _: not _is_empty(value), "is not empty"),
    "equals": Operator(is_same, "== {}"),
    "not_equals": Operator(lambda value, other: not is_same(value, other), "!= {}"),
    "greater_than": Operator(lambda value, bound: _compare(value, bound) == 1, "> {}"),
    "less_than": Operator(lambda value, bound: _compare(value, bound) == -1, "< {}"),
    "at_least": Operator(lambda value, bound: _compare(value, bound) in {0, 1}, ">= {}"),
    "at_most": Operator(lambda value, bound: _compare(value, bound) in {0, -1}, "<= {}"),
    "contains": Operator(_contains, "contains {}"),
    "contains_any": Operator(lambda value, parts: any(_contains(value, each) for each in parts), "contains any of {}"),
    "contains_all": Operator(lambda value, parts: all(_contains(value, each) for each in parts), "contains all of {}"),
    "starts_with": Operator(lambda value, text: isinstance(value, str) and value.startswith(text), "starts with {}"),
    "ends_with": Operator(lambda value, text: isinstance(value, str) and value.endswith(text), "ends with {}"),
    "matches": Operator(lambda value, regex: isinstance(value, str) and regex.search(value) is not None, "matches {}"),
}


class Condition(ABC):
    """A question about the outputs of a node. Combine conditions with `one & other`, `one | other` and `~one`.

    A condition is data: `to_dict` writes it and `condition_of` reads it back. Conditions are equal if their written
    forms are.
    """

    __slots__ = ()

    type: ClassVar[str]
    """The name of the condition in JSON."""

    @abstractmethod
    def holds(self, outputs: Mapping[str, Any]) -> bool:
        """Return True if the condition holds for these outputs."""

    @abstractmethod
    def describe(self) -> str:
        """Describe the condition on one line."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Return the condition as JSON."""

    @abstractmethod
    def fields(self) -> frozenset[str]:
        """Return the output keys that the condition reads; of a dotted path its first part."""

    def paths(self) -> frozenset[str]:
        """Return the whole paths that the condition reads."""
        return self.fields()

    def __and__(self, other: Condition) -> And:
        return And(*_parts_of(And, self), *_parts_of(And, other))

    def __or__(self, other: Condition) -> Or:
        return Or(*_parts_of(Or, self), *_parts_of(Or, other))

    def __invert__(self) -> Condition:
        return Not(self)

    def __bool__(self) -> bool:
        # Without this, `one and other` would silently be `other`, and `not one` False.
        raise TypeError(
            f"the condition {self.describe()!r} is neither true nor false by itself; "
            "combine conditions with &, | and ~ instead of and, or and not, and evaluate them with holds(outputs)"
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Condition) and _written(self) == _written(other)

    def __hash__(self) -> int:
        return hash(_written(self))


def _written(condition: Condition) -> str:
    return json.dumps(condition.to_dict(), sort_keys=True)


def _parts_of(kind: type[And | Or], condition: Condition) -> tuple[Condition, ...]:
    """Return the parts of an And or Or, so that `a & b & c` is one And of three."""
    return condition.conditions if isinstance(condition, kind) else (condition,)


@dataclass(frozen=True, slots=True, eq=False, init=False)
class _Joined(Condition):
    """Several conditions, evaluated in order until the result is known."""

    conditions: tuple[Condition, ...]

    def __init__(self, *conditions: Condition) -> None:
        object.__setattr__(self, "conditions", _require_conditions(type(self).__name__, conditions))

    def describe(self) -> str:
        """Join the descriptions with the word of the operator."""
        parts = (f"({each.describe()})" if isinstance(each, _Joined) else each.describe() for each in self.conditions)
        return f" {self.type} ".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """Return the parts under `conditions`."""
        return {"type": self.type, "conditions": [condition.to_dict() for condition in self.conditions]}

    def fields(self) -> frozenset[str]:
        """Return the keys of all parts."""
        return frozenset[str]().union(*(each.fields() for each in self.conditions))

    def paths(self) -> frozenset[str]:
        """Return the paths of all parts."""
        return frozenset[str]().union(*(each.paths() for each in self.conditions))


@dataclass(frozen=True, slots=True, eq=False, init=False)
class And(_Joined):
    """Holds if all its conditions hold."""

    type = "and"

    def holds(self, outputs: Mapping[str, Any]) -> bool:
        """Return True if all hold."""
        return all(condition.holds(outputs) for condition in self.conditions)


@dataclass(frozen=True, slots=True, eq=False, init=False)
class Or(_Joined):
    """Holds if one of its conditions holds."""

    type = "or"

    def holds(self, outputs: Mapping[str, Any]) -> bool:
        """Return True if one holds."""
        return any(condition.holds(outputs) for condition in self.conditions)


@dataclass(frozen=True, slots=True, eq=False)
class Not(Condition):
    """Holds if its condition does not, so also for a missing key."""

    type = "not"
    condition: Condition

    def __post_init__(self) -> None:
        _require_conditions("Not", (self.condition,))

    def holds(self, outputs: Mapping[str, Any]) -> bool:
        """Return True if the condition does not hold."""
        return not self.condition.holds(outputs)

    def describe(self) -> str:
        """Put "not" before the description."""
        return f"not ({self.condition.describe()})"

    def to_dict(self) -> dict[str, Any]:
        """Return the inner condition under `condition`."""
        return {"type": self.type, "condition": self.condition.to_dict()}

    def fields(self) -> frozenset[str]:
        """Return the keys of the inner condition."""
        return self.condition.fields()

    def paths(self) -> frozenset[str]:
        """Return the paths of the inner condition."""
        return self.condition.paths()

    def __invert__(self) -> Condition:
        return self.condition


def _require_conditions(name: str, conditions: tuple[Condition, ...]) -> tuple[Condition, ...]:
    if not conditions:
        raise ValueError(f"{name} has no conditions; give at least one")
    for condition in conditions:
        if not isinstance(condition, Condition):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be untyped
            raise TypeError(f"{name} is made of conditions, such as Equals('intent', 'billing'), not of {condition!r}")
    if max(map(_depth, conditions)) >= DEPTH_MAX:
        raise ValueError(_TOO_DEEP)
    return conditions


def _depth(condition: Condition) -> int:
    inner = condition.conditions if isinstance(condition, _Joined) else ()
    inner = (condition.condition,) if isinstance(condition, Not) else inner
    return 1 + max(map(_depth, inner), default=0)


@dataclass(frozen=True, slots=True, eq=False)
class _KeyCondition(Condition):
    """A condition over one key, whose meaning is in the table of operators."""

    key: str

    def __post_init__(self) -> None:
        key = cast("object", self.key)
        if not isinstance(key, str):
            raise TypeError(f"the key of a condition is a text, such as 'score' or 'result.score', not {key!r}")
        if not all(key.split(".")):
            raise ValueError(f"the key {key!r} of a condition has an empty part; write 'score' or 'result.score'")
        for each in fields(self):
            if each.init and each.name != "key":
                object.__setattr__(self, each.name, self._checked(each.name, getattr(self, each.name)))

    def _checked(self, name: str, operand: Any) -> Any:
        """Return a copy of an operand. Raises TypeError or ValueError."""
        return copy_json(operand, self._what(name))

    def _what(self, name: str) -> str:
        return f"the {name} of {type(self).__name__}({self.key!r}, ...)"

    @property
    def operand(self) -> Any:
        """Return the second argument of the operator's test."""
        return None

    def holds(self, outputs: Mapping[str, Any]) -> bool:
        """Apply the operator to the value of the key."""
        return OPERATORS[self.type].test(look_up(outputs, self.key), self.operand)

    def describe(self) -> str:
        """Return the key, and the words of the operator with its operand."""
        words = OPERATORS[self.type].words.format(self._operand_text())
        return f"{self.key if self.key.isprintable() else repr(self.key)} {words}"

    def _operand_text(self) -> str:
        return repr(self.operand)

    def to_dict(self) -> dict[str, Any]:
        """Return the type, the key and the operand."""
        operands = {each.name: getattr(self, each.name) for each in fields(self) if each.init}
        return {"type": self.type, **copy_json(operands, "the condition")}

    def fields(self) -> frozenset[str]:
        """Return the first part of the key."""
        return frozenset({self.key.partition(".")[0]})

    def paths(self) -> frozenset[str]:
        """Return the key."""
        return frozenset({self.key})


class Exists(_KeyCondition):
    """Holds if there is a value other than None. False, 0 and "" are values."""

    __slots__ = ()
    type = "exists"


class NotExists(_KeyCondition):
    """Holds if the key is missing or its value is None."""

    __slots__ = ()
    type = "not_exists"


class Empty(_KeyCondition):
    """Holds if the value is missing, None, a text of white space, or an empty list or dict. Numbers are never empty."""

    __slots__ = ()
    type = "empty"


class NotEmpty(_KeyCondition):
    """Holds if `Empty` does not."""

    __slots__ = ()
    type = "not_empty"


@dataclass(frozen=True, slots=True, eq=False)
class _ValueCondition(_KeyCondition):
    """A condition with one JSON value as operand."""

    value: Any

    @property
    def operand(self) -> Any:
        """Return the value."""
        return self.value


class Equals(_ValueCondition):
    """Holds if the value is this one. 1 equals 1.0; True is not 1, "7" is not 7, and a missing key is not None."""

    __slots__ = ()
    type = "equals"


class NotEquals(_ValueCondition):
    """Holds if `Equals` does not, so also for a missing key."""

    __slots__ = ()
    type = "not_equals"


class Contains(_ValueCondition):
    """Holds if a text contains this text, a list this element, or a dict this key."""

    __slots__ = ()
    type = "contains"


@dataclass(frozen=True, slots=True, eq=False)
class _BoundCondition(_KeyCondition):
    """A condition with a bound: a finite number or a text."""

    value: float | str

    @property
    def operand(self) -> Any:
        """Return the bound."""
        return self.value

    def _checked(self, name: str, operand: Any) -> Any:
        if isinstance(operand, bool) or not isinstance(operand, int | float | str):
            raise TypeError(f"{self._what(name)} is {operand!r}; give a number or a text")
        return copy_json(operand, self._what(name))


class GreaterThan(_BoundCondition):
    """Holds if the value is greater than the bound."""

    __slots__ = ()
    type = "greater_than"


class LessThan(_BoundCondition):
    """Holds if the value is less than the bound."""

    __slots__ = ()
    type = "less_than"


class AtLeast(_BoundCondition):
    """Holds if the value is the bound or greater."""

    __slots__ = ()
    type = "at_least"


class AtMost(_BoundCondition):
    """Holds if the value is the bound or less."""

    __slots__ = ()
    type = "at_most"


@dataclass(frozen=True, slots=True, eq=False)
class _ValuesCondition(_KeyCondition):
    """A condition with several JSON values as operand."""

    values: Iterable[Any]

    @property
    def operand(self) -> Any:
        """Return the values."""
        return self.values

    def _checked(self, name: str, operand: Any) -> Any:
        # A text and a dict are iterable too, but nobody means their characters or keys.
        if isinstance(operand, str | bytes | Mapping) or not isinstance(operand, Iterable):
            raise TypeError(f"{self._what(name)} are {operand!r}; give a list")
        values = tuple(copy_json(list(cast("Iterable[Any]", operand)), self._what(name)))
        if not values:
            raise ValueError(f"{self._what(name)} are empty; give at least one")
        return values

    def _operand_text(self) -> str:
        return ", ".join(map(repr, self.values))


class ContainsAny(_ValuesCondition):
    """Holds if `Contains` holds for one of the values."""

    __slots__ = ()
    type = "contains_any"


class ContainsAll(_ValuesCondition):
    """Holds if `Contains` holds for each of the values."""

    __slots__ = ()
    type = "contains_all"


@dataclass(frozen=True, slots=True, eq=False)
class _TextCondition(_KeyCondition):
    """A condition with a text as operand."""

    value: str

    @property
    def operand(self) -> Any:
        """Return the text."""
        return self.value

    def _checked(self, name: str, operand: Any) -> Any:
        return _require_text(self._what(name), operand)


class StartsWith(_TextCondition):
    """Holds if the value is a text that starts with this one."""

    __slots__ = ()
    type = "starts_with"


class EndsWith(_TextCondition):
    """Holds if the value is a text that ends with this one."""

    __slots__ = ()
    type = "ends_with"


@dataclass(frozen=True, slots=True, eq=False)
class Matches(_KeyCondition):
    """Holds if the value is a text in which this regular expression is found; write "^...$" for the whole text.

    Take no pattern from users or models: one such as "(a+)+$" can block the process for years on a short text.
    """

    type = "matches"
    pattern: str
    ignore_case: bool = False
    _regex: re.Pattern[str] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        _KeyCondition.__post_init__(self)  # slots=True makes a new class, so super() does not work here.
        try:
            object.__setattr__(self, "_regex", re.compile(self.pattern, re.IGNORECASE if self.ignore_case else 0))
        except (re.error, OverflowError, RecursionError) as error:
            raise ValueError(
                f"{self.pattern!r} is not a regular expression: {error}; see Python's module re for how to write one"
            ) from error

    def _checked(self, name: str, operand: Any) -> Any:
        if name == "pattern":
            return _require_text(self._what(name), operand)
        if not isinstance(operand, bool):
            raise TypeError(f"{self._what(name)} is True or False, not {operand!r}")
        return operand

    @property
    def operand(self) -> Any:
        """Return the compiled pattern."""
        return self._regex

    def _operand_text(self) -> str:
        return f"{self.pattern!r}{', in letters of any case' if self.ignore_case else ''}"

    def to_dict(self) -> dict[str, Any]:
        """Return the type, the key, the pattern, and `ignore_case` if it is set."""
        written: dict[str, Any] = {"type": self.type, "key": self.key, "pattern": self.pattern}
        return {**written, "ignore_case": True} if self.ignore_case else written


def _require_text(what: str, operand: object) -> str:
    if not isinstance(operand, str):
        raise TypeError(f"{what} is {operand!r}; give a text")
    return operand


_LEAVES: Final[Mapping[str, type[_KeyCondition]]] = {
    kind.type: kind
    for kind in (
        *(Exists, NotExists, Empty, NotEmpty, Equals, NotEquals, Contains, GreaterThan, LessThan, AtLeast, AtMost),
        *(ContainsAny, ContainsAll, StartsWith, EndsWith, Matches),
    )
}


class ConditionModel(BaseModel):
    """The JSON form of a condition. One model per shape keeps validation with the JSON schema linear in the depth."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    def condition(self) -> Condition:
        """Return the condition."""
        operands = self.model_dump(exclude={"type"}, exclude_unset=True)
        try:
            return _LEAVES[cast("Any", self).type](**operands)
        except (TypeError, RecursionError) as error:
            raise ValueError(str(error)) from error


Key: TypeAlias = Annotated[
    str, Field(pattern=r"^[^.]+(\.[^.]+)*$", description="An output key: score or result.score.")
]


class KeyEntry(ConditionModel):
    """Tests that there is a value, or something in it."""

    type: Literal["exists", "not_exists", "empty", "not_empty"]
    key: Key


class ValueEntry(ConditionModel):
    """Compares the value, or looks for a value in it."""

    type: Literal["equals", "not_equals", "contains"]
    key: Key
    value: Any


class BoundEntry(ConditionModel):
    """Compares the value with a bound."""

    type: Literal["greater_than", "less_than", "at_least", "at_most"]
    key: Key
    value: int | float | str


class ValuesEntry(ConditionModel):
    """Looks for several values in the value."""

    type: Literal["contains_any", "contains_all"]
    key: Key
    values: Annotated[list[Any], Field(min_length=1)]


class TextEntry(ConditionModel):
    """Compares the start or the end of a text."""

    type: Literal["starts_with", "ends_with"]
    key: Key
    value: str


class MatchesEntry(ConditionModel):
    """Searches a text for a regular expression of Python."""

    type: Literal["matches"]
    key: Key
    pattern: str
    ignore_case: bool = False


class JoinedEntry(ConditionModel):
    """Requires all or one of several conditions."""

    type: Literal["and", "or"]
    conditions: Annotated[list[ConditionEntry], Field(min_length=1)]

    def condition(self) -> Condition:
        """Return the condition."""
        return (And if self.type == And.type else Or)(*cast("list[Condition]", self.conditions))


class NotEntry(ConditionModel):
    """Negates a condition."""

    type: Literal["not"]
    condition_: ConditionEntry = Field(alias="condition")

    def condition(self) -> Condition:
        """Return the condition."""
        return Not(cast("Condition", self.condition_))


def _to_condition(entry: ConditionModel) -> Condition:
    return entry.condition()


ConditionEntry = TypeAliasType(
    "ConditionEntry",
    Annotated[
        Annotated[
            KeyEntry | ValueEntry | BoundEntry | ValuesEntry | TextEntry | MatchesEntry | JoinedEntry | NotEntry,
            Field(discriminator="type"),
        ],
        AfterValidator(_to_condition),
    ],
)
"""The JSON form of a condition, which pydantic reads as a `Condition`."""

JoinedEntry.model_rebuild()
NotEntry.model_rebuild()
_READER: Final[TypeAdapter[Any]] = TypeAdapter(ConditionEntry)


def require_flat(data: Any) -> Any:
    """Return the JSON of a condition. Raises ValueError if it is nested too deeply to be read."""
    level: list[Any] = [data]
    for _ in range(DEPTH_MAX):
        level = [inner for each in level for inner in _inner_of(each)]
        if not level:
            return data
    raise ValueError(_TOO_DEEP)


def _inner_of(data: Any) -> list[Any]:
    if not isinstance(data, Mapping):
        return []
    entry = cast("Mapping[str, Any]", data)
    several = entry.get("conditions")
    single = [entry["condition"]] if "condition" in entry else []
    return [*(cast("list[Any]", several) if isinstance(several, list) else ()), *single]


def condition_of(data: Any, path: str = "") -> Condition:
    """Read a condition that `to_dict` wrote. `path` is its place, for errors.

    Raises AgentWorkflowBuildError with all that is wrong.
    """
    try:
        return _READER.validate_python(require_flat(data))
    except ValidationError as error:
        found = problems_in(error, data, lambda place: _inside(path, path_of(place)))
        raise AgentWorkflowBuildError(list(found.values())) from error
    except ValueError as error:
        raise AgentWorkflowBuildError(f"{path}: {error}" if path else str(error)) from error


def _inside(path: str, inner: str) -> str:
    return f"{path}{'' if not path or not inner or inner.startswith('[') else '.'}{inner}"
