"""What the codec remembers: long texts and bytes that it has written, and chunks that it has read.

`str` and `bytes` can't change, so for them identity is proof of equality: what was quoted and hashed once is not
quoted and hashed again, and what was decoded once is handed out again. An entry lives as long as an encoded value
holds it; the memo itself holds nothing.
"""

from __future__ import annotations

from operator import is_
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar
from weakref import ref

from perdure.codec.copy import anchor, copied, is_unchanged

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from perdure.records import Part

# That is about 16 MB of text.
_SEEN_MAX = 16384

KeyT = TypeVar("KeyT", int, str)
EntryT = TypeVar("EntryT", bound="Leaf | Chunk")


class Leaf:
    """A long `str` or `bytes`, and the part that it became."""

    __slots__ = ("__weakref__", "part", "text", "value")

    def __init__(self, value: str | bytes, text: str, part: Part) -> None:
        self.value = value
        self.text = text
        """What stands for it in the text around it."""
        self.part = part


class Chunk:
    """The elements of a chunk: those that were written, if none can change, else a copy that nobody else has."""

    __slots__ = ("__weakref__", "elements", "is_shared", "written")

    def __init__(self, elements: Sequence[Any], *, is_shared: bool, written: Written | None = None) -> None:
        self.elements = elements
        self.is_shared = is_shared
        self.written = written

    def given(self) -> Sequence[Any]:
        """The elements, to be handed out."""
        return self.elements if self.is_shared else copied(self.elements)

    def is_at(self, place: int, value: Sequence[Any]) -> bool:
        """Whether the same would be written for the elements of a sequence from a place on."""
        end = place + len(self.elements)
        if self.written is None or end > len(value) or (self.written.is_last and end < len(value)):
            return False
        return all(map(is_ if self.is_shared else is_unchanged, value[place:end], self.elements))


class Written(NamedTuple):
    """How a chunk was written."""

    address: str
    needs: Mapping[str, Part]
    """The part, and all that it refers to."""
    length: int
    is_last: bool
    """It ended with the sequence: with further elements it would have become longer."""


class _Reference(ref, Generic[KeyT, EntryT]):
    """A reference that knows its key, so that the entry can be removed when it dies."""

    __slots__ = ("key",)
    key: KeyT


class _Table(Generic[KeyT, EntryT]):
    """Entries by a key, as long as somebody else holds them."""

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
    """The entries of one codec."""

    __slots__ = ("_anchored", "_by_hash", "_by_id", "_chunks", "_seen")

    def __init__(self) -> None:
        self._by_id: _Table[int, Leaf] = _Table()
        self._by_hash: _Table[str, Leaf] = _Table()
        self._chunks: _Table[str, Chunk] = _Table()
        self._anchored: _Table[int, Chunk] = _Table()
        self._seen: set[str] = set()

    def beside(self) -> Memo:
        """The memo of a codec with another trust: leaves are the same for all, what a chunk may hold is not."""
        other = Memo()
        other._by_id, other._by_hash = self._by_id, self._by_hash
        return other

    def leaf(self, value: str | bytes) -> Leaf | None:
        """What was written for this very object."""
        # A leaf holds its value, so no other object can have the id while the leaf is there.
        return self._by_id.get(id(value))

    def leaf_at(self, address: str, *, is_raw: bool) -> Leaf | None:
        """What a part was made of. The bytes of a text and bytes that look like it share an address."""
        leaf = self._by_hash.get(address)
        return leaf if leaf is not None and (leaf.part.kind == "raw") is is_raw else None

    def add_leaf(self, leaf: Leaf) -> Leaf:
        """Remember a leaf as long as somebody holds it."""
        self._by_id.put(id(leaf.value), leaf)
        self._by_hash.put(leaf.part.hash, leaf)
        return leaf

    def is_seen_again(self, address: str) -> bool:
        """Whether a chunk was written before: only then it is worth while to remember its elements."""
        if address in self._seen:
            return True
        if len(self._seen) >= _SEEN_MAX:
            self._seen.clear()
        self._seen.add(address)
        return False

    def chunk(self, address: str) -> Chunk | None:
        """The elements of a chunk that was written or read."""
        return self._chunks.get(address)

    def add_chunk(self, address: str, chunk: Chunk) -> Chunk:
        """Remember a chunk as long as somebody holds it."""
        self._chunks.put(address, chunk)
        if chunk.written is not None:
            self._anchored.put(id(anchor(chunk.elements[0])), chunk)
        return chunk

    def beginning(self, value: Sequence[Any]) -> list[tuple[Chunk, Written]]:
        """The chunks with which a sequence begins, as far as they were written before."""
        found: list[tuple[Chunk, Written]] = []
        place = 0
        while place < len(value):
            # A chunk holds its elements: no other object can have the id of the anchor while it is there.
            chunk = self._anchored.get(id(anchor(value[place])))
            if chunk is None or chunk.written is None or not chunk.is_at(place, value):
                break
            found.append((chunk, chunk.written))
            place += len(chunk.elements)
        return found
