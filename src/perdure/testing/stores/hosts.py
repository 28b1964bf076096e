"""Hosts that register, and runs that none of them can load. For stores with the methods of `perdure.storage.Hosts`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from typing_extensions import override

from perdure.records import HeadStatus, Mark
from perdure.storage import run_query
from perdure.testing.stores.base import UNWOKEN_SECONDS, HostStoreSuite, RunDriver, command, halted, new_run, watcher

if TYPE_CHECKING:
    from pathlib import Path

    from perdure.clock import Clock
    from perdure.records import Retention
    from perdure.storage import HostListStore
    from perdure.testing.clock import ManualClock

_LATER = "2024-05-01T10:00:00+00:00"


async def _idle_run(
    store: HostListStore,
    clock: ManualClock,
    name: str = "r",
    *,
    status: HeadStatus = "running",
    wake_at: str | None = None,
) -> RunDriver:
    run = await RunDriver.start(store, clock, name, workflow_name="flöw")
    await run.commit(status=status, wake_at=wake_at)
    await run.release()
    return run


async def _blocked(store: HostListStore) -> dict[str, dict[str, str]]:
    """Return the blocked runs with the reasons. The listing and the marks must agree."""
    everything = [record.run_id for record in await store.runs()]
    found = {run_id: dict(reasons) for run_id, reasons in (await store.blocked(everything)).items()}
    listed = await store.list_runs(run_query(status="blocked"))
    assert sorted(found) == sorted(record.run_id for record in listed)
    for run_id in everything:
        mark = await store.watch(run_id, seen=Mark(head="", events=-1, commands=-1))
        assert mark.is_blocked is (run_id in found)
    return found


class HostListConformance(HostStoreSuite):
    """A run is blocked if it can go on and no living host can load it."""

    @override
    def open_store(self, directory: Path, *, retention: Retention, clock: Clock) -> HostListStore:
        raise NotImplementedError(f"{type(self).__name__} must define open_store")

    @pytest.fixture
    @override
    def store(self, tmp_path: Path, clock: ManualClock, retention: Retention) -> HostListStore:
        return self.open_store(tmp_path, retention=retention, clock=clock)

    async def test_registered_hosts_are_listed_until_they_unregister(
        self, store: HostListStore, clock: ManualClock
    ) -> None:
        assert list(await store.hosts()) == []
        await store.register_host("b", workflows={"flöw": 2, "other": 1})
        await store.register_host("a", workflows={})
        await store.register_host("b", workflows={"changed": 1})
        hosts = {host.host_id: host for host in await store.hosts()}
        assert {each: dict(hosts[each].workflows) for each in hosts} == {"a": {}, "b": {"flöw": 2, "other": 1}}
        assert hosts["a"].started_at == clock.now()
        assert hosts["a"].heartbeat_at is not None
        assert (hosts["a"].process, hosts["a"].machine) == (hosts["b"].process, hosts["b"].machine)
        await store.unregister_host("b")
        await store.unregister_host("b")
        await store.unregister_host("unknown")
        assert [host.host_id for host in await store.hosts()] == ["a"]

    async def test_run_with_work_is_blocked_while_no_host_registers_its_workflow(
        self, store: HostListStore, clock: ManualClock
    ) -> None:
        await _idle_run(store, clock)
        assert await _blocked(store) == {"r": {}}
        await store.register_host("other", workflows={"other": 1})
        assert await _blocked(store) == {"r": {}}
        await store.register_host("host", workflows={"other": 1, "flöw": 1})
        assert await _blocked(store) == {}
        await store.unregister_host("host")
        assert await _blocked(store) == {"r": {}}

    async def test_only_runs_that_can_go_on_are_blocked(self, store: HostListStore, clock: ManualClock) -> None:
        statuses: tuple[HeadStatus, ...] = ("running", "waiting", "sleeping", "idle", "cancelled")
        runs = {status: await _idle_run(store, clock, status, status=status) for status in statuses}
        await _idle_run(store, clock, "woken", status="sleeping", wake_at="2023-05-01T10:00:00+00:00")
        await _idle_run(store, clock, "asleep", status="sleeping", wake_at=_LATER)
        assert sorted(await _blocked(store)) == ["running", "woken"]
        for run in runs.values():
            await run.post(command("a"))
        assert sorted(await _blocked(store)) == ["idle", "running", "sleeping", "waiting", "woken"]
        await runs["running"].reacquire()
        await runs["idle"].reacquire()
        await runs["idle"].release(halt=halted())
        assert sorted(await _blocked(store)) == ["sleeping", "waiting", "woken"]
        await store.acquire("unbegun", create=new_run("unbegun"))
        assert await store.blocked(["unbegun", "unknown"]) == {}

    async def test_run_is_blocked_when_every_host_of_its_workflow_has_a_reason(
        self, store: HostListStore, clock: ManualClock
    ) -> None:
        await _idle_run(store, clock)
        for host_id in ("one", "two"):
            await store.register_host(host_id, workflows={"flöw": 1})
        await store.note_block("one", "r", head="r@0", reason="no köy")
        assert await _blocked(store) == {}
        await store.note_block("two", "r", head="r@0", reason="other graph")
        assert await _blocked(store) == {"r": {"one": "no köy", "two": "other graph"}}
        await store.note_block("two", "r", head="r@0", reason="no type")
        assert await _blocked(store) == {"r": {"one": "no köy", "two": "no type"}}
        await store.register_host("three", workflows={"flöw": 1})
        assert await _blocked(store) == {}
        await store.unregister_host("three")
        await store.unregister_host("one")
        assert await _blocked(store) == {"r": {"two": "no type"}}

    async def test_reason_counts_while_the_head_stays(self, store: HostListStore, clock: ManualClock) -> None:
        run = await _idle_run(store, clock)
        await store.register_host("host", workflows={"flöw": 1})
        for head, run_id, host_id in (("r@7", "r", "host"), ("r@0", "unknown", "host"), ("r@0", "r", "unknown")):
            await store.note_block(host_id, run_id, head=head, reason="of another time or place")
        assert await _blocked(store) == {}
        await store.note_block("host", "r", head="r@0", reason="graph")
        assert await _blocked(store) == {"r": {"host": "graph"}}
        await run.reacquire()
        await run.commit()
        await run.release()
        assert await _blocked(store) == {}
        await run.reacquire()
        await run.rewind("r@0")
        await run.release()
        assert await _blocked(store) == {"r": {"host": "graph"}}
        await store.remove("r")
        await _idle_run(store, clock)
        assert await _blocked(store) == {}

    async def test_watcher_is_woken_when_a_run_is_blocked_and_when_it_is_no_longer(
        self, store: HostListStore, clock: ManualClock
    ) -> None:
        run = await _idle_run(store, clock)
        for change in (
            lambda: store.register_host("host", workflows={"flöw": 1}),
            lambda: store.note_block("host", "r", head="r@0", reason="graph"),
            lambda: store.register_host("other", workflows={"flöw": 1}),
            lambda: store.unregister_host("other"),
        ):
            before = await run.mark()
            watch = await watcher(store, "r", seen=before)
            await change()
            assert (await asyncio.wait_for(watch, UNWOKEN_SECONDS)).is_blocked is not before.is_blocked

    async def test_one_host_at_a_time_collects(self, store: HostListStore) -> None:
        moments = [f"2024-05-01T1{hour}:00:00+00:00" for hour in range(4)]
        assert not await store.begin_upkeep(at=moments[1], before=moments[0])
        assert not await store.begin_upkeep(at=moments[2], before=moments[0])
        both = [store.begin_upkeep(at=moments[3], before=moments[2]) for _ in range(2)]
        assert sorted(await asyncio.gather(*both)) == [False, True]
        assert not await store.begin_upkeep(at=moments[3], before=moments[2])
