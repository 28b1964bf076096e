"""The port between a host and the scheduler that decides when to advance each run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from datetime import datetime

    from perdure.records import RunStatus


@dataclass(frozen=True, slots=True)
class Dispatch:
    """A run to advance now.

    `token` is the fencing token, if the scheduler issues tokens; None if the store counts them. It must be larger than
    every earlier token of the run. Earlier owners can't write from then on.
    """

    run_id: str
    token: int | None = None


@dataclass(frozen=True, slots=True)
class AdvanceResult:
    """The state of a run after it was advanced.

    Attributes:
        status: None if it is unknown here: another process owns the run, or it is gone.
        wake_at: The next time at which the run continues by itself.
        has_changed: True if anything was committed.
        tries_again: True if a retry after a delay makes sense although nothing has changed.
    """

    status: RunStatus | None
    wake_at: datetime | None = None
    has_changed: bool = False
    tries_again: bool = False


# The former name.
Rest = AdvanceResult

# Advance a run until nothing is left to do. Raises only what ends the process.
Advance: TypeAlias = Callable[[Dispatch], Awaitable[AdvanceResult]]


class Scheduler(Protocol):
    """Decide when each run is advanced. Every notification is about something durable in the store."""

    async def start(self, run_id: str) -> None:
        """Handle a new run with work to do."""

    async def wake(self, run_id: str) -> None:
        """Handle an answer, a message, or permission to continue."""

    async def wake_at(self, run_id: str, moment: datetime) -> None:
        """Advance the run at that moment, unless it is advanced before."""

    async def cancel(self, run_id: str) -> None:
        """Handle a cancelled run. An active run notices by itself; another one must be advanced."""

    async def serve(self, advance: Advance, workflow_names: Collection[str]) -> None:
        """Advance runs of these workflows until cancelled. Active runs then stay with the host."""
