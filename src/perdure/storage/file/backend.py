"""The operations of the file store, blocking. Whoever changes something holds the lock of the directory."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from perdure.errors import (
    CheckpointDamagedError,
    CheckpointNotFoundError,
    CheckpointWriteError,
    WorkflowCheckpointException,
)
from perdure.records import Lease, Mark
from perdure.storage import retention as keep
from perdure.storage import rules
from perdure.storage.file import lines, transfer
from perdure.storage.file.blobs import place
from perdure.storage.file.checkpoint_file import CheckpointFile, RunAfter, usual_id
from perdure.storage.file.directory import Directory
from perdure.storage.file.history import History, collect, read_events
from perdure.storage.file.run_files import CONSUMED_MAX, split_records
from perdure.storage.file.run_log import LogLine
from perdure.storage.group_commit import PendingCommit, PendingRecords
from perdure.storage.ids import file_name
from perdure.storage.owners import LEASE_SECONDS, Owners

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Mapping, Sequence
    from pathlib import Path

    from perdure.clock import Clock
    from perdure.records import (
        Archive,
        Blob,
        Command,
        Commit,
        EventBatch,
        Halt,
        JournalRecord,
        Manifest,
        NewRun,
        Owner,
        Retention,
        RunRecord,
        RunStatus,
    )
    from perdure.storage.disk import Disk
    from perdure.storage.file.run_log import RunLog
    from perdure.storage.group_commit import Pending

_CACHED_TENANTS_MAX = 64


class FileBackend:
    """The runs in one directory. Every tenant has a directory of its own below it."""

    def __init__(
        self,
        directory: Path,
        *,
        retention: Retention,
        clock: Clock,
        disk: Disk,
        lease_seconds: float = LEASE_SECONDS,
        owners: Owners | None = None,
        create: bool = True,
    ) -> None:
        self._path = directory
        self._disk = disk
        self._retention = retention
        self._clock = clock
        self._tenants: OrderedDict[str, FileBackend] = OrderedDict()
        self._proportion = keep.Proportion()
        with self._errors():
            self._files = Directory(disk, directory, create=create)
        self._owners = owners or Owners(self._files.owners, lease_seconds=lease_seconds)
        self._history = History(self._files, retention, clock, self._owners)

    def for_tenant(self, tenant: str, *, creates: bool) -> FileBackend:
        if not tenant:
            return self
        backend = self._tenants.pop(tenant, None)
        if backend is None:
            backend = FileBackend(
                self._files.tenants / file_name(tenant),
                retention=keep.of_tenant(self._retention, tenant),
                clock=self._clock,
                disk=self._disk,
                owners=self._owners,
                create=creates,
            )
        if backend._files.exists:
            self._tenants[tenant] = backend
            if len(self._tenants) > _CACHED_TENANTS_MAX:
                self._tenants.popitem(last=False)
        return backend

    def acquire(self, run_id: str, *, create: NewRun | None, takeover: bool, token: int | None) -> Lease:
        with self._errors(), self._files.lock():
            log = self._files.logs.of(run_id)
            line = log.current()
            if line is None:
                self._require_unused(run_id)
            state = rules.require_leasable(
                line.state if line else None,
                run_id,
                create=create,
                takeover=takeover,
                is_replaceable=self._owners.is_replaceable,
                token=token,
            )
            owner, number = self._owners.enter(), self._files.counter.take()
            # A token from outside may be larger than any number that was taken here.
            acquired = rules.acquire(state, owner=owner, token=max(number, state.token + 1) if token is None else token)
            if state.is_new or line is None:
                self._begin(log, acquired, life=number)
            else:
                # A lease need not survive the machine, because its owner does not.
                log.append(replace(line, change="claim", state=acquired, subject=None), sync=False)
        return Lease(run_id, acquired.token, owner, acquired.record.attempts, state.record.halt, acquired.record)

    def _require_unused(self, run_id: str) -> None:
        """Refuse an id that has a checkpoint but no log."""
        first = self._files.checkpoints.find(usual_id(run_id, rules.BEFORE_THE_FIRST + 1))
        if first and first.manifest.run_id == run_id:
            raise CheckpointDamagedError(first.manifest.checkpoint_id, "the log of its run is gone")

    def _begin(self, log: RunLog, state: rules.RunState, *, life: int) -> None:
        """Begin a run, without anything that an earlier run of its id has left."""
        name, parent = log.path.name, state.needed_checkpoint
        self._files.drop_journal(name)
        self._files.inboxes.named(name).drop()
        self._files.events.named(name).drop()
        if parent is not None:
            self._files.forks.add(parent, state.record.run_id)
        log.append(LogLine("claim", state, newest=None, life=life), sync=parent is not None)
        if parent is not None:
            self._files.logs.sync()

    def release(self, lease: Lease, *, halt: Halt | None) -> None:
        with self._errors(), self._files.lock():
            log = self._files.logs.of(lease.run_id)
            line = log.current()
            if line is None or not rules.is_held(line.state, lease):
                return
            if line.state.is_known:
                self._files.counter.take()
                state = rules.release(line.state, halt=halt)
                # The end of a lease need not survive the machine. A halt must.
                log.append(replace(line, change="release", state=state, subject=None), sync=halt is not None)
            else:
                self._files.drop_journal(log.path.name)
                self._disk.remove(log.path)

    def write(self, pending: Sequence[Pending]) -> None:
        records: dict[str, list[PendingRecords]] = {}
        for each in pending:
            match each:
                case PendingRecords():
                    records.setdefault(each.lease.run_id, []).append(each)
                case PendingCommit():
                    if each.lease.run_id in records:
                        self._record(records.pop(each.lease.run_id))
                    with _error_of(each), self._files.lock():
                        self._commit(each)
        for waiting in records.values():
            self._record(waiting)

    def _record(self, waiting: Sequence[PendingRecords]) -> None:
        """Append the records of one run to its journal: one line for each call, all in one write."""
        calls: list[tuple[Sequence[JournalRecord], Sequence[Blob]]] = []
        run: LogLine | None = None
        is_progress = False
        with _error_of(*waiting), self._files.lock():
            for each in waiting:
                with _error_of(each):
                    run = self._require(each.lease, expected_head=each.head)
                    records, inline, large = split_records(each.records)
                    self._files.blobs.add(large)
                    calls.append((records, inline))
                    is_progress = is_progress or any(record.is_progress for record in each.records)
            if run and calls:
                journal = self._files.journals.of(run.record.run_id)
                journal.append(run.record, calls, sync=any(each.is_durable for each in waiting))
                if is_progress and run.record.attempts:
                    # The first record after a claim shows that this attempt is not in vain.
                    progressed = replace(run, change="progress", state=rules.note_progress(run.state), subject=None)
                    self._files.logs.of(run.record.run_id).append(progressed, sync=False)

    def _require(self, lease: Lease, *, expected_head: str | None) -> LogLine:
        """Return the run if the lease is still valid and the head is the expected one."""
        line = self._line(lease.run_id)
        state = rules.require_lease(line.state if line else None, lease, expected_head=expected_head)
        rules.require_head(state, expected_head)
        assert line is not None, "a state comes from a line"
        return line

    def _commit(self, pending: PendingCommit) -> None:
        lease, commit, files = pending.lease, pending.commit, self._files
        log, inbox = files.logs.of(lease.run_id), files.inboxes.of(lease.run_id)
        before = self._require(lease, expected_head=commit.expected_head)
        rules.require_next(before.state, commit)
        parent = before.state.needed_checkpoint
        if parent is not None and not files.checkpoints.exists(parent):
            rules.require_complete(before.state, commit)
        if files.checkpoints.exists(commit.manifest.checkpoint_id):
            raise rules.duplicate_checkpoint_error(commit.manifest.checkpoint_id)
        waiting = inbox.waiting(before)
        rules.require_consumed({command.id for command in waiting}, commit)
        consumed = [command for command in waiting if command.id in commit.consumed]
        # A deleted checkpoint may have left a journal, and this commit may have its id.
        files.journals.of(lease.run_id).drop_if_void(before.record)
        file = self._checkpoint(before, commit)
        if len(before.consumed) > CONSUMED_MAX:
            inbox.shorten(before)
            before = replace(before, consumed=())
        after = LogLine(
            change="commit",
            state=rules.commit(before.state, commit),
            newest=file.entry,
            subject=file.entry.checkpoint_id,
            life=before.life,
            consumed=(*before.consumed, *(command.number for command in consumed)),
            forgotten=self._history.forgotten_events(log, before, file.entry),
        )
        self._put(log, before, after, file)
        pending.waiting = max((command.number for command in waiting if command not in consumed), default=0)
        # The commit has happened. If this fails, the next commit tries again.
        with contextlib.suppress(OSError, WorkflowCheckpointException):
            self._drop_void(log, before, after, consumed)
            self._history.prune(log, after)
            self._history.remove_finished(pending)

    def _checkpoint(self, before: LogLine, commit: Commit) -> CheckpointFile:
        """Return the file of a commit. Blobs that do not go into it are written now."""
        previous = self._files.checkpoints.find(commit.expected_head) if commit.expected_head else None
        manifest, events = commit.manifest, commit.events
        inline, beside = place(
            (*manifest.roots, *(events.refs if events else ())),
            carried=previous.blobs if previous else {},
            new={blob.hash: blob for blob in (*commit.blobs, *(events.blobs if events else ()))},
        )
        file = CheckpointFile(
            manifest=replace(manifest, toc=MappingProxyType(dict(manifest.toc))),
            settled=commit.settled,
            sequence=self._files.counter.take(),
            blobs=inline,
            status=commit.status,
            wake_at=commit.wake_at,
            events=before.record.events + (events.count if events else 0),
            batch=rules.number_events(before.state, commit),
        )
        self._files.blobs.add(beside.values())
        return file

    def _put(self, log: RunLog, before: LogLine, after: LogLine, file: CheckpointFile) -> None:
        """Write the checkpoint. When its file appears, everything else is there already."""
        is_first = before.record.position == rules.BEFORE_THE_FIRST
        next_id = usual_id(before.record.run_id, before.record.position + 1)
        # Readers look for a checkpoint of this id behind the end of the log.
        is_found = not is_first and file.manifest.checkpoint_id == next_id and log.has_room
        if not is_found:
            log.append(after, sync=True)
        if is_first:
            self._files.logs.sync()
        self._files.checkpoints.put(replace(file, run=RunAfter(before.record.head, after.consumed, after.forgotten)))
        if is_found:
            log.note_commit(after)

    def _drop_void(self, log: RunLog, before: LogLine, after: LogLine, consumed: Sequence[Command]) -> None:
        """Remove what the commit has made void."""
        files, name = self._files, log.path.name
        files.drop_journal(name)
        if consumed and not files.inboxes.named(name).waiting(after):
            self._history.flush(log, after)
            files.inboxes.named(name).drop()
        files.counter.add_pruned(sum(1 for command in consumed if command.refs))
        if after.forgotten > before.forgotten:
            files.events.named(name).shorten(after)
            files.counter.add_pruned(1)

    def rewind(self, lease: Lease, *, expected_head: str, to: str, nonce: str) -> None:
        with self._errors(), self._files.lock():
            log = self._files.logs.of(lease.run_id)
            line = self._require(lease, expected_head=expected_head)
            file = self._files.checkpoints.find(to)
            if file is None or file.manifest.run_id != lease.run_id:
                raise CheckpointNotFoundError(to)
            dropped = self._files.inboxes.of(lease.run_id).expecting(line)
            self._files.counter.take()
            state = rules.move_head(
                line.state, head=to, settled=file.settled, nonce=nonce, status=file.status, wake_at=file.wake_at
            )
            consumed = (*line.consumed, *dropped)
            log.append(replace(line, change="rewind", state=state, subject=to, consumed=consumed), sync=True)
            # The head has moved, so the journal is void even if it can't be removed.
            with contextlib.suppress(OSError):
                self._files.drop_journal(log.path.name)

    def run(self, run_id: str) -> RunRecord | None:
        with self._errors(), self._files.lock():
            line = self._line(run_id)
        return line.record if line and line.state.is_known else None

    def runs(self, *, workflow_name: str | None, status: RunStatus | None) -> Sequence[RunRecord]:
        with self._errors(), self._files.lock():
            known = [line for log in self._files.logs.all() if (line := log.current()) and line.state.is_known]
        records = (line.record for line in sorted(known, key=lambda line: line.life))
        return [
            record
            for record in records
            if workflow_name in {None, record.workflow_name} and status in {None, record.standing}
        ]

    def archive(self, run_id: str) -> Archive:
        with self._errors(), self._files.lock():
            return transfer.archive(self._files, run_id)

    def close_run(self, run_id: str, *, halt: Halt, instead_of: Halt | None, takeover: bool) -> bool:
        with self._errors(), self._files.lock():
            log = self._files.logs.of(run_id)
            line = log.current()
            state = rules.find_closable(
                line.state if line else None,
                run_id,
                instead_of=instead_of,
                takeover=takeover,
                is_given_up=self._is_given_up,
            )
            if line is None or state is None:
                return False
            self._files.counter.take()
            closed = rules.release(state, halt=halt)
            log.append(replace(line, change="release", state=closed, subject=None), sync=True)
            # A run that goes on in another store must not do so here, even after a power cut with durability "os".
            self._disk.secure(log.path)
        return True

    def _is_given_up(self, owner: Owner) -> bool:
        return owner.id != self._owners.enter().id and self._owners.is_replaceable(owner)

    def restore(self, archive: Archive) -> None:
        with self._errors(), self._files.lock():
            transfer.restore(self._files, archive)

    def remove(self, run_id: str, *, takeover: bool) -> bool:
        with self._errors(), self._files.lock():
            log = self._files.logs.of(run_id)
            line = log.current()
            if not rules.is_removable(
                line.state if line else None,
                takeover=takeover,
                is_replaceable=self._owners.is_replaceable,
                fork=next(iter(transfer.forks_of(self._files, log)), None),
            ):
                return False
            self._files.counter.take()
            self._history.remove(log)
        return True

    def journal(self, run_id: str) -> Sequence[JournalRecord]:
        with self._errors(), self._files.lock():
            line = self._line(run_id)
            return self._files.journals.of(run_id).records(line.record) if line else ()

    def post(self, run_id: str, command: Command) -> Command:
        with self._errors(), self._files.lock():
            line, inbox = self._line(run_id), self._files.inboxes.of(run_id)
            waiting = inbox.waiting(line) if line else ()
            earlier = next((each for each in waiting if each.id == command.id), None)
            if earlier and line:
                inbox.sync(line)
                return earlier
            head = line.record.head if line and command.expects is not None else None
            file = self._files.checkpoints.find(head) if head else None
            rules.require_postable(line.state if line else None, run_id, command, file.manifest.toc if file else {})
            assert line is not None, "a run that is known has a line"
            inline, large = lines.split_blobs(command.blobs)
            self._files.blobs.add(large)
            posted = rules.number_command(command, number=self._files.counter.take())
            inbox.append(line, posted, inline)
        return posted

    def inbox(self, run_id: str) -> Sequence[Command]:
        with self._errors(), self._files.lock():
            line = self._line(run_id)
            return self._files.inboxes.of(run_id).waiting(line) if line else ()

    def events(self, run_id: str, *, after: int, limit: int) -> Sequence[EventBatch]:
        with self._errors(), self._files.lock():
            log = self._files.logs.of(run_id)
            line = log.current()
            return read_events(self._files, log, line, after=after, limit=limit) if line else ()

    def mark(self, run_id: str) -> Mark:
        with self._errors(), self._files.lock():
            line = self._line(run_id)
            if line is None or not line.state.is_known:
                return Mark()
            newest = self._files.inboxes.of(run_id).newest(line)
        record = line.record
        return Mark(record.head, record.events, newest, self._owners.living(record.owner), record.halt is not None)

    def changes(self) -> object:
        # Under the lock: a number is taken before the change that it belongs to. A reader between the two would think
        # that it has seen the change.
        with self._errors(), self._files.lock():
            return self._files.counter.content()

    def _line(self, run_id: str) -> LogLine | None:
        return self._files.logs.of(run_id).current()

    def manifest(self, checkpoint_id: str) -> Manifest:
        with self._errors():
            self._files.finish_transaction()
            file = self._files.checkpoints.find(checkpoint_id)
        if file is None:
            raise CheckpointNotFoundError(checkpoint_id)
        return file.manifest

    def manifests(self, *, workflow_name: str | None, run_id: str | None) -> Sequence[Manifest]:
        with self._errors(), self._files.lock():
            found = self._files.checkpoints.all() if run_id is None else self._files.logs.of(run_id).files()
            chosen = [each for each in found if workflow_name in {None, each.manifest.workflow_name}]
        return [each.manifest for each in sorted(chosen, key=lambda each: each.sequence)]

    def ids(self, *, workflow_name: str | None) -> Sequence[str]:
        return [manifest.checkpoint_id for manifest in self.manifests(workflow_name=workflow_name, run_id=None)]

    def latest(self, *, workflow_name: str) -> Manifest | None:
        with self._errors(), self._files.lock():
            runs = [line for log in self._files.logs.all() if (line := log.current())]
            entries = [line.newest for line in runs if line.newest and line.record.workflow_name == workflow_name]
            newest = max(entries, key=lambda entry: entry.sequence, default=None)
            return self.manifest(newest.checkpoint_id) if newest else None

    def blobs(self, roots: Iterable[str]) -> Mapping[str, bytes]:
        with self._errors():
            return {blob_hash: blob.data for blob_hash, blob in self._files.find_blobs(roots).items()}

    def delete(self, checkpoint_id: str) -> bool:
        with self._errors(), self._files.lock():
            if not self._files.checkpoints.exists(checkpoint_id):
                return False
            self._files.counter.take()
            transfer.delete_checkpoint(self._files, self._history, checkpoint_id)
        return True

    def collect(self) -> int:
        with self._errors():
            return collect(self._files)

    def is_collection_due(self) -> bool:
        # As of the last commit of this process, so without a look at the disk.
        pruned = self._files.counter.last_pruned
        with self._errors():
            return self._proportion.is_reached(pruned=pruned, count=lambda: len(self._files.checkpoints.names()))

    def close(self) -> None:
        """Do nothing: no file stays open between two operations."""

    @contextlib.contextmanager
    def _errors(self) -> Generator[None]:
        try:
            yield
        except OSError as error:
            raise WorkflowCheckpointException(
                f"the directory {str(self._path)!r} can't be used: {error}; fix this and try again"
            ) from error

    errors = _errors


@contextlib.contextmanager
def _error_of(*pending: Pending) -> Generator[None]:
    """Give an error to those who wait for these writes, and not to the others."""
    try:
        yield
    except OSError as error:
        for each in pending:
            failure = CheckpointWriteError(run_id=each.lease.run_id, reason=error.strerror or str(error))
            failure.__cause__ = error
            each.error = each.error or failure
    except Exception as error:  # noqa: BLE001 - see above
        for each in pending:
            each.error = each.error or error
