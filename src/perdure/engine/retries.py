"""Retries of a step or activation: the count survives a crash, and so does the moment of the next attempt."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.checkpoint import TriesRecord
from perdure.clock import moment_of, seconds_until
from perdure.errors import BudgetExceededError, RunError, WorkflowCheckpointException

if TYPE_CHECKING:
    from perdure.engine.activation import ActivationContext
    from perdure.graph import Retry
    from perdure.kernel import Moment

_BACKOFF_IN_PLACE_SECONDS_MAX = 5.0
_NONE = TriesRecord(0)


def is_final(error: BaseException) -> bool:
    """Return whether an error belongs to the run itself, so that another attempt can't help."""
    return isinstance(error, (RunError, WorkflowCheckpointException, BudgetExceededError))


class Retries:
    """Count the failed attempts at one thing. In a checkpointed run the count goes on after a restart."""

    def __init__(self, context: ActivationContext, key: str, retry: Retry | None) -> None:
        self._context = context
        self._key = key
        self._retry = retry
        found = context.journal.find(key) if retry is not None else None
        self._record = _NONE if found is None else TriesRecord.of(found)

    @property
    def count(self) -> int:
        """Return how many attempts have failed."""
        return self._record.count

    @property
    def due(self) -> Moment | None:
        """Return when the next attempt may start."""
        return self._record.due

    async def fail(self, error: Exception) -> str | None:
        """Count a failed attempt. Return a text about the next one; None if there is none, and reset the count."""
        count, retry = self.count + 1, self._retry
        if retry is None or count >= retry.attempts or is_final(error) or not retry.covers(error):
            if self.count:
                await self._save(TriesRecord(0))
            self._record = TriesRecord(count)
            return None
        wait = retry.wait_after(count)
        due = moment_of(self._context.clock, wait, "a backoff")
        await self._save(TriesRecord(count, due, f"{type(error).__name__}: {error}"))
        return f"attempt {count} of {retry.attempts} failed: {self._record.error}; the next starts in {wait:g} seconds"

    async def _save(self, record: TriesRecord) -> None:
        self._record = record
        await self._context.put(self._key, record.encoded())

    async def wait_until_due(self, *, may_suspend: bool) -> bool:
        """Wait until the next attempt may start. Return False at once if that is long and the handler may suspend."""
        seconds = 0.0 if self.due is None else seconds_until(self._context.clock, self.due)
        if seconds > _BACKOFF_IN_PLACE_SECONDS_MAX and may_suspend and self._context.keeps_records:
            return False
        if seconds:
            await self._context.clock.sleep(seconds)
        return True
