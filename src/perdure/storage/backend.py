"""A store whose work is blocking: what it has to offer, and who does the work.

A backend does one thing at a time and knows nothing of asyncio. `BackedStore` is the storage port for any of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, Self, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from concurrent.futures import Future

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
    )

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class PendingCommit:
    """A commit that waits for its turn, and how it ended."""

    claim: Claim
    commit: Commit
    error: Exception | None = None
    waiting: int = 0
    """The number of the newest command that waits after it."""
    removed: tuple[str, ...] = ()
    """The finished runs that the retention has removed with it."""

    @property
    def is_durable(self) -> bool:
        """A commit always is."""
        return True

    @property
    def expected_head(self) -> str | None:
        """The head that it goes on from."""
        return self.commit.expected_head


@dataclass(slots=True, eq=False)
class PendingRecords:
    """Records for a journal that wait for their turn, and how they ended."""

    claim: Claim
    head: str | None
    records: Sequence[JournalRecord]
    is_durable: bool
    error: Exception | None = None

    @property
    def expected_head(self) -> str | None:
        """The head that they go on from."""
        return self.head


Pending: TypeAlias = PendingCommit | PendingRecords


class Backend(Protocol):
    """The operations of the storage port, blocking."""

    def of(self, tenant: str, *, founds: bool) -> Self:
        """The same for what belongs to one tenant; light, and sharing everything else. The empty name is nobody's.

        Unless it `founds` something, nothing is made for a tenant of whom nothing is here yet.
        """
        ...

    def claim(self, run_id: str, *, create: NewRun | None, takeover: bool, token: int | None) -> Claim: ...

    def release(self, claim: Claim, *, halt: Halt | None) -> None: ...

    def write(self, pending: Sequence[Pending]) -> None:
        """Write each of them whole or not at all, in order, and note the error of those that were not written."""
        ...

    def rewind(self, claim: Claim, *, expected_head: str, to: str, nonce: str) -> None: ...

    def run(self, run_id: str) -> RunRecord | None: ...

    def runs(self, *, workflow_name: str | None, status: RunStatus | None) -> Sequence[RunRecord]: ...

    def post(self, run_id: str, command: Command) -> Command:
        """Put a command into the inbox, synced; or the one of its id that waits already, whatever the head is."""
        ...

    def inbox(self, run_id: str) -> Sequence[Command]: ...

    def events(self, run_id: str, *, after: int, limit: int) -> Sequence[EventBatch]: ...

    def mark(self, run_id: str) -> Mark:
        """How far the run is, `commands` being the newest that waits, 0 if none does; cheap."""
        ...

    def changes(self) -> object:
        """Something that is another one once any process has changed anything here; cheap."""
        ...

    def due(self, *, at: str, workflow_names: Collection[str], limit: int) -> Sequence[Due]: ...

    def next_wake(self, *, after: str, workflow_names: Collection[str]) -> str | None: ...

    def archive(self, run_id: str) -> Archive: ...

    def close_run(self, run_id: str, *, halt: Halt, instead_of: Halt | None, takeover: bool) -> bool: ...

    def restore(self, archive: Archive) -> None: ...

    def remove(self, run_id: str, *, takeover: bool) -> bool: ...

    def journal(self, run_id: str) -> Sequence[JournalRecord]: ...

    def manifest(self, checkpoint_id: str) -> Manifest: ...

    def manifests(self, *, workflow_name: str | None, run_id: str | None) -> Sequence[Manifest]: ...

    def ids(self, *, workflow_name: str | None) -> Sequence[str]: ...

    def latest(self, *, workflow_name: str) -> Manifest | None: ...

    def parts(self, roots: Iterable[str]) -> Mapping[str, bytes]: ...

    def delete(self, checkpoint_id: str) -> bool: ...

    def collect(self) -> int: ...

    def is_collection_due(self) -> bool:
        """Whether enough was forgotten to look for parts that nobody needs."""
        ...

    def close(self) -> None: ...


B = TypeVar("B", bound=Backend)
B_co = TypeVar("B_co", bound=Backend, covariant=True)


class Doer(Protocol[B_co]):
    """Whoever does the work on a backend: a thread, or the caller."""

    @property
    def is_here(self) -> bool:
        """Whether it is the caller: what is handed in is done by then."""
        ...

    async def do(self, work: Callable[[B_co], T]) -> T: ...

    def do_blocking(self, work: Callable[[B_co], T]) -> T: ...

    def post(self, work: Callable[[B_co], T]) -> Future[T]: ...

    async def close(self) -> None: ...


class OfOneTenant(Generic[B]):
    """Does the work on what belongs to one tenant."""

    def __init__(self, doer: Doer[B], name: str, *, founds: bool = False) -> None:
        self._doer = doer
        self._name = name
        self._founds = founds

    @property
    def is_here(self) -> bool:
        """Whether it is the caller."""
        return self._doer.is_here

    async def do(self, work: Callable[[B], T]) -> T:
        return await self._doer.do(self._of_tenant(work))

    def do_blocking(self, work: Callable[[B], T]) -> T:
        return self._doer.do_blocking(self._of_tenant(work))

    def post(self, work: Callable[[B], T]) -> Future[T]:
        return self._doer.post(self._of_tenant(work))

    def _of_tenant(self, work: Callable[[B], T]) -> Callable[[B], T]:
        return lambda backend: work(backend.of(self._name, founds=self._founds))

    async def close(self) -> None:
        await self._doer.close()
