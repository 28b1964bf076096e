"""The blocking half of a store.

A backend does one thing at a time and knows nothing of asyncio. `BackedStore` makes the storage port of it. The
operations mean the same as those of the port with the same name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol, Self, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from perdure.records import (
        Archive,
        Command,
        Commit,
        Due,
        EventBatch,
        Halt,
        JournalRecord,
        Lease,
        Manifest,
        Mark,
        NewRun,
        RunRecord,
        RunStatus,
    )


@dataclass(slots=True, eq=False)
class PendingCommit:
    """A commit in the queue, and how it ended."""

    lease: Lease
    commit: Commit
    error: Exception | None = None
    waiting: int = 0
    """The number of the newest command that waits after it."""
    removed: tuple[str, ...] = ()
    """The finished runs that retention removed with it."""
    is_durable: ClassVar[bool] = True

    @property
    def expected_head(self) -> str | None:
        """The head that it follows."""
        return self.commit.expected_head


@dataclass(slots=True, eq=False)
class PendingRecords:
    """Journal records in the queue, and how they ended."""

    lease: Lease
    head: str | None
    records: Sequence[JournalRecord]
    is_durable: bool
    error: Exception | None = None

    @property
    def expected_head(self) -> str | None:
        """The head that they follow."""
        return self.head


Pending: TypeAlias = PendingCommit | PendingRecords


class RunWriter(Protocol):
    """Changes of one run by its owner."""

    def acquire(self, run_id: str, *, create: NewRun | None, takeover: bool, token: int | None) -> Lease: ...

    def release(self, lease: Lease, *, halt: Halt | None) -> None: ...

    def write(self, pending: Sequence[Pending]) -> None:
        """Write each entry whole or not at all, in order. Note the error of an entry that was not written."""
        ...

    def rewind(self, lease: Lease, *, expected_head: str, to: str, nonce: str) -> None: ...


class RunReader(Protocol):
    """Runs with their journals, inboxes and events."""

    def run(self, run_id: str) -> RunRecord | None: ...

    def runs(self, *, workflow_name: str | None, status: RunStatus | None) -> Sequence[RunRecord]: ...

    def journal(self, run_id: str) -> Sequence[JournalRecord]: ...

    def inbox(self, run_id: str) -> Sequence[Command]: ...

    def events(self, run_id: str, *, after: int, limit: int) -> Sequence[EventBatch]: ...

    def mark(self, run_id: str) -> Mark:
        """Return the run's mark. `commands` is the newest command that waits, or 0. Called often, so keep it cheap."""
        ...


class CheckpointReader(Protocol):
    """Checkpoints and blobs."""

    def manifest(self, checkpoint_id: str) -> Manifest: ...

    def manifests(self, *, workflow_name: str | None, run_id: str | None) -> Sequence[Manifest]: ...

    def ids(self, *, workflow_name: str | None) -> Sequence[str]: ...

    def latest(self, *, workflow_name: str) -> Manifest | None: ...

    def blobs(self, roots: Iterable[str]) -> Mapping[str, bytes]: ...


class Inboxes(Protocol):
    """Commands from outside, and the notice of changes."""

    def post(self, run_id: str, command: Command) -> Command:
        """Add a command, synced. If one with its id waits already, return that one, whatever the head is."""
        ...

    def changes(self) -> object:
        """Return a value that differs once any process has changed anything here. Called often, so keep it cheap."""
        ...


class RunTransfer(Protocol):
    """Whole runs that come and go."""

    def archive(self, run_id: str) -> Archive: ...

    def close_run(self, run_id: str, *, halt: Halt, instead_of: Halt | None, takeover: bool) -> bool: ...

    def restore(self, archive: Archive) -> None: ...

    def remove(self, run_id: str, *, takeover: bool) -> bool: ...


class Maintenance(Protocol):
    """Removal of data that is no longer needed, and the end."""

    def delete(self, checkpoint_id: str) -> bool: ...

    def collect(self) -> int: ...

    def is_collection_due(self) -> bool:
        """Return whether enough was removed to make a collection of blobs worthwhile."""
        ...

    def close(self) -> None: ...


class Backend(RunWriter, RunReader, CheckpointReader, Inboxes, RunTransfer, Maintenance, Protocol):
    """All blocking operations of a store."""

    def for_tenant(self, tenant: str, *, creates: bool) -> Self:
        """Return the same for the data of one tenant; cheap, and sharing everything else.

        Unless `creates` is set, nothing is created for a tenant that has no data yet.
        """
        ...


class HostBackend(Backend, Protocol):
    """A backend that finds the runs that have work, as a host needs it."""

    def due(self, *, at: str, workflow_names: Collection[str], limit: int) -> Sequence[Due]: ...

    def next_wake(self, *, after: str, workflow_names: Collection[str]) -> str | None: ...
