"""Which point kills the next life: every known one in turn, each after the deaths that lead to it."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from perdure.testing.resume.points import window_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from perdure.testing.resume.chance import Chance

_TRIES_MAX = 4
_OCCURRENCE_MAX = 5
_LEAVES_RECORDS = "record after all"
_INHERITED = ("inherited before commit", "inherited after commit")


@dataclass(frozen=True, slots=True)
class Aim:
    """A point, the time that it comes by, and the aims of the lives before: some points are for heirs only."""

    name: str
    occurrence: int = 1
    after: tuple[Aim, ...] = ()


THROUGH: Final = Aim("")
"""A life that is let through: some points are for those who find nothing left to do."""


@dataclass(slots=True)
class Aims:
    """The points that are known, in an order of chance, and those that have killed.

    With `per_window` only so many points of each window are aimed at.
    """

    chance: Chance
    per_window: int | None = None
    hit: set[str] = field(default_factory=set[str])
    tried: Counter[str] = field(default_factory=Counter[str])
    _left: deque[Aim] = field(default_factory=deque[Aim])
    _taken: Counter[str] = field(default_factory=Counter[str])

    def learn(self, seen: Mapping[str, int], after: tuple[Aim, ...]) -> None:
        """Take up the points that a life came by which nobody has aimed at."""
        for name in self.chance.shuffled(sorted(set(seen) - set(self.tried))):
            window = window_of(name)
            if self.per_window is None or self._taken[window] < self.per_window:
                self._taken[window] += 1
                self.tried[name] = 0
                first = 1 + self.chance.below(min(_OCCURRENCE_MAX, seen[name]))
                self._left.append(Aim(name, 1 if after else first, after))

    def learn_inheritance(self, seen: Mapping[str, int]) -> None:
        """Take up what only an heir comes by: the commit of what an earlier life has recorded."""
        if seen.get(_LEAVES_RECORDS):
            self.tried.update(dict.fromkeys(_INHERITED, 0))
            self._left.extend(Aim(name, after=(Aim(_LEAVES_RECORDS),)) for name in _INHERITED)

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to aim at."""
        return not self._left

    def next_run(self) -> deque[Aim]:
        """The aims of the lives of a new run: the ones that lead to the next point, and that."""
        aim = self._left.popleft()
        return deque([*aim.after, aim])

    def next_life(self) -> Aim | None:
        """A further aim for a run that has died already; None if the next one has missed and needs a run of its own."""
        return self._left.popleft() if self._left and not self.tried[self._left[0].name] else None

    def settle(self, aim: Aim, *, was_hit: bool) -> None:
        """Note how it went. What was missed is tried again at its first coming by, in a run of its own."""
        if was_hit:
            self.hit.add(aim.name)
            return
        self.tried[aim.name] += 1
        if aim.name not in self.hit and self.tried[aim.name] < _TRIES_MAX:
            self._left.append(Aim(aim.name, 1, aim.after))

    def missed(self) -> str | None:
        """What never killed, though lives come by; None if there is none."""
        names = sorted(set(self.tried) - self.hit)
        return f"never hit, though lives come by: {', '.join(names)}" if names else None
