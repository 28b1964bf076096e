"""What a forked child must forget, since it belongs to its parent."""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Inherited(Protocol):
    """Something of which a forked child gets a copy."""

    def forget_parent(self) -> None:
        """Take note, in a forked child, that what was begun is the parent's."""
        ...


_inherited: weakref.WeakSet[Inherited] = weakref.WeakSet()


def watch_forks(each: Inherited) -> None:
    """Let it forget, in every forked child, what is the parent's."""
    _inherited.add(each)


def _after_fork_in_child() -> None:
    for each in list(_inherited):
        each.forget_parent()


os.register_at_fork(after_in_child=_after_fork_in_child)
