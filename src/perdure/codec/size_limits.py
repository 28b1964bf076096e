"""How large a value may be: above the soft limit the run tells a warning, above the hard one the value is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typing_extensions import override

from perdure.codec.codec import Codec
from perdure.data import frozen
from perdure.errors import ValueTooLargeError

if TYPE_CHECKING:
    from perdure.codec.codec import Encoded
    from perdure.codec.trust import Trust

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
