"""What a store on a backend is asked for and does not change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from perdure.records import SinceHead, WholeCheckpoint
from perdure.storage.backend import Backend
from perdure.storage.ids import require_checkpoint_id, require_run_id

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from perdure.records import Command, EventBatch, JournalRecord, Manifest, RunRecord, RunStatus
    from perdure.storage.backend import Doer

B = TypeVar("B", bound=Backend)


class Reading(Generic[B]):
    """Runs, inboxes, journals, events, checkpoints and parts as they are."""

    def __init__(self, doer: Doer[B]) -> None:
        self._doer = doer

    async def run(self, run_id: str) -> RunRecord | None:
        """What is known of a run."""
        require_run_id(run_id)
        return await self._doer.do(lambda backend: backend.run(run_id))

    async def runs(self, *, workflow_name: str | None = None, status: RunStatus | None = None) -> Sequence[RunRecord]:
        """The runs that are known, in the order in which they began."""
        return await self._doer.do(lambda backend: backend.runs(workflow_name=workflow_name, status=status))

    async def inbox(self, run_id: str) -> Sequence[Command]:
        """The commands that wait."""
        require_run_id(run_id)
        return await self._doer.do(lambda backend: backend.inbox(run_id))

    async def events(self, run_id: str, *, after: int = 0, limit: int = 1000) -> Sequence[EventBatch]:
        """What commits have told."""
        require_run_id(run_id)
        return await self._doer.do(lambda backend: backend.events(run_id, after=after, limit=limit))

    async def journal(self, run_id: str) -> Sequence[JournalRecord]:
        """The records since the run's present head."""
        require_run_id(run_id)
        return await self._doer.do(lambda backend: backend.journal(run_id))

    async def manifest(self, checkpoint_id: str) -> Manifest:
        """One checkpoint."""
        require_checkpoint_id(checkpoint_id)
        return await self._doer.do(lambda backend: backend.manifest(checkpoint_id))

    async def manifests(self, *, workflow_name: str | None = None, run_id: str | None = None) -> Sequence[Manifest]:
        """Checkpoints in commit order."""
        if run_id is not None:
            require_run_id(run_id)
        return await self._doer.do(lambda backend: backend.manifests(workflow_name=workflow_name, run_id=run_id))

    async def ids(self, *, workflow_name: str | None = None) -> Sequence[str]:
        """Their ids."""
        return await self._doer.do(lambda backend: backend.ids(workflow_name=workflow_name))

    async def latest(self, *, workflow_name: str) -> Manifest | None:
        """The newest commit of a workflow."""
        return await self._doer.do(lambda backend: backend.latest(workflow_name=workflow_name))

    async def parts(self, roots: Iterable[str]) -> Mapping[str, bytes]:
        """The bytes of these parts and of all that they refer to."""
        wanted = tuple(roots)
        return await self._doer.do(lambda backend: backend.parts(wanted))

    async def whole_checkpoint(self, checkpoint_id: str) -> WholeCheckpoint:
        """A checkpoint with its parts and its run."""
        require_checkpoint_id(checkpoint_id)

        def read(backend: B) -> WholeCheckpoint:
            manifest = backend.manifest(checkpoint_id)
            return WholeCheckpoint(manifest, backend.parts(manifest.roots), backend.run(manifest.run_id))

        return await self._doer.do(read)

    async def since_head(self, run_id: str) -> SinceHead:
        """The journal and the inbox of a run."""
        require_run_id(run_id)
        return await self._doer.do(lambda backend: SinceHead(backend.journal(run_id), backend.inbox(run_id)))

    def read_parts(self, roots: Iterable[str]) -> Mapping[str, bytes]:
        """The same, blocking."""
        wanted = tuple(roots)
        return self._doer.do_blocking(lambda backend: backend.parts(wanted))
