"""Which types stored data may name: the ones that this program has declared, and no other.

A name is only ever looked up among classes that are already loaded. Nothing is imported, nothing is called.
"""

from __future__ import annotations

import collections
import collections.abc
import datetime
import functools
import pathlib
import sys
import types
import typing
from typing import TYPE_CHECKING, Any, TypeVar, overload

from perdure.codec.trust_reach import is_data_type, reachable, visible
from perdure.data import frozen
from perdure.log import Log
from perdure.stored_names import find_pinned
from perdure.typenames import module_name, type_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

T = TypeVar("T")

_ALWAYS_TRUSTED: tuple[type, ...] = (
    *(object, types.NoneType, bool, int, float, complex, str, bytes, bytearray, range, type),
    *(list, tuple, dict, set, frozenset),
    *(collections.deque, collections.defaultdict, collections.OrderedDict, collections.Counter, Log),
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

_TRUSTED_LATE = frozenset({"decimal:Decimal", "fractions:Fraction", "uuid:UUID", "zoneinfo:ZoneInfo"})


@functools.cache
def _late_types() -> Mapping[str, type]:
    """Types that few programs use; it takes a while to load them."""
    from decimal import Decimal  # noqa: PLC0415
    from fractions import Fraction  # noqa: PLC0415
    from uuid import UUID  # noqa: PLC0415
    from zoneinfo import ZoneInfo  # noqa: PLC0415

    return {type_name(cls): cls for cls in (Decimal, Fraction, UUID, ZoneInfo)}


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
        is_built_in = entry.name in _BUILT_IN or entry.name in _TRUSTED_LATE
        if is_built_in or (rival is not None and type_name(rival.cls) != type_name(entry.cls)):
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
        if name in _TRUSTED_LATE:
            return _late_types()[name]
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
