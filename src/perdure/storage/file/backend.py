"""A store in a directory of readable files, for all processes of a machine.

<checkpoint id>.json     a checkpoint with its small blobs and the events of its commit
.perdure/parts/          blobs that are too large for that, or do not change, by hash
.perdure/runs/           a log for each run
.perdure/journal/        for a run what it has finished since its newest checkpoint
.perdure/inbox/          for a run the commands that wait for it
.perdure/events/         for a run the events of checkpoints that were removed
.perdure/forks/          for a checkpoint the forks that need it
.perdure/owners/         a lock file for each process that leases runs
.perdure/undertaking/    the files and the plan of a transaction (under its former name)
.perdure/tenants/        for each tenant the same again
.perdure/lock, counter   the lock of the directory, and the numbers of commits and leases

A commit waits for three fsyncs: one of the line in the run's log, one of its file before the file gets its name, so
that no name stands for half a file, and one of the directory, so that the name is durable. Blobs in files of their own
cost one for each file and one for all names.

There are no indexes, and nothing is kept in memory but what file may contain a small blob. A list of runs or
checkpoints reads every log or checkpoint. Every operation holds the lock of the directory.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar
from urllib.parse import unquote

from perdure.clock import Clock, SystemClock
from perdure.errors import (
    CheckpointDamagedError,
    CheckpointNotFoundError,
    CheckpointWriteError,
    StorageReadOnlyError,
    WorkflowCheckpointException,
)
from perdure.records import (
    Archive,
    Blob,
    Command,
    Commit,
    EventBatch,
    Halt,
    JournalRecord,
    Lease,
    Manifest,
    Mark,
    NewRun,
    Retention,
    RunRecord,
    RunStatus,
)
from perdure.storage import retention as retention_rules, rules
from perdure.storage.disk import Disk
from perdure.storage.file import history, lines
from perdure.storage.file.checkpoints import CheckpointFile, RunAfter, choose_inline, usual_id
from perdure.storage.file.directory import RUNS, Directory
from perdure.storage.file.run_files import CONSUMED_MAX, LogLine, RunFiles, after_commit, event_line
from perdure.storage.group_commit import Pending, PendingCommit, PendingRecords
from perdure.storage.owners import LEASE_SECONDS, Owners, require_lease
from perdure.storage.port import Durability, require_durability
from perdure.storage.rules import file_name
from perdure.storage.store import BackedStore
from perdure.storage.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping, Sequence


_CACHED_TENANTS_MAX = 64
_NUMBERS_PER_CHECK = 100
_BLOBS_MIN = 200

T = TypeVar("T")
logger = logging.getLogger(__name__)


def _listed(read: Callable[[], T]) -> T | None:
    """Read an entry of a list. Leave it out if it is damaged, and log that."""
    try:
        return read()
    except CheckpointDamagedError as error:
        logger.warning("left out of the list: %s", error)
        return None


class FileBackend:
    """The runs in one directory, blocking. Every tenant has a directory of its own below it."""

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
        self._tenants: dict[str, Self] = {}
        self._checked = -1
        with self.errors():
            self._files = Directory(disk, directory, create=create and not disk.read_only)
        if disk.read_only and owners is None and not self._files.exists:
            raise WorkflowCheckpointException(f"there is no storage in {str(directory)!r}; check the path")
        self._owners = owners or Owners(self._files.owners, lease_seconds=lease_seconds)
        self._history = history.History(self._files, retention, clock, self._owners)

    def for_tenant(self, tenant: str, *, creates: bool) -> Self:
        """Return the backend of a tenant. Unless `creates` is set, nothing is made for one that has no data yet."""
        backend = self._tenants.get(tenant)
        if backend is None:
            backend = type(self)(
                self._files.tenants / file_name(tenant),
                retention=retention_rules.of_tenant(self._retention, tenant),
                clock=self._clock,
                disk=self._disk,
                owners=self._owners,
                create=creates,
            )
        if backend._files.exists:
            if len(self._tenants) > _CACHED_TENANTS_MAX:
                self._tenants.clear()
            self._tenants[tenant] = backend
        return backend

    def acquire(self, run_id: str, *, create: NewRun | None, takeover: bool, token: int | None) -> Lease:
        with self._files.lock():
            run, line = self._find(run_id)
            if line is None:
                self._require_unused(run_id)
            state = rules.require_leasable(
                line and line.state,
                run_id,
                create=create,
                takeover=takeover,
                is_replaceable=self._owners.is_replaceable,
                token=token,
            )
            number = self._files.counter.take()
            # A token from outside may be larger than any number that was taken here.
            token = max(number, state.token + 1) if token is None else token
            owner = self._owners.enter((self._path, run_id, token))
            acquired = rules.acquire(state, owner=owner, token=token)
            if line is not None:
                run.events.drop_unnumbered(line)
            if state.is_new or line is None:
                self._begin(run, acquired)
                line = LogLine("claim", acquired, newest=None, life=number)
            run.log.append(replace(line, change="claim", state=acquired, subject=None))
        record, previous = acquired.record, rules.replaced_owner(state)
        return Lease(run_id, acquired.token, owner, record.attempts, state.record.halt, record, previous)

    def _require_unused(self, run_id: str) -> None:
        """Refuse an id that has a checkpoint but no log."""
        first = self._files.checkpoints.find(usual_id(run_id, rules.BEFORE_THE_FIRST + 1))
        if first and first.manifest.run_id == run_id:
            raise CheckpointDamagedError(first.manifest.checkpoint_id, "the log of its run is gone")

    def _begin(self, run: RunFiles, state: rules.RunState) -> None:
        """Remove what an earlier run of this id has left, and note what a fork needs."""
        for file in (run.journal, run.inbox, run.events):
            file.drop()
        if state.needed_checkpoint is not None:
            self._files.forks.add(state.needed_checkpoint, state.record.run_id)

    def release(self, lease: Lease, *, halt: Halt | None) -> None:
        with self._locked(lease.run_id) as (run, line):
            if line and rules.is_held(line.state, lease):
                if line.state.is_known:
                    self._release(run, line, halt)
                else:
                    run.journal.drop()
                    self._disk.remove(run.log.path)
        self._owners.leave((self._path, lease.run_id, lease.token))

    def _release(self, run: RunFiles, line: LogLine, halt: Halt | None) -> None:
        # So that other processes notice the change.
        self._files.counter.take()
        batch = rules.number_events(line.state, halt) if halt is not None else None
        if batch is not None and halt is not None and halt.events is not None:
            inline, large = lines.split_blobs(halt.events.blobs)
            self._files.blobs.add(large)
            # They count once the line of the log does. If the process dies before that, the next lease removes them.
            run.events.append(line, [event_line(line.life, batch, batch.moment, inline)])
        run.log.append(replace(line, change="release", state=rules.release(line.state, halt=halt), subject=None))

    def write(self, pending: Sequence[Pending]) -> None:
        """Write each entry whole or not at all, in order. Note the error of an entry that was not written."""
        records: dict[str, list[PendingRecords]] = {}
        for each in pending:
            match each:
                case PendingRecords():
                    records.setdefault(each.lease.run_id, []).append(each)
                case PendingCommit():
                    self._record(records.pop(each.lease.run_id, []))
                    with _error_of(each), self._files.lock():
                        self._commit(each)
        for waiting in records.values():
            self._record(waiting)

    def _record(self, waiting: Sequence[PendingRecords]) -> None:
        """Append the records of one run to its journal: one line for each call, all in one write."""
        calls: list[tuple[Sequence[JournalRecord], Sequence[Blob]]] = []
        found: tuple[RunFiles, LogLine] | None = None
        with _error_of(*waiting), self._files.lock():
            for each in waiting:
                with _error_of(each):
                    found = self._require(each.lease, expected_head=each.head)
                    inline, large = lines.split_blobs(blob for record in each.records for blob in record.blobs)
                    self._files.blobs.add(large)
                    calls.append((each.records, inline))
            if found and calls:
                run, line = found
                run.journal.append(line, calls)
                if line.record.attempts and any(record.is_progress for records, _ in calls for record in records):
                    # The first record after a lease was taken shows that this attempt is not in vain.
                    state = rules.note_progress(line.state)
                    run.log.append(replace(line, change="progress", state=state, subject=None))

    def _find(self, run_id: str) -> tuple[RunFiles, LogLine | None]:
        """Return the run's files, and its newest log line; None if it has no log."""
        run = self._files.run(run_id)
        return run, run.current()

    @contextlib.contextmanager
    def _locked(self, run_id: str) -> Generator[tuple[RunFiles, LogLine | None]]:
        """Lock the directory, and find a run."""
        with self._files.lock():
            yield self._find(run_id)

    def _require(self, lease: Lease, *, expected_head: str | None) -> tuple[RunFiles, LogLine]:
        """Return the run's files and its newest log line. Refuse a lease that is lost, or another head."""
        run, line = self._find(lease.run_id)
        state = rules.require_lease(line and line.state, lease, expected_head=expected_head)
        rules.require_head(state, expected_head)
        assert line is not None, "a state comes from a line"
        return run, line

    def _commit(self, pending: PendingCommit) -> None:
        lease, commit, files = pending.lease, pending.commit, self._files
        run, before = self._require(lease, expected_head=commit.expected_head)
        rules.require_next(before.state, commit)
        parent = before.state.needed_checkpoint
        if parent is not None and not files.checkpoints.exists(parent):
            rules.require_complete(before.state, commit)
        if files.checkpoints.exists(commit.manifest.checkpoint_id):
            raise rules.duplicate_checkpoint_error(commit.manifest.checkpoint_id)
        waiting = run.inbox.waiting(before)
        rules.require_consumed({command.id for command in waiting}, commit)
        consumed = [command for command in waiting if command.id in commit.consumed]
        if run.journal.is_void(before):
            # A deleted checkpoint may have left it, and this commit may have its id.
            run.journal.drop()
        if len(before.consumed) > CONSUMED_MAX:
            run.inbox.shorten(before)
            before = replace(before, consumed=())
        file = self._checkpoint(before, commit)
        run_after = RunAfter(
            after=before.record.head,
            consumed=(*before.consumed, *(command.number for command in consumed)),
            forgotten=self._history.forgotten_events(run, before, file.entry),
        )
        after = after_commit(before, file, run_after)
        record = replace(after.record, **rules.new_facts(before.record, commit))
        after = replace(after, state=replace(after.state, record=record))
        # The log line counts only if its checkpoint file exists. Writing that file, last, is the commit.
        run.log.append(after)
        files.checkpoints.put(replace(file, run=run_after))
        pending.newest_command = max((command.number for command in waiting if command not in consumed), default=0)
        # The commit has happened. If this fails, the next commit tries again.
        with contextlib.suppress(OSError, WorkflowCheckpointException):
            run.journal.drop()
            if consumed and not pending.newest_command:
                self._history.flush(run, after)
                run.inbox.drop()
            if after.forgotten > before.forgotten:
                run.events.shorten(after)
            self._history.prune(run, after)
            self._history.remove_finished(pending)

    def _checkpoint(self, before: LogLine, commit: Commit) -> CheckpointFile:
        """Return the file of a commit. Blobs that do not go into it are written now."""
        previous = self._files.checkpoints.find(commit.expected_head) if commit.expected_head else None
        manifest, events = commit.manifest, commit.events
        inline, beside = choose_inline(
            (*manifest.roots, *(events.refs if events else ())),
            carried=previous.blobs if previous else {},
            new={blob.hash: blob for blob in (*commit.blobs, *(events.blobs if events else ()))},
        )
        self._files.blobs.add(beside.values())
        return CheckpointFile(
            manifest=manifest,
            settled=commit.settled,
            sequence=self._files.counter.take(),
            blobs=inline,
            status=commit.status,
            wake_at=commit.wake_at,
            events=before.record.events + (events.count if events else 0),
            batch=rules.number_events(before.state, commit),
        )

    def rewind(self, lease: Lease, *, expected_head: str, to: str, nonce: str) -> None:
        with self._files.lock():
            run, line = self._require(lease, expected_head=expected_head)
            file = self._files.checkpoints.find(to)
            if file is None or file.manifest.run_id != lease.run_id:
                raise CheckpointNotFoundError(to)
            consumed = (*line.consumed, *run.inbox.expecting(line))
            self._files.counter.take()
            state = rules.move_head(
                line.state, head=to, settled=file.settled, nonce=nonce, status=file.status, wake_at=file.wake_at
            )
            run.log.append(replace(line, change="rewind", state=state, subject=to, consumed=consumed))
            # The head has moved, so the journal is void even if it can't be removed.
            with contextlib.suppress(OSError):
                run.journal.drop()

    def run(self, run_id: str) -> RunRecord | None:
        with self._files.lock():
            _, line = self._find(run_id)
        return line.record if line and line.state.is_known else None

    def runs(self, *, workflow_name: str | None, status: RunStatus | None) -> Sequence[RunRecord]:
        with self._files.lock():
            lines = [line for run in self._files.runs() if (line := _listed(run.current))]
            known = [line for line in lines if line.state.is_known]
        records = (line.record for line in sorted(known, key=lambda line: line.life))
        return [
            record
            for record in records
            if workflow_name in {None, record.workflow_name} and status in {None, record.run_status}
        ]

    def archive(self, run_id: str) -> Archive:
        with self._files.lock():
            return history.archive(self._files, run_id)

    def close_run(self, run_id: str, *, halt: Halt, instead_of: Halt | None, takeover: bool) -> bool:
        with self._locked(run_id) as (run, line):
            state = rules.find_closable(
                line and line.state, run_id, instead_of=instead_of, takeover=takeover, is_gone=self._owners.is_gone
            )
            if line is None or state is None:
                return False
            self._release(run, line, halt)
            # A run that goes on in another store must not do so here, even after a power cut with durability "os".
            self._disk.secure(run.log.path)
        return True

    def restore(self, archive: Archive) -> None:
        with self._files.lock():
            history.restore(self._files, archive)

    def remove(self, run_id: str, *, takeover: bool) -> bool:
        with self._locked(run_id) as (run, line):
            if not rules.is_removable(
                line and line.state,
                takeover=takeover,
                is_replaceable=self._owners.is_replaceable,
                fork=next(iter(history.forks_of(self._files, run)), None),
            ):
                return False
            self._files.counter.take()
            self._history.remove(run)
        return True

    def journal(self, run_id: str) -> Sequence[JournalRecord]:
        with self._locked(run_id) as (run, line):
            return run.journal.records(line) if line else ()

    def post(self, run_id: str, command: Command) -> Command:
        with self._locked(run_id) as (run, line):
            waiting = run.inbox.waiting(line) if line else ()
            earlier = next((each for each in waiting if each.id == command.id), None)
            if earlier and line:
                run.inbox.sync(line)
                return earlier
            head = line.record.head if line and command.expects is not None else None
            file = self._files.checkpoints.find(head) if head else None
            rules.require_postable(line and line.state, run_id, command, file.manifest.toc if file else {})
            assert line is not None, "a run that is known has a line"
            inline, large = lines.split_blobs(command.blobs)
            self._files.blobs.add(large)
            posted = rules.number_command(command, number=self._files.counter.take())
            run.inbox.append(line, posted, inline)
        return posted

    def inbox(self, run_id: str) -> Sequence[Command]:
        with self._locked(run_id) as (run, line):
            return run.inbox.waiting(line) if line else ()

    def events(self, run_id: str, *, after: int, limit: int) -> Sequence[EventBatch]:
        with self._locked(run_id) as (run, line):
            return history.read_events(self._files, run, line, after=after, limit=limit) if line else ()

    def mark(self, run_id: str) -> Mark:
        """Return the run's mark. It is asked for often."""
        with self._locked(run_id) as (run, line):
            if line is None or not line.state.is_known:
                return Mark()
            newest = max((command.number for command in run.inbox.waiting(line)), default=0)
        record = line.record
        return Mark(record.head, record.events, newest, self._owners.living(record.owner), record.halt is not None)

    def changes(self) -> object:
        """Return a value that differs once any process has changed anything here. It is asked for often."""
        # Under the lock: a number is taken before the change that it belongs to. A reader between the two would think
        # that it has seen the change.
        with self._files.lock():
            return self._files.counter.content()

    def manifest(self, checkpoint_id: str) -> Manifest:
        with self._files.lock():
            file = self._files.checkpoints.find(checkpoint_id)
        if file is None:
            raise CheckpointNotFoundError(checkpoint_id)
        return file.manifest

    def manifests(self, *, workflow_name: str | None, run_id: str | None) -> Sequence[Manifest]:
        with self._files.lock():
            files = self._files.checkpoints
            if run_id is None:
                read = [functools.partial(files.read, path) for path in files.paths()]
                # Programs resume the last one of a workflow: it must not be an older one silently.
                every = [each() for each in read] if workflow_name is not None else map(_listed, read)
                found = [file for file in every if file is not None]
            else:
                found = list(self._files.run(run_id).log.files())
            chosen = [each for each in found if workflow_name in {None, each.manifest.workflow_name}]
        return [each.manifest for each in sorted(chosen, key=lambda each: each.sequence)]

    def ids(self, *, workflow_name: str | None) -> Sequence[str]:
        return [manifest.checkpoint_id for manifest in self.manifests(workflow_name=workflow_name, run_id=None)]

    def latest(self, *, workflow_name: str) -> Manifest | None:
        with self._files.lock():
            runs = [line for run in self._files.runs() if (line := run.current())]
            entries = [line.newest for line in runs if line.newest and line.record.workflow_name == workflow_name]
            newest = max(entries, key=lambda entry: entry.sequence, default=None)
            file = self._files.checkpoints.find(newest.checkpoint_id) if newest else None
        return file.manifest if file else None

    def blobs(self, roots: Iterable[str]) -> Mapping[str, bytes]:
        with self._files.lock():
            return {blob_hash: blob.data for blob_hash, blob in self._files.find_blobs(roots).items()}

    def delete(self, checkpoint_id: str) -> bool:
        with self._files.lock():
            if not self._files.checkpoints.exists(checkpoint_id):
                return False
            self._files.counter.take()
            self._history.delete_checkpoint(checkpoint_id)
        return True

    def collect(self) -> int:
        self._history.expire()
        return history.collect(self._files)

    def is_collection_due(self) -> bool:
        """Ask, now and then, whether the number of blobs has doubled since the last collection."""
        checked, self._checked = self._checked, self._files.counter.last // _NUMBERS_PER_CHECK
        if checked == self._checked:
            return False
        with self._files.lock():
            return len(self._files.blobs.names()) > _BLOBS_MIN + 2 * self._files.counter.kept()

    def migrate(self) -> Sequence[str]:
        """Return the migrations that opening the directory has made, once."""
        if self._disk.read_only:
            raise StorageReadOnlyError(str(self._path))
        applied, self._files.applied = self._files.applied, ()
        return applied

    def backup(self, path: Path) -> None:
        """Write a copy to a new directory. Each tenant's directory is copied as of one moment."""
        if path.exists():
            raise WorkflowCheckpointException(f"the directory {str(path)!r} exists already; choose another one")
        aside = path.with_name(f"{path.name}.part")
        try:
            shutil.rmtree(aside, ignore_errors=True)
            _copy(self._disk, self._path, aside)
            os.sync()
            aside.rename(path)
        finally:
            shutil.rmtree(aside, ignore_errors=True)

    def damage(self) -> str | None:
        """Return None: files have no damage beside that of runs."""

    def run_ids(self) -> Sequence[str]:
        """Return the ids of all runs, also of those that have lost their log, and of long ids the first part."""
        files = [path.name.removesuffix(".json") for path in self._files.checkpoints.paths()]
        names = [name.removesuffix(".log") for name in self._files.names(RUNS)]
        found = [*names, *(name.rpartition("@")[0] for name in files if "@" in name and "~" not in name)]
        return [self._full_id(name) for name in dict.fromkeys(found)]

    def _full_id(self, name: str) -> str:
        if "~" in name:
            with self._files.lock(), contextlib.suppress(WorkflowCheckpointException):
                if line := self._files.run_named(f"{name}.log").current():
                    return line.record.run_id
        return unquote(name, errors="surrogatepass")

    def checkpoint_ids(self, run_id: str) -> Sequence[str]:
        """Return the ids of a run's checkpoints, damaged ones included."""
        with self._locked(run_id) as (run, line):
            if line is not None:
                return [entry.checkpoint_id for entry in run.log.entries()]
            first = usual_id(run_id, rules.BEFORE_THE_FIRST + 1)
            return [first] if self._files.checkpoints.exists(first) else []

    def close(self) -> None:
        """Release the lock file. No other file stays open between two operations."""
        self._owners.close()

    @contextlib.contextmanager
    def errors(self) -> Generator[None]:
        """Turn errors of the file system into perdure's."""
        try:
            yield
        except OSError as error:
            raise WorkflowCheckpointException(
                f"the directory {str(self._path)!r} can't be used: {error}; check that it is writable and that the "
                "disk has space left, then try again"
            ) from error


def _copy(disk: Disk, source: Path, target: Path) -> None:
    """Copy a directory and those of its tenants, each under its lock."""
    own = source / ".perdure"
    with disk.lock(own / "lock"):
        shutil.copytree(
            source, target, ignore=lambda directory, _: {"tenants", "owners"} if Path(directory) == own else set()
        )
    for name in disk.names(own / "tenants"):
        _copy(disk, own / "tenants" / name, target / ".perdure" / "tenants" / name)


@contextlib.contextmanager
def _error_of(*pending: Pending) -> Generator[None]:
    """Give an error to those who wait for these writes, and not to the others."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - see above
        for each in pending:
            failure = error
            if isinstance(error, OSError):
                failure = CheckpointWriteError(run_id=each.lease.run_id, reason=error.strerror or str(error))
                failure.__cause__ = error
            each.error = each.error or failure


class FileStore(BackedStore[FileBackend]):
    """Runs in a directory. It is made when it is first needed."""

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        retention: Retention | None = None,
        clock: Clock | None = None,
        disk: Disk | None = None,
        lease_seconds: float = LEASE_SECONDS,
        durability: Durability = "commit",
        read_only: bool = False,
    ) -> None:
        self.directory = Path(directory).absolute()
        open_backend = functools.partial(
            FileBackend,
            self.directory,
            retention=retention or Retention(),
            clock=clock or SystemClock(),
            disk=disk or Disk(durability=require_durability(durability), read_only=read_only),
            lease_seconds=require_lease(lease_seconds),
        )
        worker = Worker(f"perdure {self.directory.name}", open_backend)
        collector = Worker(f"perdure {self.directory.name} collector", open_backend)
        super().__init__(f"file:{self.directory.resolve()}", worker, collector=collector)
