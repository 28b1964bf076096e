"""What the file store's thread does with the directory. Whoever changes something holds the directory's lock."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from dataclasses import replace
from typing import TYPE_CHECKING

from perdure.errors import (
    CheckpointDamagedError,
    CheckpointNotFoundError,
    CheckpointWriteError,
    WorkflowCheckpointException,
)
from perdure.records import Claim, Mark
from perdure.storage import retention as keep
from perdure.storage import rules
from perdure.storage.backend import PendingCommit, PendingRecords
from perdure.storage.disk import EmptyDisk
from perdure.storage.file import lineparts
from perdure.storage.file.collecting import Collecting
from perdure.storage.file.committing import Committing, require
from perdure.storage.file.deleting import Deleting
from perdure.storage.file.forgetting import Forgetting
from perdure.storage.file.gathering import Gathering
from perdure.storage.file.layout import Layout, is_laid_out
from perdure.storage.file.listing import Listing
from perdure.storage.file.runjournal import Stay, split
from perdure.storage.file.runline import RunLine
from perdure.storage.file.telling import Telling
from perdure.storage.file.transferring import Transferring
from perdure.storage.ids import file_name
from perdure.storage.owners import LEASE_SECONDS, Owners

if TYPE_CHECKING:
    from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
    from pathlib import Path

    from perdure.clock import Clock
    from perdure.records import (
        Archive,
        Command,
        Due,
        EventBatch,
        Halt,
        JournalRecord,
        Manifest,
        NewRun,
        Retention,
        RunRecord,
        RunStatus,
    )
    from perdure.storage.backend import Pending
    from perdure.storage.disk import Disk
    from perdure.storage.file.document import Document
    from perdure.storage.file.runjournal import JournalLine
    from perdure.storage.file.runlog import RunLog


_REMEMBERED_TENANTS_MAX = 64


class FileBackend:
    """The runs in one directory. Every tenant has a directory of its own, below this one's."""

    def __init__(
        self,
        directory: Path,
        *,
        retention: Retention,
        clock: Clock,
        disk: Disk,
        lease_seconds: float = LEASE_SECONDS,
        owners: Owners | None = None,
    ) -> None:
        self._directory = directory
        self._disk = disk
        self._retention = retention
        self._clock = clock
        self._tenants: OrderedDict[str, FileBackend] = OrderedDict()
        with self._errors():
            files = self._files = Layout.open(disk, directory)
        self._owners = owners or Owners(files.owners, lease_seconds=lease_seconds)
        self._telling = Telling(
            retention=retention,
            clock=clock,
            documents=files.documents,
            files=files.events,
            protection=files.protection,
        )
        self._proportion = keep.Proportion()
        self._gathering = Gathering(files)
        self._collecting = Collecting(layout=files, lock=self._lock)
        self._deleting = Deleting(layout=files, telling=self._telling)
        forgetting = Forgetting(
            retention=retention, clock=clock, layout=files, telling=self._telling, owners=self._owners
        )
        self._committing = Committing(layout=files, telling=self._telling, forgetting=forgetting)
        self._listing = Listing(layout=files, owners=self._owners)
        self._transferring = Transferring(
            layout=files, telling=self._telling, gathering=self._gathering, owners=self._owners
        )

    def of(self, tenant: str, *, founds: bool) -> FileBackend:
        if not tenant:
            return self
        directory = self._files.tenants / file_name(tenant)
        if not founds and tenant not in self._tenants:
            with self._errors():
                if not is_laid_out(self._disk, directory):
                    return self._below(tenant, EmptyDisk())
        backend = self._tenants.pop(tenant, None) or self._below(tenant, self._disk)
        self._tenants[tenant] = backend
        if len(self._tenants) > _REMEMBERED_TENANTS_MAX:
            self._tenants.popitem(last=False)
        return backend

    def _below(self, tenant: str, disk: Disk) -> FileBackend:
        return FileBackend(
            self._files.tenants / file_name(tenant),
            retention=keep.of_tenant(self._retention, tenant),
            clock=self._clock,
            disk=disk,
            owners=self._owners,
        )

    def claim(self, run_id: str, *, create: NewRun | None, takeover: bool, token: int | None) -> Claim:
        with self._errors(), self._lock():
            self._files.logs.finish_removals(run_id)
            log = self._files.logs.of(run_id)
            line = log.current()
            if line is None:
                self._require_unused(run_id)
            state = rules.claimable(
                line.state if line else None,
                run_id,
                create=create,
                takeover=takeover,
                is_replaceable=self._owners.is_replaceable,
                token=token,
            )
            owner, number = self._owners.enter(), self._files.counter.take()
            # A token that was made elsewhere may be beyond any number that was taken here.
            claimed = rules.claimed(state, owner=owner, token=max(number, state.token + 1) if token is None else token)
            if state.is_new or line is None:
                self._begin(log, claimed, life=number)
            else:
                # A claim need not outlast the machine, since its owner does not.
                log.append(replace(line, change="claim", state=claimed, subject=None), sync=False)
        return Claim(run_id, claimed.token, owner, claimed.record.attempts, state.record.halt, claimed.record)

    def _require_unused(self, run_id: str) -> None:
        """Refuse an id without a log that has a checkpoint all the same."""
        first = self._files.documents.at(run_id, rules.BEFORE_THE_FIRST + 1)
        if first:
            raise CheckpointDamagedError(first.manifest.checkpoint_id, "the log of its run is gone")

    def _begin(self, log: RunLog, state: rules.RunState, *, life: int) -> None:
        """Let a run begin that has nothing of an earlier one of its id."""
        name, parent = log.path.name, state.rests_on
        self._files.drop_journal(name)
        self._files.inboxes.named(name).drop()
        self._files.events.named(name).drop()
        if parent is not None:
            self._files.forks.note(parent, state.record.run_id)
        log.append(RunLine("claim", state, newest=None, life=life), sync=parent is not None)
        if parent is not None:
            self._files.logs.sync()

    def release(self, claim: Claim, *, halt: Halt | None) -> None:
        with self._errors(), self._lock():
            log = self._files.logs.of(claim.run_id)
            line = log.current()
            if line is None or not rules.is_held(line.state, claim):
                return
            if line.state.is_known:
                self._files.counter.note_change()
                state = rules.released(line.state, halt=halt)
                # What only ends a claim need not outlast the machine. That nobody goes on must.
                log.append(replace(line, change="release", state=state, subject=None), sync=halt is not None)
            else:
                self._files.drop_journal(log.path.name)
                self._files.logs.erase(log)

    def write(self, pending: Sequence[Pending]) -> None:
        records: dict[str, list[PendingRecords]] = {}
        for each in pending:
            match each:
                case PendingRecords():
                    records.setdefault(each.claim.run_id, []).append(each)
                case PendingCommit():
                    if each.claim.run_id in records:
                        self._record(records.pop(each.claim.run_id))
                    with _noted(each), self._lock():
                        self._committing.commit(each)
        for waiting in records.values():
            self._record(waiting)

    def _record(self, waiting: Sequence[PendingRecords]) -> None:
        """Append what is recorded of one run: a line each, all in one write."""
        ready: list[JournalLine] = []
        accepted: list[Sequence[JournalRecord]] = []
        run: RunLine | None = None
        with _noted(*waiting), self._lock():
            for each in waiting:
                with _noted(each):
                    run = require(self._line(each.claim.run_id), each.claim, expected_head=each.head)
                    ready.append(self._journal_line(run, each.records))
                    accepted.append(each.records)
            if run and ready:
                journal = self._files.journals.of(run.state.record.run_id)
                journal.append(ready, sync=any(each.is_durable for each in waiting))
                if any(record.is_progress for records in accepted for record in records):
                    self._progress(run)

    def _journal_line(self, run: RunLine, records: Sequence[JournalRecord]) -> JournalLine:
        """The line to be written. Its large parts are, when this returns."""
        journal_line, beside = split(Stay.of(run.state.record), records)
        self._files.protection.note({ref for record in records for ref in record.refs})
        self._files.besides.add(beside)
        return journal_line

    def _progress(self, run: RunLine) -> None:
        """Take note of the first record after a claim: whoever made it has not tried in vain."""
        if run.state.record.attempts:
            log = self._files.logs.of(run.state.record.run_id)
            log.append(replace(run, change="progress", state=rules.progressed(run.state), subject=None), sync=False)

    def rewind(self, claim: Claim, *, expected_head: str, to: str, nonce: str) -> None:
        with self._errors(), self._lock():
            log = self._files.logs.of(claim.run_id)
            line = require(log.current(), claim, expected_head=expected_head)
            document = self._files.documents.find(to)
            if document is None or document.manifest.run_id != claim.run_id:
                raise CheckpointNotFoundError(to)
            dropped = self._files.inboxes.of(claim.run_id).expecting(line)
            self._files.counter.note_change()
            state = rules.moved(
                line.state,
                head=to,
                settled=document.settled,
                nonce=nonce,
                status=document.status,
                wake_at=document.wake_at,
            )
            consumed = (*line.consumed, *dropped)
            log.append(replace(line, change="rewind", state=state, subject=to, consumed=consumed), sync=True)
            # The head has moved, and the journal is void also if it can't be removed.
            with contextlib.suppress(OSError):
                self._files.drop_journal(log.path.name)

    def run(self, run_id: str) -> RunRecord | None:
        with self._errors(), self._lock():
            line = self._line(run_id)
        return line.state.record if line and line.state.is_known else None

    def runs(self, *, workflow_name: str | None, status: RunStatus | None) -> Sequence[RunRecord]:
        with self._errors(), self._lock():
            return self._listing.runs(workflow_name=workflow_name, status=status)

    def due(self, *, at: str, workflow_names: Collection[str], limit: int) -> Sequence[Due]:
        with self._errors(), self._lock():
            return self._listing.due(at=at, workflow_names=workflow_names, limit=limit)

    def next_wake(self, *, after: str, workflow_names: Collection[str]) -> str | None:
        with self._errors(), self._lock():
            return self._listing.next_wake(after=after, workflow_names=workflow_names)

    def archive(self, run_id: str) -> Archive:
        with self._errors(), self._lock():
            return self._transferring.archive(run_id)

    def close_run(self, run_id: str, *, halt: Halt, instead_of: Halt | None, takeover: bool) -> bool:
        with self._errors(), self._lock():
            return self._transferring.close(run_id, halt=halt, instead_of=instead_of, takeover=takeover)

    def restore(self, archive: Archive) -> None:
        with self._errors(), self._lock():
            self._transferring.restore(archive)

    def remove(self, run_id: str, *, takeover: bool) -> bool:
        with self._errors(), self._lock():
            return self._transferring.remove(run_id, takeover=takeover)

    def journal(self, run_id: str) -> Sequence[JournalRecord]:
        with self._errors(), self._lock():
            line = self._line(run_id)
            return self._files.journals.of(run_id).records(Stay.of(line.state.record)) if line else ()

    def post(self, run_id: str, command: Command) -> Command:
        with self._errors(), self._lock():
            line, inbox = self._line(run_id), self._files.inboxes.of(run_id)
            waiting = inbox.waiting(line) if line else ()
            earlier = next((each for each in waiting if each.id == command.id), None)
            if earlier and line:
                inbox.secure(line)
                return earlier
            toc = self._toc(line.state.record.head if line and command.expects is not None else None)
            rules.require_postable(line.state if line else None, run_id, command, toc)
            assert line is not None, "a run that is known has a line"
            inline, beside = lineparts.split(command.parts)
            self._files.protection.note(command.refs)
            self._files.besides.add(beside)
            posted = rules.posted(command, number=self._files.counter.take())
            inbox.append(line, posted, inline)
        return posted

    def _toc(self, checkpoint_id: str | None) -> Mapping[str, str]:
        document = self._files.documents.find(checkpoint_id) if checkpoint_id else None
        return document.manifest.toc if document else {}

    def inbox(self, run_id: str) -> Sequence[Command]:
        with self._errors(), self._lock():
            line = self._line(run_id)
            return self._files.inboxes.of(run_id).waiting(line) if line else ()

    def events(self, run_id: str, *, after: int, limit: int) -> Sequence[EventBatch]:
        with self._errors(), self._lock():
            log = self._files.logs.of(run_id)
            line = log.current()
            return self._telling.batches(log, line, after=after, limit=limit) if line else ()

    def mark(self, run_id: str) -> Mark:
        with self._errors(), self._lock():
            line = self._line(run_id)
            if line is None or not line.state.is_known:
                return Mark()
            newest = self._files.inboxes.of(run_id).newest(line)
        record = line.state.record
        return Mark(record.head, record.events, newest, self._owners.living(record.owner), record.halt is not None)

    def changes(self) -> object:
        # Under the lock: a number is taken before the change that it is for, and who looks between the two would
        # take the change for seen.
        with self._errors(), self._lock():
            return self._files.counter.contents()

    def _line(self, run_id: str) -> RunLine | None:
        return self._files.logs.of(run_id).current()

    def manifest(self, checkpoint_id: str) -> Manifest:
        with self._errors():
            self._finish()
            document = self._files.documents.find(checkpoint_id)
        if document is None:
            raise CheckpointNotFoundError(checkpoint_id)
        return document.manifest

    def manifests(self, *, workflow_name: str | None, run_id: str | None) -> Sequence[Manifest]:
        with self._errors(), self._lock():
            documents = self._files.documents.all() if run_id is None else self._documents_of(run_id)
            chosen = [each for each in documents if workflow_name in {None, each.manifest.workflow_name}]
        return [each.manifest for each in sorted(chosen, key=lambda each: each.sequence)]

    def _documents_of(self, run_id: str) -> Iterable[Document]:
        log = self._files.logs.of(run_id)
        # Entries may be missing at the end of a damaged log.
        log.current()
        for entry in log.entries():
            document = self._files.documents.find(entry.checkpoint_id)
            if document and document.sequence == entry.sequence:
                yield document

    def ids(self, *, workflow_name: str | None) -> Sequence[str]:
        return [manifest.checkpoint_id for manifest in self.manifests(workflow_name=workflow_name, run_id=None)]

    def latest(self, *, workflow_name: str) -> Manifest | None:
        with self._errors(), self._lock():
            newest = self._files.workflows.latest(workflow_name)
            return self.manifest(newest.checkpoint_id) if newest else None

    def parts(self, roots: Iterable[str]) -> Mapping[str, bytes]:
        with self._errors():
            return {part_hash: part.data for part_hash, part in self._gathering.parts(roots).items()}

    def delete(self, checkpoint_id: str) -> bool:
        with self._errors(), self._lock():
            if not self._files.documents.exists(checkpoint_id):
                return False
            self._files.counter.note_change()
            self._deleting.delete(checkpoint_id)
        return True

    def collect(self) -> int:
        with self._errors():
            return self._collecting.collect()

    def is_collection_due(self) -> bool:
        # As of the last commit of this process, and so without a look at the disk.
        pruned = self._files.counter.last_pruned
        with self._errors():
            return self._proportion.is_reached(pruned=pruned, count=lambda: len(self._files.documents.names()))

    def close(self) -> None:
        """Nothing is held between two operations."""

    @contextlib.contextmanager
    def _lock(self) -> Generator[None]:
        with self._disk.lock(self._files.lock):
            if self._files.undertakings.is_unfinished:
                self._files.undertakings.finish()
            yield

    def _finish(self) -> None:
        """Let what a crash has left undone be done, before looking without the lock."""
        if self._files.undertakings.is_unfinished:
            with self._lock():
                pass

    @contextlib.contextmanager
    def _errors(self) -> Generator[None]:
        try:
            yield
        except OSError as error:
            raise WorkflowCheckpointException(
                f"the directory {str(self._directory)!r} can't be used: {error}; see to it and try again"
            ) from error


@contextlib.contextmanager
def _noted(*pending: Pending) -> Generator[None]:
    """An error belongs to those who wait for what failed, not to the others."""
    try:
        yield
    except OSError as error:
        for each in pending:
            failure = CheckpointWriteError(run_id=each.claim.run_id, reason=error.strerror or str(error))
            failure.__cause__ = error
            each.error = each.error or failure
    except Exception as error:  # noqa: BLE001 - see above
        for each in pending:
            each.error = each.error or error
