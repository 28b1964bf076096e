"""Values and types, types and types."""

from __future__ import annotations

import typing
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import (
    Annotated,
    Any,
    Generic,
    Literal,
    NamedTuple,
    Never,
    NewType,
    NotRequired,
    Optional,
    ParamSpec,
    Protocol,
    TypedDict,
    TypeVar,
    Union,
    Unpack,
    runtime_checkable,
)

import pytest
import typing_extensions
from typing_extensions import TypeAliasType

from perdure.annotations import Namespace, annotations_of
from perdure.types import contains_typevar, is_instance_of, is_type_compatible, most_specific, split_union

T = TypeVar("T")
Bounded = TypeVar("Bounded", bound=str)
P = ParamSpec("P")
UserId = NewType("UserId", str)
Json = TypeAliasType("Json", "dict[str, Json] | list[Json] | str | int | None")
Tree = TypeAliasType("Tree", "dict[str, Tree] | list[Tree] | str | int | None")
Number = TypeAliasType("Number", int | float)
Pair = TypeAliasType("Pair", tuple[T, T], type_params=(T,))


class Animal:
    """A base class."""


class Dog(Animal):
    """A subclass."""


class Colour(Enum):
    RED = 1
    BLUE = 2


class Point(NamedTuple):
    x: int
    y: int


@dataclass
class Named:
    name: str


class HasName(Protocol):
    name: str


@runtime_checkable
class Closes(Protocol):
    def close(self) -> None: ...


class Door:
    def close(self) -> None: ...


class Order(TypedDict):
    number: int
    note: NotRequired[str]


class PaidOrder(Order):
    paid: bool


class Broken(TypedDict):
    field: Nowhere  # pyright: ignore[reportUndefinedVariable, reportUnknownVariableType] # noqa: F821


class Backported(typing_extensions.TypedDict):
    version: typing_extensions.ReadOnly[int]
    note: typing_extensions.NotRequired[str]


class BackportedHasName(typing_extensions.Protocol):
    name: str


class Box(Generic[T]):
    """A generic class of a user."""


class IntBox(Box[int]):
    """One that has fixed its parameter."""


class Crate(Box[list[T]]):
    """One that passes its parameter on."""


class Names(list[str]):
    """A list that has fixed its element."""


@pytest.mark.parametrize(
    ("data", "target"),
    [
        (object(), Any),
        (1, object),
        (True, int),
        (None, None),
        (None, type(None)),
        ("x", int | str),
        ("x", Union[int, str]),  # noqa: UP007
        (None, Optional[int]),  # noqa: UP045
        ([1, 2], list),
        ([1, 2], typing.List),  # noqa: UP006
        ([1, 2], list[int]),
        ([], list[int]),
        ([1, "a"], list[int | str]),
        ({1}, set[int]),
        (frozenset({1}), frozenset[int]),
        (deque([1]), deque[int]),
        ([1], Sequence[int]),
        ((1,), Sequence[int]),
        ("abc", Sequence[str]),
        ({"a": 1}, Iterable[str]),
        ((1, "a"), tuple[int, str]),
        ((1, "a"), typing.Tuple),  # noqa: UP006
        ((), tuple[()]),
        ((), tuple[int, ...]),
        ((1, 2, 3), tuple[int, ...]),
        ((1, "a", "b", 2.0), tuple[int, *tuple[str, ...], float]),
        ((1, "a", "b"), tuple[int, Unpack[tuple[str, ...]]]),  # noqa: UP044
        ((1, "a", "b"), tuple[int, typing_extensions.Unpack[tuple[str, ...]]]),  # noqa: UP044
        ({"version": 1}, Backported),
        (Named("n"), BackportedHasName),
        ({"a": 1}, dict[str, int]),
        ({}, dict[str, int]),
        ({"a": [1]}, Mapping[str, list[int]]),
        (OrderedDict([("a", 1)]), OrderedDict[str, int]),
        (Counter("aab"), Counter[str]),
        ("red", Literal["red", "blue"]),
        (Colour.RED, Literal[Colour.RED]),
        (1, Annotated[int, "metadata"]),
        ("u1", UserId),
        ("text", typing.LiteralString),
        ({"a": [1, {"b": None}]}, Json),
        ((1, 2), Pair[int]),
        ({"number": 1}, Order),
        ({"number": 1, "note": "n", "more": 0}, Order),
        ({"field": 1}, Broken),
        (Named("n"), HasName),
        (Door(), Closes),
        (Box[int](), Box[str]),
        (IntBox(), Box[int]),
        (len, Callable[[str], int]),
        (bool, type[int]),
        (Point(1, 2), tuple[int, int]),
        ("x", Bounded),
        (1, T),
    ],
)
def test_a_value_is_of_a_type_that_describes_it(data: object, target: object) -> None:
    assert is_instance_of(data, target)


@pytest.mark.parametrize(
    ("data", "target"),
    [
        (1, str),
        (1, float),
        (1, bool),
        (0, None),
        (1.5, int | str),
        ([1, "a"], list[int]),
        ((1,), list[int]),
        ({"a"}, set[int]),
        (deque(["a"]), deque[int]),
        ("abc", Sequence[int]),
        ((1,), tuple[int, str]),
        ((1, 2), tuple[()]),
        ((1, "a"), tuple[int, ...]),
        ({"a": "b"}, dict[str, int]),
        ({1: 1}, dict[str, int]),
        (Counter([1]), Counter[str]),
        (True, Literal[1]),
        (1, Literal[True]),
        ("green", Literal["red", "blue"]),
        (1, UserId),
        ({"a": [1.5]}, Json),
        ((1, "a"), Pair[int]),
        ({}, Order),
        ({"number": "1"}, Order),
        ({"number": 1, "note": 2}, Order),
        ([("number", 1)], Order),
        ({}, Broken),
        ({"version": "1"}, Backported),
        (Animal(), BackportedHasName),
        (Animal(), HasName),
        (Animal(), Closes),
        (str, type[int]),
        (1, Never),
        (1, "int"),
        (1, 5),
        (1, Bounded),
    ],
)
def test_a_value_is_not_of_a_type_that_says_otherwise(data: object, target: object) -> None:
    assert not is_instance_of(data, target)


def test_an_iterator_is_not_consumed_by_asking_for_its_type() -> None:
    numbers = iter([1, 2])
    assert is_instance_of(numbers, Iterator[str])
    assert is_instance_of(numbers, Iterable[str])
    assert list(numbers) == [1, 2]


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (int, int),
        (int, Any),
        (Any, int),
        (bool, int),
        (Dog, Animal),
        (Dog, object),
        (int, int | str),
        (int | str, str | int | None),
        (bool | int, int),
        (Literal["a"], str),
        (Literal["a"], Literal["a", "b"]),
        (None, int | None),
        (list[int], list),
        (list, list[int]),
        (list[Dog], list[Animal]),
        (list[int], Sequence[int]),
        (list[int], Sequence),
        (tuple[int, str], tuple[int, str]),
        (tuple[int, int], tuple[int, ...]),
        (tuple[int, ...], tuple[int | str, ...]),
        (tuple, tuple[int, str]),
        (tuple[int, str], Sequence[int | str]),
        (Point, tuple[int, int]),
        (dict[str, Dog], dict[str, Animal]),
        (dict[str, int], Mapping[str, int]),
        (dict[str, int], Collection[str]),
        (Counter[str], Mapping[str, int]),
        (str, Sequence[str]),
        (Names, list[str]),
        (Box[Dog], Box[Animal]),
        (IntBox, Box[int]),
        (Crate[int], Box[list[int]]),
        (Named, HasName),
        (Door, Closes),
        (PaidOrder, Order),
        (Order, dict[str, object]),
        (Order, dict),
        (UserId, str),
        (str, UserId),
        (Annotated[int, 1], int),
        (Json, Tree),
        (Callable[[int], str], Callable[..., object]),
        (type[bool], type[int]),
    ],
)
def test_a_type_fits_where_all_its_values_are_taken(source: object, target: object) -> None:
    assert is_type_compatible(source, target)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (int, str),
        (int, bool),
        (int, float),
        (Animal, Dog),
        (int | str, int),
        (int | None, int),
        (str, Literal["a"]),
        (Literal["a", "c"], Literal["a", "b"]),
        (list[int], list[str]),
        (list[int], set[int]),
        (list[int], int),
        (int, list[int]),
        (Sequence[int], list[int]),
        (list[int], Sequence[str]),
        (str, Sequence[int]),
        (tuple[int], tuple[int, int]),
        (tuple[int, ...], tuple[int, int]),
        (tuple[int, str], tuple[int, ...]),
        (tuple[()], tuple[int]),
        (dict[str, int], dict[str, str]),
        (Names, list[int]),
        (Box[int], Box[str]),
        (IntBox, Box[str]),
        (Crate[int], Box[list[str]]),
        (Animal, HasName),
        (Animal, Closes),
        (Order, PaidOrder),
        (dict, Order),
        (Order, dict[str, int]),
        (Callable[[int], str], Callable[[str], str]),
        (Never, int),
    ],
)
def test_a_type_does_not_fit_where_some_of_its_values_are_refused(source: object, target: object) -> None:
    assert not is_type_compatible(source, target)


def test_a_union_is_split_into_its_members_through_aliases_and_metadata() -> None:
    assert split_union(Annotated[Number | None, "metadata"]) == (int, float, type(None))
    assert split_union(UserId) == (UserId,)
    assert split_union(list[int]) == (list[int],)
    assert split_union(None) == (None,)


@pytest.mark.parametrize(
    ("value", "candidates", "chosen"),
    [
        (True, [int, bool], 1),
        (1, [bool, int], 1),
        (Dog(), [Animal, Dog], 1),
        (Dog(), [object, Animal], 1),
        (["a"], [Any, object, list, list[str]], 3),
        (["a"], [Any, object, list], 2),
        (["a"], [Any, object], 1),
        ([1], [list, list[str]], 0),
        ("red", [str, Literal["red"]], 1),
        ("blue", [str, Literal["red"]], 0),
        ({"number": 1}, [dict, dict[str, Any], Order], 2),
        ({"number": 1, "paid": True}, [Order, PaidOrder], 1),
        (Dog(), [Animal | str, Dog | int], 1),
        (Dog(), [Animal, str | None | Dog], 1),
        (None, [int | None, str | None], 0),
        (Named("n"), [HasName, Named], 1),
        ([], [list[int], list[str]], 0),
        ((1, 2), [tuple, tuple[int, ...], tuple[int, int]], 2),
        (1, [str, list], None),
        (1, [], None),
        (1, [Annotated[object, []], Annotated[int, []]], 1),
    ],
)
def test_the_narrowest_type_that_fits_is_chosen(value: object, candidates: list[object], chosen: int | None) -> None:
    assert most_specific(value, candidates) == chosen


def test_of_types_that_do_not_compare_the_first_is_chosen_even_if_the_value_is_no_instance_of_a_narrower_one() -> None:
    # Dog is narrower than Animal, but does not fit: it must not push Animal behind HasName.
    class Cat(Animal):
        name: str = "cat"

    assert most_specific(Cat(), [Animal, HasName, Dog]) == 0


def generic(
    *, a: T, b: list[T], c: dict[str, list[T]], d: T | None, e: Callable[[T], int], f: Callable[P, T]
) -> None: ...


@pytest.mark.parametrize("type_expression", annotations_of(generic, Namespace()).values())
def test_a_type_variable_is_found_at_any_depth(type_expression: object) -> None:
    assert contains_typevar(type_expression)


@pytest.mark.parametrize("type_expression", [int, list[int], Box, Json, Callable[[int], str], None])
def test_a_type_without_variables_has_none(type_expression: object) -> None:
    assert not contains_typevar(type_expression)
