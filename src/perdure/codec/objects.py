"""Objects by their class: the frame for all kinds of them, enums, and registered types with functions of their own."""

from __future__ import annotations

from enum import Enum, Flag
from typing import TYPE_CHECKING, Any, Protocol, cast

from perdure.codec.copy import never_copy
from perdure.codec.faults import Misfit, Refusal
from perdure.codec.read import Node, require
from perdure.codec.write import Writer, quote

if TYPE_CHECKING:
    from collections.abc import Callable

    from perdure.codec.trust import Registration


class ObjectKind(Protocol):
    """How the instances of one class are written and read."""

    tag: str

    def write(self, writer: Writer, value: Any, /) -> str:
        """The text of an instance."""
        ...

    def read(self, node: Node, /) -> Any:
        """The instance of a text."""
        ...


class Unfit(Exception):
    """Instances of this class can't be stored by their fields; the message says why."""


class EnumKind:
    """A member by its name; a combination of flags, which has none, by its value."""

    tag = "enum"

    def __init__(self, cls: type, name: str) -> None:
        self._cls = cast("type[Enum]", cls)
        self._name = name
        self._head = head(self.tag, name)

    def write(self, writer: Writer, value: Any, /) -> str:
        """The text of a member."""
        name = value._name_
        if self._cls.__members__.get(name) is value:
            return f'{self._head},"name":{quote(name)}}}'
        if isinstance(value, Flag):
            return f'{self._head},"value":{writer.child(value._value_)}}}'
        raise Refusal(f"it is no member of {self._name!r}", "use a member that the class defines")

    def read(self, node: Node, /) -> Any:
        """The member of a text."""
        if "name" in node:
            member = self._cls.__members__.get(require(node["name"], str, "name"))
            if member is None:
                raise Misfit(self._name, f"member {node['name']!r} is stored, the enum no longer has it")
            return member
        if not issubclass(self._cls, Flag):
            raise Misfit(self._name, "it was stored as a combination of flags, and is no Flag any more")
        value = require(node.get("value"), int, "value")
        return called(lambda: self._cls(value), self._name, f"the combination of flags {value}")


class CustomKind:
    """A registered type with functions of its own."""

    tag = "custom"

    def __init__(self, entry: Registration) -> None:
        self._entry = entry
        self._head = head(self.tag, entry.name)
        never_copy(entry.cls)

    def write(self, writer: Writer, value: Any, /) -> str:
        """The text of what the type's `encode` makes of an instance."""
        assert self._entry.encode is not None
        writer.immutable = False
        try:
            inner = self._entry.encode(value)
        except Exception as error:
            raise Refusal(
                f"the encode function that is registered for {self._entry.name!r} raised {error!r}", "mend the function"
            ) from error
        writer.enter(value)
        text = writer.child(inner)
        writer.leave(value)
        return f'{self._head},"value":{text}}}'

    def read(self, node: Node, /) -> Any:
        """What the type's `decode` makes of a stored value."""
        decode, inner = self._entry.decode, node["value"]
        assert decode is not None
        return called(lambda: decode(inner), self._entry.name, "the registered decode function")


def head(tag: str, name: str) -> str:
    """The beginning of the text of every object of one class."""
    return f'{{"~":"{tag}","type":{quote(name)}'


def called(function: Callable[[], Any], type_name: str, what: str) -> Any:
    """What a function of the program returns."""
    try:
        return function()
    except Exception as error:
        raise Misfit(type_name, f"{what} raised {error!r}") from error


def read_object(kind: ObjectKind | None, node: Node) -> Any:
    """The object of a class that was looked up, if the class is still of the kind that was written."""
    if kind is None or kind.tag != node["~"]:
        now = "no data type" if kind is None else f"of the kind {kind.tag!r}"
        raise Misfit(node["type"], f"it was stored as a {node['~']!r}, and the class is {now} now")
    return kind.read(node)
