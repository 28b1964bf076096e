"""Plain data in answers: the schema and the run accept the same."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping, Sequence, Set as AbstractSet
from dataclasses import InitVar, dataclass, field
from datetime import UTC, date, datetime, time
from decimal import Decimal
from enum import Enum, IntFlag
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, NotRequired, TypeVar, Union, cast
from uuid import UUID

import pytest
from hypothesis import given, settings, strategies as st
from pydantic import BaseModel, ConfigDict, RootModel
from typing_extensions import TypedDict

from perdure.checkpoint import check_against, coerce
from perdure.checkpoint.commands import schema_of
from perdure.codec import Codec, Trust, plain_data
from perdure.types import is_instance_of

T = TypeVar("T")
Metres = NewType("Metres", float)


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Rights(IntFlag):
    READ = 1
    WRITE = 2


class Point(NamedTuple):
    x: int
    when: date | None = None


class Line(TypedDict):
    price: Decimal
    day: NotRequired[date]


@dataclass(frozen=True)
class Order:
    place: PurePosixPath
    lines: tuple[Point, ...] = ()
    by: UUID | None = None
    colours: frozenset[Colour] = frozenset()


@dataclass
class Signed:
    text: str
    by: InitVar[str] = "nobody"
    signature: str = field(init=False)

    def __post_init__(self, by: str) -> None:
        self.signature = by


@dataclass
class Box(Generic[T]):
    content: T


class Strict(BaseModel):
    model_config = ConfigDict(strict=True)

    day: date
    points: tuple[int, int] = (0, 0)


class Numbers(RootModel[list[int]]):
    pass


@dataclass
class Lost:
    inner: Nowhere  # noqa: F821  # pyright: ignore[reportUndefinedVariable] - the point of this class


@pytest.mark.parametrize(
    ("type_", "value", "made"),
    [
        (tuple[int, str], [1, "a"], (1, "a")),
        (tuple[Point, ...], [[1], [2, "2024-01-01"]], (Point(1), Point(2, date(2024, 1, 1)))),
        (tuple, [1, "a"], (1, "a")),
        (set[Colour], ["red", "blue", "red"], {Colour.RED, Colour.BLUE}),
        (frozenset, [1, 1], frozenset({1})),
        (deque[date], ["2024-01-01"], deque([date(2024, 1, 1)])),
        (Sequence[Point], [[1]], [Point(1)]),
        (AbstractSet[int], [1, 1], frozenset({1})),
        (Mapping[Colour, Decimal], {"red": "1.5"}, {Colour.RED: Decimal("1.5")}),
        (Point, [1, None], Point(1)),
        (Line, {"price": "2", "day": "2024-01-01"}, {"price": Decimal(2), "day": date(2024, 1, 1)}),
        (Order, {"place": "a/b", "colours": ["red"]}, Order(PurePosixPath("a/b"), colours=frozenset({Colour.RED}))),
        (Signed, {"text": "a", "by": "ann"}, Signed("a", "ann")),
        (Box[int], {"content": 1}, Box(1)),
        (datetime, "2024-01-01T12:00:00Z", datetime(2024, 1, 1, 12, tzinfo=UTC)),
        (time, "12:30", time(12, 30)),
        (UUID, "00000000-0000-0000-0000-000000000001", UUID(int=1)),
        (Path, "a/b", Path("a/b")),
        (Annotated[Decimal, "EUR"], "1.10", Decimal("1.10")),
        (list[Annotated[date, "day"]], ["2024-01-01"], [date(2024, 1, 1)]),
        (Metres, 3, 3.0),
        (int, 3.0, 3),
        (Rights, 3, Rights.READ | Rights.WRITE),
        (UUID | date | None, "2024-01-01", date(2024, 1, 1)),
        (Strict, {"day": "2024-01-01", "points": [1, 2]}, Strict(day=date(2024, 1, 1), points=(1, 2))),
        (Numbers, [1, 2], Numbers([1, 2])),
    ],
)
def test_plain_data_becomes(type_: Any, value: Any, made: Any) -> None:
    schema = schema_of(type_)
    assert schema is None or check_against(schema, value) is None
    assert coerce(value, type_) == made
    assert type(coerce(value, type_)) is type(made)
    assert coerce(made, type_) is made


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        (tuple[int, str], [1]),
        (tuple[int, ...], "12"),
        (set[int], ["a"]),
        (set[Any], [[1]]),
        (Point, [1, None, 2]),
        (Point, ["a"]),
        (Point, [None]),
        (Line, {"day": "2024-01-01"}),
        (Order, {"place": "a", "by": "nobody"}),
        (date, "yesterday"),
        (datetime, 5),
        (Decimal, "much"),
        (int, 1.5),
        (float, True),
        (Path, ["a"]),
        (Literal[Colour.RED], "blue"),
        (Strict, {"day": 5}),
        (Strict, "2024-01-01"),
        (Numbers, ["a"]),
    ],
)
def test_what_does_not_stand_for_a_value_is_not_made_one(type_: Any, value: Any) -> None:
    try:
        coerced = coerce(value, type_)
    except (TypeError, ValueError):
        return
    assert not is_instance_of(coerced, type_)


def test_a_class_whose_annotations_can_not_be_resolved_is_named() -> None:
    with pytest.raises(ValueError, match=r"Lost can't be made of data: .*Nowhere"):
        coerce({"inner": 5}, Lost)


def test_whatever_a_class_raises_the_data_does_not_fit() -> None:
    @dataclass
    class Picky:
        name: str

        def __post_init__(self) -> None:
            raise LookupError(self.name)

    with pytest.raises(ValueError, match="LookupError: x"):
        coerce({"name": "x"}, Picky)
    assert coerce({"name": "x"}, Picky | dict[str, str]) == {"name": "x"}


DATES = st.dates()
POINTS = st.builds(Point, st.integers(), st.none() | DATES)
VALUES: dict[Any, st.SearchStrategy[Any]] = {
    bool: st.booleans(),
    int: st.integers(),
    float: st.floats(allow_nan=False, allow_infinity=False),
    str: st.text(),
    None: st.none(),
    date: DATES,
    datetime: st.datetimes() | st.datetimes(timezones=st.just(UTC)),
    time: st.times(),
    UUID: st.uuids(),
    Decimal: st.decimals(allow_nan=False, allow_infinity=False),
    PurePosixPath: st.builds(PurePosixPath, st.sampled_from(["a", "a/b", "/"])),
    Rights: st.sampled_from([Rights.READ, Rights.READ | Rights.WRITE]),
    Point: POINTS,
    Line: st.fixed_dictionaries({"price": st.decimals(allow_nan=False, allow_infinity=False)}, optional={"day": DATES}),
    Order: st.builds(
        Order, st.builds(PurePosixPath, st.just("a")), st.lists(POINTS, max_size=2).map(tuple), st.none() | st.uuids()
    ),
    Strict: st.builds(Strict, day=DATES, points=st.tuples(st.integers(), st.integers())),
    Metres: st.floats(allow_nan=False, allow_infinity=False),
    Annotated[date, "day"]: DATES,
    Literal["a", 1]: st.sampled_from(["a", 1]),
}
HASHABLE = [bool, int, str, date, UUID, Decimal, Point, Order]


@st.composite
def typed_values(draw: st.DrawFn, depth: int = 2) -> tuple[Any, Any]:
    """A type and an instance of it."""
    shape = draw(st.sampled_from(["leaf", "list", "tuple", "pair", "set", "dict", "union"])) if depth else "leaf"
    inner = HASHABLE if shape == "set" else list(VALUES)
    if shape in {"leaf", "set"}:
        type_ = draw(st.sampled_from(inner))
        values = VALUES[type_]
        return (type_, draw(values)) if shape == "leaf" else (set[type_], set(draw(st.lists(values, max_size=3))))
    type_, value = draw(typed_values(depth - 1))
    other, second = draw(typed_values(depth - 1))
    match shape:
        case "list":
            return list[type_], [value] * draw(st.integers(0, 2))
        case "tuple":
            return tuple[type_, ...], (value,) * draw(st.integers(0, 2))
        case "pair":
            return tuple[type_, other], (value, second)
        case "dict":
            return dict[str, type_], {"a": value}
        case _:
            return Union[type_, other], value  # noqa: UP007 - not all of them know the bar


def as_json(value: Any) -> Any:
    """What a program writes into JSON for a value."""
    match value:
        case Enum():
            return value.value
        case BaseModel():
            return json.loads(value.model_dump_json())
        case Order():
            return {name: as_json(item) for name, item in vars(value).items()}
        case dict():
            return {key: as_json(item) for key, item in cast("dict[str, Any]", value).items()}
        case list() | tuple() | set() | frozenset():
            return [as_json(item) for item in cast("list[Any]", value)]
        case date() | time():
            return value.isoformat()
        case UUID() | Decimal() | PurePosixPath():
            return str(value)
        case _:
            return value


@settings(deadline=None)  # the library for schemas is loaded when first used
@given(typed_values())
def test_what_the_schema_accepts_of_a_value_as_json_the_run_accepts(pair: tuple[Any, Any]) -> None:
    type_, value = pair
    data = json.loads(json.dumps(as_json(value)))
    schema = schema_of(type_)
    assert schema is None or check_against(schema, data) is None
    assert is_instance_of(coerce(data, type_), type_)


ORDER = {"place": "a", "lines": list[Any](), "by": None, "colours": list[Any]()}


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (Order(PurePosixPath("a"), (Point(1),)), {**ORDER, "lines": [{"x": 1, "when": None}]}),
        (Strict(day=date(2024, 1, 1)), {"day": "2024-01-01", "points": [0, 0]}),
        ({1: Colour.RED, "a": {2}}, {"1": "RED", "a": [2]}),
        ([b"a", bytes(2000), Decimal("1.0"), UUID(int=1)], ["YQ==", "AAAA" * 666 + "AAA=", "1.0", str(UUID(int=1))]),
        (datetime(2024, 1, 1, tzinfo=UTC), "2024-01-01T00:00:00+00:00"),
        ([list[int], int | None], ["builtins:list", ["builtins:int", "builtins:NoneType"]]),
    ],
)
def test_a_stored_value_is_plain_data_to_whom_its_types_are_unknown(value: Any, plain: Any) -> None:
    encoded = Codec(Trust.of([Order, Strict, Colour, Point])).encode(value, path="it")
    seen = plain_data(encoded.text, {blob.hash: blob.data for blob in encoded.blobs}, path="it")
    assert json.loads(json.dumps(seen)) == seen
    assert seen == plain
