"""Every store that we ship, against the suite that we ship."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.soak import IS_SOAK
from typing_extensions import override

from perdure.storage import FileStore, HostListStore, HostStore, MemoryStore, Openings, SqliteStore, TenantStore
from perdure.testing.stores import (
    HostListConformance,
    HostStoreConformance,
    StoreConformance,
    TenantStoreConformance,
    TenantViewConformance,
)
from perdure.testing.stores.retention import RemovalConformance
from perdure.testing.stores.tenants import CHANGES, HOST_LOOKS, LOOKS, IdConformance
from perdure.testing.stores.transfer import TransferConformance

if TYPE_CHECKING:
    from pathlib import Path

    from perdure.clock import Clock
    from perdure.records import Retention

TENANT = "té/nant"


class TestMemoryStore(HostStoreConformance):
    @override
    def open_store(self, directory: Path, *, retention: Retention, clock: Clock) -> HostStore:
        return MemoryStore(retention=retention, clock=clock)


if IS_SOAK:

    class TestTenantOfMemoryStore(TenantViewConformance):
        @override
        def open_store(self, directory: Path, *, retention: Retention, clock: Clock) -> HostStore:
            return MemoryStore(retention=retention, clock=clock).tenant(TENANT)


class TestSqliteStore(HostStoreConformance):
    @override
    def open_store(self, directory: Path, *, retention: Retention, clock: Clock) -> HostStore:
        return SqliteStore(directory / "runs.db", retention=retention, clock=clock)


class TestHostsOfMemoryStore(HostListConformance):
    @override
    def open_store(self, directory: Path, *, retention: Retention, clock: Clock) -> HostListStore:
        return MemoryStore(retention=retention, clock=clock)


class TestHostsOfSqliteStore(HostListConformance):
    @override
    def open_store(self, directory: Path, *, retention: Retention, clock: Clock) -> HostListStore:
        return SqliteStore(directory / "runs.db", retention=retention, clock=clock)


class TestHostsOfTenantOfSqliteStore(HostListConformance):
    @override
    def open_store(self, directory: Path, *, retention: Retention, clock: Clock) -> HostListStore:
        return SqliteStore(directory / "runs.db", retention=retention, clock=clock).tenant(TENANT)


class TestTenantOfSqliteStore(TenantViewConformance):
    @override
    def open_store(self, directory: Path, *, retention: Retention, clock: Clock) -> HostStore:
        return SqliteStore(directory / "runs.db", retention=retention, clock=clock).tenant(TENANT)


class TestFileStore(TenantStoreConformance):
    @override
    def open_store(self, directory: Path, *, retention: Retention, clock: Clock) -> TenantStore:
        return FileStore(directory / "runs", retention=retention, clock=clock)


class TestTenantOfFileStore(TransferConformance, RemovalConformance, IdConformance):
    """Operations that must find all files of a run in the directory of its tenant, which is laid out like the store's.

    The soak tries all other operations there too.
    """

    @override
    def open_store(self, directory: Path, *, retention: Retention, clock: Clock) -> TenantStore:
        return FileStore(directory / "runs", retention=retention, clock=clock).tenant(TENANT)


if IS_SOAK:

    class TestAllOfTenantOfFileStore(StoreConformance):
        @override
        def open_store(self, directory: Path, *, retention: Retention, clock: Clock) -> TenantStore:
            return FileStore(directory / "runs", retention=retention, clock=clock).tenant(TENANT)


NOT_ABOUT_CONTENTS = {"place", "tenant", "close", "subscribe", "watch"}
"""What the suite tries for tenants in tests of their own."""


def test_every_method_of_the_port_is_tried_for_tenants() -> None:
    methods = {name for port in (HostStore, Openings) for name in dir(port) if not name.startswith("_")}
    assert methods - NOT_ABOUT_CONTENTS == {*LOOKS, *HOST_LOOKS, *(change.split()[0] for change in CHANGES)}
