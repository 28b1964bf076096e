"""Whatever the codec takes comes back equal, of the same types throughout."""

from __future__ import annotations

import json
import math
import typing
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, Flag, IntEnum, IntFlag, StrEnum, auto
from fractions import Fraction
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Annotated, Any, Generic, Literal, NamedTuple, Optional, TypeVar, Union
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings, strategies as st
from pydantic import BaseModel, RootModel

from perdure.codec import Codec, Encoded, Trust, references

T = TypeVar("T")


class Colour(Enum):
    RED = "r"
    CRIMSON = "r"  # noqa: PIE796  an alias
    BLUE = object()


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Word(StrEnum):
    YES = "yes"


class Access(Flag):
    READ = auto()
    WRITE = auto()
    RUN = auto()


class Bits(IntFlag):
    A = 1
    B = 2


@dataclass
class Open:
    a: Any
    b: Any = None


@dataclass(frozen=True, slots=True)
class Closed:
    a: Any
    b: Any = None


@dataclass(kw_only=True)
class Derived(Open):
    c: Any = field(init=False, default_factory=list[Any])


class Pair(NamedTuple):
    left: Any
    right: Any = 0


class Model(BaseModel):
    a: Any
    b: Any = None


class Box(BaseModel, Generic[T]):
    item: T


class Items(RootModel[list[int]]):
    pass


@dataclass
class Shelf(Generic[T]):
    items: list[T]


DECLARED = (*(Colour, Level, Word, Access, Bits, Open, Closed, Derived, Pair), *(Model, Box[int], Items, Shelf[int]))
codec = Codec(Trust.of(DECLARED))


def decoded(encoded: Encoded) -> Any:
    return codec.decode(encoded.text, {blob.hash: blob.data for blob in encoded.blobs}, path="it")


def assert_same(got: Any, expected: Any) -> None:
    """Equal, and of exactly the same types throughout. A nan is the same as a nan."""
    cls = typing.cast("Any", type(expected))
    assert type(got) is cls
    if cls in (int, str, bytes):
        assert got == expected
        return
    for attribute in ("fold", "tzinfo", "maxlen", "default_factory", "model_fields_set"):
        assert getattr(got, attribute, None) == getattr(expected, attribute, None)
    if issubclass(cls, BaseModel) or is_dataclass(cls):
        assert_same(_content(got), _content(expected))
    elif issubclass(cls, dict):
        assert_same(list(got.items()), list(expected.items()))
    elif cls in (set, frozenset):
        assert sorted(map(_shown, got)) == sorted(map(_shown, expected))
    elif issubclass(cls, list | tuple | deque):
        for inner_got, inner in zip(got, expected, strict=True):
            assert_same(inner_got, inner)
    elif cls in (float, complex, Decimal):
        assert repr(got) == repr(expected)
    else:
        assert got == expected


def _content(value: Any) -> dict[str, Any]:
    if isinstance(value, BaseModel):
        return vars(value)
    return {blob.name: getattr(value, blob.name) for blob in fields(value)}


def _shown(value: Any) -> str:
    """A text that is the same for the same elements of a set, whatever their order."""
    if isinstance(value, frozenset):
        return f"frozenset {sorted(map(_shown, typing.cast('frozenset[Any]', value)))}"
    if isinstance(value, Closed):
        return f"Closed {_shown((value.a, value.b))}"
    if isinstance(value, tuple):
        elements = list(map(_shown, typing.cast("tuple[Any, ...]", value)))
        return f"{type(typing.cast('Any', value)).__name__} {elements}"
    return f"{type(value)} {value!r}"


offsets = st.timedeltas(min_value=timedelta(hours=-23), max_value=timedelta(hours=23))
zones = st.one_of(
    st.none(),
    st.just(UTC),
    st.sampled_from(["Europe/Berlin", "America/St_Johns", "UTC"]).map(ZoneInfo),
    st.builds(timezone, offsets),
    st.builds(timezone, offsets, st.text(max_size=5)),
)
paths = st.text(st.characters(exclude_characters="\0"), max_size=9)
flags = [*Access, Access.READ | Access.RUN, Access(0), Bits.A | Bits.B, Bits(12)]
expressions: list[Any] = [int, Open, Colour, list[int], dict[str, Open], int | None, Literal["a", 1]]


any_leaf = st.one_of(
    st.none() | st.booleans() | st.integers() | st.floats() | st.complex_numbers(),
    st.text(st.characters(exclude_categories=()), max_size=20) | st.binary(max_size=20),
    st.builds(datetime.replace, st.datetimes(timezones=zones, allow_imaginary=True), fold=st.integers(0, 1)),
    st.dates() | st.times() | st.timedeltas() | st.uuids() | st.fractions(),
    st.decimals().filter(lambda number: not number.is_snan()),
    st.builds(range, st.integers(), st.integers(), st.integers(1)),
    paths.map(Path) | paths.map(PurePosixPath) | paths.map(PureWindowsPath),
    st.sampled_from([*Colour, *Level, *Word, *flags, *expressions]),
)


# Drawing in a function keeps what hypothesis says about a strategy short.
@st.composite
def leaves(draw: st.DrawFn) -> Any:
    return draw(any_leaf)


any_hashable = st.recursive(
    leaves(),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4).map(tuple),
        st.frozensets(inner, max_size=4),
        st.builds(Closed, inner, inner),
        st.builds(Pair, inner, inner),
    ),
    max_leaves=4,
)


@st.composite
def hashables(draw: st.DrawFn) -> Any:
    return draw(any_hashable)


LARGE: list[Callable[[str, int], Any]] = [
    lambda seed, count: seed * count,
    lambda seed, count: (seed * count).encode("utf-8", "replace"),
    lambda _, count: bytearray(count),
    lambda _, count: list(range(count)),
    lambda seed, count: tuple(f"{seed}{index}" for index in range(count)),
    lambda seed, count: deque([seed] * count),
    lambda seed, count: {f"{seed}{index}": index for index in range(count)},
    lambda seed, count: dict.fromkeys(range(count), seed),
    lambda _, count: set(range(count)),
    lambda seed, count: frozenset(f"{seed}{index}" for index in range(count)),
    lambda seed, count: [[seed * 300, {index: seed * 200}] for index in range(count % 40)],
]


@st.composite
def large(draw: st.DrawFn) -> Any:
    """Values that need parts and chunks."""
    make = draw(st.sampled_from(LARGE))
    return make(draw(st.text(min_size=1, max_size=5)), draw(st.integers(1, 3000)))


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    listed = st.lists(inner, max_size=6)
    mapped = st.dictionaries(hashables(), inner, max_size=5)
    bounds = st.none() | st.integers(0, 9)
    factories: st.SearchStrategy[Any] = st.sampled_from([None, int, list, Open])
    return st.one_of(
        listed | listed.map(tuple) | st.tuples(listed, bounds).map(lambda pair: deque(*pair)),
        st.sets(hashables(), max_size=5),
        st.dictionaries(st.text(max_size=5), inner, max_size=5),
        st.dictionaries(st.sampled_from(["~", "part", "chunks", "items", "type"]), inner),
        mapped | mapped.map(OrderedDict) | st.dictionaries(hashables(), st.integers(), max_size=5).map(Counter),
        st.tuples(factories, mapped).map(lambda pair: defaultdict(*pair)),
        st.builds(Open, inner, inner) | st.builds(Derived, a=inner, b=inner) | st.builds(Shelf, listed),
        st.builds(Pair, inner, inner) | st.builds(Model, a=inner) | st.builds(Box[int], item=st.integers()),
        st.lists(st.integers()).map(Items),
    )


any_value = st.recursive(leaves() | large(), containers, max_leaves=10)


@st.composite
def values(draw: st.DrawFn) -> Any:
    return draw(any_value)


@settings(max_examples=200, deadline=None)
@given(values())
def test_every_value_comes_back_equal_and_of_the_same_types(value: Any) -> None:
    assert_same(decoded(codec.encode(value, path="it")), value)


@settings(max_examples=60, deadline=None)
@given(values())
def test_encoding_what_was_decoded_gives_the_same_bytes(value: Any) -> None:
    encoded = codec.encode(value, path="it")
    again = codec.encode(decoded(encoded), path="it")
    assert again.text == encoded.text
    assert {blob.hash for blob in again.blobs} == {blob.hash for blob in encoded.blobs}


@settings(max_examples=60, deadline=None)
@given(values())
def test_a_text_is_what_the_json_module_would_write(value: Any) -> None:
    encoded = codec.encode(value, path="it")
    for text in (encoded.text, *(blob.data for blob in encoded.blobs if blob.kind == "json")):
        tree = json.loads(text.decode("utf-8", "surrogatepass"))
        written = json.dumps(tree, ensure_ascii=False, separators=(",", ":"))
        assert written.encode("utf-8", "surrogatepass") == text


@settings(max_examples=60, deadline=None)
@given(values())
def test_references_are_exactly_the_blobs_that_a_text_needs(value: Any) -> None:
    encoded = codec.encode(value, path="it")
    assert references(encoded.text) == encoded.refs
    needed, found = set(encoded.refs), {blob.hash: blob for blob in encoded.blobs}
    waiting = list(needed)
    while waiting:
        blob = found[waiting.pop()]
        assert blob.kind == "raw" or references(blob.data) == blob.refs
        waiting.extend(set(blob.refs) - needed)
        needed.update(blob.refs)
    assert needed == found.keys()


@settings(max_examples=60, deadline=None)
@given(values())
def test_a_value_behind_a_reference_is_the_same_value(value: Any) -> None:
    inline = codec.encode(value, path="it").inline(0)
    assert len(inline.refs) == 1
    assert_same(decoded(inline), value)


@pytest.mark.parametrize(
    "value",
    [
        10**5000,
        -(10**5000),
        Fraction(10**5000, 3),
        range(10**5000),
        -0.0,
        math.inf,
        -math.inf,
        math.nan,
        complex(-0.0, math.inf),
        Decimal("sNaN123"),
        Decimal("-0E+5"),
        "\ud800 \ud83d\ude00 \u2028 \x00 \x7f",
        datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin")),
        datetime.min.replace(tzinfo=timezone(timedelta(hours=14))),
        datetime.max,  # noqa: DTZ901
        time(2, 30, fold=1, tzinfo=timezone(timedelta(seconds=1, microseconds=1), "odd")),
        date.min,
        timedelta.min,
        timedelta.max,
        UUID(int=0),
        Path(),
        PureWindowsPath("C:\\x"),
        ...,
        (),
        ((), [], {}, set[int](), frozenset[int]()),
        {"~": "list"},
        {"~": None, "part": "x"},
        {None: 1, 1: 2, "1": 3, (1, 2): 4, frozenset({1}): 5},
        {True: 1, 2.5: 2},
        [Open({"~": 1}), Open],
        deque([1, 2, 3], maxlen=3),
    ],
    ids=lambda value: type(value).__name__,
)
def test_edges_come_back(value: Any) -> None:
    assert_same(decoded(codec.encode(value, path="it")), value)


@pytest.mark.parametrize(
    "expression",
    [
        int,
        type(None),
        object,
        Any,
        Open,
        Path,
        list[int],
        list[dict[str, Open | None]],
        tuple[int, ...],
        tuple[()],
        type[Open],
        Sequence[Open],
        typing.List,  # noqa: UP006
        typing.List[Open],  # noqa: UP006
        typing.Tuple,  # noqa: UP006
        typing.Dict[str, typing.Type[int]],  # noqa: UP006
        typing.Mapping[str, int],
        int | str | None,
        Union[int, Open],  # noqa: UP007
        Optional[Open],  # noqa: UP045
        Literal["a", 1, None, b"x", Colour.RED],  # noqa: PYI061
        Annotated[int, "metres", Open(1)],
        Shelf[int],
        Shelf[list[Open]],
        Box[int],
        Colour,
    ],
    ids=str,
)
def test_type_expressions_come_back(expression: Any) -> None:
    got = decoded(codec.encode(expression, path="it"))
    assert type(got) is type(expression)
    assert got == expression


def test_none_is_not_the_type_of_none() -> None:
    assert decoded(codec.encode(None, path="it")) is None
    assert decoded(codec.encode(type(None), path="it")) is type(None)


def test_shared_references_become_equal_copies() -> None:
    shared = [1]
    first, second = decoded(codec.encode([shared, shared], path="it"))
    assert first == second == [1]
    assert first is not second


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, 1, 1.5, 1j, "x", b"x", b"x" * 5000, ..., range(3)),
        *(
            (1, ("a", frozenset({2}))),
            datetime(2024, 1, 1, tzinfo=UTC),
            timedelta(1),
            UUID(int=1),
            Decimal(1),
            Path("x"),
        ),
        *(Colour.RED, Access.READ | Access.RUN, Closed(1, (2,)), Pair(1, 2), int, list[int], int | None),
    ],
    ids=repr,
)
def test_a_value_that_nothing_can_change_is_immutable(value: Any) -> None:
    assert codec.encode(value, path="it").immutable


@pytest.mark.parametrize(
    "value",
    [
        *(
            [],
            {},
            set[int](),
            bytearray(),
            deque[int](),
            Counter[int](),
            defaultdict[int, int](),
            OrderedDict[int, int](),
        ),
        *((1, [2]), Open(1), Closed([]), Closed((1, {})), Pair(1, []), Model(a=1), Box[int](item=1)),
    ],
    ids=repr,
)
def test_a_value_that_could_be_changed_is_not_immutable(value: Any) -> None:
    assert not codec.encode(value, path="it").immutable


def test_a_time_that_pydantic_parsed_comes_back_with_its_offset() -> None:
    class Meeting(BaseModel):
        at: datetime

    codec = Codec(Trust.of([Meeting]))
    meeting = Meeting.model_validate_json('{"at": "2026-01-01T12:00:00+02:00"}')
    encoded = codec.encode(meeting, path="meeting")
    restored = codec.decode(encoded.text, {}, path="meeting")
    assert restored == meeting
    assert restored.at.tzinfo == timezone(timedelta(hours=2))
