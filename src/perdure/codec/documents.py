"""JSON documents that are put together from encoded values, and taken apart into them again."""

from __future__ import annotations

import json
from functools import lru_cache
from json.encoder import encode_basestring
from typing import TYPE_CHECKING, Any

from perdure.codec.codec import DamagedPartError, Encoded, references
from perdure.records import Part, digest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from perdure.codec.encoded import Branch


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
