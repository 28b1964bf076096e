"""Numbers that look like chance and depend on a seed alone."""

from __future__ import annotations

import hashlib
import itertools
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

T = TypeVar("T")


class Chance:
    """Draws. The same seed gives the same ones, on every machine."""

    def __init__(self, seed: str) -> None:
        self._seed = seed
        self._draws = itertools.count()

    def below(self, limit: int) -> int:
        """A whole number from 0 on."""
        text = f"{self._seed} {next(self._draws)}".encode()
        return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") % limit

    def one_of(self, things: Sequence[T]) -> T:
        """One of them."""
        return things[self.below(len(things))]

    def shuffled(self, things: Sequence[T]) -> list[T]:
        """All of them, in some order."""
        left, order = list(things), list[T]()
        while left:
            order.append(left.pop(self.below(len(left))))
        return order

    def seconds(self, longest: float) -> float:
        """A time up to the longest."""
        return longest * self.below(10_000) / 10_000
