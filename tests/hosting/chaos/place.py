"""Where the runs of a storm rest: the store as all of its processes open it, and the world beside it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from tests.hosting.chaos.world import World

from perdure import PostgresCheckpointStorage, SqliteCheckpointStorage

if TYPE_CHECKING:
    from tests.postgres_server import Server

    from perdure.storage import StoreStorage


@dataclass(frozen=True)
class Place:
    """A SQLite file, or a schema of a Postgres database; and a directory for all else."""

    target: str
    schema: str
    directory: Path
    lease_seconds: float

    @classmethod
    def on_sqlite(cls, directory: Path, *, lease_seconds: float) -> Place:
        return cls(str(directory / "runs.db"), "", directory, lease_seconds)

    @classmethod
    def on_postgres(cls, server: Server, directory: Path, *, lease_seconds: float) -> Place:
        return cls(server.dsn, server.fresh_schema(), directory, lease_seconds)

    @classmethod
    def of(cls, target: str, schema: str, directory: str, lease_seconds: str) -> Place:
        """The place of `arguments`."""
        return cls(target, schema, Path(directory), float(lease_seconds))

    @property
    def arguments(self) -> tuple[str, ...]:
        """What tells another process of this place."""
        return self.target, self.schema, str(self.directory), str(self.lease_seconds)

    @cached_property
    def world(self) -> World:
        return World(self.directory / "world")

    def storage(self) -> StoreStorage:
        if self.schema:
            return PostgresCheckpointStorage(self.target, schema=self.schema, lease_seconds=self.lease_seconds)
        return SqliteCheckpointStorage(self.target, lease_seconds=self.lease_seconds)
