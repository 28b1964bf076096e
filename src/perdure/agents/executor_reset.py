"""The wish that an agent forgets what it was not told yet, from outside of any run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from perdure.clock import SystemClock

if TYPE_CHECKING:
    from perdure.graph import WorkflowContext

_RESET = "reset"
"""In the state of the executor: the last wish that was done."""


@dataclass
class Reset:
    """That the next turn is to forget what waits: said outside of any run, whose state only a handler can change.

    It is done when the state says so, and not before: the handler may fail.
    """

    _wish: str | None = None
    _done_by: str | None = None

    def wish_it(self) -> None:
        """Let the next turn do it."""
        self._wish = SystemClock().new_id()

    def is_to_be_done(self, ctx: WorkflowContext[Any, Any]) -> bool:
        """Whether this handler call is the one, and has not done it yet."""
        own = ctx.scope()
        if self._wish is None:
            return False
        if own.get(_RESET) != self._wish:
            own.set(_RESET, self._wish)
            self._done_by = ctx.idempotency_key
            return True
        if self._done_by != ctx.idempotency_key:
            self._wish = None
        return False
