"""The journals of all runs of a SQL store. Whoever calls this is inside of a transaction, or only reads."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from perdure.storage.sql import rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure.records import JournalRecord
    from perdure.storage.sql.database import OfTenant


class JournalTable:
    """What runs have finished since their heads. What removes records says how many of those had parts."""

    def __init__(self, database: OfTenant) -> None:
        self._database = database

    def of(self, run_id: str) -> Sequence[JournalRecord]:
        """The records of a run, in the order of their first recording. Raises CheckpointDamagedError."""
        every = self._database.execute("journal", run_id=run_id).fetchall()
        found = rows.those_of_run(every, run_id, key="ordinal", kind="records in its journal")
        # Each is looked at, also if it is not of this head: that may be just what is damaged of it.
        records = [(row["head"] == row["run_head"], rows.journal_record(row)) for row in found]
        return [record for is_of_head, record in records if is_of_head]

    def put(self, run_id: str, records: Sequence[JournalRecord], *, head: str | None, is_empty: bool) -> int:
        """Add records, or replace those that have their keys. If it `is_empty`, there are none to be replaced."""
        new: list[dict[str, object]] = [
            {
                "run_id": run_id,
                "key": json.dumps(record.key),
                "head": head,
                "checksum": record.checksum(run_id=run_id, head=head),
                "refs": rows.of_refs(record.refs),
                "data": record.data,
            }
            for record in records
        ]
        replaced = 0
        if not is_empty:
            keys = json.dumps([row["key"] for row in new])
            replaced = self._database.number("count_replaced_with_parts", run_id=run_id, keys=keys)
        self._database.execute_many("put_record", new)
        return replaced

    def drop(self, run_id: str) -> int:
        """Remove all of a run."""
        removed = self._database.number("count_records_with_parts", run_id=run_id)
        self._database.execute("drop_journal", run_id=run_id)
        self._database.execute("count_no_records", run_id=run_id)
        return removed

    def drop_of_forks(self, checkpoint_id: str) -> None:
        """Remove those of the forks that have nothing but this checkpoint."""
        self._database.execute("drop_journals_of_forks", checkpoint_id=checkpoint_id)
        self._database.execute("count_no_records_of_forks", checkpoint_id=checkpoint_id)
