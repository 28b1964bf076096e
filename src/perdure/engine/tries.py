"""The attempts at one thing, counted over the lives of a run, and the waits between them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.checkpoint import TriesRecord
from perdure.clock import moment_of, seconds_until
from perdure.errors import BudgetExceededError, RunError, WorkflowCheckpointException

if TYPE_CHECKING:
    from perdure.engine.activation import ActivationContext
    from perdure.graph import Retry
    from perdure.kernel import Moment

_IN_PLACE_SECONDS_MAX = 5.0
_NONE = TriesRecord(0)


def is_final(error: BaseException) -> bool:
    """Whether an error is one of the run itself, which no other attempt would mend."""
    return isinstance(error, (RunError, WorkflowCheckpointException, BudgetExceededError))


class Tries:
    """How often something was tried. In a checkpointed run a new life goes on counting."""

    def __init__(self, around: ActivationContext, key: str, retry: Retry | None) -> None:
        self._around = around
        self._key = key
        self._retry = retry
        found = around.journal.find(key) if retry is not None else None
        self._record = _NONE if found is None else TriesRecord.of(found)

    @property
    def count(self) -> int:
        """The attempts that have failed."""
        return self._record.count

    @property
    def due(self) -> Moment | None:
        """When the next attempt may be made."""
        return self._record.due

    async def failed(self, error: Exception) -> str | None:
        """Count an attempt that failed; in words, when the next is made. None if there is none: the count is reset."""
        count, retry = self.count + 1, self._retry
        if retry is None or count >= retry.attempts or is_final(error) or not retry.covers(error):
            if self.count:
                await self._keep(TriesRecord(0))
            self._record = TriesRecord(count)
            return None
        wait = retry.wait_after(count)
        due = moment_of(self._around.clock, wait, "a backoff")
        await self._keep(TriesRecord(count, due, f"{type(error).__name__}: {error}"))
        return f"attempt {count} of {retry.attempts} failed: {self._record.error}; the next is made in {wait:g} seconds"

    async def _keep(self, record: TriesRecord) -> None:
        self._record = record
        await self._around.put(self._key, record.encoded())

    async def is_ready(self, *, may_leave: bool) -> bool:
        """Wait until the next attempt may be made; False at once if that is long and the handler may be left."""
        seconds = 0.0 if self.due is None else seconds_until(self._around.clock, self.due)
        if seconds > _IN_PLACE_SECONDS_MAX and may_leave and self._around.keeps_records:
            return False
        if seconds:
            await self._around.clock.sleep(seconds)
        return True
