"""Conditions over the outputs of a node, as data: one table of operators, and one union of their JSON forms.

A condition is total: for every output it holds or it does not. A missing key, or a value of a kind that the operator
does not know, makes it not hold. `NotEquals`, `NotExists` and `Empty` hold for a missing key.

`GreaterThan` and its siblings compare numbers with a number as bound, also texts that are nothing but a number: "7" is
greater than 5. With a text as bound they compare texts by code points: "2031-05-01" is before "2031-06-01".
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass as plain_dataclass, fields
from decimal import Decimal
from typing import Annotated, Any, ClassVar, Final, Literal, TypeAlias, Union, cast

from pydantic import (
    AfterValidator,
    ConfigDict,
    Discriminator,
    Field,
    GetPydanticSchema,
    JsonValue,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    Tag,
    TypeAdapter,
    ValidationError,
    WrapValidator,
    with_config,
)
from pydantic.dataclasses import dataclass
from pydantic_core.core_schema import no_info_before_validator_function
from typing_extensions import TypeAliasType, TypedDict

from perdure.agent_workflows.errors import AgentWorkflowBuildError, path_of, problems_in

MISSING: Final = object()
"""Marks a value that is not there; None is a value."""
_INDEX: Final = re.compile(r"0|[1-9]\d{0,8}", re.ASCII)
_NUMBER: Final = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,4})?", re.ASCII)
_CONFIG: Final = ConfigDict(extra="forbid", allow_inf_nan=False)


def look_up(outputs: Any, key: str) -> Any:
    """Return the value at a dotted path, or MISSING.

    A key that exists as written wins. Otherwise its first part must lead to a dict, or as a number into a list.
    """
    whole = look_inside(outputs, key)
    head, _, rest = key.partition(".")
    if whole is not MISSING or not rest:
        return whole
    return look_up(look_inside(outputs, head), rest)


def look_inside(value: Any, key: str) -> Any:
    """Return the entry of a dict, or the element of a list by its number; MISSING if there is none."""
    if isinstance(value, Mapping):
        return cast("Mapping[str, Any]", value).get(key, MISSING)
    if isinstance(value, list | tuple) and is_index(key):
        elements = cast("list[Any]", value)
        return elements[int(key)] if int(key) < len(elements) else MISSING
    return MISSING


def is_index(key: str) -> bool:
    """Return True if a key is the number of a list element."""
    return _INDEX.fullmatch(key) is not None


def is_same(one: Any, other: Any) -> bool:
    """Return True if two values are the same JSON: 1 is 1.0 but not True, and "7" is not 7."""
    if isinstance(one, bool) or isinstance(other, bool) or one is None:
        return one is other
    if any(isinstance(one, kind) and isinstance(other, kind) for kind in (str, int | float)):
        return one == other
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        ones, others = cast("list[Any]", one), cast("list[Any]", other)
        return len(ones) == len(others) and all(map(is_same, ones, others))
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        ours, theirs = cast("Mapping[str, Any]", one), cast("Mapping[str, Any]", other)
        return ours.keys() == theirs.keys() and all(is_same(value, theirs[key]) for key, value in ours.items())
    return False


def _exists(value: Any) -> bool:
    return value is not MISSING and value is not None


def _is_empty(value: Any) -> bool:
    if isinstance(value, str):
        return not value.strip()
    return not _exists(value) or (isinstance(value, list | tuple | Mapping) and not value)


def _contains(value: Any, part: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(is_same(each, part) for each in cast("list[Any]", value))
    return isinstance(value, str | Mapping) and isinstance(part, str) and part in value


def _compare(value: Any, bound: float | str) -> int | None:
    """Return -1, 0 or 1 for less, equal or greater; None if the two cannot be compared."""
    if isinstance(bound, str):
        return _sign(value, bound) if isinstance(value, str) else None
    if isinstance(value, str) and _NUMBER.fullmatch(text := value.strip()):
        # Compare as written: as a float 0.8 is a little more than the "0.8" of a model.
        return _sign(Decimal(text), Decimal(repr(bound)) if isinstance(bound, float) else bound)
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and value == value  # noqa: PLR0124 - NaN
    return _sign(value, bound) if is_number else None


def _sign(one: Any, other: Any) -> int:
    return (one > other) - (one < other)


_Operator: TypeAlias = tuple[Callable[[Any, Any], bool], str]
OPERATORS: Final[Mapping[str, _Operator]] = {
    "exists": (lambda value, _: _exists(value), "exists"),
    "not_exists": (lambda value, _: not _exists(value), "does not exist"),
    "empty": (lambda value, _: _is_empty(value), "is empty"),
    "not_empty": (lambda value, _: not _is_empty(value), "is not empty"),
    "equals": (is_same, "== {}"),
    "not_equals": (lambda value, other: not is_same(value, other), "!= {}"),
    "greater_than": (lambda value, bound: _compare(value, bound) == 1, "> {}"),
    "less_than": (lambda value, bound: _compare(value, bound) == -1, "< {}"),
    "at_least": (lambda value, bound: _compare(value, bound) in {0, 1}, ">= {}"),
    "at_most": (lambda value, bound: _compare(value, bound) in {0, -1}, "<= {}"),
    "contains": (_contains, "contains {}"),
    "contains_any": (lambda value, parts: any(_contains(value, each) for each in parts), "contains any of {}"),
    "contains_all": (lambda value, parts: all(_contains(value, each) for each in parts), "contains all of {}"),
    "starts_with": (lambda value, text: isinstance(value, str) and value.startswith(text), "starts with {}"),
    "ends_with": (lambda value, text: isinstance(value, str) and value.endswith(text), "ends with {}"),
    "matches": (lambda value, regex: isinstance(value, str) and regex.search(value) is not None, "matches {}"),
}
"""The meaning of a condition over one key: a test of the value with the operand, and its words for people."""


class Condition(ABC):
    """A question about the outputs of a node. Combine conditions with `one & other`, `one | other` and `~one`.

    A condition is data: `to_dict` writes it and `condition_of` reads it back. Conditions are equal if their written
    forms are. A wrong operand raises pydantic's ValidationError, which is a ValueError.
    """

    type: ClassVar[str]
    """The name of the condition in JSON."""

    def __init_subclass__(cls, type: str | None = None) -> None:  # noqa: A002 - the name in JSON
        """Set the name of the condition in JSON."""
        if type is not None:
            cls.type = type

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


class _Compound(Condition):
    """A condition that is made of others."""

    conditions: tuple[Condition, ...]

    def fields(self) -> frozenset[str]:
        """Return the keys of all parts."""
        return frozenset[str]().union(*(each.fields() for each in self.conditions))

    def paths(self) -> frozenset[str]:
        """Return the paths of all parts."""
        return frozenset[str]().union(*(each.paths() for each in self.conditions))


@plain_dataclass(frozen=True, eq=False, init=False)
class _Joined(_Compound):
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


class And(_Joined, type="and"):
    """Holds if all its conditions hold."""

    def holds(self, outputs: Mapping[str, Any]) -> bool:
        """Return True if all hold."""
        return all(condition.holds(outputs) for condition in self.conditions)


class Or(_Joined, type="or"):
    """Holds if one of its conditions holds."""

    def holds(self, outputs: Mapping[str, Any]) -> bool:
        """Return True if one holds."""
        return any(condition.holds(outputs) for condition in self.conditions)


@plain_dataclass(frozen=True, eq=False)
class Not(_Compound, type="not"):
    """Holds if its condition does not, so also for a missing key."""

    condition: Condition

    def __post_init__(self) -> None:
        object.__setattr__(self, "conditions", _require_conditions("Not", (self.condition,)))

    def holds(self, outputs: Mapping[str, Any]) -> bool:
        """Return True if the condition does not hold."""
        return not self.condition.holds(outputs)

    def describe(self) -> str:
        """Put "not" before the description."""
        return f"not ({self.condition.describe()})"

    def to_dict(self) -> dict[str, Any]:
        """Return the inner condition under `condition`."""
        return {"type": self.type, "condition": self.condition.to_dict()}

    def __invert__(self) -> Condition:
        return self.condition


def _require_conditions(name: str, conditions: tuple[Condition, ...]) -> tuple[Condition, ...]:
    if not conditions:
        raise ValueError(f"{name} has no conditions; give at least one")
    for condition in conditions:
        if not isinstance(condition, Condition):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be untyped
            raise TypeError(f"{name} is made of conditions, such as Equals('intent', 'billing'), not of {condition!r}")
    return conditions


Key: TypeAlias = Annotated[
    StrictStr, Field(pattern=r"^[^.]+(\.[^.]+)*$", description="An output key: score or result.score.")
]


def read_as(form: Any) -> GetPydanticSchema:
    """Read a field in another form than its annotation says."""
    return GetPydanticSchema(lambda _, handler: handler(form))


@dataclass(frozen=True, eq=False, config=_CONFIG)
class _KeyCondition(Condition):
    """A condition over one key, whose meaning is in the table of operators. A second field is its operand."""

    key: Key

    def _operand(self) -> Any:
        return next((getattr(self, each.name) for each in fields(self)[1:]), None)

    def holds(self, outputs: Mapping[str, Any]) -> bool:
        """Apply the operator to the value of the key."""
        test, _ = OPERATORS[self.type]
        return test(look_up(outputs, self.key), self._operand())

    def describe(self) -> str:
        """Return the key, and the words of the operator with its operand."""
        _, words = OPERATORS[self.type]
        return f"{self.key if self.key.isprintable() else repr(self.key)} {words.format(self._operand_text())}"

    def _operand_text(self) -> str:
        return repr(self._operand())

    def to_dict(self) -> dict[str, Any]:
        """Return the type, the key and the operand."""
        written = {each.name: getattr(self, each.name) for each in fields(self)}
        if written.get("ignore_case") is False:
            del written["ignore_case"]
        return json.loads(json.dumps({"type": self.type, **written}))

    def fields(self) -> frozenset[str]:
        """Return the first part of the key."""
        return frozenset({self.key.partition(".")[0]})

    def paths(self) -> frozenset[str]:
        """Return the key."""
        return frozenset({self.key})


class Exists(_KeyCondition, type="exists"):
    """Holds if there is a value other than None. False, 0 and "" are values."""


class NotExists(_KeyCondition, type="not_exists"):
    """Holds if the key is missing or its value is None."""


class Empty(_KeyCondition, type="empty"):
    """Holds if the value is missing, None, a text of white space, or an empty list or dict. Numbers are never empty."""


class NotEmpty(_KeyCondition, type="not_empty"):
    """Holds if `Empty` does not."""


@dataclass(frozen=True, eq=False, config=_CONFIG)
class _ValueCondition(_KeyCondition):
    value: Annotated[Any, read_as(JsonValue)]


class Equals(_ValueCondition, type="equals"):
    """Holds if the value is this one. 1 equals 1.0; True is not 1, "7" is not 7, and a missing key is not None."""


class NotEquals(_ValueCondition, type="not_equals"):
    """Holds if `Equals` does not, so also for a missing key."""


class Contains(_ValueCondition, type="contains"):
    """Holds if a text contains this text, a list this element, or a dict this key."""


@dataclass(frozen=True, eq=False, config=_CONFIG)
class _BoundCondition(_KeyCondition):
    value: StrictInt | StrictFloat | StrictStr


class GreaterThan(_BoundCondition, type="greater_than"):
    """Holds if the value is greater than the bound."""


class LessThan(_BoundCondition, type="less_than"):
    """Holds if the value is less than the bound."""


class AtLeast(_BoundCondition, type="at_least"):
    """Holds if the value is the bound or greater."""


class AtMost(_BoundCondition, type="at_most"):
    """Holds if the value is the bound or less."""


@dataclass(frozen=True, eq=False, config=_CONFIG)
class _ValuesCondition(_KeyCondition):
    values: Annotated[Iterable[Any], read_as(Annotated[tuple[JsonValue, ...], Field(min_length=1)])]

    def _operand_text(self) -> str:
        return ", ".join(map(repr, self.values))


class ContainsAny(_ValuesCondition, type="contains_any"):
    """Holds if `Contains` holds for one of the values."""


class ContainsAll(_ValuesCondition, type="contains_all"):
    """Holds if `Contains` holds for each of the values."""


@dataclass(frozen=True, eq=False, config=_CONFIG)
class _TextCondition(_KeyCondition):
    value: StrictStr


class StartsWith(_TextCondition, type="starts_with"):
    """Holds if the value is a text that starts with this one."""


class EndsWith(_TextCondition, type="ends_with"):
    """Holds if the value is a text that ends with this one."""


def _require_pattern(pattern: str) -> str:
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"{pattern!r} is not a regular expression: {error}; see Python's module re") from error
    return pattern


@dataclass(frozen=True, eq=False, config=_CONFIG)
class Matches(_KeyCondition, type="matches"):
    """Holds if the value is a text in which this regular expression is found; write "^...$" for the whole text.

    Take no pattern from users or models: one such as "(a+)+$" can block the process for years on a short text.
    """

    pattern: Annotated[StrictStr, AfterValidator(_require_pattern)]
    ignore_case: StrictBool = False

    def _operand(self) -> re.Pattern[str]:
        return re.compile(self.pattern, re.IGNORECASE if self.ignore_case else 0)

    def _operand_text(self) -> str:
        return f"{self.pattern!r}{', in letters of any case' if self.ignore_case else ''}"


class Tagged:
    """Read a class from JSON that names it by its `type`, beside its fields."""

    def __init__(self, tag: str) -> None:
        self._tag = tag

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        return no_info_before_validator_function(_without_type, handler(source))

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        written = handler(schema)
        own = handler.resolve_ref_schema(written)
        own["properties"] = {**own["properties"], "type": {"const": self._tag, "type": "string"}}
        own["required"] = list(dict.fromkeys(["type", *own.get("required", ())]))
        return written


def _without_type(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    return {key: each for key, each in cast("Mapping[str, Any]", value).items() if key != "type"}


def tag_of(value: Any) -> str | None:
    """Return the `type` of a JSON object."""
    tag = cast("Mapping[str, Any]", value).get("type") if isinstance(value, Mapping) else None
    return tag if isinstance(tag, str) else None


@with_config(_CONFIG)
class JoinedForm(TypedDict):
    """Requires all or one of several conditions."""

    type: Literal["and", "or"]
    conditions: Annotated[list[AnyCondition], Field(min_length=1)]


@with_config(_CONFIG)
class NotForm(TypedDict):
    """Negates a condition."""

    type: Literal["not"]
    condition: AnyCondition


_LEAVES: Final = (
    *(Exists, NotExists, Empty, NotEmpty, Equals, NotEquals, Contains, GreaterThan, LessThan, AtLeast, AtMost),
    *(ContainsAny, ContainsAll, StartsWith, EndsWith, Matches),
)
_FORMS: Final[Any] = Union[
    (
        *(Annotated[kind, Tagged(kind.type), Tag(kind.type)] for kind in _LEAVES),
        Annotated[JoinedForm, AfterValidator(lambda form: And(*form["conditions"])), Tag(And.type)],
        Annotated[JoinedForm, AfterValidator(lambda form: Or(*form["conditions"])), Tag(Or.type)],
        Annotated[NotForm, AfterValidator(lambda form: Not(form["condition"])), Tag(Not.type)],
    )
]


def _read(value: Any, validate: Callable[[Any], Condition]) -> Condition:
    return value if isinstance(value, Condition) else validate(value)


AnyCondition = TypeAliasType(
    "AnyCondition", Annotated[Condition, read_as(Annotated[_FORMS, Discriminator(tag_of), WrapValidator(_read)])]
)
"""A condition, or its JSON form."""
_READER: Final[TypeAdapter[Condition]] = TypeAdapter(AnyCondition)


def condition_of(data: Any, path: str = "") -> Condition:
    """Read a condition that `to_dict` wrote. `path` is its place, for errors.

    Raises AgentWorkflowBuildError with all that is wrong.
    """
    try:
        return _READER.validate_python(data)
    except ValidationError as error:
        found = problems_in(error, data, lambda place: path_of(place, path))
        raise AgentWorkflowBuildError(list(found.values())) from error
