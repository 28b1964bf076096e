"""How our data classes are made: `@frozen`, `@mutable`, and `@value` for those that are made in every superstep.

All are dataclasses with slots, for everybody who looks at one. But `dataclasses` compiles six functions for each class
and searches each annotation: that was half of the time in which our modules were imported. Here the functions are
shared, but for one that is compiled when a class is first used. A class is made in a twentieth of the time.

Annotations have to be strings, as `from __future__ import annotations` makes them. A class with cached properties has
room for them beside its slots.
"""

from __future__ import annotations

from copy import copy
from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field, fields
from functools import cached_property
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any, TypeVar, dataclass_transform, get_origin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

ClassT = TypeVar("ClassT")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(cls: type[ClassT]) -> type[ClassT]:
    """The same as `dataclass(frozen=True, slots=True)`."""
    return _made(cls, _FROZEN, "_set(self, {name!r}, {given})")


@dataclass_transform(field_specifiers=(field,))
def mutable(cls: type[ClassT]) -> type[ClassT]:
    """The same as `dataclass(slots=True)`."""
    return _made(cls, _MUTABLE, "self.{name} = {given}")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def value(cls: type[ClassT]) -> type[ClassT]:
    """The same as `frozen`, but that only the type checker sees to it that nothing is set.

    A dozen values are made for each activation. One that is frozen at run time as well takes four times as long to
    make, since it has to go around its own guard, field by field: a superstep would take an eighth longer.
    """
    return _made(cls, _VALUE, "self.{name} = {given}")


def _made(cls: type[Any], shared: Mapping[str, object], assignment: str) -> Any:
    """The class, made again: one that is there can't be given slots."""
    said = dict(vars(cls))
    found = {name: each for base in cls.__mro__[:0:-1] for name, each in _fields_of(base).items()}
    found |= {each.name: each for each in _own_fields(said)}
    every = [each for each in found.values() if each._field_type is _SAMPLE._field_type]
    made = {
        "__qualname__": cls.__qualname__,
        "__slots__": _slots(cls, every),
        "__match_args__": tuple([each.name for each in every if each.init and not each.kw_only]),
        "__dataclass_fields__": found,
        "__init__": _Init(assignment),
    }
    for name in ("__dict__", "__weakref__", *[each.name for each in every]):
        said.pop(name, None)  # of the class as it was; a default, which would be in the way of its slot
    if said.get("__hash__") is None:
        said.pop("__hash__", None)  # None stands there as soon as a class says what is equal
    metaclass: Any = type(cls)
    return metaclass(cls.__name__, cls.__bases__, {**_comparing(every), **shared, **said, **made})


def _fields_of(base: type[Any]) -> dict[str, Any]:
    return vars(base).get("__dataclass_fields__", {})


def _own_fields(said: Mapping[str, Any]) -> Iterator[Any]:
    """What a class has beside the fields of its bases."""
    is_by_keyword = False
    for name, annotation in said.get("__annotations__", {}).items():
        if annotation == "KW_ONLY":
            is_by_keyword = True
        elif not annotation.startswith("ClassVar"):
            each = said.get(name, MISSING)
            if not isinstance(each, Field):
                each: Any = field(default=each)
            each.name, each.type, each._field_type = name, annotation, _SAMPLE._field_type
            if each.kw_only is MISSING:
                each.kw_only = is_by_keyword
            yield each


def _slots(cls: type[Any], every: Sequence[Any]) -> tuple[str, ...]:
    inherited = {slot for base in cls.__mro__[1:-1] for slot in vars(base).get("__slots__", ())}
    names = tuple([each.name for each in every if each.name not in inherited])
    has_room = any(base.__dictoffset__ for base in cls.__bases__)
    if has_room or not any(isinstance(said, cached_property) for said in vars(cls).values()):
        return names
    return (*names, "__dict__")


class _Factory:
    """Stands for a default that is made anew each time."""

    def __repr__(self) -> str:
        return "<factory>"


_FACTORY = _Factory()


class _Init:
    """The `__init__` of a class, compiled when it is first looked for: few of our classes are used in every program."""

    def __init__(self, assignment: str) -> None:
        self._assignment = assignment

    def __set_name__(self, owner: type[Any], _: str) -> None:
        self._owner = owner

    def __get__(self, instance: object, owner: type[Any]) -> Callable[..., None]:
        compiled: Any = _compiled(self._owner, self._assignment)
        self._owner.__init__ = compiled
        return compiled.__get__(instance, owner)


def _compiled(cls: type[Any], assignment: str) -> Callable[..., None]:
    """The only function that has to be compiled: its parameters are the fields."""
    space: dict[str, Any] = {"_set": object.__setattr__, "_FACTORY": _FACTORY}
    parameters, by_keyword, body = ["self"], ["*"], ["pass"]
    every = fields(cls)
    for each in every:
        name, given = each.name, each.name
        parameter = name
        if each.default is not MISSING:
            space[f"_default_{name}"] = each.default
            parameter, given = f"{name}=_default_{name}", name if each.init else f"_default_{name}"
        elif each.default_factory is not MISSING:
            # What dict[str, int] makes is a dict, but it takes eight times as long.
            space[f"_make_{name}"] = get_origin(each.default_factory) or each.default_factory
            made = f"_make_{name}()"
            parameter, given = f"{name}=_FACTORY", f"{made} if {name} is _FACTORY else {name}" if each.init else made
        elif not each.init:
            continue  # it is set later, or never
        if each.init:
            (by_keyword if each.kw_only else parameters).append(parameter)
        body.append(assignment.format(name=name, given=given))
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    head = ", ".join([*parameters, *(by_keyword if len(by_keyword) > 1 else ())])
    text = f"def __init__({head}):\n " + "\n ".join(body)
    exec(compile(text, f"<{cls.__module__}.{cls.__qualname__}>", "exec"), space)  # noqa: S102 - of our own field names
    init: Any = space["__init__"]
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    init.__module__ = cls.__module__
    init.__annotations__ = {each.name: each.type for each in every if each.init} | {"return": None}
    return init


def _comparing(every: Sequence[Any]) -> dict[str, Callable[..., object]]:
    compared = [each.name for each in every if each.compare]
    # With no name an attrgetter can't be made, with one it gives the bare value.
    key: Callable[[Any], object] = attrgetter(*compared) if compared else _nothing

    def __eq__(self: Any, other: object) -> bool:  # noqa: N807 - it becomes one
        return key(self) == key(other) if other.__class__ is self.__class__ else NotImplemented

    def __hash__(self: Any) -> int:  # noqa: N807 - it becomes one
        return hash(key(self))

    return {"__eq__": __eq__, "__hash__": __hash__}


def _nothing(_: object) -> object:
    return ()


@recursive_repr()
def _repr(self: Any) -> str:
    shown = ", ".join([f"{each.name}={getattr(self, each.name)!r}" for each in fields(self) if each.repr])
    return f"{self.__class__.__qualname__}({shown})"


def _refuse_to_set(_: object, name: str, __: object) -> None:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_to_delete(_: object, name: str) -> None:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _state(self: Any) -> list[Any]:
    return [getattr(self, each.name) for each in fields(self)]


def _restore(self: Any, state: list[Any]) -> None:
    for each, kept in zip(fields(self), state, strict=True):
        object.__setattr__(self, each.name, kept)


@dataclass(slots=True, init=False, repr=False, eq=False)
class _Sample:
    """One of the standard library's, of which we have what it notes in classes and fields."""

    it: int


_SAMPLE: Any = fields(_Sample)[0]


def _noted(*, is_frozen: bool) -> dict[str, object]:
    params: Any = copy(vars(_Sample)["__dataclass_params__"])
    params.init = params.repr = params.eq = True
    params.frozen = is_frozen
    replacing = {name: said for name, said in vars(_Sample).items() if name == "__replace__"}  # since Python 3.13
    return {**replacing, "__dataclass_params__": params, "__repr__": _repr}


_VALUE = _noted(is_frozen=False)
_MUTABLE = {**_VALUE, "__hash__": None}
_FROZEN = {
    **_noted(is_frozen=True),
    "__setattr__": _refuse_to_set,
    "__delattr__": _refuse_to_delete,
    "__getstate__": _state,
    "__setstate__": _restore,
}
