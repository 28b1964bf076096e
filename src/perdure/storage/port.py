"""The storage port: the operations of a store, in groups. A store keeps bytes and never looks inside them.

The blocking half of a store is a backend: `FileBackend` or `SqlBackend`. It does one thing at a time and knows nothing
of asyncio. `BackedStore` makes a store of it. The operations of a backend mean the same as those of the port with the
same name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, TypeGuard, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

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
        RunQuery,
        RunRecord,
        RunStatus,
        SinceHead,
        WholeCheckpoint,
    )

Durability: TypeAlias = Literal["commit", "os"]
"""Safety of a commit that a store reports as done. With "commit" it survives a power cut. With "os" the operating
system has it: it survives the process."""


def require_durability(word: str) -> Durability:
    """Refuse a word that is not a durability. Raises ValueError."""
    if word not in ("commit", "os"):
        raise ValueError(
            f"durability={word!r} is none; give 'commit' (synced: it survives a power cut) or 'os' (it survives a "
            "killed process, and may be lost in a power cut)"
        )
    return word


class Leases(Protocol):
    """The right to advance a run. The store knows its own process as the owner."""

    async def acquire(
        self, run_id: str, *, create: NewRun | None = None, takeover: bool = False, token: int | None = None
    ) -> Lease:
        """Take the lease of a run for this process. If the run is unknown and `create` is given, create it.

        Replaces a lease of this process, of a process that is certainly dead, and one that has expired by the store's
        clock. The token grows. A `token` from elsewhere is taken if it is larger than the run's, whoever owns the run:
        its issuer decides who may write. A halt ends with the lease.

        Raises:
            RunBusyError: the owner is alive, or may be alive elsewhere, and neither `takeover` nor `token` is given.
            RunNotFoundError: the run is unknown and there is no `create`.
            RunExportedError: the run has moved to another store.
            LeaseLostError: `token` is not larger than the run's.
        """
        ...

    async def release(self, lease: Lease, *, halt: Halt | None = None) -> None:
        """Release a run, if the lease still holds. With a halt it does not go on by itself.

        The events of a halt are numbered and stored in the same transaction.
        """
        ...


class Runs(Protocol):
    """The history of runs. A checkpoint never changes once it is written."""

    async def commit(self, lease: Lease, commit: Commit) -> int:
        """Write the blobs, the checkpoint, its events and the head in one transaction.

        The same transaction voids the run's journal and removes the consumed commands from the inbox. Then retention is
        applied, which spares finished runs that have a waiting command. Returns the number of the newest command that
        waits, or 0.

        Raises:
            LeaseLostError: the lease was replaced; nothing was written.
            StaleHeadError: the head is not `commit.expected_head`; nothing was written.
            CommandWaitsError: a command with an id of `commit.taken` waits; nothing was written.
        """
        ...

    async def rewind(self, lease: Lease, *, expected_head: str, to: str, nonce: str) -> None:
        """Move the head back to an older checkpoint of the run.

        Later checkpoints stay readable. The journal, and commands that expect something of the head, are dropped. The
        nonce is one that the run has not had before. Events keep their numbers.

        Raises LeaseLostError, StaleHeadError, and CheckpointNotFoundError if `to` is not of this run.
        """
        ...

    async def run(self, run_id: str) -> RunRecord | None:
        """Return the record of a run, or None if it never began."""
        ...

    async def runs(self, *, workflow_name: str | None = None, status: RunStatus | None = None) -> Sequence[RunRecord]:
        """Return runs in the order in which they began: all, or those of a workflow or status."""
        ...


class Listings(Protocol):
    """Optional: runs by indexed queries. Without it, all runs are read and filtered."""

    async def list_runs(self, query: RunQuery) -> Sequence[RunRecord]:
        """Return the runs that a query selects, in its order."""
        ...

    async def count_runs(self, query: RunQuery) -> Mapping[str, int]:
        """Return by status how many runs a query selects. Its order, limit and position do not count."""
        ...

    async def manifests_of(self, checkpoint_ids: Collection[str]) -> Mapping[str, Manifest]:
        """Return several checkpoints by id. Those that do not exist are left out. Raises CheckpointDamagedError."""
        ...


class Journals(Protocol):
    """Work that a run has finished since its head. A journal is void once the head moves."""

    async def record(
        self, lease: Lease, *, head: str | None, records: Sequence[JournalRecord], durable: bool = True
    ) -> None:
        """Store records of the superstep that follows `head`, with their blobs: all of them or none.

        They are synced when this returns. Without `durable` they survive the process, but perhaps not a power cut,
        until the run's next durable write.

        Raises:
            LeaseLostError: the lease was replaced; nothing was written.
            StaleHeadError: the run is not at `head`, which is None before the first commit; nothing was written.
        """
        ...

    async def journal(self, run_id: str) -> Sequence[JournalRecord]:
        """Return the records since the run's head, in the order of their first recording.

        An unknown run has none. Those of a run that never began are gone when it is claimed again.
        """
        ...


class Inboxes(Protocol):
    """Commands from outside, whoever advances the run. A command waits until a commit consumes it."""

    async def post(self, run_id: str, command: Command) -> Command:
        """Add a command to a run's inbox. It is synced when this returns.

        If a command with this id waits already, write nothing and return that one.

        Raises:
            RunNotFoundError: there is no such run.
            StaleCommandError: the run's head is not what the command expects; nothing was written.
        """
        ...

    async def inbox(self, run_id: str) -> Sequence[Command]:
        """Return the commands that wait, oldest first."""
        ...

    async def watch(self, run_id: str, *, seen: Mark, commands_only: bool = False) -> Mark:
        """Wait until a run's mark, or only its newest command, differs from the one that was seen. Return the mark.

        Changes by this process are noticed at once, those by others soon. `Mark()` stands for an unknown run.
        """
        ...


class EventLog(Protocol):
    """Committed events, numbered without a gap."""

    async def events(self, run_id: str, *, after: int = 0, limit: int = 1000) -> Sequence[EventBatch]:
        """Return at most `limit` batches with events beyond number `after`, in order.

        Batches that retention has removed are left out. Raises CheckpointDamagedError.
        """
        ...


class Checkpoints(Protocol):
    """Reading. Everything is returned as it was written, or CheckpointDamagedError names it."""

    async def manifest(self, checkpoint_id: str) -> Manifest:
        """Return one checkpoint. Raises CheckpointNotFoundError."""
        ...

    async def manifests(self, *, workflow_name: str | None = None, run_id: str | None = None) -> Sequence[Manifest]:
        """Return checkpoints in commit order: all, or those of a workflow or a run."""
        ...

    async def ids(self, *, workflow_name: str | None = None) -> Sequence[str]:
        """Return the ids of checkpoints in commit order: all, or those of a workflow."""
        ...

    async def latest(self, *, workflow_name: str) -> Manifest | None:
        """Return the newest commit of any run of the workflow, found without reading the others."""
        ...

    async def blobs(self, roots: Iterable[str]) -> Mapping[str, bytes]:
        """Return the bytes of blobs, and of all blobs that they refer to, directly or not.

        A missing blob is left out: the reader knows which checkpoint needs it, and reports it.
        """
        ...

    def read_blobs(self, roots: Iterable[str]) -> Mapping[str, bytes]:
        """Do the same, blocking. Listed checkpoints read their values when somebody looks at them."""
        ...


class Openings(Protocol):
    """Optional: read in one go what is needed to open a run. Without it, each thing is read by itself."""

    async def whole_checkpoint(self, checkpoint_id: str) -> WholeCheckpoint:
        """Do `manifest`, `blobs` of its roots, and `run` of its run. Raises the errors of these."""
        ...

    async def since_head(self, run_id: str) -> SinceHead:
        """Do `journal` and `inbox`. Raises the errors of these."""
        ...


class Upkeep(Protocol):
    """Removal, and the end."""

    async def delete(self, checkpoint_id: str) -> bool:
        """Delete one checkpoint. Return False if there is none. If it is the head, the head moves to the newest one.

        Journals that follow the checkpoint go with it. If it is the head, so do commands that expect something of it.
        The first commit of a fork that has only this checkpoint must then contain all blobs.
        """
        ...

    async def collect(self) -> int:
        """Remove old finished runs, as the retention says, and unused blobs. Return the number of blobs.

        A blob is used if a checkpoint, journal, inbox or event refers to it. It works in many short transactions. It is
        safe while runs go on, and if it is killed.
        """
        ...

    async def close(self) -> None:
        """Release files and threads. A closed store opens again when it is used."""
        ...


class Subscription(Protocol):
    """A subscription to changes that may be work."""

    def clear(self) -> None:
        """Forget earlier notifications. Look for work after this call: later changes notify again."""
        ...

    async def wait(self) -> None:
        """Wait for a notification."""
        ...


class Agenda(Protocol):
    """Work for hosts, which advance many runs."""

    async def due(self, *, at: str, workflow_names: Collection[str], limit: int) -> Sequence[Due]:
        """Return runs of these workflows that can go on at a time (UTC, ISO 8601) and have no living owner.

        Their head leaves work, or a timer is due, or a command waits; and they are neither halted nor cancelled. Those
        that have waited longest come first.
        """
        ...

    async def next_wake(self, *, after: str, workflow_names: Collection[str]) -> str | None:
        """Return the time of the first timer after `after`, of runs of these workflows that are not halted."""
        ...

    def subscribe(self) -> AbstractAsyncContextManager[Subscription]:
        """Subscribe to posted commands, released runs, and all changes by other processes."""
        ...


class Transfers(Protocol):
    """Whole runs that come and go."""

    async def archive(self, run_id: str) -> Archive:
        """Return everything that is stored of a run, as of one moment.

        Raises RunNotFoundError, CheckpointDamagedError, and WorkflowCheckpointException for a fork that has no
        checkpoint of its own yet.
        """
        ...

    async def close_run(
        self, run_id: str, *, halt: Halt, instead_of: Halt | None = None, takeover: bool = False
    ) -> bool:
        """Halt a run that nobody advances, without taking its lease: it is halted all the time.

        Return False, and change nothing, if its halt is not `instead_of`. The new halt is one that no run has had
        before. A run of this process counts as advanced.

        Raises:
            RunNotFoundError: there is no such run.
            RunExportedError: the run has moved to another store.
            RunBusyError: the owner is alive, may be alive elsewhere, or is this process, and there is no `takeover`.
            WorkflowCheckpointException: a fork that has no checkpoint of its own yet.
        """
        ...

    async def restore(self, archive: Archive) -> None:
        """Store a run that comes from elsewhere, all of it or nothing. It replaces one that was exported from here.

        It is halted as its record says. Its commands get new numbers.

        Raises RunExistsError, and WorkflowCheckpointException if it is older than the run here, or if it lacks a
        checkpoint that a fork here needs.
        """
        ...

    async def remove(self, run_id: str, *, takeover: bool = False) -> bool:
        """Remove a run with its checkpoints, journal, inbox and events. Return False if there is none.

        Its blobs are left to `collect`. Raises RunBusyError like `acquire`, and WorkflowCheckpointException if a fork
        needs one of its checkpoints.
        """
        ...


@runtime_checkable
class Tenants(Protocol):
    """A store that many share without seeing each other."""

    def tenant(self, name: str) -> TenantStore:
        """Return a store for the data of one tenant. The store itself belongs to the tenant with an empty name."""
        ...


@runtime_checkable
class Store(Leases, Runs, Journals, Inboxes, EventLog, Checkpoints, Upkeep, Protocol):
    """The whole port."""

    @property
    def place(self) -> str:
        """Identify the store's data, so that two objects on one place are known to be the same."""
        ...


@runtime_checkable
class TenantStore(Store, Transfers, Tenants, Protocol):
    """A store with whole runs and tenants. Every store that ships with perdure is one."""


@runtime_checkable
class HostStore(TenantStore, Agenda, Protocol):
    """A store with work lists, as a host needs them. The file store is not one."""

    def tenant(self, name: str) -> HostStore:
        """Return the store of one tenant."""
        ...


class ListingStore(Store, Listings, Protocol):
    """A store with indexed listings."""


def lists_runs(store: Store) -> TypeGuard[ListingStore]:
    """Return whether a store implements `Listings`."""
    return hasattr(store, "list_runs")


def reads_at_once(store: object) -> TypeGuard[Openings]:
    """Return whether a store implements `Openings`.

    Its class decides: a wrapper that passes on what it lacks may want to see each read.
    """
    return hasattr(type(store), "whole_checkpoint") and hasattr(type(store), "since_head")


def is_tenant_store(store: object) -> TypeGuard[TenantStore]:
    """Return whether a store implements `TenantStore`. Its attributes decide, so that wrappers can pass them on."""
    return _has_all(store, Store, Transfers, Tenants)


def is_host_store(store: object) -> TypeGuard[HostStore]:
    """Return whether a store implements `HostStore`. Its attributes decide, so that wrappers can pass them on."""
    return _has_all(store, Store, Transfers, Tenants, Agenda)


def _has_all(store: object, *protocols: type) -> bool:
    needed = {name for protocol in protocols for name in dir(protocol)}
    return all(hasattr(store, name) for name in needed if not name.startswith("_"))
