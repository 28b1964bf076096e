"""The journal of the superstep in progress: what has finished is noted, a resumed superstep runs only the rest."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Protocol

from perdure.checkpoint.journal import JournalReader, JournalWriter
from perdure.errors import EncodeError
from perdure.records import JournalRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from perdure.checkpoint.codec import Codec, Encoded
    from perdure.events import CheckpointInfo
    from perdure.kernel.effects import Activation, Done
    from perdure.kernel.snapshot import Snapshot
    from perdure.records import Claim
    from perdure.stores.port import Store

logger = logging.getLogger(__name__)


class Journal(Protocol):
    """What a superstep can note down and find again. `under` is the same journal for something inside of it."""

    def under(self, prefix: str) -> Journal:
        """The part of the journal whose keys begin with a prefix."""
        ...

    def done(self, activation: Activation) -> Done | None:
        """An activation that an earlier life has finished."""
        ...

    def keep(self, done: Done) -> None:
        """Note an activation that has finished. Nobody waits for it."""
        ...

    def child(self) -> Snapshot | None:
        """A sub-workflow as an earlier life has left it."""
        ...

    def keep_child(self, snapshot: Snapshot) -> None:
        """Note a sub-workflow after one of its supersteps. Nobody waits for it."""
        ...

    async def settle(self) -> None:
        """Wait until all that was noted is written."""
        ...


class NoJournal:
    """Where nothing is checkpointed, nothing is noted."""

    def under(self, prefix: str) -> Journal:
        """Nothing, too."""
        del prefix
        return self

    def done(self, activation: Activation) -> Done | None:
        """Nothing."""
        del activation
        return None

    def keep(self, done: Done) -> None:
        """Forget it."""

    def child(self) -> Snapshot | None:
        """Nothing."""
        return None

    def keep_child(self, snapshot: Snapshot) -> None:
        """Forget it."""

    async def settle(self) -> None:
        """There is nothing to wait for."""


class RunJournal:
    """The journal of a run since its head, in a store."""

    def __init__(self, store: Store, claim: Claim, codec: Codec) -> None:
        self._store = store
        self._claim = claim
        self._writer = JournalWriter(codec)
        self._codec = codec
        self._head: str | None = None
        self._entries: Mapping[str, JournalRecord] = {}
        self._reader: JournalReader | None = None
        self._writes: set[asyncio.Task[None]] = set()

    async def open(self, head: str) -> None:
        """Read what an earlier life has finished since the head."""
        self._head = head
        records = await self._store.journal(self._claim.run_id)
        self._entries = {record.key: record for record in records}
        if records:
            parts = await self._store.parts(ref for record in records for ref in record.refs)
            self._reader = JournalReader(self._codec, parts, head)

    def move(self, head: str) -> None:
        """The head has moved: what was noted is void."""
        self._head = head
        self._entries = {}

    def under(self, prefix: str) -> Journal:
        """The part of the journal whose keys begin with a prefix."""
        return _JournalPart(self, prefix)

    def data_of(self, key: str) -> bytes | None:
        """The bytes of a record."""
        record = self._entries.get(key)
        return None if record is None else record.data

    @property
    def reader(self) -> JournalReader:
        """What reads the records."""
        assert self._reader is not None, "there are records to read"
        return self._reader

    @property
    def writer(self) -> JournalWriter:
        """What writes records."""
        return self._writer

    def write(self, key: str, encode: Callable[[], Encoded]) -> None:
        """Hand a record to the store without waiting for it."""
        try:
            encoded = encode()
        except EncodeError:
            # Only a workflow that goes on without checkpoints gets here; it is told by the commit.
            return
        record = JournalRecord(key, encoded.text, encoded.refs, encoded.parts)
        task = asyncio.ensure_future(self._write(record))
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)

    async def _write(self, record: JournalRecord) -> None:
        try:
            await self._store.record(self._claim, head=self._head, records=[record], durable=False)
        except Exception as error:  # noqa: BLE001 - the commit that follows says it to the user, or makes it void
            logger.warning("run %r: what has finished could not be noted: %s", self._claim.run_id, error)

    async def settle(self) -> None:
        """Wait until all that was noted is written, however often that is interrupted."""
        interruption: asyncio.CancelledError | None = None
        while self._writes:
            try:
                await asyncio.wait(self._writes)
            except asyncio.CancelledError as error:
                interruption = error
        if interruption is not None:
            raise interruption


class _JournalPart:
    """Keys of a journal that begin with a prefix."""

    def __init__(self, journal: RunJournal, prefix: str) -> None:
        self._journal = journal
        self._prefix = prefix

    def under(self, prefix: str) -> Journal:
        """A part of the part."""
        return _JournalPart(self._journal, f"{self._prefix}{prefix}")

    def done(self, activation: Activation) -> Done | None:
        """An activation that an earlier life has finished."""
        data = self._journal.data_of(f"{self._prefix}{activation.key}")
        return None if data is None else self._journal.reader.done(data, activation)

    def keep(self, done: Done) -> None:
        """Note an activation that has finished."""
        key = f"{self._prefix}{done.effects.activation.key}"
        self._journal.write(key, lambda: self._journal.writer.done(done))

    def child(self) -> Snapshot | None:
        """A sub-workflow as an earlier life has left it."""
        data = self._journal.data_of(f"{self._prefix}child")
        return None if data is None else self._journal.reader.snapshot(data)

    def keep_child(self, snapshot: Snapshot) -> None:
        """Note a sub-workflow after one of its supersteps."""
        self._journal.write(f"{self._prefix}child", lambda: self._journal.writer.snapshot(snapshot))

    async def settle(self) -> None:
        """Wait until all that was noted is written."""
        await self._journal.settle()


class ChildLedger:
    """The ledger of a sub-workflow: each of its supersteps is a record in the journal of its parent."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal

    async def open(self) -> Journal:
        """The part of the parent's journal that is about this child."""
        return self.journal

    async def commit(self, snapshot: Snapshot, kind: str) -> CheckpointInfo | None:
        """Note the child; its parent's commit absorbs it."""
        del kind
        self.journal.keep_child(snapshot)
        return None
