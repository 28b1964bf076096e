"""The journal of the superstep in progress: what has finished is noted, a resumed superstep runs only the rest."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

from perdure.checkpoint import JournalReader, JournalWriter, stored_of
from perdure.codec import Encoded, Kept, as_kept, with_parts
from perdure.errors import AgentFrameworkException, CheckpointWriteError, EncodeError
from perdure.records import JournalRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from perdure.codec import Codec
    from perdure.events import CheckpointInfo
    from perdure.kernel import Activation, ActivationResult, PendingEvent, Snapshot
    from perdure.records import Claim, Command
    from perdure.storage import Store

logger = logging.getLogger(__name__)

_NOTHING: Mapping[str, Collection[str]] = MappingProxyType({})
_CHILD = "child"
TRACE = "trace"
"""The span of the life that has written since the head."""
_CHILD_TOLD = "child/told/"
STEP = "/step/"
"""In a key: between the home of an activation and a step of it."""


class Journal(Protocol):
    """What a superstep can note down and find again, by key.

    The key of an activation is its home; what is recorded inside of it has keys that begin with its home and a slash.
    """

    @property
    def is_empty(self) -> bool:
        """Whether there is certainly nothing to be found."""
        ...

    def under(self, prefix: str, carried: Mapping[str, object]) -> Journal:
        """The part of the journal whose keys begin with a prefix, and records that a snapshot has carried so far."""
        ...

    def find(self, key: str) -> Kept | None:
        """A record of this life or of an earlier one."""
        ...

    def note(self, key: str, encode: Callable[[], Encoded]) -> None:
        """Keep a record. Nobody waits for it."""
        ...

    async def put(self, key: str, encoded: Encoded, *, is_progress: bool = True) -> None:
        """Keep a record; it is synced when this returns. What only says that something begins is no progress.

        Raises CheckpointWriteError, ClaimLostError.
        """
        ...

    def records(self, home: str | None = None) -> Mapping[str, Kept]:
        """All records, or those of one activation, with their parts, for a snapshot to carry."""
        ...

    def steps_before(self, home: str, *, is_entered_again: bool) -> Sequence[str]:
        """The keys of an activation's steps that an earlier life has recorded, or that were carried since it was left.

        Only of one that is entered again anything was carried.
        """
        ...

    def done(self, home: str, activation: Activation) -> ActivationResult | None:
        """An activation that an earlier life has finished."""
        ...

    def keep(self, finished: Mapping[str, ActivationResult]) -> None:
        """Note activations that have finished, by home, all of them or none. Nobody waits for it."""
        ...

    def child(self) -> Snapshot | None:
        """A sub-workflow as an earlier life has left it."""
        ...

    def keep_child(self, snapshot: Snapshot, told: Sequence[PendingEvent]) -> None:
        """Note a sub-workflow after one of its supersteps, and what that told. Nobody waits for it."""
        ...

    def child_told(self) -> Sequence[PendingEvent]:
        """What the supersteps of a sub-workflow told that an earlier life has noted, in order."""
        ...

    async def settle(self) -> None:
        """Wait until all that was noted is written."""
        ...


class NoJournal:
    """Where nothing is checkpointed, nothing is noted."""

    is_empty = True

    def under(self, prefix: str, carried: Mapping[str, object]) -> Journal:
        """Nothing, too."""
        del prefix, carried
        return self

    def find(self, key: str) -> Kept | None:
        """Nothing."""
        del key
        return None

    def note(self, key: str, encode: Callable[[], Encoded]) -> None:
        """Forget it."""

    async def put(self, key: str, encoded: Encoded, *, is_progress: bool = True) -> None:
        """Forget it."""

    def records(self, home: str | None = None) -> Mapping[str, Kept]:
        """Nothing."""
        del home
        return {}

    def steps_before(self, home: str, *, is_entered_again: bool) -> Sequence[str]:
        """None."""
        del home, is_entered_again
        return ()

    def done(self, home: str, activation: Activation) -> ActivationResult | None:
        """Nothing."""
        del home, activation
        return None

    def keep(self, finished: Mapping[str, ActivationResult]) -> None:
        """Forget it."""

    def child(self) -> Snapshot | None:
        """Nothing."""
        return None

    def keep_child(self, snapshot: Snapshot, told: Sequence[PendingEvent]) -> None:
        """Forget it."""

    def child_told(self) -> Sequence[PendingEvent]:
        """Nothing."""
        return ()

    async def settle(self) -> None:
        """There is nothing to wait for."""


class RunJournal:
    """The journal of a run since its head, in a store."""

    def __init__(self, store: Store, claim: Claim, codec: Codec) -> None:
        self._store = store
        self._claim = claim
        self.codec = codec
        self.writer = JournalWriter(codec)
        self.entries: dict[str, Kept] = {}
        self.steps_before: dict[str, list[str]] = {}
        """By activation: the keys of the steps that an earlier life has recorded."""
        self._head: str | None = None
        self.before: Snapshot | None = None
        """What the head was made of, if that is known."""
        self._noted: list[JournalRecord] = []
        """What the store was not given yet."""
        self._writing: asyncio.Task[None] | None = None

    async def open(
        self, head: str, before: Snapshot | None = None, *, records: Sequence[JournalRecord] | None = None
    ) -> None:
        """Take over what an earlier life has finished since the head. Its records may be read already."""
        self._head, self.before = head, before
        if records is None:
            records = await self._store.journal(self._claim.run_id)
        refs = [ref for record in records for ref in record.refs]
        parts: Mapping[str, bytes] = await self._store.parts(refs) if refs else {}
        self.entries = {
            record.key: Kept(
                path=f"record {record.key!r}",
                encoded=Encoded(record.data, (), record.refs, immutable=False),
                stored=parts,
                checkpoint_id=head,
            )
            for record in records
        }
        self.steps_before = {}
        for key in self.entries:
            home, mark, _ = key.partition(STEP)
            if mark:
                self.steps_before.setdefault(home, []).append(key)

    def move(self, head: str, before: Snapshot | None = None) -> None:
        """The head has moved: what was noted is void."""
        self._head, self.before = head, before
        self.entries = {}
        self.steps_before = {}
        self._noted = []

    @property
    def is_empty(self) -> bool:
        """Whether neither an earlier life has recorded anything, nor this one since the head."""
        return not self.entries

    def under(self, prefix: str, carried: Mapping[str, object]) -> Journal:
        """The part of the journal whose keys begin with a prefix."""
        return _JournalPart(self, prefix, carried)

    def reader(self, kept: Kept) -> JournalReader:
        """What reads a record."""
        stored = kept.stored
        if stored is None:
            stored = {part.hash: part.data for part in kept.require_encoded().parts}
        return JournalReader(self.codec, stored, self._head or "")

    def note(self, key: str, encode: Callable[[], Encoded]) -> None:
        """Hand a record to the store without waiting for it."""
        self.note_all({key: encode})

    def note_all(
        self, encoders: Mapping[str, Callable[[], Encoded]], stored: Mapping[str, Collection[str]] = _NOTHING
    ) -> None:
        """Hand records to the store, which keeps all of them or none, without waiting for it.

        `stored` are parts that the head has, by the key of a record which does not bring them: the head is there as
        long as the record.
        """
        try:
            encoded = {key: encode() for key, encode in encoders.items()}
        except EncodeError:
            # It can't be committed either, and the commit says why.
            return
        self._noted += [self._entered(key, each, stored.get(key)) for key, each in encoded.items()]
        if self._writing is None or self._writing.done():
            self._writing = asyncio.ensure_future(self._write_noted())

    def _entered(self, key: str, encoded: Encoded, stored: Collection[str] | None = None) -> JournalRecord:
        self.entries[key] = Kept(path=f"record {key!r}", encoded=encoded, checkpoint_id=self._head or "")
        parts = tuple(encoded.beyond(stored.__contains__)) if stored else encoded.parts
        return JournalRecord(key, encoded.text, encoded.refs, parts, is_progress=key != TRACE)

    async def _write_noted(self) -> None:
        """Write what was noted. What many have noted until the store has time for it is one write."""
        while self._noted:
            records, self._noted = self._noted, []
            try:
                await self._store.record(self._claim, head=self._head, records=records, durable=False)
            except Exception as error:  # noqa: BLE001 - the commit that follows says it to the user, or makes it void
                logger.warning("run %r: what has finished could not be noted: %s", self._claim.run_id, error)

    async def put(self, key: str, encoded: Encoded, *, is_progress: bool = True) -> None:
        """Write a record and wait until it is synced."""
        record = JournalRecord(key, encoded.text, encoded.refs, encoded.parts, is_progress)
        try:
            await self._store.record(self._claim, head=self._head, records=[record])
        except AgentFrameworkException:
            raise
        except Exception as error:
            raise CheckpointWriteError(run_id=self._claim.run_id, reason=f"{type(error).__name__}: {error}") from error
        self._entered(key, encoded)

    async def settle(self) -> None:
        """Wait until all that was noted is written, however often that is interrupted."""
        interruption: asyncio.CancelledError | None = None
        while self._writing is not None and not self._writing.done():
            try:
                await asyncio.wait([self._writing])
            except asyncio.CancelledError as error:
                interruption = error
        if interruption is not None:
            raise interruption


class _JournalPart:
    """Keys of a journal that begin with a prefix, and records that a snapshot has carried."""

    def __init__(self, journal: RunJournal, prefix: str, carried: Mapping[str, object]) -> None:
        self._journal = journal
        self._prefix = prefix
        self._carried = carried

    @property
    def is_empty(self) -> bool:
        """Whether nothing was carried, and nothing is recorded, under whichever prefix."""
        return not self._carried and self._journal.is_empty

    def under(self, prefix: str, carried: Mapping[str, object]) -> Journal:
        """A part of the part: what was carried of it, and what its own snapshot has carried since."""
        inner = (
            {key.removeprefix(prefix): value for key, value in self._carried.items() if key.startswith(prefix)}
            if self._carried and prefix
            else {}
        )
        return _JournalPart(self._journal, f"{self._prefix}{prefix}", {**inner, **carried})

    def find(self, key: str) -> Kept | None:
        """A record; one of this superstep before one that was carried."""
        found = self._journal.entries.get(f"{self._prefix}{key}")
        if found is None and key in self._carried:
            return as_kept(self._carried[key])
        return found

    def note(self, key: str, encode: Callable[[], Encoded]) -> None:
        """Keep a record without waiting."""
        self._journal.note(f"{self._prefix}{key}", encode)

    async def put(self, key: str, encoded: Encoded, *, is_progress: bool = True) -> None:
        """Keep a record, synced."""
        await self._journal.put(f"{self._prefix}{key}", encoded, is_progress=is_progress)

    def records(self, home: str | None = None) -> Mapping[str, Kept]:
        """All records, or those of one activation, with their parts."""
        found = {key: as_kept(value) for key, value in self._carried.items()}
        for key, kept in self._journal.entries.items():
            if key.startswith(self._prefix) and key != TRACE:
                found[key.removeprefix(self._prefix)] = _with_parts(kept)
        return {key: kept for key, kept in found.items() if home is None or key == home or key.startswith(f"{home}/")}

    def steps_before(self, home: str, *, is_entered_again: bool) -> Sequence[str]:
        """The keys of an activation's steps that an earlier life has recorded, or that were carried since it was left.

        Only of one that is entered again anything was carried.
        """
        recorded = self._journal.steps_before.get(f"{self._prefix}{home}", ()) if self._journal.steps_before else ()
        carried = [key for key in self._carried if key.startswith(f"{home}{STEP}")] if is_entered_again else ()
        return [*(key.removeprefix(self._prefix) for key in recorded), *carried] if recorded or carried else ()

    def done(self, home: str, activation: Activation) -> ActivationResult | None:
        """An activation that an earlier life has finished."""
        found = self.find(home)
        if found is None:
            return None
        return self._journal.reader(found).done(found.require_encoded().text, activation)

    def keep(self, finished: Mapping[str, ActivationResult]) -> None:
        """Note activations that have finished, all of them or none."""
        encode, before = self._journal.writer.done, self._journal.before
        by_key = {f"{self._prefix}{home}": done for home, done in finished.items()}
        # Of siblings that add to long values each record would have all of them, with every superstep.
        stored = {} if before is None else {key: stored_of(done, before) for key, done in by_key.items()}
        self._journal.note_all({key: partial(encode, done) for key, done in by_key.items()}, stored)

    def child(self) -> Snapshot | None:
        """A sub-workflow as an earlier life has left it."""
        found = self.find(_CHILD)
        return None if found is None else self._journal.reader(found).snapshot(found.require_encoded().text)

    def keep_child(self, snapshot: Snapshot, told: Sequence[PendingEvent]) -> None:
        """Note a sub-workflow after one of its supersteps; first what it told, so that a snapshot never lacks it."""
        self.note(f"{_CHILD_TOLD}{snapshot.iteration}", lambda: self._journal.writer.told(told))
        self.note(_CHILD, lambda: self._journal.writer.snapshot(snapshot))

    def child_told(self) -> Sequence[PendingEvent]:
        """What the supersteps of a sub-workflow told, up to the snapshot that is noted."""
        reached = self.child()
        if reached is None:
            return ()
        found = ((number, self.find(f"{_CHILD_TOLD}{number}")) for number in range(reached.iteration + 1))
        return [
            told
            for _, kept in found
            if kept is not None
            for told in self._journal.reader(kept).told(kept.require_encoded().text)
        ]

    async def settle(self) -> None:
        """Wait until all that was noted is written."""
        await self._journal.settle()


def _with_parts(kept: Kept) -> Kept:
    """A record of a journal that a checkpoint takes over: the parts have to come with it."""
    encoded = kept.require_encoded()
    if kept.stored is None or not encoded.refs:
        return kept
    whole = Encoded(encoded.text, with_parts(encoded.refs, kept.stored), encoded.refs, immutable=False)
    return Kept(path=kept.path, encoded=whole, checkpoint_id=kept.checkpoint_id)


class ChildLedger:
    """The ledger of a sub-workflow: each of its supersteps is a record in the journal of its parent."""

    waiting = 0
    commands: Sequence[Command] | None = None

    def __init__(self, journal: Journal, tell: Callable[[PendingEvent], None]) -> None:
        self.journal = journal
        self._tell = tell

    async def open(self) -> Journal:
        """The part of the parent's journal that is about this child. What an earlier life told is told on."""
        for each in self.journal.child_told():
            self._tell(each)
        return self.journal

    async def commit(
        self,
        snapshot: Snapshot,
        kind: str,
        *,
        told: Sequence[PendingEvent] = (),
        consumed: tuple[str, ...] = (),
        done: tuple[str, ...] = (),
    ) -> CheckpointInfo | None:
        """Note the child; its parent's commit absorbs it."""
        del kind, consumed, done
        # There is no checkpoint but the parent's.
        told = [each for each in told if each.type != "checkpoint"]
        self.journal.keep_child(snapshot, told)
        for each in told:
            self._tell(each)
        return None
