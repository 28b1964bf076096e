"""A store in a directory of readable files, for all processes of a machine.

<checkpoint id>.json     a checkpoint with its small parts, and what its commit told
.perdure/parts/          parts that are too large for that
.perdure/runs/           a log for each run
.perdure/journal/        for a run what it has finished since its newest checkpoint
.perdure/inbox/          for a run the commands that wait for it
.perdure/events/         for a run what the commits told whose checkpoints are forgotten
.perdure/workflows/      for each workflow which runs were committed to last
.perdure/forks/          for a checkpoint which forks rest on it
.perdure/owners/         a lock file for each process that claims runs
.perdure/undertaking/    what a change of many files has aside, and its plan
.perdure/tenants/        for each tenant the same again
.perdure/lock, counter   whoever writes holds the one and takes numbers from the other
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

from perdure.clock import SystemClock
from perdure.records import Retention
from perdure.stores.backend import BackedStore
from perdure.stores.directory import FileBackend
from perdure.stores.disk import Disk
from perdure.stores.owners import LEASE_SECONDS, require_lease
from perdure.stores.worker import Worker

if TYPE_CHECKING:
    import os

    from perdure.clock import Clock


class FileStore(BackedStore[FileBackend]):
    """Runs in a directory. It is made when it is first needed."""

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        retention: Retention | None = None,
        clock: Clock | None = None,
        disk: Disk | None = None,
        lease_seconds: float = LEASE_SECONDS,
    ) -> None:
        self.directory = Path(directory).absolute()
        open_backend = functools.partial(
            FileBackend,
            self.directory,
            retention=retention or Retention(),
            clock=clock or SystemClock(),
            disk=disk or Disk(),
            lease_seconds=require_lease(lease_seconds),
        )
        super().__init__(f"file:{self.directory.resolve()}", Worker(f"perdure {self.directory.name}", open_backend))
