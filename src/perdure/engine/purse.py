"""What activations have spent before a commit counts it, so that sub-workflows side by side share what is left."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


class Purse:
    """What one activation has spent so far, among all others of the superstep and of the sub-workflows in it."""

    def __init__(self, around: Purse | None = None, home: str = "") -> None:
        self._around = around
        self._home = home
        self._amounts: Mapping[str, float] = {}
        self._inside: dict[str, Purse] = {}

    def of(self, home: str) -> Purse:
        """That of an activation inside of this one."""
        return self._inside.get(home) or Purse(self, home)

    def spend(self, amounts: Mapping[str, float]) -> None:
        """Say what it has spent in all, what was spent inside of it included."""
        self._empty()
        self._amounts = amounts
        self._join()

    def _empty(self) -> None:
        for purse in self._inside.values():
            purse._empty()
        self._amounts, self._inside = {}, {}

    def _join(self) -> None:
        """Be among the others. Who has spent nothing, and nothing inside, need not be."""
        if self._around is not None and self._around._inside.get(self._home) is not self:
            self._around._inside[self._home] = self
            self._around._join()

    def beside(self, name: str) -> float:
        """What others have spent of a resource; not those around it, whose rest is what it was given."""
        if self._around is None:
            return 0
        others = (purse for purse in self._around._inside.values() if purse is not self)
        return self._around.beside(name) + sum(purse._spent(name) for purse in others)

    def _spent(self, name: str) -> float:
        return self._amounts.get(name, 0) + sum(purse._spent(name) for purse in self._inside.values())
