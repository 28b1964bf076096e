"""Our data classes are dataclasses, whoever looks at one."""

from __future__ import annotations

import copy
import dataclasses
import inspect
from dataclasses import KW_ONLY, FrozenInstanceError, dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Generic, TypeVar

import pytest

from perdure.data import frozen, mutable, value

T = TypeVar("T")


@frozen
class Ours:
    """A class of ours."""

    name: str
    size: int = 3
    tags: list[str] = field(default_factory=list[str])
    hidden: str = field(default="h", repr=False, compare=False)
    later: int = field(init=False, default=7)
    counts: dict[str, int] = field(init=False, default_factory=dict[str, int])
    _: KW_ONLY
    is_last: bool = False


@dataclass(frozen=True, slots=True)
class Theirs:
    """The same, made by the standard library."""

    name: str
    size: int = 3
    tags: list[str] = field(default_factory=list[str])
    hidden: str = field(default="h", repr=False, compare=False)
    later: int = field(init=False, default=7)
    counts: dict[str, int] = field(init=False, default_factory=dict[str, int])
    _: KW_ONLY
    is_last: bool = False


CALLS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    (("a",), {}),
    (("a", 1, ["x"]), {"is_last": True}),
    ((), {"name": "a", "hidden": "other"}),
]


@pytest.mark.parametrize(("args", "kwargs"), CALLS)
def test_an_instance_is_what_the_standard_library_makes(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    ours, theirs = Ours(*args, **kwargs), Theirs(*args, **kwargs)
    assert repr(ours) == repr(theirs).replace("Theirs", "Ours")
    assert dataclasses.asdict(ours) == dataclasses.asdict(theirs)
    assert dataclasses.astuple(dataclasses.replace(ours, size=9)) == dataclasses.astuple(
        dataclasses.replace(theirs, size=9)
    )


def test_the_class_is_what_the_standard_library_makes() -> None:
    assert str(inspect.signature(Ours)) == str(inspect.signature(Theirs))
    assert Ours.__match_args__ == Theirs.__match_args__
    assert Ours.__slots__ == Theirs.__slots__  # pyright: ignore[reportAttributeAccessIssue,reportUnknownMemberType]
    assert repr(vars(Ours)["__dataclass_params__"]) == repr(vars(Theirs)["__dataclass_params__"])


@pytest.mark.parametrize("args", [(), ("a", 1, [], "h", 7), ("a", "b", "c", "d", "e")])
def test_wrong_arguments_are_the_same_error(args: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError) as ours:
        Ours(*args)
    with pytest.raises(TypeError) as theirs:
        Theirs(*args)
    assert str(ours.value) == str(theirs.value).replace("Theirs", "Ours")


def test_what_is_compared_decides_what_is_equal() -> None:
    assert Ours("a", hidden="x") == Ours("a", hidden="y")
    assert Ours("a") != Ours("b")
    assert Ours("a") != Theirs("a")
    assert Ours("a") != "a"


def test_nothing_can_be_set_or_deleted() -> None:
    ours: Any = Ours("a")
    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'name'"):
        ours.name = "b"
    with pytest.raises(FrozenInstanceError, match="cannot delete field 'name'"):
        del ours.name


def test_copies_are_equal_and_of_their_own() -> None:
    ours = Ours("a", tags=["x"])
    deep, shallow = copy.deepcopy(ours), copy.copy(ours)
    assert deep == shallow == ours
    assert deep.tags is not ours.tags
    assert shallow.tags is ours.tags


def test_a_default_of_a_factory_is_made_anew() -> None:
    assert Ours("a").tags is not Ours("a").tags


@frozen
class Point(Generic[T]):
    """A base."""

    x: T

    def __post_init__(self) -> None:
        if self.x is None:
            raise ValueError("no x")


@frozen
class Place(Point[int]):
    """A class that follows another."""

    name: str = "here"


@dataclass(frozen=True)
class OfUser(Point[int]):
    """A class of a user that follows one of ours."""

    note: str = ""


def test_a_class_can_follow_another() -> None:
    assert Place(1, "there") == Place(1, name="there")
    assert repr(OfUser(1, "n")) == "OfUser(x=1, note='n')"
    with pytest.raises(ValueError, match="no x"):
        Place(None)  # pyright: ignore[reportArgumentType]
    with pytest.raises(FrozenInstanceError):
        OfUser(1).note = "x"  # pyright: ignore[reportAttributeAccessIssue]


@frozen
class Elsewhere(Place):
    """A class with another default than the one that it follows."""

    name: str = "elsewhere"


def test_a_default_can_be_another_in_a_class_that_follows() -> None:
    assert (Elsewhere(1).name, Elsewhere(1, "there").name, Place(1).name) == ("elsewhere", "there", "here")


def test_a_frozen_class_hashes_by_what_is_compared() -> None:
    assert len({Place(1), Place(1), Place(2)}) == 2


@value
class Small:
    """A class without fields that are compared."""

    note: str = field(default="", compare=False)


def test_without_fields_to_compare_all_are_equal() -> None:
    assert Small("a") == Small("b")
    assert hash(Small("a")) == hash(Small("b"))


@value
class Own:
    """A class that says itself what it is."""

    number: int

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Own) and self.number % 10 == other.number % 10

    def __hash__(self) -> int:
        return self.number % 10

    def __repr__(self) -> str:
        return "own"


def test_what_a_class_says_itself_stands() -> None:
    assert {Own(1), Own(11)} == {Own(21)}
    assert repr(Own(1)) == "own"


@mutable
class Changing:
    """A class of ours that can be changed."""

    kind: ClassVar[str] = "changing"
    name: str
    size: int = 3


@dataclass(slots=True)
class ChangingOfTheirs:
    """The same, made by the standard library."""

    kind: ClassVar[str] = "changing"
    name: str
    size: int = 3


def test_a_mutable_class_is_what_the_standard_library_makes() -> None:
    assert str(inspect.signature(Changing)) == str(inspect.signature(ChangingOfTheirs))
    assert repr(vars(Changing)["__dataclass_params__"]) == repr(vars(ChangingOfTheirs)["__dataclass_params__"])
    assert [each.name for each in dataclasses.fields(Changing)] == ["name", "size"]
    assert Changing.kind == "changing"
    assert Changing.__hash__ is None
    assert not hasattr(Changing("a"), "__dict__")


def test_a_mutable_instance_can_be_changed_and_is_equal_to_its_like() -> None:
    changing = Changing("a")
    changing.size = 4
    assert changing == Changing("a", 4)
    assert copy.copy(changing) == copy.deepcopy(changing) == changing


@mutable
class Named:
    """A class that says itself how it hashes."""

    name: str

    def __hash__(self) -> int:
        return hash(self.name)


def test_a_mutable_class_may_say_itself_how_it_hashes() -> None:
    assert len({Named("a"), Named("a")}) == 1


@frozen
class Counted:
    """A class that finds something out once."""

    words: list[str]

    @cached_property
    def count(self) -> int:
        return len(self.words)


@frozen
class CountedTwice(Counted):
    """One that follows it."""

    @cached_property
    def double(self) -> int:
        return self.count * 2


def test_a_cached_property_has_room_in_a_frozen_instance() -> None:
    counted = CountedTwice(["a", "b"])
    assert counted.double == 4
    counted.words.append("c")
    assert (counted.count, counted.double) == (2, 4)
    assert CountedTwice(counted.words).count == 3


def test_an_instance_of_a_subclass_can_be_the_first_that_is_made() -> None:
    @value
    class First:
        name: str

    class Second(First):
        def __init__(self) -> None:
            super().__init__("second")

    assert Second().name == "second"
    assert First("first").name == "first"
    assert inspect.isfunction(vars(First)["__init__"])
