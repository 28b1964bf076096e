"""How our data classes are made: `@frozen`, and `@value` for those that are made in every superstep.

Both are dataclasses with slots, for everybody who looks at one. But `dataclasses` compiles six functions for each
class, and our modules took a third of their time to import for that. Here one is compiled, and the others are shared: a
class is made in less than a third of the time.
"""

from __future__ import annotations

from dataclasses import MISSING, FrozenInstanceError, dataclass, field, fields
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any, TypeVar, dataclass_transform

if TYPE_CHECKING:
    from collections.abc import Callable
    from dataclasses import Field

ClassT = TypeVar("ClassT")


class _Factory:
    """Stands for a default that is made anew each time."""

    def __repr__(self) -> str:
        return "<factory>"


_FACTORY = _Factory()


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(cls: type[ClassT]) -> type[ClassT]:
    """The same as `dataclass(frozen=True, slots=True)`."""
    made = _made(cls, "_set(self, {name!r}, {given})")
    made.__setattr__ = _refuse_to_set
    made.__delattr__ = _refuse_to_delete
    made.__getstate__ = _state
    made.__setstate__ = _restore
    made.__dataclass_params__.frozen = True
    return made


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def value(cls: type[ClassT]) -> type[ClassT]:
    """The same, but that only the type checker sees to it that nothing is set.

    A dozen values are made for each activation. One that is frozen at run time as well takes four times as long to
    make, since it has to go around its own guard, field by field: a superstep would take an eighth longer.
    """
    return _made(cls, "self.{name} = {given}")


def _made(cls: type[Any], assignment: str) -> Any:
    # A frozen class can only be followed by a frozen one.
    is_below_frozen = any(_is_frozen(base) for base in cls.__mro__[1:])
    made: Any = dataclass(slots=True, init=False, repr=False, eq=False, frozen=is_below_frozen)(cls)
    every = fields(made)
    made.__init__ = _init(made, every, assignment)
    if "__repr__" not in vars(cls):
        made.__repr__ = _repr
    compared = [each.name for each in every if each.compare]
    # With no name an attrgetter can't be made, with one it gives the bare value.
    key: Callable[[Any], object] = attrgetter(*compared) if compared else _nothing
    if "__eq__" not in vars(cls):
        made.__eq__ = _eq(key)
    if vars(cls).get("__hash__") is None:
        made.__hash__ = _hash(key)
    made.__dataclass_params__.eq = made.__dataclass_params__.repr = made.__dataclass_params__.init = True
    return made


def _is_frozen(cls: Any) -> bool:
    return "__dataclass_params__" in vars(cls) and cls.__dataclass_params__.frozen


def _init(cls: type[Any], every: tuple[Field[Any], ...], assignment: str) -> Callable[..., None]:
    """The only function that has to be compiled: its parameters are the fields."""
    space: dict[str, Any] = {"_set": object.__setattr__, "_FACTORY": _FACTORY}
    parameters, by_keyword, body = ["self"], ["*"], ["pass"]
    for each in every:
        name, given = each.name, each.name
        parameter = name
        if each.default is not MISSING:
            space[f"_default_{name}"] = each.default
            parameter, given = f"{name}=_default_{name}", name if each.init else f"_default_{name}"
        elif each.default_factory is not MISSING:
            space[f"_make_{name}"] = each.default_factory
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
    exec(f"def __init__({head}):\n " + "\n ".join(body), space)  # noqa: S102 - of our own field names
    init: Any = space["__init__"]
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    init.__module__ = cls.__module__
    init.__annotations__ = {each.name: each.type for each in every if each.init} | {"return": None}
    return init


def _nothing(_: object) -> object:
    return ()


def _eq(key: Callable[[Any], object]) -> Callable[[Any, object], bool]:
    def __eq__(self: Any, other: object) -> bool:  # noqa: N807 - it becomes one
        return key(self) == key(other) if other.__class__ is self.__class__ else NotImplemented

    return __eq__


def _hash(key: Callable[[Any], object]) -> Callable[[Any], int]:
    def __hash__(self: Any) -> int:  # noqa: N807 - it becomes one
        return hash(key(self))

    return __hash__


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
