"""Dataclasses, named tuples, enums, models and registered types: what is kept, and how classes may change."""

from __future__ import annotations

from dataclasses import InitVar, dataclass, field
from enum import Enum, Flag
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import pytest
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, RootModel, computed_field, field_validator
from pydantic.dataclasses import dataclass as pydantic_dataclass

from perdure.codec import Codec, Trust, register_type
from perdure.errors import IncompatibleTypeError, UntrustedTypeError

T = TypeVar("T")


def copy_of(value: Any, *more: object) -> Any:
    codec = Codec(Trust.of([value.__class__, *more]))
    encoded = codec.encode(value, path="it")
    copy = codec.decode(encoded.text, {blob.hash: blob.data for blob in encoded.blobs}, path="it")
    assert type(copy) is type(value)
    return copy


def changed(old: Any, new: type) -> Any:
    """What a program that has `new` under the same name reads of an object that another wrote."""
    encoded = Codec(Trust.of([old.__class__])).encode(old, path="state['x']")
    new.__module__, new.__qualname__ = type(old).__module__, type(old).__qualname__
    return Codec(Trust.of([new])).decode(encoded.text, {}, path="state['x']")


def misfit(old: Any, new: type) -> IncompatibleTypeError:
    with pytest.raises(IncompatibleTypeError) as caught:
        changed(old, new)
    assert "migrations" in str(caught.value)
    return caught.value


def test_no_code_of_a_dataclass_runs_when_it_is_read() -> None:
    calls: list[str] = []

    @dataclass
    class Loud:
        x: int
        start: InitVar[int]
        kind: ClassVar[str] = "loud"

        def __post_init__(self, start: int) -> None:
            calls.append(f"post_init {start}")

        def __setattr__(self, name: str, value: object) -> None:
            calls.append(f"set {name}")
            object.__setattr__(self, name, value)

    loud = Loud(1, 2)
    calls.clear()
    assert copy_of(loud).x == 1
    assert calls == []


def test_fields_that_init_does_not_take_are_kept() -> None:
    @dataclass
    class Sum:
        a: int
        total: int = field(init=False)

        def __post_init__(self) -> None:
            self.total = self.a * 10

    value = Sum(1)
    value.total = 99
    assert copy_of(value).total == 99


def test_a_field_without_a_value_stays_without() -> None:
    @dataclass(slots=True)
    class Half:
        a: int
        b: int = field(init=False)

    copy = copy_of(Half(1))
    assert copy.a == 1
    assert not hasattr(copy, "b")


def test_attributes_that_are_no_fields_are_kept() -> None:
    @dataclass
    class Free:
        a: int

    value = Free(1)
    vars(value)["note"] = [1]
    vars(value)["~"] = 2
    assert vars(copy_of(value)) == {"a": 1, "note": [1], "~": 2}


def test_slots_of_a_base_that_is_no_dataclass_are_kept() -> None:
    class Base:
        __slots__ = ("__hidden", "plain")

        def hide(self, value: int) -> None:
            self.__hidden = value

        def hidden(self) -> int:
            return self.__hidden

    @dataclass(slots=True)
    class Derived(Base):
        a: int

    value = Derived(1)
    value.hide(2)
    copy = copy_of(value)
    assert (copy.a, copy.hidden()) == (1, 2)
    assert not hasattr(copy, "plain")


def test_frozen_slotted_keyword_only_inheriting_dataclasses_come_back() -> None:
    @dataclass(frozen=True, slots=True)
    class Base:
        a: int

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Derived(Base):
        b: tuple[int, ...] = ()

    value = Derived(1, b=(2,))
    assert copy_of(value) == value
    assert hash(copy_of(value)) == hash(value)


def test_a_frozen_dataclass_that_takes_other_attributes_is_not_immutable() -> None:
    @dataclass(frozen=True)
    class Frozen:
        a: int

    @dataclass(frozen=True, slots=True)
    class Closed:
        a: int

    codec = Codec(Trust.of([Frozen, Closed]))
    assert codec.encode(Closed(1), path="it").immutable
    assert not codec.encode(Frozen(1), path="it").immutable


def test_a_pydantic_dataclass_comes_back() -> None:
    @pydantic_dataclass
    class Point:
        x: int
        y: int = 0

    assert copy_of(Point(1)) == Point(1, 0)


def test_a_named_tuple_is_read_by_the_names_of_its_fields() -> None:
    class Old(NamedTuple):
        a: int
        b: int

    class New(NamedTuple):
        b: int
        a: int
        c: int = 7

    assert changed(Old(1, 2), New) == New(b=2, a=1, c=7)


def test_attributes_of_a_named_tuple_subclass_are_kept() -> None:
    class Base(NamedTuple):
        a: int

    class Derived(Base):
        pass

    value = Derived(1)
    vars(value)["note"] = "x"
    copy = copy_of(value)
    assert copy == (1,)
    assert vars(copy) == {"note": "x"}


def test_a_field_that_a_dataclass_got_since_has_its_default() -> None:
    @dataclass
    class Old:
        a: int

    @dataclass
    class New:
        a: int
        b: int = 5
        c: list[int] = field(default_factory=lambda: [6])

    assert changed(Old(1), New) == New(1, 5, [6])


@pytest.mark.parametrize("kind", ["dataclass", "namedtuple", "model"])
def test_a_field_that_a_class_got_since_without_a_default_is_named(kind: str) -> None:
    @dataclass
    class Old:
        a: int

    @dataclass
    class New:
        a: int
        b: int

    class OldTuple(NamedTuple):
        a: int

    class NewTuple(NamedTuple):
        a: int
        b: int

    class OldModel(BaseModel):
        a: int

    class NewModel(BaseModel):
        a: int
        b: int

    old, new = {"dataclass": (Old(1), New), "namedtuple": (OldTuple(1), NewTuple), "model": (OldModel(a=1), NewModel)}[
        kind
    ]
    error = misfit(old, new)
    assert error.reason == "field 'b' is not stored, and the class has no default for it"
    assert "Old" in error.type_name
    assert error.path == "state['x']"


@pytest.mark.parametrize("kind", ["dataclass", "namedtuple", "model"])
def test_a_field_that_a_class_no_longer_has_is_named(kind: str) -> None:
    @dataclass
    class Old:
        a: int
        b: int

    @dataclass
    class New:
        a: int

    class OldTuple(NamedTuple):
        a: int
        b: int

    class NewTuple(NamedTuple):
        a: int

    class OldModel(BaseModel):
        a: int
        b: int

    class NewModel(BaseModel):
        a: int

    old, new = {
        "dataclass": (Old(1, 2), New),
        "namedtuple": (OldTuple(1, 2), NewTuple),
        "model": (OldModel(a=1, b=2), NewModel),
    }[kind]
    assert misfit(old, new).reason == "field 'b' is stored, but the class no longer has it"


def test_a_default_that_raises_is_named() -> None:
    @dataclass
    class Old:
        a: int

    def fail() -> int:
        raise ValueError("no")

    @dataclass
    class New:
        a: int
        b: int = field(default_factory=fail)

    assert misfit(Old(1), New).reason == "the default of field 'b' raised ValueError('no')"


def test_a_class_that_is_of_another_kind_now_is_named() -> None:
    @dataclass
    class Old:
        a: int

    class New(BaseModel):
        a: int

    class Plain:
        pass

    assert misfit(Old(1), New).reason == "it was stored as a 'dataclass', and the class is of the kind 'model' now"
    assert misfit(Old(1), Plain).reason == "it was stored as a 'dataclass', and the class is no data type now"


def test_an_attribute_that_a_class_has_no_place_for_is_named() -> None:
    @dataclass
    class Old:
        a: int

    @dataclass(slots=True)
    class New:
        a: int

    old = Old(1)
    vars(old)["note"] = 1
    assert misfit(old, New).reason == "attribute 'note' is stored, but the class has no place for it"


def test_a_stored_attribute_does_not_reach_a_descriptor() -> None:
    reached: list[object] = []

    @dataclass
    class Old:
        a: int

    @dataclass
    class New:
        a: int

        @property
        def trap(self) -> int:
            return 0

        @trap.setter
        def trap(self, value: object) -> None:
            reached.append(value)

    old = Old(1)
    vars(old)["trap"] = 1
    vars(old)["__class__"] = Old
    assert type(changed(old, New)) is New
    assert reached == []


def test_a_member_that_an_enum_no_longer_has_is_named() -> None:
    class Old(Enum):
        A = 1
        B = 2

    class New(Enum):
        A = 1

    assert changed(Old.A, New) is New.A
    assert misfit(Old.B, New).reason == "member 'B' is stored, but the enum no longer has it"


def test_flags_that_are_no_flags_any_more_are_named() -> None:
    class Old(Flag):
        A = 1
        B = 2

    class New(Enum):
        A = 1

    class Fewer(Flag):
        A = 1

    both = Old.A | Old.B
    assert "is no longer a Flag" in misfit(both, New).reason
    assert "the combination of flags 3 raised ValueError" in misfit(both, Fewer).reason


def test_an_enum_is_read_by_name_though_its_values_changed() -> None:
    class Old(Enum):
        A = 1

    class New(Enum):
        A = "a"

    assert changed(Old.A, New) is New.A


def test_no_code_of_a_model_runs_when_it_is_read() -> None:
    calls: list[object] = []

    class Loud(BaseModel):
        x: int

        @field_validator("x")
        @classmethod
        def seen(cls, value: int) -> int:
            calls.append(value)
            return value

        def model_post_init(self, _: Any, /) -> None:
            calls.append("post_init")

        def __setstate__(self, _: dict[Any, Any]) -> None:
            calls.append("setstate")

    value = Loud(x=1)
    calls.clear()
    assert copy_of(value).x == 1
    assert calls == []


def test_what_a_validator_would_refuse_comes_back_all_the_same() -> None:
    class Strict(BaseModel):
        x: int

    value = Strict.model_construct(x="text", _fields_set={"x"})  # pyright: ignore[reportArgumentType]
    assert copy_of(value).x == "text"


def test_the_set_extra_and_private_values_of_a_model_are_kept() -> None:
    class Full(BaseModel):
        model_config = ConfigDict(extra="allow")
        a: int = 1
        b: int = 2
        _secret: list[int] = PrivateAttr(default_factory=lambda: [0])
        _unset: int = PrivateAttr()

    value = Full.model_validate({"b": 5, "more": [1], "~": 2})
    value._secret.append(9)  # pyright: ignore[reportPrivateUsage]
    copy = copy_of(value)
    assert copy == value
    assert copy.model_fields_set == {"b", "more", "~"}
    assert copy.model_extra == {"more": [1], "~": 2}
    assert copy._secret == [0, 9]
    copy._unset = 3
    assert copy._unset == 3


def test_nested_generic_frozen_and_root_models_come_back() -> None:
    class Inner(BaseModel):
        model_config = ConfigDict(frozen=True)
        x: int

        @computed_field
        @property
        def double(self) -> int:
            return self.x * 2

    class Page(BaseModel, Generic[T]):
        items: list[T]

    class Names(RootModel[dict[str, Inner]]):
        pass

    assert copy_of(Page[Inner](items=[Inner(x=1)])) == Page[Inner](items=[Inner(x=1)])
    assert copy_of(Names({"a": Inner(x=1)})) == Names({"a": Inner(x=1)})
    assert copy_of(Names({"a": Inner(x=1)})).model_fields_set == {"root"}


def test_parametrised_models_of_one_name_are_told_apart() -> None:
    class Page(BaseModel, Generic[T]):
        item: T

    def inner(kind: type) -> type[Any]:
        class Item(BaseModel):
            x: Any = kind

        Item.__qualname__ = f"{kind.__name__}.Item"
        return Item

    first, second = inner(int), inner(str)
    pages = [Page[first](item=first()), Page[second](item=second())]
    codec = Codec(Trust.of([type(page) for page in pages]))
    for page in pages:
        copy = codec.decode(codec.encode(page, path="it").text, {}, path="it")
        assert type(copy) is type(page)


def test_a_field_that_a_model_got_since_has_its_default() -> None:
    class Old(BaseModel):
        a: int

    class New(BaseModel):
        a: int
        b: int = 5
        c: list[int] = Field(default_factory=lambda: [6])
        d: int = Field(default_factory=lambda data: data["a"] + 1)
        _e: int = PrivateAttr(default=8)

    new = changed(Old(a=1), New)
    assert (new.a, new.b, new.c, new.d, new._e) == (1, 5, [6], 2, 8)
    assert new.model_fields_set == {"a"}


def test_extra_and_private_values_that_a_model_no_longer_takes_are_named() -> None:
    class Old(BaseModel):
        model_config = ConfigDict(extra="allow")

    class OldPrivate(BaseModel):
        _p: int = PrivateAttr(default=1)

    class New(BaseModel):
        pass

    assert misfit(Old.model_validate({"x": 1}), New).reason == "field 'x' is stored, but the class no longer has it"
    assert misfit(OldPrivate(), New).reason == "field '_p' is stored, but the class no longer has it"


class Money:
    def __init__(self, amount: int, currency: str) -> None:
        self.amount = amount
        self.currency = currency


register_type(
    Money, name="money", encode=lambda money: (money.amount, money.currency), decode=lambda pair: Money(*pair)
)


def test_a_registered_type_goes_through_its_functions() -> None:
    codec = Codec(Trust.of())
    encoded = codec.encode([Money(5, "EUR")], path="it")
    assert b'"type":"money"' in encoded.text
    (money,) = codec.decode(encoded.text, {}, path="it")
    assert (money.amount, money.currency) == (5, "EUR")
    assert not encoded.immutable


def test_a_registered_list_comes_back_as_what_it_was() -> None:
    class Stack(list[int]):
        pass

    register_type(Stack, encode=list, decode=Stack)
    copy = copy_of(Stack([1, 2]))
    assert copy == [1, 2]


def test_a_decode_function_that_raises_is_named() -> None:
    class Grumpy:
        pass

    def decode(_: object) -> Grumpy:
        raise ValueError("no")

    register_type(Grumpy, encode=lambda _: 1, decode=decode)
    with pytest.raises(IncompatibleTypeError, match=r"the registered decode function raised ValueError\('no'\)"):
        copy_of(Grumpy())


def test_a_class_that_moved_is_read_under_the_name_it_was_registered_with() -> None:
    @dataclass
    class Before:
        a: int

    @dataclass
    class After:
        a: int

    encoded = Codec(Trust.of([Before])).encode(Before(1), path="it")
    with pytest.raises(UntrustedTypeError):
        Codec(Trust.of()).decode(encoded.text, {}, path="it")
    register_type(After, name=f"{Before.__module__}:{Before.__qualname__}")
    assert Codec(Trust.of()).decode(encoded.text, {}, path="it") == After(1)
