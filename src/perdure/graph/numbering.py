"""Numbers for things that are begun one after the other; what came to nothing leaves its number to the next."""

from __future__ import annotations

from dataclasses import field

from perdure.data import mutable


@mutable
class Numbering:
    """The numbers of one kind of thing."""

    _next: int = 0
    _free: set[int] = field(default_factory=set[int])

    @property
    def used(self) -> int:
        """How many are taken."""
        return self._next - len(self._free)

    def take(self) -> int:
        """The lowest number that is free."""
        if self._free:
            number = min(self._free)
            self._free.remove(number)
            return number
        self._next += 1
        return self._next - 1

    def give_back(self, number: int) -> None:
        """Let another one have a number."""
        self._free.add(number)

    def take_again(self, number: int) -> int:
        """A number that was given back, if nobody has taken it meanwhile; else another one."""
        if number not in self._free:
            return self.take()
        self._free.remove(number)
        return number
