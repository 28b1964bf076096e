"""The hosts of a SQL store, and the runs that none of them can load.

The rule of a blocked run is the line `+blocked` of the statements.
"""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from perdure.clock import now
from perdure.storage.hosts import HostInfo
from perdure.storage.owners import this_process
from perdure.storage.sql import rows
from perdure.storage.sql.tables import Tables

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from perdure.clock import Clock
    from perdure.records import Owner, RunQuery, RunRecord
    from perdure.storage.sql.database import OwnerWatch, Row, SqlDatabase


class HostTables(Tables):
    """The rows of one tenant, with its hosts."""

    def __init__(self, database: SqlDatabase, owners: OwnerWatch, clock: Clock, tenant: str) -> None:
        super().__init__(database, tenant)
        self._owners = owners
        self._clock = clock

    def is_gone(self, owner: Owner) -> bool:
        """Return whether others may take the runs of an owner. What this process owns, it advances itself."""
        return owner.id != this_process().id and self._owners.is_replaceable(owner)

    def gone_owners(self) -> str:
        """Return the ids of the owners of runs that are gone, as a JSON list."""
        owners = [rows.read_owner(row) for row in self.execute("owners").fetchall()]
        return json.dumps([owner.id for owner in owners if self.is_gone(owner)])

    def register_host(self, host_id: str, *, workflows: Mapping[str, int]) -> None:
        """Add a host of this process, unless it is there. Hosts of dead processes are removed."""
        found = self._host_rows()
        if host_id in found:
            return
        gone = [each for each, some in found.items() if self.is_gone(rows.read_owner(some[0]))]
        with self._database.transaction("later"):
            # As long as the host is registered, others see that this process is alive.
            owner = self._owners.enter((self._tenant, host_id))
            self.execute("drop_hosts", hosts=json.dumps(gone))
            self.execute(
                "put_host",
                id=host_id,
                started_at=now(self._clock),
                owner_id=owner.id,
                owner_host=owner.host,
                owner_boot=owner.boot,
                owner_pid=owner.pid,
            )
            self.put(
                "put_host_workflow",
                [{"host_id": host_id, "workflow_name": name, "version": workflows[name]} for name in workflows],
            )

    def unregister_host(self, host_id: str) -> None:
        """Remove a host of this process."""
        with self._database.transaction("later"):
            self.execute("drop_hosts", hosts=json.dumps([host_id]))
        self._owners.leave((self._tenant, host_id))

    def hosts(self) -> Sequence[HostInfo]:
        """Return the hosts whose processes are alive."""
        hosts: list[HostInfo] = []
        for host_id, found in self._living_rows().items():
            owner = rows.read_owner(found[0])
            hosts.append(
                HostInfo(
                    host_id,
                    owner.pid,
                    owner.host,
                    {row["workflow_name"]: row["version"] for row in found if row["workflow_name"] is not None},
                    datetime.fromisoformat(found[0]["started_at"]),
                    self._owners.last_heartbeat(owner),
                )
            )
        return hosts

    def _host_rows(self) -> Mapping[str, list[Row]]:
        found: dict[str, list[Row]] = {}
        for row in self.execute("hosts").fetchall():
            found.setdefault(row["id"], []).append(row)
        return found

    def _living_rows(self) -> Mapping[str, list[Row]]:
        return {each: some for each, some in self._host_rows().items() if not self.is_gone(rows.read_owner(some[0]))}

    def note_block(self, host_id: str, run_id: str, *, head: str, reason: str) -> None:
        """Note why a host could not load a run from its head."""
        with self._database.transaction("later"):
            self.execute("put_block", host_id=host_id, run_id=run_id, head=head, reason=reason)

    def block_values(self) -> dict[str, object]:
        """Return the values of the line `+blocked`."""
        hosts = json.dumps(list(self._living_rows()))
        return {"at": now(self._clock), "owners": self.gone_owners(), "hosts": hosts}

    def blocked(self, run_ids: Collection[str]) -> Mapping[str, Mapping[str, str]]:
        """Return those runs that are blocked, each with the reasons of the living hosts that could not load it."""
        values = self.block_values()
        found = self.execute("runs+ids+blocked", run_ids=json.dumps(list(run_ids)), **values).fetchall()
        reasons: dict[str, dict[str, str]] = {row["run_id"]: {} for row in found}
        if reasons:
            for row in self.execute("blocks", run_ids=json.dumps(list(reasons)), **values).fetchall():
                reasons[row["run_id"]][row["host_id"]] = row["reason"]
        return reasons

    def list_runs(self, query: RunQuery, *lines: str, **values: object) -> Sequence[RunRecord]:
        """Return the runs that a query selects. A damaged one has a halt that says so."""
        if query.statuses == ("blocked",):
            query, lines, values = replace(query, statuses=None), ("candidates", "blocked"), self.block_values()
        return super().list_runs(query, *lines, **values)

    def begin_upkeep(self, *, at: str, before: str) -> bool:
        """Return whether the last collection by a host was before a time. Then the next one is noted for `at`."""
        with self._database.transaction("later"):
            is_due = bool(self.execute("begin_upkeep", at=at, before=before).fetchall())
            if not is_due:
                self.execute("note_upkeep", at=at)
        return is_due
