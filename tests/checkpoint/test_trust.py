"""Which names stored data may use, and that looking one up neither imports nor calls anything."""

from __future__ import annotations

import sys
import types
import typing
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, TypedDict, TypeVar

import pytest
from pydantic import BaseModel

from perdure.codec import Codec, Trust, register_type, stored_name
from perdure.errors import EncodeError, UntrustedTypeError
from perdure.typenames import type_name

if typing.TYPE_CHECKING:
    from collections.abc import Callable

    from nowhere import Missing  # pyright: ignore[reportMissingImports, reportUnknownVariableType]

T = TypeVar("T")


class Kind(Enum):
    A = 1


class Leaf(NamedTuple):
    kind: Kind


@dataclass
class Node:
    leaf: Leaf | None
    parent: Node | None = None
    children: list[Node] = field(default_factory=list["Node"])


class Entry(TypedDict):
    node: Node


class Page(BaseModel, Generic[T]):
    items: list[T]
    kind: Kind = Kind.A
    next: Page[T] | None = None


@dataclass
class Base(Generic[T]):
    value: T


@dataclass
class Bound(Base[Leaf]):
    pass


@dataclass
class HalfKnown:
    known: Kind
    missing: Missing  # pyright: ignore[reportUnknownVariableType]
    leaf: Leaf


class Plain:
    @dataclass
    class Inner:
        x: int


Identity = NewType("Identity", Node)


def names(*expressions: object) -> set[str]:
    trust = Trust.of(expressions)
    known = (Kind, Leaf, Node, Entry, Base, Bound, HalfKnown, Plain, Plain.Inner, Page, Page[Node], Page[int])
    return {cls.__qualname__ for cls in known if trust.trusts(cls)}


@pytest.mark.parametrize(
    ("expression", "reached"),
    [
        (int, set[str]()),
        (Kind, {"Kind"}),
        (Leaf, {"Leaf", "Kind"}),
        (Node, {"Node", "Leaf", "Kind"}),
        (Entry, {"Entry", "Node", "Leaf", "Kind"}),
        (list[Leaf], {"Leaf", "Kind"}),
        (dict[str, tuple[Leaf, ...]], {"Leaf", "Kind"}),
        (Leaf | None, {"Leaf", "Kind"}),
        (typing.Optional[Leaf], {"Leaf", "Kind"}),  # noqa: UP045
        (typing.Callable[[Leaf], None], {"Leaf", "Kind"}),
        (Annotated[Kind, Node], {"Kind"}),
        (Literal["x", Kind.A], {"Kind"}),
        (Identity, {"Node", "Leaf", "Kind"}),
        (TypeVar("B", bound=Leaf), {"Leaf", "Kind"}),
        (Bound, {"Bound", "Base", "Leaf", "Kind"}),
        (Page[int], {"Page[int]", "Page", "Kind"}),
        (Page[Node], {"Page[Node]", "Page", "Node", "Leaf", "Kind"}),
        (HalfKnown, {"HalfKnown", "Kind", "Leaf"}),
        (Plain, {"Plain"}),
        ("Node", set[str]()),
        (None, set[str]()),
        (Any, set[str]()),
    ],
    ids=lambda value: "" if isinstance(value, set) else str(value),
)
def test_a_type_expression_is_followed_through_its_fields(expression: object, reached: set[str]) -> None:
    assert names(expression) == reached


def test_local_classes_that_mention_each_other_are_followed() -> None:
    @dataclass
    class Tail:
        head: Head | None

    @dataclass
    class Head:
        tails: list[Head]

    assert Trust.of([Head]).trusts(Head)
    assert not Trust.of([Head]).trusts(Tail)


def test_built_in_types_are_always_trusted() -> None:
    for cls in (int, str, type(None), list, dict, Exception().__class__.__mro__[-1]):
        assert Trust.of().trusts(cls)
    assert Trust.of().lookup("datetime:datetime") is not None
    assert Trust.of().lookup("pathlib:Path") is not None
    assert Trust.of().lookup("typing:Any") is Any
    assert Trust.of().lookup("builtins:eval") is None
    assert Trust.of().lookup("builtins:Exception") is None


def test_trust_is_added_by_making_another() -> None:
    first, second = Trust.of([Kind]), Trust.of([Leaf])
    both = first.including(second)
    assert both.trusts(Leaf)
    assert not Trust.of().including(first).trusts(Leaf)
    assert not first.trusts(Leaf)


def test_the_data_types_of_a_module_are_trusted_with_what_they_mention() -> None:
    module = types.ModuleType("made_module")
    inner = type("inner", (), {})
    vars(module).update(Alias=Leaf, number=1, function=len, Plain=Plain, made=inner)
    sys.modules["made_module"] = module
    try:
        trust = Trust.of().with_module("made_module")
        assert trust.trusts(Leaf)
        assert trust.trusts(Kind)
        assert not trust.trusts(Plain)
        assert not trust.trusts(Plain.Inner)
        assert not trust.trusts(Node)
    finally:
        del sys.modules["made_module"]


def test_data_types_nested_in_the_classes_of_a_module_are_visible() -> None:
    assert Trust.of().with_module(__name__).trusts(Plain.Inner)


def test_a_class_that_is_defined_later_is_found_too() -> None:
    module = types.ModuleType("growing_module")
    sys.modules["growing_module"] = module
    try:
        trust = Trust.of().with_module("growing_module")
        assert not trust.trusts(Leaf)
        vars(module)["Leaf"] = Leaf
        assert trust.trusts(Leaf)
    finally:
        del sys.modules["growing_module"]


def test_a_module_that_is_not_loaded_adds_nothing() -> None:
    trust = Trust.of(allowed=["antigravity:Joke"]).with_module("antigravity")
    assert trust.lookup("antigravity:Joke") is None
    assert "antigravity" not in sys.modules


def test_a_class_is_allowed_by_name_or_given() -> None:
    assert Trust.of(allowed=[type_name(Plain.Inner)]).trusts(Plain.Inner)
    assert Trust.of(allowed=[f"{__name__}:Node"]).trusts(Node)
    assert Trust.of(allowed=[Node]).trusts(Leaf)
    assert not Trust.of(allowed=[f"{__name__}:Node"]).trusts(Leaf)


def test_a_class_is_allowed_under_a_name_that_imports_it() -> None:
    assert Trust.of(allowed=["collections:abc"]).lookup("collections:abc") is None
    assert Trust.of(allowed=["dataclasses:Field"]).lookup("dataclasses:Field") is not None
    module = types.ModuleType("exporting_module")
    vars(module)["Exported"] = Node
    sys.modules["exporting_module"] = module
    try:
        assert Trust.of(allowed=["exporting_module:Exported"]).trusts(Node)
    finally:
        del sys.modules["exporting_module"]


@pytest.mark.parametrize("name", ["Node", "module:", ":Node", "", "a.b"])
def test_an_allowed_name_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="write it as 'module:ClassName'"):
        Trust.of(allowed=[name])


def test_what_is_allowed_by_name_must_be_a_class() -> None:
    trust = Trust.of(allowed=["os:system", "builtins:eval", f"{__name__}:names", "os:path.join"])
    for name in ("os:system", "posix:system", "builtins:eval", f"{__name__}:names", "os:path.join"):
        assert trust.lookup(name) is None


def test_looking_up_calls_no_getattr() -> None:
    module = types.ModuleType("lazy_module")
    asked: list[str] = []

    def lazy(name: str) -> object:
        asked.append(name)
        return Node

    vars(module)["__getattr__"] = lazy
    sys.modules["lazy_module"] = module
    try:
        assert Trust.of(allowed=["lazy_module:Node"]).lookup("lazy_module:Node") is None
    finally:
        del sys.modules["lazy_module"]
    assert asked == []


@pytest.mark.parametrize(
    "text",
    [
        '{"~":"dataclass","type":"antigravity:Joke","fields":{}}',
        '{"~":"enum","type":"antigravity:Joke","name":"A"}',
        '{"~":"model","type":"antigravity:Joke","fields":{},"set":[]}',
        '{"~":"namedtuple","type":"antigravity:Joke","fields":{}}',
        '{"~":"custom","type":"antigravity:Joke","value":1}',
        '{"~":"type","name":"antigravity:Joke"}',
        '{"~":"type","name":"antigravity:Joke","args":[]}',
        '{"~":"defaultdict","items":[],"factory":{"~":"type","name":"antigravity:Joke"}}',
    ],
)
def test_an_unknown_type_is_an_error_that_names_it_and_imports_nothing(text: str) -> None:
    before = set(sys.modules)
    with pytest.raises(UntrustedTypeError) as caught:
        Codec(Trust.of([Node])).decode(f'{{"cart":[1,{text}]}}'.encode(), {}, path="state['x']")
    assert caught.value.type_name == "antigravity:Joke"
    assert caught.value.path.startswith("state['x']['cart'][1]")
    assert "allowed_checkpoint_types" in str(caught.value)
    assert set(sys.modules) == before


def test_a_function_can_not_be_named_in_place_of_a_class() -> None:
    for name in ("builtins:eval", "os:system", "subprocess:Popen"):
        with pytest.raises(UntrustedTypeError):
            Codec(Trust.of([Node])).decode(f'{{"~":"dataclass","type":"{name}","fields":{{}}}}'.encode(), {}, path="it")


def test_what_is_read_needs_the_trust_of_the_reader_not_of_the_writer() -> None:
    encoded = Codec(Trust.of([Node])).encode({"a": Node(Leaf(Kind.A))}, path="it")
    with pytest.raises(UntrustedTypeError) as caught:
        Codec(Trust.of([Kind])).decode(encoded.text, {}, path="state['x']")
    assert caught.value.path == "state['x']['a'].leaf"


def test_a_type_can_be_registered_with_a_decorator() -> None:
    @register_type
    @dataclass
    class Bare:
        x: int

    @register_type(name="named.thing")
    @dataclass
    class Named:
        x: int

    assert stored_name(Bare) == type_name(Bare)
    assert stored_name(Named) == "named.thing"
    assert Trust.of().lookup("named.thing") is Named
    assert Trust.of().trusts(Bare)


def test_registering_needs_both_functions_or_a_data_type() -> None:
    with pytest.raises(ValueError, match="needs both encode and decode, or neither"):
        register_type(Plain, encode=vars)
    with pytest.raises(ValueError, match="give register_type its encode and decode functions"):
        register_type(Plain)


def test_a_name_belongs_to_one_type() -> None:
    @dataclass
    class First:
        x: int

    @dataclass
    class Second:
        x: int

    register_type(First, name="taken")
    with pytest.raises(ValueError, match=r"'taken' for .* is taken by"):
        register_type(Second, name="taken")
    with pytest.raises(ValueError, match="is taken by a built-in type"):
        register_type(Second, name="builtins:int")
    assert Trust.of().lookup("taken") is First


def test_a_class_that_is_loaded_again_takes_its_own_place() -> None:
    def load() -> type:
        @register_type(name="reloaded")
        @dataclass
        class Thing:
            x: int

        return Thing

    first, second = load(), load()
    assert Trust.of().lookup("reloaded") is second
    assert stored_name(first) != "reloaded"


def test_a_class_that_is_registered_again_has_its_new_name() -> None:
    @dataclass
    class Renamed:
        x: int

    register_type(Renamed, name="old name")
    register_type(Renamed, name="new name")
    assert Trust.of().lookup("old name") is None
    assert Trust.of().lookup("new name") is Renamed


def test_pickle_is_refused_unless_it_is_allowed_on_both_sides() -> None:
    value = [complex, slice(1, 2)]
    with pytest.raises(EncodeError):
        Codec(Trust.of()).encode(value, path="it")
    allowing = Codec(Trust.of(), allow_pickle=True)
    encoded = allowing.encode(value, path="it")
    assert allowing.decode(encoded.text, {}, path="it") == value
    assert not encoded.immutable
    with pytest.raises(UntrustedTypeError, match="pickle of builtins:slice"):
        Codec(Trust.of()).decode(encoded.text, {}, path="it")


def test_pickle_takes_only_what_would_be_refused() -> None:
    allowing = Codec(Trust.of([Node]), allow_pickle=True)
    assert b"pickle" not in allowing.encode([Node(None), (1, 2)], path="it").text
    assert b"pickle" in allowing.encode(Plain.Inner(1), path="it").text
    assert allowing.decode(allowing.encode(Plain.Inner(1), path="it").text, {}, path="it") == Plain.Inner(1)


def test_what_even_pickle_does_not_take_is_refused() -> None:
    function: Callable[[], int] = lambda: 1  # noqa: E731  a lambda is what is meant
    with pytest.raises(EncodeError, match="pickling it raised") as caught:
        Codec(Trust.of(), allow_pickle=True).encode({"f": function}, path="it")
    assert caught.value.path == "it['f']"
