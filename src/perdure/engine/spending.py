"""What one attempt at an activation spends, and what is left to it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol

from perdure.errors import BudgetExceededError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from perdure.engine.flight import Inside
    from perdure.engine.purse import Purse
    from perdure.engine.surroundings import Surroundings

_COUNTED_BY_ENGINE = frozenset({"supersteps", "activations"})
"""What is limited where it begins: nothing inside of a handler spends it."""


class Spender(Protocol):
    """The activation, as far as spending needs it."""

    around: Surroundings

    @property
    def home(self) -> str:
        """What its records are named after."""
        ...

    @property
    def enclosing(self) -> Inside | None:
        """The step that is running here, if one is."""
        ...


def require_amounts(amounts: Mapping[str, float]) -> None:
    """Raise ValueError if something can't be spent."""
    for name, amount in amounts.items():
        if not math.isfinite(amount) or amount < 0:
            raise ValueError(f"what is spent is finite and not negative, not {name}={amount!r}")


class Spending:
    """What was spent by name: `spent` by the handler itself, the rest by steps, with their records."""

    def __init__(self, owner: Spender) -> None:
        self._owner = owner
        self._around = owner.around
        self.spent: dict[str, float] = {}

    def count(self, spent: Mapping[str, float]) -> None:
        """Count what was spent: in a step, with its record."""
        inside = self._owner.enclosing
        counted = self.spent if inside is None else inside.spent
        for name, amount in spent.items():
            counted[name] = counted.get(name, 0) + amount
        if inside is None and self._around.snapshot.limits.budget:
            self._purse.spend(self.spent)

    def require_budget(self) -> None:
        """Raise BudgetExceededError if the run has spent all that it may of something, what runs beside it included."""
        left = self._around.snapshot.left
        for name in left.keys() - _COUNTED_BY_ENGINE:
            spent = self._spent_of(name) + self._purse.beside(name)
            if spent >= left[name]:
                # Whoever drives the run says it in numbers of the whole.
                raise BudgetExceededError(self._around.root_id, name=name, spent=spent, limit=left[name])

    @property
    def left(self) -> Mapping[str, float]:
        """What may still be spent of what is limited, without what this attempt has spent."""
        return {name: left - self._spent_of(name) for name, left in self._around.snapshot.left.items()}

    @property
    def _purse(self) -> Purse:
        return self._around.purse.of(self._owner.home)

    def _spent_of(self, name: str) -> float:
        """What this attempt has spent, the steps around what is running here included."""
        inside = self._owner.enclosing
        return self.spent.get(name, 0) + (0 if inside is None else inside.spent_of(name))
