"""An append-only sequence in chunks. A full chunk never changes again, so it is encoded and written once."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ItemT = TypeVar("ItemT")

CHUNK_LENGTH = 32


@dataclass(frozen=True, slots=True)
class Trail(Generic[ItemT]):
    """A frozen sequence that is cheap to extend."""

    sealed: tuple[tuple[ItemT, ...], ...] = ()
    tail: tuple[ItemT, ...] = ()

    def extended(self, items: Iterable[ItemT]) -> Trail[ItemT]:
        """Return this sequence with `items` appended."""
        tail = (*self.tail, *items)
        if len(tail) == len(self.tail):
            return self
        full = len(tail) // CHUNK_LENGTH * CHUNK_LENGTH
        sealed = tuple(tail[start : start + CHUNK_LENGTH] for start in range(0, full, CHUNK_LENGTH))
        return Trail((*self.sealed, *sealed), tail[full:])

    def __iter__(self) -> Iterator[ItemT]:
        yield from chain.from_iterable(self.sealed)
        yield from self.tail

    def __len__(self) -> int:
        return len(self.sealed) * CHUNK_LENGTH + len(self.tail)
