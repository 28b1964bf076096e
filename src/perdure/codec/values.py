"""How users' values are kept between activations: encoded and fixed in a checkpointed run, else as they are."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Protocol

from typing_extensions import override

from perdure.codec.codec import Codec
from perdure.codec.memo import ATOMS, copied, is_immutable, spare
from perdure.codec.reader import Source
from perdure.data import frozen
from perdure.errors import EncodeError, ValueTooLargeError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from perdure.codec.encoded import Encoded
    from perdure.codec.trust import Trust
    from perdure.records import Part


class Kept:
    """A value that is kept: the live object, its encoded form, or both.

    The live object is held only if it can't change, or if nothing is checkpointed. `checkpoint_id` names where an
    encoded value was read from, for the error if it proves damaged.
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
        """A copy that nobody else has: what is handed out is copied from it."""
        self._source: Source | None = None

    @property
    def is_lost(self) -> bool:
        """Whether there is no value at all, only the reason why."""
        return self.refusal is not None and not self.has_live

    def require_encoded(self) -> Encoded:
        """The encoded form. Raises the EncodeError with which it was refused."""
        if self.refusal is not None:
            raise self.refusal
        assert self.encoded is not None, f"{self.path} is not encoded"
        return self.encoded

    def part(self) -> Part:
        """The encoded value as a part, made once."""
        return self.require_encoded().part()

    def source(self) -> Source:
        """Where the parts of the encoded value are found. What was read and decoded once is remembered with it."""
        if self._source is None:
            self._source = Source(self.stored, self.encoded)
        return self._source


@frozen
class Held:
    """What a step has given and spent."""

    result: Kept
    spent: Mapping[str, float]


class Values(Protocol):
    """The two ways of keeping values."""

    held: dict[str, dict[str, Held]]
    memos: dict[str, dict[str, object]]
    """By activation and by place: the results of steps that could not be recorded, while the activation is not over."""

    def fix(self, value: object, path: str) -> Kept:
        """Keep a value as it is now."""
        ...

    def canonical(self, value: object, path: str) -> Encoded | None:
        """The same bytes for equal values, to compare them by; None where nothing is encoded. Raises EncodeError."""
        ...

    def refuse(self, refusal: EncodeError) -> Kept:
        """Keep nothing but the reason why there is no value, or raise it."""
        ...

    def give(self, kept: object) -> Any:
        """Hand a value to an activation: its own copy if it could be changed."""
        ...

    def give_state(self, kept: object) -> Any:
        """Hand out a value of the state: always a copy if it could be changed."""
        ...

    def trusting(self, *types: object) -> Values:
        """The same, where further types are trusted."""
        ...

    def trust_more(self, trust: Trust) -> None:
        """Trust from now on what another workflow trusts: one that this one talks to."""
        ...

    def warnings(self) -> Sequence[str]:
        """What is to be told of the values that were kept since this was last asked for."""
        ...


class LiveValues:
    """Without a storage: values are the objects themselves, and nothing is encoded."""

    def __init__(self) -> None:
        self.held: dict[str, dict[str, Held]] = {}
        self.memos: dict[str, dict[str, object]] = {}

    def fix(self, value: object, path: str) -> Kept:
        """Hold on to the object."""
        return Kept(path=path, live=value, has_live=True)

    def canonical(self, value: object, path: str) -> Encoded | None:
        """Nothing."""
        del value, path

    def refuse(self, refusal: EncodeError) -> Kept:
        """Raise it."""
        raise refusal

    def give(self, kept: object) -> Any:
        """The object itself."""
        return as_kept(kept).live

    def give_state(self, kept: object) -> Any:
        """A copy where one is needed and can be made."""
        live = as_kept(kept).live
        if is_immutable(live):
            return live
        try:
            return copy.deepcopy(live)
        except Exception:  # noqa: BLE001 - sockets, locks and the like have no copies, and nothing here is stored
            return live

    def trusting(self, *types: object) -> Values:
        """Nothing is encoded here, so everything is trusted."""
        del types
        return self

    def trust_more(self, trust: Trust) -> None:
        """Everything is trusted."""

    def warnings(self) -> Sequence[str]:
        """Nothing."""
        return ()


class CodedValues:
    """In a checkpointed run: a value is encoded when it is kept, and each activation gets its own copy.

    A lenient one holds on to a value that can't be encoded, and the next checkpoint fails instead of this call.
    Each value that is kept is put on the `scale`, which may refuse it with an EncodeError.
    """

    def __init__(self, codec: Codec, *, is_lenient: bool = False, scale: Scale | None = None) -> None:
        self._codec = codec
        self._is_lenient = is_lenient
        self._scale = scale
        self.held: dict[str, dict[str, Held]] = {}
        self.memos: dict[str, dict[str, object]] = {}

    def of_run(self) -> CodedValues:
        """The same for one run, which is told of its own values alone."""
        scale = None if self._scale is None else self._scale.empty()
        values = CodedValues(self._codec, is_lenient=self._is_lenient, scale=scale)
        values.held = self.held
        return values

    def fix(self, value: object, path: str) -> Kept:
        """Encode the value. Raises EncodeError if it could not be read back, or is too large."""
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
        """The bytes of the value, whatever the order of the keys in its mappings."""
        return self._codec.encode(value, path=path, sorts_mappings=True)

    def refuse(self, refusal: EncodeError) -> Kept:
        """Raise it; a lenient one lets the next checkpoint fail of it instead."""
        if not self._is_lenient:
            raise refusal
        return Kept(path=refusal.path, refusal=refusal)

    def give(self, kept: object) -> Any:
        """The object if it can't change, else a copy decoded from what was kept."""
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
        """The same."""
        return self.give(kept)

    def trusting(self, *types: object) -> Values:
        """The same, with a codec that trusts these types, and what their fields are, as well."""
        return CodedValues(self._codec.trusting(types), is_lenient=self._is_lenient, scale=self._scale)

    def trust_more(self, trust: Trust) -> None:
        """The codec trusts it, for all that use it."""
        self._codec.trust_more(trust)

    def warnings(self) -> Sequence[str]:
        """The values that are heavy, each place once."""
        return () if self._scale is None else self._scale.warnings()


def decode(codec: Codec, kept: Kept) -> Any:
    """A fresh copy of an encoded value. Raises CheckpointDamagedError, UntrustedTypeError, IncompatibleTypeError."""
    text = kept.require_encoded().text
    return codec.read(text, kept.source(), path=kept.path, checkpoint_id=kept.checkpoint_id)


def as_kept(value: object) -> Kept:
    """The kernel keeps values as plain objects; here they are known again."""
    assert isinstance(value, Kept), f"{value!r} was never kept"
    return value


_MIB = 1024 * 1024

PART_SIZE_MAX = 400 * _MIB
"""No part is larger, whatever the limits say: SQLite and PostgreSQL end at 1 GB, and a driver may send hex digits."""


@frozen
class SizeLimits:
    """How many bytes a single value may take: an entry of the state, a message, an output, the state of an executor.

    Above `soft` the run tells a `warning` that names the value. Above `hard` saving it raises ValueTooLargeError, and
    the run stays at its last checkpoint. None is no limit.
    """

    soft: int | None = 8 * _MIB
    hard: int | None = 256 * _MIB

    def __post_init__(self) -> None:
        for name, limit in (("soft", self.soft), ("hard", self.hard)):
            if limit is not None and limit < 1:
                raise ValueError(f"SizeLimits({name}={limit}) would refuse everything; give 1 or more, or None")

    @property
    def lowest(self) -> int:
        """Whatever is not larger than this needs no further look."""
        return min(limit for limit in (self.soft, self.hard, PART_SIZE_MAX) if limit is not None)


DEFAULT_SIZE_LIMITS = SizeLimits()
NO_SIZE_LIMITS = SizeLimits(soft=None, hard=None)


class Scale:
    """Weighs the values of one run. What is heavy is noted once for each place."""

    def __init__(self, limits: SizeLimits) -> None:
        self._limits = limits
        self._lowest = limits.lowest
        self._noted: set[str] = set()
        self._untold: list[str] = []

    def empty(self) -> Scale:
        """One with the same limits that has noted nothing."""
        return Scale(self._limits)

    def weigh(self, encoded: Encoded, path: str) -> None:
        """Note a value that is heavy. Raises ValueTooLargeError for one that is too heavy."""
        size = encoded.size
        if size > self._lowest:
            self._require_light(encoded, path, size)
            soft = self._limits.soft
            if soft is not None and size > soft and path not in self._noted:
                self._noted.add(path)
                self._untold.append(
                    f"{path} takes {size:,} bytes, more than {soft:,}: keep it in a file or an object store and store "
                    "the reference, or give the storage a higher limit: size_limits=SizeLimits(soft=...)"
                )

    def _require_light(self, encoded: Encoded, path: str, size: int) -> None:
        hard = self._limits.hard
        if hard is not None and size > hard:
            raise ValueTooLargeError(path=path, size=size, limit=hard)
        largest = max((len(part.data) for part in encoded.parts), default=len(encoded.text))
        if largest > PART_SIZE_MAX:
            raise ValueTooLargeError(path=path, size=largest, limit=PART_SIZE_MAX, can_be_raised=False)

    def warnings(self) -> list[str]:
        """What was noted since this was last asked for."""
        told, self._untold = self._untold, []
        return told


class WeighingCodec(Codec):
    """A codec that refuses what is too large, for those who send to a run: what they post must be fit to be kept."""

    def __init__(self, trust: Trust, *, size_limits: SizeLimits, allow_pickle: bool = False) -> None:
        super().__init__(trust, allow_pickle=allow_pickle)
        self._scale = Scale(size_limits)

    @override
    def encode(self, value: object, *, path: str, sorts_mappings: bool = False) -> Encoded:
        encoded = super().encode(value, path=path, sorts_mappings=sorts_mappings)
        self._scale.weigh(encoded, path)
        return encoded
