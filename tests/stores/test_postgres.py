"""The PostgreSQL store against the suite that we ship, on a real server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.postgres_server import needs_postgres, shared_server
from tests.soak import IS_SOAK
from typing_extensions import override

from perdure.storage import PostgresStore
from perdure.testing.stores import HostListConformance, HostStoreConformance, TenantViewConformance

if TYPE_CHECKING:
    from pathlib import Path

    from perdure.clock import Clock
    from perdure.records import Retention
    from perdure.storage import HostListStore, HostStore

pytestmark = needs_postgres


SCHEMAS_PER_DATABASE = 15
"""The more schemas a database has, the longer the server takes to find what is in one of them."""

databases: list[str] = []
places: dict[Path, tuple[str, str]] = {}


def place_of(directory: Path) -> tuple[str, str]:
    """The directory's own database and schema, the same ones each time."""
    if directory not in places:
        if len(places) % SCHEMAS_PER_DATABASE == 0:
            databases.append(shared_server().fresh_database())
        places[directory] = (databases[-1], shared_server().fresh_schema())
    return places[directory]


def store_for(directory: Path, *, retention: Retention, clock: Clock) -> PostgresStore:
    """A store of the directory's own."""
    database, schema = place_of(directory)
    return PostgresStore(database, schema=schema, retention=retention, clock=clock)


class TestPostgresStore(HostStoreConformance):
    @override
    def open_store(self, directory: Path, *, retention: Retention, clock: Clock) -> HostStore:
        return store_for(directory, retention=retention, clock=clock)


class TestHostsOfPostgresStore(HostListConformance):
    @override
    def open_store(self, directory: Path, *, retention: Retention, clock: Clock) -> HostListStore:
        return store_for(directory, retention=retention, clock=clock)


if IS_SOAK:
    # What a tenant is in SQL the tests of SQLite show, with the same tables.
    class TestTenantOfPostgresStore(TenantViewConformance):
        @override
        def open_store(self, directory: Path, *, retention: Retention, clock: Clock) -> HostStore:
            return store_for(directory, retention=retention, clock=clock).tenant("té/nant")
