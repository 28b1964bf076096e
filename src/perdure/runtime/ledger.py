"""Where a run's checkpoints go: one commit after another, each on top of the last."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from perdure.checkpoint.manifest import Identity, Writer
from perdure.errors import AgentFrameworkException, CheckpointWriteError
from perdure.events import CheckpointInfo
from perdure.records import Commit
from perdure.runtime.journal import NoJournal, RunJournal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from perdure.checkpoint.codec import Codec
    from perdure.clock import Clock
    from perdure.kernel.snapshot import Snapshot
    from perdure.records import Claim, Manifest, NewRun
    from perdure.runtime.blueprint import Blueprint
    from perdure.runtime.journal import Journal
    from perdure.runtime.opening import Tenure
    from perdure.storages.binding import Binding
    from perdure.stores.port import Store


class Ledger(Protocol):
    """Takes a snapshot after each superstep."""

    async def open(self) -> Journal:
        """The journal of the superstep in progress, with what an earlier life has noted."""
        ...

    async def commit(self, snapshot: Snapshot, kind: str) -> CheckpointInfo | None:
        """Make the snapshot durable; None where nothing is checkpointed."""
        ...


class NoLedger:
    """For runs that are not checkpointed."""

    async def open(self) -> Journal:
        """Nothing is noted."""
        return NoJournal()

    async def commit(self, snapshot: Snapshot, kind: str) -> CheckpointInfo | None:
        """Keep nothing."""
        del snapshot, kind
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
        graph: Mapping[str, Any],
        signature_hash: str,
        version: int,
        origin: NewRun,
        position: int,
        head: Manifest | None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._writer = Writer(codec, graph)
        self._journal = RunJournal(store, claim, codec)
        self._has_committed = False
        self._signature_hash = signature_hash
        self._version = version
        self._origin = origin
        self.position = position
        self.claim = claim
        self.head = head

    @classmethod
    def of(cls, blueprint: Blueprint, binding: Binding, tenure: Tenure) -> StoreLedger:
        """The ledger of a run that was found and claimed."""
        assert tenure.claim is not None, "a stored run is claimed before it is written"
        return cls(
            store=binding.store,
            claim=tenure.claim,
            codec=binding.codec,
            clock=blueprint.clock,
            graph=blueprint.document,
            signature_hash=blueprint.signature_hash,
            version=blueprint.graph.rules.version,
            origin=tenure.origin,
            position=tenure.position,
            head=tenure.head,
        )

    async def open(self) -> Journal:
        """The journal since the head. Right after a commit there is nothing to read in it."""
        if self.head is None:
            return NoJournal()
        if not self._has_committed:
            await self._journal.open(self.head.checkpoint_id)
        return self._journal.under("")

    @property
    def run_id(self) -> str:
        """The run that is written."""
        return self.claim.run_id

    async def commit(self, snapshot: Snapshot, kind: str) -> CheckpointInfo | None:
        """Write the checkpoint and move the head, or raise and change nothing."""
        manifest, parts = self._writer.write(snapshot, self._next(kind), self.head.toc if self.head else {})
        expected = self.head.checkpoint_id if self.head else None
        try:
            await self._store.commit(self.claim, Commit(manifest, parts, expected, snapshot.is_settled))
        except AgentFrameworkException:
            raise
        except Exception as error:
            raise CheckpointWriteError(run_id=self.run_id, reason=f"{type(error).__name__}: {error}") from error
        self.head = manifest
        self._has_committed = True
        self._journal.move(manifest.checkpoint_id)
        self.position = manifest.position
        return CheckpointInfo(
            manifest.checkpoint_id,
            manifest.previous_id,
            manifest.run_id,
            manifest.workflow_name,
            manifest.iteration_count,
            manifest.timestamp,
        )

    def _next(self, kind: str) -> Identity:
        position = self.position + 1
        return Identity(
            checkpoint_id=f"{self.run_id}@{position}",
            run_id=self.run_id,
            # A run keeps the name that it began under, whatever the workflow that goes on with it is called.
            workflow_name=self._origin.workflow_name,
            position=position,
            previous_id=self.head.checkpoint_id if self.head else None,
            timestamp=self._timestamp(),
            kind=kind,
            graph_signature_hash=self._signature_hash,
            definition_version=self._version,
            origin=self._origin,
        )

    def _timestamp(self) -> str:
        """The time, but never before that of the predecessor: a clock that was set back must not reorder a run."""
        now = self._clock.now().isoformat()
        return max(now, self.head.timestamp) if self.head else now
