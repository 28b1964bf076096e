"""Uncommitted spending, so that activations running in parallel share one budget.

A commit adds spending to the run's totals. Until then each activation reports here, and sub-workflows nest.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

COUNTED_BY_ENGINE = frozenset({"supersteps", "activations"})
"""Resources that are checked when a superstep begins: nothing inside a handler spends them."""


class BudgetTracker:
    """Track the spending of one activation since the last commit."""

    def __init__(self, parent: BudgetTracker | None = None, activation_id: str = "") -> None:
        self._parent = parent
        self._activation_id = activation_id
        self._totals: Mapping[str, float] = {}
        self._children: dict[str, BudgetTracker] = {}

    def child(self, activation_id: str) -> BudgetTracker:
        """Return the tracker of an activation inside this one."""
        return self._children.get(activation_id) or BudgetTracker(self, activation_id)

    def report(self, totals: Mapping[str, float]) -> None:
        """Replace this activation's spending with `totals`, which include its children."""
        self._clear()
        self._totals = totals
        self._register()

    def _clear(self) -> None:
        for tracker in self._children.values():
            tracker._clear()
        self._totals, self._children = {}, {}

    def _register(self) -> None:
        """Make this tracker visible to its siblings. One that has spent nothing stays out."""
        if self._parent is not None and self._parent._children.get(self._activation_id) is not self:
            self._parent._children[self._activation_id] = self
            self._parent._register()

    def spent_by_siblings(self, resource: str) -> float:
        """Return the spending of parallel activations, here and in every enclosing superstep."""
        if self._parent is None:
            return 0
        siblings = (tracker for tracker in self._parent._children.values() if tracker is not self)
        return self._parent.spent_by_siblings(resource) + sum(tracker._spent(resource) for tracker in siblings)

    def _spent(self, resource: str) -> float:
        return self._totals.get(resource, 0) + sum(tracker._spent(resource) for tracker in self._children.values())


def require_amounts(amounts: Mapping[str, float]) -> None:
    """Raise ValueError for an amount that is negative or not finite."""
    for name, amount in amounts.items():
        if not math.isfinite(amount) or amount < 0:
            raise ValueError(f"an amount to spend must be finite and not negative, not {name}={amount!r}")
