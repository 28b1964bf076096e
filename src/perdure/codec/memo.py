"""The codec's memory: long leaves it has written or read, and chunks of long sequences.

`str` and `bytes` can't change, so identity proves equality: what was hashed or decoded once is not hashed or decoded
again. An entry lives as long as an encoded value holds it; the memo itself holds nothing.

It pays on a durable superstep. Leaves: 4 times with a `str` of 10 MB in the state of an executor. Chunks: twice with a
list of a thousand texts, 1.5 times with 10 MB of nested state.
"""

from __future__ import annotations

import dataclasses
import pathlib
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from operator import is_
from types import EllipsisType, NoneType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from uuid import UUID
from weakref import WeakValueDictionary
from zoneinfo import ZoneInfo

from perdure.codec.trust import is_enum, is_model

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


def _copy(value: Any) -> Any:
    cls = type_of(value)
    if cls is dict:
        return _copied_values(value)
    if cls is list:
        return copied(value)
    if cls is tuple:
        return tuple(copied(value))
    layout = _layout(cls)
    if layout == "enum":
        return value
    if layout is None or not _is_plain(value, layout):
        raise Uncopyable
    copy = _new(cls)
    set_ = object.__setattr__
    set_(copy, "__dict__", _copied_values(value.__dict__))
    if layout == "model":
        set_(copy, "__pydantic_fields_set__", set(value.__pydantic_fields_set__))
        set_(copy, "__pydantic_extra__", None)
        set_(copy, "__pydantic_private__", None)
    return copy


def _copied_values(values: Mapping[Any, Any]) -> dict[Any, Any]:
    if not ATOMS.issuperset(map(type, values)):
        raise Uncopyable
    return {key: value if type(value) in ATOMS else _copy(value) for key, value in values.items()}


def _is_plain(value: Any, layout: str) -> bool:
    return layout == "record" or (value.__pydantic_extra__ is None and value.__pydantic_private__ is None)


_made_by_functions: set[type] = set()


def never_copy(cls: type) -> None:
    """Exclude a class whose instances are made by a function of the program."""
    _made_by_functions.add(cls)
    _layout.cache_clear()


@lru_cache(maxsize=4096)
def _layout(cls: type) -> Literal["enum", "model", "record"] | None:
    """Return how instances of a class can be copied; None if they can't."""
    if cls in _made_by_functions:
        return None
    if is_enum(cls):
        return "enum"
    if is_model(cls):
        return "model"
    return "record" if dataclasses.is_dataclass(cls) and keeps_all_in_dict(cls) else None


def keeps_all_in_dict(cls: type) -> bool:
    """Return True if a dataclass keeps all fields in `__dict__`, not in slots or behind descriptors."""
    bases = cls.__mro__
    if any(vars(base).get("__slots__") for base in bases) or cls.__dictoffset__ == 0:
        return False
    names = [each.name for each in dataclasses.fields(cls)]
    found: Iterable[Any] = (vars(base)[name] for name in names for base in bases if name in vars(base))
    return not any(hasattr(type_of(attribute), "__set__") for attribute in found)


def _is_unchanged(value: Any, copy: Any) -> bool:
    """Return True if a value equals its earlier copy: the same leaves in a structure of the same types."""
    if value is copy:
        return True
    cls = type_of(value)
    if cls in ATOMS or cls is not type_of(copy):
        return False
    if cls is dict:
        return _has_same(value, copy)
    if cls is list or cls is tuple:
        return len(value) == len(copy) and all(map(_is_unchanged, value, copy))
    layout = _layout(cls)
    if layout is None or layout == "enum" or not _is_plain(value, layout):
        return False
    if layout == "model" and value.__pydantic_fields_set__ != copy.__pydantic_fields_set__:
        return False
    return _has_same(value.__dict__, copy.__dict__)


def _has_same(values: Mapping[Any, Any], copies: Mapping[Any, Any]) -> bool:
    if len(values) != len(copies) or not all(map(is_, values, copies)):
        return False
    return all(map(_is_unchanged, values.values(), copies.values()))


def _anchor(element: Any) -> object:
    """Return an object inside an element that stays the same object as long as the element does not change."""
    cls = type_of(element)
    if cls is dict:
        inside: Any = element
    elif _layout(cls) in ("record", "model"):
        inside = element.__dict__
    else:
        return element
    texts = [value for value in inside.values() if type_of(value) is str]
    return max(texts, key=len) if texts else element


@dataclass(slots=True, weakref_slot=True, eq=False)
class Leaf:
    """A long `str` or `bytes`, the reference that replaces it in the surrounding text, and its blob."""

    value: str | bytes
    text: str
    blob: Blob


class Written(NamedTuple):
    """The result of writing a chunk."""

    address: str
    needs: Mapping[str, Blob]
    """The blob and everything it refers to."""
    length: int
    is_last: bool
    """True if the chunk ended with the sequence: with more elements it would have grown."""


@dataclass(slots=True, weakref_slot=True, eq=False)
class Chunk:
    """The elements of a chunk: the originals if they can't change (`is_shared`), else a private copy."""

    elements: Sequence[Any]
    is_shared: bool = False
    written: Written | None = None

    def is_at(self, place: int, value: Sequence[Any]) -> bool:
        """Return True if the sequence has the same elements at `place`, so that it would be written the same."""
        end = place + len(self.elements)
        if self.written is None or end > len(value) or (self.written.is_last and end < len(value)):
            return False
        return all(map(is_ if self.is_shared else _is_unchanged, value[place:end], self.elements))


# About 16 MB of text.
_SEEN_MAX = 16384


@dataclass(slots=True)
class Memo:
    """The memo of one codec."""

    _by_id: WeakValueDictionary[int, Leaf] = field(default_factory=WeakValueDictionary[int, Leaf])
    _by_hash: WeakValueDictionary[str, Leaf] = field(default_factory=WeakValueDictionary[str, Leaf])
    _chunks: WeakValueDictionary[str, Chunk] = field(default_factory=WeakValueDictionary[str, Chunk])
    _anchored: WeakValueDictionary[int, Chunk] = field(default_factory=WeakValueDictionary[int, Chunk])
    _seen: set[str] = field(default_factory=set[str])

    def for_other_trust(self) -> Memo:
        """Return the memo for a codec with another trust. Leaves are shared, chunks are not."""
        return Memo(self._by_id, self._by_hash)

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
        self._by_id[id(leaf.value)] = leaf
        self._by_hash[leaf.blob.hash] = leaf
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
        self._chunks[address] = chunk
        if chunk.written is not None:
            self._anchored[id(_anchor(chunk.elements[0]))] = chunk
        return chunk

    def beginning(self, value: Sequence[Any]) -> list[tuple[Chunk, Written]]:
        """Return the known chunks that a sequence starts with."""
        found: list[tuple[Chunk, Written]] = []
        place = 0
        while place < len(value):
            # A chunk holds its elements, so no other object can have the id of the anchor while the chunk exists.
            chunk = self._anchored.get(id(_anchor(value[place])))
            if chunk is None or chunk.written is None or not chunk.is_at(place, value):
                break
            found.append((chunk, chunk.written))
            place += len(chunk.elements)
        return found
