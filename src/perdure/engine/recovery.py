"""Find a run and load it: start a new one, open one at its head under a lease, fork a checkpoint, move a head back."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from perdure.checkpoint import (
    EXECUTOR_STATE_KEY,
    SAVED_FIELDS_PATH,
    WORKFLOW_RUN_KWARGS_KEY,
    Author,
    CheckpointWriter,
    Reader,
    WrittenCheckpoint,
    compare,
    header_of,
    migrate,
    naming,
    origin_of,
    saved_fields,
)
from perdure.codec import Trust, Values, as_kept
from perdure.data_classes import new_dict, new_list
from perdure.engine.commit import StoreCommitter
from perdure.engine.journal import JournalLog
from perdure.engine.local_lock import LocalLock, lock_run
from perdure.engine.routing import accepts, fan_ins_of, route
from perdure.errors import IncompatibleGraphError, RunNotFoundError, WorkflowCheckpointException
from perdure.graph import ABSENT, INTERNAL_SOURCE_ID, SHARED_SCOPE, Executor, Graph, WorkflowMessage
from perdure.kernel import Activation, Delivery, Effects, Request, RoutedMessage, Snapshot, Trail, fold
from perdure.records import Lease, Manifest, NewRun, RunRecord
from perdure.storage import Binding, bind, reads_at_once
from perdure.tracing import NO_SPAN, Span

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from perdure.clock import Clock
    from perdure.events import WorkflowEvent


@dataclass(frozen=True)
class Blueprint:
    """A graph, ready to be run."""

    graph: Graph
    clock: Clock
    _bound: list[Binding] = field(default_factory=new_list, init=False, compare=False, repr=False)
    """The last storage: most workflows use one, and finding its types takes time."""

    @cached_property
    def trust(self) -> Trust:
        """Return the trusted types: those in handler annotations, and data types of the executors' modules."""
        trust = Trust.of(self.graph.types())
        for module in dict.fromkeys(self.graph.modules()):
            trust = trust.with_module(module)
        return trust

    def bound(self, storage: object) -> Binding:
        """Return a storage bound to this workflow, with values of its own. Raises TypeError for no storage."""
        if not self._bound or self._bound[0].storage is not storage:
            is_lenient = self.graph.rules.on_checkpoint_error == "warn"
            binding = bind(storage, workflow_name=self.graph.name, trust=self.trust, is_lenient=is_lenient)
            self._bound[:] = [binding]
        binding = self._bound[0]
        # Each run is warned about its own large values.
        return replace(binding, values=binding.values.of_run())

    def executors(self, graph: Graph | None = None) -> Iterator[Executor]:
        """Return all executors, sub-workflows included."""
        graph = self.graph if graph is None else graph
        yield from graph.executors.values()
        for child in graph.children.values():
            yield from self.executors(child)


@dataclass(slots=True)
class LoadedRun:
    """A run in memory, as a workflow instance holds it between two calls.

    Attributes:
        first_input: The message that began a run without a storage.
        is_new: True if nothing has been committed yet and the executors must be asked for their first states.
        is_unstored_fork: True if it is a fork that the store does not know yet.
        is_cut_off: True if its last superstep failed or was cancelled in this process, so that a call may abandon it.
        is_ahead: True if the snapshot holds something that could not be committed.
        written: The content of the head, so that the next checkpoint writes only the difference.
        read_from: The checkpoint that the snapshot was read from. Its values are decoded when they are used.
    """

    origin: NewRun
    snapshot: Snapshot
    values: Values
    binding: Binding | None = None
    lease: Lease | None = None
    head: Manifest | None = None
    position: int = -1
    run_kwargs: dict[str, Any] = field(default_factory=new_dict)
    first_input: object = ABSENT
    is_new: bool = False
    is_unstored_fork: bool = False
    is_cut_off: bool = False
    is_ahead: bool = False
    written: WrittenCheckpoint | None = None
    writer: CheckpointWriter | None = None
    read_from: str | None = None

    @property
    def run_id(self) -> str:
        """Return the id of the run."""
        return self.origin.run_id

    @property
    def head_id(self) -> str | None:
        """Return the id of the head checkpoint."""
        return None if self.head is None else self.head.checkpoint_id

    def committer(self, blueprint: Blueprint, span: Span = NO_SPAN) -> StoreCommitter:
        """Return a committer that continues at the head. The writer of the last call is reused if it fits."""
        binding, lease, writer = self.binding, self.lease, self.writer
        assert binding is not None, "a run without a storage is not committed"
        assert lease is not None, "a run is written only under a lease"
        author = Author(self.origin, blueprint.graph.signature_hash, blueprint.graph.rules.version)
        is_same = writer is not None and (writer.codec, writer.author) == (binding.codec, author)
        if writer is None or not is_same or writer.head.manifest is not self.head:
            is_head = self.written is not None and self.written.manifest is self.head
            writer = self.writer = CheckpointWriter(
                binding.codec, blueprint.graph.document, author, self.written if is_head else None
            )
        self.written = None
        return StoreCommitter(
            log=JournalLog(binding.store, lease, binding.codec),
            clock=blueprint.clock,
            writer=writer,
            position=self.position,
            head=self.head,
            span=span,
        )


def new_run(blueprint: Blueprint, run_id: str, *, input_digest: str | None = None, tags: str | None = None) -> NewRun:
    """Return the record of a run that begins now."""
    clock = blueprint.clock
    return NewRun(run_id, blueprint.graph.name, clock.now().isoformat(), clock.new_id(), input_digest, tags=tags)


async def start(
    blueprint: Blueprint,
    binding: Binding,
    lock: LocalLock,
    *,
    run_id: str,
    input_digest: str | None,
    tags: str | None = None,
    takeover: bool = False,
) -> LoadedRun:
    """Create a run and take its lease. Its first commit is still to come."""
    await lock.acquire(binding.store.place, run_id)
    origin = new_run(blueprint, run_id, input_digest=input_digest, tags=tags)
    lease = await binding.store.acquire(run_id, create=origin, takeover=takeover)
    return LoadedRun(origin, Snapshot(), binding.values, binding, lease, is_new=True)


async def open_run(
    blueprint: Blueprint,
    binding: Binding,
    lock: LocalLock,
    run_id: str,
    *,
    takeover: bool = False,
    token: int | None = None,
    lease: Lease | None = None,
) -> LoadedRun:
    """Open a run at its head, under a new lease unless the caller has one. Raises RunNotFoundError."""
    await lock.acquire(binding.store.place, run_id)
    taken = lease or await binding.store.acquire(run_id, takeover=takeover, token=token)
    return await _load(blueprint, binding, taken)


async def open_checkpoint(
    blueprint: Blueprint, binding: Binding, lock: LocalLock, checkpoint_id: str, *, takeover: bool = False
) -> LoadedRun:
    """Open the run whose head this checkpoint is; fork an older one."""
    manifest, record, blobs = await _read_checkpoint(binding, checkpoint_id)
    if record is None:
        record = await binding.store.run(manifest.run_id)
    if record is not None and record.head == checkpoint_id:
        await lock.acquire(binding.store.place, manifest.run_id)
        lease = await binding.store.acquire(manifest.run_id, takeover=takeover)
        run = await _load(blueprint, binding, lease, manifest, blobs)
        if run.head_id == checkpoint_id:
            return run
        # Another process advanced the run before we had the lease: the checkpoint is an older one by now.
        await binding.store.release(lease)
    fork = await _fork(blueprint, binding, manifest, blobs)
    await lock.acquire(binding.store.place, fork.run_id)
    return fork


async def _read_checkpoint(
    binding: Binding, checkpoint_id: str
) -> tuple[Manifest, RunRecord | None, Mapping[str, bytes] | None]:
    """Read a checkpoint, with its run and its blobs if the store reads all of them at once."""
    store = binding.store
    if not reads_at_once(store):
        return await binding.store.manifest(checkpoint_id), None, None
    with naming(checkpoint_id):
        whole = await store.whole_checkpoint(checkpoint_id)
    return whole.manifest, whole.run, whole.blobs


async def _load(
    blueprint: Blueprint,
    binding: Binding,
    lease: Lease,
    read: Manifest | None = None,
    blobs: Mapping[str, bytes] | None = None,
) -> LoadedRun:
    """Load a run at its head. A checkpoint that was read before is used if it is the head."""
    try:
        record, head = await _head_of(binding, lease)
        # A checkpoint with the id of the head may be one of a run that was deleted and begun again.
        if read is None or read.checkpoint_id != head or origin_of(read).nonce != record.nonce:
            read, _, blobs = await _read_checkpoint(binding, head)
        run = await _read_run(blueprint, binding, _origin(record), read, blobs)
    except BaseException:
        await binding.store.release(lease, halt=lease.halt)
        raise
    run.lease, run.position = lease, record.position
    return run


async def _head_of(binding: Binding, lease: Lease) -> tuple[RunRecord, str]:
    record = lease.record or await binding.store.run(lease.run_id)
    if record is None or record.head is None:
        raise RunNotFoundError(lease.run_id)
    return record, record.head


def _origin(record: RunRecord) -> NewRun:
    return NewRun(
        record.run_id,
        record.workflow_name,
        record.created_at,
        record.nonce,
        record.input_digest,
        record.parent_checkpoint_id,
        record.parent_run_id,
        record.tags,
    )


async def _fork(
    blueprint: Blueprint, binding: Binding, manifest: Manifest, blobs: Mapping[str, bytes] | None = None
) -> LoadedRun:
    """Return a new run whose head is an older checkpoint until its first commit. The source run is not touched.

    The store does not know the fork before `create_fork`, so that a refused one leaves nothing behind.
    """
    source = await binding.store.run(manifest.run_id)
    origin = replace(
        new_run(blueprint, blueprint.clock.new_id(), tags=None if source is None else source.tags),
        parent_checkpoint_id=manifest.checkpoint_id,
        parent_run_id=manifest.run_id,
    )
    run = await _read_run(blueprint, binding, origin, manifest, blobs)
    run.is_unstored_fork = True
    return run


async def create_fork(run: LoadedRun) -> None:
    """Create a fork in the store and take its lease."""
    if run.is_unstored_fork and run.binding is not None:
        run.lease = await run.binding.store.acquire(run.run_id, create=run.origin)
        run.is_unstored_fork = False


async def fork(
    blueprint: Blueprint, binding: Binding, *, checkpoint_id: str, change: Callable[[Snapshot], Snapshot] | None
) -> LoadedRun:
    """Create a run at a checkpoint. A change is its first commit."""
    manifest = await binding.store.manifest(checkpoint_id)
    run = await _fork(blueprint, binding, manifest)
    changed = run.snapshot if change is None else change(run.snapshot)
    await create_fork(run)
    lease = run.lease
    assert lease is not None, "a fork is created with a lease"
    try:
        if change is not None:
            committer = run.committer(blueprint)
            await committer.commit(changed, "edit")
            run = replace(run, snapshot=changed, head=committer.head, position=committer.position)
            run.read_from = run.head_id
    finally:
        await binding.store.release(lease)
    return run


async def rewind(blueprint: Blueprint, binding: Binding, *, run_id: str, checkpoint_id: str) -> LoadedRun:
    """Move the head of a run back to one of its checkpoints. A new nonce makes what follows a new history."""
    store = binding.store
    manifest = await store.manifest(checkpoint_id)
    if manifest.run_id != run_id:
        raise WorkflowCheckpointException(
            f"checkpoint {checkpoint_id!r} belongs to run {manifest.run_id!r}, not to {run_id!r}: fork it instead"
        )
    run, nonce = await _read_run(blueprint, binding, origin_of(manifest), manifest), blueprint.clock.new_id()
    async with lock_run(store.place, run_id):
        lease = await store.acquire(run_id)
        try:
            record = await store.run(run_id)
            if record is None or record.head is None:
                raise RunNotFoundError(run_id)  # it was deleted meanwhile
            await store.rewind(lease, expected_head=record.head, to=checkpoint_id, nonce=nonce)
        finally:
            await store.release(lease)
    run.origin, run.position = replace(_origin(record), nonce=nonce), record.position
    return run


async def is_unfinished(run: LoadedRun) -> bool:
    """Return whether the run has messages left to deliver, unless another process has advanced it since."""
    if run.snapshot.is_idle or run.binding is None:
        return not run.snapshot.is_idle
    record = await run.binding.store.run(run.run_id)
    return record is not None and record.head == run.head_id


async def answered_since(run: LoadedRun) -> Snapshot | None:
    """Return the answered requests of the run that an unborn fork leaves; nothing else of it is read."""
    if not run.is_unstored_fork or run.binding is None or run.head is None:
        return None
    store = run.binding.store
    record = await store.run(run.head.run_id)
    if record is None or record.head is None:
        return None
    manifest = await store.manifest(record.head)
    with naming(manifest.checkpoint_id):
        blobs = await store.blobs(manifest.roots)
    return Snapshot(answered=Reader(manifest, blobs, run.binding.codec).answered())


async def _read_run(
    blueprint: Blueprint, binding: Binding, origin: NewRun, manifest: Manifest, blobs: Mapping[str, bytes] | None = None
) -> LoadedRun:
    """Read a run at a checkpoint, without a lease. Raises IncompatibleGraphError."""
    if blobs is None:
        with naming(manifest.checkpoint_id):
            blobs = await binding.store.blobs(manifest.roots)
    snapshot, written = await _read_snapshot(blueprint, binding, manifest, blobs)
    read_from = manifest.checkpoint_id
    return LoadedRun(origin, snapshot, binding.values, binding, head=manifest, written=written, read_from=read_from)


async def _read_snapshot(
    blueprint: Blueprint, binding: Binding, manifest: Manifest, blobs: Mapping[str, bytes]
) -> tuple[Snapshot, WrittenCheckpoint]:
    """Read a checkpoint for the present graph, and what the writer of the next checkpoint must know of it."""
    graph, values = blueprint.graph, binding.values
    reader = Reader(manifest, blobs, binding.codec)
    if SAVED_FIELDS_PATH in manifest.toc:
        if header_of(manifest)["graph_signature_hash"] != blueprint.graph.signature_hash:
            report = "  it was made by hand, for a graph with another signature"
            raise IncompatibleGraphError(checkpoint_id=manifest.checkpoint_id, report=report)
        fields = saved_fields(manifest, blobs, binding.codec)
        snapshot = await _snapshot_of_fields(graph, fields, values, iteration=manifest.iteration_count)
        return snapshot, reader.written(None)
    snapshot, stored = reader.snapshot(), reader.graph()
    if stored == blueprint.graph.document:
        return snapshot, reader.written(snapshot)
    migrated = await migrate(snapshot, stored, graph, values)
    report = compare(stored, graph, migrated.snapshot, values, accepts=accepts, renamed=migrated.renamed)
    if not report.is_compatible:
        raise IncompatibleGraphError(checkpoint_id=manifest.checkpoint_id, report=report)
    return migrated.snapshot, reader.written(None)


async def _snapshot_of_fields(graph: Graph, fields: Mapping[str, Any], values: Values, *, iteration: int) -> Snapshot:
    """Build the snapshot of a checkpoint that was made by hand. Messages without a target are routed now."""
    state = dict(fields["state"])
    executors = state.pop(EXECUTOR_STATE_KEY, {})
    kwargs = state.pop(WORKFLOW_RUN_KWARGS_KEY, None)
    _require_known(graph, executors)
    snapshot = Snapshot(
        turn=1,
        iteration=iteration - 1,
        since_input=iteration - 1,
        state={(SHARED_SCOPE, key): values.fix(value, f"state[{key!r}]") for key, value in state.items()},
        executors={key: values.fix(value, f"state of executor {key!r}") for key, value in executors.items()},
        requests={key: _request(event, values) for key, event in fields["pending_request_info_events"].items()},
        kwargs=values.fix(kwargs, "run kwargs") if kwargs else None,
    )
    effects: list[Effects] = []
    addressed: list[Delivery] = []
    for source_id, messages in fields["messages"].items():
        for ordinal, message in enumerate(messages):
            if source_id.startswith(INTERNAL_SOURCE_ID("")):
                addressed.append(_delivery(message, source_id, ordinal, values))
            else:
                effects.append(await _sending(graph, message, source_id, ordinal, values))
    folded = fold(snapshot, effects, fan_ins=fan_ins_of(graph))
    return replace(folded, deliveries=(*addressed, *folded.deliveries))


def _require_known(graph: Graph, executors: object) -> None:
    if not isinstance(executors, dict):
        raise WorkflowCheckpointException(f"{EXECUTOR_STATE_KEY!r} must be a dict of executors' states")
    for executor_id, state in executors.items():  # pyright: ignore[reportUnknownVariableType]
        if executor_id not in graph.executors:
            raise WorkflowCheckpointException(f"the checkpoint has a state of unknown executor {executor_id!r}")
        if not isinstance(state, dict) or not all(isinstance(key, str) for key in state):  # pyright: ignore[reportUnknownVariableType]
            raise WorkflowCheckpointException(f"the state of executor {executor_id!r} must be a dict with str keys")


def _request(event: WorkflowEvent[Any], values: Values) -> Request:
    return Request(
        event.request_id,
        event.source_executor_id,
        values.fix(event.data, f"request {event.request_id!r}"),
        event.request_type,
        event.response_type,
    )


def _delivery(message: WorkflowMessage, source_id: str, ordinal: int, values: Values) -> Delivery:
    target_id = message.target_id or source_id.removeprefix(INTERNAL_SOURCE_ID(""))
    event = message.original_request_info_event
    return Delivery(
        target_id,
        (source_id,),
        (values.fix(message.data, f"message for executor {target_id!r}"),),
        send=f"saved:{source_id}/{ordinal}",
        asked_for=target_id,
        answers=None if event is None else _request(event, values),
    )


async def _sending(graph: Graph, message: WorkflowMessage, source_id: str, ordinal: int, values: Values) -> Effects:
    if source_id not in graph.executors:
        raise WorkflowCheckpointException(f"the checkpoint has a message of unknown executor {source_id!r}")
    routing = await route(graph, source_id=source_id, target_id=message.target_id, message=message.data)
    if routing.undelivered is not None:
        raise WorkflowCheckpointException(
            f"the checkpoint has a message of executor {source_id!r} that can't be delivered: {routing.undelivered}"
        )
    data = values.fix(message.data, f"message of executor {source_id!r}")
    sender = Activation(source_id, ordinal, Delivery(source_id, (), (), send="saved"))
    return Effects(sender, sends=(RoutedMessage(data, message.target_id, routing.targets, routing.fan_ins),))


def convert_values(snapshot: Snapshot, before: Values, after: Values) -> Snapshot:
    """Return the snapshot with all values decoded by one keeper and encoded by another.

    A run needs this when it moves from memory into a storage, or back.
    """

    def convert(value: object) -> object:
        kept = as_kept(value)
        return kept if kept.is_lost else after.fix(before.give(value), kept.path)

    def request(old: Request) -> Request:
        return replace(old, data=convert(old.data), default=None if old.default is None else convert(old.default))

    def delivery(old: Delivery) -> Delivery:
        answers = None if old.answers is None else request(old.answers)
        return replace(old, values=tuple(map(convert, old.values)), answers=answers)

    return replace(
        snapshot,
        deliveries=tuple(map(delivery, snapshot.deliveries)),
        fan_in={
            group_id: {source: tuple(map(convert, kept)) for source, kept in buffer.items()}
            for group_id, buffer in snapshot.fan_in.items()
        },
        state={key: convert(value) for key, value in snapshot.state.items()},
        executors={key: convert(value) for key, value in snapshot.executors.items()},
        requests={key: request(value) for key, value in snapshot.requests.items()},
        outputs=Trail().extended(replace(each, data=convert(each.data)) for each in snapshot.outputs),
        children={key: convert_values(child, before, after) for key, child in snapshot.children.items()},
        kwargs=None if snapshot.kwargs is None else convert(snapshot.kwargs),
        suspended=tuple(replace(each, delivery=delivery(each.delivery)) for each in snapshot.suspended),
        delayed=tuple(replace(each, data=convert(each.data)) for each in snapshot.delayed),
        # Journal records stay as they are, but bring their blobs along to another store.
        carried={key: as_kept(value).with_blobs() for key, value in snapshot.carried.items()},
    )
