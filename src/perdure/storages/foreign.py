"""Any user's object with the six methods as a store, without claims: whoever writes last has written.

A checkpoint that is handed to it has the documented fields, and in `metadata["perdure"]` all that they can't express,
as plain JSON data.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from perdure.checkpoint.codec import references
from perdure.checkpoint.record import StoredCheckpoint, WorkflowCheckpoint
from perdure.errors import CheckpointNotFoundError, StaleHeadError, WorkflowCheckpointException
from perdure.records import Claim, Manifest, Owner, RunRecord
from perdure.storages.shipped import saved_manifest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from perdure.checkpoint.codec import Codec
    from perdure.records import Commit, NewRun
    from perdure.storages.protocol import CheckpointStorage

ENVELOPE = "perdure"
_NOBODY = Owner("", "", "", 0)


class ForeignStore:
    """The storage port over the six methods, for the runs of one workflow."""

    def __init__(self, storage: CheckpointStorage, *, workflow_name: str, codec: Codec) -> None:
        self._storage = storage
        self._workflow_name = workflow_name
        self._codec = codec
        self._parts: dict[str, bytes] = {}
        self._begun: dict[str, NewRun] = {}

    @property
    def place(self) -> str:
        """The object itself."""
        return f"object:{id(self._storage)}"

    async def claim(self, run_id: str, *, create: NewRun | None = None, takeover: bool = False) -> Claim:
        """There are no claims here: everybody has one."""
        del takeover
        if create is not None:
            self._begun.setdefault(run_id, create)
        return Claim(run_id, 0, _NOBODY)

    async def release(self, claim: Claim) -> None:
        """Nothing was claimed."""

    async def commit(self, claim: Claim, commit: Commit) -> None:
        """Save the checkpoint, if the head is still what the caller thinks."""
        record = await self.run(claim.run_id)
        head = None if record is None else record.head
        if head != commit.expected_head:
            raise StaleHeadError(claim.run_id, expected=commit.expected_head, head=head)
        self._parts.update((part.hash, part.data) for part in commit.parts)
        await self._storage.save(self._opened(commit.manifest, settled=commit.settled))

    def _opened(self, manifest: Manifest, *, settled: bool) -> WorkflowCheckpoint:
        stored = StoredCheckpoint(manifest, self.read_parts, lambda: self._codec)
        begun = self._begun.get(manifest.run_id)
        envelope = {
            "manifest": {
                "position": manifest.position,
                "header": manifest.header.decode("utf-8", "surrogatepass"),
                "toc": dict(manifest.toc),
            },
            "parts": {key: base64.b64encode(data).decode() for key, data in stored.parts().items()},
            "settled": settled,
            "nonce": begun.nonce if begun else manifest.run_id,
            "input_digest": begun.input_digest if begun else None,
            "parent": begun.parent_checkpoint_id if begun else None,
        }
        fields = stored.to_dict()
        fields["metadata"] = {**stored.metadata, ENVELOPE: envelope}
        return WorkflowCheckpoint(**fields)

    async def rewind(self, claim: Claim, *, expected_head: str, to: str, nonce: str) -> None:
        """Not with six methods."""
        del claim, expected_head, to, nonce
        raise WorkflowCheckpointException(
            "a storage of your own with the six methods can't move a run back; use fork, or a shipped storage"
        )

    async def run(self, run_id: str) -> RunRecord | None:
        """What the checkpoints of the workflow tell of a run."""
        mine = [m for m in await self._all() if m.run_id == run_id]
        begun = self._begun.get(run_id)
        if not mine:
            if begun is None or begun.parent_checkpoint_id is None:
                return None
            return RunRecord(
                run_id=run_id,
                workflow_name=begun.workflow_name,
                created_at=begun.created_at,
                nonce=begun.nonce,
                input_digest=begun.input_digest,
                parent_checkpoint_id=begun.parent_checkpoint_id,
                head=begun.parent_checkpoint_id,
                position=-1,
                settled=False,
                owner=None,
            )
        newest = max(mine, key=_position)
        envelope = newest.metadata.get(ENVELOPE, {})
        return RunRecord(
            run_id=run_id,
            workflow_name=newest.workflow_name,
            created_at=min(m.timestamp for m in mine),
            nonce=envelope.get("nonce", run_id),
            input_digest=envelope.get("input_digest"),
            parent_checkpoint_id=envelope.get("parent"),
            head=newest.checkpoint_id,
            position=_position(newest),
            settled=envelope.get("settled", False),
            owner=None,
        )

    async def manifest(self, checkpoint_id: str) -> Manifest:
        """One checkpoint."""
        try:
            checkpoint = await self._storage.load(checkpoint_id)
        except WorkflowCheckpointException:
            raise
        except Exception as error:
            raise CheckpointNotFoundError(checkpoint_id) from error
        return self._manifest(checkpoint)

    def _manifest(self, checkpoint: WorkflowCheckpoint) -> Manifest:
        envelope = checkpoint.metadata.get(ENVELOPE)
        if envelope is None:
            manifest, parts = saved_manifest(checkpoint, self._codec)
            self._parts.update((part.hash, part.data) for part in parts)
            return manifest
        self._parts.update((key, base64.b64decode(data)) for key, data in envelope["parts"].items())
        kept = envelope["manifest"]
        return Manifest(
            checkpoint_id=checkpoint.checkpoint_id,
            run_id=checkpoint.run_id,
            workflow_name=checkpoint.workflow_name,
            position=kept["position"],
            previous_id=checkpoint.previous_checkpoint_id,
            timestamp=checkpoint.timestamp,
            iteration_count=checkpoint.iteration_count,
            header=kept["header"].encode("utf-8", "surrogatepass"),
            toc=kept["toc"],
        )

    async def manifests(self, *, workflow_name: str | None = None, run_id: str | None = None) -> Sequence[Manifest]:
        """The checkpoints of the workflow, by run and position."""
        del workflow_name
        found = sorted(await self._all(), key=lambda m: (m.timestamp, _position(m)))
        return [self._manifest(m) for m in found if run_id is None or m.run_id == run_id]

    async def ids(self, *, workflow_name: str | None = None) -> Sequence[str]:
        """Their ids."""
        return [m.checkpoint_id for m in await self.manifests(workflow_name=workflow_name)]

    async def latest(self, *, workflow_name: str) -> Manifest | None:
        """The newest, as the storage tells it."""
        checkpoint = await self._storage.get_latest(workflow_name=workflow_name)
        return None if checkpoint is None else self._manifest(checkpoint)

    async def parts(self, roots: Iterable[str]) -> Mapping[str, bytes]:
        """The parts that were read or written so far."""
        return self.read_parts(roots)

    def read_parts(self, roots: Iterable[str]) -> Mapping[str, bytes]:
        """The same."""
        found: dict[str, bytes] = {}
        frontier = list(roots)
        while frontier:
            key = frontier.pop()
            data = self._parts.get(key)
            if data is not None and key not in found:
                found[key] = data
                frontier.extend(references(data))
        return found

    async def delete(self, checkpoint_id: str) -> bool:
        """Forget a checkpoint."""
        return await self._storage.delete(checkpoint_id)

    async def collect(self) -> int:
        """Each checkpoint is whole: there is nothing to collect."""
        return 0

    async def close(self) -> None:
        """The storage is the user's."""

    async def _all(self) -> Sequence[WorkflowCheckpoint]:
        return await self._storage.list_checkpoints(workflow_name=self._workflow_name)


def _position(checkpoint: WorkflowCheckpoint) -> int:
    envelope: dict[str, Any] = checkpoint.metadata.get(ENVELOPE, {})
    return envelope.get("manifest", {}).get("position", checkpoint.iteration_count)
