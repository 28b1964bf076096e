"""JSON documents that are put together from encoded values, and taken apart into them again."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from perdure.checkpoint.codec import DamagedPartError, Encoded, references
from perdure.records import Part, digest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


# Made once: json.dumps makes an encoder for each call that has options.
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def dumps(value: object) -> bytes:
    """Plain data as the JSON text that all of our documents are made of."""
    return _encode(value).encode("utf-8", "surrogatepass")


def loads(text: bytes) -> Any:
    """The plain data of a text. Raises DamagedPartError."""
    try:
        return json.loads(text.decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError) as error:
        raise DamagedPartError(f"not JSON: {error}") from error


def plain(value: object) -> Encoded:
    """Plain data as a piece of a document."""
    return Encoded(dumps(value), (), (), immutable=True)


def array(items: Iterable[Encoded]) -> Encoded:
    """A JSON array of pieces."""
    pieces = tuple(items)
    return _joined(b"[" + b",".join(piece.text for piece in pieces) + b"]", pieces)


def document(members: Mapping[str, Encoded]) -> Encoded:
    """A JSON object of pieces."""
    text = b",".join(dumps(name) + b":" + piece.text for name, piece in members.items())
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
    parts = tuple(part for item in pieces for part in item.parts)
    refs = tuple(dict.fromkeys(ref for item in pieces for ref in item.refs))
    return Encoded(text, parts, refs, immutable=all(item.immutable for item in pieces))
