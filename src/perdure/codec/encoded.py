"""A value as bytes, and the parts that were cut out of it."""

from __future__ import annotations

import json
from functools import lru_cache
from json.encoder import encode_basestring
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from perdure.codec.errors import Damage, DamagedPartError
from perdure.codec.reader import find_references
from perdure.records import Part, digest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping


class Branch(Protocol):
    """A part of a log with all that it refers to. Nothing of it is looked at before it is asked for."""

    @property
    def hash(self) -> str:
        """The hash of the part."""
        ...

    @property
    def size(self) -> int:
        """The bytes of the part and of all that it refers to."""
        ...

    def part(self) -> Part:
        """The part. Raises CheckpointDamagedError if it was read, and is not what was written."""
        ...

    def within(self) -> tuple[Mapping[str, Part], Mapping[str, Branch]]:
        """What the part refers to: parts, with those that they refer to themselves, and further branches."""
        ...


_NO_PARTS: Mapping[str, Part] = MappingProxyType({})
_NO_BRANCHES: Mapping[str, Branch] = MappingProxyType({})


class Encoded:
    """A value as bytes: its text, and the parts that were cut out of it. It is never changed.

    No frozen dataclass, which takes three times as long to make: each message, write and output makes one.
    """

    __slots__ = ("_made", "_whole", "branches", "immutable", "memories", "refs", "text")

    def __init__(  # noqa: PLR0917
        self,
        text: bytes,
        parts: Iterable[Part] | Mapping[str, Part] = (),
        refs: tuple[str, ...] = (),
        immutable: bool = False,  # noqa: FBT001, FBT002  given by name; a keyword only would cost as much as the rest
        branches: Mapping[str, Branch] = _NO_BRANCHES,
        memories: object = None,
    ) -> None:
        self.text = text
        """The value as JSON."""
        self.refs = refs
        """The hashes of the parts that the text itself refers to."""
        self.immutable = immutable
        """Nothing inside can change: the value that was encoded may be handed out again."""
        self.branches = branches
        """The parts of logs that the value has, by their hashes."""
        self.memories = memories
        """What the codec remembers as long as this is there."""
        self._made = _by_hash(parts) if parts else _NO_PARTS
        self._whole: Part | None = None

    def __repr__(self) -> str:
        return f"Encoded(text={self.text!r}, refs={self.refs!r}, immutable={self.immutable!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Encoded):
            return NotImplemented
        return (self.text, self.refs, self.immutable) == (other.text, other.refs, other.immutable)

    def __hash__(self) -> int:
        return hash((self.text, self.refs, self.immutable))

    @property
    def made(self) -> Mapping[str, Part]:
        """The parts that were made with the text, by their hashes; not those of branches."""
        return self._made

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts that the text needs, those that it refers to through others included."""
        if not self.branches:
            return tuple(self._made.values())
        return tuple({**self._made, **{part.hash: part for part in self.parts_in_order()}}.values())

    @property
    def size(self) -> int:
        """The bytes of the text and of all the parts that it needs."""
        own = len(self.text)
        if self._made:
            own += sum([len(part.data) for part in self._made.values()])
        return own + sum([branch.size for branch in self.branches.values()]) if self.branches else own

    def has(self, address: str) -> bool:
        """Whether a part is known to be among those that the text needs. Of what was read few are known."""
        return address in self._made or address in self.branches or address in self.refs

    def beyond(self, is_known: Callable[[str], bool]) -> Iterator[Part]:
        """The parts that the text needs, but for those that are known, with all that they refer to.

        What follows an earlier value is written for what has changed: `later.beyond(earlier.has)`. Each part comes
        after those that it refers to.
        """
        return _walked(self.refs, self._made, self.branches, is_known)

    def parts_in_order(self) -> Iterator[Part]:
        """The parts that the text needs and no others, each after those that it refers to."""
        return self.beyond(_nothing)

    def part(self) -> Part:
        """The text as a part."""
        whole = self._whole
        if whole is None:
            whole = self._whole = Part.of(self.text, self.refs)
        return whole

    def with_whole(self, part: Part) -> Encoded:
        """The same, where the text is known to be this part."""
        self._whole = part
        return self

    def with_parts(self, parts: Iterable[Part]) -> Encoded:
        """The same text with these parts."""
        return Encoded(self.text, parts, self.refs, self.immutable, self.branches, self.memories)


def _by_hash(parts: Iterable[Part] | Mapping[str, Part]) -> Mapping[str, Part]:
    # A writer hands over the dict that it has filled.
    return parts if type(parts) is dict else {part.hash: part for part in parts}  # type: ignore[union-attr]


def _nothing(_: str) -> bool:
    return False


_Place: TypeAlias = "tuple[Part | None, Iterator[str], Mapping[str, Part], Mapping[str, Branch]]"
"""A part, those of its references that were not looked at, and where the parts are found."""


def _walked(
    refs: Iterable[str],
    parts: Mapping[str, Part],
    branches: Mapping[str, Branch],
    is_known: Callable[[str], bool],
) -> Iterator[Part]:
    """From the leaves up, without recursion: nested values may be deep."""
    seen: set[str] = set()
    waiting: list[_Place] = [(None, iter(refs), parts, branches)]
    while waiting:
        part, inner, parts, branches = waiting[-1]
        for address in inner:
            if address in seen or is_known(address):
                continue
            seen.add(address)
            branch = branches.get(address)
            found = parts.get(address) if branch is None else branch.part()
            # What is neither made nor a branch was read from a store, and is there.
            if found is not None:
                parts, branches = (parts, branches) if branch is None else branch.within()
                waiting.append((found, iter(found.refs), parts, branches))
                break
        else:
            waiting.pop()
            if part is not None:
                yield part


# Made once: json.dumps makes an encoder for each call that has options.
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def dumps(value: object) -> bytes:
    """Plain data as the JSON text that all of our documents are made of."""
    # An encoder is made for trees: most of what comes here is a single leaf.
    if value is None:
        return b"null"
    if type(value) is int:
        return b"%d" % value
    text = encode_basestring(value) if type(value) is str else _encode(value)
    return text.encode("utf-8", "surrogatepass")


def loads(text: bytes) -> Any:
    """The plain data of a text. Raises DamagedPartError."""
    try:
        return json.loads(text.decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError) as error:
        raise DamagedPartError(f"not JSON: {error}") from error


# Names of executors, kinds and paths come again with every superstep: quoted once they are spliced into texts, which
# costs a tenth of what a JSON encoder takes for the document around them.
@lru_cache(maxsize=8192)
def quoted(text: str) -> bytes:
    """A name as JSON text. It is remembered: for what comes again, and is short."""
    return encode_basestring(text).encode("utf-8", "surrogatepass")


@lru_cache(maxsize=1024)
def quoted_all(texts: tuple[str, ...]) -> bytes:
    """Several names as a JSON array."""
    return b"[" + b",".join(map(quoted, texts)) + b"]"


def quoted_or_null(text: str | None) -> bytes:
    """A name as JSON text, or null."""
    return b"null" if text is None else quoted(text)


class Needs:
    """What a document refers to, collected while its text is put together."""

    __slots__ = ("_branches", "_parts", "_refs")

    def __init__(self) -> None:
        self._parts: dict[str, Part] = {}
        self._branches: dict[str, Branch] = {}
        self._refs: dict[str, None] = {}

    def take(self, encoded: Encoded) -> bytes:
        """The text of a piece, which stands in the document."""
        if encoded.refs:
            self._need(encoded)
            self._refs.update(dict.fromkeys(encoded.refs))
        return encoded.text

    def refer(self, encoded: Encoded) -> str:
        """The hash of a piece which becomes a part that the document refers to."""
        self._need(encoded)
        part = encoded.part()
        self._parts[part.hash] = part
        self._refs[part.hash] = None
        return part.hash

    def _need(self, encoded: Encoded) -> None:
        self._parts.update(encoded.made)
        self._branches.update(encoded.branches)

    def whole(self, text: bytes, *, immutable: bool = False) -> Encoded:
        """The document with this text."""
        if not self._refs:
            return Encoded(text, (), (), immutable)
        return Encoded(text, self._parts, tuple(self._refs), immutable, self._branches)


def plain(value: object) -> Encoded:
    """Plain data as a piece of a document."""
    return Encoded(dumps(value), (), (), immutable=True)


def array(items: Iterable[Encoded]) -> Encoded:
    """A JSON array of pieces."""
    pieces = tuple(items)
    return _joined(b"[" + b",".join(piece.text for piece in pieces) + b"]", pieces)


def document(members: Mapping[str, Encoded]) -> Encoded:
    """A JSON object of pieces."""
    text = b",".join(quoted(name) + b":" + piece.text for name, piece in members.items())
    return _joined(b"{" + text + b"}", tuple(members.values()))


def piece(tree: object) -> Encoded:
    """A part of a document that was read, as a piece again."""
    text = dumps(tree)
    return Encoded(text, (), references(text), immutable=False)


def verified(parts: Mapping[str, bytes], address: str) -> bytes:
    """The bytes of a part. Raises DamagedPartError if they are missing or not what was written."""
    data = parts.get(address)
    if data is None:
        raise DamagedPartError(f"part {address} is missing")
    if digest(data) != address:
        raise DamagedPartError(f"part {address} has other bytes than were written")
    return data


def with_parts(refs: Iterable[str], parts: Mapping[str, bytes]) -> tuple[Part, ...]:
    """The parts that something refers to, directly or not. Raises DamagedPartError."""
    found: dict[str, Part] = {}
    waiting = list(refs)
    for address in waiting:
        verified(parts, address)
    while waiting:
        address = waiting.pop()
        if address not in found and address in parts:
            found[address] = _part(address, verified(parts, address))
            waiting.extend(found[address].refs)
    return tuple(found.values())


def _part(address: str, data: bytes) -> Part:
    try:
        # Bytes of users may look like a document of ours; what they seem to refer to is not there.
        return Part(address, data, references(data))
    except DamagedPartError:
        return Part(address, data, kind="raw")


def _joined(text: bytes, pieces: tuple[Encoded, ...]) -> Encoded:
    needs = Needs()
    for item in pieces:
        needs.take(item)
    return needs.whole(text, immutable=all(item.immutable for item in pieces))


def references(text: bytes) -> tuple[str, ...]:
    """The hashes of the parts that a text refers to directly. Raises DamagedPartError."""
    try:
        return find_references(text)
    except Damage as damage:
        raise DamagedPartError(damage.reason) from damage
    except RecursionError as error:
        raise DamagedPartError("it is nested too deeply to be read here") from error
