"""The port between a host and what decides when which run is advanced: the embedded scheduler, or another engine."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Protocol, TypeAlias

from perdure.data import frozen

if TYPE_CHECKING:
    from collections.abc import Collection
    from datetime import datetime

    from perdure.records import RunStatus


@frozen
class Dispatch:
    """A run that is to be advanced now."""

    run_id: str
    token: int | None = None
    """The token of the claim, if the engine makes the tokens; None if the store counts them.

    It must be larger than any that the run has had. Who had the run before can write nothing from then on.
    """


@frozen
class Rest:
    """Where a run stands after it was advanced."""

    status: RunStatus | None
    """None if that is not known here: somebody else has the run, or it is gone."""
    wake_at: datetime | None = None
    """When it can go on, though nobody has sent anything."""
    has_changed: bool = False
    """Whether anything was committed."""
    tries_again: bool = False
    """Whether it is worth to try again after a while, though nothing has changed."""


Advance: TypeAlias = Callable[[Dispatch], Awaitable[Rest]]
"""Advances a run until it rests. It raises only what ends the process."""


class Scheduler(Protocol):
    """Decides when which run is advanced. Whatever it is told is durable in the store already."""

    async def start(self, run_id: str) -> None:
        """A run has begun and has work to do."""
        ...

    async def wake(self, run_id: str) -> None:
        """Something has come to a run: an answer, a message, the leave to go on."""
        ...

    async def wake_at(self, run_id: str, moment: datetime) -> None:
        """A run has to be looked at then, if it is not advanced before."""
        ...

    async def cancel(self, run_id: str) -> None:
        """A run was told to stop. If it is being advanced it notices by itself; otherwise it has to be advanced."""
        ...

    async def serve(self, advance: Advance, workflow_names: Collection[str]) -> None:
        """Have runs of these workflows advanced until this is cancelled. What is under way then stays with the host."""
        ...
