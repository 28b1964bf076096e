"""The records that pass between the engine and a store: parts, manifests, commits, claims, journal, inbox, events.

A store sees ids, names and hashes. `Manifest.header` and every `data` are bytes that it keeps and never reads.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import field, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

from perdure.data import frozen, value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import timedelta

PartKind: TypeAlias = Literal["json", "raw"]

HeadStatus: TypeAlias = Literal["running", "waiting", "sleeping", "idle", "cancelled"]
"""What a run's head leaves to do: work, an answer, the passing of time, nothing; or it was told to stop."""

HaltKind: TypeAlias = Literal["failed", "parked", "exported"]
"""Why nobody goes on with a run unasked: it failed, it ended too many processes, it has moved to another store."""

RunStatus: TypeAlias = Literal[
    "running", "waiting", "sleeping", "idle", "cancelled", "failed", "quarantined", "exported", "parked"
]
"""Where a run stands: as its head leaves it, or halted."""

_DIGEST_SIZE = 20

_REF, _BASE, _GONE = "/ref/", "/base", "/gone/"
"""In a stored table of contents, where no path of a part begins with a slash."""


_compact = json.JSONEncoder(separators=(",", ":")).encode


def digest(data: bytes) -> str:
    """The content hash by which a part is addressed."""
    return hashlib.blake2b(data, digest_size=_DIGEST_SIZE).hexdigest()


@frozen
class Part:
    """An encoded value, or a piece of one, addressed by the hash of its bytes."""

    hash: str
    data: bytes = field(repr=False)
    refs: tuple[str, ...] = ()
    kind: PartKind = "json"

    @classmethod
    def of(cls, data: bytes, refs: tuple[str, ...] = (), kind: PartKind = "json") -> Part:
        """The part that holds these bytes and refers to the parts `refs`."""
        return cls(digest(data), data, refs, kind)


@value
class Manifest:
    """A checkpoint as a store keeps it: who it is, and by `toc` which part stands at which path.

    Small things that change with every checkpoint need not be parts: `pieces` holds them. And of a long table of
    contents a part can hold most: the `base`.
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
    """What stands in the checkpoint itself, by path, as a JSON object; a store never reads it."""
    refs: tuple[str, ...] = ()
    """The parts that `pieces` refers to directly."""
    base: str | None = None
    """A part that holds further entries of the table of contents. Those of `toc` and `pieces` go before its own."""
    gone: tuple[str, ...] = field(default=(), repr=False)
    """The paths of the base that are not there any more."""

    @property
    def roots(self) -> tuple[str, ...]:
        """Every part that the checkpoint refers to directly."""
        return (*self.toc.values(), *self.refs) if self.base is None else (*self.toc.values(), *self.refs, self.base)

    def table(self) -> Mapping[str, str]:
        """The table of contents as stores write it: what is no entry of it stands at paths that begin with a slash."""
        if not self.refs and self.base is None:
            return self.toc
        refs = {f"{_REF}{number}": ref for number, ref in enumerate(self.refs)}
        base = {} if self.base is None else {_BASE: self.base}
        return {**self.toc, **refs, **base, **{f"{_GONE}{path}": "" for path in self.gone}}

    def table_text(self) -> str:
        """The same as text."""
        return _compact(dict(self.table()))

    def with_table(self, table: Mapping[str, str]) -> Manifest:
        """The same with the table of contents that a store has written."""
        if not any(path.startswith("/") for path in table):
            return replace(self, toc=table)
        toc = {path: address for path, address in table.items() if not path.startswith("/")}
        refs = tuple(address for path, address in table.items() if path.startswith(_REF))
        gone = tuple(path.removeprefix(_GONE) for path in table if path.startswith(_GONE))
        return replace(self, toc=toc, refs=refs, base=table.get(_BASE), gone=gone)

    def checksum(self, *, table: str | None = None) -> str:
        """A hash over all of it, kept beside it and compared on reading. `table` is its text, if that is known."""
        identity = [
            self.checkpoint_id,
            self.run_id,
            self.workflow_name,
            self.position,
            self.previous_id,
            self.timestamp,
            self.iteration_count,
        ]
        # The text of a list whose last element the table is: it is the longest, and is made once.
        text = f"{_compact(identity)[:-1]},{self.table_text() if table is None else table}]"
        pieces = b"\n" + self.pieces if self.pieces else b""
        return digest(text.encode("utf-8", "surrogatepass") + b"\n" + self.header + pieces)


@frozen
class NewRun:
    """What is recorded of a run when it begins: at its start, or as a fork of a checkpoint."""

    run_id: str
    workflow_name: str
    created_at: str
    nonce: str
    input_digest: str | None = None
    parent_checkpoint_id: str | None = None


@value
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
    """Nothing is left to do and no request is pending, as of the head."""
    owner: Owner | None
    status: HeadStatus = "running"
    """As of the head; of a fork before its first commit always "running"."""
    wake_at: str | None = None
    """When the first of its timers is due, in UTC as ISO 8601."""
    events: int = 0
    """How many events of this run were ever committed: the number of the newest."""
    halt: Halt | None = None
    attempts: int = 0
    """How often it was claimed since it was last given free, or has last made progress: each but the last has died."""

    @property
    def standing(self) -> RunStatus:
        """Where the run stands: halted, or as its head leaves it."""
        return self.status if self.halt is None else self.halt.kind


@frozen
class Halt:
    """Why nobody goes on with a run unasked. The next claim ends it, but for a run that was exported."""

    kind: HaltKind
    at: str
    """When, in UTC as ISO 8601."""
    reason: str
    """In a line, for people."""
    data: bytes = field(default=b"", repr=False)
    """What the engine knows of it; a store never reads it."""


@frozen
class Due:
    """A run that can go on and that nobody advances, with the number of the newest command that waits."""

    record: RunRecord
    commands: int = 0


@frozen
class Owner:
    """A process that advances runs, described so that others can tell whether it lives."""

    id: str
    host: str
    boot: str
    pid: int

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


@frozen
class Claim:
    """The right to advance one run. Every write carries the token; a replaced token writes nothing."""

    run_id: str
    token: int
    owner: Owner
    attempts: int = 1
    """Which attempt this is to get on from where the run stands; a life that makes progress begins anew at 1."""
    halt: Halt | None = None
    """The halt that it has ended."""
    record: RunRecord | None = field(default=None, repr=False, compare=False)
    """The run as it was claimed, so that nobody has to ask for it again; None if the store does not tell."""


@value
class Commit:
    """All that one commit changes, in one transaction."""

    manifest: Manifest
    parts: tuple[Part, ...]
    """Every part that the checkpoint needs and its predecessor might not have."""
    expected_head: str | None
    settled: bool
    status: HeadStatus = "running"
    wake_at: str | None = None
    consumed: tuple[str, ...] = ()
    """The ids of the commands that this checkpoint has taken in; they leave the inbox."""
    taken: tuple[str, ...] = ()
    """Ids under which no command may wait unless it is consumed here: this checkpoint has done their work."""
    events: NewEvents | None = None
    """What the commit tells; the store gives the numbers."""


@value
class NewEvents:
    """The events of one commit, as one piece."""

    count: int
    data: bytes = field(repr=False)
    refs: tuple[str, ...] = ()
    """The parts that `data` refers to directly."""
    parts: tuple[Part, ...] = field(default=(), repr=False)
    """Parts to be written with them."""


@value
class EventBatch:
    """The events of one commit as a store has them. They are numbered from `first` on; the first of a run is 1."""

    run_id: str
    checkpoint_id: str
    """The commit that told them. The checkpoint itself may be forgotten by now."""
    first: int
    count: int
    data: bytes = field(repr=False)
    refs: tuple[str, ...] = ()

    @property
    def last(self) -> int:
        """The number of the last one."""
        return self.first + self.count - 1

    def checksum(self) -> str:
        """A hash over all of it, kept beside it and compared on reading."""
        identity = [self.run_id, self.checkpoint_id, self.first, self.count, list(self.refs)]
        return digest(_json(identity) + b"\n" + self.data)


@frozen
class Command:
    """Something from outside that waits in a run's inbox: an answer, a message, the wish to cancel."""

    id: str
    """Of two commands of one id in an inbox the first stands."""
    kind: str
    data: bytes = field(repr=False)
    refs: tuple[str, ...] = ()
    """The parts that `data` refers to directly."""
    parts: tuple[Part, ...] = field(default=(), repr=False)
    """Parts to be written with it; empty on reading."""
    expects: tuple[str, str] | None = None
    """A path and a hash: what the run's head must have there when this is posted. A rewind drops such commands."""
    number: int = 0
    """Given by the store, growing in each inbox."""

    def checksum(self, *, run_id: str) -> str:
        """A hash over all of it, kept beside it and compared on reading."""
        identity = [run_id, self.id, self.kind, self.number, list(self.refs), self.expects]
        return digest(_json(identity) + b"\n" + self.data)


@frozen
class Mark:
    """How far a run is known: its newest commit, its newest event, the newest command that waits, owner and halt.

    The owner is None also if it is certainly dead.
    """

    head: str | None = None
    events: int = 0
    commands: int = 0
    owner: str | None = None
    is_halted: bool = False


def _json(value: object) -> bytes:
    return _compact(value).encode("utf-8", "surrogatepass")


@frozen
class JournalRecord:
    """Something that the superstep in progress has finished."""

    key: str
    """A later record of the same key replaces the earlier one."""
    data: bytes = field(repr=False)
    refs: tuple[str, ...] = ()
    """The parts that `data` refers to directly."""
    parts: tuple[Part, ...] = field(default=(), repr=False)
    """Parts to be written with it; empty on reading."""
    is_progress: bool = field(default=True, compare=False, repr=False)
    """Whether it shows that the run gets on; what a life notes of itself does not. It is not kept."""

    def checksum(self, *, run_id: str, head: str | None) -> str:
        """A hash over the record and what it belongs to, kept beside it and compared on reading."""
        identity = [run_id, head, self.key, list(self.refs)]
        return digest(json.dumps(identity, separators=(",", ":")).encode("ascii") + b"\n" + self.data)


@frozen
class WholeCheckpoint:
    """A checkpoint with all that it is made of, and what was known of its run when it was read."""

    manifest: Manifest
    parts: Mapping[str, bytes] = field(repr=False)
    run: RunRecord | None


@frozen
class SinceHead:
    """What has come to a run since its head: what it has finished, and the commands that wait."""

    journal: Sequence[JournalRecord]
    inbox: Sequence[Command]


@frozen
class ArchivedCheckpoint:
    """A checkpoint with what its commit said of the run."""

    manifest: Manifest
    settled: bool
    status: HeadStatus = "running"
    wake_at: str | None = None


@frozen
class Archive:
    """A whole run, to be kept elsewhere: all that a store has of it."""

    record: RunRecord
    """Without an owner and attempts: those are of the place that it leaves. Its halt is what it is restored with; a
    store archives it without one."""
    checkpoints: tuple[ArchivedCheckpoint, ...]
    """In commit order."""
    parts: tuple[Part, ...] = field(repr=False)
    """Every part that anything of the run needs, each with what it refers to."""
    journal: tuple[JournalRecord, ...] = ()
    inbox: tuple[Command, ...] = ()
    """In order, with the numbers that they had."""
    events: tuple[EventBatch, ...] = ()
    """In order; what was before the first of them is forgotten."""


@frozen
class LatestOnly:
    """Keep the newest checkpoint of each run."""


@frozen
class FullHistory:
    """Keep every checkpoint."""


@frozen
class KeepLast:
    """Keep the newest `n` checkpoints of each run."""

    n: int

    def __post_init__(self) -> None:
        if self.n < 1:
            raise ValueError(f"KeepLast({self.n}) would keep nothing; give 1 or more")


@frozen
class KeepFor:
    """Keep what is younger than `age`."""

    age: timedelta

    def __post_init__(self) -> None:
        if self.age.total_seconds() < 0:
            raise ValueError(f"KeepFor({self.age!r}) lies in the future; give an age of zero or more")


@frozen
class Retention:
    """What a store may forget. A run's newest checkpoint and what a fork rests on always stay.

    `checkpoints` is about the older checkpoints of a run, `events` about what its older commits told (`KeepLast` counts
    commits here), `finished_runs` about whole runs that have settled.
    """

    checkpoints: LatestOnly | FullHistory | KeepLast | KeepFor = field(default_factory=FullHistory)
    finished_runs: FullHistory | KeepFor = field(default_factory=FullHistory)
    events: FullHistory | KeepLast | KeepFor = field(default_factory=FullHistory)
