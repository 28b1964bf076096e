"""A store in a directory of readable files, for all processes of a machine.

<checkpoint id>.json     a checkpoint with its small blobs and the events of its commit
.perdure/parts/          blobs that are too large for that, or do not change, by hash
.perdure/runs/           a log for each run
.perdure/journal/        for a run what it has finished since its newest checkpoint
.perdure/inbox/          for a run the commands that wait for it
.perdure/events/         for a run the events of checkpoints that were removed
.perdure/forks/          for a checkpoint the forks that need it
.perdure/owners/         a lock file for each process that leases runs
.perdure/undertaking/    the files and the plan of a transaction
.perdure/tenants/        for each tenant the same again
.perdure/lock, counter   the lock of the directory, and the numbers of commits and leases

A commit waits for two fsyncs: one of its file before the file gets its name, so that no name stands for half a file,
and one of the directory, so that the name is durable. More fsyncs are rare: the log of a run with the first commit,
every sixteenth, and before checkpoints are removed; blobs in files of their own, one for each file and one for all
names.

There are no indexes. A list of runs or checkpoints reads every log or checkpoint.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

from perdure.clock import SystemClock
from perdure.records import Retention
from perdure.storage.disk import Disk
from perdure.storage.file.backend import FileBackend
from perdure.storage.owners import LEASE_SECONDS, require_lease
from perdure.storage.port import require_durability
from perdure.storage.store import BackedStore
from perdure.storage.worker import Worker

if TYPE_CHECKING:
    import os

    from perdure.clock import Clock
    from perdure.storage.port import Durability


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
        durability: Durability = "commit",
    ) -> None:
        self.directory = Path(directory).absolute()
        open_backend = functools.partial(
            FileBackend,
            self.directory,
            retention=retention or Retention(),
            clock=clock or SystemClock(),
            disk=disk or Disk(durability=require_durability(durability)),
            lease_seconds=require_lease(lease_seconds),
        )
        worker = Worker(f"perdure {self.directory.name}", open_backend)
        collector = Worker(f"perdure {self.directory.name} collector", open_backend)
        super().__init__(f"file:{self.directory.resolve()}", worker, collector=collector)
