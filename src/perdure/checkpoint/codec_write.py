"""Writing a value: its text, the parts that are cut out of it, and how long sequences are cut into chunks."""

from __future__ import annotations

import json.encoder
from typing import TYPE_CHECKING, Any, TypeAlias
from zlib import crc32

from perdure.checkpoint.codec_faults import Refusal
from perdure.checkpoint.codec_paths import no_step
from perdure.records import Part

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from perdure.checkpoint.trust import Trust
    from perdure.records import PartKind

Write: TypeAlias = "Callable[[Writer, Any], str]"

TEXT_LENGTH_MAX = 4096
"""A longer text of a value inside another stands in a part of its own; so do the chunks of a longer sequence."""

LEVELS_MAX = 400
"""How deeply values may be nested, so that writing them stays within the interpreter's stack."""

# At every so many levels what is longer than a reference is cut out, so that parsing a text stays within the stack.
_LEVELS_PER_PART = 64
_REFERENCE_LENGTH = 64

_CHUNK_LENGTH_MIN = 1024
_CHUNK_LENGTH_MAX = 16384

# crc32 has 2**32 values: an element ends its chunk with a chance of its length in 4096.
_CHANCE_PER_CHARACTER = 2**32 // TEXT_LENGTH_MAX

quote: Callable[[str], str] = json.encoder.encode_basestring
"""A string as JSON text, with all characters but quotes, backslashes and controls as they are."""


def to_bytes(text: str) -> bytes:
    """UTF-8 that keeps lone surrogates, which Python strings may hold (file names do)."""
    return text.encode("utf-8", "surrogatepass")


class Run:
    """The texts of the elements of a sequence, and which of the writer's references belong to which."""

    __slots__ = ("ends", "start", "texts")

    def __init__(self, start: int) -> None:
        self.start = start
        self.texts: list[str] = []
        self.ends: list[int] = []


class Writer:
    """Writes one value. `refs` are the parts that the text written so far refers to."""

    __slots__ = (
        "_active",
        "_kind_of",
        "_kinds",
        "_length_max",
        "immutable",
        "parts",
        "refs",
        "sorts_mappings",
        "trust",
    )

    def __init__(
        self,
        kinds: dict[type, Write],
        kind_of: Callable[[object], Write],
        trust: Trust,
        *,
        sorts_mappings: bool = False,
    ) -> None:
        self._kinds = kinds
        self._kind_of = kind_of
        self._active: set[int] = set()
        self._length_max = TEXT_LENGTH_MAX
        self.trust = trust
        self.sorts_mappings = sorts_mappings
        self.parts: dict[str, Part] = {}
        self.refs: list[str] = []
        self.immutable = True

    def whole(self, value: object) -> str:
        """The text of the outermost value."""
        kind = self._kinds.get(type(value)) or self._kind_of(value)
        return kind(self, value)

    def child(self, value: object, step: Callable[[Any], str] = no_step, place: object = None) -> str:
        """The text of a value inside another: a reference if it is long.

        `step` spells the way to its place, should it be refused. Kinds call this from their own loops: with two
        frames a level the stack is enough for all levels that are allowed.
        """
        mark = len(self.refs)
        try:
            kind = self._kinds.get(type(value)) or self._kind_of(value)
            text = kind(self, value)
        except Refusal as refusal:
            refusal.rise(step(place))
            raise
        return text if len(text) <= self._length_max else self._cut(text, mark)

    def enter(self, value: object) -> None:
        """Begin to write what is inside a value. Each `enter` is followed by its `leave`, or by a refusal."""
        active = self._active
        if id(value) in active:
            raise Refusal("it contains itself", "refer to it by a key or an id instead")
        if len(active) >= LEVELS_MAX:
            raise too_deep()
        active.add(id(value))
        if len(active) % _LEVELS_PER_PART == 0:
            self._length_max = _REFERENCE_LENGTH

    def leave(self, value: object) -> None:
        """Go on with what is around a value."""
        active = self._active
        active.discard(id(value))
        ends_part = active and len(active) % _LEVELS_PER_PART == 0
        self._length_max = _REFERENCE_LENGTH if ends_part else TEXT_LENGTH_MAX

    def chunks(self, run: Run, brackets: str = "[]") -> str:
        """The references to the chunks of a long run; of a short one, nothing."""
        if sum(map(len, run.texts)) + len(run.texts) <= TEXT_LENGTH_MAX:
            return ""
        refs = self.refs[run.start :]
        ends = [end - run.start for end in run.ends]
        hashes: list[str] = []
        for first, last in _chunk_bounds(run.texts):
            text = brackets[0] + ",".join(run.texts[first:last]) + brackets[1]
            hashes.append(self.part(to_bytes(text), refs[ends[first - 1] if first else 0 : ends[last - 1]]))
        del self.refs[run.start :]
        return self._index(hashes)

    def part(self, data: bytes, refs: Iterable[str] = (), kind: PartKind = "json") -> str:
        """Keep some bytes as a part. The hash of it."""
        part = Part.of(data, tuple(sorted(set(refs))), kind)
        self.parts[part.hash] = part
        return part.hash

    def _index(self, hashes: list[str]) -> str:
        """References to chunks; if they are long themselves, to parts that hold them, until they are short."""
        texts = [quote(hash_) for hash_ in hashes]
        while len(texts) * len(texts[0]) > TEXT_LENGTH_MAX:
            outer: list[str] = []
            for first, last in _chunk_bounds(texts):
                text = f'{{"~":"index","chunks":[{",".join(texts[first:last])}]}}'
                outer.append(self.part(to_bytes(text), hashes[first:last]))
            hashes = outer
            texts = [quote(hash_) for hash_ in hashes]
        self.refs.extend(hashes)
        return ",".join(texts)

    def _cut(self, text: str, mark: int) -> str:
        hash_ = self.part(to_bytes(text), self.refs[mark:])
        del self.refs[mark:]
        self.refs.append(hash_)
        return part_reference(hash_)


def tagged_sequence(writer: Writer, head: str, run: Run) -> str:
    """An object that begins with `head` and holds elements, or references to their chunks if they are long."""
    chunks = writer.chunks(run)
    return f'{head},"chunks":[{chunks}]}}' if chunks else f'{head},"items":[{",".join(run.texts)}]}}'


def part_reference(hash_: str) -> str:
    """The text that stands for a value which is a part of its own."""
    return f'{{"~":"part","part":"{hash_}"}}'


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
