"""Writing a value: its text, the parts that are cut out of it, and how long sequences are cut into chunks."""

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
from perdure.records import Part

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from perdure.codec.encoded import Branch
    from perdure.codec.memo import Memo
    from perdure.codec.trust import Trust
    from perdure.records import PartKind

Write: TypeAlias = "Callable[[Writer, Any], str]"

TEXT_LENGTH_MAX = 4096
"""A longer text of a value inside another stands in a part of its own."""

LEAF_LENGTH_MIN = 512
"""A string inside a value that is as long as this stands in a part of its own, and is written once."""

LEVELS_MAX = 400
"""How deeply values may be nested, so that writing them stays within the interpreter's stack."""

# At every so many levels what is longer than a reference is cut out, so that parsing a text stays within the stack.
_LEVELS_PER_PART = 64
_REFERENCE_LENGTH = 64

# A string of this length is never longer than a reference when it is quoted.
_SURELY_SHORT = 8
_BESIDE_A_CUT = frozenset({0, _LEVELS_PER_PART - 1})
_SMALL = 10**18

_RUN_LENGTH_MAX = 2048

# About 1 KB a chunk: that is what an element that is added costs.
_CHUNK_LENGTH_MIN = 512
_CHUNK_LENGTH_MAX = 8192

# crc32 has 2**32 values: an element ends its chunk with a chance of its length in 512.
_CHANCE_PER_CHARACTER = 2**32 // 512

# A shorter sequence is written as fast as it is looked up.
_KNOWN_COUNT_MIN = 16

_REFERENCES_MAX = 16
_INDEX_LENGTH_MIN = 8
_INDEX_LENGTH_MAX = 64
_ENDS_INDEX = frozenset("01")

quote: Callable[[str], str] = json.encoder.encode_basestring
"""A string as JSON text, with all characters but quotes, backslashes and controls as they are."""


def to_bytes(text: str) -> bytes:
    """UTF-8 that keeps lone surrogates, which Python strings may hold (file names do)."""
    return text.encode("utf-8", "surrogatepass")


class Encodes(Decodes, Protocol):
    """What a writer asks of its codec."""

    def kind_of(self, value: object, /) -> Write:
        """How to write a value of a type that is met for the first time."""
        ...

    def covers(self, token: object, /) -> bool:
        """Whether what was encoded by the codec with this token can be read here."""
        ...


class Run:
    """The texts of the elements of a sequence, and how many references the writer had before and after each."""

    __slots__ = ("elements", "ends", "is_shared", "known", "start", "texts")

    def __init__(self, start: int, texts: list[str], ends: list[int]) -> None:
        self.start = start
        self.texts = texts
        self.ends = ends
        self.known: Sequence[tuple[Chunk, Written]] = ()
        """The chunks that go before these elements, and were written before."""
        self.elements: Sequence[Any] | None = None
        """The elements themselves, if their chunks are to be remembered."""
        self.is_shared = False
        """None of them can change: who decodes a chunk may have them."""

    def bounds(self, first: int, last: int) -> tuple[int, int]:
        """Where the references of the elements from `first` to `last` begin and end."""
        return self.ends[first - 1] if first else self.start, self.ends[last - 1]


class Writer:
    """Writes one value. `refs` are the parts that the text written so far refers to."""

    __slots__ = (
        "_active",
        "_kind_of",
        "_kinds",
        "_length_max",
        "branches",
        "codec",
        "immutable",
        "memo",
        "memories",
        "parts",
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
        # A text with sorted mappings is compared, or a digest is taken of it: it does not depend on how texts are cut.
        self._length_max = sys.maxsize if sorts_mappings else TEXT_LENGTH_MAX
        self.run_max = sys.maxsize if sorts_mappings else _RUN_LENGTH_MAX
        """A sequence whose elements have more characters than these stands in chunks."""
        self.short_max = sys.maxsize if sorts_mappings else LEAF_LENGTH_MIN - 1
        """A string up to this length stands in the text around it."""
        self.codec = codec
        self.trust = trust
        self.memo = memo
        self.memories: list[object] = []
        """What is remembered as long as the encoded value is there."""
        self.sorts_mappings = sorts_mappings
        self.parts: dict[str, Part] = {}
        self.branches: dict[str, Branch] = {}
        """The parts of logs that the text refers to."""
        self.seals: list[Callable[[], None]] = []
        """What to do when the whole value is written."""
        self.refs: list[str] = []
        self.immutable = True

    def whole(self, value: object) -> str:
        """The text of the outermost value."""
        kind = self._kinds.get(type(value)) or self._kind_of(value)
        return kind(self, value)

    def child(self, value: Any, step: Callable[[Any], str] = no_step, place: object = None) -> str:
        """The text of a value inside another: a reference if it is long.

        `step` spells the way to its place, should it be refused. Kinds call this from their own loops: with two
        frames a level the stack is enough for all levels that are allowed.
        """
        cls = type_of(value)
        # Most of what is inside of values is this; the way below takes four times as long.
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
        """Begin to write what is inside a value. Each `enter` is followed by its `leave`, or by a refusal."""
        active, key = self._active, id(value)
        if key in active:
            raise Refusal("it contains itself", "refer to it by a key or an id instead")
        if len(active) >= LEVELS_MAX:
            raise too_deep()
        active.add(key)
        if len(active) % _LEVELS_PER_PART == 0 and not self.sorts_mappings:
            self._length_max, self.short_max = _REFERENCE_LENGTH, _SURELY_SHORT

    def leave(self, value: object) -> None:
        """Go on with what is around a value."""
        active = self._active
        active.discard(id(value))
        place = len(active) % _LEVELS_PER_PART
        if self.sorts_mappings:
            return
        if place == 0 and active:
            self._length_max, self.short_max = _REFERENCE_LENGTH, _SURELY_SHORT
        elif place in _BESIDE_A_CUT:
            self._length_max, self.short_max = TEXT_LENGTH_MAX, LEAF_LENGTH_MIN - 1

    @property
    def is_roomy(self) -> bool:
        """Whether a text of some length can stand at this level, and mappings stand as they are."""
        return self.short_max > _SURELY_SHORT and not self.sorts_mappings

    def known(self, value: Sequence[Any]) -> Sequence[tuple[Chunk, Written]]:
        """What a sequence begins with and need not be written again; nothing if it might not stand in chunks.

        A list that grows takes a fifth of the time this way, a list of strings a tenth.
        """
        if len(value) < _KNOWN_COUNT_MIN or not self.is_roomy:
            return ()
        found = self.memo.beginning(value)
        return found if sum([written.length for _, written in found]) > self.run_max else ()

    def chunks(self, run: Run, brackets: str = "[]") -> str:
        """The references to the chunks of a long run."""
        texts, refs = run.texts, self.refs
        hashes: list[str] = []
        for chunk, written in run.known:
            self.parts.update(written.needs)
            self.memories.append(chunk)
            hashes.append(written.address)
        for first, last in _chunk_bounds(texts):
            text = brackets[0] + ",".join(texts[first:last]) + brackets[1]
            begin, end = run.bounds(first, last)
            hashes.append(self.part(to_bytes(text), refs[begin:end]))
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
            # What stands in one list is mostly alike.
            run.elements = None
            return
        needs = {address: self.parts[address]}
        if needs[address].refs:
            needs = {part.hash: part for part in Encoded(b"", self.parts, (address,)).parts_in_order()}
        written = Written(address, needs, length, is_last=bounds[1] == len(run.texts))
        chunk = Chunk(elements, is_shared=run.is_shared, written=written)
        self.memories.append(self.memo.add_chunk(address, chunk))

    def part(self, data: bytes, refs: Sequence[str] = (), kind: PartKind = "json") -> str:
        """Keep some bytes as a part. The hash of it."""
        part = Part.of(data, tuple(sorted(set(refs))) if refs else (), kind)
        self.parts[part.hash] = part
        return part.hash

    def leaf(self, leaf: Leaf) -> str:
        """The text that stands for a leaf."""
        part = leaf.part
        self.parts[part.hash] = part
        self.refs.append(part.hash)
        self.memories.append(leaf)
        return leaf.text

    def _index(self, hashes: list[str]) -> str:
        """References to chunks; if they are many, to parts that hold them, until they are few."""
        while len(hashes) > _REFERENCES_MAX:
            hashes = [
                self.part(to_bytes(f'{{"~":"index","chunks":[{_quoted(hashes[first:last])}]}}'), hashes[first:last])
                for first, last in _index_bounds(hashes)
            ]
        self.refs.extend(hashes)
        return _quoted(hashes)

    def _cut(self, text: str, mark: int) -> str:
        hash_ = self.part(to_bytes(text), self.refs[mark:])
        del self.refs[mark:]
        self.refs.append(hash_)
        return part_reference(hash_)


def tagged_sequence(writer: Writer, head: str, run: Run) -> str:
    """An object that begins with `head` and holds elements, or references to their chunks if they are long."""
    text = ",".join(run.texts)
    if len(text) <= writer.run_max and not run.known:
        return f'{head},"items":[{text}]}}'
    return f'{head},"chunks":[{writer.chunks(run)}]}}'


def part_reference(hash_: str) -> str:
    """The text that stands for a value which is a part of its own."""
    return f'{{"~":"part","part":"{hash_}"}}'


def text_leaf(memo: Memo, value: str) -> Leaf:
    """A long string as a part: made once for each object, as long as it is remembered."""
    leaf = memo.leaf(value)
    if leaf is None:
        part = Part.of(to_bytes(quote(value)))
        leaf = memo.add_leaf(Leaf(value, part_reference(part.hash), part))
    return leaf


def too_deep() -> Refusal:
    """Why a value that is nested too deeply is refused."""
    return Refusal(
        f"it is nested more than {LEVELS_MAX} levels deep, or the stack is full", "keep it in a flatter form"
    )


def _chunk_bounds(texts: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Where to cut a sequence: after an element whose own text says so.

    Content decides, not position: an element that is added, removed or changed anywhere changes the chunks around
    it, and the cuts further on stay where they were.
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
    """Where to cut a sequence of references: after one in eight, as their own digits say, with some space between."""
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

# A text that is no longer than this has no string in it that would be a part of its own.
_LENGTH_MAX = 500


def _encoder() -> Any:
    # The C function itself, where there is one: `JSONEncoder.encode` takes longer than what it calls.
    plain = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    make: Any = getattr(json.encoder, "c_make_encoder", None)
    if make is None:
        return lambda value, _: (plain.encode(value),)  # pyright: ignore[reportUnknownLambdaType, reportUnknownVariableType]
    return make(None, plain.default, encode_basestring, None, ":", ",", False, False, False)  # noqa: FBT003


_encode: Any = _encoder()


def json_text(value: dict[Any, Any]) -> str | None:
    """The text of a dict that is short and holds nothing but JSON; None if it has to be looked at more closely."""
    if not _is_plain(value, _LEVELS):
        return None
    try:
        text = "".join(_encode(value, 0))
    except ValueError:
        # Not a number, or too large a one.
        return None
    return text if len(text) <= _LENGTH_MAX and '"~"' not in text else None


def _is_plain(value: Any, levels: int) -> bool:
    # Exactly these types: the encoder would take a subclass for what it derives from.
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
