"""Where in a function a step or a question is: which of the tasks that work side by side, and how many came before it.

Tasks that a function begins (`asyncio.gather`, a task group) are numbered as they come to their first step, and count
their own. So it does not matter which of them is the faster one.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Generator


@dataclass(slots=True)
class _Branch:
    """One task of a function, or of a step that calls others."""

    task: asyncio.Task[Any] | None
    path: str = ""
    children: int = 0
    calls: Counter[str] = field(default_factory=Counter[str])


_branch: ContextVar[_Branch | None] = ContextVar("perdure_branch", default=None)


@contextmanager
def trunk() -> Generator[None]:
    """Begin to count: a function, or one attempt at a step, is entered."""
    token = _branch.set(_Branch(_task()))
    try:
        yield
    finally:
        _branch.reset(token)


def branch_place(name: str) -> str | None:
    """Names the next call of something in this task; None in the task that the function itself runs in."""
    branch = _branch.get()
    if branch is None:
        return None
    if branch.task is not _task():
        branch = _branched_off(branch)
    if not branch.path:
        return None
    branch.calls[name] += 1
    # The keys that users give don't begin with a space.
    return f" {branch.path}#{branch.calls[name] - 1}"


def _branched_off(parent: _Branch) -> _Branch:
    branch = _Branch(_task(), f"{parent.path}.{parent.children}" if parent.path else str(parent.children))
    parent.children += 1
    _branch.set(branch)
    return branch


def _task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # a thread
        return None
