"""The checkpoints of a SQL store. Whoever changes something is inside of a transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.errors import CheckpointNotFoundError
from perdure.storage import retention as keep
from perdure.storage.sql import rows

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from perdure.records import Manifest, Retention
    from perdure.storage.sql.database import OfTenant, Row


class CheckpointTable:
    """The checkpoints, each under its id, which mostly is made of its run and its position."""

    def __init__(self, database: OfTenant) -> None:
        self._database = database

    def find(self, checkpoint_id: str | None) -> Row | None:
        """The row of a checkpoint."""
        if checkpoint_id is None:
            return None
        return self._database.execute(
            "checkpoint", checkpoint_id=checkpoint_id, **rows.named_after(checkpoint_id)
        ).fetchone()

    def is_held(self, checkpoint_id: str) -> bool:
        """Whether there is such a checkpoint; if so, nobody removes it before the transaction ends."""
        return (
            self._database.execute(
                "hold_checkpoint", checkpoint_id=checkpoint_id, **rows.named_after(checkpoint_id)
            ).fetchone()
            is not None
        )

    def manifest(self, checkpoint_id: str) -> Manifest:
        """A checkpoint. Raises CheckpointNotFoundError, CheckpointDamagedError."""
        row = self.find(checkpoint_id)
        if row is None:
            raise CheckpointNotFoundError(checkpoint_id)
        return rows.manifest(row)

    def put(self, checkpoints: Sequence[dict[str, object]]) -> None:
        """Add them. There are none of their ids; their runs count them."""
        if checkpoints:
            self._database.execute_many("put_checkpoint", checkpoints)

    def drop(self, row: Row) -> bool:
        """Remove one, if nobody was faster."""
        found = {name: row[name] for name in ("run_id", "position", "checkpoint_id")}
        return self._database.execute("drop_checkpoint", **found).rowcount > 0

    def of_run(self, run_id: str) -> Sequence[Row]:
        """Those of a run, in commit order. Raises CheckpointDamagedError."""
        every = self._database.execute("checkpoints_of_run", run_id=run_id).fetchall()
        return rows.those_of_run(every, run_id, key="sequence", kind="checkpoints")

    def of_workflow(self, workflow_name: str) -> Sequence[Row]:
        """Those of all runs of a workflow, in commit order."""
        return self._database.execute("checkpoints_of_workflow", workflow_name=workflow_name).fetchall()

    def every(self) -> Sequence[Row]:
        """All of them, in commit order."""
        return self._database.execute("checkpoints").fetchall()

    def ids(self, *, workflow_name: str | None) -> Sequence[str]:
        """The ids of all, or of those of a workflow, in commit order."""
        if workflow_name is None:
            found = self._database.execute("ids").fetchall()
        else:
            found = self._database.execute("ids_of_workflow", workflow_name=workflow_name).fetchall()
        return [row["checkpoint_id"] for row in found]

    def latest(self, *, workflow_name: str) -> Manifest | None:
        """The newest of a workflow."""
        row = self._database.execute("latest_of_workflow", workflow_name=workflow_name).fetchone()
        return rows.manifest(row) if row else None

    def newest_of_run(self, run_id: str) -> Row | None:
        """The one with the highest position."""
        return self._database.execute("newest_of_run", run_id=run_id).fetchone()

    def count(self) -> int:
        """How many there are."""
        return self._database.number("count_checkpoints")

    def count_of_run(self, run_id: str) -> int:
        """How many a run has."""
        return self._database.number("count_checkpoints_of_run", run_id=run_id)

    def prune(self, run_id: str, retention: Retention, now: datetime, *, head: str) -> int:
        """Remove some of what the retention lets go; their number."""
        newest, cutoff = keep.kept_newest(retention), keep.checkpoint_cutoff(retention, now)
        some: dict[str, object] = {"run_id": run_id, "head": head, "limit": keep.PRUNED_PER_COMMIT_MAX}
        if newest is not None:
            return self._database.execute("prune_but_newest", keep=newest, **some).rowcount
        if cutoff is not None:
            return self._database.execute("prune_older", cutoff=cutoff, **some).rowcount
        return 0
