"""The rules of ids, leases, commits and event numbers, as pure functions on values.

Every store checks these before a change, and stores the run that they return.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import posixpath
import unicodedata
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, overload
from urllib.parse import quote

from perdure.data_classes import evolve
from perdure.errors import (
    CheckpointDamagedError,
    CommandWaitsError,
    LeaseLostError,
    RunBusyError,
    RunExistsError,
    RunExportedError,
    RunNotFoundError,
    StaleCommandError,
    StaleHeadError,
    WorkflowCheckpointException,
)
from perdure.records import (
    Archive,
    Blob,
    Command,
    Commit,
    EventBatch,
    Halt,
    HeadStatus,
    Lease,
    NewRun,
    Owner,
    RunRecord,
    digest,
)
from perdure.storage.owners import this_process

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence


BEFORE_THE_FIRST = -1

RUN_ID_LENGTH_MAX = 200
CHECKPOINT_ID_LENGTH_MAX = 220
"""Room for a run id followed by "@" and a number."""

APART = "perdure:"
"""Prefix of tenants that hold perdure's own data beside the runs: conversations, definitions."""

_UNPRINTABLE = frozenset({"Cc", "Cs", "Zl", "Zp"})
_SAFE_IN_FILE_NAMES = "@+=,-_."
_FILE_NAME_LENGTH_MAX = 180
_FILE_NAME_PREFIX_LENGTH = 120


@dataclass(slots=True)
class RunState:
    """A run with what only its store needs to know: the newest fencing token."""

    record: RunRecord
    token: int

    @property
    def is_known(self) -> bool:
        """The run has a checkpoint to go on from. One that died before its first commit never began."""
        return self.record.head is not None

    @property
    def is_new(self) -> bool:
        """The run was never leased: it begins now, and data under its id belongs to another."""
        return self.token == 0

    @property
    def needed_checkpoint(self) -> str | None:
        """The parent's checkpoint, which a fork needs until it has one of its own."""
        return self.record.parent_checkpoint_id if self.record.position == BEFORE_THE_FIRST else None


def new_state(create: NewRun) -> RunState:
    """Return a run before its first lease and its first commit."""
    record = RunRecord(
        run_id=create.run_id,
        workflow_name=create.workflow_name,
        created_at=create.created_at,
        nonce=create.nonce,
        input_digest=create.input_digest,
        parent_checkpoint_id=create.parent_checkpoint_id,
        head=create.parent_checkpoint_id,
        position=BEFORE_THE_FIRST,
        settled=False,
        owner=None,
        parent_run_id=create.parent_run_id,
        tags=create.tags,
    )
    return RunState(record, token=0)


def require_leasable(
    state: RunState | None,
    run_id: str,
    *,
    create: NewRun | None,
    takeover: bool,
    is_replaceable: Callable[[Owner], bool],
    token: int | None = None,
) -> RunState:
    """Return the run to be leased: the existing one, or a new one. `is_replaceable` judges its owner.

    Raises LeaseLostError, RunBusyError, RunExportedError, RunNotFoundError.
    """
    owner = state.record.owner if state else None
    if state and token is not None and token <= state.token:
        raise LeaseLostError(run_id, owner=_name_of(owner))
    if owner and not takeover and token is None and not is_replaceable(owner):
        raise RunBusyError(run_id, owner=_name_of(owner))
    if state and state.is_known:
        require_here(state)
        return state
    if create is None:
        raise RunNotFoundError(run_id)
    assert create.run_id == run_id, f"claim of {run_id!r} would create {create.run_id!r}"
    return new_state(create)


@overload
def _name_of(owner: Owner) -> str: ...
@overload
def _name_of(owner: None) -> None: ...
def _name_of(owner: Owner | None) -> str | None:
    """Name an owner in an error. It may be this very process, after a call of it was cancelled."""
    if owner is None or owner.id != this_process().id:
        return None if owner is None else str(owner)
    return "another call of this process, which may have been cancelled and not have ended yet"


def require_here(state: RunState) -> None:
    """Refuse a run that has moved to another store. Raises RunExportedError."""
    halt = state.record.halt
    if halt is not None and halt.kind == "exported":
        raise RunExportedError(state.record.run_id, at=halt.at)


def acquire(state: RunState, *, owner: Owner, token: int) -> RunState:
    """Return the run with a new owner."""
    assert token > state.token, f"token {token} does not follow {state.token}"
    attempts = state.record.attempts + 1
    return replace(state, record=replace(state.record, owner=owner, halt=None, attempts=attempts), token=token)


def release(state: RunState, *, halt: Halt | None = None) -> RunState:
    """Return the run without an owner."""
    events = state.record.events + (halt.events.count if halt is not None and halt.events is not None else 0)
    return replace(state, record=replace(state.record, owner=None, halt=halt, attempts=0, events=events))


def replaced_owner(state: RunState) -> Owner | None:
    """Return the owner that a lease of this process replaces, unless that is this process."""
    owner = state.record.owner
    return None if owner is None or owner.id == this_process().id else owner


def note_progress(state: RunState) -> RunState:
    """Return the run after a journal record: the attempts so far were not in vain."""
    return replace(state, record=replace(state.record, attempts=0))


def find_closable(
    state: RunState | None, run_id: str, *, instead_of: Halt | None, takeover: bool, is_gone: Callable[[Owner], bool]
) -> RunState | None:
    """Return the run to be closed, or None if its halt is not `instead_of`. `is_gone` judges its owner.

    Raises RunNotFoundError, RunExportedError, RunBusyError, WorkflowCheckpointException.
    """
    known = require_own_history(state, run_id)
    require_here(known)
    owner = known.record.owner
    if owner and not takeover and not is_gone(owner):
        raise RunBusyError(run_id, owner=_name_of(owner))
    return known if known.record.halt == instead_of else None


def is_removable(
    state: RunState | None, *, takeover: bool, is_replaceable: Callable[[Owner], bool], fork: str | None
) -> bool:
    """Return whether there is a run to be removed. `fork` is a fork that still needs a checkpoint of it.

    Raises RunBusyError, WorkflowCheckpointException.
    """
    if state is None or not state.is_known:
        return False
    run_id, owner = state.record.run_id, state.record.owner
    if owner and not takeover and not is_replaceable(owner):
        raise RunBusyError(run_id, owner=_name_of(owner))
    if fork is not None:
        raise WorkflowCheckpointException(
            f"run {run_id!r} can't be removed: {fork!r}, a fork of it, has no checkpoint of its own yet; "
            "let the fork run, or remove it first"
        )
    return True


def require_restorable(state: RunState | None, archive: Archive, *, forks: Mapping[str, str]) -> None:
    """Refuse a run from elsewhere if one with its id is here and was not exported, or is newer.

    `forks` are the forks that still need a checkpoint of the run here, each with that checkpoint.
    """
    if state is None or not state.is_known:
        return
    run_id, here = archive.record.run_id, state.record
    if here.halt is None or here.halt.kind != "exported":
        raise RunExistsError(run_id, is_imported=True)
    comes = archive.record
    if comes.position < here.position or comes.events < here.events:
        raise WorkflowCheckpointException(
            f"run {run_id!r} can't be replaced: this file is from before the run went on: it is at checkpoint "
            f"{comes.position} and event {comes.events}, the run that was exported from here at {here.position} and "
            f"{here.events}; take the newest file, or remove the run here first"
        )
    kept = {checkpoint.manifest.checkpoint_id for checkpoint in archive.checkpoints}
    for fork, checkpoint_id in forks.items():
        if checkpoint_id not in kept:
            raise WorkflowCheckpointException(
                f"run {run_id!r} can't be replaced: {fork!r}, a fork of it, has no checkpoint of its own yet, and this "
                f"file lacks {checkpoint_id!r}, on which it rests; let the fork run, or remove it first"
            )


def require_own_history(state: RunState | None, run_id: str) -> RunState:
    """Return the run, if it can be stored elsewhere without its parent.

    Raises RunNotFoundError, WorkflowCheckpointException.
    """
    if state is None or not state.is_known:
        raise RunNotFoundError(run_id)
    if state.record.position == BEFORE_THE_FIRST:
        raise WorkflowCheckpointException(
            f"run {run_id!r} is a fork that has no checkpoint of its own yet, only that of its parent; "
            "let it run once, and export it then"
        )
    return state


def archive_record(state: RunState) -> RunRecord:
    """Return the record of a run that leaves its store."""
    return replace(state.record, owner=None, halt=None, attempts=0)


def is_held(state: RunState | None, lease: Lease) -> bool:
    """Return whether the lease still holds."""
    return state is not None and state.token == lease.token and state.record.owner is not None


def require_lease(state: RunState | None, lease: Lease, *, expected_head: str | None) -> RunState:
    """Return the run, if the lease still holds. Raises StaleHeadError, LeaseLostError."""
    if state is None:
        raise StaleHeadError(lease.run_id, expected=expected_head, head=None)
    if not is_held(state, lease):
        owner = state.record.owner
        raise LeaseLostError(lease.run_id, owner=_name_of(owner))
    return state


def require_head(state: RunState, expected: str | None) -> None:
    """Refuse a change that follows another head. Raises StaleHeadError."""
    if state.record.head != expected:
        raise StaleHeadError(state.record.run_id, expected=expected, head=state.record.head)


def require_next(state: RunState, commit: Commit) -> None:
    """Refuse a checkpoint whose position has passed. Positions may be skipped, since a copy of a run can be partial."""
    due = state.record.position + 1
    if commit.manifest.position < due:
        raise WorkflowCheckpointException(
            f"checkpoint {commit.manifest.checkpoint_id!r} has position {commit.manifest.position}, "
            f"but run {state.record.run_id!r} is past that, the next is {due}; reload the run before going on"
        )


def require_complete(state: RunState, commit: Commit) -> None:
    """Refuse the first commit of a fork that relies on blobs of its parent, which is gone."""
    events = commit.events
    blobs = {blob.hash: blob.refs for blob in (*commit.blobs, *(events.blobs if events else ()))}
    roots = (*commit.manifest.roots, *(events.refs if events else ()))
    if any(needed not in blobs for needed in reach(roots, lambda blob_hash: blobs.get(blob_hash, ()))):
        raise WorkflowCheckpointException(
            f"run {state.record.run_id!r} can't go on: {state.needed_checkpoint!r}, from which it was forked, was "
            "deleted before the fork had a checkpoint of its own; remove it, and fork from another checkpoint"
        )


def reach(roots: Iterable[str], refs_of: Callable[[str], Iterable[str]]) -> list[str]:
    """Return blobs and all that they refer to, directly or not, each once."""
    reached = list(dict.fromkeys(roots))
    seen = set(reached)
    for blob_hash in reached:
        # The list grows during the loop.
        further = [ref for ref in dict.fromkeys(refs_of(blob_hash)) if ref not in seen]
        reached.extend(further)
        seen.update(further)
    return reached


def require_consumed(waiting: Container[str], commit: Commit) -> None:
    """Refuse a commit that does the work of a waiting command without consuming it. Raises CommandWaitsError."""
    for command_id in commit.taken:
        if command_id in waiting and command_id not in commit.consumed:
            raise CommandWaitsError(commit.manifest.run_id, command_id=command_id)


def require_postable(state: RunState | None, run_id: str, command: Command, toc: Mapping[str, str]) -> RunState:
    """Return the run, if a command may be added to its inbox. `toc` is the table of contents of its head.

    Raises RunNotFoundError, RunExportedError, StaleCommandError.
    """
    if state is None or not state.is_known:
        raise RunNotFoundError(run_id)
    require_here(state)
    if command.expects is not None:
        path, blob_hash = command.expects
        if toc.get(path) != blob_hash:
            raise StaleCommandError(run_id, path=path)
    return state


def number_command(command: Command, *, number: int) -> Command:
    """Return a command as it waits in an inbox."""
    return replace(command, blobs=(), number=number)


def number_events(state: RunState, change: Commit | Halt) -> EventBatch | None:
    """Return the numbered events of a commit or halt, if it has any. `state` is the run before it."""
    events, record = change.events, state.record
    if events is None or events.count == 0:
        return None
    first = record.events + 1
    if isinstance(change, Halt):
        # Exports have one batch for each id.
        checkpoint_id, timestamp = f"{record.run_id}@{record.position}+{first}", change.at
    else:
        checkpoint_id, timestamp = change.manifest.checkpoint_id, change.manifest.timestamp
    return EventBatch(record.run_id, checkpoint_id, first, events.count, events.data, events.refs, moment(timestamp))


def commit(state: RunState, commit: Commit) -> RunState:
    """Return the run after a commit."""
    manifest, before = commit.manifest, state.record
    record = evolve(
        before,
        head=manifest.checkpoint_id,
        position=manifest.position,
        settled=commit.settled,
        status=commit.status,
        wake_at=commit.wake_at,
        events=before.events + (commit.events.count if commit.events else 0),
        attempts=0,
        moment=moment(manifest.timestamp),
        **new_facts(before, commit),
    )
    return RunState(record, token=state.token)


def new_facts(before: RunRecord, commit: Commit) -> dict[str, Any]:
    """Return the members of a run's record that a commit changes for listings alone."""
    facts = commit.facts
    if facts is None:
        return {"version": None, "requests": None}
    supersteps = before.supersteps + facts.supersteps
    return {"version": facts.version, "supersteps": supersteps, "requests": facts.requests, "spent": facts.spent}


def move_head(
    state: RunState,
    *,
    head: str,
    settled: bool,
    nonce: str | None = None,
    status: HeadStatus = "running",
    wake_at: str | None = None,
) -> RunState:
    """Return the run with another of its checkpoints as the head."""
    nonce = nonce or state.record.nonce
    record = replace(
        state.record, head=head, settled=settled, nonce=nonce, status=status, wake_at=wake_at, requests=None
    )
    return replace(state, record=record)


def duplicate_checkpoint_error(checkpoint_id: str) -> WorkflowCheckpointException:
    """Return the error for a checkpoint whose id is taken."""
    return WorkflowCheckpointException(
        f"checkpoint {checkpoint_id!r} exists already, and checkpoints never change; save it under another id"
    )


def archive_roots(archive: Archive) -> Iterator[str]:
    """Return every blob that the checkpoints, journal, inbox and events refer to directly."""
    of_checkpoints = (checkpoint.manifest.roots for checkpoint in archive.checkpoints)
    of_others = (each.refs for each in (*archive.journal, *archive.inbox, *archive.events))
    return itertools.chain.from_iterable(itertools.chain(of_checkpoints, of_others))


def complete_archive(archive: Archive, blobs: Iterable[Blob]) -> Archive:
    """Return the archive with its blobs. Raises CheckpointDamagedError if one is missing or damaged."""
    there = {blob.hash: blob for blob in blobs}
    for blob in there.values():
        if digest(blob.data) != blob.hash:
            raise CheckpointDamagedError(_which_needs(archive, blob.hash, there), f"its blob {blob.hash!r} is damaged")
    wanted = itertools.chain(archive_roots(archive), *(blob.refs for blob in there.values()))
    missing = next((each for each in wanted if each not in there), None)
    if missing is not None:
        raise CheckpointDamagedError(_which_needs(archive, missing, there), f"its blob {missing!r} is missing")
    return replace(archive, blobs=tuple(there.values()))


def _which_needs(archive: Archive, blob_hash: str, there: Mapping[str, Blob]) -> str:
    """Return the checkpoint that needs a blob, or the head if something else needs it."""
    for checkpoint in archive.checkpoints:
        if blob_hash in reach(checkpoint.manifest.roots, lambda each: there[each].refs if each in there else ()):
            return checkpoint.manifest.checkpoint_id
    return archive.record.head or archive.record.run_id


def restored_state(archive: Archive, *, token: int) -> RunState:
    """Return the run for its new store: without an owner, under a token that nobody has."""
    newest = moment(archive.checkpoints[-1].manifest.timestamp)
    return RunState(replace(archive.record, moment=newest), token)


def last_removed_event(archive: Archive) -> int:
    """Return the number of the last event that was removed, or 0."""
    return archive.events[0].first - 1 if archive.events else archive.record.events


def event_times(archive: Archive) -> Sequence[float | None]:
    """Return when each batch of events was committed. If that is not known, take the time of the next one."""
    known = {each.manifest.checkpoint_id: moment(each.manifest.timestamp) for each in archive.checkpoints}
    moments: list[float | None] = []
    for batch in reversed(archive.events):
        next_moment = moments[-1] if moments else None
        moments.append(known.get(batch.checkpoint_id, next_moment) if batch.moment is None else batch.moment)
    return moments[::-1]


def _require_id(kind: str, length_max: int, value: str) -> None:
    """Raise WorkflowCheckpointException for a string that can't be an id."""
    if not value:
        raise WorkflowCheckpointException(f"a {kind} can't be empty; give one")
    if len(value) > length_max:
        raise WorkflowCheckpointException(
            f"the {kind} {value[:40]!r}... has {len(value)} characters, more than {length_max}; shorten it"
        )
    if not value.isprintable() and any(unicodedata.category(character) in _UNPRINTABLE for character in value):
        raise WorkflowCheckpointException(
            f"the {kind} {value!r} has control characters or lone surrogates in it; leave them out"
        )
    # Stores without directories refuse such ids too, so that a run can move to any store.
    if ("/" in value or "\\" in value or value == "..") and _escapes_directory(value):
        raise WorkflowCheckpointException(
            f"the {kind} {value!r}, read as a path, leads out of a storage's directory; choose one that is not a path"
        )


require_run_id = functools.partial(_require_id, "run id", RUN_ID_LENGTH_MAX)
"""Refuse a string that can't be the id of a run."""

require_checkpoint_id = functools.partial(_require_id, "checkpoint id", CHECKPOINT_ID_LENGTH_MAX)
"""Refuse a string that can't be the id of a checkpoint."""

require_tenant = functools.partial(_require_id, "name of a tenant", RUN_ID_LENGTH_MAX)
"""Refuse a string that can't be the name of a tenant."""


def _escapes_directory(value: str) -> bool:
    path = posixpath.normpath(posixpath.join("/inside", value.replace("\\", "/")))
    return path != "/inside" and not path.startswith("/inside/")


@functools.lru_cache(maxsize=1024)
def file_name(value: str) -> str:
    """Return a file name that no other value has; the value itself where possible."""
    name = quote(value, safe=_SAFE_IN_FILE_NAMES, errors="surrogatepass").replace("~", "%7E")
    if name.startswith("."):
        name = "%2E" + name[1:]
    if len(name) <= _FILE_NAME_LENGTH_MAX:
        return name
    # Only shortened names contain "~", so they never equal a name that is not shortened.
    whole = hashlib.blake2b(value.encode("utf-8", "surrogatepass"), digest_size=20).hexdigest()
    return f"{name[:_FILE_NAME_PREFIX_LENGTH]}~{whole}"


@functools.lru_cache(maxsize=256)
def moment(timestamp: str) -> float | None:
    """Return a timestamp as seconds since the epoch, or None if it can't be read. Then it never grows old."""
    try:
        time = datetime.fromisoformat(timestamp)
    except ValueError:
        return None
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
