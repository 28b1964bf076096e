"""User values between activations: encoded in a checkpointed run, live objects otherwise."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from perdure.codec.memo import ATOMS
from perdure.codec.reader import Source
from perdure.errors import EncodeError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from perdure.codec.codec import Codec
    from perdure.codec.encoded import Encoded
    from perdure.codec.trust import Trust
    from perdure.records import Blob


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


@dataclass(frozen=True, slots=True)
class Held:
    """The result of a step, and what the step spent."""

    result: Kept
    spent: Mapping[str, float]


@dataclass(slots=True, eq=False)
class LiveValues:
    """Keeps the objects themselves, for runs without storage."""

    held: dict[str, dict[str, Held]] = field(default_factory=dict[str, dict[str, Held]])
    """By activation and place: results of steps that could not be recorded, until the activation ends."""
    memos: dict[str, dict[str, object]] = field(default_factory=dict[str, dict[str, object]])

    def fix(self, value: object, path: str) -> Kept:
        """Keep the object."""
        return Kept(path=path, live=value, has_live=True)

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
    held: dict[str, dict[str, Held]] = field(default_factory=dict[str, dict[str, Held]])
    """By activation and place: results of steps that could not be recorded, until the activation ends."""
    memos: dict[str, dict[str, object]] = field(default_factory=dict[str, dict[str, object]])
    _noted: set[str] = field(default_factory=set[str])
    _warnings: list[str] = field(default_factory=list[str])

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

    def canonical(self, value: object, path: str) -> Encoded | None:
        """Encode a value with the keys of its mappings sorted: equal values have equal bytes. Raises EncodeError."""
        return self.codec.encode(value, path=path, sorts_mappings=True)

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


def decode(codec: Codec, kept: Kept) -> Any:
    """Decode a new copy of a value. Raises CheckpointDamagedError, UntrustedTypeError or IncompatibleTypeError."""
    text = kept.require_encoded().text
    return codec.read(text, kept.source(), path=kept.path, checkpoint_id=kept.checkpoint_id)


def as_kept(value: object) -> Kept:
    """Cast a value of the kernel, which treats kept values as opaque objects."""
    assert isinstance(value, Kept), f"{value!r} was never kept"
    return value
