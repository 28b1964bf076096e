"""Records that pass between the engine and a store: blobs, checkpoints, commits, leases, journal, inbox and events.

A store sees ids, names and hashes. `Manifest.header` and every `data` are bytes that it keeps and never reads.

Nobody changes a record. Those that every commit makes are not frozen at run time: that would add a tenth to the time of
a commit.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

from perdure.data_classes import new_dict, value_class

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import timedelta

BlobKind: TypeAlias = Literal["json", "raw"]

# The state in which its head leaves a run: with work, waiting for an answer, sleeping, idle, or cancelled.
HeadStatus: TypeAlias = Literal["running", "waiting", "sleeping", "idle", "cancelled"]

# Reason why a run does not go on by itself: it failed, is quarantined ("parked"), or has moved to another store.
HaltKind: TypeAlias = Literal["failed", "parked", "exported"]

# The status of a run: as its head leaves it, or halted. A run with work that no host can load is blocked.
RunStatus: TypeAlias = Literal[
    "running", "waiting", "sleeping", "idle", "cancelled", "failed", "quarantined", "exported", "parked", "blocked"
]

_DIGEST_SIZE = 20

# Special paths in a stored table of contents. No path of a blob begins with a slash.
_REF, _BASE, _GONE = "/ref/", "/base", "/gone/"


_compact = json.JSONEncoder(separators=(",", ":")).encode


def digest(data: bytes) -> str:
    """Return the content hash that addresses a blob."""
    return hashlib.blake2b(data, digest_size=_DIGEST_SIZE).hexdigest()


@value_class
class Blob:
    """A blob: an encoded value, or a piece of one, addressed by the hash of its bytes."""

    hash: str
    data: bytes = field(repr=False)
    refs: tuple[str, ...] = ()
    kind: BlobKind = "json"

    @classmethod
    def of(cls, data: bytes, refs: tuple[str, ...] = (), kind: BlobKind = "json") -> Blob:
        """Make a blob that refers to the blobs `refs`."""
        return cls(digest(data), data, refs, kind)


@value_class
class Manifest:
    """A checkpoint as a store keeps it. The table of contents, `toc`, says which blob is at which path.

    Small values that change with every checkpoint are not blobs: `pieces` holds them. Most of a long table of contents
    can be in a blob: the `base`.

    Attributes:
        pieces: Values that are in the checkpoint itself, by path, as a JSON object. A store never reads it.
        refs: The blobs that `pieces` refers to directly.
        base: A blob with further entries of the table of contents. Entries of `toc` and `pieces` override its own.
        gone: Paths of the base that no longer exist.
    """

    checkpoint_id: str
    run_id: str
    workflow_name: str
    position: int
    previous_id: str | None
    timestamp: str
    iteration_count: int
    header: bytes = field(repr=False)
    toc: Mapping[str, str] = field(repr=False)
    pieces: bytes = field(default=b"", repr=False)
    refs: tuple[str, ...] = ()
    base: str | None = None
    gone: tuple[str, ...] = field(default=(), repr=False)

    @property
    def roots(self) -> tuple[str, ...]:
        """Every blob that the checkpoint refers to directly."""
        return (*self.toc.values(), *self.refs) if self.base is None else (*self.toc.values(), *self.refs, self.base)

    def table(self) -> Mapping[str, str]:
        """Return the table of contents as stores write it, with other fields at paths that begin with a slash."""
        if not self.refs and self.base is None:
            return self.toc
        refs = {f"{_REF}{number}": ref for number, ref in enumerate(self.refs)}
        base = {} if self.base is None else {_BASE: self.base}
        return {**self.toc, **refs, **base, **{f"{_GONE}{path}": "" for path in self.gone}}

    def table_text(self) -> str:
        """Return the table of contents as stores write it, as JSON."""
        return _compact(dict(self.table()))

    def with_table(self, table: Mapping[str, str]) -> Manifest:
        """Return the manifest with a table of contents that a store has written."""
        if not any(path.startswith("/") for path in table):
            return replace(self, toc=table)
        toc = {path: address for path, address in table.items() if not path.startswith("/")}
        refs = tuple(address for path, address in table.items() if path.startswith(_REF))
        gone = tuple(path.removeprefix(_GONE) for path in table if path.startswith(_GONE))
        return replace(self, toc=toc, refs=refs, base=table.get(_BASE), gone=gone)

    def checksum(self, *, table: str | None = None) -> str:
        """Return a hash of everything, stored beside it and compared on reading. `table` is `table_text()` if known."""
        names = [self.checkpoint_id, self.run_id, self.workflow_name]
        identity = [*names, self.position, self.previous_id, self.timestamp, self.iteration_count]
        # The text of a list with the table as its last element, whose text is the longest and made once.
        text = f"{_compact(identity)[:-1]},{self.table_text() if table is None else table}]"
        pieces = b"\n" + self.pieces if self.pieces else b""
        return digest(text.encode("utf-8", "surrogatepass") + b"\n" + self.header + pieces)


@value_class
class NewRun:
    """The data of a run that begins, at its start or as a fork of a checkpoint."""

    run_id: str
    workflow_name: str
    created_at: str
    nonce: str
    input_digest: str | None = None
    parent_checkpoint_id: str | None = None
    parent_run_id: str | None = None
    tags: str | None = None
    """A JSON object of strings. A store makes it searchable."""


@value_class
class RunRecord:
    """A run as a store knows it. A fork's head is its parent's checkpoint until its first commit."""

    run_id: str
    workflow_name: str
    created_at: str
    nonce: str
    input_digest: str | None
    parent_checkpoint_id: str | None
    head: str | None
    position: int
    """The number of the newest commit of this run, -1 before the first."""
    settled: bool
    """As of the head, nothing is left to do and no request is pending."""
    owner: Owner | None
    status: HeadStatus = "running"
    """As of the head. A fork before its first commit is always "running"."""
    wake_at: str | None = None
    """Time of its first timer, in UTC as ISO 8601."""
    events: int = 0
    """The number of the newest event, which is how many were ever committed."""
    halt: Halt | None = None
    attempts: int = 0
    """Number of leases since it was last released or made progress. All but the last owner have died."""
    moment: float | None = field(default=None, compare=False)
    """Time of the newest commit, in seconds since the epoch."""
    parent_run_id: str | None = None
    tags: str | None = None
    """A JSON object of strings."""
    version: int | None = None
    """The version of the workflow that made the newest commit; None if that is not known."""
    supersteps: int = 0
    requests: int | None = None
    """The number of open requests in the head; None if that is not known."""
    spent: str | None = None
    """The spending of the run, as a JSON object; None if it has spent nothing."""
    commands: int | None = field(default=None, compare=False)
    """The number of commands in its inbox when it was listed; None if that is not known."""

    @property
    def run_status(self) -> RunStatus:
        """The status: halted, or as the head leaves it."""
        return self.status if self.halt is None else self.halt.kind


@dataclass(frozen=True, slots=True)
class RunQuery:
    """A listing of runs: conditions, order and page. Statuses are stored ones: "parked", not "quarantined".

    Attributes:
        statuses: One of these; None for any.
        tags: All of these.
        created_after: At or after this time (UTC, ISO 8601).
        created_before: Before this time.
        updated_after: The newest commit was made at or after this time, in seconds since the epoch.
        updated_before: The newest commit was made before this time.
        error: The reason of a failed or quarantined run contains this text.
        has_requests: Only runs that may have open requests.
        order: Oldest or newest first, or those first that were updated last.
        limit: At most so many.
        after: The runs that follow this one in the order.
    """

    workflow_name: str | None = None
    statuses: tuple[str, ...] | None = None
    tags: Mapping[str, str] = field(default_factory=new_dict)
    created_after: str | None = None
    created_before: str | None = None
    updated_after: float | None = None
    updated_before: float | None = None
    error: str | None = None
    parent_run_id: str | None = None
    has_requests: bool = False
    order: Literal["oldest", "newest", "updated"] = "oldest"
    limit: int | None = None
    after: str | None = None


@value_class
class Halt:
    """Reason why a run does not go on by itself. The next lease ends the halt, except for a run that was exported."""

    kind: HaltKind
    at: str
    """The time, in UTC as ISO 8601."""
    reason: str
    """One line for people."""
    data: bytes = field(default=b"", repr=False)
    """Details of the engine. A store never reads them."""
    events: NewEvents | None = field(default=None, repr=False, compare=False)
    """Events to be numbered when the run is released with this halt. They are not stored with the halt."""


@value_class
class Due:
    """A run that can go on and has no living owner, with the number of the newest command that waits."""

    record: RunRecord
    commands: int = 0


@value_class
class Owner:
    """A process that advances runs, described so that others can tell whether it is alive."""

    id: str
    host: str
    boot: str
    pid: int

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


@value_class
class Lease:
    """A lease: the right to advance one run. Every write carries the fencing token; a replaced token writes nothing.

    Attributes:
        attempts: The number of this attempt to advance the run from its head. Progress starts the count again.
        halt: The halt that this lease has ended.
        previous: The owner that this lease has replaced: another process that died, was silent for too long, or lost
            the run by `takeover`.
        record: The run as it was when the lease was taken, which saves another read. None if the store does not
            return it.
    """

    run_id: str
    token: int
    owner: Owner
    attempts: int = 1
    halt: Halt | None = None
    record: RunRecord | None = field(default=None, repr=False, compare=False)
    previous: Owner | None = field(default=None, compare=False)


@value_class
class Commit:
    """All changes of one commit, made in one transaction.

    Attributes:
        blobs: Every blob that the checkpoint needs and its predecessor may not have.
        consumed: The ids of commands that this checkpoint has applied. They leave the inbox.
        taken: Ids of which no command may wait unless it is consumed here: this checkpoint has done their work.
        events: The events of the commit. The store numbers them.
        facts: What listings show of the run. None leaves it unknown.
    """

    manifest: Manifest
    blobs: tuple[Blob, ...]
    expected_head: str | None
    settled: bool
    status: HeadStatus = "running"
    wake_at: str | None = None
    consumed: tuple[str, ...] = ()
    taken: tuple[str, ...] = ()
    events: NewEvents | None = None
    facts: RunFacts | None = None


@value_class
class RunFacts:
    """Facts about a run for listings. A commit writes them into the record of the run."""

    version: int
    supersteps: int
    """The number of supersteps that this commit completes: 0 or 1."""
    requests: int
    spent: str | None


@value_class
class NewEvents:
    """The events of one commit, as one value.

    `refs` are the blobs that `data` refers to directly, `blobs` those to be written with it.
    """

    count: int
    data: bytes = field(repr=False)
    refs: tuple[str, ...] = ()
    blobs: tuple[Blob, ...] = field(default=(), repr=False)


@value_class
class EventBatch:
    """The stored events of one commit or failure, numbered from `first` on. The first event of a run is 1.

    Attributes:
        checkpoint_id: The checkpoint of the commit, which retention may have removed. Events of a failure have an id
            that no checkpoint has.
        moment: The time of the commit, in seconds since the epoch.
    """

    run_id: str
    checkpoint_id: str
    first: int
    count: int
    data: bytes = field(repr=False)
    refs: tuple[str, ...] = ()
    moment: float | None = field(default=None, compare=False)

    @property
    def last(self) -> int:
        """The number of the last event."""
        return self.first + self.count - 1

    def checksum(self) -> str:
        """Return a hash of everything, stored beside it and compared on reading."""
        identity = [self.run_id, self.checkpoint_id, self.first, self.count, list(self.refs)]
        return digest(_compact(identity).encode("utf-8", "surrogatepass") + b"\n" + self.data)


@value_class
class Command:
    """Something from outside that waits in a run's inbox: an answer, a message, a cancellation.

    Attributes:
        id: The first command with an id stays in the inbox; later ones are ignored.
        refs: The blobs that `data` refers to directly.
        blobs: Blobs to be written with it; empty on reading.
        expects: A path and a hash: the blob that the run's head must have there on posting. A rewind drops such
            commands.
        number: Assigned by the store, growing in each inbox.
    """

    id: str
    kind: str
    data: bytes = field(repr=False)
    refs: tuple[str, ...] = ()
    blobs: tuple[Blob, ...] = field(default=(), repr=False)
    expects: tuple[str, str] | None = None
    number: int = 0

    def checksum(self, *, run_id: str) -> str:
        """Return a hash of everything, stored beside it and compared on reading."""
        identity = [run_id, self.id, self.kind, self.number, list(self.refs), self.expects]
        return digest(_compact(identity).encode("utf-8", "surrogatepass") + b"\n" + self.data)


@value_class
class Mark:
    """Progress of a run: its newest commit, event and waiting command, its owner, and whether it is halted or blocked.

    The owner is None if it is certainly dead.
    """

    head: str | None = None
    events: int = 0
    commands: int = 0
    owner: str | None = None
    is_halted: bool = False
    is_blocked: bool = False


@value_class
class JournalRecord:
    """A finished piece of the superstep in progress.

    Attributes:
        key: A later record with the same key replaces the earlier one.
        refs: The blobs that `data` refers to directly.
        blobs: Blobs to be written with it; empty on reading.
        is_progress: It shows that the run makes progress. Notes that an attempt makes about itself do not. Not stored.
    """

    key: str
    data: bytes = field(repr=False)
    refs: tuple[str, ...] = ()
    blobs: tuple[Blob, ...] = field(default=(), repr=False)
    is_progress: bool = field(default=True, compare=False, repr=False)

    def checksum(self, *, run_id: str, head: str | None) -> str:
        """Return a hash of the record and its place, stored beside it and compared on reading."""
        identity = [run_id, head, self.key, list(self.refs)]
        return digest(_compact(identity).encode("ascii") + b"\n" + self.data)


@value_class
class WholeCheckpoint:
    """A checkpoint with its blobs, and its run when it was read."""

    manifest: Manifest
    blobs: Mapping[str, bytes] = field(repr=False)
    run: RunRecord | None


@value_class
class SinceHead:
    """Journal of a run, and the commands that wait for it."""

    journal: Sequence[JournalRecord]
    inbox: Sequence[Command]


@dataclass(frozen=True, slots=True)
class ArchivedCheckpoint:
    """A checkpoint with the state of the run after its commit."""

    manifest: Manifest
    settled: bool
    status: HeadStatus = "running"
    wake_at: str | None = None


@dataclass(frozen=True, slots=True)
class Archive:
    """Everything that a store has of a run, to be stored elsewhere.

    Attributes:
        record: Without an owner and attempts, which belong to the store that it leaves. A store archives it without a
            halt; if there is one, it is restored with it.
        checkpoints: In commit order.
        blobs: Every blob that the run needs, each with its references.
        inbox: In order, with their former numbers.
        events: In order. Earlier events were removed.
    """

    record: RunRecord
    checkpoints: tuple[ArchivedCheckpoint, ...]
    blobs: tuple[Blob, ...] = field(repr=False)
    journal: tuple[JournalRecord, ...] = ()
    inbox: tuple[Command, ...] = ()
    events: tuple[EventBatch, ...] = ()


@dataclass(frozen=True, slots=True)
class LatestOnly:
    """Keep the newest checkpoint of each run."""


@dataclass(frozen=True, slots=True)
class FullHistory:
    """Keep every checkpoint."""


@dataclass(frozen=True, slots=True)
class KeepLast:
    """Keep the newest `n` checkpoints of each run."""

    n: int

    def __post_init__(self) -> None:
        if self.n < 1:
            raise ValueError(f"KeepLast({self.n}) would keep nothing; give 1 or more")


@dataclass(frozen=True, slots=True)
class KeepFor:
    """Keep data that is younger than `age`."""

    age: timedelta

    def __post_init__(self) -> None:
        if self.age.total_seconds() < 0:
            raise ValueError(f"KeepFor({self.age!r}) has a negative age; give zero or more")


@dataclass(frozen=True, slots=True)
class Retention:
    """Rules for the data that a store keeps. A run's newest checkpoint, and checkpoints that a fork needs, always stay.

    Args:
        checkpoints: Older checkpoints of each run.
        finished_runs: Whole runs that have settled.
        events: Events of older commits. `KeepLast` counts commits here.
    """

    checkpoints: LatestOnly | FullHistory | KeepLast | KeepFor = field(default_factory=FullHistory)
    finished_runs: FullHistory | KeepFor = field(default_factory=FullHistory)
    events: FullHistory | KeepLast | KeepFor = field(default_factory=FullHistory)
