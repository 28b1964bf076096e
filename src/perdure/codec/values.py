"""User values between activations: encoded in a checkpointed run, live objects otherwise; and limits on their size."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from typing_extensions import override

from perdure.codec.codec import Codec
from perdure.codec.memo import ATOMS, copied, is_immutable, spare
from perdure.codec.reader import Source
from perdure.errors import EncodeError, ValueTooLargeError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from perdure.codec.encoded import Encoded
    from perdure.codec.trust import Trust
    from perdure.records import Blob


class Kept:
    """A stored value: the live object, its encoded form, or both.

    The live object is held only if it can't change, or if nothing is checkpointed. `checkpoint_id` names the
    checkpoint that an encoded value was read from, for errors.
    """

    __slots__ = ("_source", "checkpoint_id", "encoded", "has_live", "live", "path", "refusal", "spare", "stored")

    def __init__(
        self,
        *,
        path: str,
        live: object = None,
        has_live: bool = False,
        encoded: Encoded | None = None,
        stored: Mapping[str, bytes] | None = None,
        checkpoint_id: str = "",
        refusal: EncodeError | None = None,
    ) -> None:
        self.path = path
        self.live = live
        self.has_live = has_live
        self.encoded = encoded
        self.stored = stored
        self.checkpoint_id = checkpoint_id
        self.refusal = refusal
        self.spare: object = None
        """A private copy, from which copies are given out."""
        self._source: Source | None = None

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


@dataclass(frozen=True, slots=True)
class Held:
    """The result of a step, and what the step spent."""

    result: Kept
    spent: Mapping[str, float]


class Values(Protocol):
    """The two ways of keeping values."""

    held: dict[str, dict[str, Held]]
    memos: dict[str, dict[str, object]]
    """By activation and place: results of steps that could not be recorded, until the activation ends."""

    def fix(self, value: object, path: str) -> Kept:
        """Keep a value as it is now."""
        ...

    def canonical(self, value: object, path: str) -> Encoded | None:
        """Return equal bytes for equal values; None if nothing is encoded. Raises EncodeError."""
        ...

    def refuse(self, refusal: EncodeError) -> Kept:
        """Keep the reason why there is no value, or raise it."""
        ...

    def give(self, kept: object) -> Any:
        """Return a value for an activation: a copy if it could be changed."""
        ...

    def give_state(self, kept: object) -> Any:
        """Return a value of the state: always a copy if it could be changed."""
        ...

    def trusting(self, *types: object) -> Values:
        """Return an object that trusts further types."""
        ...

    def trust_more(self, trust: Trust) -> None:
        """Trust the types of another workflow from now on."""
        ...

    def warnings(self) -> Sequence[str]:
        """Return the warnings about values since the last call."""
        ...


class LiveValues:
    """Keeps the objects themselves, for runs without storage."""

    def __init__(self) -> None:
        self.held: dict[str, dict[str, Held]] = {}
        self.memos: dict[str, dict[str, object]] = {}

    def fix(self, value: object, path: str) -> Kept:
        """Keep the object."""
        return Kept(path=path, live=value, has_live=True)

    def canonical(self, value: object, path: str) -> Encoded | None:
        """Return None."""
        del value, path

    def refuse(self, refusal: EncodeError) -> Kept:
        """Raise the refusal."""
        raise refusal

    def give(self, kept: object) -> Any:
        """Return the object itself."""
        return as_kept(kept).live

    def give_state(self, kept: object) -> Any:
        """Return a copy if the object could be changed and can be copied."""
        live = as_kept(kept).live
        if is_immutable(live):
            return live
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


class CodedValues:
    """Encodes values when they are kept, and gives each activation its own copy.

    If lenient, it keeps a value that can't be encoded, and the next checkpoint fails instead. `scale` may refuse a
    value with an EncodeError.
    """

    def __init__(self, codec: Codec, *, is_lenient: bool = False, scale: Scale | None = None) -> None:
        self._codec = codec
        self._is_lenient = is_lenient
        self._scale = scale
        self.held: dict[str, dict[str, Held]] = {}
        self.memos: dict[str, dict[str, object]] = {}

    def of_run(self) -> CodedValues:
        """Return an object for one run, with warnings of its own."""
        scale = None if self._scale is None else Scale(self._scale.limits)
        values = CodedValues(self._codec, is_lenient=self._is_lenient, scale=scale)
        values.held = self.held
        return values

    def fix(self, value: object, path: str) -> Kept:
        """Encode a value. Raises EncodeError if it could not be read back or is too large."""
        try:
            encoded = self._codec.encode(value, path=path)
            if self._scale is not None:
                self._scale.weigh(encoded, path)
        except EncodeError as refusal:
            if not self._is_lenient:
                raise
            return Kept(path=path, live=value, has_live=True, refusal=refusal)
        if encoded.immutable:
            return Kept(path=path, live=value, has_live=True, encoded=encoded)
        kept = Kept(path=path, encoded=encoded)
        kept.spare = spare(value)
        return kept

    def canonical(self, value: object, path: str) -> Encoded | None:
        """Encode a value with the keys of its mappings sorted."""
        return self._codec.encode(value, path=path, sorts_mappings=True)

    def refuse(self, refusal: EncodeError) -> Kept:
        """Raise the refusal. If lenient, let the next checkpoint fail instead."""
        if not self._is_lenient:
            raise refusal
        return Kept(path=refusal.path, refusal=refusal)

    def give(self, kept: object) -> Any:
        """Return the object if it can't change, else a decoded copy."""
        found = as_kept(kept)
        if found.has_live:
            return found.live
        if found.spare is not None:
            # Decoding a message takes ten times as long.
            return copied((found.spare,))[0]
        value = decode(self._codec, found)
        if type(value) in ATOMS:
            found.live, found.has_live = value, True
        return value

    def give_state(self, kept: object) -> Any:
        """Return the object if it can't change, else a decoded copy."""
        return self.give(kept)

    def trusting(self, *types: object) -> Values:
        """Return an object that trusts these types and the types of their fields."""
        return CodedValues(self._codec.trusting(types), is_lenient=self._is_lenient, scale=self._scale)

    def trust_more(self, trust: Trust) -> None:
        """Extend the codec's trust, for everybody who uses the codec."""
        self._codec.trust_more(trust)

    def warnings(self) -> Sequence[str]:
        """Return warnings about large values, one per place."""
        return () if self._scale is None else self._scale.warnings()


def decode(codec: Codec, kept: Kept) -> Any:
    """Decode a new copy of a value. Raises CheckpointDamagedError, UntrustedTypeError or IncompatibleTypeError."""
    text = kept.require_encoded().text
    return codec.read(text, kept.source(), path=kept.path, checkpoint_id=kept.checkpoint_id)


def as_kept(value: object) -> Kept:
    """Cast a value of the kernel, which treats kept values as opaque objects."""
    assert isinstance(value, Kept), f"{value!r} was never kept"
    return value


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


DEFAULT_SIZE_LIMITS = SizeLimits()
NO_SIZE_LIMITS = SizeLimits(soft=None, hard=None)


class Scale:
    """Checks the sizes of one run's values, and warns once per place."""

    def __init__(self, limits: SizeLimits) -> None:
        self.limits = limits
        self._lowest = min(limit for limit in (limits.soft, limits.hard, BLOB_SIZE_MAX) if limit is not None)
        """Smaller values need no further check."""
        self._noted: set[str] = set()
        self._pending_warnings: list[str] = []

    def weigh(self, encoded: Encoded, path: str) -> None:
        """Check the size of a value. Raises ValueTooLargeError above the hard limit."""
        size = encoded.size
        if size > self._lowest:
            self._require_light(encoded, path, size)
            soft = self.limits.soft
            if soft is not None and size > soft and path not in self._noted:
                self._noted.add(path)
                self._pending_warnings.append(
                    f"{path} takes {size:,} bytes, more than {soft:,}: keep it in a file or an object store and store "
                    "the reference, or give the storage a higher limit: size_limits=SizeLimits(soft=...)"
                )

    def _require_light(self, encoded: Encoded, path: str, size: int) -> None:
        hard = self.limits.hard
        if hard is not None and size > hard:
            raise ValueTooLargeError(path=path, size=size, limit=hard)
        largest = max((len(blob.data) for blob in encoded.blobs), default=len(encoded.text))
        if largest > BLOB_SIZE_MAX:
            raise ValueTooLargeError(path=path, size=largest, limit=BLOB_SIZE_MAX, can_be_raised=False)

    def warnings(self) -> list[str]:
        """Return the warnings since the last call."""
        told, self._pending_warnings = self._pending_warnings, []
        return told


class WeighingCodec(Codec):
    """A codec that refuses values above the size limits, for processes that send to a run."""

    def __init__(self, trust: Trust, *, size_limits: SizeLimits, allow_pickle: bool = False) -> None:
        super().__init__(trust, allow_pickle=allow_pickle)
        self._scale = Scale(size_limits)

    @override
    def encode(self, value: object, *, path: str, sorts_mappings: bool = False) -> Encoded:
        encoded = super().encode(value, path=path, sorts_mappings=sorts_mappings)
        self._scale.weigh(encoded, path)
        return encoded
