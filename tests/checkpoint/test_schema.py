"""The JSON Schema of answers: what it says of a type, and that it refuses nothing that a run would take."""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import InitVar, dataclass, field
from datetime import date, datetime
from decimal import Decimal
from enum import Enum, IntEnum, IntFlag
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, NotRequired, Protocol, TypeVar, Union
from uuid import UUID

import pytest
from hypothesis import example, given, strategies as st
from jsonschema import Draft202012Validator
from pydantic import BaseModel, ConfigDict
from typing_extensions import TypeAliasType, TypedDict

from perdure.checkpoint import check_against, coerce
from perdure.checkpoint.commands import schema_of
from perdure.types import is_instance_of

T = TypeVar("T")


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    LOW = 0
    HIGH = 1


class Rights(IntFlag):
    READ = 1
    WRITE = 2


class Loose(Enum):
    ANY = "any"

    @classmethod
    def _missing_(cls, value: object) -> "Loose":
        del value
        return cls.ANY


class Pair(Enum):
    BOTH = (1, 2)


@dataclass
class Line:
    item: str
    price: float = 0.0
    colour: Colour | None = None


@dataclass
class Order:
    lines: list[Line]
    by: InitVar[str] = "nobody"
    total: float = field(init=False, default=0.0)
    notes: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass
class Tree:
    value: int
    branches: "list[Tree]" = field(default_factory=list["Tree"])


@dataclass
class Lost:
    what: "Unheard"  # noqa: F821 # pyright: ignore[reportUndefinedVariable] - can't be resolved


@dataclass
class Box(Generic[T]):
    content: T


class Address(TypedDict):
    street: str
    number: NotRequired[int]


class Point(NamedTuple):
    x: int
    y: int = 0


class Inner(BaseModel):
    n: int


class Model(BaseModel):
    inner: Inner
    name: str = "m"


class Opaque(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    what: Callable[[], object]


class Speaks(Protocol):
    def speak(self) -> str: ...


UserId = NewType("UserId", str)
Json = TypeAliasType("Json", "dict[str, Json] | list[Json] | str | int | float | bool | None")


@pytest.mark.parametrize(
    ("type_", "schema"),
    [
        (bool, {"type": "boolean"}),
        (int, {"type": "integer"}),
        (float, {"type": "number"}),
        (str, {"type": "string"}),
        (None, {"type": "null"}),
        (Any, {}),
        (object, {}),
        (list[int], {"type": "array", "items": {"type": "integer"}}),
        (set[str], {"type": "array", "items": {"type": "string"}}),
        (tuple[int, ...], {"type": "array", "items": {"type": "integer"}}),
        (
            tuple[int, str],
            {"type": "array", "minItems": 2, "maxItems": 2, "prefixItems": [{"type": "integer"}, {"type": "string"}]},
        ),
        (dict[str, int], {"type": "object", "additionalProperties": {"type": "integer"}}),
        (Literal["yes", "no", 3, True], {"enum": ["yes", "no", 3, True]}),
        (Colour, {"enum": ["red", "blue"], "title": "Colour", "type": "string"}),
        (Rights, {"type": "integer", "title": "Rights"}),
        (int | None, {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
        (Annotated[int, ["unhashable"]], {"type": "integer"}),
        (UserId, {"type": "string"}),
        (datetime, {"type": "string", "format": "date-time"}),
        (date, {"type": "string", "format": "date"}),
        (UUID, {"type": "string", "format": "uuid"}),
        (Decimal, {"anyOf": [{"type": "number"}, {"type": "string"}]}),
        (Path, {"type": "string", "format": "path"}),
        (
            Address,
            {
                "type": "object",
                "title": "Address",
                "properties": {"street": {"type": "string"}, "number": {"type": "integer"}},
                "required": ["street"],
            },
        ),
    ],
)
def test_a_type_is_described_as(type_: Any, schema: dict[str, Any]) -> None:
    assert schema_of(type_) == schema


@pytest.mark.parametrize("type_", [Speaks, Callable[[int], str], Lost, Opaque, int | Speaks, "a text", [int]])
def test_what_can_not_be_described_has_no_schema(type_: Any) -> None:
    assert schema_of(type_) is None


def test_a_dataclass_is_described_without_room_for_unknown_fields() -> None:
    schema = schema_of(Order)
    assert schema is not None
    assert {"lines", "by", "notes"} <= schema["properties"].keys()
    assert schema["required"] == ["lines"]
    assert check_against(schema, {"lines": [], "unknown": 1}) is not None


def test_a_class_that_contains_itself_is_described_and_checked_to_any_depth() -> None:
    for type_, value in ((Tree, {"value": 1, "branches": [{"value": "x"}]}), (list[Tree], [{"value": "x"}])):
        schema = schema_of(type_)
        assert schema is not None
        reason = check_against(schema, value)
        assert reason is not None
        assert reason.endswith(".value: 'x' is not of type 'integer'")


def test_an_alias_that_names_itself_comes_to_an_end() -> None:
    schema = schema_of(Json)
    assert schema is not None
    assert check_against(schema, {"a": [1, {"b": None}]}) is None


def test_two_classes_of_one_name_are_told_apart() -> None:
    @dataclass
    class Line:  # pyright: ignore[reportRedeclaration] - the name is the point
        weight: int

    outer = schema_of(list[Line] | list[globals()["Line"]])
    assert outer is not None
    assert len([name for name in outer["$defs"] if name.endswith("Line")]) == 2


def test_models_inside_of_other_types_keep_their_own_definitions() -> None:
    schema = schema_of(dict[str, Model])
    assert schema is not None
    assert check_against(schema, {"a": {"inner": {"n": 1}}}) is None
    assert check_against(schema, {"a": {"inner": {"n": "x"}}}) == "at $.a.inner.n: 'x' is not of type 'integer'"


@pytest.mark.parametrize(
    ("type_", "value", "reason"),
    [
        (bool, "yes", "'yes' is not of type 'boolean'"),
        (Colour, "green", "'green' is not one of ['red', 'blue']"),
        (Line, {"price": 1}, "'item' is a required property"),
        (list[Line], [{"item": "a"}, {"item": 2}], "at $[1].item: 2 is not of type 'string'"),
        (dict[Colour, int], {"green": 1}, "'green' is not one of ['red', 'blue']"),
        (tuple[int, str], [1], "[1] is too short"),
    ],
)
def test_the_reason_says_where_and_why_an_answer_does_not_fit(type_: Any, value: Any, reason: str) -> None:
    schema = schema_of(type_)
    assert schema is not None
    assert check_against(schema, value) == reason


def test_a_schema_never_makes_the_check_fetch_what_it_refers_to() -> None:
    reason = check_against({"$ref": "https://example.org/schema"}, 1)
    assert reason == "the schema refers to 'https://example.org/schema', which it does not contain"


def test_a_pattern_is_checked() -> None:
    schema = {"type": "string", "pattern": r"^[A-Z]{3}-\d{4}$"}
    assert check_against(schema, "ABC-1234") is None
    assert check_against(schema, "xABC-1234") == r"'xABC-1234' does not match '^[A-Z]{3}-\\d{4}$'"


@pytest.mark.parametrize("pattern", [r"(?=a)a", r"^(?x) a { 3 0 }", r"([ab]?){30000}[cd]", r"\w{1000}", 17, "("])
def test_a_pattern_of_another_dialect_or_of_great_cost_refuses_nothing(pattern: object) -> None:
    assert check_against({"type": "string", "pattern": pattern}, "b" * 1000) is None


def test_a_pattern_with_nested_quantifiers_takes_linear_time() -> None:
    # Python's own engine would take longer than the universe lasts.
    text = "a" * 10_000 + "b"
    assert check_against({"pattern": "^(a+)+$"}, text) == f"{text!r} does not match '^(a+)+$'"


def doubling(levels: int) -> dict[str, Any]:
    """Return a small schema whose check takes 2**levels steps."""
    defs = {str(level): {"allOf": [{"$ref": f"#/$defs/{level + 1}"}] * 2} for level in range(levels)}
    return {"$ref": "#/$defs/0", "$defs": {**defs, str(levels): {"type": "integer"}}}


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(levels):
        schema = {"allOf": [schema]}
    return schema


DRAFT_7 = {"$schema": "http://json-schema.org/draft-07/schema#"}


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]},
        {"properties": {"a": {"$ref": "#"}}, "unevaluatedProperties": False, "$ref": "#"},
        {"$dynamicRef": "#a", "$dynamicAnchor": "a"},
        doubling(100),
        deep(20_000),
        {"enum": list(range(30_000))},
        {"items": {"anyOf": [{"const": number} for number in range(1000)]}},
        {"patternProperties": {"^(a+)+$": {}}, "additionalProperties": False},
        {"allOf": [{**DRAFT_7, "items": {"pattern": "^(a+)+$"}}]},
        {"properties": {"a": {**DRAFT_7, "patternProperties": {"^(a+)+$": {}}}}},
        {"type": "unheard of"},
        {"type": {"a": 1}, "items": 3, "properties": [], "required": 7, "minimum": "a"},
        {"allOf": 3},
        {"minLength": "a", "multipleOf": 0, "maxItems": None},
    ],
    ids=range(15),
)
def test_a_hostile_schema_does_no_harm(schema: dict[str, Any]) -> None:
    text = "a" * 50 + "b"
    values: list[Any] = [[text] * 2000, {"a": {"a": {}}, text: 1}, text]
    for value in values:
        reason = check_against(schema, value)
        assert reason is None or "is not" in reason


def test_a_schema_that_only_refers_to_itself_refuses_nothing() -> None:
    assert check_against({"$ref": "#"}, 1) is None


SIMPLE: st.SearchStrategy[Any] = st.sampled_from(
    [
        *(bool, int, float, str, None, Any, UserId, datetime, list, dict, Json, Speaks),
        *(Colour, Level, Rights, Loose, Literal["red", 1, True], Line, Order, Tree, Address, Point),
    ]
)
TYPES: st.SearchStrategy[Any] = SIMPLE | st.recursive(
    SIMPLE,
    lambda inner: st.one_of(
        inner.map(lambda type_: list[type_]),
        inner.map(lambda type_: dict[str, type_]),
        inner.map(lambda type_: dict[Colour, type_]),
        inner.map(lambda type_: Mapping[str, type_]),
        inner.map(lambda type_: tuple[type_, ...]),
        st.tuples(inner, inner).map(lambda pair: Union[pair]),  # noqa: UP007 - not all of them know the bar
    ),
    max_leaves=4,
)
NUMBERS = st.sampled_from([-1, 0, 1, 2, 3, 0.0, 1.0, 1.5])
TEXTS = st.sampled_from(["red", "blue", "x", ""])
LEAVES: st.SearchStrategy[Any] = st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS)
FIELDS = ["item", "price", "colour", "lines", "by", "notes", "total", "value", "branches", "street", "number"]
NAMES = st.sampled_from([*FIELDS, "red", "blue"])
DATA: st.SearchStrategy[Any] = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=6
)
LINES = st.fixed_dictionaries({"item": TEXTS}, optional={"price": NUMBERS, "colour": TEXTS})
FITTING: dict[Any, st.SearchStrategy[Any]] = {
    Line: LINES,
    Order: st.fixed_dictionaries({"lines": st.lists(LINES, max_size=2)}, optional={"notes": DATA, "by": TEXTS}),
    Tree: st.recursive(
        st.fixed_dictionaries({"value": NUMBERS}),
        lambda inner: st.fixed_dictionaries({"value": NUMBERS, "branches": st.lists(inner, max_size=2)}),
        max_leaves=3,
    ),
    Address: st.fixed_dictionaries({"street": TEXTS}, optional={"number": NUMBERS, "more": LEAVES}),
}


def data_for(type_: Any) -> st.SearchStrategy[Any]:
    """Data that often fits a type."""
    args: tuple[Any, ...] = getattr(type_, "__args__", ())
    match getattr(type_, "__origin__", None):
        case origin if origin is list or origin is tuple:
            return st.lists(data_for(args[0]), max_size=3) | DATA
        case origin if origin in {dict, Mapping}:
            return st.dictionaries(NAMES, data_for(args[1]), max_size=3) | DATA
        case _ if args and not isinstance(args[0], (str, int)):
            return st.one_of(*(data_for(member) for member in args))
        case _:
            return FITTING.get(type_, LEAVES) | DATA


def is_taken(value: Any, type_: Any) -> bool:
    try:
        return is_instance_of(coerce(value, type_), type_)
    except (TypeError, ValueError):
        return False


@given(st.data())
def test_what_a_run_would_take_is_not_refused(data: st.DataObject) -> None:
    type_ = data.draw(TYPES)
    schema = schema_of(type_)
    value = data.draw(data_for(type_))
    if schema is not None and is_taken(value, type_):
        assert check_against(schema, value) is None


@pytest.mark.parametrize(("type_", "value"), [(int, True), (Level, True), (Level, 1.0), (float, 1), (Rights, 3)])
def test_where_python_is_lax_the_check_is_too(type_: Any, value: Any) -> None:
    schema = schema_of(type_)
    assert schema is not None
    assert is_taken(value, type_)
    assert check_against(schema, value) is None


@given(TYPES)
@example(list[Model])
def test_every_schema_is_a_valid_one_and_plain_json(type_: Any) -> None:
    schema = schema_of(type_)
    if schema is not None:
        Draft202012Validator.check_schema(schema)
        assert json.loads(json.dumps(schema)) == schema


def test_importing_perdure_loads_neither_library() -> None:
    program = "import sys, perdure.checkpoint; print({'jsonschema', 'pydantic'} & sys.modules.keys())"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert ran.stdout == "set()\n"
