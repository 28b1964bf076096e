"""What every store must do, as a test class to subclass. Needs pytest.

class TestMyStore(StoreConformance):
    def open_store(self, directory, *, retention, clock):
        return MyStore(directory / "runs", retention=retention, clock=clock)
"""

from __future__ import annotations

from perdure.testing.stores.claims import ClaimConformance
from perdure.testing.stores.commits import CommitConformance
from perdure.testing.stores.driver import ManualClock, RunDriver, finished, new_run, raw_part, text_part
from perdure.testing.stores.forgetting import ForgettingConformance
from perdure.testing.stores.forks import ForkConformance
from perdure.testing.stores.ids import LEAVING_IDS, ODD_IDS, REFUSED_IDS, IdConformance
from perdure.testing.stores.journals import JournalConformance
from perdure.testing.stores.lives import LifeConformance
from perdure.testing.stores.reading import ReadingConformance
from perdure.testing.stores.retention import RetentionConformance

__all__ = [
    "LEAVING_IDS",
    "ODD_IDS",
    "REFUSED_IDS",
    "ManualClock",
    "RunDriver",
    "StoreConformance",
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
    ReadingConformance,
    ForgettingConformance,
    RetentionConformance,
    LifeConformance,
):
    """Subclass it, say how your store is opened, and pytest runs all of it."""
