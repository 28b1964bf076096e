"""Where a run's checkpoints go: one commit after another, each on top of the last."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from perdure.checkpoint import EventWriter
from perdure.codec import loads, plain
from perdure.engine.journal import TRACE, NoJournal, RunJournal
from perdure.errors import AgentFrameworkException, CheckpointWriteError
from perdure.events import CheckpointInfo
from perdure.records import Commit
from perdure.storage import reads_at_once
from perdure.tracing import NO_SPAN, traced

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure.checkpoint import Writer
    from perdure.clock import Clock
    from perdure.codec import Codec
    from perdure.engine.blueprint import Blueprint
    from perdure.engine.journal import Journal
    from perdure.engine.opening import Tenure
    from perdure.kernel import PendingEvent, Snapshot
    from perdure.records import Claim, Command, HeadStatus, Manifest, Part
    from perdure.storage import Binding, Store
    from perdure.tracing import Span


class Ledger(Protocol):
    """Takes a snapshot after each superstep."""

    waiting: int
    """After a commit: the number of the newest command in the inbox, 0 if none waits."""
    commands: Sequence[Command] | None
    """What was in the inbox when the journal was read; None if that is not known, or not any more."""

    async def open(self) -> Journal:
        """The journal of the superstep in progress, with what an earlier life has noted."""
        ...

    async def commit(
        self,
        snapshot: Snapshot,
        kind: str,
        *,
        told: Sequence[PendingEvent] = (),
        consumed: tuple[str, ...] = (),
        done: tuple[str, ...] = (),
    ) -> CheckpointInfo | None:
        """Make the snapshot durable, with what it tells and the commands that it has used up or done the work of.

        None where nothing is checkpointed. Raises CommandWaitsError if one of `done` waits in the inbox.
        """
        ...


class NoLedger:
    """For runs that are not checkpointed."""

    waiting = 0
    commands: Sequence[Command] | None = None

    async def open(self) -> Journal:
        """Nothing is noted."""
        return NoJournal()

    async def commit(
        self,
        snapshot: Snapshot,
        kind: str,
        *,
        told: Sequence[PendingEvent] = (),
        consumed: tuple[str, ...] = (),
        done: tuple[str, ...] = (),
    ) -> CheckpointInfo | None:
        """Keep nothing."""
        del snapshot, kind, told, consumed, done
        return None


class StoreLedger:
    """Commits to a store under a claim."""

    def __init__(
        self,
        *,
        store: Store,
        claim: Claim,
        codec: Codec,
        clock: Clock,
        writer: Writer,
        position: int,
        head: Manifest | None,
        span: Span = NO_SPAN,
    ) -> None:
        self._store = store
        self._clock = clock
        self._writer = writer
        self._journal = RunJournal(store, claim, codec)
        self._events = EventWriter(codec)
        self.waiting = 0
        self.commands: Sequence[Command] | None = None
        self._span = span
        self._has_committed = False
        self.position = position
        self.claim = claim
        self.head = head

    @classmethod
    def of(cls, blueprint: Blueprint, binding: Binding, tenure: Tenure, *, span: Span = NO_SPAN) -> StoreLedger:
        """The ledger of a run that was found and claimed."""
        assert tenure.claim is not None, "a stored run is claimed before it is written"
        return cls(
            store=binding.store,
            claim=tenure.claim,
            codec=binding.codec,
            clock=blueprint.clock,
            writer=tenure.writer_of(blueprint, binding),
            position=tenure.position,
            head=tenure.head,
            span=span,
        )

    async def open(self) -> Journal:
        """The journal since the head. Right after a commit there is nothing to read in it."""
        if self.head is None:
            return NoJournal()
        if not self._has_committed:
            await self._read(self.head.checkpoint_id)
            self._link_lives()
        return self._journal.under("", {})

    async def _read(self, head: str) -> None:
        """Read what there is since the head."""
        if not reads_at_once(self._store):
            await self._journal.open(head, self._writer.standing)
            return
        since = await self._store.since_head(self.run_id)
        self.commands = since.inbox
        await self._journal.open(head, self._writer.standing, records=since.journal)

    def _link_lives(self) -> None:
        """Link to the life that has recorded since the head, and let the next one link to this."""
        found = self._journal.entries.get(TRACE)
        if found is not None:
            self._span.link(str(loads(found.require_encoded().text)))
        traceparent = self._span.traceparent
        if traceparent is not None:
            self._journal.note(TRACE, lambda: plain(traceparent))

    @property
    def run_id(self) -> str:
        """The run that is written."""
        return self.claim.run_id

    async def commit(
        self,
        snapshot: Snapshot,
        kind: str,
        *,
        told: Sequence[PendingEvent] = (),
        consumed: tuple[str, ...] = (),
        done: tuple[str, ...] = (),
    ) -> CheckpointInfo | None:
        """Write the checkpoint and move the head, or raise and change nothing."""
        manifest, parts = self._written(snapshot, kind)
        info = _info(manifest)
        commit = Commit(
            manifest,
            parts,
            manifest.previous_id,
            snapshot.is_settled,
            status_of(snapshot),
            snapshot.wake_at,
            consumed,
            done,
            self._events.batch(told, requests=snapshot.requests, checkpoint=info),
        )
        if self._span is NO_SPAN:
            await self._commit(commit)
        else:
            with traced(self._span.child("perdure.commit", run_id=self.run_id, checkpoint_id=info.checkpoint_id)):
                await self._commit(commit)
            self._span.stands_at(info.checkpoint_id)
        return info

    def _written(self, snapshot: Snapshot, kind: str) -> tuple[Manifest, tuple[Part, ...]]:
        return self._writer.write(
            snapshot,
            position=self.position + 1,
            previous_id=self.head.checkpoint_id if self.head else None,
            timestamp=self._timestamp(),
            kind=kind,
            trace=self._span.traceparent,
        )

    async def _commit(self, commit: Commit) -> None:
        try:
            self.waiting = await self._store.commit(self.claim, commit)
        except AgentFrameworkException:
            raise
        except Exception as error:
            raise CheckpointWriteError(run_id=self.run_id, reason=f"{type(error).__name__}: {error}") from error
        self._writer.stand(commit.manifest)
        self.head = commit.manifest
        self._has_committed = True
        self.commands = None
        self._journal.move(commit.manifest.checkpoint_id, self._writer.standing)
        self.position = commit.manifest.position

    def _timestamp(self) -> str:
        """The time, but never before that of the predecessor: a clock that was set back must not reorder a run."""
        now = self._clock.now().isoformat()
        return max(now, self.head.timestamp) if self.head else now


def _info(manifest: Manifest) -> CheckpointInfo:
    return CheckpointInfo(
        manifest.checkpoint_id,
        manifest.previous_id,
        manifest.run_id,
        manifest.workflow_name,
        manifest.iteration_count,
        manifest.timestamp,
    )


def status_of(snapshot: Snapshot) -> HeadStatus:
    """What a snapshot leaves to do."""
    if snapshot.cancelled is not None:
        return "cancelled"
    if not snapshot.is_idle:
        return "running"
    if snapshot.requests:
        return "waiting"
    return "idle" if snapshot.next_timer is None else "sleeping"
