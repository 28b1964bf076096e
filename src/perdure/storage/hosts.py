"""Hosts that are alive, and the part of the port that knows them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeGuard

from perdure.storage.port import HostStore, Listings, Store

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from datetime import datetime


@dataclass(frozen=True, slots=True)
class HostInfo:
    """A living host.

    Attributes:
        process: The number of its process.
        machine: The name of its machine.
        workflows: The workflows that it registers, each with its version.
        heartbeat_at: The newest sign of life of its process, by the clock of the store's leases.
    """

    host_id: str
    process: int
    machine: str
    workflows: Mapping[str, int]
    started_at: datetime
    heartbeat_at: datetime | None


class Hosts(Protocol):
    """Optional: hosts that register, and runs that none of them can load. Without it, no run is ever blocked."""

    async def register_host(self, host_id: str, *, workflows: Mapping[str, int]) -> None:
        """Register a host of this process with its workflows and their versions, unless it is registered.

        It counts as long as this process is alive, by the rule of leases.
        """
        ...

    async def unregister_host(self, host_id: str) -> None:
        """Remove a host. The reasons that it noted no longer count."""
        ...

    async def hosts(self) -> Sequence[HostInfo]:
        """Return the living hosts, oldest first."""
        ...

    async def note_block(self, host_id: str, run_id: str, *, head: str, reason: str) -> None:
        """Note why a host could not load a run. The reason counts while `head` is the run's head and the host lives."""
        ...

    async def blocked(self, run_ids: Collection[str]) -> Mapping[str, Mapping[str, str]]:
        """Return those of the runs that are blocked, each with the reasons by host.

        A blocked run can go on and has no living owner, and each living host that registers its workflow, in its
        version or a later one, has noted a reason. There may be no such host.
        """
        ...

    async def begin_upkeep(self, *, at: str, before: str) -> bool:
        """Return whether the last collection by a host began before a time (UTC, ISO 8601).

        If so, the next one begins at `at`: only one host gets True. If there was none, one is taken to have begun now.
        """
        ...


class HostListStore(HostStore, Hosts, Listings, Protocol):
    """A store that knows its hosts. Those that serve hosts and ship with perdure do."""


def knows_hosts(store: Store) -> TypeGuard[HostListStore]:
    """Return whether a store implements `Hosts`."""
    return hasattr(store, "register_host")


def blocked_text(workflow_name: str, reasons: Mapping[str, str]) -> str:
    """Say in one line why a run is blocked."""
    if not reasons:
        return f"no living host serves workflow {workflow_name!r} in its version"
    return "no living host can load it: " + "; ".join(f"host {each}: {reasons[each]}" for each in reasons)
