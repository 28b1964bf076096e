"""Parts and bytes within the lines of a file. Small parts stand in the line that needs them, large ones beside."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from perdure.records import Part

if TYPE_CHECKING:
    from collections.abc import Iterable

_INLINE_SIZE_MAX = 4096


def split(parts: Iterable[Part]) -> tuple[tuple[Part, ...], tuple[Part, ...]]:
    """The parts that go into a line, and those that are to be written beside it; each once."""
    distinct = {part.hash: part for part in parts}.values()
    inline = tuple(part for part in distinct if len(part.data) <= _INLINE_SIZE_MAX)
    return inline, tuple(part for part in distinct if len(part.data) > _INLINE_SIZE_MAX)


def parts_to_json(parts: Iterable[Part]) -> list[dict[str, Any]]:
    """Parts as they stand in a line."""
    return [{"hash": each.hash, "kind": each.kind, "refs": each.refs, **coded(each.data)} for each in parts]


def parts_from_json(values: Iterable[dict[str, Any]]) -> tuple[Part, ...]:
    """And back."""
    return tuple(Part(each["hash"], decoded(each), tuple(each["refs"]), each["kind"]) for each in values)


def coded(data: bytes) -> dict[str, str]:
    """Bytes as text that people can read, if they are."""
    try:
        return {"text": data.decode("utf-8")}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode("ascii")}


def decoded(fields: dict[str, Any]) -> bytes:
    """And back."""
    return fields["text"].encode("utf-8") if "text" in fields else base64.b64decode(fields["base64"])
