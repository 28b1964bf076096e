"""Write and read objects: enums, dataclasses, named tuples, pydantic models, registered types, and types themselves.

Objects are read without running `__new__`, `__init__`, `__post_init__` or a validator of their class. Only pickles, for
programs that opt in, can run any code: their store must be trusted like code.
"""

from __future__ import annotations

import dataclasses
import io
import pickle  # noqa: TID251 - for programs that opt in
import types
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from enum import Flag
from functools import lru_cache
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin

from perdure.codec.builtin_types import read_bytes, write_bytes
from perdure.codec.encoded import require
from perdure.codec.errors import Misfit, Refusal, Untrusted, argument_step, attribute_step, unfit, untrusted
from perdure.codec.reader import Node, Read, Reader, Tag
from perdure.codec.trust import Registration, is_enum, is_model, is_named_tuple, registration, stored_name
from perdure.codec.writer import ValueWriter, Write, keeps_all_in_dict, never_copy, quote, type_of
from perdure.log import Log
from perdure.stored_names import find_pinned
from perdure.typenames import describe, is_plain_generic, type_name


class ObjectKind(ABC):
    """Writes and reads the instances of one class."""

    tag: str

    def __init__(self, cls: type, name: str) -> None:
        self._cls: Any = cls
        self._name = name
        self._head = f'{{"~":"{self.tag}","type":{quote(name)}'

    @abstractmethod
    def write(self, writer: ValueWriter, value: Any, /) -> str:
        """Return the text of an instance."""

    @abstractmethod
    def read(self, node: Node, /) -> Any:
        """Return the instance for a text."""

    def _called(self, function: Callable[[], Any], what: str) -> Any:
        return called(function, self._name, what)


def called(function: Callable[[], Any], type_name: str, what: str) -> Any:
    """Call a function of the program and turn any error into a Misfit."""
    try:
        return function()
    except Exception as error:
        raise Misfit(type_name, f"{what} raised {error!r}") from error


class EnumKind(ObjectKind):
    """Stores a member by name, and a combination of flags by value."""

    tag = "enum"

    def write(self, writer: ValueWriter, value: Any, /) -> str:
        """Return the text of a member."""
        name = value._name_
        if self._cls.__members__.get(name) is value:
            return f'{self._head},"name":{quote(name)}}}'
        if isinstance(value, Flag):
            return f'{self._head},"value":{writer.child(value._value_)}}}'
        raise Refusal(f"it is not a member of {self._name!r}", "use a member that the class defines")

    def read(self, node: Node, /) -> Any:
        """Return the member for a text."""
        if "name" in node:
            member = self._cls.__members__.get(require(node["name"], str, "name"))
            if member is None:
                raise Misfit(self._name, f"member {node['name']!r} is stored, but the enum no longer has it")
            return member
        if not issubclass(self._cls, Flag):
            raise Misfit(self._name, "it was stored as a combination of flags, and is no longer a Flag")
        value = require(node.get("value"), int, "value")
        return self._called(lambda: self._cls(value), f"the combination of flags {value}")


class CustomKind(ObjectKind):
    """Stores a registered type with its `encode` and `decode` functions."""

    tag = "custom"

    def __init__(self, entry: Registration) -> None:
        super().__init__(entry.cls, entry.name)
        self._entry = entry
        never_copy(entry.cls)

    def write(self, writer: ValueWriter, value: Any, /) -> str:
        """Return the text of the encoded instance."""
        assert self._entry.encode is not None
        writer.immutable = False
        try:
            inner = self._entry.encode(value)
        except Exception as error:
            raise Refusal(
                f"the encode function registered for {self._name!r} raised {error!r}", "fix the function"
            ) from error
        writer.enter(value)
        text = writer.child(inner)
        writer.leave(value)
        return f'{self._head},"value":{text}}}'

    def read(self, node: Node, /) -> Any:
        """Return the decoded instance."""
        decode, inner = self._entry.decode, node["value"]
        assert decode is not None
        return self._called(lambda: decode(inner), "the registered decode function")


_TUPLE: Any = tuple


class RecordKind(ObjectKind):
    """Stores an object as its fields, and further content under other keys."""

    can_be_immutable = False

    def __init__(self, cls: type, name: str, fields: Iterable[str]) -> None:
        super().__init__(cls, name)
        self._keys = {field: quote(field) + ":" for field in fields}
        if "~" in self._keys:
            raise unfit(cls, "it has a field named '~'")

    def write(self, writer: ValueWriter, value: Any, /) -> str:
        """Return the text of an instance."""
        writer.enter(value)
        content, further = self._parts(value)
        texts = [f"{self._keys[name]}{writer.child(inner, attribute_step, name)}" for name, inner in content.items()]
        more = [f',"{name}":{writer.child(inner, attribute_step, name)}' for name, inner in further.items() if inner]
        writer.leave(value)
        if not self.can_be_immutable:
            writer.immutable = False
        return f'{self._head},"fields":{{{",".join(texts)}}}{"".join(more)}}}'

    @abstractmethod
    def _parts(self, value: Any) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """Return the values of the fields that are set, and further content by its key in the text."""

    @abstractmethod
    def _default(self, name: str, content: Mapping[str, Any]) -> Any:
        """Return the value of a field that was added to the class later, given the fields before it."""

    def _restored(self, node: Node) -> dict[str, Any]:
        """Return the stored field values, with defaults for fields that were added to the class later."""
        stored = require(node["fields"], dict, "fields")
        unset = require(node.get("unset", []), list, "unset")
        self._require_known(stored, self._keys)
        content: dict[str, Any] = {}
        for name in self._keys:
            if name in stored:
                content[name] = stored[name]
            elif name not in unset:
                content[name] = self._default(name, content)
        return content

    def _require_known(self, stored: Iterable[str], fields: Iterable[str]) -> None:
        """Refuse stored fields that the class no longer has, instead of losing them silently."""
        for name in stored:
            if name not in fields:
                raise Misfit(self._name, f"field {name!r} is stored, but the class no longer has it")

    def _restore_attributes(self, instance: object, node: Node, slots: Iterable[str] = ()) -> None:
        """Set attributes that are not fields without calling descriptors: a stored name must not reach code."""
        for name, value in require(node.get("attributes", {}), dict, "attributes").items():
            if name in slots:
                object.__setattr__(instance, name, value)
            elif hasattr(instance, "__dict__"):
                vars(instance)[require(name, str, "attributes")] = value
            else:
                raise Misfit(self._name, f"attribute {name!r} is stored, but the class has no place for it")

    def _missing(self, name: str) -> Misfit:
        return Misfit(self._name, f"field {name!r} is not stored, and the class has no default for it")


class DataclassKind(RecordKind):
    """Stores dataclasses, with attributes that are not fields."""

    tag = "dataclass"

    def __init__(self, cls: type, name: str) -> None:
        _require_plain_layout(cls)
        self._fields: dict[str, dataclasses.Field[Any]] = {field.name: field for field in dataclasses.fields(cls)}
        self._slots = tuple(slot for slot in _slots(cls) if slot not in self._fields)
        super().__init__(cls, name, self._fields)
        # A class with a `__dict__` can change even if it is frozen: `cached_property` writes into it. A base that is
        # not a dataclass may add slots that `fields` does not show.
        parameters: Any = vars(cls).get("__dataclass_params__")
        is_frozen = parameters is not None and parameters.frozen and cls.__bases__ == (object,)
        self.can_be_immutable = is_frozen and cls.__dictoffset__ == 0
        self._is_plain = keeps_all_in_dict(cls)

    def read(self, node: Node, /) -> Any:
        """Return the instance for a text."""
        instance = object.__new__(self._cls)
        content = self._restored(node)
        if self._is_plain:
            instance.__dict__.update(content)
        else:
            for name, value in content.items():
                object.__setattr__(instance, name, value)
        self._restore_attributes(instance, node, self._slots)
        return instance

    def _parts(self, value: Any) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        content = _attributes(value, self._fields)
        in_dict: dict[str, Any] = getattr(value, "__dict__", {})
        others = {name: inner for name, inner in in_dict.items() if name not in self._fields}
        return content, {
            "unset": [name for name in self._fields if name not in content],
            "attributes": _attributes(value, self._slots) | others,
        }

    def _default(self, name: str, content: Mapping[str, Any]) -> Any:
        del content  # unlike pydantic's, the defaults of a dataclass don't depend on other fields
        field = self._fields[name]
        if field.default is not dataclasses.MISSING:
            return field.default
        if field.default_factory is not dataclasses.MISSING:
            return self._called(field.default_factory, f"the default of field {name!r}")
        raise self._missing(name)


class NamedTupleKind(RecordKind):
    """Stores named tuples by name, not by position."""

    tag = "namedtuple"

    def __init__(self, cls: type, name: str) -> None:
        fields: tuple[str, ...] = vars(next(base for base in cls.__mro__ if "_fields" in vars(base)))["_fields"]
        super().__init__(cls, name, fields)
        self.can_be_immutable = cls.__dictoffset__ == 0

    def read(self, node: Node, /) -> Any:
        """Return the instance for a text."""
        instance = _TUPLE.__new__(self._cls, self._restored(node).values())
        self._restore_attributes(instance, node)
        return instance

    def _parts(self, value: Any) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        # Read as a plain tuple, because a subclass may hide a field behind a property.
        content = dict(zip(self._keys, _TUPLE.__iter__(value), strict=True))
        return content, {"attributes": getattr(value, "__dict__", {})}

    def _default(self, name: str, content: Mapping[str, Any]) -> Any:
        del content
        if name not in self._cls._field_defaults:
            raise self._missing(name)
        return self._cls._field_defaults[name]


class ModelKind(RecordKind):
    """Stores pydantic models."""

    tag = "model"

    def __init__(self, cls: type, name: str) -> None:
        _require_plain_layout(cls)
        self._fields: Mapping[str, Any] = cast("Any", cls).model_fields
        super().__init__(cls, name, self._fields)

    def read(self, node: Node, /) -> Any:
        """Return the model for a text."""
        instance = object.__new__(self._cls)
        others = require(node.get("attributes", {}), dict, "attributes")
        state = {
            "__dict__": self._restored(node) | others,
            "__pydantic_extra__": self._extra(node),
            "__pydantic_fields_set__": set(require(node.get("set", []), list, "set")),
            "__pydantic_private__": self._private(node),
        }
        # pydantic's own `__setstate__`, even if the model overrides it.
        owners: list[type] = [base for base in self._cls.__mro__ if base.__module__.startswith("pydantic.")]
        vars(next(base for base in owners if "__setstate__" in vars(base)))["__setstate__"](instance, state)
        return instance

    def _parts(self, value: Any) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        in_dict: dict[str, Any] = value.__dict__
        private: dict[str, Any] = value.__pydantic_private__ or {}
        return {name: in_dict[name] for name in self._fields if name in in_dict}, {
            "unset": [name for name in self._fields if name not in in_dict],
            "set": sorted(value.__pydantic_fields_set__),
            "attributes": {name: inner for name, inner in in_dict.items() if name not in self._fields},
            "extra": value.__pydantic_extra__,
            "private": {name: inner for name, inner in private.items() if _is_given(inner)},
        }

    def _default(self, name: str, content: Mapping[str, Any]) -> Any:
        field = self._fields[name]
        if field.is_required():
            raise self._missing(name)
        what = f"the default of field {name!r}"
        if getattr(field, "default_factory_takes_validated_data", False):
            return self._called(lambda: field.default_factory(dict(content)), what)
        return self._called(lambda: field.get_default(call_default_factory=True), what)

    def _extra(self, node: Node) -> dict[str, Any] | None:
        extra = require(node.get("extra", {}), dict, "extra")
        if self._cls.model_config.get("extra") == "allow":
            return extra
        self._require_known(extra, ())
        return None

    def _private(self, node: Node) -> dict[str, Any] | None:
        attributes: Mapping[str, Any] = self._cls.__private_attributes__
        stored = require(node.get("private", {}), dict, "private")
        self._require_known(stored, attributes)
        if not attributes:
            return None
        added = {
            name: self._called(attribute.get_default, f"the default of {name!r}")
            for name, attribute in attributes.items()
            if name not in stored
        }
        return {name: value for name, value in (stored | added).items() if _is_given(value)}


def _require_plain_layout(cls: type) -> None:
    """Refuse a class with a base that has content of its own, such as `list` or `Exception`."""
    try:
        object.__new__(cls)
    except TypeError as error:
        builtin = next(base.__name__ for base in cls.__mro__ if base.__module__ == "builtins")
        why = str(error) if builtin == "object" else f"it extends {builtin}, whose content its fields don't hold"
        raise unfit(cls, why) from error


def _attributes(value: object, names: Iterable[str]) -> dict[str, Any]:
    """Return the attributes that have a value. An empty slot has none."""
    found: dict[str, Any] = {}
    for name in names:
        try:
            found[name] = getattr(value, name)
        except AttributeError:
            continue
    return found


def _slots(cls: type) -> list[str]:
    """Return the names of all slots, with private names mangled."""
    names: list[str] = []
    for base in cls.__mro__:
        slots = vars(base).get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            private = slot.startswith("__") and not slot.endswith("__")
            names.append(f"_{base.__name__.lstrip('_')}{slot}" if private else slot)
    return [name for name in names if name not in ("__dict__", "__weakref__")]


def _is_given(value: object) -> bool:
    """Return False for pydantic's marker of a private attribute that was not set."""
    return type(value).__name__ != "PydanticUndefinedType"


# The order matters: an enum or a model may also be a dataclass.
_KINDS: tuple[tuple[Callable[[type], bool], Callable[[type, str], ObjectKind]], ...] = (
    (is_enum, EnumKind),
    (is_named_tuple, NamedTupleKind),
    (is_model, ModelKind),
    (dataclasses.is_dataclass, DataclassKind),
)


def object_kind(cls: type) -> ObjectKind | None:
    """Return the kind of a class; None if it is no data type. Raises Refusal if it holds more than its fields."""
    return _made_kind(cls, registration(cls))


@lru_cache(maxsize=4096)
def _made_kind(cls: type, entry: Registration | None) -> ObjectKind | None:
    if entry is not None and entry.encode is not None:
        return CustomKind(entry)
    make = next((make for is_of_kind, make in _KINDS if is_of_kind(cls)), None)
    return None if make is None else make(cls, stored_name(cls))


def _read_object(reader: Reader, node: Node) -> Any:
    """Read an object if its class is still of the kind that was written."""
    cls = reader.trusted(node["type"])
    try:
        kind = object_kind(cls)
    except Refusal as refusal:
        raise Misfit(node["type"], refusal.reason) from refusal
    if kind is None or kind.tag != node["~"]:
        now = "no data type" if kind is None else f"of the kind {kind.tag!r}"
        raise Misfit(node["type"], f"it was stored as a {node['~']!r}, and the class is {now} now")
    return kind.read(node)


def write_pickle(writer: ValueWriter, value: object) -> str:
    """Write a value that only pickle can store."""
    writer.immutable = False
    cls = type(value)
    never_copy(cls)
    try:
        data = pickle.dumps(value, protocol=5)
    except Exception as error:
        raise unfit(cls, f"pickling it raised {error!r}") from error
    return write_bytes(writer, data, f'{{"~":"pickle","type":{quote(type_name(cls))}')


def _read_pickle(reader: Reader, node: Node) -> Any:
    data = read_bytes(reader, node)
    value: Any = called(lambda: _Unpickler(io.BytesIO(data)).load(), str(node.get("type")), "unpickling it")
    never_copy(type_of(value))
    return value


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str, /) -> Any:
        """Find a class. Those of perdure may have moved since the pickle was written."""
        return find_pinned(f"{module}:{name}") or super().find_class(module, name)


def _refuse_pickle(_: Reader, node: Node) -> Any:
    raise Untrusted(f"pickle of {require(node['type'], str, 'type')}")


PICKLE_TAGS = [Tag.of(read, "type", "base64", "part") for read in (_refuse_pickle, _read_pickle)]
"""The readers of pickles: for programs that do not allow them, and for those that do."""


# The aliases of `typing` don't equal what they stand for (`List[int] != list[int]`), so they have their own names.
_TYPING_ALIASES: Mapping[str, Any] = {
    f"typing:{name}": getattr(typing, name)
    for name in (
        *("List", "Dict", "Set", "FrozenSet", "Tuple", "Type", "Deque", "DefaultDict", "OrderedDict", "Counter"),
        *("Iterable", "Collection", "Sequence", "MutableSequence"),
        *("Mapping", "MutableMapping", "AbstractSet", "MutableSet"),
    )
}
_TYPING_NAMES = {get_origin(alias): name for name, alias in _TYPING_ALIASES.items()}


def write_class(writer: ValueWriter, value: type) -> str:
    """Write a class by name."""
    return f'{{"~":"type","name":{_trusted_name(writer, value)}}}'


def _write_alias(writer: ValueWriter, value: Any) -> str:
    origin: Any = get_origin(value)
    is_typing = type(value) is not types.GenericAlias
    if is_typing and origin in _TYPING_NAMES:
        name = quote(_TYPING_NAMES[origin])
    elif is_typing and not (isinstance(origin, type) and _is_plain_generic(origin)):
        raise _no_kind(value)
    else:
        name = _trusted_name(writer, origin)
    return f'{{"~":"type","name":{name},"args":[{_arguments(writer, value)}]}}'


def _write_bare_alias(_: ValueWriter, value: Any) -> str:
    name = _TYPING_NAMES.get(get_origin(value))
    if name is None or _TYPING_ALIASES[name] is not value:
        raise _no_kind(value)
    return f'{{"~":"type","name":"{name}"}}'


def _write_form(tag: str) -> Write:
    """Return the writer of a special form, which has only arguments."""
    return lambda writer, value: f'{{"~":"{tag}","args":[{_arguments(writer, value)}]}}'


def _arguments(writer: ValueWriter, value: object) -> str:
    writer.enter(value)
    texts = [writer.child(argument, argument_step, index) for index, argument in enumerate(get_args(value))]
    writer.leave(value)
    return ",".join(texts)


def _trusted_name(writer: ValueWriter, cls: type) -> str:
    if not writer.codec.trust.trusts(cls):
        raise untrusted(cls, writer.codec.trust)
    return quote(stored_name(cls))


def _read_type(reader: Reader, node: Node) -> Any:
    alias = _TYPING_ALIASES.get(require(node["name"], str, "name"))
    cls: Any = reader.trusted(node["name"]) if alias is None else alias
    if "args" not in node:
        return cls
    arguments = _read_arguments(node)
    if alias is not None or _is_plain_generic(cls):
        return cls[arguments]
    return types.GenericAlias(cls, arguments)


def _read_union(make: Callable[[Any], Any]) -> Read:
    def read(_: Reader, node: Node) -> Any:
        expression = make(_read_arguments(node))
        # The operands may not be types, and then the bar means something else.
        if get_origin(expression) not in (Union, types.UnionType):
            raise TypeError(f"{expression!r} is not a union")
        return expression

    return read


def _joined(arguments: tuple[Any, ...]) -> Any:
    first, *others = arguments
    for other in others:
        first = first | other
    return first


def _read_arguments(node: Node) -> Any:
    return tuple(require(node["args"], list, "args"))


def _is_plain_generic(cls: Any) -> bool:
    return cls is Log or is_plain_generic(cls)


def _no_kind(value: object) -> Refusal:
    return Refusal(f"{describe(value)} is a kind of type expression that can't be stored", "store its name instead")


def _refuse_form(_: ValueWriter, value: Any) -> str:
    raise _no_kind(value)


TYPE_KINDS: Mapping[type, Write] = {
    types.GenericAlias: _write_alias,
    type_of(typing.List[int]): _write_alias,  # noqa: UP006  the alias is meant
    type_of(typing.List): _write_bare_alias,  # noqa: UP006
    type_of(typing.Tuple): _write_bare_alias,  # noqa: UP006
    type_of(Union[int, str]): _write_form("Union"),  # noqa: UP007
    type_of(int | str): _write_form("union"),
    type_of(Literal[1]): _write_form("Literal"),
    type_of(Annotated[int, 1]): _write_form("Annotated"),
    type_of(Callable[[], None]): _refuse_form,
    type_of(typing.Callable[[], None]): _refuse_form,
}

_TYPE_TAGS: Mapping[str, Tag] = {
    "type": Tag.of(_read_type, "name", "args"),
    "union": Tag.of(_read_union(_joined), "args"),
    "Union": Tag.of(_read_union(lambda given: Union[given]), "args"),  # noqa: UP007  the arguments are a value
    "Literal": Tag.of(lambda _, node: Literal[_read_arguments(node)], "args"),
    "Annotated": Tag.of(lambda _, node: Annotated[_read_arguments(node)], "args"),
}

_RECORD_KEYS = ("type", "fields", "unset", "attributes", "set", "extra", "private")

OBJECT_TAGS: Mapping[str, Tag] = {
    EnumKind.tag: Tag.of(_read_object, "type", "name", "value"),
    CustomKind.tag: Tag.of(_read_object, "type", "value"),
    **_TYPE_TAGS,
    **{kind.tag: Tag.of(_read_object, *_RECORD_KEYS) for kind in (NamedTupleKind, ModelKind, DataclassKind)},
}
