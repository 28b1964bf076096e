"""Encoded values, the blobs they need, and JSON documents assembled from them."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field, replace
from json.encoder import encode_basestring
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from perdure.codec.errors import DamagedPartError
from perdure.data_classes import new_dict
from perdure.records import Blob, digest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from perdure.codec.log import LogNode

INLINE_LENGTH_MAX = 2048
"""A longer text becomes a blob of its own when it is inserted into a document."""


def to_bytes(text: str) -> bytes:
    """Encode as UTF-8, keeping lone surrogates, which Python strings may contain (file names do)."""
    return text.encode("utf-8", "surrogatepass")


@dataclass(slots=True)
class Encoded:
    """An encoded value: its JSON text and the blobs that were cut out of it. It never changes.

    Not frozen, because that takes three times as long to create, and each message, write and output creates one.

    Attributes:
        made: The blobs made with the text, by hash, without those of log nodes.
        refs: The hashes of the blobs that the text itself refers to.
        immutable: True if nothing inside can change: then the encoded object itself can be given out again.
        branches: The log nodes of the value, by hash.
        memories: Entries of the codec's memo that live as long as this object.
        whole: The text as a blob, if it was needed.
    """

    text: bytes
    made: Mapping[str, Blob] = field(default_factory=new_dict, compare=False, repr=False)
    refs: tuple[str, ...] = ()
    immutable: bool = False
    branches: Mapping[str, LogNode] = field(default_factory=new_dict, compare=False, repr=False)
    memories: object = field(default=None, compare=False, repr=False)
    whole: Blob | None = field(default=None, compare=False, repr=False)

    @property
    def blobs(self) -> tuple[Blob, ...]:
        """The blobs that the text needs, directly or not."""
        if not self.branches:
            return tuple(self.made.values())
        return tuple({**self.made, **{blob.hash: blob for blob in self.blobs_in_order()}}.values())

    @property
    def size(self) -> int:
        """The size in bytes of the text and of all blobs it needs."""
        if not (self.made or self.branches):
            return len(self.text)
        blobs = sum([len(blob.data) for blob in self.made.values()])
        return len(self.text) + blobs + sum([branch.size for branch in self.branches.values()])

    def has(self, address: str) -> bool:
        """Return True if the text is known to need this blob. For data that was read, few blobs are known."""
        return address in self.made or address in self.branches or address in self.refs

    def beyond(self, is_known: Callable[[str], bool]) -> Iterator[Blob]:
        """Yield the blobs that the text needs, except known ones and everything they refer to.

        `later.beyond(earlier.has)` yields what changed since an earlier value. Each blob comes after those it refers
        to.
        """
        return _walked(self.refs, self.made, self.branches, is_known)

    def blobs_in_order(self) -> Iterator[Blob]:
        """Yield exactly the blobs that the text needs, each after those it refers to."""
        return self.beyond(lambda _: False)

    def blob(self) -> Blob:
        """Return the text as a blob."""
        if self.whole is None:
            self.whole = Blob.of(self.text, self.refs)
        return self.whole

    def inline(self, length_max: int = INLINE_LENGTH_MAX) -> Encoded:
        """Replace a longer text by a reference to a blob, so that it fits into a document."""
        if len(self.text) <= length_max:
            return self
        blob = self.blob()
        return replace(
            self, text=reference(blob.hash).encode(), made={**self.made, blob.hash: blob}, refs=(blob.hash,), whole=None
        )

    def with_stored(self, stored: Mapping[str, bytes]) -> Encoded:
        """Add all blobs that the text needs, directly or not, from these. Raises DamagedPartError."""
        for address in self.refs:
            verified(stored, address)

        def blob_at(address: str) -> Blob | None:
            if address not in stored:
                return None
            data = verified(stored, address)
            try:
                # Raw bytes of a program may look like one of our documents; what they seem to refer to does not exist.
                return Blob(address, data, references(data))
            except DamagedPartError:
                return Blob(address, data, kind="raw")

        found = reached(self.refs, blob_at)
        return replace(self, made=found) if found else self


def reached(refs: Iterable[str], blob_at: Callable[[str], Blob | None]) -> dict[str, Blob]:
    """Return the blobs that references lead to, directly or not. `blob_at` returns None where the way ends."""
    found: dict[str, Blob] = {}
    waiting = list(refs)
    while waiting:
        address = waiting.pop()
        if address not in found and (blob := blob_at(address)) is not None:
            found[address] = blob
            waiting.extend(blob.refs)
    return found


def reference(address: str) -> str:
    """Return the text of a reference to a blob."""
    return f'{{"~":"part","part":"{address}"}}'


_Place: TypeAlias = "tuple[Blob | None, Iterator[str], Mapping[str, Blob], Mapping[str, LogNode]]"
"""A blob, the iterator over its remaining references, and where the blobs are found."""


def _walked(
    refs: Iterable[str], blobs: Mapping[str, Blob], branches: Mapping[str, LogNode], is_known: Callable[[str], bool]
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


def dumps(value: object) -> bytes:
    """Encode plain data as compact JSON."""
    return _encode(value).encode("utf-8", "surrogatepass")


def loads(text: bytes) -> Any:
    """Decode plain JSON data. Raises DamagedPartError."""
    try:
        return json.loads(text.decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError) as error:
        raise DamagedPartError(f"not JSON: {error}") from error


_make_c_encoder: Any = getattr(json.encoder, "c_make_encoder", None)
_refuse = json.JSONEncoder().default


def encoder(default: Callable[[Any], object] = _refuse, *, allow_nan: bool = True) -> Callable[[Any], str]:
    """Return a function that encodes compact JSON, as cheap as `json` allows.

    It calls the C encoder itself: `JSONEncoder.encode` takes three times as long for a small value. A superstep that
    sets 10 MB of small dicts takes half the time this way.
    """
    if _make_c_encoder is None:
        separators = (",", ":")
        return json.JSONEncoder(ensure_ascii=False, separators=separators, allow_nan=allow_nan, default=default).encode
    encode = _make_c_encoder(None, default, encode_basestring, None, ":", ",", False, False, allow_nan)  # noqa: FBT003
    return lambda value: "".join(encode(value, 0))


_encode = encoder()


class _HoleEncoder(threading.local):
    """Encodes documents, with a hole in place of each encoded value. Made once for each thread."""

    def __init__(self) -> None:
        self.hole = "\0"
        self.inserted: list[Encoded] = []
        """The values in the holes of the last document."""
        self._encode = encoder(self._leave_hole)

    def _leave_hole(self, value: Encoded) -> str:
        self.inserted.append(value)
        return self.hole

    def encode(self, tree: object, hole: str = "\0") -> tuple[bytes, list[Encoded]]:
        """Return the text of a document and the values that belong in its holes, in order."""
        self.hole, self.inserted = hole, []
        return self._encode(tree).encode("utf-8", "surrogatepass"), self.inserted


_holes = _HoleEncoder()


def document(tree: object) -> Encoded:
    """Encode plain data as JSON. Encoded values in it are inserted as they are, with the blobs they need."""
    if type(tree) is Encoded:
        return tree
    hole = "\0"
    text, inserted = _holes.encode(tree)
    if not inserted:
        return Encoded(text)
    while len(between := text.split(dumps(hole))) != len(inserted) + 1:
        # A name or an id is the text of a hole.
        hole += "\0"
        text, inserted = _holes.encode(tree, hole)
    filled = [b""] * (len(between) + len(inserted))
    filled[::2], filled[1::2] = between, [each.text for each in inserted]
    made: dict[str, Blob] = {}
    branches: dict[str, LogNode] = {}
    refs: list[str] = []
    for each in inserted:
        if each.refs:
            made.update(each.made)
            branches.update(each.branches)
            refs += each.refs
    return Encoded(b"".join(filled), made, tuple(dict.fromkeys(refs)), branches=branches)


def read_document(tree: object) -> Encoded:
    """Encode a subtree of a document that was read."""
    text = dumps(tree)
    return Encoded(text, refs=references(text))


def verified(blobs: Mapping[str, bytes], address: str) -> bytes:
    """Return the bytes of a blob. Raises DamagedPartError if they are missing or damaged."""
    data = blobs.get(address)
    if data is None:
        raise DamagedPartError(f"part {address} is missing")
    if digest(data) != address:
        raise DamagedPartError(f"part {address} has other bytes than were written")
    return data


def references(text: bytes) -> tuple[str, ...]:
    """Return the hashes of the blobs that a JSON text refers to directly. Raises DamagedPartError."""
    return tuple(sorted(set(every_reference(text))))


def every_reference(text: bytes) -> list[str]:
    """Return the hashes of the blobs that a JSON text refers to, each as often as it does. Raises DamagedPartError."""
    if b'"~"' not in text:
        return []
    found: list[str] = []
    trees: list[Any] = [loads(text)]
    while trees:
        tree = trees.pop()
        if type(tree) is list:
            trees.extend(cast("list[Any]", tree))
        elif type(tree) is dict:
            node = cast("dict[str, Any]", tree)
            trees.extend(node.values())
            if "~" in node:
                addresses: list[object] = require(node.get("chunks", []), list, "chunks")
                named = [*addresses, node["part"]] if "part" in node else addresses
                found += [require(address, str, "part") for address in named]
    return found


def require(found: Any, expected: type, what: str) -> Any:
    """Return `found` if it has the expected type. Raises DamagedPartError."""
    if type(found) is not expected:
        raise DamagedPartError(f"{what!r} is a {type(found).__name__}, not a {expected.__name__}")
    return found
