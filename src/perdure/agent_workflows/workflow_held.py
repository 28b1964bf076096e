"""What waits for an answer in this process alone: the newest of it, since some never get their answer."""

from __future__ import annotations

import logging
from typing import Final, Generic, TypeVar

logger = logging.getLogger(__name__)

T = TypeVar("T")

HELD_MAX: Final = 1000
"""How many wait at once, in one workflow."""


class Held(Generic[T]):
    """What waits, by id. When there are too many, the one that has waited longest is given up."""

    def __init__(self, what: str, *, limit: int = HELD_MAX) -> None:
        self._what = what
        self._limit = limit
        self._waiting: dict[str, T] = {}

    @property
    def ids(self) -> list[str]:
        """Who waits, the one that has waited longest first."""
        return list(self._waiting)

    def get(self, key: str) -> T | None:
        """What waits under an id."""
        return self._waiting.get(key)

    def hold(self, key: str, waiting: T) -> None:
        """Let it wait."""
        self._waiting.pop(key, None)
        self._waiting[key] = waiting
        while len(self._waiting) > self._limit:
            given_up = next(iter(self._waiting))
            del self._waiting[given_up]
            logger.warning(
                "%s %r is given up: %d wait in this process, and it has waited longest; to have them wait in a store, "
                "build the workflow with with_checkpointing() and a workflow store",
                self._what,
                given_up,
                self._limit + 1,
            )

    def release(self, key: str) -> T | None:
        """What has waited under an id; it does so no more."""
        return self._waiting.pop(key, None)
