"""Conformance tests of a store. Needs pytest.

    class TestMyStore(StoreConformance):
        def open_store(self, directory, *, retention, clock):
            return MyStore(directory / "runs", retention=retention, clock=clock)

`TenantStoreConformance` adds whole runs and tenants. `HostStoreConformance` also adds the work lists of a host.
"""

from __future__ import annotations

from perdure.testing.clock import ManualClock
from perdure.testing.stores.agenda import AgendaConformance, WatchConformance
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
from perdure.testing.stores.commits import (
    CommitConformance,
    ForkConformance,
    LifeConformance,
    ListingConformance,
    OpeningConformance,
    PieceConformance,
    PieceTransferConformance,
    ReadingConformance,
)
from perdure.testing.stores.leases import (
    AttemptConformance,
    CancelConformance,
    ClosingConformance,
    HaltConformance,
    LeaseConformance,
    TokenConformance,
)
from perdure.testing.stores.records import EventConformance, InboxConformance, JournalConformance, LifetimeConformance
from perdure.testing.stores.retention import ForgettingConformance, RemovalConformance, RetentionConformance
from perdure.testing.stores.tenants import HostTenantConformance, IdConformance, TenantConformance
from perdure.testing.stores.transfer import ArchiveConformance, ReopeningConformance, TransferConformance

__all__ = [
    "LEAVING_IDS",
    "ODD_IDS",
    "REFUSED_IDS",
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
    LifeConformance,
    IdConformance,
    LeaseConformance,
    TokenConformance,
    AttemptConformance,
    CancelConformance,
    HaltConformance,
    CommitConformance,
    PieceConformance,
    ForkConformance,
    ListingConformance,
    ReadingConformance,
    OpeningConformance,
    LifetimeConformance,
    JournalConformance,
    InboxConformance,
    EventConformance,
    WatchConformance,
    ForgettingConformance,
    RetentionConformance,
):
    """Subclass it and define `open_store`; pytest runs all tests."""


class _WholeRunConformance(
    ArchiveConformance,
    TransferConformance,
    PieceTransferConformance,
    ClosingConformance,
    ReopeningConformance,
    RemovalConformance,
    StoreConformance,
):
    """Tests of a store that archives, restores and removes whole runs."""


class TenantStoreConformance(TenantConformance, _WholeRunConformance):
    """Tests of a store with whole runs and tenants that serves no hosts."""


class TenantViewConformance(AgendaConformance, _WholeRunConformance):
    """Tests of the store of one tenant. It has everything that a host needs but tenants."""


class HostStoreConformance(HostTenantConformance, TenantViewConformance):
    """Tests of a store that serves hosts. Run `TenantViewConformance` against one of its tenants as well."""
