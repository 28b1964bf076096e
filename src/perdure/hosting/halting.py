"""Halting a run from outside, and ending a halt: a claim that runs nothing."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from perdure.engine import PRESENCE, failure_of
from perdure.errors import RunBusyError
from perdure.moments import now
from perdure.records import Halt
from perdure.storage import this_process

if TYPE_CHECKING:
    from perdure.clock import Clock
    from perdure.records import Claim, RunRecord
    from perdure.storage import HostStore


async def park(store: HostStore, clock: Clock, record: RunRecord, token: int | None = None) -> Claim | None:
    """Park a run that has ended too many processes; if somebody has got on with it meanwhile, the claim that stands."""
    run_id, last = record.run_id, record.owner
    async with PRESENCE.at(store.place, run_id):
        claim = await store.claim(run_id, token=token)
        if claim.attempts <= record.attempts:
            return claim
        reason = (
            f"the last {record.attempts} processes that advanced it ended without getting on; "
            f"the last was {last or 'not seen'}"
        )
        await store.release(claim, halt=Halt("parked", now(clock), reason))
        return None


async def fail(store: HostStore, clock: Clock, run_id: str, error: Exception, *, has_opened: bool) -> bool:
    """See to it that a run is known to have failed; False if the error is none of its own.

    Whoever drove it has said so already, unless it could not be opened. If it was opened here and is not this
    process's any more, somebody has taken it over: then it is not for the one who was replaced to say how it stands.
    """
    record = await store.run(run_id)
    if record is None or record.halt is not None:
        return True
    halt = failure_of(error, clock)
    is_ours = record.owner is not None and record.owner.id == this_process().id
    if halt is None or (has_opened and not is_ours):
        return False
    async with PRESENCE.at(store.place, run_id):
        claim = await store.claim(run_id)
        await store.release(claim, halt=halt)
    return True


async def end_halt(store: HostStore, run_id: str) -> None:
    """Let a run go on that has failed or was parked. Raises RunNotFoundError, RunExportedError."""
    # Somebody who has taken the run has ended the halt by that.
    with suppress(RunBusyError):
        async with PRESENCE.at(store.place, run_id):
            claim = await store.claim(run_id)
            await store.release(claim)
