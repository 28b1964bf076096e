"""Read a run's committed events from any number on, then follow further commits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.checkpoint import EventReader
from perdure.errors import (
    BlobDamagedError,
    CheckpointDamagedError,
    EventsForgottenError,
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
"""A mark that no run has, so that `watch` returns at once."""


async def committed_events(
    store: Store,
    codec: Callable[[], Codec],
    run_id: str,
    *,
    from_seq: int = 1,
    follow: bool = False,
    until_rest: bool = False,
) -> AsyncGenerator[WorkflowEvent[Any]]:
    """Iterate over the committed events of a run, from a number on, each once and in order.

    With `follow` it waits for further events, and for a run that has not begun. With `until_rest` it ends when nobody
    advances the run, or the run has nothing to do at once: it is idle, sleeps, waits for an answer or was cancelled.

    Raises:
        RunNotFoundError: there is no such run, or no longer.
        EventsForgottenError: retention has removed the next event.
        CheckpointDamagedError: stored data is not what was written.
    """
    if from_seq < 1:
        raise ValueError(f"events are numbered from 1 on, there is no event {from_seq}; read with from_seq=1")
    cursor, has_begun = from_seq, False
    while True:
        # The mark before the record, the record before the events: a commit in between ends the wait below.
        mark = await store.watch(run_id, seen=_NOWHERE)
        record = await store.run(run_id)
        if record is None:
            if has_begun or not follow:
                raise RunNotFoundError(run_id)
            await store.watch(run_id, seen=mark)
            continue
        has_begun = True
        while cursor <= record.events:
            for batch in await _read_page(store, run_id, cursor, newest=record.events):
                for event in await _read_events(store, codec, batch, cursor):
                    yield event
                cursor = batch.last + 1
        if not follow or (until_rest and _is_at_rest(record, mark)):
            return
        await store.watch(run_id, seen=mark)


def _is_at_rest(record: RunRecord, mark: Mark) -> bool:
    """Return whether nobody has the run, or it has nothing to do at once. A waiting command is work."""
    if mark.head is None:
        # It has begun since the mark was read.
        return False
    return mark.owner is None or (record.status != "running" and mark.commands == 0)


async def _read_page(store: Store, run_id: str, cursor: int, *, newest: int) -> list[EventBatch]:
    """Return the next batches. The first contains the event `cursor`; none begins after the event `newest`."""
    found = await store.events(run_id, after=cursor - 1, limit=BATCHES_PER_PAGE)
    if not found or found[0].first > cursor:
        raise EventsForgottenError(run_id, asked=cursor, first=found[0].first if found else newest + 1)
    return [batch for batch in found if batch.first <= newest]


async def _read_events(
    store: Store, codec: Callable[[], Codec], batch: EventBatch, cursor: int
) -> list[WorkflowEvent[Any]]:
    """Return the events of a batch from `cursor` on."""
    try:
        try:
            blobs: Mapping[str, bytes] = await store.blobs(batch.refs) if batch.refs else {}
        except BlobDamagedError as error:
            raise CheckpointDamagedError(batch.checkpoint_id, error.reason) from error
        return EventReader(codec(), batch, blobs).events(from_seq=cursor)
    except CheckpointDamagedError:
        # Missing blobs are no damage if retention has removed the batch since it was read: then this raises.
        await _read_page(store, batch.run_id, cursor, newest=batch.last)
        raise
