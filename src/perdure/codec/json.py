"""Small dicts that are JSON as they are, written by the interpreter's own encoder.

State that is nested is made of them, and writing it takes half as long this way.
"""

from __future__ import annotations

import json
from json.encoder import encode_basestring
from types import NoneType
from typing import Any, cast

from perdure.codec.copy import type_of

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
