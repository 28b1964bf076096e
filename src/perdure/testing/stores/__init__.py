"""What every store must do, as a test class to subclass. Needs pytest.

class TestMyStore(StoreConformance):
    def open_store(self, directory, *, retention, clock):
        return MyStore(directory / "runs", retention=retention, clock=clock)
"""

from __future__ import annotations

from perdure.testing.clock import ManualClock
from perdure.testing.stores.claims import ClaimConformance
from perdure.testing.stores.commits import CommitConformance
from perdure.testing.stores.driver import RunDriver, command, events, finished, new_run, raw_part, text_part
from perdure.testing.stores.eventlogs import EventConformance
from perdure.testing.stores.forgetting import ForgettingConformance
from perdure.testing.stores.forks import ForkConformance
from perdure.testing.stores.ids import LEAVING_IDS, ODD_IDS, REFUSED_IDS, IdConformance
from perdure.testing.stores.inboxes import InboxConformance
from perdure.testing.stores.journals import JournalConformance
from perdure.testing.stores.lives import LifeConformance
from perdure.testing.stores.reading import ReadingConformance
from perdure.testing.stores.retention import RetentionConformance
from perdure.testing.stores.standing import StandingConformance
from perdure.testing.stores.watches import WatchConformance

__all__ = [
    "LEAVING_IDS",
    "ODD_IDS",
    "REFUSED_IDS",
    "ManualClock",
    "RunDriver",
    "StoreConformance",
    "command",
    "events",
    "finished",
    "new_run",
    "raw_part",
    "text_part",
]


class StoreConformance(
    ClaimConformance,
    CommitConformance,
    IdConformance,
    ForkConformance,
    JournalConformance,
    InboxConformance,
    EventConformance,
    StandingConformance,
    WatchConformance,
    ReadingConformance,
    ForgettingConformance,
    RetentionConformance,
    LifeConformance,
):
    """Subclass it, say how your store is opened, and pytest runs all of it."""
