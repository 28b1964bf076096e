"""A store in memory, for tests and for runs that need not outlive the process."""

from __future__ import annotations

import itertools
import threading
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar

from perdure.clock import SystemClock
from perdure.errors import CheckpointDamagedError, CheckpointNotFoundError
from perdure.records import Claim, FullHistory, Mark, Retention
from perdure.stores import retention as keep
from perdure.stores import rules
from perdure.stores.backend import BackedStore, PendingCommit, PendingRecords
from perdure.stores.memory_events import MemoryEvents
from perdure.stores.memory_inboxes import MemoryInboxes
from perdure.stores.owners import this_process

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from perdure.clock import Clock
    from perdure.records import (
        Command,
        Commit,
        EventBatch,
        JournalRecord,
        Manifest,
        NewRun,
        Part,
        RunRecord,
        RunStatus,
    )
    from perdure.stores.backend import Pending

T = TypeVar("T")

_numbers = itertools.count(1)


class MemoryStore(BackedStore["MemoryBackend"]):
    """Runs in memory, gone with the process."""

    def __init__(self, *, retention: Retention | None = None, clock: Clock | None = None) -> None:
        backend = MemoryBackend(retention=retention or Retention(), clock=clock or SystemClock())
        super().__init__(f"memory:{next(_numbers)}", _Caller(backend), pause=None)


class _Caller:
    """Does the work where it is asked for; one thread at a time."""

    def __init__(self, backend: MemoryBackend) -> None:
        self._backend = backend
        self._lock = threading.RLock()

    async def do(self, work: Callable[[MemoryBackend], T]) -> T:
        return self.do_blocking(work)

    def do_blocking(self, work: Callable[[MemoryBackend], T]) -> T:
        with self._lock:
            return work(self._backend)

    def post(self, work: Callable[[MemoryBackend], T]) -> T:
        return self.do_blocking(work)

    async def close(self) -> None:
        """There is nothing to let go of."""


@dataclass(frozen=True, slots=True)
class _Kept:
    manifest: Manifest
    checksum: str
    entry: keep.Entry


class MemoryBackend:
    """The histories, as dicts in commit order."""

    def __init__(self, *, retention: Retention, clock: Clock) -> None:
        self._retention = retention
        self._clock = clock
        self._tokens = itertools.count(1)
        self._sequence = itertools.count(1)
        self._runs: dict[str, rules.RunState] = {}
        self._checkpoints: dict[str, _Kept] = {}
        self._of_run: dict[str, dict[str, _Kept]] = {}
        self._of_workflow: dict[str, dict[str, _Kept]] = {}
        self._journals: dict[str, dict[str, JournalRecord]] = {}
        self._inboxes = MemoryInboxes()
        self._events = MemoryEvents()
        self._parts: dict[str, Part] = {}
        self._pruned = 0

    def claim(self, run_id: str, *, create: NewRun | None, takeover: bool) -> Claim:
        state = rules.claimable(
            self._runs.get(run_id), run_id, create=create, takeover=takeover, is_replaceable=lambda _: True
        )
        if state.is_new and run_id in self._runs:
            self._remove_run(run_id)
        owner, token = this_process(), next(self._tokens)
        self._runs[run_id] = rules.claimed(state, owner=owner, token=token)
        return Claim(run_id, token, owner)

    def release(self, claim: Claim) -> None:
        state = self._runs.get(claim.run_id)
        if state is None or not rules.is_held(state, claim):
            return
        if state.is_known:
            self._runs[claim.run_id] = rules.released(state)
        else:
            self._remove_run(claim.run_id)

    def write(self, pending: Sequence[Pending]) -> None:
        for each in pending:
            try:
                match each:
                    case PendingCommit():
                        self._commit(each.claim, each.commit)
                        each.removed = self._remove_finished(besides=each.claim.run_id)
                        each.waiting = self._inboxes.newest(each.claim.run_id)
                    case PendingRecords():
                        self._record(each.claim, each.head, each.records)
            except Exception as error:  # noqa: BLE001 - it belongs to whoever waits for this write, not to the others
                each.error = error

    def _record(self, claim: Claim, head: str | None, records: Sequence[JournalRecord]) -> None:
        state = rules.require_claim(self._runs.get(claim.run_id), claim, expected_head=head)
        rules.require_head(state, head)
        journal = self._journals.setdefault(claim.run_id, {})
        for record in records:
            self._put_parts(record.parts)
            replaced = journal.get(record.key)
            self._pruned += replaced is not None and bool(replaced.refs)
            journal[record.key] = replace(record, parts=())

    def _commit(self, claim: Claim, commit: Commit) -> None:
        state = rules.require_claim(self._runs.get(claim.run_id), claim, expected_head=commit.expected_head)
        rules.require_head(state, commit.expected_head)
        rules.require_next(state, commit)
        if commit.manifest.checkpoint_id in self._checkpoints:
            raise rules.exists_already(commit.manifest.checkpoint_id)
        rules.require_done(self._inboxes.of(claim.run_id), commit)
        self._put_parts(commit.parts)
        self._keep(commit)
        self._runs[claim.run_id] = rules.committed(state, commit)
        self._drop_journal(claim.run_id)
        self._pruned += self._inboxes.consume(claim.run_id, commit.consumed)
        self._tell(state, commit)
        self._prune(claim.run_id)

    def _tell(self, state: rules.RunState, commit: Commit) -> None:
        batch = rules.told(state, commit)
        if batch is not None and commit.events is not None:
            self._put_parts(commit.events.parts)
            self._events.add(batch, keep.moment(commit.manifest.timestamp))

    def _put_parts(self, parts: Iterable[Part]) -> None:
        for part in parts:
            self._parts.setdefault(part.hash, part)

    def _keep(self, commit: Commit) -> None:
        # The caller's table of contents may change under his hands.
        manifest = replace(commit.manifest, toc=MappingProxyType(dict(commit.manifest.toc)))
        entry = keep.Entry(
            checkpoint_id=manifest.checkpoint_id,
            position=manifest.position,
            sequence=next(self._sequence),
            moment=keep.moment(manifest.timestamp),
            settled=commit.settled,
            status=commit.status,
            wake_at=commit.wake_at,
        )
        kept = _Kept(manifest, manifest.checksum(), entry)
        self._checkpoints[manifest.checkpoint_id] = kept
        self._of_run.setdefault(manifest.run_id, {})[manifest.checkpoint_id] = kept
        self._of_workflow.setdefault(manifest.workflow_name, {})[manifest.checkpoint_id] = kept

    def rewind(self, claim: Claim, *, expected_head: str, to: str, nonce: str) -> None:
        state = rules.require_claim(self._runs.get(claim.run_id), claim, expected_head=expected_head)
        rules.require_head(state, expected_head)
        kept = self._of_run.get(claim.run_id, {}).get(to)
        if kept is None:
            raise CheckpointNotFoundError(to)
        self._move(state, kept.entry, nonce=nonce)

    def _move(self, state: rules.RunState, to: keep.Entry, *, nonce: str | None = None) -> None:
        run_id = state.record.run_id
        self._runs[run_id] = rules.moved(
            state, head=to.checkpoint_id, settled=to.settled, nonce=nonce, status=to.status, wake_at=to.wake_at
        )
        self._drop_journal(run_id)
        self._pruned += self._inboxes.drop_expecting(run_id)

    def run(self, run_id: str) -> RunRecord | None:
        state = self._runs.get(run_id)
        return state.record if state and state.is_known else None

    def runs(self, *, workflow_name: str | None, status: RunStatus | None) -> Sequence[RunRecord]:
        return [
            state.record
            for state in self._runs.values()
            if state.is_known
            and workflow_name in {None, state.record.workflow_name}
            and status in {None, state.record.status}
        ]

    def post(self, run_id: str, command: Command) -> Command:
        waiting = self._inboxes.of(run_id).get(command.id)
        if waiting is not None:
            return waiting
        state = self._runs.get(run_id)
        head = self._checkpoints.get(state.record.head) if state and state.record.head else None
        rules.require_postable(state, run_id, command, head.manifest.toc if head else {})
        self._put_parts(command.parts)
        return self._inboxes.put(run_id, command)

    def inbox(self, run_id: str) -> Sequence[Command]:
        return list(self._inboxes.of(run_id).values())

    def events(self, run_id: str, *, after: int, limit: int) -> Sequence[EventBatch]:
        return self._events.after(run_id, after, limit=limit)

    def mark(self, run_id: str) -> Mark:
        record = self.run(run_id)
        if record is None:
            return Mark()
        owner = record.owner.id if record.owner else None
        return Mark(record.head, record.events, self._inboxes.newest(run_id), owner)

    def changes(self) -> object:
        """No other process can change anything here."""

    def journal(self, run_id: str) -> Sequence[JournalRecord]:
        return tuple(self._journals.get(run_id, {}).values())

    def manifest(self, checkpoint_id: str) -> Manifest:
        kept = self._checkpoints.get(checkpoint_id)
        if kept is None:
            raise CheckpointNotFoundError(checkpoint_id)
        return _intact(kept)

    def manifests(self, *, workflow_name: str | None, run_id: str | None) -> Sequence[Manifest]:
        kept = self._checkpoints if run_id is None else self._of_run.get(run_id, {})
        return [
            _intact(each)
            for each in kept.values()
            if workflow_name is None or each.manifest.workflow_name == workflow_name
        ]

    def ids(self, *, workflow_name: str | None) -> Sequence[str]:
        return list(self._checkpoints if workflow_name is None else self._of_workflow.get(workflow_name, {}))

    def latest(self, *, workflow_name: str) -> Manifest | None:
        kept = self._of_workflow.get(workflow_name)
        return _intact(next(reversed(kept.values()))) if kept else None

    def parts(self, roots: Iterable[str]) -> Mapping[str, bytes]:
        return {part.hash: part.data for part in self._closure(roots)}

    def _closure(self, roots: Iterable[str]) -> Iterator[Part]:
        seen: set[str] = set()
        waiting = list(roots)
        while waiting:
            part = self._parts.get(waiting.pop())
            if part is not None and part.hash not in seen:
                seen.add(part.hash)
                waiting.extend(part.refs)
                yield part

    def delete(self, checkpoint_id: str) -> bool:
        kept = self._checkpoints.get(checkpoint_id)
        if kept is None:
            return False
        run_id = kept.manifest.run_id
        for follower in [name for name, state in self._runs.items() if state.record.head == checkpoint_id]:
            self._drop_journal(follower)
        self._forget(kept)
        remaining = self._of_run.get(run_id)
        if not remaining:
            self._remove_run(run_id)
        elif self._runs[run_id].record.head == checkpoint_id:
            self._move(self._runs[run_id], next(reversed(remaining.values())).entry)
        return True

    def collect(self) -> int:
        of_checkpoints = (kept.manifest.toc.values() for kept in self._checkpoints.values())
        of_journals = (record.refs for journal in self._journals.values() for record in journal.values())
        of_others = itertools.chain(self._inboxes.refs(), self._events.refs())
        roots = itertools.chain.from_iterable(itertools.chain(of_checkpoints, of_journals, of_others))
        needed = {part.hash for part in self._closure(roots)}
        unneeded = self._parts.keys() - needed
        for part in unneeded:
            del self._parts[part]
        self._pruned = 0
        return len(unneeded)

    def is_collection_due(self) -> bool:
        return keep.is_collection_due(pruned=self._pruned, remaining=len(self._checkpoints))

    def close(self) -> None:
        """There is nothing to let go of."""

    def _prune(self, run_id: str) -> None:
        self._pruned += self._events.prune(run_id, self._retention, self._clock.now())
        if isinstance(self._retention.checkpoints, FullHistory):
            return
        history = self._of_run[run_id]
        entries = [kept.entry for kept in history.values()]
        prunable = keep.prunable(self._retention, entries, self._clock.now())
        spared = {self._runs[run_id].record.head, *self._rested_on()}
        doomed = (entry.checkpoint_id for entry in prunable if entry.checkpoint_id not in spared)
        for checkpoint_id in list(itertools.islice(doomed, keep.PRUNED_PER_COMMIT_MAX)):
            self._forget(history[checkpoint_id])

    def _remove_finished(self, *, besides: str) -> tuple[str, ...]:
        cutoff = keep.finished_cutoff(self._retention, self._clock.now())
        if cutoff is None:
            return ()
        rested_on = self._rested_on()
        doomed = [
            run_id
            for run_id, state in self._runs.items()
            if run_id != besides
            and state.record.settled
            and state.record.owner is None
            and keep.is_older(state.moment, cutoff)
            and not self._inboxes.of(run_id)
            and rested_on.isdisjoint(self._of_run[run_id])
        ]
        removed = tuple(doomed[: keep.REMOVED_RUNS_PER_COMMIT_MAX])
        for run_id in removed:
            for kept in list(self._of_run[run_id].values()):
                self._forget(kept)
            self._remove_run(run_id)
        return removed

    def _remove_run(self, run_id: str) -> None:
        del self._runs[run_id]
        self._drop_journal(run_id)
        self._pruned += self._inboxes.drop(run_id) + self._events.drop(run_id)

    def _drop_journal(self, run_id: str) -> None:
        self._pruned += sum(bool(record.refs) for record in self._journals.pop(run_id, {}).values())

    def _rested_on(self) -> set[str]:
        return {rests_on for state in self._runs.values() if (rests_on := state.rests_on) is not None}

    def _forget(self, kept: _Kept) -> None:
        checkpoint_id = kept.manifest.checkpoint_id
        del self._checkpoints[checkpoint_id]
        for index, key in ((self._of_run, kept.manifest.run_id), (self._of_workflow, kept.manifest.workflow_name)):
            del index[key][checkpoint_id]
            if not index[key]:
                del index[key]
        self._pruned += 1


def _intact(kept: _Kept) -> Manifest:
    if kept.manifest.checksum() != kept.checksum:
        raise CheckpointDamagedError(kept.manifest.checkpoint_id, "its checksum does not match")
    return kept.manifest
