"""Whole runs: archive one, restore one from another store, delete one of its checkpoints.

Callers hold the lock of the directory.
"""

from __future__ import annotations

import contextlib
import sys
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from perdure.errors import BlobDamagedError, CheckpointDamagedError
from perdure.records import Archive, ArchivedCheckpoint
from perdure.storage import rules
from perdure.storage.file import lines
from perdure.storage.file.blobs import closure, place
from perdure.storage.file.checkpoint_file import CheckpointFile, encode
from perdure.storage.file.directory import CHECKPOINTS, EVENTS, INBOX, JOURNAL, RUNS
from perdure.storage.file.history import old_batches, read_events
from perdure.storage.file.run_files import OldBatch, event_line, inbox_line, journal_line
from perdure.storage.file.run_log import LogLine, encode_log

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from perdure.records import Blob
    from perdure.storage.file.directory import Directory, Place, Target
    from perdure.storage.file.history import History
    from perdure.storage.file.run_log import RunLog


def archive(directory: Directory, run_id: str) -> Archive:
    """Return all that there is of a run. Raises CheckpointDamagedError."""
    log = directory.logs.of(run_id)
    run = log.current()
    state = rules.require_own_history(run.state if run else None, run_id)
    assert run is not None, "a state comes from a line"
    files = list(log.files())
    without_blobs = Archive(
        record=rules.archive_record(state),
        checkpoints=tuple(ArchivedCheckpoint(file.manifest, file.settled, file.status, file.wake_at) for file in files),
        blobs=(),
        journal=tuple(directory.journals.of(run_id).records(state.record)),
        inbox=tuple(directory.inboxes.of(run_id).waiting(run)),
        events=tuple(read_events(directory, log, run, after=0, limit=sys.maxsize)),
    )
    inline = {blob.hash: blob for file in files for blob in file.blobs.values()}
    try:
        blobs = directory.find_blobs(rules.archive_roots(without_blobs), known=inline)
    except BlobDamagedError as error:
        raise CheckpointDamagedError(state.record.head or run_id, error.reason) from error
    return rules.complete_archive(without_blobs, blobs.values())


def forks_of(directory: Directory, log: RunLog) -> Mapping[str, str]:
    """Return the forks that need a checkpoint of a run, each with that checkpoint."""
    ids = [entry.checkpoint_id for entry in (log.entries() if log.current() else ())]
    return {fork: checkpoint_id for checkpoint_id in ids for fork in directory.forks.of(checkpoint_id)}


def restore(directory: Directory, archived: Archive) -> None:
    """Write a run from another store, replacing one that was exported from here."""
    log = directory.logs.of(archived.record.run_id)
    run = log.current()
    rules.require_restorable(run.state if run else None, archived, forks=forks_of(directory, log))
    removed = set(directory.all_of(log, log.path.name))
    for checkpoint in archived.checkpoints:
        checkpoint_id = checkpoint.manifest.checkpoint_id
        is_replaced = (CHECKPOINTS, directory.checkpoints.path(checkpoint_id).name) in removed
        if not is_replaced and directory.checkpoints.exists(checkpoint_id):
            raise rules.duplicate_checkpoint_error(checkpoint_id)
    with directory.disk.always_fsync():
        files = _Restoration(directory, archived, log).files()
    # Blobs that were here already may have been written without fsync.
    directory.blobs.flush(blob.hash for blob in archived.blobs)
    directory.change_run(log, files, removed=removed)


class _Restoration:
    """Makes the files of one run. Large blobs are written at once: alone they do no harm."""

    def __init__(self, directory: Directory, archived: Archive, log: RunLog) -> None:
        self._directory = directory
        self._archive = archived
        self._name = log.path.name
        self._blobs = {blob.hash: blob for blob in archived.blobs}
        # Smaller than the number of any commit that follows, like the token of a run that begins here.
        self._life = directory.counter.take()

    def files(self) -> list[tuple[Target, bytes]]:
        """Return the content of each file."""
        checkpoints = list(self._checkpoints())
        of_run: dict[Place, bytes] = {
            RUNS: self._log(checkpoints),
            JOURNAL: self._journal(),
            INBOX: self._inbox(),
            EVENTS: self._events(checkpoints),
        }
        files = self._directory.checkpoints
        return [
            *(((CHECKPOINTS, files.path(each.manifest.checkpoint_id).name), encode(each)) for each in checkpoints),
            *(((place, self._name), data) for place, data in of_run.items() if data),
        ]

    def _checkpoints(self) -> Iterator[CheckpointFile]:
        batches = {batch.checkpoint_id: batch for batch in self._archive.events}
        events = rules.last_removed_event(self._archive)
        for checkpoint in self._archive.checkpoints:
            manifest = checkpoint.manifest
            batch = batches.get(manifest.checkpoint_id)
            events = batch.last if batch else events
            roots = (*manifest.roots, *(batch.refs if batch else ()))
            inline, beside = place(roots, carried={}, new=self._blobs)
            self._directory.blobs.add(beside.values())
            yield CheckpointFile(
                manifest=replace(manifest, toc=MappingProxyType(dict(manifest.toc))),
                settled=checkpoint.settled,
                sequence=self._directory.counter.take(),
                blobs=inline,
                status=checkpoint.status,
                wake_at=checkpoint.wake_at,
                events=events,
                batch=batch,
            )

    def _log(self, checkpoints: Iterable[CheckpointFile]) -> bytes:
        entries = [file.entry for file in checkpoints]
        line = LogLine(
            change="restore",
            state=rules.restored_state(self._archive, token=self._life),
            newest=entries[-1],
            life=self._life,
            forgotten=rules.last_removed_event(self._archive),
        )
        return encode_log(line, entries)

    def _journal(self) -> bytes:
        records = self._archive.journal
        if not records:
            return b""
        blobs = self._place(ref for record in records for ref in record.refs)
        return lines.encode(journal_line(self._archive.record, records, blobs))

    def _inbox(self) -> bytes:
        commands = (
            rules.number_command(command, number=self._directory.counter.take()) for command in self._archive.inbox
        )
        return b"".join(lines.encode(inbox_line(self._life, each, self._place(each.refs))) for each in commands)

    def _events(self, checkpoints: Iterable[CheckpointFile]) -> bytes:
        """Return the events of commits whose checkpoints are not in the archive."""
        there = {file.manifest.checkpoint_id for file in checkpoints}
        old = (
            OldBatch(batch, moment, self._place(batch.refs))
            for batch, moment in zip(self._archive.events, rules.event_times(self._archive), strict=True)
            if batch.checkpoint_id not in there
        )
        return b"".join(lines.encode(event_line(self._life, each)) for each in old)

    def _place(self, refs: Iterable[str]) -> tuple[Blob, ...]:
        """Return the blobs that go into a line, and write the others to files."""
        inline, large = lines.split_blobs(closure(refs, self._blobs.get).values())
        self._directory.blobs.add(large)
        return inline


def delete_checkpoint(directory: Directory, history: History, checkpoint_id: str) -> None:
    """Remove one checkpoint, damaged or not. Its events stay as long as its run does."""
    target: Target = (CHECKPOINTS, directory.checkpoints.path(checkpoint_id).name)
    # A journal that continues the checkpoint is void without it.
    forks = [directory.logs.of(fork).path.name for fork in directory.forks.of(checkpoint_id)]
    removed = [target, *((JOURNAL, name) for name in forks)]
    log = _log_of(directory, checkpoint_id)
    run = log.current() if log else None
    if log is None or run is None:
        directory.transactions.run([], removed=removed)
        directory.counter.add_pruned(1)
        return
    is_head = run.record.head == checkpoint_id
    name = log.path.name
    dropped = directory.inboxes.named(name).expecting(run) if is_head else ()
    after = log.without(replace(run, dropped=dropped), checkpoint_id)
    if after is None:
        removed += [(place, name) for place in (RUNS, JOURNAL, INBOX, EVENTS)]
        directory.change_run(log, [], removed=removed)
        return
    removed += [(JOURNAL, name)] if is_head else []
    entries = [entry for entry in log.entries() if entry.checkpoint_id != checkpoint_id]
    files: list[tuple[Target, bytes]] = [((RUNS, name), encode_log(after, entries))]
    with contextlib.suppress(CheckpointDamagedError):
        # The events of a damaged checkpoint are lost with it.
        file = directory.checkpoints.find(checkpoint_id)
        batches = old_batches(run, [file] if file else [])
        if batches:
            content = directory.events.named(name).content(run)
            new = b"".join(lines.encode(event_line(run.life, each)) for each in batches)
            files.append(((EVENTS, name), content + new))
    with contextlib.suppress(CheckpointDamagedError):
        history.flush(log, after)
    directory.change_run(log, files, removed=removed)


def _log_of(directory: Directory, checkpoint_id: str) -> RunLog | None:
    """Return the log of the run of a checkpoint, None if no log lists it."""
    try:
        file = directory.checkpoints.find(checkpoint_id)
    except CheckpointDamagedError:
        run_id, _, _ = checkpoint_id.rpartition("@")
        if run_id:
            # If it is the newest one and has no line in the log, its run can't be read, and removing the file undoes
            # the commit. If it is an older one without a line, the log lists it now.
            with contextlib.suppress(CheckpointDamagedError):
                directory.logs.of(run_id).current()
        found = next((log for log in directory.logs.all() if log.lists(checkpoint_id)), None)
        if found:
            # Nobody can read the entry of a checkpoint that has no line.
            found.forget_unreadable(checkpoint_id)
        return found
    return directory.logs.of(file.manifest.run_id) if file else None
