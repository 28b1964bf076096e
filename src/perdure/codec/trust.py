"""Which types stored data may name: the ones that this program has declared, and no other.

A name is only ever looked up among classes that are already loaded. Nothing is imported, nothing is called.
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
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any, Literal, NewType, TypeVar, cast, get_args, get_origin, overload
from uuid import UUID
from zoneinfo import ZoneInfo

import typing_extensions

from perdure.data import frozen
from perdure.log import Log
from perdure.stored_names import find_pinned
from perdure.typenames import module_name, type_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping


def is_data_type(cls: type) -> bool:
    """Whether instances are data by their kind: dataclass, enum, named tuple or pydantic model."""
    return is_named_tuple(cls) or is_model(cls) or is_enum(cls) or dataclasses.is_dataclass(cls)


def is_enum(cls: type) -> bool:
    """Whether a class is an enum, flags included."""
    return Enum in cls.__mro__


def is_named_tuple(cls: type) -> bool:
    """Whether a class was made by `NamedTuple` or `namedtuple`, or derives from one that was."""
    return tuple in cls.__mro__ and isinstance(getattr(cls, "_fields", None), tuple)


def is_model(cls: type) -> bool:
    """Whether a class is a pydantic model. Never imports pydantic: where it is not loaded there are no models."""
    pydantic_main = sys.modules.get("pydantic.main")
    base = None if pydantic_main is None else vars(pydantic_main).get("BaseModel")
    return base is not None and issubclass(cls, base)


def reachable(expressions: Iterable[object]) -> dict[str, type]:
    """The classes that stand in these type expressions, directly or in the fields of one that does, by name."""
    found: dict[str, type] = {}
    seen: set[int] = set()
    # The queue only grows, so that every expression stays alive: a freed one would give its id to another.
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
    """The data types that have a name in a module, those nested in its own classes included."""
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
    """What to follow from one type expression."""
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
    # An alias made by a `type` statement evaluates its value when asked, and may fail then.
    value = _attribute(expression, "__value__")
    return [get_origin(expression), value, *get_args(expression)]


def _mentioned(cls: type) -> list[object]:
    """The type expressions in the definition of a class whose instances are data."""
    mentioned: list[object] = list(vars(cls).get("__orig_bases__", ()))
    if typing_extensions.is_typeddict(cls) or (is_data_type(cls) and not issubclass(cls, Enum)):
        mentioned.extend(_hints(cls))
    if is_model(cls):
        mentioned.extend(vars(cls).get("__pydantic_generic_metadata__", {}).get("args", ()))
        mentioned.extend(field.annotation for field in _attribute(cls, "model_fields", {}).values())
    return mentioned


def _hints(cls: type) -> list[object]:
    """The resolved annotations of a class and its bases. One that can't be resolved hides only itself."""
    try:
        return list(typing.get_type_hints(cls, include_extras=True).values())
    except Exception:  # noqa: BLE001  an annotation may be any expression and fail in any way
        return [
            hint
            for base in cls.__mro__
            for annotation in vars(base).get("__annotations__", {}).values()
            for hint in _resolved(annotation, base)
        ]


def _resolved(annotation: object, owner: type) -> list[object]:
    if not isinstance(annotation, str):
        return [annotation]
    holder = type("holder", (), {"__annotations__": {"it": annotation}})
    module = sys.modules.get(owner.__module__)
    names = {**vars(owner), owner.__name__: owner}
    try:
        hints = typing.get_type_hints(holder, vars(module) if module else {}, names, include_extras=True)
    except Exception:  # noqa: BLE001  as above: this annotation is skipped
        return []
    return [hints["it"]]


def _attribute(owner: object, name: str, default: Any = None) -> Any:
    try:
        return getattr(owner, name, default)
    except Exception:  # noqa: BLE001  computed attributes of type expressions may fail in any way
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

# `Any` is a class in the Pythons we run on, though type checkers know it as a special form.
_BUILT_IN: Mapping[str, type] = {
    **{type_name(cls): cls for cls in _ALWAYS_TRUSTED},
    "typing:Any": typing.cast("type", Any),
}


@frozen
class Registration:
    """What `register_type` was told about a class."""

    cls: type
    name: str
    encode: Callable[[Any], object] | None
    decode: Callable[[Any], Any] | None


class _Registry:
    """The registered types of this process, by class and by name."""

    def __init__(self) -> None:
        self.by_class: dict[type, Registration] = {}
        self.by_name: dict[str, Registration] = {}

    def add(self, entry: Registration) -> None:
        rival = self.by_name.get(entry.name)
        # The same class loaded again (a reloaded module, a notebook cell run twice) takes its own place.
        if entry.name in _BUILT_IN or (rival is not None and type_name(rival.cls) != type_name(entry.cls)):
            taken = type_name(rival.cls) if rival else "a built-in type"
            raise ValueError(
                f"the name {entry.name!r} for {type_name(entry.cls)!r} is taken by {taken}; "
                "give another with register_type(..., name=...)"
            )
        former = self.by_class.get(entry.cls)
        for old in filter(None, (rival, former)):
            self.by_class.pop(old.cls, None)
            self.by_name.pop(old.name, None)
        self.by_class[entry.cls] = entry
        self.by_name[entry.name] = entry


_registry = _Registry()


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
    """Trust a type in every workflow of this process; a decorator, with or without arguments.

    `encode` turns an instance into values that can be stored, `decode` turns them back. Dataclasses, enums, named
    tuples and pydantic models need neither. `name` is what stored data says: keep it when the class moves.
    """
    if cls is None:
        return lambda cls: register_type(cls, name=name, encode=encode, decode=decode)
    if (encode is None) != (decode is None):
        raise ValueError(f"register_type({type_name(cls)!r}) needs both encode and decode, or neither")
    if encode is None and not is_data_type(cls):
        raise ValueError(
            f"{type_name(cls)!r} is no dataclass, enum, named tuple or pydantic model; "
            "give register_type its encode and decode functions"
        )
    _registry.add(Registration(cls, name or type_name(cls), encode, decode))
    return cls


def registration(cls: type) -> Registration | None:
    """What was registered for exactly this class."""
    return _registry.by_class.get(cls)


def stored_name(cls: type) -> str:
    """The name under which stored data refers to a class: as registered, else its own."""
    entry = _registry.by_class.get(cls)
    return type_name(cls) if entry is None else entry.name


class Trust:
    """The types that a program trusts, by name. Immutable: what is added makes another.

    Declared types are followed through their fields when first needed, so that a class may mention one that is
    defined after it.
    """

    __slots__ = ("_allowed", "_found", "_modules", "_roots")

    def __init__(self, roots: tuple[object, ...], modules: frozenset[str], allowed: frozenset[str]) -> None:
        self._roots = roots
        self._modules = modules
        self._allowed = allowed
        self._found: Mapping[str, type] | None = None

    @classmethod
    def of(cls, types: Iterable[object] = (), *, allowed: Iterable[str | type] = ()) -> Trust:
        """Trust what stands in type expressions, and the classes in `allowed`, given or named `"module:qualname"`."""
        names: set[str] = set()
        roots = list(types)
        for entry in allowed:
            if isinstance(entry, str):
                names.add(_require_name(entry))
            else:
                roots.append(entry)
        return cls(tuple(roots), frozenset(), frozenset(names))

    def including(self, *others: Trust) -> Trust:
        """This trust and others together. Where two classes have one name, the earlier is meant."""
        every = (self, *others)
        roots = _distinct(root for trust in every for root in trust._roots)
        modules = frozenset(name for trust in every for name in trust._modules)
        allowed = frozenset(name for trust in every for name in trust._allowed)
        if (len(roots), modules, allowed) == (len(self._roots), self._modules, self._allowed):
            # Nothing new: what was found so far stays found.
            return self
        return Trust(roots, modules, allowed)

    def with_module(self, module_name: str) -> Trust:
        """This trust and the data types that are visible by name in a module that is loaded."""
        return Trust(self._roots, self._modules | {module_name}, self._allowed)

    def lookup(self, name: str) -> type | None:
        """The class that stored data means by a name, if it is trusted."""
        built_in = _BUILT_IN.get(name)
        if built_in is not None:
            return built_in
        entry = _registry.by_name.get(name)
        if entry is not None:
            return entry.cls
        found = self._found
        if found is None or name not in found:
            # A class may have been defined, or a module loaded, since the last look.
            found = self._found = self._find()
        return found.get(name)

    def trusts(self, cls: type) -> bool:
        """Whether an instance that is stored now can be read back as one of exactly this class."""
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


def _distinct(roots: Iterable[object]) -> tuple[object, ...]:
    return tuple({_key(root): root for root in roots}.values())


def _key(root: object) -> object:
    """What tells one type expression from another; `Annotated` may hold what can't be hashed."""
    try:
        hash(root)
    except TypeError:
        return id(root)
    return root


def _require_name(entry: str) -> str:
    module, separator, qualname = entry.partition(":")
    if not (module and separator and qualname):
        raise ValueError(f"{entry!r} in allowed_checkpoint_types is no type name; write it as 'module:ClassName'")
    return entry


def _loaded_module(name: str) -> types.ModuleType | None:
    main = sys.modules.get("__main__")
    return main if main is not None and name == module_name("__main__") else sys.modules.get(name)


def _loaded(name: str) -> type | None:
    """The class of this name if its module is loaded; found in namespaces, so that no `__getattr__` is called."""
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
        from pydantic_core import core_schema  # noqa: PLC0415 - pydantic is loaded where this is called

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
