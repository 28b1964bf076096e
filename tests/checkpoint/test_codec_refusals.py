"""What could not be read back is refused when it is saved, with its place and what to do."""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import io
import json
import sys
import threading
import typing
from collections import UserDict, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from enum import Enum, Flag
from typing import Any, Generic, NamedTuple, TypeVar
from zoneinfo import ZoneInfo

import pytest
from pydantic import BaseModel

from perdure.codec import Codec, DamagedPartError, Trust, register_type
from perdure.errors import EncodeError

T = TypeVar("T")


class Plain:
    pass


class MyStr(str):
    __slots__ = ()


class MyInt(int):
    pass


class MyList(list[int]):
    pass


class MyDict(dict[str, int]):
    pass


@dataclass
class Item:
    price: Any


@dataclass
class Cart:
    lines: list[Item]


@dataclass
class ListWithFields(list[int]):
    name: str = ""


@dataclass
class Failure(Exception):
    code: int = 0


class Stranger(NamedTuple):
    x: int


class Unknown(Enum):
    A = 1


class Free(BaseModel):
    x: Any


@dataclass
class Odd(Generic[T]):
    x: T


class Zone(tzinfo):
    def utcoffset(self, _: datetime | None, /) -> timedelta:
        return timedelta(0)


class Nowhere(Flag):
    A = 1


class array:  # noqa: N801  stands for the array of a library that is not installed here
    pass


array.__module__ = "numpy"

codec = Codec(Trust.of([Cart, ListWithFields, Failure, Free, Plain, Nowhere, Odd]))


def refusal(value: object, path: str = "state['x']") -> EncodeError:
    with pytest.raises(EncodeError) as caught:
        codec.encode(value, path=path)
    return caught.value


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


async def coroutine() -> None:
    pass


def generator() -> Iterator[int]:
    yield 1


async def async_generator() -> AsyncIterator[int]:
    yield 1


REGISTER = "register its type with perdure.register_type(..., encode=..., decode=...)"

UNTRUSTED = (
    "use the type in a handler's annotations, register it with perdure.register_type, "
    "or list it in allowed_checkpoint_types"
)


REFUSED: list[tuple[Any, str, str]] = [
    (lambda: 1, "it is the function '<lambda>'", "store its name and look the function up"),
    (len, "it is the function 'len'", "store its name and look the function up"),
    (list[int]().append, "it is the function 'list.append'", "store its name and look the function up"),
    (Plain().__init__, "it is a 'builtins:method-wrapper'", "make its class a dataclass"),
    (sys, "it is the module 'sys'", "import it where it is used"),
    (generator(), "it is unfinished work", "collect what it yields"),
    (async_generator(), "it is unfinished work", "collect what it yields"),
    (io.StringIO(), "it is an open file", "store its path and open it where it is used"),
    (ValueError("x"), "it is an exception, 'builtins:ValueError'", f"store its message, or {REGISTER}"),
    (threading.Lock(), "it is a '_thread:lock', which is not a data type", REGISTER),
    (object(), "it is a 'builtins:object', which is not a data type", REGISTER),
    (Plain(), "Plain', which is not a data type", f"make its class a dataclass, or {REGISTER}"),
    (array(), "it is a 'numpy:array' of numpy", f"convert it to plain values (tolist(), item()), or {REGISTER}"),
    (MyStr("x"), "MyStr', and would be read back as a plain str", f"convert it with str(...), or {REGISTER}"),
    (MyInt(1), "would be read back as a plain int", "convert it with int(...)"),
    (MyList(), "would be read back as a plain list", "convert it with list(...)"),
    (MyDict(), "would be read back as a plain dict", "convert it with dict(...)"),
    (UserDict[str, int](), "which is not a data type", REGISTER),
    (memoryview(b""), "which is not a data type", REGISTER),
    (dict[str, int]().keys(), "which is not a data type", REGISTER),
    (slice(1), "which is not a data type", REGISTER),
    (json.JSONDecoder(), "which is not a data type", REGISTER),
    (Stranger(1), "does not trust the type", UNTRUSTED),
    (Unknown.A, "does not trust the type", UNTRUSTED),
    (Unknown, "does not trust the type", UNTRUSTED),
    (list[Unknown], "does not trust the type", UNTRUSTED),
    (dataclasses.make_dataclass("Made", ["x"])(1), "does not trust the type", UNTRUSTED),
    (ListWithFields(), "it extends list, whose content its fields don't hold", REGISTER),
    (Failure(), "it extends Exception, whose content its fields don't hold", REGISTER),
    (Callable[[int], str], "Callable[[int], str] is a kind of type expression", "store its name instead"),
    (typing.Callable[[int], str], "is a kind of type expression that can't be stored", "store its name"),
    (typing.ClassVar[int], "is a kind of type expression that can't be stored", "store its name"),
    (typing.Optional, "is a kind of type expression that can't be stored", "store its name"),
    (typing.Iterator, "is a kind of type expression that can't be stored", "store its name"),
    (T, "is a kind of type expression that can't be stored", "store its name"),
    (typing.NewType("Id", int), "is a kind of type expression that can't be stored", "store its name"),
    (typing.ForwardRef("Cart"), "is a kind of type expression that can't be stored", "store its name"),
    (Awaitable, "does not trust the type", UNTRUSTED),
    (
        defaultdict[int, int](lambda: 1),
        "a defaultdict whose default_factory is not a class",
        "use a class such as list or int",
    ),
    (nested(401), "it is nested more than 400 levels deep", "store it in a flatter form"),
]


@pytest.mark.parametrize(("value", "reason", "remedy"), REFUSED, ids=lambda value: type(value).__name__)
def test_a_value_that_can_not_be_read_back_is_refused(value: object, reason: str, remedy: str) -> None:
    error = refusal(value)
    assert reason in error.reason
    assert remedy in error.remedy
    assert error.path.startswith("state['x']")
    assert str(error) == f"{error.path} can't be stored: {error.reason}; {error.remedy}"


async def test_work_in_progress_is_refused() -> None:
    waiting = coroutine()
    future = asyncio.get_running_loop().create_future()
    assert "it is unfinished work" in refusal(waiting).reason
    assert "it is unfinished work" in refusal(future).reason
    waiting.close()


def test_a_cycle_is_refused_where_it_closes() -> None:
    loop: dict[str, Any] = {"inner": [1]}
    loop["inner"].append(loop)
    error = refusal({"a": loop})
    assert error.path == "state['x']['a']['inner'][1]"
    assert error.reason == "it contains itself"


def test_a_cycle_through_objects_is_refused() -> None:
    cart = Cart([Item(1)])
    cart.lines[0].price = (cart,)
    assert refusal(cart).path == "state['x'].lines[0].price[0]"
    model = Free(x=[])
    model.x.append(model)
    assert refusal(model).path == "state['x'].x[0]"


PLACES: list[tuple[Any, str]] = [
    (Cart([Item(1), Item(object())]), "state['x'].lines[1].price"),
    ({"a": [0, (1, object())]}, "state['x']['a'][1][1]"),
    ({1: {"b": object()}}, "state['x'][1]['b']"),
    ({(1, 2): object()}, "state['x'][<tuple>]"),
    ({1: 1, object(): 2}, "state['x'].keys()[1]"),
    ({object()}, "state['x']{*}"),
    (collections.deque([1, object()]), "state['x'][1]"),
    (Free(x={"y": object()}), "state['x'].x['y']"),
    (list[Unknown], "state['x'].__args__[0]"),
    (dict[str, list[Unknown] | None], "state['x'].__args__[1].__args__[0].__args__[0]"),
    (typing.Annotated[int, object()], "state['x'].__args__[1]"),
    (defaultdict[int, Any](threading.Event), "state['x'].default_factory"),
    (datetime(2024, 1, 1, tzinfo=Zone()), "state['x'].tzinfo"),
]


@pytest.mark.parametrize(("value", "path"), PLACES, ids=lambda value: type(value).__name__)
def test_a_refusal_tells_the_place(value: object, path: str) -> None:
    assert refusal(value).path == path


def test_attributes_that_are_no_fields_are_not_dropped_but_refused() -> None:
    item = Item(1)
    vars(item)["handle"] = object()
    assert refusal(item).path == "state['x'].attributes['handle']"


def test_a_time_zone_without_a_key_is_refused() -> None:
    data = _zone_file()
    zone = ZoneInfo.from_file(data)
    error = refusal(datetime(2024, 1, 1, tzinfo=zone))
    assert error.path == "state['x'].tzinfo"
    assert error.remedy == "create it with ZoneInfo(key)"


def _zone_file() -> io.BytesIO:
    """The smallest zone there is: UTC, in the first version of the format."""
    header = b"TZif" + b"\0" * 16 + b"".join(count.to_bytes(4, "big") for count in (0, 0, 0, 0, 1, 4))
    return io.BytesIO(header + b"\0" * 6 + b"UTC\0")


def test_a_generic_that_decides_what_its_brackets_mean_is_refused() -> None:
    alias = Odd[int]
    codec.encode(alias, path="x")

    def class_getitem(_: type, item: object) -> object:
        return item

    type.__setattr__(Odd, "__class_getitem__", classmethod(class_getitem))
    assert "is a kind of type expression that can't be stored" in refusal(alias).reason


def test_400_levels_are_stored_and_one_more_is_refused() -> None:
    assert codec.decode(codec.encode(nested(400), path="x").text, _blobs(nested(400)), path="x") == nested(400)
    error = refusal(nested(401))
    assert error.path == "state['x']" + "[0]" * 10 + "…" + "[0]" * 10


def _blobs(value: object) -> dict[str, bytes]:
    return {blob.hash: blob.data for blob in codec.encode(value, path="x").blobs}


def test_a_stack_that_is_almost_full_gives_an_encode_error_and_no_recursion_error() -> None:
    limit = sys.getrecursionlimit()
    with pytest.raises(EncodeError, match="nested more than"):
        _at_depth(limit - 200, lambda: codec.encode(nested(300), path="x"))


def _at_depth(depth: int, act: Callable[[], object]) -> object:
    frame, used = sys._getframe(), 0  # pyright: ignore[reportPrivateUsage]
    while frame.f_back is not None:
        frame, used = frame.f_back, used + 1
    return act() if used >= depth else _at_depth(depth, act)


def test_two_classes_of_one_name_are_told_apart() -> None:
    def make() -> type[Any]:
        @dataclass
        class Twin:
            x: int

        return Twin

    first, second = make(), make()
    trusting = Codec(Trust.of([first]))
    trusting.encode(first(1), path="x")
    with pytest.raises(EncodeError, match="and so is another class that this workflow trusts"):
        trusting.encode(second(1), path="x")


def test_an_encode_function_that_raises_is_a_refusal() -> None:
    class Fragile:
        pass

    def encode(_: Fragile) -> object:
        raise ValueError("broken")

    register_type(Fragile, encode=encode, decode=lambda _: Fragile())
    error = refusal([Fragile()])
    assert error.path == "state['x'][0]"
    assert "raised ValueError('broken')" in error.reason
    assert isinstance(error.__cause__, Exception)


def test_what_an_encode_function_returns_is_encoded_in_its_turn() -> None:
    class Holder:
        pass

    register_type(Holder, encode=lambda _: [object()], decode=lambda _: Holder())
    assert refusal(Holder()).path == "state['x'][0]"


def test_a_flag_of_an_enum_that_is_trusted_is_stored() -> None:
    assert codec.encode(Nowhere(0), path="x").immutable


COLLIDING = [number * sys.hash_info.modulus for number in range(1001)]
"""All have the hash 0."""


@pytest.mark.parametrize(
    "value",
    [
        *(set(COLLIDING), frozenset(COLLIDING), dict.fromkeys(COLLIDING), collections.Counter(COLLIDING)),
        *(collections.OrderedDict.fromkeys(COLLIDING), defaultdict(int, dict.fromkeys(COLLIDING, 0))),
        {(number,) for number in COLLIDING},
    ],
)
def test_a_collection_of_many_equal_hashes_is_neither_stored_nor_read(
    value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    codec = Codec(Trust.of())
    with pytest.raises(EncodeError, match="have the same hash"):
        codec.encode({"a": value}, path="state['x']")
    with monkeypatch.context() as patch:
        patch.setattr("perdure.codec.builtin_types._EQUAL_HASHES_MAX", 10_000)
        encoded = codec.encode(value, path="state['x']")
    with pytest.raises(DamagedPartError, match="have the same hash"):
        codec.decode(encoded.text, {blob.hash: blob.data for blob in encoded.blobs}, path="state['x']")


def test_a_collection_with_a_thousand_equal_hashes_is_stored() -> None:
    codec, value = Codec(Trust.of()), {*COLLIDING[1:], *range(1, 5000), "text"}
    encoded = codec.encode(value, path="state['x']")
    assert codec.decode(encoded.text, {blob.hash: blob.data for blob in encoded.blobs}, path="state['x']") == value
