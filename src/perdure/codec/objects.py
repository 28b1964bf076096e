"""Write and read objects: enums, dataclasses, named tuples, pydantic models and registered types.

Objects are read without running `__new__`, `__init__`, `__post_init__` or a validator of their class.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from enum import Enum, Flag
from typing import TYPE_CHECKING, Any, Protocol, cast

from perdure.codec.errors import Misfit, Refusal, attribute_step
from perdure.codec.memo import is_closed, keeps_all_in_dict, never_copy
from perdure.codec.reader import Node, require
from perdure.codec.writer import Writer, quote

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from perdure.codec.trust import Registration


class ObjectKind(Protocol):
    """Writes and reads the instances of one class."""

    tag: str

    def write(self, writer: Writer, value: Any, /) -> str:
        """Return the text of an instance."""
        ...

    def read(self, node: Node, /) -> Any:
        """Return the instance for a text."""
        ...


class Unfit(Exception):
    """Instances of this class can't be stored by their fields; the message says why."""


class EnumKind:
    """Stores a member by name, and a combination of flags by value."""

    tag = "enum"

    def __init__(self, cls: type, name: str) -> None:
        self._cls = cast("type[Enum]", cls)
        self._name = name
        self._head = head(self.tag, name)

    def write(self, writer: Writer, value: Any, /) -> str:
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
        return called(lambda: self._cls(value), self._name, f"the combination of flags {value}")


class CustomKind:
    """Stores a registered type with its `encode` and `decode` functions."""

    tag = "custom"

    def __init__(self, entry: Registration) -> None:
        self._entry = entry
        self._head = head(self.tag, entry.name)
        never_copy(entry.cls)

    def write(self, writer: Writer, value: Any, /) -> str:
        """Return the text of the encoded instance."""
        assert self._entry.encode is not None
        writer.immutable = False
        try:
            inner = self._entry.encode(value)
        except Exception as error:
            raise Refusal(
                f"the encode function registered for {self._entry.name!r} raised {error!r}", "fix the function"
            ) from error
        writer.enter(value)
        text = writer.child(inner)
        writer.leave(value)
        return f'{self._head},"value":{text}}}'

    def read(self, node: Node, /) -> Any:
        """Return the decoded instance."""
        decode, inner = self._entry.decode, node["value"]
        assert decode is not None
        return called(lambda: decode(inner), self._entry.name, "the registered decode function")


def head(tag: str, name: str) -> str:
    """Return the start of the text of every object of one class."""
    return f'{{"~":"{tag}","type":{quote(name)}'


def called(function: Callable[[], Any], type_name: str, what: str) -> Any:
    """Call a function of the program and turn any error into a Misfit."""
    try:
        return function()
    except Exception as error:
        raise Misfit(type_name, f"{what} raised {error!r}") from error


def read_object(kind: ObjectKind | None, node: Node) -> Any:
    """Read an object if its class is still of the kind that was written."""
    if kind is None or kind.tag != node["~"]:
        now = "no data type" if kind is None else f"of the kind {kind.tag!r}"
        raise Misfit(node["type"], f"it was stored as a {node['~']!r}, and the class is {now} now")
    return kind.read(node)


RECORD_KEYS = frozenset({"~", "type", "fields", "unset", "attributes", "set", "extra", "private"})
"""The keys that records of any kind may have."""

_TUPLE: Any = tuple


class RecordKind(ABC):
    """Stores an object as its fields, and further content under other keys."""

    tag: str
    can_be_immutable = False

    def __init__(self, cls: type, name: str, fields: Iterable[str]) -> None:
        self._cls: Any = cls
        self._name = name
        self._head = head(self.tag, name) + ',"fields":{'
        self._keys = {field: quote(field) + ":" for field in fields}
        self._names = list(self._keys)
        if "~" in self._keys:
            raise Unfit("it has a field named '~'")

    def write(self, writer: Writer, value: Any, /) -> str:
        """Return the text of an instance."""
        child = writer.child
        writer.enter(value)
        content = self._plain(value)
        if content is not None:
            further = ""
            texts = [f"{key}{child(content[name], attribute_step, name)}" for name, key in self._keys.items()]
        else:
            content = self._content(value)
            texts = [f"{self._keys[name]}{child(inner, attribute_step, name)}" for name, inner in content.items()]
            further = "".join(
                f',"{name}":{child(inner, attribute_step, name)}'
                for name, inner in self._further(value, content).items()
                if inner
            )
        writer.leave(value)
        if not self.can_be_immutable:
            writer.immutable = False
        return f"{self._head}{','.join(texts)}}}{further}}}"

    def _plain(self, value: Any) -> Mapping[str, Any] | None:
        """Return the field values of an instance that has all fields and nothing else; None for other instances."""
        del value
        return None

    @abstractmethod
    def read(self, node: Node, /) -> Any:
        """Return the instance for a text."""

    @abstractmethod
    def _content(self, value: Any) -> Mapping[str, Any]:
        """Return the values of the fields that are set."""

    @abstractmethod
    def _further(self, value: Any, content: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return further content by its key in the text. Empty content is left out."""

    @abstractmethod
    def _default(self, name: str, content: Mapping[str, Any]) -> Any:
        """Return the value of a field that was added to the class later, given the fields before it."""

    def _restored(self, node: Node) -> dict[str, Any]:
        """Return the stored field values, with defaults for fields that were added to the class later."""
        stored = require(node["fields"], dict, "fields")
        if "unset" not in node and stored.keys() == self._keys.keys():
            return stored if self._in_order(stored) else {name: stored[name] for name in self._keys}
        unset = require(node.get("unset", []), list, "unset")
        require_known(self._name, stored, self._keys)
        content: dict[str, Any] = {}
        for name in self._keys:
            if name in stored:
                content[name] = stored[name]
            elif name not in unset:
                content[name] = self._default(name, content)
        return content

    def _in_order(self, stored: Mapping[str, Any]) -> bool:
        return list(stored) == self._names

    def _missing(self, name: str) -> Misfit:
        return Misfit(self._name, f"field {name!r} is not stored, and the class has no default for it")


class DataclassKind(RecordKind):
    """Stores dataclasses, with attributes that are not fields."""

    tag = "dataclass"

    def __init__(self, cls: type, name: str) -> None:
        require_plain_layout(cls)
        self._fields: dict[str, dataclasses.Field[Any]] = {field.name: field for field in dataclasses.fields(cls)}
        self._slots = tuple(slot for slot in _slots(cls) if slot not in self._fields)
        super().__init__(cls, name, self._fields)
        self.can_be_immutable = is_closed(cls)
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
        if "attributes" in node:
            restore_attributes(instance, self._name, node, self._slots)
        return instance

    def _plain(self, value: Any) -> Mapping[str, Any] | None:
        if not self._is_plain:
            return None
        in_dict: dict[str, Any] = value.__dict__
        return in_dict if in_dict.keys() == self._keys.keys() else None

    def _content(self, value: Any) -> Mapping[str, Any]:
        return _attributes(value, self._fields)

    def _further(self, value: Any, content: Mapping[str, Any]) -> Mapping[str, Any]:
        in_dict: dict[str, Any] = getattr(value, "__dict__", {})
        others = {name: inner for name, inner in in_dict.items() if name not in self._fields}
        return {
            "unset": [name for name in self._fields if name not in content],
            "attributes": _attributes(value, self._slots) | others,
        }

    def _default(self, name: str, content: Mapping[str, Any]) -> Any:
        del content  # unlike pydantic's, the defaults of a dataclass don't depend on other fields
        field = self._fields[name]
        if field.default is not dataclasses.MISSING:
            return field.default
        if field.default_factory is not dataclasses.MISSING:
            return called(field.default_factory, self._name, f"the default of field {name!r}")
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
        restore_attributes(instance, self._name, node, ())
        return instance

    def _content(self, value: Any) -> Mapping[str, Any]:
        # Read as a plain tuple, because a subclass may hide a field behind a property.
        return dict(zip(self._keys, _TUPLE.__iter__(value), strict=True))

    def _further(self, value: Any, content: Mapping[str, Any]) -> Mapping[str, Any]:
        del content  # a tuple has all of its elements
        return {"attributes": getattr(value, "__dict__", {})}

    def _default(self, name: str, content: Mapping[str, Any]) -> Any:
        del content
        if name not in self._cls._field_defaults:
            raise self._missing(name)
        return self._cls._field_defaults[name]


class ModelKind(RecordKind):
    """Stores pydantic models."""

    tag = "model"

    def __init__(self, cls: type, name: str) -> None:
        require_plain_layout(cls)
        model: Any = cls
        self._fields: Mapping[str, Any] = model.model_fields
        super().__init__(cls, name, self._fields)

    def read(self, node: Node, /) -> Any:
        """Return the model for a text."""
        instance = object.__new__(self._cls)
        others = require(node.get("attributes", {}), dict, "attributes")
        _set_state(self._cls)(
            instance,
            {
                "__dict__": self._restored(node) | others,
                "__pydantic_extra__": self._extra(node),
                "__pydantic_fields_set__": set(require(node.get("set", []), list, "set")),
                "__pydantic_private__": self._private(node),
            },
        )
        return instance

    def _content(self, value: Any) -> Mapping[str, Any]:
        return {name: value.__dict__[name] for name in self._fields if name in value.__dict__}

    def _further(self, value: Any, content: Mapping[str, Any]) -> Mapping[str, Any]:
        in_dict: dict[str, Any] = value.__dict__
        private: dict[str, Any] = value.__pydantic_private__ or {}
        return {
            "unset": [name for name in self._fields if name not in content],
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
            return called(lambda: field.default_factory(dict(content)), self._name, what)
        return called(lambda: field.get_default(call_default_factory=True), self._name, what)

    def _extra(self, node: Node) -> dict[str, Any] | None:
        extra = require(node.get("extra", {}), dict, "extra")
        if self._cls.model_config.get("extra") == "allow":
            return extra
        require_known(self._name, extra, ())
        return None

    def _private(self, node: Node) -> dict[str, Any] | None:
        attributes: Mapping[str, Any] = self._cls.__private_attributes__
        stored = require(node.get("private", {}), dict, "private")
        require_known(self._name, stored, attributes)
        if not attributes:
            return None
        added = {
            name: called(attribute.get_default, self._name, f"the default of {name!r}")
            for name, attribute in attributes.items()
            if name not in stored
        }
        return {name: value for name, value in (stored | added).items() if _is_given(value)}


def require_plain_layout(cls: type) -> None:
    """Refuse a class with a base that has content of its own, such as `list` or `Exception`."""
    try:
        object.__new__(cls)
    except TypeError as error:
        builtin = next(base.__name__ for base in cls.__mro__ if base.__module__ == "builtins")
        why = str(error) if builtin == "object" else f"it extends {builtin}, whose content its fields don't hold"
        raise Unfit(why) from error


def require_known(type_name: str, stored: Iterable[str], fields: Iterable[str]) -> None:
    """Refuse stored fields that the class no longer has, instead of losing them silently."""
    for name in stored:
        if name not in fields:
            raise Misfit(type_name, f"field {name!r} is stored, but the class no longer has it")


def restore_attributes(instance: object, type_name: str, node: Node, slots: Iterable[str]) -> None:
    """Set attributes that are not fields without calling descriptors: a stored name must not reach code."""
    for name, value in require(node.get("attributes", {}), dict, "attributes").items():
        if name in slots:
            object.__setattr__(instance, name, value)
        elif hasattr(instance, "__dict__"):
            vars(instance)[require(name, str, "attributes")] = value
        else:
            raise Misfit(type_name, f"attribute {name!r} is stored, but the class has no place for it")


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


def _set_state(cls: type) -> Any:
    """Return pydantic's own `__setstate__`, even if the model overrides it."""
    owners = (base for base in cls.__mro__ if base.__module__.startswith("pydantic."))
    return next(vars(base)["__setstate__"] for base in owners if "__setstate__" in vars(base))
