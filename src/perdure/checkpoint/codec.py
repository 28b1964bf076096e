"""The codec: values to bytes and back.

The codec is the only code that knows the format, which `docs/checkpoint-format.md` describes.
"""

from __future__ import annotations

from dataclasses import dataclass, field, is_dataclass
from typing import TYPE_CHECKING, Any

from perdure.checkpoint import codec_read
from perdure.checkpoint.codec_containers import CONTAINER_KINDS, CONTAINER_TAGS
from perdure.checkpoint.codec_faults import Damage, Misfit, Refusal, Untrusted
from perdure.checkpoint.codec_leaves import LEAF_KINDS, LEAF_TAGS
from perdure.checkpoint.codec_objects import CustomKind, EnumKind, ObjectKind, Unfit, read_object
from perdure.checkpoint.codec_pickle import pickle_tag, write_pickle
from perdure.checkpoint.codec_read import Node, Reader, Tag
from perdure.checkpoint.codec_records import RECORD_KEYS, DataclassKind, ModelKind, NamedTupleKind
from perdure.checkpoint.codec_refusals import refused, unfit
from perdure.checkpoint.codec_types import TYPE_KINDS, TYPE_TAGS, write_class
from perdure.checkpoint.codec_write import Write, Writer, part_reference, to_bytes, too_deep
from perdure.checkpoint.trust import Trust, registration, stored_name
from perdure.checkpoint.trust_reach import is_enum, is_model, is_named_tuple
from perdure.errors import EncodeError, IncompatibleTypeError, UntrustedTypeError
from perdure.records import Part

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

_KINDS: Mapping[type, Write] = {**LEAF_KINDS, **CONTAINER_KINDS, **TYPE_KINDS}
_TAGS: Mapping[str, Tag] = {**LEAF_TAGS, **CONTAINER_TAGS, **TYPE_TAGS}
# In this order: an enum or a model may also be a dataclass.
_OBJECT_KINDS: tuple[tuple[Callable[[type], bool], Callable[[type, str], ObjectKind]], ...] = (
    (is_enum, EnumKind),
    (is_named_tuple, NamedTupleKind),
    (is_model, ModelKind),
    (is_dataclass, DataclassKind),
)
_OBJECT_KEYS: Mapping[str, tuple[str, ...]] = {
    EnumKind.tag: ("type", "name", "value"),
    NamedTupleKind.tag: RECORD_KEYS,
    ModelKind.tag: RECORD_KEYS,
    DataclassKind.tag: RECORD_KEYS,
    CustomKind.tag: ("type", "value"),
}


class DamagedPartError(Exception):
    """Stored bytes are not what was written. Whoever knows the checkpoint names it in a CheckpointDamagedError."""

    def __init__(self, reason: str, *, path: str | None = None) -> None:
        self.reason = reason
        self.path = path
        super().__init__(reason if path is None else f"{path}: {reason}")


@dataclass(frozen=True, slots=True)
class Encoded:
    """A value as bytes: its text, and the parts that were cut out of it."""

    text: bytes
    """The value as JSON."""
    parts: tuple[Part, ...] = field(repr=False)
    """The parts that the text needs, those that it refers to through others included."""
    refs: tuple[str, ...]
    """The hashes of the parts that the text itself refers to."""
    immutable: bool
    """Nothing inside can change: the value that was encoded may be handed out again."""

    def part(self) -> Part:
        """The text as a part."""
        return Part.of(self.text, self.refs)


class Codec:
    """Turns values into bytes and back, with the trust of one program."""

    def __init__(self, trust: Trust, *, allow_pickle: bool = False) -> None:
        self._trust = trust
        self._allow_pickle = allow_pickle
        self._kinds: dict[type, Write] = dict(_KINDS)
        self._object_kinds: dict[type, ObjectKind] = {}
        self._tags: dict[str, Tag] = {
            **_TAGS,
            **{tag: Tag.of(self._read_object, *keys) for tag, keys in _OBJECT_KEYS.items()},
            "pickle": pickle_tag(allowed=allow_pickle),
        }

    def trusting(self, types: Iterable[object]) -> Codec:
        """A codec that trusts these types as well."""
        return Codec(self._trust.including(Trust.of(types)), allow_pickle=self._allow_pickle)

    def encode(self, value: object, *, path: str, sorts_mappings: bool = False) -> Encoded:
        """The bytes of a value. Raises EncodeError, with the place seen from `path`, if it could not be read back.

        With `sorts_mappings` dicts that are equal have the same bytes, whatever the order of their keys.
        """
        writer = Writer(self._kinds, self._kind_of, self._trust, sorts_mappings=sorts_mappings)
        try:
            text = writer.whole(value)
        except Refusal as refusal:
            raise EncodeError(path=refusal.path(path), reason=refusal.reason, remedy=refusal.remedy) from refusal
        except RecursionError as error:
            raise EncodeError(path=path, reason=too_deep().reason, remedy=too_deep().remedy) from error
        return Encoded(to_bytes(text), tuple(writer.parts.values()), tuple(sorted(set(writer.refs))), writer.immutable)

    def decode(self, text: bytes, parts: Mapping[str, bytes], *, path: str) -> Any:
        """A fresh copy of a value. Raises DamagedPartError, UntrustedTypeError or IncompatibleTypeError."""
        try:
            return Reader(self._tags, parts, self._trust).text(text)
        except Damage as damage:
            raise DamagedPartError(damage.reason, path=damage.path(path)) from damage
        except Untrusted as fault:
            raise UntrustedTypeError(type_name=fault.reason, path=fault.path(path)) from fault
        except Misfit as misfit:
            raise IncompatibleTypeError(
                type_name=misfit.type_name, path=misfit.path(path), reason=misfit.reason
            ) from misfit
        except RecursionError as error:
            raise DamagedPartError("it is nested too deeply to be read here", path=path) from error

    def inline(self, encoded: Encoded, limit: int = 2048) -> Encoded:
        """The same value with a text short enough to stand in a document: a long one becomes a reference."""
        if len(encoded.text) <= limit:
            return encoded
        part = encoded.part()
        return Encoded(to_bytes(part_reference(part.hash)), (*encoded.parts, part), (part.hash,), encoded.immutable)

    def _kind_of(self, value: object) -> Write:
        """How to write a value of a type that is met for the first time."""
        cls = type(value)
        try:
            write = write_class if issubclass(cls, type) else self._object_write(value)
        except Refusal:
            if not self._allow_pickle:
                raise
            write = write_pickle
        self._kinds[cls] = write
        return write

    def _object_write(self, value: object) -> Write:
        cls = type(value)
        kind = self._object_kind(cls) if self._trust.trusts(cls) else None
        if kind is None:
            raise refused(value, self._trust)
        return kind.write

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


def references(text: bytes) -> tuple[str, ...]:
    """The hashes of the parts that a text refers to directly. Raises DamagedPartError."""
    try:
        return codec_read.references(text)
    except Damage as damage:
        raise DamagedPartError(damage.reason) from damage
    except RecursionError as error:
        raise DamagedPartError("it is nested too deeply to be read here") from error


def _made_kind(cls: type) -> ObjectKind | None:
    entry = registration(cls)
    if entry is not None and entry.encode is not None:
        return CustomKind(entry)
    make = next((make for is_of_kind, make in _OBJECT_KINDS if is_of_kind(cls)), None)
    return None if make is None else make(cls, stored_name(cls))
