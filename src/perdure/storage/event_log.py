"""The log of a run's events: replayed from any number on, then followed as commits tell more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.checkpoint import EventReader
from perdure.errors import (
    CheckpointDamagedError,
    EventsForgottenError,
    PartDamagedError,
    RunNotFoundError,
)
from perdure.records import Mark

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping

    from perdure.codec import Codec
    from perdure.events import WorkflowEvent
    from perdure.records import EventBatch, RunRecord
    from perdure.storage.port import Store

BATCHES_PER_PAGE = 100

_NOWHERE = Mark(head="", events=-1, commands=-1)
"""The mark of no run at all: whoever has seen it is told at once how far a run is."""


async def committed_events(
    store: Store,
    codec: Callable[[], Codec],
    run_id: str,
    *,
    from_seq: int = 1,
    follow: bool = False,
    until_rest: bool = False,
) -> AsyncGenerator[WorkflowEvent[Any]]:
    """The events that a run has committed, from a number on, each once and in order.

    With `follow` it waits for further ones, and for a run that has not begun; with `until_rest` it ends when nobody
    advances the run, or it has nothing to do at once: it is idle, sleeps, waits for an answer or was cancelled.

    Raises:
        RunNotFoundError: there is no such run, or no more.
        EventsForgottenError: the retention has removed what comes next.
        CheckpointDamagedError: what is stored is not what was written.
    """
    if from_seq < 1:
        raise ValueError(f"events are numbered from 1 on, there is no event {from_seq}; read with from_seq=1")
    log = _Log(store, codec, run_id)
    due, has_begun = from_seq, False
    while True:
        # The mark before the record, the record before the events: what is committed in between ends the wait below.
        mark = await store.watch(run_id, seen=_NOWHERE)
        record = await store.run(run_id)
        if record is None:
            if has_begun or not follow:
                raise RunNotFoundError(run_id)
            await store.watch(run_id, seen=mark)
            continue
        has_begun = True
        while due <= record.events:
            for batch in await log.page(due, newest=record.events):
                for event in await log.events(batch, due):
                    yield event
                due = batch.last + 1
        if not follow or (until_rest and _is_at_rest(record, mark)):
            return
        await store.watch(run_id, seen=mark)


def _is_at_rest(record: RunRecord, mark: Mark) -> bool:
    """Whether nobody has the run, or it leaves nothing to do at once: a command that waits is work for who has it."""
    if mark.head is None:
        # It has begun since the mark was read.
        return False
    return mark.owner is None or (record.status != "running" and mark.commands == 0)


class _Log:
    """Reads batches of one run."""

    def __init__(self, store: Store, codec: Callable[[], Codec], run_id: str) -> None:
        self._store = store
        self._codec = codec
        self._run_id = run_id

    async def page(self, due: int, *, newest: int) -> list[EventBatch]:
        """The next batches, the first of which has the event `due`; none that begins after the event `newest`."""
        found = await self._store.events(self._run_id, after=due - 1, limit=BATCHES_PER_PAGE)
        if not found or found[0].first > due:
            raise EventsForgottenError(self._run_id, asked=due, first=found[0].first if found else newest + 1)
        return [batch for batch in found if batch.first <= newest]

    async def events(self, batch: EventBatch, due: int) -> list[WorkflowEvent[Any]]:
        """The events of a batch, from the one that is due on."""
        try:
            parts = await self._parts(batch)
            return EventReader(self._codec(), batch, parts).events(from_seq=due)
        except CheckpointDamagedError:
            # Parts that are gone are no damage if the retention has removed the batch since it was read.
            await self.page(due, newest=batch.last)
            raise

    async def _parts(self, batch: EventBatch) -> Mapping[str, bytes]:
        try:
            return await self._store.parts(batch.refs) if batch.refs else {}
        except PartDamagedError as error:
            raise CheckpointDamagedError(batch.checkpoint_id, error.reason) from error
