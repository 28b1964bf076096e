"""What the file store's thread does with the directory. Whoever changes something holds the directory's lock."""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from perdure.errors import (
    CheckpointDamagedError,
    CheckpointNotFoundError,
    CheckpointWriteError,
    WorkflowCheckpointException,
)
from perdure.records import Claim
from perdure.stores import retention as keep
from perdure.stores import rules
from perdure.stores.backend import PendingCommit, PendingRecords
from perdure.stores.besides import Besides, closure, placed
from perdure.stores.counter import Counter
from perdure.stores.document import Document
from perdure.stores.documents import Documents
from perdure.stores.forgetting import Forgetting
from perdure.stores.owners import Owners
from perdure.stores.runjournal import Stay, split
from perdure.stores.runjournals import RunJournals
from perdure.stores.runlog import RunLine
from perdure.stores.runlogs import ForkIndex, RunLogs, WorkflowIndex

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Mapping, Sequence
    from pathlib import Path

    from perdure.clock import Clock
    from perdure.records import Commit, JournalRecord, Manifest, NewRun, Part, Retention, RunRecord
    from perdure.stores.backend import Pending
    from perdure.stores.disk import Disk
    from perdure.stores.runjournal import JournalLine, RunJournal
    from perdure.stores.runlog import RunLog

_FORMAT = 1


class FileBackend:
    """The runs in one directory."""

    def __init__(self, directory: Path, *, retention: Retention, clock: Clock, disk: Disk) -> None:
        self._directory = directory
        self._disk = disk
        own = directory / ".perdure"
        aside = own / "aside"
        with self._errors():
            for name in ("aside", "parts", "runs", "journal", "workflows", "forks"):
                disk.make_directory(own / name)
            _require_format(disk, own / "format", lock=own / "lock")
        self._lock_path = own / "lock"
        self._aside = aside
        self._owners = Owners(own / "owners")
        self._documents = Documents(disk, directory, aside=aside / "checkpoint")
        self._besides = Besides(disk, own / "parts", aside=aside / "part")
        self._logs = RunLogs(disk, own / "runs", self._documents)
        self._journals = RunJournals(disk, own / "journal")
        self._workflows = WorkflowIndex(disk, own / "workflows", self._logs)
        self._forks = ForkIndex(disk, own / "forks", self._logs)
        self._counter = Counter(disk, own / "counter", self._highest_number)
        self._forgetting = Forgetting(
            retention=retention,
            clock=clock,
            documents=self._documents,
            logs=self._logs,
            journals=self._journals,
            forks=self._forks,
            owners=self._owners,
        )

    def claim(self, run_id: str, *, create: NewRun | None, takeover: bool) -> Claim:
        with self._errors(), self._lock():
            self._logs.finish_removals(run_id)
            log = self._logs.of(run_id)
            line = log.current()
            state = rules.claimable(
                line.state if line else None,
                run_id,
                create=create,
                takeover=takeover,
                is_replaceable=self._owners.is_replaceable,
            )
            if state.is_new:
                self._drop(self._journals.of(run_id))
            owner, token = self._owners.enter(), self._counter.take()
            self._begin(log, rules.claimed(state, owner=owner, token=token), line)
        return Claim(run_id, token, owner)

    def _begin(self, log: RunLog, state: rules.RunState, line: RunLine | None) -> None:
        is_new_fork = state.rests_on is not None and (line is None or not line.state.is_known)
        if is_new_fork:
            self._forks.note(state.rests_on or "", state.record.run_id)
        # A claim need not outlast the machine, since its owner does not.
        log.append(RunLine("claim", state, line.newest if line else None), sync=is_new_fork)
        if is_new_fork:
            self._logs.sync()

    def release(self, claim: Claim) -> None:
        with self._errors(), self._lock():
            log = self._logs.of(claim.run_id)
            line = log.current()
            if line is None or not rules.is_held(line.state, claim):
                return
            if line.state.is_known:
                log.append(replace(line, change="release", state=rules.released(line.state), subject=None), sync=False)
            else:
                self._drop(self._journals.of(claim.run_id))
                self._logs.erase(log)

    def write(self, pending: Sequence[Pending]) -> None:
        records: dict[str, list[PendingRecords]] = {}
        for each in pending:
            match each:
                case PendingRecords():
                    records.setdefault(each.claim.run_id, []).append(each)
                case PendingCommit():
                    self._record(records.pop(each.claim.run_id, []))
                    with _noted(each), self._lock():
                        self._commit(each.claim, each.commit)
        for waiting in records.values():
            self._record(waiting)

    def _record(self, waiting: Sequence[PendingRecords]) -> None:
        """Append what is recorded of one run: a line each, all in one write."""
        ready: list[JournalLine] = []
        with _noted(*waiting), self._lock():
            for each in waiting:
                with _noted(each):
                    ready.append(self._journal_line(each.claim, each.head, each.records))
            if ready:
                journal = self._journals.of(waiting[0].claim.run_id)
                journal.append(ready, sync=any(each.is_durable for each in waiting))

    def _journal_line(self, claim: Claim, head: str | None, records: Sequence[JournalRecord]) -> JournalLine:
        """The line to be written. Its large parts are, when this returns."""
        line = self._logs.of(claim.run_id).current()
        state = rules.require_claim(line.state if line else None, claim, expected_head=head)
        rules.require_head(state, head)
        journal_line, beside = split(Stay.of(state.record), records)
        self._besides.add(beside)
        return journal_line

    def _drop(self, journal: RunJournal) -> None:
        self._count_pruned(journal.drop())

    def _count_pruned(self, number: int) -> None:
        if number:
            self._counter.add_pruned(number)

    def _commit(self, claim: Claim, commit: Commit) -> None:
        checkpoint_id = commit.manifest.checkpoint_id
        log = self._logs.of(claim.run_id)
        line = log.current()
        state = rules.require_claim(line.state if line else None, claim, expected_head=commit.expected_head)
        rules.require_head(state, commit.expected_head)
        rules.require_next(state, commit)
        if self._documents.exists(checkpoint_id):
            raise rules.exists_already(checkpoint_id)
        document, beside = self._prepared(commit)
        journal = self._journals.of(claim.run_id)
        # One of a deleted checkpoint, whose id could be the one that is committed now.
        journal.drop_if_void(Stay.of(state.record))
        self._besides.add(beside.values())
        after = RunLine("commit", rules.committed(state, commit), document.entry, subject=checkpoint_id)
        log.append(after, sync=True)
        if state.record.position == rules.BEFORE_THE_FIRST:
            self._logs.sync()
        self._workflows.note(commit.manifest.workflow_name, claim.run_id, commit.manifest.position)
        self._documents.put(document)
        # The commit has happened; what can't be forgotten now is forgotten after the next one.
        with contextlib.suppress(OSError, WorkflowCheckpointException):
            self._drop(journal)
            self._count_pruned(self._forgetting.prune(log, head=checkpoint_id))
            self._count_pruned(self._forgetting.remove_finished(besides=log))

    def _prepared(self, commit: Commit) -> tuple[Document, Mapping[str, Part]]:
        """The file to be written, and the parts to be written beside it."""
        previous = self._documents.find(commit.expected_head) if commit.expected_head else None
        inline, beside = placed(
            commit.manifest.toc,
            carried=previous.parts if previous else {},
            new={part.hash: part for part in commit.parts},
        )
        manifest = replace(commit.manifest, toc=MappingProxyType(dict(commit.manifest.toc)))
        return Document(manifest, commit.settled, self._counter.take(), inline), beside

    def rewind(self, claim: Claim, *, expected_head: str, to: str, nonce: str) -> None:
        with self._errors(), self._lock():
            log = self._logs.of(claim.run_id)
            line = log.current()
            state = rules.require_claim(line.state if line else None, claim, expected_head=expected_head)
            rules.require_head(state, expected_head)
            document = self._documents.find(to)
            if document is None or document.manifest.run_id != claim.run_id:
                raise CheckpointNotFoundError(to)
            state = rules.moved(state, head=to, settled=document.settled, nonce=nonce)
            log.append(RunLine("rewind", state, line.newest if line else None, subject=to), sync=True)
            # The head has moved, and the journal is void also if it can't be removed.
            with contextlib.suppress(OSError):
                self._drop(self._journals.of(claim.run_id))

    def run(self, run_id: str) -> RunRecord | None:
        with self._errors(), self._lock():
            line = self._logs.of(run_id).current()
        return line.state.record if line and line.state.is_known else None

    def journal(self, run_id: str) -> Sequence[JournalRecord]:
        with self._errors(), self._lock():
            line = self._logs.of(run_id).current()
            return self._journals.of(run_id).records(Stay.of(line.state.record)) if line else ()

    def manifest(self, checkpoint_id: str) -> Manifest:
        with self._errors():
            document = self._documents.find(checkpoint_id)
        if document is None:
            raise CheckpointNotFoundError(checkpoint_id)
        return document.manifest

    def manifests(self, *, workflow_name: str | None, run_id: str | None) -> Sequence[Manifest]:
        with self._errors(), self._lock():
            documents = self._documents.all() if run_id is None else self._documents_of(run_id)
            chosen = [each for each in documents if workflow_name in {None, each.manifest.workflow_name}]
        return [each.manifest for each in sorted(chosen, key=lambda each: each.sequence)]

    def _documents_of(self, run_id: str) -> Iterable[Document]:
        for entry in self._logs.of(run_id).entries():
            document = self._documents.find(entry.checkpoint_id)
            if document and document.sequence == entry.sequence:
                yield document

    def ids(self, *, workflow_name: str | None) -> Sequence[str]:
        return [manifest.checkpoint_id for manifest in self.manifests(workflow_name=workflow_name, run_id=None)]

    def latest(self, *, workflow_name: str) -> Manifest | None:
        with self._errors(), self._lock():
            newest = self._workflows.latest(workflow_name)
            return self.manifest(newest.checkpoint_id) if newest else None

    def parts(self, roots: Iterable[str]) -> Mapping[str, bytes]:
        in_journals: Mapping[str, Part] | None = None

        def find(part_hash: str) -> Part | None:
            nonlocal in_journals
            known = self._documents.part(part_hash) or self._journals.part(part_hash) or self._besides.find(part_hash)
            if known:
                return known
            if in_journals is None:
                self._documents.look_for_parts()
                in_journals = self._journals.all_parts()
            return self._documents.part(part_hash) or in_journals.get(part_hash)

        with self._errors():
            return {part_hash: part.data for part_hash, part in closure(roots, find).items()}

    def delete(self, checkpoint_id: str) -> bool:
        with self._errors(), self._lock():
            if not self._documents.exists(checkpoint_id):
                return False
            for fork in self._forks.resting_on(checkpoint_id):
                self._drop(self._journals.of(fork))
            log = self._log_with(checkpoint_id)
            line = log.current() if log else None
            if log and line:
                self._delete_of(log, line, checkpoint_id)
            else:
                self._documents.remove(checkpoint_id)
                self._documents.sync()
            self._count_pruned(1)
        return True

    def _delete_of(self, log: RunLog, line: RunLine, checkpoint_id: str) -> None:
        after = log.without(line, checkpoint_id)
        is_head = line.state.record.head == checkpoint_id
        if is_head:
            # A journal of the head to be, dropped when the run left it, must not be back after a power cut.
            self._journals.sync()
        log.append(replace(line, change="deletion announced", subject=checkpoint_id), sync=True)
        self._documents.remove(checkpoint_id)
        self._documents.sync()
        if is_head:
            self._drop(self._journals.named(log.path.name))
        if after:
            log.append(after, sync=False)
        else:
            self._logs.erase(log)

    def _log_with(self, checkpoint_id: str) -> RunLog | None:
        """The log of the run that a checkpoint is of, although the checkpoint may be damaged."""
        try:
            document = self._documents.find(checkpoint_id)
        except CheckpointDamagedError:
            logs = map(self._logs.named, self._logs.names())
            return next((log for log in logs if any(e.checkpoint_id == checkpoint_id for e in log.entries())), None)
        return self._logs.of(document.manifest.run_id) if document else None

    def collect(self) -> int:
        with self._errors(), self._lock():
            self._counter.reset_pruned()
            self._logs.finish_removals()
            # Only who holds the lock has files aside, so these are a crash's.
            for name in self._disk.names(self._aside):
                self._disk.remove(self._aside / name)
            return self._besides.sweep(self._roots())

    def _roots(self) -> set[str]:
        """What the files of checkpoints and journals refer to. A journal that is void is removed."""
        roots: set[str] = set()
        for document in self._documents.all():
            roots.update(document.manifest.toc.values())
            roots.update(itertools.chain.from_iterable(part.refs for part in document.parts.values()))
        for name in self._journals.names():
            line, journal = self._logs.named(name).current(), self._journals.named(name)
            if line is None:
                journal.drop()
                continue
            stay = Stay.of(line.state.record)
            journal.drop_if_void(stay)
            roots |= journal.roots(stay)
        return roots

    def is_collection_due(self) -> bool:
        with self._errors(), self._lock():
            pruned = self._counter.pruned
            if pruned < keep.PRUNED_BEFORE_COLLECTION_MIN:
                return False
            return keep.is_collection_due(pruned=pruned, remaining=len(self._documents.names()))

    def close(self) -> None:
        """Nothing is held between two operations."""

    def _highest_number(self) -> int:
        """The highest number in use anywhere, for when the counter is lost."""
        numbers = [document.sequence for document in self._documents.all()]
        lines = [self._logs.named(name).current() for name in self._logs.names()]
        return max([0, *numbers, *(line.state.token for line in lines if line)])

    @contextlib.contextmanager
    def _lock(self) -> Generator[None]:
        with self._disk.lock(self._lock_path):
            yield

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


def _require_format(disk: Disk, path: Path, *, lock: Path) -> None:
    """Refuse a directory that a later perdure has laid out otherwise; say so in a new one."""
    if not _is_written(disk, path):
        with disk.lock(lock):
            # Of several processes that find the directory new, one writes.
            if not _is_written(disk, path):
                disk.write_new(path, b"%d\n" % _FORMAT)
                return
    written = disk.read(path).strip().decode("ascii", "replace")
    if written != str(_FORMAT):
        raise WorkflowCheckpointException(
            f"the directory {str(path.parent.parent)!r} has format {written}, this perdure knows {_FORMAT}; "
            "upgrade perdure to open it"
        )


def _is_written(disk: Disk, path: Path) -> bool:
    stamp = disk.stamp(path)
    # A crash can leave it empty.
    return stamp is not None and stamp.size > 0
