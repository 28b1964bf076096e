"""What activations have spent before a commit counts it, so that sub-workflows side by side share what is left."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


class Purse:
    """What one activation has spent so far, among all others of the superstep and of the sub-workflows in it.

    Its path names it: the homes of the activations around it and its own, each with a slash.
    """

    def __init__(self, path: str = "", spent: dict[str, Mapping[str, float]] | None = None) -> None:
        self._path = path
        self._spent: dict[str, Mapping[str, float]] = {} if spent is None else spent

    def of(self, home: str) -> Purse:
        """That of an activation inside of this one."""
        return Purse(f"{self._path}{home}/", self._spent)

    def spend(self, amounts: Mapping[str, float]) -> None:
        """Say what it has spent in all, what was spent inside of it included."""
        for path in [path for path in self._spent if path.startswith(self._path)]:
            del self._spent[path]
        self._spent[self._path] = amounts

    def beside(self, name: str) -> float:
        """What others have spent of a resource; not those around it, whose rest is what it was given."""
        return sum(
            amounts.get(name, 0)
            for path, amounts in self._spent.items()
            if not path.startswith(self._path) and not self._path.startswith(path)
        )
