"""Convert values to bytes and back.

Only this package knows the format of values. `docs/checkpoint-format.md` describes it.
"""

from __future__ import annotations

import base64
from dataclasses import is_dataclass
from datetime import timedelta
from types import NoneType
from typing import TYPE_CHECKING, Any

from perdure.codec.containers import CONTAINER_KINDS, CONTAINER_TAGS
from perdure.codec.encoded import Encoded, dumps
from perdure.codec.errors import Damage, DamagedPartError, Fault, Misfit, Refusal, explained, refused, unfit
from perdure.codec.leaves import LEAF_KINDS, LEAF_TAGS, RAW_LENGTH_MAX, bytes_leaf, write_fixed_offset
from perdure.codec.log import LOG_KINDS, LOG_TAGS
from perdure.codec.memo import Leaf, Memo, type_of
from perdure.codec.objects import (
    RECORD_KEYS,
    CustomKind,
    DataclassKind,
    EnumKind,
    ModelKind,
    NamedTupleKind,
    ObjectKind,
    Unfit,
    read_object,
)
from perdure.codec.pickle import PICKLE_KEYS, read_pickle, refuse_pickle, write_pickle
from perdure.codec.reader import Node, Origin, Reader, Source, Tag
from perdure.codec.trust import Trust, is_enum, is_model, is_named_tuple, registration, stored_name
from perdure.codec.type_expressions import TYPE_KINDS, TYPE_TAGS, write_class
from perdure.codec.writer import (
    LEAF_LENGTH_MIN,
    Write,
    Writer,
    blob_reference,
    quote,
    text_leaf,
    to_bytes,
    too_deep,
)
from perdure.errors import EncodeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

_KINDS: Mapping[type, Write] = {**LEAF_KINDS, **CONTAINER_KINDS, **TYPE_KINDS, **LOG_KINDS}
_TAGS: Mapping[str, Tag] = {**LEAF_TAGS, **CONTAINER_TAGS, **TYPE_TAGS, **LOG_TAGS}
# The order matters: an enum or a model may also be a dataclass.
_OBJECT_KINDS: tuple[tuple[Callable[[type], bool], Callable[[type, str], ObjectKind]], ...] = (
    (is_enum, EnumKind),
    (is_named_tuple, NamedTupleKind),
    (is_model, ModelKind),
    (is_dataclass, DataclassKind),
)
_OBJECT_KEYS: Mapping[str, frozenset[str]] = {
    EnumKind.tag: frozenset({"~", "type", "name", "value"}),
    NamedTupleKind.tag: RECORD_KEYS,
    ModelKind.tag: RECORD_KEYS,
    DataclassKind.tag: RECORD_KEYS,
    CustomKind.tag: frozenset({"~", "type", "value"}),
}


class Codec:
    """Encode and decode values with the trust of one program."""

    def __init__(self, trust: Trust, *, allow_pickle: bool = False, memo: Memo | None = None) -> None:
        self._trust = trust
        self._allow_pickle = allow_pickle
        self._memo = memo or Memo()
        self.token: object = (trust, allow_pickle)
        """Identifies the trust and the pickle setting. `covers` compares it."""
        self._kinds: dict[type, Write] = dict(_KINDS)
        self._object_kinds: dict[type, ObjectKind] = {}
        self._tags: dict[str, Tag] = {
            **_TAGS,
            **{tag: Tag(self._read_object, keys) for tag, keys in _OBJECT_KEYS.items()},
            "pickle": Tag(read_pickle if allow_pickle else refuse_pickle, PICKLE_KEYS),
        }

    def trusting(self, types: Iterable[object]) -> Codec:
        """Return a codec that trusts these types as well."""
        trust = self._trust.including(Trust.of(types))
        if trust is self._trust:
            return self
        return Codec(trust, allow_pickle=self._allow_pickle, memo=self._memo.for_other_trust())

    def trust_more(self, trust: Trust) -> None:
        """Extend the trust of this codec with that of another program."""
        every = self._trust.including(trust)
        if every is not self._trust:
            self._trust = every
            self.token = (every, self._allow_pickle)

    def covers(self, token: Any, /) -> bool:
        """Return True if this codec can read what the codec with `token` encoded."""
        if token is self.token:
            return True
        trust, has_pickles = token
        return self._trust.including(trust) is self._trust and self._allow_pickle >= has_pickles

    def encode(self, value: object, *, path: str, sorts_mappings: bool = False) -> Encoded:
        """Encode a value. Raises EncodeError, with the path of the part that could not be read back.

        With `sorts_mappings`, equal dicts have equal bytes, whatever the order of their keys.
        """
        if type(value) in _SCALARS and not sorts_mappings:
            scalar = self._scalar(value)
            if scalar is not None:
                return scalar
        writer = Writer(self, self._kinds, self._trust, self._memo, sorts_mappings=sorts_mappings)
        try:
            text = writer.whole(value)
        except Refusal as refusal:
            raise EncodeError(path=refusal.path(path), reason=refusal.reason, remedy=refusal.remedy) from refusal
        except RecursionError as error:
            raise EncodeError(path=path, reason=too_deep().reason, remedy=too_deep().remedy) from error
        for seal in writer.seals:
            seal()
        refs = writer.refs
        if not refs:
            return Encoded(to_bytes(text), (), (), writer.immutable)
        return Encoded(
            to_bytes(text),
            writer.blobs,
            tuple(sorted(set(refs))),
            writer.immutable,
            writer.branches,
            writer.memories,
        )

    def _scalar(self, value: Any) -> Encoded | None:
        """Encode a number, a string or a constant directly: most messages are one."""
        cls = type_of(value)
        if cls is str:
            if len(value) >= LEAF_LENGTH_MIN:
                return _whole(text_leaf(self._memo, value))
            return Encoded(to_bytes(quote(value)), (), (), immutable=True)
        if cls is int:
            return Encoded(b"%d" % value, (), (), immutable=True) if -_SMALL < value < _SMALL else None
        if cls is bytes:
            return _whole(bytes_leaf(self._memo, value)) if len(value) > RAW_LENGTH_MAX else None
        return _CONSTANTS[value]

    def decode(self, text: bytes, blobs: Mapping[str, bytes], *, path: str) -> Any:
        """Decode a new copy of a value. Raises DamagedPartError, UntrustedTypeError or IncompatibleTypeError."""
        return self.read(text, Source(blobs), path=path)

    def read(self, text: bytes, source: Source, *, path: str, checkpoint_id: str | None = None) -> Any:
        """Decode a new copy of a value. Raises UntrustedTypeError or IncompatibleTypeError.

        Damage raises CheckpointDamagedError if `checkpoint_id` is given, else DamagedPartError.
        """
        try:
            return Reader(self._tags, Origin(self, source, path, checkpoint_id), self._trust, self._memo).text(text)
        except (Fault, RecursionError) as fault:
            raise explained(fault, path=path, checkpoint_id=checkpoint_id) from fault

    def inline(self, encoded: Encoded, limit: int = 2048) -> Encoded:
        """Replace a text longer than `limit` by a reference to a blob, so that it fits into a document."""
        if len(encoded.text) <= limit:
            return encoded
        blob = encoded.blob()
        blobs = {**encoded.made, blob.hash: blob}
        reference = to_bytes(blob_reference(blob.hash))
        return Encoded(reference, blobs, (blob.hash,), encoded.immutable, encoded.branches, encoded.memories)

    def kind_of(self, value: object) -> Write:
        """Find the writer for a type that is met for the first time."""
        cls = type(value)
        try:
            if issubclass(cls, type):
                write = write_class
            elif (cls.__module__, cls.__name__) == _PYDANTIC_OFFSET:
                write = write_fixed_offset
            else:
                kind = self._object_kind(cls) if self._trust.trusts(cls) else None
                if kind is None:
                    raise refused(value, self._trust)
                write = kind.write
        except Refusal:
            if not self._allow_pickle:
                raise
            write = write_pickle
        self._kinds[cls] = write
        return write

    def _object_kind(self, cls: type) -> ObjectKind | None:
        if cls not in self._object_kinds:
            try:
                kind = _made_kind(cls)
            except Unfit as error:
                raise unfit(cls, str(error)) from error
            if kind is None:
                return None
            self._object_kinds[cls] = kind
        return self._object_kinds[cls]

    def _read_object(self, reader: Reader, node: Node) -> Any:
        cls = reader.trusted(node["type"])
        try:
            kind = self._object_kind(cls)
        except Refusal as refusal:
            raise Misfit(node["type"], refusal.reason) from refusal
        return read_object(kind, node)


_PYDANTIC_OFFSET = ("pydantic_core._pydantic_core", "TzInfo")

_SCALARS = frozenset({int, str, bool, bytes, NoneType})
_SMALL = 10**18

# True and 1 are equal keys, but an int is handled before.
_CONSTANTS = {
    constant: Encoded(text, (), (), immutable=True)
    for constant, text in ((None, b"null"), (True, b"true"), (False, b"false"))
}


def _whole(leaf: Leaf) -> Encoded:
    """Encode a value that is a single leaf."""
    blob = leaf.blob
    if blob.kind == "raw":
        return Encoded(to_bytes(leaf.text), {blob.hash: blob}, (blob.hash,), immutable=True, memories=leaf)
    return Encoded(blob.data, (), (), immutable=True, memories=leaf).with_whole(blob)


def _made_kind(cls: type) -> ObjectKind | None:
    entry = registration(cls)
    if entry is not None and entry.encode is not None:
        return CustomKind(entry)
    make = next((make for is_of_kind, make in _OBJECT_KINDS if is_of_kind(cls)), None)
    return None if make is None else make(cls, stored_name(cls))


def plain_data(text: bytes, blobs: Mapping[str, bytes], *, path: str) -> Any:
    """Decode a value without its types, as plain JSON data. Raises DamagedPartError."""
    try:
        return Reader(_PLAIN_TAGS, Origin(None, Source(blobs), path, None), Trust.of(), Memo()).text(text)
    except Damage as damage:
        raise DamagedPartError(damage.reason, path=damage.path(path)) from damage


def _plain(reader: Reader, node: Node) -> Any:
    """Convert one tagged object. Its content is plain data already."""
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
    """Format an offset from UTC as in ISO 8601."""
    sign = "-" if offset < timedelta() else "+"
    hours, minutes = divmod(int(abs(offset).total_seconds()) // 60, 60)
    return f"{sign}{hours:02}:{minutes:02}"


_PLAIN_TAGS: Mapping[str, Tag] = {
    **{name: Tag(_plain, tag.keys) for name, tag in _TAGS.items()},
    **{name: Tag(_plain, keys) for name, keys in _OBJECT_KEYS.items()},
    "pickle": Tag(_plain, PICKLE_KEYS),
}
