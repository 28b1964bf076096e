"""The codec's memory: leaves it has written, chunks it has read, and copies of decoded values.

`str` and `bytes` can't change, so identity proves equality: what was hashed or decoded once is not hashed or decoded
again. An entry lives as long as an encoded value holds it; the memo itself holds nothing.
"""

from __future__ import annotations

import dataclasses
import pathlib
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from functools import cached_property
from operator import is_
from types import EllipsisType, NoneType
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar
from uuid import UUID
from weakref import ref
from zoneinfo import ZoneInfo

from perdure.codec.trust import is_enum, is_model, is_named_tuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from perdure.records import Blob

ATOMS: set[type] = {
    *(NoneType, bool, int, float, complex, str, bytes, EllipsisType, range),
    *(datetime, date, time, timedelta, timezone),
    *(pathlib.PurePosixPath, pathlib.PureWindowsPath, type(pathlib.Path())),
    *(Decimal, Fraction, UUID, ZoneInfo),
}
"""Types whose instances can't change. Subclasses don't count."""


type_of: Callable[[Any], type] = type
"""`type`, without the narrowing that type checkers do."""


_new: Callable[[type], Any] = object.__new__


class Uncopyable(Exception):
    """The value can't be copied and must be decoded again."""


def copied(elements: Sequence[Any]) -> list[Any]:
    """Copy the elements of a decoded chunk. Raises Uncopyable."""
    return [element if type(element) in ATOMS else _copy(element) for element in elements]


def is_immutable(value: Any) -> bool:
    """Return True if nothing inside a value can change."""
    cls = type_of(value)
    if cls in ATOMS:
        return True
    if cls is tuple or cls is frozenset:
        return all(map(is_immutable, value))
    if is_enum(cls):
        return True
    if is_named_tuple(cls):
        return cls.__dictoffset__ == 0 and all(map(is_immutable, value))
    return _is_frozen(cls) and all(map(is_immutable, _held(value))) and not _has_more(value)


def spare(value: Any) -> Any:
    """Copy a small frozen dataclass that can be given out as copies of this copy; None for other values."""
    cls = type_of(value)
    if not _is_frozen(cls) or (_copiers.get(cls) or _made_copier(cls)) is not _copied_record:
        return None
    return _copied_record(value) if ATOMS.issuperset(map(type, value.__dict__.values())) else None


def is_unchanged(value: Any, copy: Any) -> bool:
    """Return True if a value equals its earlier copy: the same leaves in a structure of the same types."""
    if value is copy:
        return True
    cls = type_of(value)
    if cls in ATOMS or cls is not type_of(copy):
        return False
    if cls is dict:
        return _has_same(value, copy)
    if cls is list or cls is tuple:
        return len(value) == len(copy) and all(map(is_unchanged, value, copy))
    copier = _copiers.get(cls)
    if copier is _copied_record:
        return _has_same(value.__dict__, copy.__dict__)
    return copier is _copied_model and _is_same_model(value, copy)


def _has_same(values: Mapping[Any, Any], copies: Mapping[Any, Any]) -> bool:
    if len(values) != len(copies) or not all(map(is_, values, copies)):
        return False
    return all(map(is_unchanged, values.values(), copies.values()))


def _is_same_model(value: Any, copy: Any) -> bool:
    return (
        value.__pydantic_extra__ is None
        and value.__pydantic_private__ is None
        and value.__pydantic_fields_set__ == copy.__pydantic_fields_set__
        and _has_same(value.__dict__, copy.__dict__)
    )


def anchor(element: Any) -> object:
    """Return an object inside an element that stays the same object as long as the element does not change."""
    cls = type_of(element)
    if cls is dict:
        inside: Any = element
    elif _copiers.get(cls) in _BY_ATTRIBUTES:
        inside = element.__dict__
    else:
        return element
    texts = [value for value in inside.values() if type_of(value) is str]
    return max(texts, key=len) if texts else element


def keeps_all_in_dict(cls: type) -> bool:
    """Return True if a dataclass keeps all fields in `__dict__`, not in slots or behind descriptors."""
    bases = cls.__mro__
    if any(vars(base).get("__slots__") for base in bases) or cls.__dictoffset__ == 0:
        return False
    names = [each.name for each in dataclasses.fields(cls)]
    found: Iterable[Any] = (vars(base)[name] for name in names for base in bases if name in vars(base))
    return not any(hasattr(type_of(attribute), "__set__") for attribute in found)


def is_closed(cls: type) -> bool:
    """Return True if instances of a dataclass can't change, apart from the contents of their fields.

    A class with a `__dict__` can, because `cached_property` writes into it even if the class is frozen.
    """
    return cls.__dictoffset__ == 0 and _is_frozen(cls)


def _is_frozen(cls: type) -> bool:
    # A base that is not a dataclass may add slots that `fields` does not show.
    parameters: Any = vars(cls).get("__dataclass_params__")
    return parameters is not None and parameters.frozen and cls.__bases__ == (object,)


def _held(value: Any) -> list[object]:
    return [getattr(value, each.name, None) for each in dataclasses.fields(value)]


def _has_more(value: Any) -> bool:
    """Return True if an instance has attributes that are not fields, or gets some later."""
    in_dict: Mapping[str, Any] = getattr(value, "__dict__", {})
    if len(in_dict) > len(dataclasses.fields(value)):
        return True
    return any(isinstance(each, cached_property) for each in vars(type_of(value)).values())


def _copy(value: Any) -> Any:
    cls = type_of(value)
    if cls is dict:
        return _copied_values(value)
    if cls is list:
        return copied(value)
    if cls is tuple:
        return tuple(copied(value))
    copier = _copiers.get(cls) or _made_copier(cls)
    return copier(value)


def _copied_values(values: Mapping[Any, Any]) -> dict[Any, Any]:
    if not ATOMS.issuperset(map(type, values)):
        raise Uncopyable
    return {key: value if type(value) in ATOMS else _copy(value) for key, value in values.items()}


def _copied_record(value: Any) -> Any:
    copy: Any = _new(type_of(value))
    copy.__dict__.update(_copied_values(value.__dict__))
    return copy


def _copied_model(value: Any) -> Any:
    if value.__pydantic_extra__ is not None or value.__pydantic_private__ is not None:
        raise Uncopyable
    copy: Any = _new(type_of(value))
    set_ = object.__setattr__
    set_(copy, "__dict__", _copied_values(value.__dict__))
    set_(copy, "__pydantic_fields_set__", set(value.__pydantic_fields_set__))
    set_(copy, "__pydantic_extra__", None)
    set_(copy, "__pydantic_private__", None)
    return copy


def _itself(value: Any) -> Any:
    return value


def _refuse(_: Any) -> Any:
    raise Uncopyable


def _made_copier(cls: type) -> Callable[[Any], Any]:
    copier = _copiers[cls] = _copier_of(cls)
    return copier


def never_copy(cls: type) -> None:
    """Exclude a class whose instances are made by a function of the program."""
    _copiers[cls] = _refuse


def _copier_of(cls: type) -> Callable[[Any], Any]:
    if is_enum(cls):
        return _itself
    if is_model(cls):
        return _copied_model
    return _copied_record if dataclasses.is_dataclass(cls) and keeps_all_in_dict(cls) else _refuse


_copiers: dict[type, Callable[[Any], Any]] = {}
_BY_ATTRIBUTES = frozenset({_copied_record, _copied_model})

# About 16 MB of text.
_SEEN_MAX = 16384

KeyT = TypeVar("KeyT", int, str)
EntryT = TypeVar("EntryT", bound="Leaf | Chunk")


class Leaf:
    """A long `str` or `bytes`, and its blob."""

    __slots__ = ("__weakref__", "blob", "text", "value")

    def __init__(self, value: str | bytes, text: str, blob: Blob) -> None:
        self.value = value
        self.text = text
        """The reference that replaces it in the surrounding text."""
        self.blob = blob


class Chunk:
    """The elements of a chunk: the originals if they can't change, else a private copy."""

    __slots__ = ("__weakref__", "elements", "is_shared", "written")

    def __init__(self, elements: Sequence[Any], *, is_shared: bool, written: Written | None = None) -> None:
        self.elements = elements
        self.is_shared = is_shared
        self.written = written

    def given(self) -> Sequence[Any]:
        """Return the elements for a caller, copied if they could change."""
        return self.elements if self.is_shared else copied(self.elements)

    def is_at(self, place: int, value: Sequence[Any]) -> bool:
        """Return True if the sequence has the same elements at `place`, so that it would be written the same."""
        end = place + len(self.elements)
        if self.written is None or end > len(value) or (self.written.is_last and end < len(value)):
            return False
        return all(map(is_ if self.is_shared else is_unchanged, value[place:end], self.elements))


class Written(NamedTuple):
    """The result of writing a chunk."""

    address: str
    needs: Mapping[str, Blob]
    """The blob and everything it refers to."""
    length: int
    is_last: bool
    """True if the chunk ended with the sequence: with more elements it would have grown."""


class _Reference(ref, Generic[KeyT, EntryT]):
    """A weak reference that knows its key, so that the entry can be removed when it dies."""

    __slots__ = ("key",)
    key: KeyT


class _Table(Generic[KeyT, EntryT]):
    """Entries by key, as long as somebody else holds them."""

    __slots__ = ("_forget", "_references")

    def __init__(self) -> None:
        references: dict[KeyT, _Reference[KeyT, EntryT]] = {}

        def forget(dead: _Reference[KeyT, EntryT]) -> None:
            if references.get(dead.key) is dead:
                del references[dead.key]

        self._references = references
        self._forget = forget

    def get(self, key: KeyT) -> EntryT | None:
        found: Any = self._references.get(key)
        return None if found is None else found()

    def put(self, key: KeyT, entry: EntryT) -> None:
        reference = _Reference[KeyT, EntryT](entry, self._forget)
        reference.key = key
        self._references[key] = reference


class Memo:
    """The memo of one codec."""

    __slots__ = ("_anchored", "_by_hash", "_by_id", "_chunks", "_seen")

    def __init__(self) -> None:
        self._by_id: _Table[int, Leaf] = _Table()
        self._by_hash: _Table[str, Leaf] = _Table()
        self._chunks: _Table[str, Chunk] = _Table()
        self._anchored: _Table[int, Chunk] = _Table()
        self._seen: set[str] = set()

    def for_other_trust(self) -> Memo:
        """Return the memo for a codec with another trust. Leaves are shared, chunks are not."""
        other = Memo()
        other._by_id, other._by_hash = self._by_id, self._by_hash
        return other

    def leaf(self, value: str | bytes) -> Leaf | None:
        """Return the entry of this very object."""
        # A leaf holds its value, so no other object can have the id while the leaf exists.
        return self._by_id.get(id(value))

    def leaf_at(self, address: str, *, is_raw: bool) -> Leaf | None:
        """Return the leaf with this hash. A text and raw bytes that look like it share a hash."""
        leaf = self._by_hash.get(address)
        return leaf if leaf is not None and (leaf.blob.kind == "raw") is is_raw else None

    def add_leaf(self, leaf: Leaf) -> Leaf:
        """Remember a leaf as long as somebody holds it."""
        self._by_id.put(id(leaf.value), leaf)
        self._by_hash.put(leaf.blob.hash, leaf)
        return leaf

    def is_seen_again(self, address: str) -> bool:
        """Return True if a chunk was written before. Only then is it worth remembering its elements."""
        if address in self._seen:
            return True
        if len(self._seen) >= _SEEN_MAX:
            self._seen.clear()
        self._seen.add(address)
        return False

    def chunk(self, address: str) -> Chunk | None:
        """Return the chunk with this hash."""
        return self._chunks.get(address)

    def add_chunk(self, address: str, chunk: Chunk) -> Chunk:
        """Remember a chunk as long as somebody holds it."""
        self._chunks.put(address, chunk)
        if chunk.written is not None:
            self._anchored.put(id(anchor(chunk.elements[0])), chunk)
        return chunk

    def beginning(self, value: Sequence[Any]) -> list[tuple[Chunk, Written]]:
        """Return the known chunks that a sequence starts with."""
        found: list[tuple[Chunk, Written]] = []
        place = 0
        while place < len(value):
            # A chunk holds its elements, so no other object can have the id of the anchor while the chunk exists.
            chunk = self._anchored.get(id(anchor(value[place])))
            if chunk is None or chunk.written is None or not chunk.is_at(place, value):
                break
            found.append((chunk, chunk.written))
            place += len(chunk.elements)
        return found
