"""A store in a PostgreSQL database, for processes on any number of machines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.clock import Clock, SystemClock
from perdure.errors import WorkflowCheckpointException
from perdure.records import Retention
from perdure.storage.notifications import Pause, real_pause
from perdure.storage.owners import LEASE_SECONDS
from perdure.storage.port import Durability, require_durability
from perdure.storage.sql.backend import SqlBackend
from perdure.storage.store import HostBackedStore
from perdure.storage.worker import Worker

if TYPE_CHECKING:
    from perdure.storage.postgres.database import PostgresDatabase

PATIENCE_SECONDS = 60.0


class PostgresStore(HostBackedStore[SqlBackend]):
    """Runs in a schema of a PostgreSQL database. It connects when it is first needed.

    Args:
        dsn: A connection string or URL, as libpq takes it. It leads to the server, or to a pooler in session mode.
        schema: The schema of the tables. It is created if it does not exist.
        retention: Which data is removed.
        clock: The clock of the runs. Leases follow the clock of the server.
        lease_seconds: How long others wait for this process when they can't see whether it is alive.
        pool_size: The maximal number of connections, beside the one of the heartbeat.
        patience_seconds: How long a call waits for a server that is gone before it fails.
        pause: Waits between two looks for changes by other processes.
        durability: With "os", writes survive the process, but a crash of the server may lose the last moments.
        database: The class that runs statements.
        read_only: Refuse all writes. The schema must exist and be of this release.
    """

    def __init__(
        self,
        dsn: str,
        *,
        schema: str = "perdure",
        retention: Retention | None = None,
        clock: Clock | None = None,
        lease_seconds: float = LEASE_SECONDS,
        pool_size: int = 4,
        patience_seconds: float = PATIENCE_SECONDS,
        pause: Pause = real_pause,
        durability: Durability = "commit",
        database: type[PostgresDatabase] | None = None,
        read_only: bool = False,
    ) -> None:
        try:
            # The driver comes with an extra.
            from perdure.storage.postgres.backend import PostgresBackend  # noqa: PLC0415
            from perdure.storage.postgres.database import PostgresDatabase  # noqa: PLC0415
            from perdure.storage.postgres.owners import PostgresOwners  # noqa: PLC0415
            from perdure.storage.postgres.target import Target  # noqa: PLC0415
        except ImportError as error:
            raise WorkflowCheckpointException(f"a PostgreSQL storage needs {_missing(error)}") from error
        if pool_size < 1:
            raise ValueError(f"pool_size={pool_size!r} is no number of connections; give 1 or more")
        target = Target.of(dsn, schema, lease_seconds=lease_seconds)
        connect, synced = database or PostgresDatabase, require_durability(durability)

        def open_backend() -> SqlBackend:
            opened = connect(
                target, pool_size=pool_size, patience_seconds=patience_seconds, durability=synced, read_only=read_only
            )
            owners = PostgresOwners(opened)
            return PostgresBackend(opened, owners, retention=retention or Retention(), clock=clock or SystemClock())

        # One thread writes and at least one other reads. A forked child must not close the parent's connections.
        worker = Worker(f"perdure {schema}", open_backend, threads=max(2, pool_size), at_fork="abandon")
        super().__init__(target.place, worker, pause=pause)


def _missing(error: ImportError) -> str:
    if isinstance(error, ModuleNotFoundError):
        return f"the Python package {error.name}: pip install 'perdure[postgres]'"
    # The driver is installed, but has not found the library of PostgreSQL.
    reason = " ".join(str(error).split())
    return f"the library libpq ({reason}): install that of your system, or pip install 'psycopg[binary]'"
