"""A store in a PostgreSQL database, for processes on any number of machines."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from perdure.clock import SystemClock
from perdure.errors import WorkflowCheckpointException
from perdure.records import Retention
from perdure.storage.durability import require_durability
from perdure.storage.notifications import real_pause
from perdure.storage.owners import LEASE_SECONDS
from perdure.storage.sql.backend import SqlBackend
from perdure.storage.store import BackedStore
from perdure.storage.worker import Worker

if TYPE_CHECKING:
    from perdure.clock import Clock
    from perdure.storage.durability import Durability
    from perdure.storage.notifications import Pause
    from perdure.storage.postgres.database import PostgresDatabase

PATIENCE_SECONDS = 60.0
"""How long a server that can't be reached is waited for, unless it is said otherwise."""


class PostgresStore(BackedStore[SqlBackend]):
    """Runs in a schema of a PostgreSQL database. It connects when it is first needed.

    Args:
        dsn: A connection string or URL, as libpq takes it. It leads to the server, or to a pooler in session mode.
        schema: Where the tables are. It is made if it is not there.
        retention: What may be forgotten.
        clock: The clock of the runs. That of leases is the server's.
        lease_seconds: How long others wait for this process when they can't see whether it lives.
        pool_size: How many connections there are at most, beside the one that keeps the lease.
        patience_seconds: How long a server that is gone is waited for before a call fails.
        pause: Lets time pass between two looks for what other processes have changed.
        durability: With "os" what was written outlasts the process; a crash of the server may lose the last moments.
        database: What makes the database that statements are run on, if it is another than usual.
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
    ) -> None:
        try:
            from perdure.storage.postgres import opening  # noqa: PLC0415 - the driver comes with an extra
        except ImportError as error:
            raise WorkflowCheckpointException(f"a PostgreSQL storage needs {_what_is_missing(error)}") from error
        target = opening.Target.of(dsn, schema, lease_seconds=lease_seconds)
        open_backend = functools.partial(
            opening.open_backend,
            target,
            retention=retention or Retention(),
            clock=clock or SystemClock(),
            options=opening.Options(pool_size, patience_seconds, require_durability(durability)),
            database=database or opening.PostgresDatabase,
        )
        # One thread writes and at least one other reads. A child can't close the parent's connections.
        worker = Worker(f"perdure {schema}", open_backend, threads=max(2, pool_size), at_fork="abandon")
        super().__init__(target.place, worker, pause=pause)


def _what_is_missing(error: ImportError) -> str:
    if isinstance(error, ModuleNotFoundError):
        return f"the Python package {error.name}: pip install 'perdure[postgres]'"
    # The driver is there, and says why it can't be used: it has not found the library of PostgreSQL.
    said = " ".join(str(error).split())
    return f"the library libpq ({said}): install that of your system, or pip install 'psycopg[binary]'"
