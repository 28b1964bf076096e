"""The pieces of a PostgreSQL store, put together. Whoever imports this needs the driver."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from perdure.storage.postgres.backend import PostgresBackend
from perdure.storage.postgres.database import PostgresDatabase as PostgresDatabase  # noqa: TC001 - handed on
from perdure.storage.postgres.owners import PostgresOwners
from perdure.storage.postgres.target import Target as Target  # noqa: TC001 - handed on

if TYPE_CHECKING:
    from perdure.clock import Clock
    from perdure.records import Retention
    from perdure.storage.durability import Durability


@dataclass(frozen=True, slots=True)
class Options:
    """How the store deals with the server."""

    pool_size: int
    patience_seconds: float
    durability: Durability = "commit"

    def __post_init__(self) -> None:
        if self.pool_size < 1:
            raise ValueError(f"pool_size={self.pool_size!r} is no number of connections; give 1 or more")


def open_backend(
    target: Target, *, retention: Retention, clock: Clock, options: Options, database: type[PostgresDatabase]
) -> PostgresBackend:
    """What the threads of a store work on."""
    made = database(target, pool_size=options.pool_size, patience_seconds=options.patience_seconds)
    made.durability = options.durability
    return PostgresBackend(made, PostgresOwners(made), retention=retention, clock=clock)
