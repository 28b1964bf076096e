"""The parts of all runs, in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from perdure.records import Part


class MemoryParts:
    """By hash the part; the first of its hash stands."""

    def __init__(self) -> None:
        self._parts: dict[str, Part] = {}

    def put(self, parts: Iterable[Part]) -> None:
        """Keep these."""
        for part in parts:
            self._parts.setdefault(part.hash, part)

    def closure(self, roots: Iterable[str]) -> Iterator[Part]:
        """These parts and all that they refer to, as far as they are there."""
        seen: set[str] = set()
        waiting = list(roots)
        while waiting:
            part = self._parts.get(waiting.pop())
            if part is not None and part.hash not in seen:
                seen.add(part.hash)
                waiting.extend(part.refs)
                yield part

    def keep_only(self, roots: Iterable[str]) -> int:
        """Remove what none of these needs; how many that were."""
        unneeded = self._parts.keys() - {part.hash for part in self.closure(roots)}
        for part in unneeded:
            del self._parts[part]
        return len(unneeded)
