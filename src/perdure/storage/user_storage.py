"""Any user's object with the six methods as a store, without claims: whoever writes last has written.

A checkpoint that is handed to it has the documented fields, and in `metadata["perdure"]`, as plain JSON data, the
checkpoint itself with all that they can't express. What is read back is taken from there, and from the fields only if
the storage lost it.
"""

from __future__ import annotations

import base64
from collections import OrderedDict
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from perdure.checkpoint import Source, StoredCheckpoint, WorkflowCheckpoint, is_settled, origin_of
from perdure.codec import DamagedPartError, loads, references
from perdure.errors import (
    CheckpointDamagedError,
    CheckpointNotFoundError,
    StaleHeadError,
    WorkflowCheckpointException,
)
from perdure.records import Claim, Manifest, Owner, RunRecord
from perdure.storage.memories import memory_of
from perdure.storage.saving import saved_manifest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from perdure.codec import Codec
    from perdure.records import Command, Commit, EventBatch, Halt, JournalRecord, Mark, NewRun, RunStatus
    from perdure.storage.protocol import CheckpointStorage

ENVELOPE = "perdure"
_NOBODY = Owner("", "", "", 0)
_READ_MAX = 16
"""Checkpoints whose parts are held after they were read: their values are asked for at once, or never."""


class ForeignStore:
    """The storage port over the six methods, for the runs of one workflow."""

    def __init__(self, storage: CheckpointStorage, *, workflow_name: str, codec: Codec) -> None:
        self._storage = storage
        self._workflow_name = workflow_name
        self._codec = codec
        self._memory = memory_of(storage)
        self._read: OrderedDict[str, Mapping[str, bytes]] = OrderedDict()

    @property
    def place(self) -> str:
        """The object itself."""
        return f"object:{id(self._storage)}"

    async def claim(
        self, run_id: str, *, create: NewRun | None = None, takeover: bool = False, token: int | None = None
    ) -> Claim:
        """There are no claims here: everybody has one."""
        del takeover, token
        if create is not None:
            self._memory.of(run_id).begun = create
        return Claim(run_id, 0, _NOBODY)

    async def release(self, claim: Claim, *, halt: Halt | None = None) -> None:
        """Nothing was claimed, and nothing is known of a run but its checkpoints."""

    async def commit(self, claim: Claim, commit: Commit) -> int:
        """Save the checkpoint, if the head is still what the caller thinks."""
        record = await self.run(claim.run_id)
        head = None if record is None else record.head
        if head != commit.expected_head:
            raise StaleHeadError(claim.run_id, expected=commit.expected_head, head=head)
        parts = await self._whole(commit)
        await self._storage.save(self._opened(commit.manifest, parts))
        remembered = self._memory.of(claim.run_id)
        remembered.head, remembered.parts = commit.manifest, parts
        return 0

    async def _whole(self, commit: Commit) -> Mapping[str, bytes]:
        """All parts of a checkpoint: those that are new, and those of the one before."""
        new = {part.hash: part.data for part in commit.parts}
        known = {**self._memory.of(commit.manifest.run_id).parts, **new}
        parts, missing = _closure(commit.manifest.roots, known)
        if missing and commit.expected_head is not None:
            before = await self.manifest(commit.expected_head)
            known |= self.read_parts(before.roots)
            parts, missing = _closure(commit.manifest.roots, known)
        if missing:
            raise WorkflowCheckpointException(
                f"the storage has lost the metadata of checkpoint {commit.expected_head!r}, and with it what is needed "
                "to write the next one; keep WorkflowCheckpoint.metadata as it is given"
            )
        return parts

    def _opened(self, manifest: Manifest, parts: Mapping[str, bytes]) -> WorkflowCheckpoint:
        """A checkpoint with all its fields decoded."""
        stored = StoredCheckpoint.of(Source(manifest, lambda _: parts, lambda: self._codec))
        envelope: dict[str, Any] = {
            "position": manifest.position,
            "header": manifest.header.decode("utf-8", "surrogatepass"),
            "toc": dict(manifest.table()),
            "pieces": manifest.pieces.decode("utf-8", "surrogatepass"),
            "checksum": manifest.checksum(),
            "parts": {key: base64.b64encode(data).decode() for key, data in parts.items()},
        }
        opened = WorkflowCheckpoint(**stored.to_dict())
        opened.metadata = {**stored.metadata, ENVELOPE: envelope}
        return opened

    async def rewind(self, claim: Claim, *, expected_head: str, to: str, nonce: str) -> None:
        """Not with six methods."""
        del claim, expected_head, to, nonce
        raise WorkflowCheckpointException(
            "a storage of your own with the six methods can't move a run back; use fork, or a shipped storage"
        )

    async def record(
        self, claim: Claim, *, head: str | None, records: Sequence[JournalRecord], durable: bool = True
    ) -> None:
        """There is no journal here: a superstep that was interrupted is done again."""

    async def runs(self, *, workflow_name: str | None = None, status: RunStatus | None = None) -> Sequence[RunRecord]:
        """The runs that have checkpoints."""
        del workflow_name
        ids = dict.fromkeys(checkpoint.run_id for checkpoint in await self.checkpoints())
        found = [await self.run(run_id) for run_id in ids]
        return [record for record in found if record is not None and status in {None, record.status}]

    async def post(self, run_id: str, command: Command) -> Command:
        """Not with six methods."""
        del run_id, command
        raise WorkflowCheckpointException(
            "a storage of your own with the six methods has no inbox; answer with run(responses=...), or use a shipped "
            "storage"
        )

    async def inbox(self, run_id: str) -> Sequence[Command]:
        """Nothing can come."""
        del run_id
        return ()

    async def watch(self, run_id: str, *, seen: Mark, commands_only: bool = False) -> Mark:
        """Nobody tells when something changes."""
        del run_id, seen, commands_only
        raise WorkflowCheckpointException(
            "a storage of your own with the six methods can't be followed; use a shipped storage"
        )

    async def events(self, run_id: str, *, after: int = 0, limit: int = 1000) -> Sequence[EventBatch]:
        """Events are not kept."""
        del run_id, after, limit
        return ()

    async def journal(self, run_id: str) -> Sequence[JournalRecord]:
        """Nothing was recorded."""
        del run_id
        return ()

    async def run(self, run_id: str) -> RunRecord | None:
        """What the checkpoints of the workflow, or this process, know of a run."""
        remembered = self._memory.of(run_id)
        mine = [checkpoint for checkpoint in await self._all() if checkpoint.run_id == run_id]
        head = self._manifest(_newest(mine)) if mine else remembered.head
        if head is None:
            return None if remembered.begun is None else _unborn(remembered.begun)
        begun = remembered.begun or origin_of(head)
        return RunRecord(
            run_id=run_id,
            workflow_name=head.workflow_name,
            created_at=begun.created_at,
            nonce=begun.nonce,
            input_digest=begun.input_digest,
            parent_checkpoint_id=begun.parent_checkpoint_id,
            head=head.checkpoint_id,
            position=head.position,
            settled=is_settled(head),
            owner=None,
        )

    async def manifest(self, checkpoint_id: str) -> Manifest:
        """One checkpoint."""
        try:
            checkpoint = await self._storage.load(checkpoint_id)
        except WorkflowCheckpointException:
            raise
        except (LookupError, FileNotFoundError) as error:
            raise CheckpointNotFoundError(checkpoint_id) from error
        except Exception as error:
            raise WorkflowCheckpointException(
                f"the storage could not load checkpoint {checkpoint_id!r}: {type(error).__name__}: {error}; "
                "try again when the cause is mended"
            ) from error
        return self._manifest(checkpoint)

    def _manifest(self, checkpoint: WorkflowCheckpoint) -> Manifest:
        envelope: dict[str, Any] = checkpoint.metadata.get(ENVELOPE, {})
        try:
            manifest = _enclosed(checkpoint, envelope) if envelope else None
            parts = {key: base64.b64decode(data) for key, data in envelope.get("parts", {}).items()}
        except (DamagedPartError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointDamagedError(checkpoint.checkpoint_id, f"its metadata can't be read: {error}") from error
        if manifest is None:
            manifest, saved = saved_manifest(checkpoint, self._codec)
            manifest = replace(manifest, position=_number(checkpoint))
            parts = {part.hash: part.data for part in saved}
        self._read[manifest.checkpoint_id] = parts
        self._read.move_to_end(manifest.checkpoint_id)
        if len(self._read) > _READ_MAX:
            self._read.popitem(last=False)
        return manifest

    async def manifests(self, *, workflow_name: str | None = None, run_id: str | None = None) -> Sequence[Manifest]:
        """The checkpoints of the workflow, in the order of their timestamps."""
        del workflow_name
        return [self._manifest(checkpoint) for checkpoint in await self.checkpoints(run_id)]

    async def checkpoints(self, run_id: str | None = None) -> list[WorkflowCheckpoint]:
        """The same as the storage gives them."""
        found = sorted(await self._all(), key=_order)
        return [checkpoint for checkpoint in found if run_id in {None, checkpoint.run_id}]

    async def ids(self, *, workflow_name: str | None = None) -> Sequence[str]:
        """Their ids."""
        del workflow_name
        return [checkpoint.checkpoint_id for checkpoint in await self.checkpoints()]

    async def latest(self, *, workflow_name: str) -> Manifest | None:
        """The newest, as the storage tells it."""
        checkpoint = await self._storage.get_latest(workflow_name=workflow_name)
        return None if checkpoint is None else self._manifest(checkpoint)

    async def parts(self, roots: Iterable[str]) -> Mapping[str, bytes]:
        """The parts of checkpoints that were just read."""
        return self.read_parts(roots)

    def read_parts(self, roots: Iterable[str]) -> Mapping[str, bytes]:
        """The same."""
        known = {key: data for parts in self._read.values() for key, data in parts.items()}
        return _closure(roots, known)[0]

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


def _enclosed(checkpoint: WorkflowCheckpoint, envelope: Mapping[str, Any]) -> Manifest | None:
    """The manifest in an envelope; None if the program has made another checkpoint of it."""
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


def _unborn(begun: NewRun) -> RunRecord | None:
    """A run without a checkpoint of its own: a fork stands at its parent, any other has not begun."""
    if begun.parent_checkpoint_id is None:
        return None
    return RunRecord(
        run_id=begun.run_id,
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


def _closure(roots: Iterable[str], known: Mapping[str, bytes]) -> tuple[dict[str, bytes], bool]:
    """Those of the known parts that the roots need, and whether any is missing."""
    found: dict[str, bytes] = {}
    frontier = list(roots)
    is_missing = False
    while frontier:
        key = frontier.pop()
        if key in found:
            continue
        data = known.get(key)
        if data is None:
            is_missing = True
            continue
        found[key] = data
        frontier.extend(references(data))
    return found, is_missing


def _newest(checkpoints: Sequence[WorkflowCheckpoint]) -> WorkflowCheckpoint:
    """The checkpoint of a run that no other one of it follows."""
    followed = {checkpoint.previous_checkpoint_id for checkpoint in checkpoints}
    ends = [checkpoint for checkpoint in checkpoints if checkpoint.checkpoint_id not in followed]
    return max(ends or checkpoints, key=_order)


def _order(checkpoint: WorkflowCheckpoint) -> tuple[str, int]:
    return checkpoint.timestamp, _number(checkpoint)


def _number(checkpoint: WorkflowCheckpoint) -> int:
    """The number that the engine gave to a checkpoint; of one that it did not write, the supersteps."""
    number = checkpoint.checkpoint_id.removeprefix(f"{checkpoint.run_id}@")
    return int(number) if number.isdecimal() else checkpoint.iteration_count
