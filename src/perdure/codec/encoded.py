"""Encoded values, and JSON documents assembled from them."""

from __future__ import annotations

import json
from functools import lru_cache
from json.encoder import encode_basestring
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from perdure.codec.errors import Damage, DamagedPartError
from perdure.codec.reader import find_references
from perdure.records import Blob, digest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping


class Branch(Protocol):
    """A node of a log, with everything it refers to. Its content is loaded on demand."""

    @property
    def hash(self) -> str:
        """The hash of the blob."""
        ...

    @property
    def size(self) -> int:
        """The size in bytes of the blob and of everything it refers to."""
        ...

    def blob(self) -> Blob:
        """Return the blob. Raises CheckpointDamagedError if it was read and is damaged."""
        ...

    def within(self) -> tuple[Mapping[str, Blob], Mapping[str, Branch]]:
        """Return the blobs that this one refers to, directly or not, and further log nodes."""
        ...


_NO_BLOBS: Mapping[str, Blob] = MappingProxyType({})
_NO_BRANCHES: Mapping[str, Branch] = MappingProxyType({})


class Encoded:
    """An encoded value: its JSON text and the blobs that were cut out of it. It never changes.

    Not a frozen dataclass, because that takes three times as long to create, and each message, write and output
    creates one.
    """

    __slots__ = ("_made", "_whole", "branches", "immutable", "memories", "refs", "text")

    def __init__(  # noqa: PLR0917
        self,
        text: bytes,
        blobs: Iterable[Blob] | Mapping[str, Blob] = (),
        refs: tuple[str, ...] = (),
        immutable: bool = False,  # noqa: FBT001, FBT002  a keyword-only argument would double the time
        branches: Mapping[str, Branch] = _NO_BRANCHES,
        memories: object = None,
    ) -> None:
        self.text = text
        """The value as JSON."""
        self.refs = refs
        """The hashes of the blobs that the text itself refers to."""
        self.immutable = immutable
        """True if nothing inside can change: then the encoded object itself can be given out again."""
        self.branches = branches
        """The log nodes of the value, by hash."""
        self.memories = memories
        """Entries of the codec's memo that live as long as this object."""
        self._made = _by_hash(blobs) if blobs else _NO_BLOBS
        self._whole: Blob | None = None

    def __repr__(self) -> str:
        return f"Encoded(text={self.text!r}, refs={self.refs!r}, immutable={self.immutable!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Encoded):
            return NotImplemented
        return (self.text, self.refs, self.immutable) == (other.text, other.refs, other.immutable)

    def __hash__(self) -> int:
        return hash((self.text, self.refs, self.immutable))

    @property
    def made(self) -> Mapping[str, Blob]:
        """The blobs made with the text, by hash, without those of log nodes."""
        return self._made

    @property
    def blobs(self) -> tuple[Blob, ...]:
        """The blobs that the text needs, directly or not."""
        if not self.branches:
            return tuple(self._made.values())
        return tuple({**self._made, **{blob.hash: blob for blob in self.blobs_in_order()}}.values())

    @property
    def size(self) -> int:
        """The size in bytes of the text and of all blobs it needs."""
        own = len(self.text)
        if self._made:
            own += sum([len(blob.data) for blob in self._made.values()])
        return own + sum([branch.size for branch in self.branches.values()]) if self.branches else own

    def has(self, address: str) -> bool:
        """Return True if the text is known to need this blob. For data that was read, few blobs are known."""
        return address in self._made or address in self.branches or address in self.refs

    def beyond(self, is_known: Callable[[str], bool]) -> Iterator[Blob]:
        """Yield the blobs that the text needs, except known ones and everything they refer to.

        `later.beyond(earlier.has)` yields what changed since an earlier value. Each blob comes after those it refers
        to.
        """
        return _walked(self.refs, self._made, self.branches, is_known)

    def blobs_in_order(self) -> Iterator[Blob]:
        """Yield exactly the blobs that the text needs, each after those it refers to."""
        return self.beyond(_nothing)

    def blob(self) -> Blob:
        """Return the text as a blob."""
        whole = self._whole
        if whole is None:
            whole = self._whole = Blob.of(self.text, self.refs)
        return whole

    def with_whole(self, blob: Blob) -> Encoded:
        """Set the blob of the text, which is known already."""
        self._whole = blob
        return self

    def with_blobs(self, blobs: Iterable[Blob]) -> Encoded:
        """Return the same text with these blobs."""
        return Encoded(self.text, blobs, self.refs, self.immutable, self.branches, self.memories)


def _by_hash(blobs: Iterable[Blob] | Mapping[str, Blob]) -> Mapping[str, Blob]:
    # A writer passes the dict that it filled.
    return blobs if type(blobs) is dict else {blob.hash: blob for blob in blobs}  # type: ignore[union-attr]


def _nothing(_: str) -> bool:
    return False


_Place: TypeAlias = "tuple[Blob | None, Iterator[str], Mapping[str, Blob], Mapping[str, Branch]]"
"""A blob, the iterator over its remaining references, and where the blobs are found."""


def _walked(
    refs: Iterable[str],
    blobs: Mapping[str, Blob],
    branches: Mapping[str, Branch],
    is_known: Callable[[str], bool],
) -> Iterator[Blob]:
    """Walk from the leaves up, without recursion, because nested values may be deep."""
    seen: set[str] = set()
    waiting: list[_Place] = [(None, iter(refs), blobs, branches)]
    while waiting:
        blob, inner, blobs, branches = waiting[-1]
        for address in inner:
            if address in seen or is_known(address):
                continue
            seen.add(address)
            branch = branches.get(address)
            found = blobs.get(address) if branch is None else branch.blob()
            # A blob that is neither made here nor a log node was read from a store, so the store has it.
            if found is not None:
                blobs, branches = (blobs, branches) if branch is None else branch.within()
                waiting.append((found, iter(found.refs), blobs, branches))
                break
        else:
            waiting.pop()
            if blob is not None:
                yield blob


# Created once: json.dumps creates an encoder for each call with options.
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def dumps(value: object) -> bytes:
    """Encode plain data as compact JSON."""
    # Most calls encode a single leaf, for which the encoder is slow.
    if value is None:
        return b"null"
    if type(value) is int:
        return b"%d" % value
    text = encode_basestring(value) if type(value) is str else _encode(value)
    return text.encode("utf-8", "surrogatepass")


def loads(text: bytes) -> Any:
    """Decode plain JSON data. Raises DamagedPartError."""
    try:
        return json.loads(text.decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError) as error:
        raise DamagedPartError(f"not JSON: {error}") from error


# Names of executors, kinds and paths repeat in every superstep. Quoting them once and inserting the text takes a tenth
# of the time of a JSON encoder for the whole document.
@lru_cache(maxsize=8192)
def quoted(text: str) -> bytes:
    """Quote a short name as JSON. The result is cached."""
    return encode_basestring(text).encode("utf-8", "surrogatepass")


@lru_cache(maxsize=1024)
def quoted_all(texts: tuple[str, ...]) -> bytes:
    """Quote several names as a JSON array."""
    return b"[" + b",".join(map(quoted, texts)) + b"]"


def quoted_or_null(text: str | None) -> bytes:
    """Quote a name as JSON, or return null."""
    return b"null" if text is None else quoted(text)


def json_array(texts: Iterable[bytes]) -> bytes:
    """Assemble a JSON array from encoded elements."""
    return b"[" + b",".join(texts) + b"]"


def json_object(members: Mapping[str, bytes]) -> bytes:
    """Assemble a JSON object from encoded members."""
    return b"{" + b",".join([quoted(name) + b":" + text for name, text in members.items()]) + b"}"


class Needs:
    """Collects what a document refers to while its text is assembled."""

    __slots__ = ("_blobs", "_branches", "_refs")

    def __init__(self) -> None:
        self._blobs: dict[str, Blob] = {}
        self._branches: dict[str, Branch] = {}
        self._refs: dict[str, None] = {}

    def take(self, encoded: Encoded) -> bytes:
        """Return the text of an encoded value that becomes part of the document."""
        if encoded.refs:
            self._need(encoded)
            self._refs.update(dict.fromkeys(encoded.refs))
        return encoded.text

    def refer(self, encoded: Encoded) -> str:
        """Add an encoded value as a blob of its own and return its hash."""
        self._need(encoded)
        blob = encoded.blob()
        self._blobs[blob.hash] = blob
        self._refs[blob.hash] = None
        return blob.hash

    def _need(self, encoded: Encoded) -> None:
        self._blobs.update(encoded.made)
        self._branches.update(encoded.branches)

    def whole(self, text: bytes, *, immutable: bool = False) -> Encoded:
        """Return the finished document."""
        if not self._refs:
            return Encoded(text, (), (), immutable)
        return Encoded(text, self._blobs, tuple(self._refs), immutable, self._branches)


def plain(value: object) -> Encoded:
    """Encode plain data as an element of a document."""
    return Encoded(dumps(value), (), (), immutable=True)


def array(items: Iterable[Encoded]) -> Encoded:
    """Assemble a JSON array."""
    pieces = tuple(items)
    return _joined(json_array([piece.text for piece in pieces]), pieces)


def document(members: Mapping[str, Encoded]) -> Encoded:
    """Assemble a JSON object."""
    text = json_object({name: piece.text for name, piece in members.items()})
    return _joined(text, tuple(members.values()))


def piece(tree: object) -> Encoded:
    """Encode a subtree of a document that was read."""
    text = dumps(tree)
    return Encoded(text, (), references(text), immutable=False)


def verified(blobs: Mapping[str, bytes], address: str) -> bytes:
    """Return the bytes of a blob. Raises DamagedPartError if they are missing or damaged."""
    data = blobs.get(address)
    if data is None:
        raise DamagedPartError(f"part {address} is missing")
    if digest(data) != address:
        raise DamagedPartError(f"part {address} has other bytes than were written")
    return data


def with_blobs(refs: Iterable[str], blobs: Mapping[str, bytes]) -> tuple[Blob, ...]:
    """Return all blobs that these references need, directly or not. Raises DamagedPartError."""
    found: dict[str, Blob] = {}
    waiting = list(refs)
    for address in waiting:
        verified(blobs, address)
    while waiting:
        address = waiting.pop()
        if address not in found and address in blobs:
            found[address] = _blob(address, verified(blobs, address))
            waiting.extend(found[address].refs)
    return tuple(found.values())


def _blob(address: str, data: bytes) -> Blob:
    try:
        # Raw bytes of a program may look like one of our documents; what they seem to refer to does not exist.
        return Blob(address, data, references(data))
    except DamagedPartError:
        return Blob(address, data, kind="raw")


def _joined(text: bytes, pieces: tuple[Encoded, ...]) -> Encoded:
    needs = Needs()
    for item in pieces:
        needs.take(item)
    return needs.whole(text, immutable=all(item.immutable for item in pieces))


def references(text: bytes) -> tuple[str, ...]:
    """Return the hashes of the blobs that a text refers to directly. Raises DamagedPartError."""
    try:
        return find_references(text)
    except Damage as damage:
        raise DamagedPartError(damage.reason) from damage
    except RecursionError as error:
        raise DamagedPartError("it is nested too deeply to be read") from error
