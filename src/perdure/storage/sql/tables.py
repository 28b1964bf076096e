"""All tables of a SQL store, as far as they belong to one tenant."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.storage.sql.checkpoints import CheckpointTable
from perdure.storage.sql.events import EventTable
from perdure.storage.sql.inboxes import InboxTable
from perdure.storage.sql.journals import JournalTable
from perdure.storage.sql.parts import PartTable
from perdure.storage.sql.runs import RunTable

if TYPE_CHECKING:
    from perdure.storage.sql.database import OfTenant


class Tables:
    """The tables, and what concerns several of them."""

    def __init__(self, database: OfTenant) -> None:
        self._database = database
        self.runs = RunTable(database)
        self.checkpoints = CheckpointTable(database)
        self.parts = PartTable(database)
        self.journal = JournalTable(database)
        self.inbox = InboxTable(database)
        self.events = EventTable(database)
        self.has_pruned = False
        """Whether anything was forgotten since this was last set to False."""

    def drop_run(self, run_id: str) -> None:
        """With all that belongs to it; its parts are for the next collection."""
        of_journal = self.journal.drop(run_id)
        besides = self.inbox.with_parts(run_id) + self.events.with_parts(run_id)
        self.count_pruned(self.checkpoints.count_of_run(run_id) + of_journal + besides)
        self._database.execute("drop_run", run_id=run_id)

    def count_pruned(self, number: int) -> None:
        """Note that so many things were forgotten whose parts may be needed no more."""
        if number:
            self.has_pruned = True
            self._database.execute("count_pruned", by=number)

    def pruned(self) -> int:
        """How much was forgotten since the last collection has begun."""
        return self._database.number("pruned")

    def begin_collection(self) -> int:
        """The number of a collection that begins. What is put from now on is none of its business."""
        self._database.execute("reset_pruned")
        return self._database.number("begin_collection")
