"""What the parts of the builder have in common: what is wrong is noted, and told when the workflow is built."""

from __future__ import annotations


class Noting:
    """Notes what is wrong with what it was told."""

    def __init__(self) -> None:
        super().__init__()
        self._problems: list[str] = []

    def _note(self, problem: str) -> None:
        self._problems.append(problem)
