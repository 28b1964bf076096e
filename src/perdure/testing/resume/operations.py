"""Operations of which a write is made, with points before and after each."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from perdure.testing.resume.points import reach

if TYPE_CHECKING:
    from collections.abc import Generator


class Writing:
    """Which writes are under way in this process, so that an operation knows what it is part of."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kinds: Counter[str] = Counter()

    @contextmanager
    def of(self, kind: str) -> Generator[None]:
        """A write of this kind is under way."""
        with self._lock:
            self._kinds[kind] += 1
        try:
            yield
        finally:
            with self._lock:
                self._kinds[kind] -= 1

    @contextmanager
    def operation(self, name: str) -> Generator[None]:
        """An operation, with a point before and one after it if it is part of a write."""
        self.point(f"before {name}")
        yield
        self.point(f"after {name}")

    def point(self, name: str) -> None:
        """A point, if it is part of a write."""
        kind = self._kind()
        if kind is not None:
            reach(f"{kind} {name}")

    def _kind(self) -> str | None:
        with self._lock:
            return next((kind for kind in ("commit", "post", "record") if self._kinds[kind]), None)


writing: Final = Writing()
"""Those of this process."""
