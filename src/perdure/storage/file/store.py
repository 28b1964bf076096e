"""A store in a directory of readable files, for all processes of a machine.

<checkpoint id>.json     a checkpoint with its small parts, and what its commit told
.perdure/parts/          parts that are too large for that, or do not change
.perdure/runs/           a log for each run
.perdure/journal/        for a run what it has finished since its newest checkpoint
.perdure/inbox/          for a run the commands that wait for it
.perdure/events/         for a run what the commits told whose checkpoints are forgotten
.perdure/workflows/      for each workflow which runs were committed to last
.perdure/forks/          for a checkpoint which forks rest on it
.perdure/owners/         a lock file for each process that claims runs
.perdure/undertaking/    what a change of many files has aside, and its plan
.perdure/tenants/        for each tenant the same again
.perdure/collecting      what was referred to since a collection of parts began
.perdure/lock, counter   whoever writes holds the one and takes numbers from the other

A commit waits for the disk twice: its file is synced before it gets its name, so that no name ever stands for half a
file; and the directory is, so that the name lasts. That is the least for a file of its own. Further syncs are for what
comes first or seldom: the log of a run at its first commit and at every sixteenth, or before checkpoints are forgotten;
the list of a workflow's runs, when another run is committed to than before; new parts beside, a sync for each file and
one for all names.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

from perdure.clock import SystemClock
from perdure.records import Retention
from perdure.storage.disk import Disk
from perdure.storage.file.directory import FileBackend
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
