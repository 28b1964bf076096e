"""Conformance tests of a store. Needs pytest.

    class TestMyStore(StoreConformance):
        def open_store(self, directory, *, retention, clock):
            return MyStore(directory / "runs", retention=retention, clock=clock)

`TenantStoreConformance` adds whole runs and tenants. `HostStoreConformance` also adds the work lists of a host.
"""

from __future__ import annotations

from perdure.testing.clock import ManualClock
from perdure.testing.stores.agenda import AgendaConformance, HaltConformance, StandingConformance
from perdure.testing.stores.base import (
    LifeConformance,
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
    OpeningConformance,
    PieceConformance,
    PieceTransferConformance,
    ReadingConformance,
)
from perdure.testing.stores.event_log import EventConformance, WatchConformance
from perdure.testing.stores.inbox import InboxConformance
from perdure.testing.stores.journal import JournalConformance
from perdure.testing.stores.leases import CancelConformance, ClosingConformance, LeaseConformance, TokenConformance
from perdure.testing.stores.retention import ForgettingConformance, RemovalConformance, RetentionConformance
from perdure.testing.stores.tenants import (
    LEAVING_IDS,
    ODD_IDS,
    REFUSED_IDS,
    HostTenantConformance,
    IdConformance,
    TenantConformance,
)
from perdure.testing.stores.transfer import ReopeningConformance, TransferConformance

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
    LeaseConformance,
    TokenConformance,
    HaltConformance,
    CommitConformance,
    PieceConformance,
    IdConformance,
    ForkConformance,
    JournalConformance,
    InboxConformance,
    EventConformance,
    StandingConformance,
    WatchConformance,
    ReadingConformance,
    OpeningConformance,
    ForgettingConformance,
    RetentionConformance,
    LifeConformance,
    CancelConformance,
):
    """Subclass it and define `open_store`; pytest runs all tests."""


class _WholeRunConformance(
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
