"""Conformance tests of a store. Needs pytest.

    class TestMyStore(StoreConformance):
        def open_store(self, directory, *, retention, clock):
            return MyStore(directory / "runs", retention=retention, clock=clock)

`TenantStoreConformance` adds whole runs and tenants. `HostStoreConformance` also adds the work lists of a host.
"""

from __future__ import annotations

from perdure.testing.clock import ManualClock
from perdure.testing.stores import agenda, commits, hosts, leases, records, retention, tenants, transfer
from perdure.testing.stores.base import (
    LEAVING_IDS,
    ODD_IDS,
    REFUSED_IDS,
    RunDriver,
    command,
    events,
    finished,
    halted,
    new_run,
    raw_blob,
    text_blob,
)

__all__ = [
    "LEAVING_IDS",
    "ODD_IDS",
    "REFUSED_IDS",
    "HostListConformance",
    "HostStoreConformance",
    "ManualClock",
    "RunDriver",
    "StoreConformance",
    "TenantStoreConformance",
    "TenantViewConformance",
    "command",
    "events",
    "finished",
    "halted",
    "new_run",
    "raw_blob",
    "text_blob",
]


class StoreConformance(
    commits.LifeConformance,
    tenants.IdConformance,
    leases.LeaseConformance,
    leases.CancelConformance,
    leases.HaltConformance,
    commits.CommitConformance,
    commits.RefusalConformance,
    commits.PieceConformance,
    commits.ForkConformance,
    commits.ReadingConformance,
    records.LifetimeConformance,
    records.JournalConformance,
    records.InboxConformance,
    records.EventConformance,
    agenda.WatchConformance,
    retention.ForgettingConformance,
    retention.RetentionConformance,
):
    """Subclass it and define `open_store`; pytest runs all tests."""


class _WholeRunConformance(
    transfer.ArchiveConformance,
    transfer.TransferConformance,
    leases.ClosingConformance,
    transfer.ReopeningConformance,
    retention.RemovalConformance,
    StoreConformance,
):
    """Tests of a store that archives, restores and removes whole runs."""


class TenantStoreConformance(tenants.TenantConformance, _WholeRunConformance):
    """Tests of a store with whole runs and tenants that serves no hosts."""


class TenantViewConformance(agenda.AgendaConformance, _WholeRunConformance):
    """Tests of the store of one tenant. It has everything that a host needs but tenants."""


class HostListConformance(hosts.HostListConformance):
    """Tests of a store that knows its hosts: add them to `HostStoreConformance`."""


class HostStoreConformance(tenants.HostTenantConformance, TenantViewConformance):
    """Tests of a store that serves hosts. Run `TenantViewConformance` against one of its tenants as well."""
