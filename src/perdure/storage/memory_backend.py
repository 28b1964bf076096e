"""What a memory store does, blocking, on dicts."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from perdure.errors import CheckpointNotFoundError
from perdure.records import Archive, ArchivedCheckpoint, Due, FullHistory, Mark
from perdure.storage import archiving, rules
from perdure.storage import retention as keep
from perdure.storage.backend import PendingCommit, PendingRecords
from perdure.storage.memory_checkpoints import MemoryCheckpoints
from perdure.storage.memory_events import MemoryEvents
from perdure.storage.memory_inboxes import MemoryInboxes
from perdure.storage.memory_journals import MemoryJournals
from perdure.storage.memory_parts import MemoryParts
from perdure.storage.memory_runs import MemoryRuns

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from perdure.clock import Clock
    from perdure.records import (
        Claim,
        Command,
        Commit,
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


class MemoryBackend:
    """Runs with all that belongs to them. Every tenant has a backend of its own, and so nothing of another's."""

    def __init__(self, *, retention: Retention, clock: Clock) -> None:
        self._retention = retention
        self._clock = clock
        self._tenants: dict[str, MemoryBackend] = {}
        self._runs = MemoryRuns()
        self._checkpoints = MemoryCheckpoints()
        self._journals = MemoryJournals()
        self._inboxes = MemoryInboxes()
        self._events = MemoryEvents()
        self._parts = MemoryParts()
        self._pruned = 0

    def of(self, tenant: str, *, founds: bool) -> MemoryBackend:
        if not tenant:
            return self
        backend = self._tenants.get(tenant) or MemoryBackend(
            retention=keep.of_tenant(self._retention, tenant), clock=self._clock
        )
        if founds:
            self._tenants[tenant] = backend
        return backend

    def claim(self, run_id: str, *, create: NewRun | None, takeover: bool, token: int | None) -> Claim:
        state = self._runs.claimable(run_id, create=create, takeover=takeover, token=token)
        if state.is_new:
            self._remove_run(run_id)
        return self._runs.claim(state, token=token)

    def release(self, claim: Claim, *, halt: Halt | None) -> None:
        state = self._runs.get(claim.run_id)
        if state is None or not rules.is_held(state, claim):
            return
        if state.is_known:
            self._runs.put(rules.released(state, halt=halt))
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
        for record in records:
            self._parts.put(record.parts)
        self._pruned += self._journals.add(claim.run_id, records)
        if any(record.is_progress for record in records):
            self._runs.put(rules.progressed(state))

    def _commit(self, claim: Claim, commit: Commit) -> None:
        state = rules.require_claim(self._runs.get(claim.run_id), claim, expected_head=commit.expected_head)
        rules.require_head(state, commit.expected_head)
        rules.require_next(state, commit)
        if state.rests_on is not None and self._checkpoints.get(state.rests_on) is None:
            rules.require_whole(state, commit)
        self._checkpoints.require_new(commit.manifest.checkpoint_id)
        rules.require_done(self._inboxes.of(claim.run_id), commit)
        self._parts.put(commit.parts)
        self._checkpoints.add(ArchivedCheckpoint(commit.manifest, commit.settled, commit.status, commit.wake_at))
        self._runs.put(rules.committed(state, commit))
        self._pruned += self._journals.drop(claim.run_id)
        self._pruned += self._inboxes.consume(claim.run_id, commit.consumed)
        self._tell(state, commit)
        self._prune(claim.run_id)

    def _tell(self, state: rules.RunState, commit: Commit) -> None:
        batch = rules.told(state, commit)
        if batch is not None and commit.events is not None:
            self._parts.put(commit.events.parts)
            self._events.add(batch, keep.moment(commit.manifest.timestamp))

    def rewind(self, claim: Claim, *, expected_head: str, to: str, nonce: str) -> None:
        state = rules.require_claim(self._runs.get(claim.run_id), claim, expected_head=expected_head)
        rules.require_head(state, expected_head)
        kept = self._checkpoints.of_run(claim.run_id).get(to)
        if kept is None:
            raise CheckpointNotFoundError(to)
        self._move(state, kept.entry, nonce=nonce)

    def _move(self, state: rules.RunState, to: keep.Entry, *, nonce: str | None = None) -> None:
        run_id = state.record.run_id
        self._runs.put(
            rules.moved(
                state, head=to.checkpoint_id, settled=to.settled, nonce=nonce, status=to.status, wake_at=to.wake_at
            )
        )
        self._pruned += self._journals.drop(run_id) + self._inboxes.drop_expecting(run_id)

    def run(self, run_id: str) -> RunRecord | None:
        return self._runs.known(run_id)

    def runs(self, *, workflow_name: str | None, status: RunStatus | None) -> Sequence[RunRecord]:
        return self._runs.listed(workflow_name=workflow_name, status=status)

    def post(self, run_id: str, command: Command) -> Command:
        waiting = self._inboxes.of(run_id).get(command.id)
        if waiting is not None:
            return waiting
        state = self._runs.get(run_id)
        head = self._checkpoints.get(state.record.head) if state else None
        rules.require_postable(state, run_id, command, head.manifest.toc if head else {})
        self._parts.put(command.parts)
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
        return Mark(record.head, record.events, self._inboxes.newest(run_id), owner, record.halt is not None)

    def changes(self) -> object:
        """No other process can change anything here."""

    def due(self, *, at: str, workflow_names: Collection[str], limit: int) -> Sequence[Due]:
        unowned = (state.record for state in self._runs.unowned(workflow_names))
        found = (Due(record, self._inboxes.newest(record.run_id)) for record in unowned)
        is_due = (each for each in found if rules.is_due(each.record, commands=each.commands, at=at))
        return list(itertools.islice(is_due, max(0, limit)))

    def next_wake(self, *, after: str, workflow_names: Collection[str]) -> str | None:
        return self._runs.next_wake(after=after, workflow_names=workflow_names)

    def archive(self, run_id: str) -> Archive:
        state = rules.require_own_history(self._runs.get(run_id), run_id)
        without_parts = Archive(
            record=rules.archived(state),
            checkpoints=tuple(self._checkpoints.archived(run_id)),
            parts=(),
            journal=tuple(self._journals.of(run_id)),
            inbox=tuple(self.inbox(run_id)),
            events=tuple(self._events.of(run_id)),
        )
        parts = tuple(self._parts.closure(archiving.roots(without_parts)))
        return archiving.whole(without_parts, parts)

    def close_run(self, run_id: str, *, halt: Halt, instead_of: Halt | None, takeover: bool) -> bool:
        state = rules.closable(
            self._runs.get(run_id), run_id, instead_of=instead_of, takeover=takeover, is_given_up=lambda _: False
        )
        if state is not None:
            self._runs.put(rules.released(state, halt=halt))
        return state is not None

    def restore(self, archive: Archive) -> None:
        run_id = archive.record.run_id
        rules.require_restorable(self._runs.get(run_id), archive, resting=self._resting(run_id))
        replaced = self._checkpoints.of_run(run_id)
        for checkpoint in archive.checkpoints:
            if checkpoint.manifest.checkpoint_id not in replaced:
                self._checkpoints.require_new(checkpoint.manifest.checkpoint_id)
        self._remove_run(run_id)
        self._parts.put(archive.parts)
        for checkpoint in archive.checkpoints:
            self._checkpoints.add(checkpoint)
        self._pruned += self._journals.add(run_id, archive.journal)
        for command in archive.inbox:
            self._inboxes.put(run_id, command)
        for batch, moment in zip(archive.events, archiving.moments_told(archive), strict=True):
            self._events.add(batch, moment)
        self._runs.put(archiving.state_of(archive, token=self._runs.fresh_token()))

    def remove(self, run_id: str, *, takeover: bool) -> bool:
        rests = next(iter(self._resting(run_id)), None)
        state = self._runs.get(run_id)
        if not rules.removable(state, takeover=takeover, is_replaceable=lambda _: True, rests=rests):
            return False
        self._remove_run(run_id)
        return True

    def _resting(self, run_id: str) -> Mapping[str, str]:
        """The forks that have nothing but a checkpoint of this run, each with that checkpoint."""
        own = self._checkpoints.of_run(run_id)
        resting = ((name, state.rests_on) for name, state in self._runs.items())
        return {name: checkpoint_id for name, checkpoint_id in resting if checkpoint_id in own}

    def journal(self, run_id: str) -> Sequence[JournalRecord]:
        return self._journals.of(run_id)

    def manifest(self, checkpoint_id: str) -> Manifest:
        kept = self._checkpoints.get(checkpoint_id)
        if kept is None:
            raise CheckpointNotFoundError(checkpoint_id)
        return kept.manifest

    def manifests(self, *, workflow_name: str | None, run_id: str | None) -> Sequence[Manifest]:
        found = self._checkpoints.all() if run_id is None else self._checkpoints.of_run(run_id)
        return [kept.manifest for kept in found.values() if workflow_name in {None, kept.manifest.workflow_name}]

    def ids(self, *, workflow_name: str | None) -> Sequence[str]:
        named = self._checkpoints.all() if workflow_name is None else self._checkpoints.of_workflow(workflow_name)
        return list(named)

    def latest(self, *, workflow_name: str) -> Manifest | None:
        newest = self._checkpoints.newest_of(workflow_name)
        return newest.manifest if newest else None

    def parts(self, roots: Iterable[str]) -> Mapping[str, bytes]:
        return {part.hash: part.data for part in self._parts.closure(roots)}

    def delete(self, checkpoint_id: str) -> bool:
        kept = self._checkpoints.get(checkpoint_id)
        if kept is None:
            return False
        run_id = kept.manifest.run_id
        for follower, state in self._runs.items():
            if state.record.head == checkpoint_id:
                self._pruned += self._journals.drop(follower)
        self._forget(checkpoint_id)
        state = self._runs.get(run_id)
        newest = next(reversed(self._checkpoints.of_run(run_id).values()), None)
        if newest is None:
            self._remove_run(run_id)
        elif state is not None and state.record.head == checkpoint_id:
            self._move(state, newest.entry)
        return True

    def collect(self) -> int:
        refs = (each.refs() for each in (self._checkpoints, self._journals, self._inboxes, self._events))
        self._pruned = 0
        return self._parts.keep_only(itertools.chain.from_iterable(itertools.chain.from_iterable(refs)))

    def is_collection_due(self) -> bool:
        return keep.is_collection_due(pruned=self._pruned, remaining=len(self._checkpoints))

    def close(self) -> None:
        """There is nothing to let go of."""

    def _prune(self, run_id: str) -> None:
        if not isinstance(self._retention.events, FullHistory):
            self._pruned += self._events.prune(run_id, self._retention, self._clock.now())
        if isinstance(self._retention.checkpoints, FullHistory):
            return
        entries = [kept.entry for kept in self._checkpoints.of_run(run_id).values()]
        prunable = keep.prunable(self._retention, entries, self._clock.now())
        record = self._runs.known(run_id)
        spared = {record.head if record else None, *self._runs.rested_on()}
        doomed = (entry.checkpoint_id for entry in prunable if entry.checkpoint_id not in spared)
        for checkpoint_id in list(itertools.islice(doomed, keep.PRUNED_PER_COMMIT_MAX)):
            self._forget(checkpoint_id)

    def _remove_finished(self, *, besides: str) -> tuple[str, ...]:
        cutoff = keep.finished_cutoff(self._retention, self._clock.now())
        if cutoff is None:
            return ()
        rested_on = self._runs.rested_on()
        doomed = [
            run_id
            for run_id, state in self._runs.items()
            if run_id != besides
            and state.record.settled
            and state.record.owner is None
            and keep.is_older(state.moment, cutoff)
            and not self._inboxes.of(run_id)
            and rested_on.isdisjoint(self._checkpoints.of_run(run_id))
        ]
        removed = tuple(doomed[: keep.REMOVED_RUNS_PER_COMMIT_MAX])
        for run_id in removed:
            self._remove_run(run_id)
        return removed

    def _remove_run(self, run_id: str) -> None:
        self._runs.drop(run_id)
        for each in (self._checkpoints, self._journals, self._inboxes, self._events):
            self._pruned += each.drop(run_id)

    def _forget(self, checkpoint_id: str) -> None:
        self._checkpoints.forget(checkpoint_id)
        self._pruned += 1
