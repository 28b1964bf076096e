"""The storage port. A store keeps bytes; it never looks inside them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from perdure.records import Claim, Commit, JournalRecord, Manifest, NewRun, RunRecord


class Claims(Protocol):
    """Who may advance a run. The store knows its own process as the owner."""

    async def claim(self, run_id: str, *, create: NewRun | None = None, takeover: bool = False) -> Claim:
        """Take the run for this process, creating it first if it is unknown and `create` is given.

        A claim of this very process or of one that is certainly dead is replaced; the token grows.

        Raises:
            RunBusyError: an owner that lives, or that may live elsewhere, unless `takeover`.
            RunNotFoundError: the run is unknown and there is no `create`.
        """
        ...

    async def release(self, claim: Claim) -> None:
        """Give the run free, if the claim still stands."""
        ...


class Runs(Protocol):
    """The history of runs. Nothing here changes a checkpoint once it is written."""

    async def commit(self, claim: Claim, commit: Commit) -> None:
        """Write the parts, the checkpoint and the head in one transaction, in which the run's journal becomes void.

        Then the retention is applied.

        Raises:
            ClaimLostError: the claim's token is not the run's any more; nothing was written.
            StaleHeadError: the head is not `commit.expected_head`; nothing was written.
        """
        ...

    async def rewind(self, claim: Claim, *, expected_head: str, to: str, nonce: str) -> None:
        """Move the head back to an older checkpoint of the run; the later ones stay readable, the journal is dropped.

        The nonce is another one than the run has had before.

        Raises ClaimLostError, StaleHeadError, and CheckpointNotFoundError if `to` is not of this run.
        """
        ...

    async def run(self, run_id: str) -> RunRecord | None:
        """What is known of a run; None if it was never begun."""
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


class Upkeep(Protocol):
    """What nobody waits for."""

    async def delete(self, checkpoint_id: str) -> bool:
        """Forget one checkpoint; False if there is none. The head moves to its newest remaining one.

        Journals that follow the checkpoint go with it.
        """
        ...

    async def collect(self) -> int:
        """Remove parts that no checkpoint and no journal refers to; their number. Safe beside runs, and if killed."""
        ...

    async def close(self) -> None:
        """Release files and threads. A closed store opens again when it is used."""
        ...


@runtime_checkable
class Store(Claims, Runs, Journals, Checkpoints, Upkeep, Protocol):
    """The whole port."""

    @property
    def place(self) -> str:
        """Where the store is, so that two objects on one place are known to be the same."""
        ...
