"""The journal of the superstep in progress: a resumed superstep runs only what is not recorded here."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from perdure.checkpoint import JournalReader, activation_record, events_record, snapshot_record, stored_of
from perdure.codec import Codec, Encoded, Kept, as_kept
from perdure.data_classes import new_dict, new_list, value_class
from perdure.engine.tasks import finished
from perdure.errors import AgentFrameworkException, CheckpointWriteError, EncodeError
from perdure.records import JournalRecord, Lease

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from perdure.kernel import Activation, ActivationResult, PendingEvent, Snapshot
    from perdure.storage import Store

logger = logging.getLogger(__name__)

TRACE = "trace"
"""Key of the record with the last writer's trace id."""
STEP = "/step/"
"""In a key: separates an activation_id from a step."""
_CHILD = "child"
_CHILD_EVENTS = "child/told/"


@dataclass(eq=False)
class JournalLog:
    """The records of a run since its head, in a store.

    Attributes:
        earlier_steps: By activation_id: the keys of the steps that an earlier attempt recorded.
        head_snapshot: The snapshot of the head, if it is known.
    """

    store: Store
    lease: Lease
    codec: Codec
    records: dict[str, Kept] = field(default_factory=new_dict)
    earlier_steps: dict[str, list[str]] = field(default_factory=new_dict)
    head: str | None = None
    head_snapshot: Snapshot | None = None
    writing: asyncio.Task[None] | None = None
    _queued: list[JournalRecord] = field(default_factory=new_list)

    async def open(
        self, head: str, head_snapshot: Snapshot | None, *, records: Sequence[JournalRecord] | None = None
    ) -> None:
        """Read the records that an earlier attempt made since the head, unless they are given."""
        self.head, self.head_snapshot = head, head_snapshot
        if records is None:
            records = await self.store.journal(self.lease.run_id)
        refs = [ref for record in records for ref in record.refs]
        blobs: Mapping[str, bytes] = await self.store.blobs(refs) if refs else {}
        self.records = {
            record.key: Kept(
                path=f"record {record.key!r}",
                encoded=Encoded(record.data, refs=record.refs),
                stored=blobs,
                checkpoint_id=head,
            )
            for record in records
        }
        self.earlier_steps = {}
        for key in self.records:
            activation_id, mark, _ = key.partition(STEP)
            if mark:
                self.earlier_steps.setdefault(activation_id, []).append(key)

    def restart_at(self, head: str, head_snapshot: Snapshot | None) -> None:
        """Drop all records: the head has moved, and they are void."""
        self.head, self.head_snapshot = head, head_snapshot
        self.records = {}
        self.earlier_steps = {}
        self._queued = []

    def reader(self, kept: Kept) -> JournalReader:
        """Return a reader for one record."""
        return JournalReader(self.codec, kept.blob_data(), self.head or "")

    def record_soon(
        self, encoders: Mapping[str, Callable[[], Encoded]], stored: Mapping[str, Collection[str]] | None = None
    ) -> None:
        """Queue all or none of these records, without waiting until they are durable.

        `stored` lists, by key, blobs that the head stores. They are not written again: the head outlives the record.
        """
        try:
            encoded = {key: encode() for key, encode in encoders.items()}
        except EncodeError:
            return  # the commit fails for the same reason, and reports it
        known = stored or {}
        self._queued += [self._add(key, each, known.get(key)) for key, each in encoded.items()]
        if self.writing is None or self.writing.done():
            self.writing = asyncio.ensure_future(self._write_queued())

    def _add(self, key: str, encoded: Encoded, stored: Collection[str] | None = None) -> JournalRecord:
        self.records[key] = Kept(path=f"record {key!r}", encoded=encoded, checkpoint_id=self.head or "")
        blobs = tuple(encoded.beyond(stored.__contains__)) if stored else encoded.blobs
        return JournalRecord(key, encoded.text, encoded.refs, blobs, is_progress=key != TRACE)

    async def _write_queued(self) -> None:
        """Write the queue. Records that arrive during a write go into the next one together."""
        while self._queued:
            records, self._queued = self._queued, []
            try:
                await self.store.record(self.lease, head=self.head, records=records, durable=False)
            except Exception as error:  # noqa: BLE001 - the commit that follows reports it, or makes the records void
                logger.warning("run %r: finished work could not be recorded: %s", self.lease.run_id, error)

    async def settle(self) -> None:
        """Wait until all queued records are written, even if the waiting task is cancelled."""
        while self.writing is not None and not self.writing.done():
            await finished(self.writing)

    async def record_durably(self, key: str, encoded: Encoded, *, is_progress: bool) -> None:
        """Write one record and wait until it is durable."""
        record = JournalRecord(key, encoded.text, encoded.refs, encoded.blobs, is_progress)
        try:
            await self.store.record(self.lease, head=self.head, records=[record])
        except AgentFrameworkException:
            raise
        except Exception as error:
            raise CheckpointWriteError(run_id=self.lease.run_id, reason=f"{type(error).__name__}: {error}") from error
        self._add(key, encoded)


@value_class
class Journal:
    """Records of a superstep, by key: a log's keys below a prefix, and records that a snapshot carries.

    The key of an activation is its activation_id. Records inside it have keys that begin with that and a slash.
    Without a log (nothing is checkpointed) nothing is recorded or found.
    """

    log: JournalLog | None = None
    prefix: str = ""
    carried: Mapping[str, object] = field(default_factory=new_dict)

    def under(self, prefix: str, carried: Mapping[str, object]) -> Journal:
        """Return the part below a prefix, with the records that its own snapshot carries."""
        if self.carried and prefix:
            inner = {key.removeprefix(prefix): each for key, each in self.carried.items() if key.startswith(prefix)}
            carried = {**inner, **carried}
        return Journal(self.log, f"{self.prefix}{prefix}", carried)

    def find(self, key: str) -> Kept | None:
        """Return a record; one of this superstep before a carried one."""
        if self.log is None:
            return None
        found = self.log.records.get(f"{self.prefix}{key}")
        if found is None and key in self.carried:
            return as_kept(self.carried[key])
        return found

    def record_soon(self, key: str, encode: Callable[[], Encoded]) -> None:
        """Queue a record without waiting for it."""
        if self.log is not None:
            self.log.record_soon({f"{self.prefix}{key}": encode})

    async def record_durably(self, key: str, encoded: Encoded, *, is_progress: bool = True) -> None:
        """Write a record durably. `is_progress` is False for one that only says that work begins.

        Raises CheckpointWriteError, LeaseLostError.
        """
        if self.log is not None:
            await self.log.record_durably(f"{self.prefix}{key}", encoded, is_progress=is_progress)

    def records(self, activation_id: str | None = None) -> Mapping[str, Kept]:
        """Return all records, or those of one activation, with their blobs, for a snapshot to carry."""
        if self.log is None:
            return {}
        found = {key: as_kept(value) for key, value in self.carried.items()}
        for key, kept in self.log.records.items():
            if key.startswith(self.prefix) and key != TRACE:
                found[key.removeprefix(self.prefix)] = kept.with_blobs()
        if activation_id is None:
            return found
        inside = f"{activation_id}/"
        return {key: kept for key, kept in found.items() if key == activation_id or key.startswith(inside)}

    def keys(self, activation_id: str) -> Sequence[str]:
        """Return the keys of all records of one activation."""
        if self.log is None:
            return ()
        inside = f"{activation_id}/"
        start, prefix = f"{self.prefix}{inside}", self.prefix
        recorded = [key.removeprefix(prefix) for key in self.log.records if key.startswith(start)]
        return list(dict.fromkeys([*recorded, *(key for key in self.carried if key.startswith(inside))]))

    def steps_before(self, activation_id: str, *, is_entered_again: bool) -> Sequence[str]:
        """Return the keys of an activation's steps that an earlier attempt recorded.

        Records are carried only for an activation that was suspended and is entered again.
        """
        if self.log is None:
            return ()
        recorded = self.log.earlier_steps.get(f"{self.prefix}{activation_id}", ())
        keys = [key.removeprefix(self.prefix) for key in recorded]
        if is_entered_again:
            keys += [key for key in self.carried if key.startswith(f"{activation_id}{STEP}")]
        return keys

    def find_activation(self, activation_id: str, activation: Activation) -> ActivationResult | None:
        """Return the result of an activation that an earlier attempt finished."""
        found = self.find(activation_id)
        if found is None or self.log is None:
            return None
        return self.log.reader(found).activation(found.require_encoded().text, activation)

    def record_activations_soon(self, ended: Mapping[str, ActivationResult]) -> None:
        """Queue the results of activations by activation_id: all are recorded, or none."""
        log = self.log
        if log is None:
            return
        by_key = {f"{self.prefix}{activation_id}": result for activation_id, result in ended.items()}
        # Without this, each sibling that appends to a long value would write the whole value again.
        before = log.head_snapshot
        stored = None if before is None else {key: stored_of(each, before) for key, each in by_key.items()}
        log.record_soon({key: partial(activation_record, result, log.codec) for key, result in by_key.items()}, stored)

    def child(self) -> Snapshot | None:
        """Return the sub-workflow as an earlier attempt left it."""
        found = self.find(_CHILD)
        if found is None or self.log is None:
            return None
        return self.log.reader(found).snapshot(found.require_encoded().text)

    def record_child_soon(self, snapshot: Snapshot, events: Sequence[PendingEvent]) -> None:
        """Queue a sub-workflow after one of its supersteps. Events come first, so that a snapshot never lacks them."""
        if self.log is not None:
            codec = self.log.codec
            self.record_soon(f"{_CHILD_EVENTS}{snapshot.iteration}", lambda: events_record(events, codec))
            self.record_soon(_CHILD, lambda: snapshot_record(snapshot, codec))

    def child_events(self) -> Sequence[PendingEvent]:
        """Return the recorded events of a sub-workflow's supersteps, in order."""
        reached = self.child()
        if reached is None or self.log is None:
            return ()
        found = [self.find(f"{_CHILD_EVENTS}{number}") for number in range(reached.iteration + 1)]
        return [
            event
            for kept in found
            if kept is not None
            for event in self.log.reader(kept).events(kept.require_encoded().text)
        ]

    async def settle(self) -> None:
        """Wait until all queued records are written, even if the waiting task is cancelled."""
        if self.log is not None:
            await self.log.settle()
