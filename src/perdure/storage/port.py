"""The storage port. A store keeps bytes; it never looks inside them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeGuard, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from perdure.records import (
        Archive,
        Claim,
        Command,
        Commit,
        Due,
        EventBatch,
        Halt,
        JournalRecord,
        Manifest,
        Mark,
        NewRun,
        RunRecord,
        RunStatus,
        SinceHead,
        WholeCheckpoint,
    )


class Claims(Protocol):
    """Who may advance a run. The store knows its own process as the owner."""

    async def claim(
        self, run_id: str, *, create: NewRun | None = None, takeover: bool = False, token: int | None = None
    ) -> Claim:
        """Take the run for this process, creating it first if it is unknown and `create` is given.

        A claim of this very process, of one that is certainly dead, or of one whose lease has run out by the clock of
        the store, is replaced; the token grows. A `token` that was made elsewhere is taken if it is larger than that of
        the run, whoever owns it: who makes the tokens decides who may write. A halt ends with the claim.

        Raises:
            RunBusyError: an owner that lives, or that may live elsewhere, unless `takeover` or `token`.
            RunNotFoundError: the run is unknown and there is no `create`.
            RunExportedError: the run has moved to another store.
            ClaimLostError: `token` is not larger than that of the run.
        """
        ...

    async def release(self, claim: Claim, *, halt: Halt | None = None) -> None:
        """Give the run free, if the claim still stands; with a halt nobody goes on with it unasked."""
        ...


class Runs(Protocol):
    """The history of runs. Nothing here changes a checkpoint once it is written."""

    async def commit(self, claim: Claim, commit: Commit) -> int:
        """Write the parts, the checkpoint, its events and the head in one transaction.

        In the same transaction the run's journal becomes void and the consumed commands leave the inbox. Then the
        retention is applied, which spares finished runs for which a command waits. Returns the number of the newest
        command that waits, 0 if none does.

        Raises:
            ClaimLostError: the claim's token is not the run's any more; nothing was written.
            StaleHeadError: the head is not `commit.expected_head`; nothing was written.
            CommandWaitsError: a command waits under an id of `commit.taken`; nothing was written.
        """
        ...

    async def rewind(self, claim: Claim, *, expected_head: str, to: str, nonce: str) -> None:
        """Move the head back to an older checkpoint of the run; the later ones stay readable, the journal is dropped.

        The nonce is another one than the run has had before. Commands that expect something of the head are dropped.
        The numbers of events go on: those that were given stay given.

        Raises ClaimLostError, StaleHeadError, and CheckpointNotFoundError if `to` is not of this run.
        """
        ...

    async def run(self, run_id: str) -> RunRecord | None:
        """What is known of a run; None if it was never begun."""
        ...

    async def runs(self, *, workflow_name: str | None = None, status: RunStatus | None = None) -> Sequence[RunRecord]:
        """The runs that are known, all or some, in the order in which they began. `status` is where they stand."""
        ...


class Journals(Protocol):
    """What a run has finished since its head. A journal is void once the head moves."""

    async def record(
        self, claim: Claim, *, head: str | None, records: Sequence[JournalRecord], durable: bool = True
    ) -> None:
        """Keep records of the superstep that follows `head`, with their parts, all of them or none.

        They are synced when this returns. Without `durable` they outlast the process, but perhaps not a power cut; the
        run's next durable write takes them along.

        Raises:
            ClaimLostError: the claim's token is not the run's any more; nothing was written.
            StaleHeadError: the run is not at `head`, which is None before the first commit; nothing was written.
        """
        ...

    async def journal(self, run_id: str) -> Sequence[JournalRecord]:
        """The records since the run's present head, in the order of their first recording.

        None for a run that is unknown; those of a run that never began are gone when it is claimed again.
        """
        ...


class Inboxes(Protocol):
    """What comes to a run from outside, whoever advances it. A command waits until a commit consumes it."""

    async def post(self, run_id: str, command: Command) -> Command:
        """Put a command into a run's inbox; it is synced when this returns.

        If a command of this id waits already, nothing is written and that one is returned.

        Raises:
            RunNotFoundError: there is no such run.
            StaleCommandError: the run's head is not what the command expects; nothing was written.
        """
        ...

    async def inbox(self, run_id: str) -> Sequence[Command]:
        """The commands that wait, in the order in which they came."""
        ...

    async def watch(self, run_id: str, *, seen: Mark, commands_only: bool = False) -> Mark:
        """Wait until a run's mark, or only its newest command, is another than the one that was seen; the mark then.

        What this process does is noticed at once, what others do soon. `Mark()` stands for a run that is unknown.
        """
        ...


class EventLog(Protocol):
    """What commits have told, in numbers without a gap."""

    async def events(self, run_id: str, *, after: int = 0, limit: int = 1000) -> Sequence[EventBatch]:
        """The batches that hold events with a number higher than `after`, in order, at most `limit` batches.

        What the retention has removed is left out. Raises CheckpointDamagedError.
        """
        ...


class Checkpoints(Protocol):
    """Reading. Everything is returned as it was written, or CheckpointDamagedError says which is not."""

    async def manifest(self, checkpoint_id: str) -> Manifest:
        """One checkpoint. Raises CheckpointNotFoundError."""
        ...

    async def manifests(self, *, workflow_name: str | None = None, run_id: str | None = None) -> Sequence[Manifest]:
        """All checkpoints, or those of a workflow or of a run, in commit order."""
        ...

    async def ids(self, *, workflow_name: str | None = None) -> Sequence[str]:
        """The ids of the same, in commit order."""
        ...

    async def latest(self, *, workflow_name: str) -> Manifest | None:
        """The newest commit of any run of the workflow, found without reading the others."""
        ...

    async def parts(self, roots: Iterable[str]) -> Mapping[str, bytes]:
        """The bytes of these parts and of all that they refer to, directly or not.

        A part that is missing is left out: the reader knows which checkpoint needs it and says so.
        """
        ...

    def read_parts(self, roots: Iterable[str]) -> Mapping[str, bytes]:
        """The same, blocking: a checkpoint that was listed reads its values when they are looked at."""
        ...


class Openings(Protocol):
    """What a run is opened with, read at once. A store need not have this: it is then asked for one after the other."""

    async def whole_checkpoint(self, checkpoint_id: str) -> WholeCheckpoint:
        """`manifest`, `parts` of its roots, and `run` of its run. Raises what these raise."""
        ...

    async def since_head(self, run_id: str) -> SinceHead:
        """`journal` and `inbox`. Raises what these raise."""
        ...


class Upkeep(Protocol):
    """What nobody waits for."""

    async def delete(self, checkpoint_id: str) -> bool:
        """Forget one checkpoint; False if there is none. The head moves to its newest remaining one.

        Journals that follow the checkpoint go with it. If it is the head, so do the commands that expect something
        of it. A fork that has nothing but this checkpoint may then leave nothing out of its first commit.
        """
        ...

    async def collect(self) -> int:
        """Remove parts that no checkpoint, journal, inbox or event refers to; their number.

        Safe beside runs, and if killed.
        """
        ...

    async def close(self) -> None:
        """Release files and threads. A closed store opens again when it is used."""
        ...


class Stir(Protocol):
    """Tells that something has come to a store which may be work for somebody."""

    def rest(self) -> None:
        """Forget what has come so far: who looks for work after that misses nothing."""
        ...

    async def woken(self) -> None:
        """Wait until something has come."""
        ...


class Agenda(Protocol):
    """What there is to do for those who advance many runs."""

    async def due(self, *, at: str, workflow_names: Collection[str], limit: int) -> Sequence[Due]:
        """Runs of these workflows that can go on at that time, in UTC as ISO 8601, and that nobody living advances.

        Their head leaves work, or their timer is due, or a command waits; and they are neither halted nor cancelled.
        Those come first that have waited longest.
        """
        ...

    async def next_wake(self, *, after: str, workflow_names: Collection[str]) -> str | None:
        """When, after that time, the first timer is due of runs of these workflows that are not halted or cancelled."""
        ...

    def stirring(self) -> AbstractAsyncContextManager[Stir]:
        """Hear of commands that are posted, runs that are given free, and whatever other processes do."""
        ...


class Transfers(Protocol):
    """Runs as a whole."""

    async def archive(self, run_id: str) -> Archive:
        """All that there is of a run, as of one moment.

        Raises RunNotFoundError, CheckpointDamagedError, and WorkflowCheckpointException for a fork that has no
        checkpoint of its own yet.
        """
        ...

    async def close_run(
        self, run_id: str, *, halt: Halt, instead_of: Halt | None = None, takeover: bool = False
    ) -> bool:
        """Halt a run that nobody advances, without claiming it: there is no moment in which it is not halted.

        False, and nothing has changed, if its halt is not `instead_of`. The new halt is one that no run has had before.
        What this process advances itself counts as advanced.

        Raises:
            RunNotFoundError: there is no such run.
            RunExportedError: the run has moved to another store.
            RunBusyError: an owner that lives, or that may live elsewhere, or is this process, unless `takeover`.
            WorkflowCheckpointException: a fork that has no checkpoint of its own yet.
        """
        ...

    async def restore(self, archive: Archive) -> None:
        """Keep a run that comes from elsewhere, all of it or nothing. It replaces one that was exported from here.

        It is halted as its record says. Its commands get new numbers.

        Raises RunExistsError, and WorkflowCheckpointException if it is older than the one
        here, or if it lacks a checkpoint on which a fork rests here.
        """
        ...

    async def remove(self, run_id: str, *, takeover: bool = False) -> bool:
        """Forget a run: its checkpoints, journal, inbox and events; False if there is none. Parts are for `collect`.

        Raises RunBusyError like `claim`, and WorkflowCheckpointException if a fork rests on it.
        """
        ...


@runtime_checkable
class Tenants(Protocol):
    """A store that many share without seeing each other."""

    def tenant(self, name: str) -> HostStore:
        """What belongs to one of them. The store itself is that of nobody in particular, whose name is empty."""
        ...


@runtime_checkable
class Store(Claims, Runs, Journals, Inboxes, EventLog, Checkpoints, Upkeep, Protocol):
    """The whole port."""

    @property
    def place(self) -> str:
        """Where the store is, so that two objects on one place are known to be the same."""
        ...


@runtime_checkable
class HostStore(Store, Agenda, Transfers, Tenants, Protocol):
    """What a host needs: the whole port, and beyond it work lists, whole runs and tenants."""


def reads_at_once(store: object) -> TypeGuard[Openings]:
    """Whether a store reads at once what a run is opened with.

    By its class: one that wraps another and hands on what it lacks may mean to see each thing that is read.
    """
    return hasattr(type(store), "whole_checkpoint") and hasattr(type(store), "since_head")


def is_host_store(store: object) -> TypeGuard[HostStore]:
    """Whether a store has what a host needs. By name: one that wraps another has what it hands on."""
    needed = {name for protocol in (Store, Agenda, Transfers, Tenants) for name in dir(protocol)}
    return all(hasattr(store, name) for name in needed if not name.startswith("_"))
