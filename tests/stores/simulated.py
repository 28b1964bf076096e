"""The file store on a disk in memory, its work done where it is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from perdure.records import Retention
from perdure.storage.backend import Backend
from perdure.storage.carrying import done_here
from perdure.storage.file.directory import FileBackend
from perdure.storage.store import BackedStore

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future
    from pathlib import Path

    from perdure.clock import Clock
    from perdure.storage import Store
    from perdure.testing.disk import SimulatedDisk

B = TypeVar("B", bound=Backend)
T = TypeVar("T")


class Directly(Generic[B]):
    """Does the work of a backend where it is asked for."""

    is_here = True

    def __init__(self, backend: B) -> None:
        self._backend = backend

    async def do(self, work: Callable[[B], T]) -> T:
        return work(self._backend)

    def do_blocking(self, work: Callable[[B], T]) -> T:
        return work(self._backend)

    def post(self, work: Callable[[B], T]) -> Future[T]:
        return done_here(lambda: work(self._backend))

    async def close(self) -> None:
        pass


class Machine:
    """Opens the file store of one directory, as many processes would."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "runs"

    def open(self, disk: SimulatedDisk, clock: Clock, retention: Retention | None = None) -> Store:
        backend = FileBackend(self.directory, retention=retention or Retention(), clock=clock, disk=disk)
        return BackedStore("simulated", Directly(backend))
