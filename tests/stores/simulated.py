"""The file store on a disk in memory, with its work done on the calling thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.records import Retention
from perdure.storage.file import FileBackend
from perdure.storage.store import BackedStore
from perdure.storage.worker import InlineWorker

if TYPE_CHECKING:
    from pathlib import Path

    from perdure.clock import Clock
    from perdure.storage import Store
    from perdure.testing.disk import SimulatedDisk


class Machine:
    """Opens the file store of one directory, as many processes would."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "runs"

    def open(self, disk: SimulatedDisk, clock: Clock, retention: Retention | None = None) -> Store:
        backend = FileBackend(self.directory, retention=retention or Retention(), clock=clock, disk=disk)
        return BackedStore("simulated", InlineWorker(backend))
