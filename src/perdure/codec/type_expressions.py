"""Write and read type expressions: classes, generics, unions, literals."""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

from perdure.codec.errors import Refusal, untrusted
from perdure.codec.reader import Node, Reader, Tag, require
from perdure.codec.trust import stored_name
from perdure.codec.writer import Write, Writer, quote
from perdure.log import Log
from perdure.typenames import describe, is_plain_generic

if TYPE_CHECKING:
    from collections.abc import Mapping

# The aliases of `typing` don't equal what they stand for (`List[int] != list[int]`), so they have their own names.
_TYPING_ALIASES: Mapping[str, Any] = {
    f"typing:{name}": getattr(typing, name)
    for name in (
        *("List", "Dict", "Set", "FrozenSet", "Tuple", "Type", "Deque", "DefaultDict", "OrderedDict", "Counter"),
        *("Iterable", "Collection", "Sequence", "MutableSequence"),
        *("Mapping", "MutableMapping", "AbstractSet", "MutableSet"),
    )
}
_STEP = ".__args__[{}]".format

_TYPING_NAMES = {get_origin(alias): name for name, alias in _TYPING_ALIASES.items()}


def write_class(writer: Writer, value: type) -> str:
    """Write a class by name."""
    return f'{{"~":"type","name":{_trusted_name(writer, value)}}}'


def _write_alias(writer: Writer, value: types.GenericAlias) -> str:
    return _generic(writer, value, _trusted_name(writer, get_origin(value)))


def _write_typing_alias(writer: Writer, value: Any) -> str:
    origin: Any = get_origin(value)
    if origin in _TYPING_NAMES:
        return _generic(writer, value, quote(_TYPING_NAMES[origin]))
    if not isinstance(origin, type) or not _is_plain_generic(origin):
        raise _no_kind(value)
    return _generic(writer, value, _trusted_name(writer, origin))


def _write_bare_alias(_: Writer, value: Any) -> str:
    name = _TYPING_NAMES.get(get_origin(value))
    if name is None or _TYPING_ALIASES[name] is not value:
        raise _no_kind(value)
    return f'{{"~":"type","name":"{name}"}}'


def _write_union(writer: Writer, value: types.UnionType) -> str:
    return f'{{"~":"union","args":[{_arguments(writer, value)}]}}'


def _write_typing_union(writer: Writer, value: Any) -> str:
    return f'{{"~":"Union","args":[{_arguments(writer, value)}]}}'


def _write_literal(writer: Writer, value: Any) -> str:
    return f'{{"~":"Literal","args":[{_arguments(writer, value)}]}}'


def _write_annotated(writer: Writer, value: Any) -> str:
    return f'{{"~":"Annotated","args":[{_arguments(writer, value)}]}}'


def _generic(writer: Writer, value: object, name: str) -> str:
    return f'{{"~":"type","name":{name},"args":[{_arguments(writer, value)}]}}'


def _arguments(writer: Writer, value: object) -> str:
    writer.enter(value)
    texts = [writer.child(argument, _STEP, index) for index, argument in enumerate(get_args(value))]
    writer.leave(value)
    return ",".join(texts)


def _trusted_name(writer: Writer, cls: type | None) -> str:
    if cls is None or not writer.trust.trusts(cls):
        raise untrusted(cls or object, writer.trust)
    return quote(stored_name(cls))


def _read_type(reader: Reader, node: Node) -> Any:
    alias = _TYPING_ALIASES.get(require(node["name"], str, "name"))
    cls: Any = reader.trusted(node["name"]) if alias is None else alias
    if "args" not in node:
        return cls
    arguments = _read_arguments(node)
    if alias is not None:
        return alias[arguments]
    if _is_plain_generic(cls):
        return cls[arguments]
    return types.GenericAlias(cls, arguments)


def _read_union(_: Reader, node: Node) -> Any:
    first, *others = _read_arguments(node)
    return _require_union(functools.reduce(lambda union, other: union | other, others, first))


def _read_typing_union(_: Reader, node: Node) -> Any:
    return _require_union(Union[_read_arguments(node)])  # noqa: UP007  the arguments are a value


def _require_union(expression: Any) -> Any:
    # The operands may not be types, and then the bar means something else.
    if get_origin(expression) not in (Union, types.UnionType):
        raise TypeError(f"{expression!r} is not a union")
    return expression


def _read_literal(_: Reader, node: Node) -> Any:
    return Literal[_read_arguments(node)]


def _read_annotated(_: Reader, node: Node) -> Any:
    return Annotated[_read_arguments(node)]


def _read_arguments(node: Node) -> Any:
    return tuple(require(node["args"], list, "args"))


def _is_plain_generic(cls: Any) -> bool:
    return cls is Log or is_plain_generic(cls)


def _no_kind(value: object) -> Refusal:
    return Refusal(f"{describe(value)} is a kind of type expression that can't be stored", "store its name instead")


def _refuse(_: Writer, value: Any) -> str:
    raise _no_kind(value)


def _type_of(expression: object) -> type:
    return type(expression)


TYPE_KINDS: Mapping[type, Write] = {
    types.GenericAlias: _write_alias,
    _type_of(typing.List[int]): _write_typing_alias,  # noqa: UP006  the alias is meant
    _type_of(typing.List): _write_bare_alias,  # noqa: UP006
    _type_of(typing.Tuple): _write_bare_alias,  # noqa: UP006
    _type_of(Union[int, str]): _write_typing_union,  # noqa: UP007
    _type_of(int | str): _write_union,
    _type_of(Literal[1]): _write_literal,
    _type_of(Annotated[int, 1]): _write_annotated,
    _type_of(Callable[[], None]): _refuse,
    _type_of(typing.Callable[[], None]): _refuse,
}

TYPE_TAGS: Mapping[str, Tag] = {
    "type": Tag.of(_read_type, "name", "args"),
    "union": Tag.of(_read_union, "args"),
    "Union": Tag.of(_read_typing_union, "args"),
    "Literal": Tag.of(_read_literal, "args"),
    "Annotated": Tag.of(_read_annotated, "args"),
}
