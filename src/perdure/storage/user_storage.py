"""A store on top of a user's own storage with the six methods. It has no leases: the last writer wins.

A checkpoint that it saves has the documented fields, and in `metadata["perdure"]` the whole checkpoint as plain JSON
data. It reads a checkpoint from there, and from the fields only if the storage has lost the metadata.
"""

# ruff: noqa: ARG002 - much of the port can't be done with the six methods
from __future__ import annotations

import base64
import contextlib
import weakref
from collections import OrderedDict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from perdure.checkpoint import Source, StoredCheckpoint, WorkflowCheckpoint, is_settled, origin_of
from perdure.codec import Codec, DamagedPartError, loads, references
from perdure.data_classes import new_dict
from perdure.errors import CheckpointDamagedError, CheckpointNotFoundError, StaleHeadError, WorkflowCheckpointException
from perdure.records import (
    Command,
    Commit,
    EventBatch,
    Halt,
    JournalRecord,
    Lease,
    Manifest,
    Mark,
    NewRun,
    Owner,
    RunRecord,
    RunStatus,
)
from perdure.storage.checkpoint_storage import CheckpointStorage, saved_manifest
from perdure.storage.rules import new_state, reach

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


ENVELOPE = "perdure"
_NOBODY = Owner("", "", "", 0)
_RUNS_REMEMBERED_MAX = 256
# Number of checkpoints that keep their blobs in memory after they were read: values are needed soon, or never.
_CHECKPOINTS_READ_MAX = 16


@dataclass(slots=True)
class _RunMemory:
    """Origin of a run, and its newest checkpoint with all its blobs."""

    begun: NewRun | None = None
    head: Manifest | None = None
    blobs: Mapping[str, bytes] = field(default_factory=new_dict)


_Memory: TypeAlias = "OrderedDict[str, _RunMemory]"
"""The runs that this process used last, since the user's storage has no place for such data."""

_memories: dict[int, tuple[weakref.ref[object], _Memory]] = {}


def _memory_of(storage: object) -> _Memory:
    """Return the memory for a storage, which lives as long as it. By identity: a storage need not be hashable."""
    key = id(storage)
    known = _memories.get(key)
    if known is not None and known[0]() is storage:
        return known[1]
    memory: _Memory = OrderedDict()
    # An object with slots and without weak references has a memory for each store on top of it.
    with contextlib.suppress(TypeError):
        _memories[key] = (weakref.ref(storage, lambda _: _memories.pop(key, None)), memory)
    return memory


class ForeignStore:
    """The storage port over the six methods, for the runs of one workflow."""

    def __init__(self, storage: CheckpointStorage, *, workflow_name: str, codec: Codec) -> None:
        self._storage = storage
        self._workflow_name = workflow_name
        self._codec = codec
        self._memory = _memory_of(storage)
        self._read: OrderedDict[str, Mapping[str, bytes]] = OrderedDict()

    def _remembered(self, run_id: str) -> _RunMemory:
        found = self._memory.setdefault(run_id, _RunMemory())
        self._memory.move_to_end(run_id)
        if len(self._memory) > _RUNS_REMEMBERED_MAX:
            self._memory.popitem(last=False)
        return found

    @property
    def place(self) -> str:
        """Identify the user's object."""
        return f"object:{id(self._storage)}"

    async def acquire(
        self, run_id: str, *, create: NewRun | None = None, takeover: bool = False, token: int | None = None
    ) -> Lease:
        """Return a lease without a meaning: everybody gets one."""
        if create is not None:
            self._remembered(run_id).begun = create
        return Lease(run_id, 0, _NOBODY)

    async def release(self, lease: Lease, *, halt: Halt | None = None) -> None:
        """Do nothing, since there are no leases."""

    async def commit(self, lease: Lease, commit: Commit) -> int:
        """Save the checkpoint, if the head is the expected one."""
        record = await self.run(lease.run_id)
        head = None if record is None else record.head
        if head != commit.expected_head:
            raise StaleHeadError(lease.run_id, expected=commit.expected_head, head=head)
        blobs = await self._all_blobs(commit)
        await self._storage.save(self._encode(commit.manifest, blobs))
        remembered = self._remembered(lease.run_id)
        remembered.head, remembered.blobs = commit.manifest, blobs
        return 0

    async def _all_blobs(self, commit: Commit) -> Mapping[str, bytes]:
        """Return all blobs of a checkpoint: the new ones, and those of its predecessor."""
        new = {blob.hash: blob.data for blob in commit.blobs}
        known = {**self._remembered(commit.manifest.run_id).blobs, **new}
        blobs, is_missing = _closure(commit.manifest.roots, known)
        if is_missing and commit.expected_head is not None:
            before = await self.manifest(commit.expected_head)
            known |= self.read_blobs(before.roots)
            blobs, is_missing = _closure(commit.manifest.roots, known)
        if is_missing:
            raise WorkflowCheckpointException(
                f"the storage has lost the metadata of checkpoint {commit.expected_head!r}, which is needed to write "
                "the next one; keep WorkflowCheckpoint.metadata as it is given"
            )
        return blobs

    def _encode(self, manifest: Manifest, blobs: Mapping[str, bytes]) -> WorkflowCheckpoint:
        """Return a checkpoint with all fields decoded, and all of it in the metadata."""
        stored = StoredCheckpoint.of(Source(manifest, lambda _: blobs, lambda: self._codec))
        envelope: dict[str, Any] = {
            "position": manifest.position,
            "header": manifest.header.decode("utf-8", "surrogatepass"),
            "toc": dict(manifest.table()),
            "pieces": manifest.pieces.decode("utf-8", "surrogatepass"),
            "checksum": manifest.checksum(),
            "parts": {key: base64.b64encode(data).decode() for key, data in blobs.items()},
        }
        checkpoint = WorkflowCheckpoint(**stored.to_dict())
        checkpoint.metadata = {**stored.metadata, ENVELOPE: envelope}
        return checkpoint

    async def rewind(self, lease: Lease, *, expected_head: str, to: str, nonce: str) -> None:
        """Raise WorkflowCheckpointException: the six methods can't do this."""
        _refuse("can't move a run back; use fork, or a shipped storage")

    async def record(
        self, lease: Lease, *, head: str | None, records: Sequence[JournalRecord], durable: bool = True
    ) -> None:
        """Do nothing: there is no journal, so an interrupted superstep is repeated."""

    async def journal(self, run_id: str) -> Sequence[JournalRecord]:
        """Return nothing."""
        return ()

    async def post(self, run_id: str, command: Command) -> Command:
        """Raise WorkflowCheckpointException: the six methods can't do this."""
        _refuse("has no inbox; answer with run(responses=...), or use a shipped storage")

    async def inbox(self, run_id: str) -> Sequence[Command]:
        """Return nothing."""
        return ()

    async def watch(self, run_id: str, *, seen: Mark, commands_only: bool = False) -> Mark:
        """Raise WorkflowCheckpointException: the six methods can't do this."""
        _refuse("can't be followed; use a shipped storage")

    async def events(self, run_id: str, *, after: int = 0, limit: int = 1000) -> Sequence[EventBatch]:
        """Return nothing, since events are not stored."""
        return ()

    async def run(self, run_id: str) -> RunRecord | None:
        """Return what the checkpoints of the workflow, or this process, know of a run."""
        remembered = self._remembered(run_id)
        mine = [checkpoint for checkpoint in await self._all() if checkpoint.run_id == run_id]
        head = self._manifest(_newest(mine)) if mine else remembered.head
        if head is None:
            # Before its first checkpoint a fork is at its parent's. Any other run has not begun.
            is_fork = remembered.begun is not None and remembered.begun.parent_checkpoint_id is not None
            return new_state(remembered.begun).record if remembered.begun is not None and is_fork else None
        return replace(
            new_state(remembered.begun or origin_of(head)).record,
            run_id=run_id,
            workflow_name=head.workflow_name,
            head=head.checkpoint_id,
            position=head.position,
            settled=is_settled(head),
        )

    async def runs(self, *, workflow_name: str | None = None, status: RunStatus | None = None) -> Sequence[RunRecord]:
        """Return the runs that have checkpoints."""
        ids = dict.fromkeys(checkpoint.run_id for checkpoint in await self.checkpoints())
        found = [await self.run(run_id) for run_id in ids]
        return [record for record in found if record is not None and status in {None, record.status}]

    async def manifest(self, checkpoint_id: str) -> Manifest:
        """Return one checkpoint."""
        try:
            checkpoint = await self._storage.load(checkpoint_id)
        except WorkflowCheckpointException:
            raise
        except (LookupError, FileNotFoundError) as error:
            raise CheckpointNotFoundError(checkpoint_id) from error
        except Exception as error:
            raise WorkflowCheckpointException(
                f"the storage could not load checkpoint {checkpoint_id!r}: {type(error).__name__}: {error}; "
                "fix the cause and try again"
            ) from error
        return self._manifest(checkpoint)

    def _manifest(self, checkpoint: WorkflowCheckpoint) -> Manifest:
        envelope: dict[str, Any] = checkpoint.metadata.get(ENVELOPE, {})
        try:
            manifest = _decode(checkpoint, envelope) if envelope else None
            blobs = {key: base64.b64decode(data) for key, data in envelope.get("parts", {}).items()}
        except (DamagedPartError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointDamagedError(checkpoint.checkpoint_id, f"its metadata can't be read: {error}") from error
        if manifest is None:
            manifest, saved = saved_manifest(checkpoint, self._codec)
            manifest = replace(manifest, position=_position(checkpoint))
            blobs = {blob.hash: blob.data for blob in saved}
        self._read[manifest.checkpoint_id] = blobs
        self._read.move_to_end(manifest.checkpoint_id)
        if len(self._read) > _CHECKPOINTS_READ_MAX:
            self._read.popitem(last=False)
        return manifest

    async def manifests(self, *, workflow_name: str | None = None, run_id: str | None = None) -> Sequence[Manifest]:
        """Return the checkpoints of the workflow, in the order of their timestamps."""
        return [self._manifest(checkpoint) for checkpoint in await self.checkpoints(run_id)]

    async def checkpoints(self, run_id: str | None = None) -> list[WorkflowCheckpoint]:
        """Return the same as the storage returns them."""
        found = sorted(await self._all(), key=_order)
        return [checkpoint for checkpoint in found if run_id in {None, checkpoint.run_id}]

    async def _all(self) -> Sequence[WorkflowCheckpoint]:
        return await self._storage.list_checkpoints(workflow_name=self._workflow_name)

    async def ids(self, *, workflow_name: str | None = None) -> Sequence[str]:
        """Return the ids of the checkpoints of the workflow."""
        return [checkpoint.checkpoint_id for checkpoint in await self.checkpoints()]

    async def latest(self, *, workflow_name: str) -> Manifest | None:
        """Return the checkpoint that the storage calls the newest."""
        checkpoint = await self._storage.get_latest(workflow_name=workflow_name)
        return None if checkpoint is None else self._manifest(checkpoint)

    async def blobs(self, roots: Iterable[str]) -> Mapping[str, bytes]:
        """Return the blobs of checkpoints that were just read."""
        return self.read_blobs(roots)

    def read_blobs(self, roots: Iterable[str]) -> Mapping[str, bytes]:
        """Return the blobs of checkpoints that were just read."""
        known = {key: data for blobs in self._read.values() for key, data in blobs.items()}
        return _closure(roots, known)[0]

    async def delete(self, checkpoint_id: str) -> bool:
        """Delete a checkpoint."""
        return await self._storage.delete(checkpoint_id)

    async def collect(self) -> int:
        """Do nothing, since each checkpoint contains its blobs."""
        return 0

    async def close(self) -> None:
        """Do nothing, since the storage belongs to the user."""


def _refuse(problem: str) -> NoReturn:
    raise WorkflowCheckpointException(f"a storage of your own with the six methods {problem}")


def _decode(checkpoint: WorkflowCheckpoint, envelope: Mapping[str, Any]) -> Manifest | None:
    """Return the manifest in the metadata, or None if the program has made another checkpoint of it."""
    text: str = envelope["header"]
    header = loads(text.encode("utf-8", "surrogatepass"))
    if header["checkpoint_id"] != checkpoint.checkpoint_id:
        return None
    manifest = Manifest(
        checkpoint_id=header["checkpoint_id"],
        run_id=header["run_id"],
        workflow_name=header["workflow_name"],
        position=envelope["position"],
        previous_id=header["previous_checkpoint_id"],
        timestamp=header["timestamp"],
        iteration_count=header["iteration_count"],
        header=text.encode("utf-8", "surrogatepass"),
        toc={},
        pieces=str(envelope.get("pieces", "")).encode("utf-8", "surrogatepass"),
    ).with_table(envelope["toc"])
    if manifest.checksum() != envelope["checksum"]:
        raise CheckpointDamagedError(checkpoint.checkpoint_id, "its metadata is not what was written")
    return manifest


def _closure(roots: Iterable[str], known: Mapping[str, bytes]) -> tuple[dict[str, bytes], bool]:
    """Return the known blobs that the roots need, and whether any is missing."""
    reached = reach(roots, lambda key: references(known[key]) if key in known else ())
    found = {key: known[key] for key in reached if key in known}
    return found, len(found) < len(reached)


def _newest(checkpoints: Sequence[WorkflowCheckpoint]) -> WorkflowCheckpoint:
    """Return the checkpoint of a run that no other one follows."""
    followed = {checkpoint.previous_checkpoint_id for checkpoint in checkpoints}
    ends = [checkpoint for checkpoint in checkpoints if checkpoint.checkpoint_id not in followed]
    return max(ends or checkpoints, key=_order)


def _order(checkpoint: WorkflowCheckpoint) -> tuple[str, int]:
    return checkpoint.timestamp, _position(checkpoint)


def _position(checkpoint: WorkflowCheckpoint) -> int:
    """Return the number in the id of an engine's checkpoint. For others, return the supersteps."""
    number = checkpoint.checkpoint_id.removeprefix(f"{checkpoint.run_id}@")
    return int(number) if number.isdecimal() else checkpoint.iteration_count
