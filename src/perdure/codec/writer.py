"""Write values: their text, the blobs cut out of it, and the chunks of long sequences."""

from __future__ import annotations

import json
import sys
from json.encoder import encode_basestring
from types import NoneType
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast
from zlib import crc32

from perdure.codec.encoded import Encoded
from perdure.codec.errors import Refusal, no_step
from perdure.codec.memo import Chunk, Leaf, Uncopyable, Written, copied, type_of
from perdure.codec.reader import Decodes
from perdure.records import Blob

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from perdure.codec.encoded import Branch
    from perdure.codec.memo import Memo
    from perdure.codec.trust import Trust
    from perdure.records import BlobKind

Write: TypeAlias = "Callable[[Writer, Any], str]"

TEXT_LENGTH_MAX = 4096
"""A longer text of a nested value becomes a blob of its own."""

LEAF_LENGTH_MIN = 512
"""A nested string of at least this length becomes a blob of its own, and is written once."""

LEVELS_MAX = 400
"""The maximum nesting of values, so that writing stays within the interpreter's stack."""

# Every so many levels, texts longer than a reference are cut out, so that parsing stays within the stack.
_LEVELS_PER_BLOB = 64
_REFERENCE_LENGTH = 64

# A string of this length is never longer than a reference when it is quoted.
_ALWAYS_SHORT = 8
_NEXT_TO_CUT = frozenset({0, _LEVELS_PER_BLOB - 1})
_SMALL = 10**18

_RUN_LENGTH_MAX = 2048

# Chunks have about 1 KB: that is the cost of an appended element.
_CHUNK_LENGTH_MIN = 512
_CHUNK_LENGTH_MAX = 8192

# crc32 has 2**32 values: an element ends its chunk with a probability of its length in 512.
_CHANCE_PER_CHARACTER = 2**32 // 512

# A shorter sequence is written as fast as it is looked up.
_KNOWN_COUNT_MIN = 16

_REFERENCES_MAX = 16
_INDEX_LENGTH_MIN = 8
_INDEX_LENGTH_MAX = 64
_ENDS_INDEX = frozenset("01")

quote: Callable[[str], str] = json.encoder.encode_basestring
"""Quote a string as JSON. Only quotes, backslashes and control characters are escaped."""


def to_bytes(text: str) -> bytes:
    """Encode as UTF-8, keeping lone surrogates, which Python strings may contain (file names do)."""
    return text.encode("utf-8", "surrogatepass")


class Encodes(Decodes, Protocol):
    """The codec as a writer sees it."""

    def kind_of(self, value: object, /) -> Write:
        """Find the writer for a type that is met for the first time."""
        ...

    def covers(self, token: object, /) -> bool:
        """Return True if this codec can read what the codec with `token` encoded."""
        ...


class Run:
    """The texts of a sequence's elements, and the writer's number of references after each."""

    __slots__ = ("elements", "ends", "is_shared", "known", "start", "texts")

    def __init__(self, start: int, texts: list[str], ends: list[int]) -> None:
        self.start = start
        self.texts = texts
        self.ends = ends
        self.known: Sequence[tuple[Chunk, Written]] = ()
        """The chunks before these elements, which were written earlier."""
        self.elements: Sequence[Any] | None = None
        """The elements themselves, if their chunks are to be remembered."""
        self.is_shared = False
        """True if no element can change, so that readers may share them."""

    def bounds(self, first: int, last: int) -> tuple[int, int]:
        """Return the range of references of the elements from `first` to `last`."""
        return self.ends[first - 1] if first else self.start, self.ends[last - 1]


class Writer:
    """Writes one value. `refs` are the blobs that the text so far refers to."""

    __slots__ = (
        "_active",
        "_kind_of",
        "_kinds",
        "_length_max",
        "blobs",
        "branches",
        "codec",
        "immutable",
        "memo",
        "memories",
        "refs",
        "run_max",
        "seals",
        "short_max",
        "sorts_mappings",
        "trust",
    )

    def __init__(
        self, codec: Encodes, kinds: dict[type, Write], trust: Trust, memo: Memo, *, sorts_mappings: bool = False
    ) -> None:
        self._kinds = kinds
        self._kind_of = codec.kind_of
        self._active: set[int] = set()
        # A text with sorted mappings is compared or hashed, so it must not depend on where texts are cut.
        self._length_max = sys.maxsize if sorts_mappings else TEXT_LENGTH_MAX
        self.run_max = sys.maxsize if sorts_mappings else _RUN_LENGTH_MAX
        """A sequence with longer texts is written in chunks."""
        self.short_max = sys.maxsize if sorts_mappings else LEAF_LENGTH_MIN - 1
        """A string up to this length is written inline."""
        self.codec = codec
        self.trust = trust
        self.memo = memo
        self.memories: list[object] = []
        """Memo entries that live as long as the encoded value."""
        self.sorts_mappings = sorts_mappings
        self.blobs: dict[str, Blob] = {}
        self.branches: dict[str, Branch] = {}
        """The log nodes that the text refers to."""
        self.seals: list[Callable[[], None]] = []
        """Callbacks to run when the whole value is written."""
        self.refs: list[str] = []
        self.immutable = True

    def whole(self, value: object) -> str:
        """Return the text of the outermost value."""
        kind = self._kinds.get(type(value)) or self._kind_of(value)
        return kind(self, value)

    def child(self, value: Any, step: Callable[[Any], str] = no_step, place: object = None) -> str:
        """Return the text of a nested value, or a reference if the text is long.

        `step` formats the path to the value if it is refused. Kinds call this from their own loops, so that each level
        of nesting takes two stack frames.
        """
        cls = type_of(value)
        # A shortcut for most nested values: the general way takes four times as long.
        if cls is str:
            length = len(value)
            if length <= self.short_max:
                return quote(value)
            if length >= LEAF_LENGTH_MIN:
                return self.leaf(text_leaf(self.memo, value))
        elif cls is int and -_SMALL < value < _SMALL:
            return int.__repr__(value)
        mark = len(self.refs)
        try:
            kind = self._kinds.get(cls) or self._kind_of(value)
            text = kind(self, value)
        except Refusal as refusal:
            refusal.rise(step(place))
            raise
        return text if len(text) <= self._length_max else self._cut(text, mark)

    def enter(self, value: object) -> None:
        """Start writing the content of a value. A `leave` or a refusal follows."""
        active, key = self._active, id(value)
        if key in active:
            raise Refusal("it contains itself", "refer to it by a key or an id instead")
        if len(active) >= LEVELS_MAX:
            raise too_deep()
        active.add(key)
        if len(active) % _LEVELS_PER_BLOB == 0 and not self.sorts_mappings:
            self._length_max, self.short_max = _REFERENCE_LENGTH, _ALWAYS_SHORT

    def leave(self, value: object) -> None:
        """Finish writing the content of a value."""
        active = self._active
        active.discard(id(value))
        place = len(active) % _LEVELS_PER_BLOB
        if self.sorts_mappings:
            return
        if place == 0 and active:
            self._length_max, self.short_max = _REFERENCE_LENGTH, _ALWAYS_SHORT
        elif place in _NEXT_TO_CUT:
            self._length_max, self.short_max = TEXT_LENGTH_MAX, LEAF_LENGTH_MIN - 1

    @property
    def is_roomy(self) -> bool:
        """True if long texts may be inline at this level and mappings keep their order."""
        return self.short_max > _ALWAYS_SHORT and not self.sorts_mappings

    def known(self, value: Sequence[Any]) -> Sequence[tuple[Chunk, Written]]:
        """Return the chunks at the start of a sequence that were written before; none for a short sequence.

        This writes a growing list in a fifth of the time, and a list of strings in a tenth.
        """
        if len(value) < _KNOWN_COUNT_MIN or not self.is_roomy:
            return ()
        found = self.memo.beginning(value)
        return found if sum([written.length for _, written in found]) > self.run_max else ()

    def chunks(self, run: Run, brackets: str = "[]") -> str:
        """Write a long run as chunks and return the references to them."""
        texts, refs = run.texts, self.refs
        hashes: list[str] = []
        for chunk, written in run.known:
            self.blobs.update(written.needs)
            self.memories.append(chunk)
            hashes.append(written.address)
        for first, last in _chunk_bounds(texts):
            text = brackets[0] + ",".join(texts[first:last]) + brackets[1]
            begin, end = run.bounds(first, last)
            hashes.append(self.blob(to_bytes(text), refs[begin:end]))
            if run.elements is not None and self.memo.is_seen_again(hashes[-1]):
                self._remember(run, hashes[-1], (first, last), len(text))
        del refs[run.start :]
        return self._index(hashes)

    def _remember(self, run: Run, address: str, bounds: tuple[int, int], length: int) -> None:
        assert run.elements is not None
        elements = run.elements[slice(*bounds)]
        try:
            elements = elements if run.is_shared else copied(elements)
        except (Uncopyable, RecursionError):
            # Elements of one list are mostly alike.
            run.elements = None
            return
        needs = {address: self.blobs[address]}
        if needs[address].refs:
            needs = {blob.hash: blob for blob in Encoded(b"", self.blobs, (address,)).blobs_in_order()}
        written = Written(address, needs, length, is_last=bounds[1] == len(run.texts))
        chunk = Chunk(elements, is_shared=run.is_shared, written=written)
        self.memories.append(self.memo.add_chunk(address, chunk))

    def blob(self, data: bytes, refs: Sequence[str] = (), kind: BlobKind = "json") -> str:
        """Add a blob and return its hash."""
        blob = Blob.of(data, tuple(sorted(set(refs))) if refs else (), kind)
        self.blobs[blob.hash] = blob
        return blob.hash

    def leaf(self, leaf: Leaf) -> str:
        """Add a leaf and return the text that refers to it."""
        blob = leaf.blob
        self.blobs[blob.hash] = blob
        self.refs.append(blob.hash)
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

    def _cut(self, text: str, mark: int) -> str:
        hash_ = self.blob(to_bytes(text), self.refs[mark:])
        del self.refs[mark:]
        self.refs.append(hash_)
        return blob_reference(hash_)


def tagged_sequence(writer: Writer, head: str, run: Run) -> str:
    """Write an object that starts with `head` and holds elements, or references to chunks if they are long."""
    text = ",".join(run.texts)
    if len(text) <= writer.run_max and not run.known:
        return f'{head},"items":[{text}]}}'
    return f'{head},"chunks":[{writer.chunks(run)}]}}'


def blob_reference(hash_: str) -> str:
    """Return the text of a reference to a blob."""
    return f'{{"~":"part","part":"{hash_}"}}'


def text_leaf(memo: Memo, value: str) -> Leaf:
    """Return a long string as a blob, made once per object while the memo has it."""
    leaf = memo.leaf(value)
    if leaf is None:
        blob = Blob.of(to_bytes(quote(value)))
        leaf = memo.add_leaf(Leaf(value, blob_reference(blob.hash), blob))
    return leaf


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


_STRINGS = frozenset({str})
_ATOMS = frozenset({str, int, float, bool, NoneType})
_LEVELS = 3

# A text of this length holds no string that would become a blob.
_LENGTH_MAX = 500


def _encoder() -> Any:
    # Use the C function itself if available: `JSONEncoder.encode` adds more time than the C function takes.
    plain = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    make: Any = getattr(json.encoder, "c_make_encoder", None)
    if make is None:
        return lambda value, _: (plain.encode(value),)  # pyright: ignore[reportUnknownLambdaType, reportUnknownVariableType]
    return make(None, plain.default, encode_basestring, None, ":", ",", False, False, False)  # noqa: FBT003


_encode: Any = _encoder()


def json_text(value: dict[Any, Any]) -> str | None:
    """Return the text of a short dict that is plain JSON; None if it needs the general way.

    Nested state consists of such dicts, and writing it takes half the time this way.
    """
    if not _is_plain(value, _LEVELS):
        return None
    try:
        text = "".join(_encode(value, 0))
    except ValueError:
        # Not a finite number.
        return None
    return text if len(text) <= _LENGTH_MAX and '"~"' not in text else None


def _is_plain(value: Any, levels: int) -> bool:
    # Exactly these types: the encoder would write a subclass as its base.
    if type(value) is dict:
        if not _STRINGS.issuperset(map(type, cast("Any", value))):
            return False
        value = cast("Any", value).values()
    for inner in value:
        cls = type_of(inner)
        if cls in _ATOMS:
            continue
        if cls is list and _ATOMS.issuperset(map(type, inner)):
            continue
        if (cls is not list and cls is not dict) or not levels or not _is_plain(inner, levels - 1):
            return False
    return True
