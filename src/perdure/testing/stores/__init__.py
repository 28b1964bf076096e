"""What every store must do, as a test class to subclass. Needs pytest.

class TestMyStore(StoreConformance):
    def open_store(self, directory, *, retention, clock):
        return MyStore(directory / "runs", retention=retention, clock=clock)

`HostStoreConformance` asks for more: work lists, whole runs and tenants, as a host needs them.
"""

from __future__ import annotations

from perdure.testing.clock import ManualClock
from perdure.testing.stores.agendas import AgendaConformance
from perdure.testing.stores.cancelling import CancelConformance
from perdure.testing.stores.claims import ClaimConformance
from perdure.testing.stores.closings import ClosingConformance
from perdure.testing.stores.commits import CommitConformance
from perdure.testing.stores.driver import RunDriver, command, events, finished, halted, new_run, raw_part, text_part
from perdure.testing.stores.eventlogs import EventConformance
from perdure.testing.stores.forgetting import ForgettingConformance
from perdure.testing.stores.forks import ForkConformance
from perdure.testing.stores.halts import HaltConformance
from perdure.testing.stores.ids import LEAVING_IDS, ODD_IDS, REFUSED_IDS, IdConformance
from perdure.testing.stores.inboxes import InboxConformance
from perdure.testing.stores.journals import JournalConformance
from perdure.testing.stores.lives import LifeConformance
from perdure.testing.stores.openings import OpeningConformance
from perdure.testing.stores.pieces import PieceConformance, PieceTransferConformance
from perdure.testing.stores.reading import ReadingConformance
from perdure.testing.stores.removals import RemovalConformance
from perdure.testing.stores.reopening import ReopeningConformance
from perdure.testing.stores.retention import RetentionConformance
from perdure.testing.stores.standing import StandingConformance
from perdure.testing.stores.tenants import TenantConformance
from perdure.testing.stores.tokens import TokenConformance
from perdure.testing.stores.transfers import TransferConformance
from perdure.testing.stores.watches import WatchConformance

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
