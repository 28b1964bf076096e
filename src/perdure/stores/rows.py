"""Rows of the database as the records that they hold, if they are what was written."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from perdure.errors import CheckpointDamagedError
from perdure.records import JournalRecord, Manifest, Owner, RunRecord
from perdure.stores.rules import RunState

if TYPE_CHECKING:
    import sqlite3


def run_state(row: sqlite3.Row) -> RunState:
    """A row of runs."""
    owner = None
    if row["owner_id"] is not None:
        owner = Owner(id=row["owner_id"], host=row["owner_host"], boot=row["owner_boot"], pid=row["owner_pid"])
    record = RunRecord(
        run_id=row["run_id"],
        workflow_name=row["workflow_name"],
        created_at=row["created_at"],
        nonce=row["nonce"],
        input_digest=row["input_digest"],
        parent_checkpoint_id=row["parent_checkpoint_id"],
        head=row["head"],
        position=row["position"],
        settled=bool(row["settled"]),
        owner=owner,
    )
    return RunState(record, token=row["token"], moment=row["moment"])


def manifest(row: sqlite3.Row) -> Manifest:
    """A row of checkpoints. Raises CheckpointDamagedError."""
    checkpoint_id = str(row["checkpoint_id"])
    try:
        found = Manifest(
            checkpoint_id=checkpoint_id,
            run_id=row["run_id"],
            workflow_name=row["workflow_name"],
            position=row["position"],
            previous_id=row["previous_id"],
            timestamp=row["timestamp"],
            iteration_count=row["iteration_count"],
            header=row["header"],
            toc=json.loads(row["toc"]),
        )
        checksum = found.checksum()
    except (ValueError, TypeError) as error:
        raise CheckpointDamagedError(checkpoint_id, f"its record can't be read ({error})") from error
    if checksum != row["checksum"]:
        raise CheckpointDamagedError(checkpoint_id, "its checksum does not match")
    return found


def journal_record(row: sqlite3.Row) -> JournalRecord:
    """A row of the journal, with the head of its run. Raises CheckpointDamagedError."""
    run_id = str(row["run_id"])
    where = str(row["run_head"] or run_id)
    try:
        record = JournalRecord(key=json.loads(row["key"]), data=row["data"], refs=tuple(json.loads(row["refs"])))
        checksum = record.checksum(run_id=run_id, head=row["head"])
    except (ValueError, TypeError) as error:
        raise CheckpointDamagedError(where, f"a record of its journal can't be read ({error})") from error
    if checksum != row["checksum"]:
        raise CheckpointDamagedError(where, "the checksum of a record of its journal does not match")
    return record
