"""Write values: their text, the blobs cut out of it, and the chunks of long sequences; and remember leaves and chunks.

`str` and `bytes` can't change, so identity proves equality: what was hashed or decoded once is not hashed or decoded
again. An entry of the memo lives as long as an encoded value holds it; the memo itself holds nothing.

The memo makes a durable superstep faster. Leaves: 4 times as fast with a `str` of 10 MB in the state of an executor.
Chunks: twice as fast with a list of a thousand texts, 1.5 times with 10 MB of nested state.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from operator import is_
from types import EllipsisType, NoneType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias
from uuid import UUID
from weakref import WeakValueDictionary
from zlib import crc32
from zoneinfo import ZoneInfo

from perdure.codec.encoded import Encoded, reference, to_bytes
from perdure.codec.errors import Refusal, no_step
from perdure.codec.trust import is_enum, is_model
from perdure.data_classes import new_dict, new_list, new_set
from perdure.records import Blob, BlobKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from perdure.codec.codec import Codec
    from perdure.codec.log import LogNode

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
    if not _is_plain(value, layout):
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


def _is_plain(value: Any, layout: str | None) -> bool:
    """Return True for a dataclass, or a model without extra or private attributes."""
    return layout == "record" or (
        layout == "model" and value.__pydantic_extra__ is None and value.__pydantic_private__ is None
    )


_made_by_functions: set[type] = set()


def never_copy(cls: type) -> None:
    """Exclude a class whose instances are made by a function of the program."""
    if cls not in _made_by_functions:
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
    if not _is_plain(value, layout) or (
        layout == "model" and value.__pydantic_fields_set__ != copy.__pydantic_fields_set__
    ):
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


class WrittenChunk(NamedTuple):
    """The result of writing a chunk.

    Attributes:
        needs: The blob and everything it refers to.
        is_last: True if the sequence, not the content, ended the chunk: do not reuse it when elements follow.
    """

    address: str
    needs: Mapping[str, Blob]
    length: int
    is_last: bool


@dataclass(slots=True, weakref_slot=True, eq=False)
class Chunk:
    """The elements of a chunk: the originals if they can't change (`is_shared`), else a private copy."""

    elements: Sequence[Any]
    is_shared: bool = False
    written: WrittenChunk | None = None

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
    _seen: set[str] = field(default_factory=new_set)

    def for_other_trust(self) -> Memo:
        """Return the memo for a codec with another trust. Leaves are shared, chunks are not."""
        return Memo(self._by_id, self._by_hash)

    def leaf(self, value: str | bytes) -> Leaf | None:
        """Return the entry of this very object."""
        # A leaf holds its value, so no other object can have the id while the leaf exists.
        return self._by_id.get(id(value))

    def text_leaf(self, value: str) -> Leaf:
        """Return a long string as a blob, made once per object while the memo has it."""
        leaf = self.leaf(value)
        if leaf is None:
            blob = Blob.of(to_bytes(quote(value)))
            leaf = self.add_leaf(Leaf(value, reference(blob.hash), blob))
        return leaf

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

    def beginning(self, value: Sequence[Any]) -> list[tuple[Chunk, WrittenChunk]]:
        """Return the known chunks that a sequence starts with."""
        found: list[tuple[Chunk, WrittenChunk]] = []
        place = 0
        while place < len(value):
            # A chunk holds its elements, so no other object can have the id of the anchor while the chunk exists.
            chunk = self._anchored.get(id(_anchor(value[place])))
            if chunk is None or chunk.written is None or not chunk.is_at(place, value):
                break
            found.append((chunk, chunk.written))
            place += len(chunk.elements)
        return found


Write: TypeAlias = "Callable[[ValueWriter, Any], str]"

TEXT_LENGTH_MAX = 4096
"""A longer text of a nested value becomes a blob of its own."""

LEAF_LENGTH_MIN = 512
"""A nested string of at least this length becomes a blob of its own, and is written once."""

LEVELS_MAX = 400
"""The maximum nesting of values, so that writing stays within the interpreter's stack."""

# Every so many levels, texts longer than a reference are cut out, so that parsing stays within the stack.
_LEVELS_PER_BLOB = 64
_REFERENCE_LENGTH = 64

_INLINE_LENGTH_MAX = 2048

# Chunks have about 1 KB: that is the cost of an appended element.
_CHUNK_LENGTH_MIN = 512
_CHUNK_LENGTH_MAX = 8192

# crc32 has 2**32 values. An element of n characters ends its chunk with probability n/512.
_CHANCE_PER_CHARACTER = 2**32 // 512

# A shorter sequence is written as fast as it is looked up.
_KNOWN_COUNT_MIN = 16

_REFERENCES_MAX = 16
_INDEX_LENGTH_MIN = 8
_INDEX_LENGTH_MAX = 64
_ENDS_INDEX = frozenset("01")

quote: Callable[[str], str] = json.encoder.encode_basestring
"""Quote a string as JSON. Only quotes, backslashes and control characters are escaped."""


@dataclass(slots=True)
class ElementTexts:
    """The texts of a sequence's elements, and the writer's number of references after each.

    Attributes:
        known: The chunks before these elements, which were written earlier.
        elements: The elements themselves, if their chunks are to be remembered.
        is_shared: True if no element can change, so that readers may share them.
    """

    start: int
    texts: list[str] = field(default_factory=new_list)
    ends: list[int] = field(default_factory=new_list)
    known: Sequence[tuple[Chunk, WrittenChunk]] = ()
    elements: Sequence[Any] | None = None
    is_shared: bool = False

    def bounds(self, first: int, last: int) -> tuple[int, int]:
        """Return the range of references of the elements from `first` to `last`."""
        return self.ends[first - 1] if first else self.start, self.ends[last - 1]


@dataclass(slots=True)
class ValueWriter:
    """Writes one value. With `is_canonical`, mappings are sorted and nothing is cut out: equal values have equal text.

    Attributes:
        branches: The log nodes that the text refers to.
        refs: The blobs that the text so far refers to.
        memories: Memo entries that live as long as the encoded value.
        seals: Callbacks to run when the whole value is written.
        immutable: True if nothing that was written so far can change.
    """

    codec: Codec
    is_canonical: bool = False
    blobs: dict[str, Blob] = field(default_factory=new_dict)
    branches: dict[str, LogNode] = field(default_factory=new_dict)
    refs: list[str] = field(default_factory=new_list)
    memories: list[object] = field(default_factory=new_list)
    seals: list[Callable[[], None]] = field(default_factory=new_list)
    immutable: bool = True
    _active: set[int] = field(default_factory=new_set)

    def child(self, value: Any, path_part: Callable[[Any], str] = no_step, place: object = None) -> str:
        """Return the text of a nested value, or a reference if the text is long.

        `path_part` formats the path to the value if it is refused. Kinds call this from their own loops, so that each
        level of nesting takes two stack frames.
        """
        cls, mark = type_of(value), len(self.refs)
        if cls is str and len(value) < LEAF_LENGTH_MIN:
            # Most nested values are short strings.
            text = quote(value)
        else:
            try:
                write = self.codec.kinds.get(cls) or self.codec.kind_of(value)
                text = write(self, value)
            except Refusal as refusal:
                refusal.steps.append(path_part(place))
                raise
        if len(text) <= _REFERENCE_LENGTH or self.is_canonical:
            return text
        if len(text) <= TEXT_LENGTH_MAX and not self.is_at_cut:
            return text
        hash_ = self.blob(to_bytes(text), self.refs[mark:])
        self.refs[mark:] = [hash_]
        return reference(hash_)

    def enter(self, value: object) -> None:
        """Start writing the content of a value. A `leave` or a refusal follows."""
        if id(value) in self._active:
            raise Refusal("it contains itself", "refer to it by a key or an id instead")
        if len(self._active) >= LEVELS_MAX:
            raise too_deep()
        self._active.add(id(value))

    def leave(self, value: object) -> None:
        """Finish writing the content of a value."""
        self._active.discard(id(value))

    @property
    def is_at_cut(self) -> bool:
        """True at a level where texts longer than a reference are cut out."""
        return bool(self._active) and len(self._active) % _LEVELS_PER_BLOB == 0

    def is_short(self, text: str) -> bool:
        """Return True if the elements of a sequence are not written in chunks."""
        return len(text) <= _INLINE_LENGTH_MAX or self.is_canonical

    def known(self, value: Sequence[Any]) -> Sequence[tuple[Chunk, WrittenChunk]]:
        """Return the chunks at the start of a sequence that were written before; none for a short sequence."""
        if len(value) < _KNOWN_COUNT_MIN:
            return ()
        found = self.codec.memo.beginning(value)
        return found if sum([written.length for _, written in found]) > _INLINE_LENGTH_MAX else ()

    def chunks(self, items: ElementTexts, brackets: str = "[]") -> str:
        """Write many elements as chunks and return the references to them."""
        texts, refs = items.texts, self.refs
        hashes: list[str] = []
        for chunk, written in items.known:
            self.blobs.update(written.needs)
            self.memories.append(chunk)
            hashes.append(written.address)
        for first, last in _chunk_bounds(texts):
            text = brackets[0] + ",".join(texts[first:last]) + brackets[1]
            begin, end = items.bounds(first, last)
            hashes.append(self.blob(to_bytes(text), refs[begin:end]))
            if items.elements is not None and self.codec.memo.is_seen_again(hashes[-1]):
                self._remember(items, hashes[-1], (first, last), len(text))
        del refs[items.start :]
        return self._index(hashes)

    def _remember(self, items: ElementTexts, address: str, bounds: tuple[int, int], length: int) -> None:
        assert items.elements is not None
        elements = items.elements[slice(*bounds)]
        try:
            elements = elements if items.is_shared else copied(elements)
        except (Uncopyable, RecursionError):
            # Elements of one list are mostly alike.
            items.elements = None
            return
        needs = {blob.hash: blob for blob in Encoded(b"", self.blobs, (address,)).blobs_in_order()}
        written = WrittenChunk(address, needs, length, is_last=bounds[1] == len(items.texts))
        self.memories.append(self.codec.memo.add_chunk(address, Chunk(elements, items.is_shared, written)))

    def blob(self, data: bytes, refs: Sequence[str] = (), kind: BlobKind = "json") -> str:
        """Add a blob and return its hash."""
        blob = Blob.of(data, tuple(sorted(set(refs))), kind)
        self.blobs[blob.hash] = blob
        return blob.hash

    def leaf(self, leaf: Leaf) -> str:
        """Add a leaf and return the text that refers to it."""
        self.blobs[leaf.blob.hash] = leaf.blob
        self.refs.append(leaf.blob.hash)
        self.memories.append(leaf)
        return leaf.text

    def _index(self, hashes: list[str]) -> str:
        """Return references to chunks. If they are many, write index blobs until there are few."""
        while len(hashes) > _REFERENCES_MAX:
            hashes = [
                self.blob(to_bytes(f'{{"~":"index","chunks":[{_quoted(hashes[first:last])}]}}'), hashes[first:last])
                for first, last in _index_bounds(hashes)
            ]
        self.refs.extend(hashes)
        return _quoted(hashes)


def tagged_sequence(writer: ValueWriter, head: str, items: ElementTexts) -> str:
    """Write an object that starts with `head` and holds elements, or references to chunks if they are long."""
    text = ",".join(items.texts)
    if writer.is_short(text) and not items.known:
        return f'{head},"items":[{text}]}}'
    return f'{head},"chunks":[{writer.chunks(items)}]}}'


def too_deep() -> Refusal:
    """Return the refusal of a value that is nested too deeply."""
    return Refusal(
        f"it is nested more than {LEVELS_MAX} levels deep, or the stack is full", "store it in a flatter form"
    )


def _chunk_bounds(texts: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield the bounds of chunks. A chunk ends after an element whose own text says so.

    Content decides, not position: if an element is added, removed or changed, only the chunks around it change.
    """
    first = length = 0
    for last, text in enumerate(texts, 1):
        length += len(text) + 1
        if length < _CHUNK_LENGTH_MIN:
            continue
        if length >= _CHUNK_LENGTH_MAX or crc32(to_bytes(text)) < len(text) * _CHANCE_PER_CHARACTER:
            yield first, last
            first, length = last, 0
    if first < len(texts):
        yield first, len(texts)


def _index_bounds(hashes: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield the bounds of index blobs. One hash in eight ends its blob, by its last digit."""
    first = 0
    for last, hash_ in enumerate(hashes, 1):
        length = last - first
        if length >= _INDEX_LENGTH_MAX or (length >= _INDEX_LENGTH_MIN and hash_[-1] in _ENDS_INDEX):
            yield first, last
            first = last
    if first < len(hashes):
        yield first, len(hashes)


def _quoted(hashes: Sequence[str]) -> str:
    return '"' + '","'.join(hashes) + '"'
