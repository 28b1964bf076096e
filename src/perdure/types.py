"""Checks of values against types, and of types against each other."""

from __future__ import annotations

import functools
import inspect
import sys
import types
import typing
from collections import ChainMap, Counter, OrderedDict, abc, defaultdict, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Annotated, Any, Final, Literal, TypeGuard, TypeVar, Union, cast, get_args, get_origin

import typing_extensions
from typing_extensions import ReadOnly, TypeAliasType, get_protocol_members

from perdure.annotations import resolved

_MISSING: Final = object()
_UNIONS: Final = (Union, types.UnionType)
_WRAPPERS: Final = (Annotated, typing.Required, typing.NotRequired, ReadOnly, typing.ClassVar, Final)
# The backport in typing_extensions may be another object than typing's own.
_ALIASES: Final[tuple[type[TypeAliasType], ...]] = (TypeAliasType, getattr(typing, "TypeAliasType", TypeAliasType))
_UNPACKS: Final = (typing.Unpack, typing_extensions.Unpack)
_MAPPINGS: Final[frozenset[object]] = frozenset(
    {dict, defaultdict, OrderedDict, ChainMap, Counter, Mapping, abc.MutableMapping}
)
_COLLECTIONS: Final[frozenset[object]] = frozenset(
    {list, set, frozenset, deque, Collection, abc.Container, Iterable, abc.Reversible}
    | {Sequence, abc.MutableSequence, abc.Set, abc.MutableSet}
)
_ELEMENTS: Final[Mapping[object, tuple[object, ...]]] = {str: (str,), bytes: (int,)}


def is_instance_of(data: object, target: object) -> bool:
    """Return True if `data` is a value of the type expression `target`, including the elements of containers.

    Iterators are not consumed. What can't be checked at run time is not an instance.
    """
    if type(target) is type:
        return isinstance(data, target)
    target, origin, args = _parts_of(target)
    if target is Any:
        return True
    if origin in _UNIONS:
        return any(is_instance_of(data, member) for member in args)
    if origin is Literal:
        return any(type(data) is type(value) and data == value for value in args)
    return _is_instance_of_class(data, origin or target) and (origin is None or _holds(data, origin, args))


def _parts_of(target: object) -> tuple[object, Any, tuple[object, ...]]:
    """Return a type in plain form, its origin and its arguments."""
    try:
        return _known_parts(target)
    except TypeError:  # metadata of an Annotated may be unhashable
        return _known_parts.__wrapped__(target)


# Cached, because analysing a type takes five times as long as checking a list of one element with it.
@functools.lru_cache(maxsize=1024)
def _known_parts(target: object) -> tuple[object, Any, tuple[object, ...]]:
    plain = plain_type(target)
    return plain, get_origin(plain), get_args(plain)


def is_type_compatible(source: object, target: object) -> bool:
    """Return True if a `source` can be passed as a `target`. Missing parameters and `Any` fit everything."""
    return _fits(source, target, _Rule(any_fits=True))


def plain_type(type_expression: object) -> object:
    """Return a type without what makes no difference at run time: metadata, aliases, new types, type variables."""
    origin = get_origin(type_expression)
    if type_expression is None:
        return NoneType
    if isinstance(type_expression, typing.NewType):
        return plain_type(type_expression.__supertype__)
    if isinstance(type_expression, TypeVar):
        constraints = type_expression.__constraints__
        return plain_type(_union(constraints) if constraints else type_expression.__bound__ or Any)
    if _is_alias(type_expression):
        return plain_type(_alias_value(type_expression))
    if _is_alias(origin):
        return plain_type(_substituted(_alias_value(origin), origin.__type_params__, get_args(type_expression)))
    if origin in _WRAPPERS:
        return plain_type(get_args(type_expression)[0])
    if type_expression is typing.LiteralString:
        return str
    # Without parameters, typing.List is list, and typing.Tuple must not be taken for tuple[()].
    is_bare = origin is not None and not hasattr(type_expression, "__args__")
    return origin if is_bare else type_expression


def split_union(type_expression: object) -> tuple[object, ...]:
    """Return the members of a union, resolving aliases; the type itself if it is no union."""
    plain = plain_type(type_expression)
    if get_origin(plain) not in _UNIONS:
        return (type_expression,)
    return tuple(part for member in get_args(plain) for part in split_union(member))


def most_specific(value: object, candidates: Sequence[object]) -> int | None:
    """Return the index of the most specific type for `value`; None if none fits.

    A union counts by its best member. Of types that can't be compared, the first wins.
    """
    return ranking_of(tuple(candidates)).best(value)


def contains_typevar(type_expression: object) -> bool:
    """Return True if a type contains a type variable."""
    if isinstance(type_expression, TypeVar | typing.ParamSpec | typing.TypeVarTuple):
        return True
    parts = cast("list[object]", type_expression) if isinstance(type_expression, list) else get_args(type_expression)
    return any(contains_typevar(part) for part in parts)


def _substituted(generic: Any, parameters: Iterable[object], args: Iterable[object]) -> object:
    """Replace type variables by `args`, and by Any if there are not enough."""
    is_class = isinstance(cast("object", generic), type)
    free: tuple[object, ...] = () if is_class else getattr(generic, "__parameters__", ())
    bound = dict(zip(parameters, args, strict=False))
    return generic[tuple(bound.get(parameter, Any) for parameter in free)] if free else generic


def _union(members: tuple[object, ...]) -> object:
    return Union[members]  # noqa: UP007


def _is_alias(type_expression: object) -> TypeGuard[TypeAliasType]:
    return isinstance(type_expression, _ALIASES)


@functools.lru_cache(maxsize=256)
def _alias_value(alias: TypeAliasType) -> object:
    """Return the value of an alias. Before the `type` statement, a recursive alias names itself in a string."""
    names = vars(sys.modules[alias.__module__]) if alias.__module__ in sys.modules else {}
    return resolved(alias.__value__, names, {})


def _class_of(type_expression: object) -> object:
    """Return the class of a parametrised type, such as list for list[int]; other types as they are."""
    return get_origin(type_expression) or type_expression


def _is_instance_of_class(data: object, cls: object) -> bool:
    if type(cls) is type:
        return isinstance(data, cls)
    if typing_extensions.is_typeddict(cls):
        return isinstance(data, dict) and _has_fields(cast("dict[object, object]", data), cls)
    if _is_bare_protocol(cls):
        return cls in type(data).__mro__ or all(
            inspect.getattr_static(data, name, _MISSING) is not _MISSING for name in get_protocol_members(cls)
        )
    try:
        return isinstance(data, cast("type", cls))
    except TypeError:
        return False


def _holds(data: Any, origin: object, args: tuple[object, ...]) -> bool:
    """Return True if the content of `data` fits the type arguments."""
    if origin is tuple:
        items = _tuple_items(args, len(data))
        return items is not None and all(map(is_instance_of, data, items))
    if origin is type:
        return is_type_compatible(data, args[0])
    if origin in _MAPPINGS:
        keys, values = _mapping_arguments(origin, args)
        return all(is_instance_of(key, keys) and is_instance_of(value, values) for key, value in data.items())
    if origin in _COLLECTIONS and isinstance(data, Collection):
        return all(is_instance_of(element, args[0]) for element in cast("Collection[object]", data))
    return True


def _has_fields(data: dict[object, object], typed_dict: Any) -> bool:
    hints = _fields(typed_dict)
    return _required_fields(typed_dict) <= data.keys() and all(
        is_instance_of(data[key], hints[key]) for key in hints if key in data
    )


def _fields(typed_dict: type) -> Mapping[str, object]:
    """Return the types of a TypedDict's values; Any for all of them if a name is not defined."""
    try:
        return _resolved_fields(typed_dict)
    except NameError:
        return dict.fromkeys(typed_dict.__annotations__, Any)


@functools.lru_cache(maxsize=256)
def _resolved_fields(typed_dict: type) -> Mapping[str, object]:
    return typing.get_type_hints(typed_dict, include_extras=True)


def _required_fields(typed_dict: Any) -> set[str]:
    # __required_keys__ ignores Required and NotRequired in annotations that are strings.
    return {key for key, hint in _fields(typed_dict).items() if _is_required(hint, key in typed_dict.__required_keys__)}


def _is_required(hint: object, default: bool) -> bool:  # noqa: FBT001
    origin = get_origin(hint)
    if origin in (Annotated, ReadOnly):
        return _is_required(get_args(hint)[0], default)
    return origin is typing.Required or (origin is not typing.NotRequired and default)


def _is_bare_protocol(cls: object) -> TypeGuard[type]:
    """Return True for a protocol that is not runtime checkable."""
    is_protocol = isinstance(cls, type) and typing_extensions.is_protocol(cls)
    return is_protocol and not getattr(cls, "_is_runtime_protocol", False)


@dataclass(frozen=True, slots=True)
class _Rule:
    """Settings of a comparison: whether Any as a source fits, and the pairs that are being compared.

    A pair that is met again inside itself is assumed to fit, so that recursive types end.
    """

    any_fits: bool
    assumed: tuple[tuple[object, object], ...] = ()


def _fits(source: object, target: object, rule: _Rule) -> bool:
    source, target = plain_type(source), plain_type(target)
    if target is Any or source == target or (source, target) in rule.assumed:
        return True
    if source is Any:
        return rule.any_fits
    rule = _Rule(rule.any_fits, (*rule.assumed, (source, target)))
    if get_origin(source) in _UNIONS:
        return all(_fits(member, target, rule) for member in get_args(source))
    if get_origin(target) in _UNIONS:
        return any(_fits(source, member, rule) for member in get_args(target))
    if get_origin(source) is Literal:
        return all(is_instance_of(value, target) for value in get_args(source))
    # In Callable[..., T] the dots replace a list of types.
    return target is Ellipsis or _classes_fit(source, target, rule)


def _classes_fit(source: object, target: object, rule: _Rule) -> bool:
    source_class, target_class = _class_of(source), _class_of(target)
    if not isinstance(source_class, type) or not isinstance(target_class, type):
        return False
    if not _is_subclass(source_class, target_class, rule):
        return False
    if get_origin(target) is None:
        return True
    if target_class is tuple:
        return _tuples_fit(source, target, rule)
    wanted = get_args(target)
    given = _arguments(source, target_class) or (Any,) * len(wanted)
    return len(given) == len(wanted) and all(_fits(*pair, rule) for pair in zip(given, wanted, strict=True))


def _is_subclass(source: type, target: type, rule: _Rule) -> bool:
    if typing_extensions.is_typeddict(target):
        return typing_extensions.is_typeddict(source) and _fields_fit(source, target, rule)
    if typing_extensions.is_protocol(target):
        return target in source.__mro__ or all(
            any(name in vars(base) or name in inspect.get_annotations(base) for base in source.__mro__)
            for name in get_protocol_members(target)
        )
    try:
        return issubclass(source, target)
    except TypeError:
        return False


def _fields_fit(source: Any, target: Any, rule: _Rule) -> bool:
    given, wanted = _fields(source), _fields(target)
    return (
        _required_fields(target) <= _required_fields(source)
        and wanted.keys() <= given.keys()
        and all(_fits(given[key], wanted[key], rule) for key in wanted)
    )


def _tuples_fit(source: object, target: object, rule: _Rule) -> bool:
    given, wanted = _arguments(source, tuple), get_args(target)
    if not given and get_origin(source) is not tuple:
        if rule.any_fits:
            return True
        given = (Any, ...)
    if _is_repeated(given):
        return _is_repeated(wanted) and _fits(given[0], wanted[0], rule)
    items = _tuple_items(wanted, len(given))
    return items is not None and all(_fits(*pair, rule) for pair in zip(given, items, strict=True))


def _is_repeated(args: tuple[object, ...]) -> bool:
    """Return True for the arguments of a tuple of any length: `tuple[int, ...]`."""
    return len(args) == 2 and args[1] is Ellipsis  # noqa: PLR2004


def _tuple_items(args: tuple[object, ...], length: int) -> tuple[object, ...] | None:
    """Return the type of each item of a tuple of this length; None if the length is impossible.

    The items around an unpacked tuple (`*tuple[int, ...]`) are not checked.
    """
    if any(getattr(item, "__unpacked__", False) or get_origin(item) in _UNPACKS for item in args):
        return (Any,) * length
    if _is_repeated(args):
        return args[:1] * length
    return args if len(args) == length else None


def _mapping_arguments(origin: object, args: tuple[object, ...]) -> tuple[object, ...]:
    return (args[0], int) if origin is Counter else args


def _arguments(source: object, base: type) -> tuple[object, ...]:
    """Return the type arguments of `source` seen as its base class `base`; () if they are not known."""
    cls, args = _class_of(source), get_args(source)
    if cls is base:
        return args
    if args and cls in _MAPPINGS:
        return _mapping_arguments(cls, args) if base in _MAPPINGS else args[:1]
    if base in _COLLECTIONS or base in _MAPPINGS:
        known = args if cls in _COLLECTIONS else _content(cls, args, base)
        if known:
            return known
    for parent in typing_extensions.get_original_bases(cast("type", cls)):
        parent_class = _class_of(parent)
        if isinstance(parent_class, type) and issubclass(parent_class, base):
            return _arguments(_substituted(parent, getattr(cls, "__parameters__", ()), args), base)
    return ()


def _content(cls: Any, args: tuple[object, ...], base: type) -> tuple[object, ...]:
    """Return the element types of classes for which they are fixed."""
    if typing_extensions.is_typeddict(cls):
        values = tuple(_fields(cls).values())
        return (str, _union(values or (object,))) if base in _MAPPINGS else (str,)
    if cls is tuple and args:
        return (_union(args[:1] if _is_repeated(args) else args),)
    return _ELEMENTS.get(cls, ())


@dataclass(frozen=True, slots=True)
class Ranking:
    """Candidate types prepared for choosing: the members of all unions, and which is narrower than which.

    `exact` has the classes whose direct instances need no search.
    """

    members: tuple[object, ...]
    owners: tuple[int, ...]
    narrower: tuple[frozenset[int], ...]
    exact: Mapping[type, int]

    def best(self, value: object) -> int | None:
        """Return the index of the most specific type for `value`; None if none fits."""
        fitting = [place for place, member in enumerate(self.members) if is_instance_of(value, member)]
        for place in fitting:
            if self.narrower[place].isdisjoint(fitting):
                return self.owners[place]
        return None


def ranking_of(candidates: tuple[object, ...]) -> Ranking:
    """Prepare types for `most_specific`."""
    try:
        return _cached_ranking(candidates)
    except TypeError:  # metadata of an Annotated may be unhashable
        return _make_ranking(candidates)


def _make_ranking(candidates: tuple[object, ...]) -> Ranking:
    pairs = [(member, owner) for owner, candidate in enumerate(candidates) for member in split_union(candidate)]
    members = tuple(member for member, _ in pairs)
    narrower = tuple(
        frozenset(place for place, other in enumerate(members) if _is_narrower(other, member)) for member in members
    )
    exact: dict[type, int] = {}
    for (member, owner), rivals in zip(pairs, narrower, strict=True):
        if type(member) is type and not rivals:
            exact.setdefault(member, owner)
    return Ranking(members, tuple(owner for _, owner in pairs), narrower, exact)


_cached_ranking = functools.lru_cache(maxsize=512)(_make_ranking)


def _is_narrower(one: object, other: object) -> bool:
    rule = _Rule(any_fits=False)
    return _fits(one, other, rule) and not _fits(other, one, rule)
