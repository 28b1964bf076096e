"""The PostgreSQL store against the suite that we ship, on a real server."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

from tests.postgres_server import needs_postgres, shared_server
from typing_extensions import override

from perdure.stores.postgres import PostgresStore
from perdure.testing.stores import HostStoreConformance, TenantViewConformance

if TYPE_CHECKING:
    from pathlib import Path

    from perdure.clock import Clock
    from perdure.records import Retention
    from perdure.stores.port import HostStore

pytestmark = needs_postgres


def store_for(directory: Path, *, retention: Retention, clock: Clock) -> PostgresStore:
    """A store of the directory's own: in a schema that is named after it."""
    schema = "test_" + hashlib.blake2b(str(directory).encode(), digest_size=12).hexdigest()
    return PostgresStore(shared_server().dsn, schema=schema, retention=retention, clock=clock)


class TestPostgresStore(HostStoreConformance):
    @override
    def open_store(self, directory: Path, *, retention: Retention, clock: Clock) -> HostStore:
        return store_for(directory, retention=retention, clock=clock)


if "PERDURE_SOAK" in os.environ:
    # What a tenant is in SQL the tests of SQLite show, with the same tables.
    class TestTenantOfPostgresStore(TenantViewConformance):
        @override
        def open_store(self, directory: Path, *, retention: Retention, clock: Clock) -> HostStore:
            return store_for(directory, retention=retention, clock=clock).tenant("té/nant")
