"""Types that stored data may name: those that the program declared, and no others.

A name is looked up among classes that are already loaded. Nothing is imported or called.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import datetime
import pathlib
import sys
import types
import typing
from collections import Counter, OrderedDict, defaultdict, deque
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any, Literal, NewType, TypeVar, cast, get_args, get_origin, overload
from uuid import UUID
from zoneinfo import ZoneInfo

import typing_extensions

from perdure.annotations import resolved
from perdure.data_classes import value_class
from perdure.log import Log
from perdure.stored_names import find_pinned
from perdure.typenames import module_name, type_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping


def is_data_type(cls: type) -> bool:
    """Return True for a dataclass, enum, named tuple or pydantic model."""
    return is_named_tuple(cls) or is_model(cls) or is_enum(cls) or dataclasses.is_dataclass(cls)


def is_enum(cls: type) -> bool:
    """Return True for an enum, including flags."""
    return Enum in cls.__mro__


def is_named_tuple(cls: type) -> bool:
    """Return True for a class made by `NamedTuple` or `namedtuple`, and for its subclasses."""
    return tuple in cls.__mro__ and isinstance(getattr(cls, "_fields", None), tuple)


def is_model(cls: type) -> bool:
    """Return True for a pydantic model. pydantic is not imported: if it is not loaded, there are no models."""
    pydantic_main = sys.modules.get("pydantic.main")
    base = None if pydantic_main is None else vars(pydantic_main).get("BaseModel")
    return base is not None and issubclass(cls, base)


def reachable(expressions: Iterable[object]) -> dict[str, type]:
    """Return the classes in these type expressions, and in the fields of those classes, by name."""
    found: dict[str, type] = {}
    seen: set[int] = set()
    # The queue only grows, so every expression stays alive: a freed one would give its id to another.
    queue = list(expressions)
    for expression in queue:
        if id(expression) in seen:
            continue
        seen.add(id(expression))
        if isinstance(expression, type) and not isinstance(expression, types.GenericAlias):
            found.setdefault(type_name(expression), expression)
        queue.extend(_next(expression))
    return found


def visible(module: types.ModuleType) -> Iterator[type]:
    """Yield the data types with a name in a module, including those nested in its classes."""
    seen: set[type] = set()
    queue: list[object] = list(vars(module).values())
    for value in queue:
        if not isinstance(value, type) or value in seen:
            continue
        seen.add(value)
        if is_data_type(value):
            yield value
        if value.__module__ == module.__name__:
            queue.extend(vars(value).values())


def _next(expression: object) -> Iterable[object]:
    """Return the expressions to follow from a type expression."""
    if get_origin(expression) is Annotated:
        return get_args(expression)[:1]
    if get_origin(expression) is Literal:
        return [type(value) for value in get_args(expression) if isinstance(value, Enum)]
    if isinstance(expression, NewType):
        return [expression.__supertype__]
    if isinstance(expression, TypeVar):
        return [expression.__bound__, *expression.__constraints__]
    if isinstance(expression, list):
        return cast("list[object]", expression)
    if isinstance(expression, type) and not isinstance(expression, types.GenericAlias):
        return _mentioned(expression)
    # An alias made by a `type` statement is evaluated on access and may fail.
    value = _attribute(expression, "__value__")
    return [get_origin(expression), value, *get_args(expression)]


def _mentioned(cls: type) -> list[object]:
    """Return the type expressions in the definition of a data class."""
    mentioned: list[object] = list(vars(cls).get("__orig_bases__", ()))
    if typing_extensions.is_typeddict(cls) or (is_data_type(cls) and not issubclass(cls, Enum)):
        mentioned.extend(_hints(cls))
    if is_model(cls):
        mentioned.extend(vars(cls).get("__pydantic_generic_metadata__", {}).get("args", ()))
        mentioned.extend(field.annotation for field in _attribute(cls, "model_fields", {}).values())
    return mentioned


def _hints(cls: type) -> list[object]:
    """Return the resolved annotations of a class and its bases, without those that can't be resolved."""
    found: list[object] = []
    for base in cls.__mro__:
        module = sys.modules.get(base.__module__)
        parameters = {each.__name__: each for each in getattr(base, "__type_params__", ())}
        names = {**vars(base), **parameters, base.__name__: base}
        for annotation in vars(base).get("__annotations__", {}).values():
            with suppress(Exception):  # an annotation may fail in any way
                found.append(resolved(annotation, vars(module) if module else {}, names))
    return found


def _attribute(owner: object, name: str, default: Any = None) -> Any:
    try:
        return getattr(owner, name, default)
    except Exception:  # noqa: BLE001  computed attributes may fail in any way
        return default


T = TypeVar("T")

_ALWAYS_TRUSTED: tuple[type, ...] = (
    *(object, types.NoneType, bool, int, float, complex, str, bytes, bytearray, range, type),
    *(list, tuple, dict, set, frozenset),
    *(deque, defaultdict, OrderedDict, Counter, Log),
    *(Decimal, Fraction, UUID, ZoneInfo),
    *(datetime.datetime, datetime.date, datetime.time, datetime.timedelta, datetime.timezone),
    *(pathlib.Path, pathlib.PosixPath, pathlib.WindowsPath),
    *(pathlib.PurePath, pathlib.PurePosixPath, pathlib.PureWindowsPath),
    *(collections.abc.Iterable, collections.abc.Collection, collections.abc.Sequence, collections.abc.MutableSequence),
    *(collections.abc.Mapping, collections.abc.MutableMapping, collections.abc.Set, collections.abc.MutableSet),
)

# `Any` is a class at run time, though type checkers see a special form.
_BUILT_IN: Mapping[str, type] = {
    **{type_name(cls): cls for cls in _ALWAYS_TRUSTED},
    "typing:Any": typing.cast("type", Any),
}


@value_class
class Registration:
    """A registered class, its stored name and its functions."""

    cls: type
    name: str
    encode: Callable[[Any], object] | None
    decode: Callable[[Any], Any] | None


# The registered types of this process.
_by_class: dict[type, Registration] = {}
_by_name: dict[str, Registration] = {}


def _register(entry: Registration) -> None:
    rival = _by_name.get(entry.name)
    # The same class loaded again (a reloaded module, a notebook cell) replaces itself.
    if entry.name in _BUILT_IN or (rival is not None and type_name(rival.cls) != type_name(entry.cls)):
        taken = type_name(rival.cls) if rival else "a built-in type"
        raise ValueError(
            f"the name {entry.name!r} for {type_name(entry.cls)!r} is taken by {taken}; "
            "give another with register_type(..., name=...)"
        )
    for old in filter(None, (rival, _by_class.get(entry.cls))):
        _by_class.pop(old.cls, None)
        _by_name.pop(old.name, None)
    _by_class[entry.cls] = _by_name[entry.name] = entry


@overload
def register_type(
    cls: type[T],
    *,
    name: str | None = None,
    encode: Callable[[T], object] | None = None,
    decode: Callable[[Any], T] | None = None,
) -> type[T]: ...
@overload
def register_type(
    cls: None = None,
    *,
    name: str | None = None,
    encode: Callable[[Any], object] | None = None,
    decode: Callable[[Any], Any] | None = None,
) -> Callable[[type[T]], type[T]]: ...
def register_type(
    cls: type[T] | None = None,
    *,
    name: str | None = None,
    encode: Callable[[Any], object] | None = None,
    decode: Callable[[Any], Any] | None = None,
) -> type[T] | Callable[[type[T]], type[T]]:
    """Trust a type in every workflow of this process. Use it as a decorator or call it.

    `encode` converts an instance to values that can be stored, and `decode` converts them back. Dataclasses, enums,
    named tuples and pydantic models need neither. Stored data contains `name`: keep it when the class moves.
    """
    if cls is None:
        return lambda cls: register_type(cls, name=name, encode=encode, decode=decode)
    if (encode is None) != (decode is None):
        raise ValueError(f"register_type({type_name(cls)!r}) needs both encode and decode, or neither")
    if encode is None and not is_data_type(cls):
        raise ValueError(
            f"{type_name(cls)!r} is not a dataclass, enum, named tuple or pydantic model; "
            "give register_type its encode and decode functions"
        )
    _register(Registration(cls, name or type_name(cls), encode, decode))
    return cls


register_checkpoint_type = register_type


def registration(cls: type) -> Registration | None:
    """Return the registration of exactly this class."""
    return _by_class.get(cls)


def stored_name(cls: type) -> str:
    """Return the name of a class in stored data: the registered one, else its own."""
    entry = _by_class.get(cls)
    return type_name(cls) if entry is None else entry.name


@dataclass(slots=True, eq=False)
class Trust:
    """The types that a program trusts, by name: declared ones, those in modules, and allowed names.

    Declared types are followed through their fields on first use, so a class may mention one that is defined later.
    """

    _roots: tuple[object, ...]
    _modules: frozenset[str] = frozenset()
    _allowed: frozenset[str] = frozenset()
    _found: Mapping[str, type] | None = None

    @classmethod
    def of(cls, types: Iterable[object] = (), *, allowed: Iterable[str | type] = ()) -> Trust:
        """Trust the classes in type expressions and those in `allowed`, given as classes or as `"module:qualname"`."""
        entries = tuple(allowed)
        names = frozenset(entry for entry in entries if isinstance(entry, str))
        for name in names:
            module, _, qualname = name.partition(":")
            if not (module and qualname):
                raise ValueError(
                    f"{name!r} in allowed_checkpoint_types is not a type name; write it as 'module:ClassName'"
                )
        return cls((*types, *(entry for entry in entries if not isinstance(entry, str))), _allowed=names)

    def including(self, *others: Trust) -> Trust:
        """Return this trust combined with others. If two classes share a name, the first one wins."""
        every = (self, *others)
        roots = tuple({_key(root): root for trust in every for root in trust._roots}.values())
        modules = frozenset(name for trust in every for name in trust._modules)
        allowed = frozenset(name for trust in every for name in trust._allowed)
        if (len(roots), modules, allowed) == (len(self._roots), self._modules, self._allowed):
            # Nothing is new, so keep what was found.
            return self
        return Trust(roots, modules, allowed)

    def with_module(self, module_name: str) -> Trust:
        """Return this trust extended with the data types that have a name in a loaded module."""
        return Trust(self._roots, self._modules | {module_name}, self._allowed)

    def lookup(self, name: str) -> type | None:
        """Return the trusted class with this stored name."""
        built_in = _BUILT_IN.get(name)
        if built_in is not None:
            return built_in
        entry = _by_name.get(name)
        if entry is not None:
            return entry.cls
        found = self._found
        if found is None or name not in found:
            # A class may have been defined, or a module loaded, since the last lookup.
            found = self._found = self._find()
        return found.get(name)

    def trusts(self, cls: type) -> bool:
        """Return True if an instance stored now can be read back as exactly this class."""
        name = stored_name(cls)
        if self.lookup(name) is cls:
            return True
        self._found = None
        return self.lookup(name) is cls

    def _find(self) -> Mapping[str, type]:
        declared = reachable(self._roots)
        modules = filter(None, map(_loaded_module, sorted(self._modules)))
        in_modules = reachable(cls for module in modules for cls in visible(module))
        allowed = {type_name(cls): cls for cls in map(_loaded, sorted(self._allowed)) if cls is not None}
        return {**allowed, **in_modules, **declared}


def _key(root: object) -> object:
    """Return a hashable key for a type expression. `Annotated` may hold unhashable objects."""
    try:
        hash(root)
    except TypeError:
        return id(root)
    return root


def _loaded_module(name: str) -> types.ModuleType | None:
    main = sys.modules.get("__main__")
    return main if main is not None and name == module_name("__main__") else sys.modules.get(name)


def _loaded(name: str) -> type | None:
    """Return the class of this name if its module is loaded, without calling a `__getattr__`."""
    module, _, qualname = name.partition(":")
    found: object = _loaded_module(module)
    for step in qualname.split("."):
        found = vars(found).get(step) if isinstance(found, types.ModuleType | type) else None
    return found if isinstance(found, type) else find_pinned(name)


def register_form(cls: type, data: object, *, make: Callable[[Any], object], told: str) -> None:
    """Let plain data of the type `data` stand for instances of `cls` in answers; `make` converts it.

    `told` describes the data in error messages. pydantic finds the rule on the class.
    """

    def core_schema_of(_: object, handler: Any) -> Any:
        from pydantic_core import core_schema  # noqa: PLC0415 - pydantic is loaded already

        made = core_schema.custom_error_schema(
            core_schema.no_info_after_validator_function(make, handler.generate_schema(data)),
            custom_error_type="form",
            custom_error_message=f"a {cls.__name__} is {told}",
        )
        return core_schema.json_or_python_schema(
            json_schema=made,
            python_schema=core_schema.union_schema([core_schema.is_instance_schema(cls), made]),
            serialization=core_schema.plain_serializer_function_ser_schema(lambda value: value),
        )

    cls.__get_pydantic_core_schema__ = core_schema_of  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
