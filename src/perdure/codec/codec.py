"""Convert values to bytes and back, and keep them between activations.

A checkpointed run keeps values encoded, another keeps the live objects.

Only this package knows the format of values. `docs/checkpoint-format.md` describes it.
"""

from __future__ import annotations

import base64
import copy
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from perdure.codec.builtin_types import BUILTIN_KINDS, BUILTIN_TAGS, RAW_LENGTH_MAX, bytes_leaf, write_fixed_offset
from perdure.codec.encoded import Encoded, dumps, to_bytes
from perdure.codec.errors import Fault, Refusal, explained, refused
from perdure.codec.log import LOG_KINDS, LOG_TAGS
from perdure.codec.objects import OBJECT_TAGS, PICKLE_TAGS, TYPE_KINDS, object_kind, write_class, write_pickle
from perdure.codec.reader import Node, Origin, Read, Reader, Source, Tag
from perdure.codec.trust import Trust
from perdure.codec.writer import ATOMS, LEAF_LENGTH_MIN, Leaf, Memo, ValueWriter, Write, too_deep
from perdure.data_classes import new_dict, new_list, new_set, value_class
from perdure.errors import EncodeError, ValueTooLargeError
from perdure.typenames import type_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from perdure.records import Blob

T = TypeVar("T")

_MIB = 1024 * 1024

BLOB_SIZE_MAX = 400 * _MIB
"""The limit of every blob: SQLite and PostgreSQL end at 1 GB, and a driver may send two hex digits per byte."""


@dataclass(frozen=True, slots=True)
class SizeLimits:
    """Limits in bytes for a single value: an entry of the state, a message, an output, the state of an executor.

    Above `soft` the run emits a `warning` event that names the value. Above `hard`, saving raises ValueTooLargeError
    and the run stays at its last checkpoint. None means no limit.
    """

    soft: int | None = 8 * _MIB
    hard: int | None = 256 * _MIB

    def __post_init__(self) -> None:
        for name, limit in (("soft", self.soft), ("hard", self.hard)):
            if limit is not None and limit < 1:
                raise ValueError(f"SizeLimits({name}={limit}) would refuse everything; give 1 or more, or None")

    def require_fit(self, encoded: Encoded, path: str) -> None:
        """Refuse a value above the hard limit, or with a blob that no database takes. Raises ValueTooLargeError."""
        size = encoded.size
        if self.hard is not None and size > self.hard:
            raise ValueTooLargeError(path=path, size=size, limit=self.hard)
        if size > BLOB_SIZE_MAX:
            largest = max((len(blob.data) for blob in encoded.blobs), default=len(encoded.text))
            if largest > BLOB_SIZE_MAX:
                raise ValueTooLargeError(path=path, size=largest, limit=BLOB_SIZE_MAX, can_be_raised=False)


DEFAULT_SIZE_LIMITS = SizeLimits()
NO_SIZE_LIMITS = SizeLimits(soft=None, hard=None)

_KINDS: Mapping[type, Write] = {**BUILTIN_KINDS, **TYPE_KINDS, **LOG_KINDS}
_TAGS: Mapping[str, Tag] = {**BUILTIN_TAGS, **LOG_TAGS, **OBJECT_TAGS}

_PYDANTIC_OFFSET = ("pydantic_core._pydantic_core", "TzInfo")


class Codec:
    """Encode and decode values with the trust of one program."""

    def __init__(
        self,
        trust: Trust,
        *,
        allow_pickle: bool = False,
        size_limits: SizeLimits = NO_SIZE_LIMITS,
        memo: Memo | None = None,
    ) -> None:
        self.trust = trust
        self.size_limits = size_limits
        self.memo = memo or Memo()
        self.token: object = (trust, allow_pickle)
        """Identifies the trust and the pickle setting. `covers` compares it."""
        self.kinds: dict[type, Write] = dict(_KINDS)
        self.tags: Mapping[str, Tag] = {**_TAGS, "pickle": PICKLE_TAGS[allow_pickle]}
        self._allow_pickle = allow_pickle

    def trusting(self, types: Iterable[object]) -> Codec:
        """Return a codec that trusts these types as well."""
        trust = self.trust.including(Trust.of(types))
        if trust is self.trust:
            return self
        memo = self.memo.for_other_trust()
        return Codec(trust, allow_pickle=self._allow_pickle, size_limits=self.size_limits, memo=memo)

    def trust_more(self, trust: Trust) -> None:
        """Extend the trust of this codec with that of another program."""
        every = self.trust.including(trust)
        if every is not self.trust:
            self.trust = every
            self.token = (every, self._allow_pickle)

    def covers(self, token: Any, /) -> bool:
        """Return True if this codec can read what the codec with `token` encoded."""
        if token is self.token:
            return True
        trust, has_pickles = token
        return self.trust.including(trust) is self.trust and self._allow_pickle >= has_pickles

    def encode(self, value: object, *, path: str, is_canonical: bool = False) -> Encoded:
        """Encode a value. Raises EncodeError, with the path of the part that could not be read back or is too large.

        With `is_canonical`, equal dicts have equal bytes, whatever the order of their keys.
        """
        encoded = self._encode(value, path, is_canonical=is_canonical)
        if not is_canonical:
            self.size_limits.require_fit(encoded, path)
        return encoded

    def _encode(self, value: object, path: str, *, is_canonical: bool) -> Encoded:
        # A long value that is a single leaf is its own blob.
        if type(value) is str and len(value) >= LEAF_LENGTH_MIN and not is_canonical:
            return _whole(self.memo.text_leaf(value))
        if type(value) is bytes and len(value) > RAW_LENGTH_MAX and not is_canonical:
            return _whole(bytes_leaf(self.memo, value))
        writer = ValueWriter(self, is_canonical)
        try:
            write = self.kinds.get(type(value)) or self.kind_of(value)
            text = write(writer, value)
        except Refusal as refusal:
            raise EncodeError(path=refusal.path(path), reason=refusal.reason, remedy=refusal.remedy) from refusal
        except RecursionError as error:
            raise EncodeError(path=path, reason=too_deep().reason, remedy=too_deep().remedy) from error
        for seal in writer.seals:
            seal()
        refs = tuple(sorted(set(writer.refs)))
        blobs = writer.blobs if refs else {}
        return Encoded(to_bytes(text), blobs, refs, writer.immutable, writer.branches, writer.memories)

    def decode(self, text: bytes, blobs: Mapping[str, bytes], *, path: str) -> Any:
        """Decode a new copy of a value. Raises DamagedPartError, UntrustedTypeError or IncompatibleTypeError."""
        return self.read(text, Source(blobs), path=path)

    def read(self, text: bytes, source: Source, *, path: str, checkpoint_id: str | None = None) -> Any:
        """Decode a new copy of a value. Raises UntrustedTypeError or IncompatibleTypeError.

        Damage raises CheckpointDamagedError if `checkpoint_id` is given, else DamagedPartError.
        """
        try:
            return Reader(Origin(self, source, path, checkpoint_id)).text(text)
        except (Fault, RecursionError) as fault:
            raise explained(fault, path=path, checkpoint_id=checkpoint_id) from fault

    def kind_of(self, value: object) -> Write:
        """Find the writer for a type that is met for the first time."""
        cls = type(value)
        try:
            if issubclass(cls, type):
                write = write_class
            elif (cls.__module__, cls.__name__) == _PYDANTIC_OFFSET:
                write = write_fixed_offset
            else:
                kind = object_kind(cls) if self.trust.trusts(cls) else None
                if kind is None:
                    raise refused(value, self.trust)
                write = kind.write
        except Refusal:
            if not self._allow_pickle:
                raise
            write = write_pickle
        self.kinds[cls] = write
        return write


def _whole(leaf: Leaf) -> Encoded:
    """Encode a value that is a single leaf."""
    blob = leaf.blob
    if blob.kind == "raw":
        return Encoded(to_bytes(leaf.text), {blob.hash: blob}, (blob.hash,), immutable=True, memories=leaf)
    return Encoded(blob.data, immutable=True, memories=leaf, whole=blob)


def plain_data(text: bytes, blobs: Mapping[str, bytes], *, path: str, with_types: bool = False) -> Any:
    """Decode a value without its types, as plain JSON data. Raises DamagedPartError.

    An object is a dict of its fields; `with_types` adds the stored name of its type as `$type`.
    """
    return form_codec(_plain_with_type if with_types else _plain).decode(text, blobs, path=path)


def stored_tree(text: bytes, blobs: Mapping[str, bytes], *, path: str) -> Any:
    """Return the stored JSON of a value, with its blobs and chunks inserted. Raises DamagedPartError."""
    return form_codec().decode(text, blobs, path=path)


@cache  # it never changes, and making it takes longer than reading a request with it
def form_codec(read: Read = lambda _, node: node) -> Codec:
    """Return a codec that has one reader for all tagged objects, so that it needs no types. It keeps stored JSON."""
    codec = Codec(Trust.of())
    codec.tags = {name: Tag(read, tag.keys) for name, tag in codec.tags.items()}
    return codec


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
            # As in ISO 8601.
            offset = timedelta(days, seconds, microseconds)
            hours, minutes = divmod(int(abs(offset).total_seconds()) // 60, 60)
            return f"{'-' if offset < timedelta() else '+'}{hours:02}:{minutes:02}"
        case {"key": zone}:
            return f"[{zone}]"
        case {"part": address}:
            return base64.b64encode(reader.raw(address)).decode()
        case {"value": found} | {"name": found} | {"items": found} | {"args": found} | {"base64": found}:
            return found
        case _:
            return node["~"]


def _plain_with_type(reader: Reader, node: Node) -> Any:
    """Convert one tagged object; an object of a class keeps the name of its type."""
    match node:
        case {"~": "type", "name": name, "args": args}:
            return f"{name}[{', '.join(map(str, args))}]"
        case {"~": "union" | "Union", "args": args}:
            return " | ".join(map(str, args))
        case {"~": "Literal" | "Annotated" as form, "args": args}:
            return f"{form}[{', '.join(map(repr, args))}]"
        case {"~": "pickle", "type": name}:
            return {"$type": name, "pickle": _plain(reader, node)}
        case {"~": "enum", "type": name}:
            return {"$type": name, **{key: node[key] for key in ("name", "value") if key in node}}
        case {"type": name, "fields": fields}:
            further = [node.get(key, {}) for key in ("extra", "attributes", "private")]
            return {"$type": name, **fields, **{key: value for each in further for key, value in each.items()}}
        case {"type": name, "value": value}:
            return {"$type": name, "value": value}
        case {"~": "bytes" | "bytearray" as kind}:
            return {"$type": kind, "base64": _plain(reader, node)}
        case {"~": "timedelta", "value": [days, seconds, microseconds]}:
            return str(timedelta(days, seconds, microseconds))
        case _:
            return _plain(reader, node)


@dataclass(slots=True, kw_only=True, eq=False)
class Kept:
    """A stored value: the live object, its encoded form, or both.

    The live object is held only if it can't change, or if nothing is checkpointed. `checkpoint_id` names the
    checkpoint that an encoded value was read from, for errors.
    """

    path: str
    live: object = None
    has_live: bool = False
    encoded: Encoded | None = None
    stored: Mapping[str, bytes] | None = None
    checkpoint_id: str = ""
    refusal: EncodeError | None = None
    _source: Source | None = None
    _parsed: Any = None

    @property
    def is_lost(self) -> bool:
        """True if there is no value, only the reason why."""
        return self.refusal is not None and not self.has_live

    def require_encoded(self) -> Encoded:
        """Return the encoded form. Raises the EncodeError that refused the value."""
        if self.refusal is not None:
            raise self.refusal
        assert self.encoded is not None, f"{self.path} is not encoded"
        return self.encoded

    def blob(self) -> Blob:
        """Return the encoded value as a blob."""
        return self.require_encoded().blob()

    def source(self) -> Source:
        """Return the source of the value's blobs. It remembers what was decoded."""
        if self._source is None:
            self._source = Source(self.stored, self.encoded)
        return self._source

    def parse_once(self, parse: Callable[[], T]) -> T:
        """Return the result of `parse`, which reads the encoded form. It is called once, however often this is."""
        if self._parsed is None:
            self._parsed = parse()
        return self._parsed

    def blob_data(self) -> Mapping[str, bytes]:
        """Return the bytes of the value's blobs: those it was read with, or those it was encoded with."""
        if self.stored is not None:
            return self.stored
        return {blob.hash: blob.data for blob in self.require_encoded().blobs}

    def inside(self, encoded: Encoded, path: str) -> Kept:
        """Return a value inside of this one, with the same blobs."""
        return Kept(path=path, encoded=encoded, stored=self.blob_data(), checkpoint_id=self.checkpoint_id)

    def with_blobs(self) -> Kept:
        """Return the value with its blobs, if it was read: a checkpoint that carries it must store them."""
        encoded = self.require_encoded()
        if self.stored is None or not encoded.refs:
            return self
        return Kept(path=self.path, encoded=encoded.with_stored(self.stored), checkpoint_id=self.checkpoint_id)


@value_class
class Held:
    """The result of a step, what the step spent, and the type and data of its events."""

    result: Kept
    spent: Mapping[str, float]
    events: tuple[tuple[str, Kept], ...] = ()


@dataclass(slots=True, eq=False)
class LiveValues:
    """Keeps the objects themselves, for runs without storage."""

    held: dict[str, dict[str, Held]] = field(default_factory=new_dict)
    """By activation and place: results of steps that could not be recorded, until the activation ends."""
    memos: dict[str, dict[str, object]] = field(default_factory=new_dict)

    def fix(self, value: object, path: str) -> Kept:
        """Keep the object."""
        return Kept(path=path, live=value, has_live=True)

    def copied(self, value: object, path: str) -> Kept:
        """Keep a copy. Raises EncodeError if the value can't be copied."""
        return Kept(path=path, live=_copied(value, path), has_live=True)

    def canonical(self, value: object, path: str) -> Encoded | None:
        """Return None: nothing is encoded here."""
        del value, path

    def refuse(self, refusal: EncodeError) -> Kept:
        """Raise the refusal."""
        raise refusal

    def give(self, kept: object) -> Any:
        """Return the object itself."""
        return as_kept(kept).live

    def give_state(self, kept: object) -> Any:
        """Return a copy, or the object itself if it can't be copied."""
        live = as_kept(kept).live
        try:
            return copy.deepcopy(live)
        except Exception:  # noqa: BLE001 - sockets, locks and the like can't be copied, and nothing is stored here
            return live

    def trusting(self, *types: object) -> Values:
        """Return this object: nothing is decoded here."""
        del types
        return self

    def trust_more(self, trust: Trust) -> None:
        """Do nothing: nothing is decoded here."""

    def warnings(self) -> Sequence[str]:
        """Return no warnings."""
        return ()


@dataclass(slots=True, eq=False)
class CodedValues:
    """Encodes values when they are kept, and gives each activation its own copy.

    If lenient, it keeps a value that can't be encoded, and the next checkpoint fails instead.
    """

    codec: Codec
    is_lenient: bool = False
    held: dict[str, dict[str, Held]] = field(default_factory=new_dict)
    """By activation and place: results of steps that could not be recorded, until the activation ends."""
    memos: dict[str, dict[str, object]] = field(default_factory=new_dict)
    _noted: set[str] = field(default_factory=new_set)
    _warnings: list[str] = field(default_factory=new_list)

    def of_run(self) -> CodedValues:
        """Return an object for one run, with warnings of its own."""
        return CodedValues(self.codec, self.is_lenient, self.held)

    def fix(self, value: object, path: str) -> Kept:
        """Encode a value. Raises EncodeError if it could not be read back or is too large."""
        try:
            encoded = self.codec.encode(value, path=path)
        except EncodeError as refusal:
            if not self.is_lenient:
                raise
            return Kept(path=path, live=value, has_live=True, refusal=refusal)
        soft = self.codec.size_limits.soft
        if soft is not None and encoded.size > soft and path not in self._noted:
            self._noted.add(path)
            self._warnings.append(
                f"{path} takes {encoded.size:,} bytes, more than {soft:,}: keep it in a file or an object store and "
                "store the reference, or give the storage a higher limit: size_limits=SizeLimits(soft=...)"
            )
        if encoded.immutable:
            return Kept(path=path, live=value, has_live=True, encoded=encoded)
        return Kept(path=path, encoded=encoded)

    def copied(self, value: object, path: str) -> Kept:
        """Encode a value, which is a copy. Raises EncodeError if it can't be read back or is too large.

        A lenient object copies what it can't encode.
        """
        kept = self.fix(value, path)
        if kept.refusal is not None:
            kept.live = _copied(value, path)
        return kept

    def canonical(self, value: object, path: str) -> Encoded | None:
        """Encode a value with the keys of its mappings sorted: equal values have equal bytes. Raises EncodeError."""
        return self.codec.encode(value, path=path, is_canonical=True)

    def refuse(self, refusal: EncodeError) -> Kept:
        """Raise the refusal. If lenient, let the next checkpoint fail instead."""
        if not self.is_lenient:
            raise refusal
        return Kept(path=refusal.path, refusal=refusal)

    def give(self, kept: object) -> Any:
        """Return the object if it can't change, else a decoded copy."""
        found = as_kept(kept)
        if found.has_live:
            return found.live
        value = decode(self.codec, found)
        if type(value) in ATOMS:
            found.live, found.has_live = value, True
        return value

    give_state = give

    def trusting(self, *types: object) -> Values:
        """Return an object that trusts these types and the types of their fields."""
        codec = self.codec.trusting(types)
        return CodedValues(codec, self.is_lenient, _noted=self._noted, _warnings=self._warnings)

    def trust_more(self, trust: Trust) -> None:
        """Extend the codec's trust, for everybody who uses the codec."""
        self.codec.trust_more(trust)

    def warnings(self) -> Sequence[str]:
        """Return the warnings about large values since the last call, one per place."""
        warnings = self._warnings.copy()
        self._warnings.clear()
        return warnings


Values: TypeAlias = LiveValues | CodedValues
"""The two ways of keeping values."""


def _copied(value: object, path: str) -> Any:
    try:
        return copy.deepcopy(value)
    except Exception as error:
        reason = f"a {type_of(value)} can't be copied ({error})"
        raise EncodeError(path=path, reason=reason, remedy="keep plain data there, such as a name or an id") from error


def decode(codec: Codec, kept: Kept) -> Any:
    """Decode a new copy of a value. Raises CheckpointDamagedError, UntrustedTypeError or IncompatibleTypeError."""
    text = kept.require_encoded().text
    return codec.read(text, kept.source(), path=kept.path, checkpoint_id=kept.checkpoint_id)


def as_kept(value: object) -> Kept:
    """Cast a value of the kernel, which treats kept values as opaque objects."""
    assert isinstance(value, Kept), f"{value!r} was never kept"
    return value
