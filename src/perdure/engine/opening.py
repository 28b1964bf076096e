"""Finding the run that a call means: a new one, the instance's own, one by its id, one by a checkpoint."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any, TypeAlias

from perdure.checkpoint import (
    SAVED_FIELDS_PATH,
    Author,
    Reader,
    Writer,
    Written,
    compare,
    header_of,
    migrate,
    naming,
    origin_of,
    saved_fields,
)
from perdure.data import mutable
from perdure.engine.call import ABSENT
from perdure.engine.routing import accepts
from perdure.errors import IncompatibleGraphError, RunNotFoundError
from perdure.kernel import Snapshot
from perdure.records import NewRun
from perdure.storage import reads_at_once

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from perdure.codec import Values
    from perdure.engine.blueprint import Blueprint
    from perdure.graph import Graph
    from perdure.records import Claim, Manifest, RunRecord, WholeCheckpoint
    from perdure.storage import Binding


@mutable
class Tenure:
    """What a workflow instance holds of its run between two calls."""

    origin: NewRun
    snapshot: Snapshot
    values: Values
    binding: Binding | None = None
    claim: Claim | None = None
    head: Manifest | None = None
    position: int = -1
    run_kwargs: dict[str, Any] = field(default_factory=dict[str, Any])
    first_input: object = ABSENT
    """The message that began a run without a storage, where only this instance knows it."""
    is_new: bool = False
    """Nothing has been committed yet, and the executors' first states have to be asked for."""
    is_unborn: bool = False
    """A fork that the store does not know of yet."""
    is_ahead: bool = False
    """What the snapshot holds could not be committed so far."""
    written: Written | None = None
    """What is known of the checkpoint that the run stands at, so that the next one is written as what changes."""
    writer: Writer | None = None
    """Writes the checkpoints of the run, from one call to the next."""
    read_from: str | None = field(init=False)
    """The checkpoint that the snapshot was read from: its values are decoded when they are needed."""

    def __post_init__(self) -> None:
        self.read_from = self.head_id

    @property
    def run_id(self) -> str:
        """The id of the run."""
        return self.origin.run_id

    @property
    def head_id(self) -> str | None:
        """The checkpoint that the run stands at."""
        return None if self.head is None else self.head.checkpoint_id

    def writer_of(self, blueprint: Blueprint, binding: Binding) -> Writer:
        """What writes the next checkpoint: the writer of the one that the run stands at, if this life has it."""
        author = Author(self.origin, blueprint.signature_hash, blueprint.graph.rules.version)
        writer = self.writer
        if writer is None or not writer.follows(self.head) or not writer.is_of(binding.codec, author):
            is_known = self.written is not None and self.written.manifest is self.head
            known = self.written if is_known else None
            writer = self.writer = Writer(binding.codec, blueprint.document, author, known)
        self.written = None
        return writer


Arrive: TypeAlias = "Callable[[str], Awaitable[None]]"
"""Called with the id of a run before it is claimed: nobody else in this process may be at it."""


async def start(
    blueprint: Blueprint,
    binding: Binding,
    arrive: Arrive,
    *,
    run_id: str,
    input_digest: str | None,
    takeover: bool = False,
) -> Tenure:
    """A new run, claimed; its first commit is still to come."""
    await arrive(run_id)
    origin = begun(blueprint, run_id, input_digest=input_digest)
    claim = await binding.store.claim(run_id, create=origin, takeover=takeover)
    return Tenure(origin, Snapshot(), binding.values, binding, claim, is_new=True)


def begun(
    blueprint: Blueprint, run_id: str, *, input_digest: str | None = None, parent_id: str | None = None
) -> NewRun:
    """A run that begins here and now."""
    clock = blueprint.clock
    return NewRun(run_id, blueprint.graph.name, clock.now().isoformat(), clock.new_id(), input_digest, parent_id)


async def by_run_id(
    blueprint: Blueprint,
    binding: Binding,
    arrive: Arrive,
    run_id: str,
    *,
    takeover: bool = False,
    token: int | None = None,
    claim: Claim | None = None,
) -> Tenure:
    """A run at its head, claimed, unless the caller has done that. Raises RunNotFoundError."""
    await arrive(run_id)
    taken = claim or await binding.store.claim(run_id, takeover=takeover, token=token)
    return await _held(blueprint, binding, taken)


async def by_checkpoint(
    blueprint: Blueprint, binding: Binding, arrive: Arrive, checkpoint_id: str, *, takeover: bool = False
) -> Tenure:
    """The run whose head this checkpoint is, claimed; of an older one a fork."""
    manifest, record, parts = await _read(binding, checkpoint_id)
    if record is not None and record.head == checkpoint_id:
        await arrive(manifest.run_id)
        claim = await binding.store.claim(manifest.run_id, takeover=takeover)
        tenure = await _held(blueprint, binding, claim, read=manifest, parts=parts)
        if tenure.head_id == checkpoint_id:
            return tenure
        # Somebody advanced the run before we had it: the checkpoint is an older one by now.
        await binding.store.release(claim)
    return await fork(blueprint, binding, arrive, manifest, parts=parts)


async def _read(binding: Binding, checkpoint_id: str) -> tuple[Manifest, RunRecord | None, Mapping[str, bytes] | None]:
    """A checkpoint, its run, and its parts where the store reads them at once."""
    whole = await _whole(binding, checkpoint_id)
    if whole is not None:
        return whole.manifest, whole.run, whole.parts
    manifest = await binding.store.manifest(checkpoint_id)
    return manifest, await binding.store.run(manifest.run_id), None


async def _head(binding: Binding, head: str) -> tuple[Manifest, Mapping[str, bytes] | None]:
    """The head of a run that is known, and its parts where the store reads them at once."""
    whole = await _whole(binding, head)
    return (await binding.store.manifest(head), None) if whole is None else (whole.manifest, whole.parts)


async def _whole(binding: Binding, checkpoint_id: str) -> WholeCheckpoint | None:
    """A checkpoint with all that it is made of; None if the store does not read that at once."""
    store = binding.store
    if not reads_at_once(store):
        return None
    with naming(checkpoint_id):
        return await store.whole_checkpoint(checkpoint_id)


async def fork(
    blueprint: Blueprint,
    binding: Binding,
    arrive: Arrive,
    manifest: Manifest,
    *,
    parts: Mapping[str, bytes] | None = None,
) -> Tenure:
    """A new run whose head is an older checkpoint until its first commit. The source is not touched.

    The store does not know the fork before `begin`, so that one which is refused leaves nothing behind.
    """
    snapshot, written = await found(blueprint, binding, manifest, parts=parts)
    origin = begun(blueprint, blueprint.clock.new_id(), parent_id=manifest.checkpoint_id)
    await arrive(origin.run_id)
    return Tenure(origin, snapshot, binding.values, binding, head=manifest, is_unborn=True, written=written)


async def begin(tenure: Tenure) -> None:
    """Let the store know of a fork, and claim it."""
    if tenure.is_unborn and tenure.binding is not None:
        tenure.claim = await tenure.binding.store.claim(tenure.run_id, create=tenure.origin)
        tenure.is_unborn = False


async def is_unfinished(tenure: Tenure) -> bool:
    """Whether the run has messages left to deliver, unless somebody else has advanced it since."""
    if tenure.snapshot.is_idle or tenure.binding is None:
        return not tenure.snapshot.is_idle
    record = await tenure.binding.store.run(tenure.run_id)
    return record is not None and record.head == tenure.head_id


async def read(blueprint: Blueprint, binding: Binding, manifest: Manifest) -> Snapshot:
    """The snapshot of a checkpoint, in the terms of the present graph. Raises IncompatibleGraphError."""
    return (await found(blueprint, binding, manifest))[0]


async def found(
    blueprint: Blueprint, binding: Binding, manifest: Manifest, *, parts: Mapping[str, bytes] | None = None
) -> tuple[Snapshot, Written]:
    """The same, and what the writer of the next checkpoint has to know of this one. Its parts may be read already."""
    graph = blueprint.graph
    if parts is None:
        with naming(manifest.checkpoint_id):
            parts = await binding.store.parts(manifest.roots)
    reader = Reader(manifest, parts, binding.codec)
    if SAVED_FIELDS_PATH in manifest.toc:
        if header_of(manifest)["graph_signature_hash"] != blueprint.signature_hash:
            report = "  it was made by hand, for a graph with another signature"
            raise IncompatibleGraphError(checkpoint_id=manifest.checkpoint_id, report=report)
        from perdure.engine.saved import snapshot_of_fields  # noqa: PLC0415 - loaded where there are such

        fields = saved_fields(manifest, parts, binding.codec)
        snapshot = await snapshot_of_fields(graph, fields, binding.values, iteration=manifest.iteration_count)
        return snapshot, reader.written(None)
    snapshot, stored = reader.snapshot(), reader.graph()
    if stored == blueprint.document:
        return snapshot, reader.written(snapshot)
    return await _in_present_terms(manifest, snapshot, stored, graph, binding), reader.written(None)


async def _in_present_terms(
    manifest: Manifest, snapshot: Snapshot, stored: Mapping[str, Any], graph: Graph, binding: Binding
) -> Snapshot:
    migrated = await migrate(snapshot, stored, graph, binding.values)
    report = compare(stored, graph, migrated.snapshot, binding.values, accepts=accepts, renamed=migrated.renamed)
    if not report.is_compatible:
        raise IncompatibleGraphError(checkpoint_id=manifest.checkpoint_id, report=report)
    return migrated.snapshot


async def _held(
    blueprint: Blueprint,
    binding: Binding,
    claim: Claim,
    *,
    read: Manifest | None = None,
    parts: Mapping[str, bytes] | None = None,
) -> Tenure:
    """What a claim is of. What was read of a checkpoint before the claim need not be read again if it is the head."""
    try:
        record, head = await _at(binding, claim)
        if read is None or not _is_head(read, record):
            read, parts = await _head(binding, head)
        snapshot, written = await found(blueprint, binding, read, parts=parts)
    except BaseException:
        await binding.store.release(claim, halt=claim.halt)
        raise
    begun_as, position = origin(record), record.position
    return Tenure(begun_as, snapshot, binding.values, binding, claim, read, position=position, written=written)


async def _at(binding: Binding, claim: Claim) -> tuple[RunRecord, str]:
    """The run that a claim is of, and its head. Raises RunNotFoundError."""
    record = claim.record or await binding.store.run(claim.run_id)
    if record is None or record.head is None:
        raise RunNotFoundError(claim.run_id)
    return record, record.head


def _is_head(read: Manifest, record: RunRecord) -> bool:
    """Whether this very checkpoint is the head: one of that id may be of another life, begun since it was read."""
    return read.checkpoint_id == record.head and origin_of(read).nonce == record.nonce


def origin(record: RunRecord) -> NewRun:
    """How a run that the store knows began."""
    return NewRun(
        record.run_id,
        record.workflow_name,
        record.created_at,
        record.nonce,
        record.input_digest,
        record.parent_checkpoint_id,
    )


async def later(tenure: Tenure) -> Snapshot | None:
    """What the run that an unborn fork leaves has answered by now; nothing else of it is looked at."""
    if not tenure.is_unborn or tenure.binding is None or tenure.head is None:
        return None
    store = tenure.binding.store
    record = await store.run(tenure.head.run_id)
    if record is None or record.head is None:
        return None
    manifest = await store.manifest(record.head)
    with naming(manifest.checkpoint_id):
        parts = await store.parts(manifest.roots)
    return Snapshot(answered=Reader(manifest, parts, tenure.binding.codec).answered())
