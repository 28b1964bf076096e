"""The handler call that is in progress where somebody asks: for code that was not given its context."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perdure.graph.port import ActivationPort

_current: ContextVar[ActivationPort | None] = ContextVar("perdure_activation", default=None)

enter = _current.set
"""Say what is in progress in this task and in all that it begins. The next call in the task takes its place."""


def current_activation() -> ActivationPort | None:
    """The handler call that is in progress here; None outside of a workflow, and when it has ended."""
    found = _current.get()
    return found if found is not None and found.is_running else None
