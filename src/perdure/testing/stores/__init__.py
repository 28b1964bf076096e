"""What every store must do, as a test class to subclass. Needs pytest.

class TestMyStore(StoreConformance):
    def open_store(self, directory, *, retention, clock):
        return MyStore(directory / "runs", retention=retention, clock=clock)

`HostStoreConformance` asks for more: work lists, whole runs and tenants, as a host needs them.
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
    raw_part,
    text_part,
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
from perdure.testing.stores.leases import CancelConformance, ClaimConformance, ClosingConformance, TokenConformance
from perdure.testing.stores.retention import ForgettingConformance, RemovalConformance, RetentionConformance
from perdure.testing.stores.tenants import LEAVING_IDS, ODD_IDS, REFUSED_IDS, IdConformance, TenantConformance
from perdure.testing.stores.transfer import ReopeningConformance, TransferConformance

__all__ = [
    "LEAVING_IDS",
    "ODD_IDS",
    "REFUSED_IDS",
    "HostStoreConformance",
    "ManualClock",
    "RunDriver",
    "StoreConformance",
    "TenantViewConformance",
    "command",
    "events",
    "finished",
    "halted",
    "new_run",
    "raw_part",
    "text_part",
]


class StoreConformance(
    ClaimConformance,
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
    """Subclass it, say how your store is opened, and pytest runs all of it."""


class TenantViewConformance(
    AgendaConformance,
    TransferConformance,
    PieceTransferConformance,
    ClosingConformance,
    ReopeningConformance,
    RemovalConformance,
    StoreConformance,
):
    """The same for what one tenant sees of a store: it is a store like any other, but has no tenants of its own."""


class HostStoreConformance(TenantConformance, TenantViewConformance):
    """The same for a store that serves hosts. Run `TenantViewConformance` against one of its tenants as well."""
