"""A stored value as plain data, for whoever does not know its types: objects are their fields."""

from __future__ import annotations

import base64
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from perdure.codec.codec import DamagedPartError
from perdure.codec.containers import CONTAINER_TAGS
from perdure.codec.documents import dumps
from perdure.codec.faults import Damage
from perdure.codec.leaves import LEAF_TAGS
from perdure.codec.log import LOG_TAGS
from perdure.codec.memo import Memo
from perdure.codec.objects import CustomKind, EnumKind
from perdure.codec.pickle import pickle_tag
from perdure.codec.read import Node, Origin, Reader, Tag
from perdure.codec.records import RECORD_KEYS, DataclassKind, ModelKind, NamedTupleKind
from perdure.codec.source import Source
from perdure.codec.trust import Trust
from perdure.codec.types import TYPE_TAGS

if TYPE_CHECKING:
    from collections.abc import Mapping


def plain_data(text: bytes, parts: Mapping[str, bytes], *, path: str) -> Any:
    """The value of a text, without its types, as JSON could have it. Raises DamagedPartError."""
    try:
        return Reader(_TAGS, Origin(None, Source(parts), path, None), Trust.of(), Memo()).text(text)
    except Damage as damage:
        raise DamagedPartError(damage.reason, path=damage.path(path)) from damage


def _plain(reader: Reader, node: Node) -> Any:
    """One tagged object. What is inside of it is plain already."""
    match node:
        case {"fields": fields}:
            return {**fields, **node.get("extra", {})}
        case {"~": "log"}:
            return [*node.get("items", ()), *node["tail"]]
        case {"~": "dict" | "OrderedDict" | "Counter" | "defaultdict", "items": items}:
            return {key if isinstance(key, str) else dumps(key).decode(): value for key, value in items}
        case {"~": "datetime" | "time", "value": moment}:
            return moment + node.get("zone", "")
        case {"offset": [days, seconds, microseconds]}:
            return _offset(timedelta(days, seconds, microseconds))
        case {"key": zone}:
            return f"[{zone}]"
        case {"part": address}:
            return base64.b64encode(reader.raw(address)).decode()
        case {"value": found} | {"name": found} | {"items": found} | {"args": found} | {"base64": found}:
            return found
        case _:
            return node["~"]


def _offset(offset: timedelta) -> str:
    """An offset from UTC as ISO 8601 writes it."""
    sign = "-" if offset < timedelta() else "+"
    hours, minutes = divmod(int(abs(offset).total_seconds()) // 60, 60)
    return f"{sign}{hours:02}:{minutes:02}"


_KNOWN: Mapping[str, Tag] = {
    **LEAF_TAGS,
    **CONTAINER_TAGS,
    **TYPE_TAGS,
    **LOG_TAGS,
    **{kind.tag: Tag.of(_plain, *RECORD_KEYS) for kind in (DataclassKind, NamedTupleKind, ModelKind)},
    EnumKind.tag: Tag.of(_plain, "type", "name", "value"),
    CustomKind.tag: Tag.of(_plain, "type", "value"),
    "pickle": pickle_tag(allowed=False),
}
_TAGS: Mapping[str, Tag] = {name: Tag(_plain, known.keys) for name, known in _KNOWN.items()}
