"""Hosts are known in the store, and a run that none of them can load says so and goes on when one comes."""

from __future__ import annotations

import asyncio
import sys
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from tests.hosting.chaos.place import Place
from tests.hosting.deploy_worker import version
from tests.hosting.flows import Gate, row, shout
from tests.hosting.porter import gate_at
from tests.hosting.wrapped import wrapped
from tests.postgres_server import shared_server

from perdure import FileCheckpointStorage, Host, RunBlockedError
from perdure.errors import WorkflowCheckpointException
from perdure.storage import knows_hosts

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import AsyncGenerator, Awaitable, Callable
    from pathlib import Path

    from tests.hosting.places import Storage
    from tests.hosting.porter import Porter

    from perdure import RunInfo
    from perdure.storage import StoreStorage
    from perdure.testing.clock import ManualClock


@pytest.fixture
def place(kind: str, tmp_path: Path) -> Place:
    """A store that several processes share."""
    if kind == "postgres":
        return Place.on_postgres(shared_server(), tmp_path, lease_seconds=30)
    return Place.on_sqlite(tmp_path, lease_seconds=30)


@pytest.fixture
async def storage(place: Place) -> AsyncGenerator[StoreStorage]:
    """The storage of this process."""
    async with place.storage() as storage:
        yield storage


@pytest.fixture
async def porter(tmp_path: Path) -> AsyncGenerator[Porter]:
    async with gate_at(tmp_path / "gate") as porter:
        yield porter


@asynccontextmanager
async def worker(place: Place, name: str) -> AsyncGenerator[Process]:
    """A host of a version, in a process of its own that is killed in the end."""
    command = [sys.executable, "-W", "error", "-m", "tests.hosting.deploy_worker", *place.arguments, name]
    process = await asyncio.create_subprocess_exec(*command)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def until_true(holds: Callable[[], Awaitable[bool]]) -> None:
    """Wait until this holds."""
    async with asyncio.timeout(60):
        while not await holds():  # noqa: ASYNC110 - heartbeats and clocks notify nobody
            await asyncio.sleep(0.02)


async def until_hosts(storage: StoreStorage, *processes: Process) -> None:
    """Wait until the hosts of these processes are alive, and no others."""

    async def are_alive() -> bool:
        return sorted(host.process for host in await storage.hosts()) == sorted(each.pid for each in processes)

    await until_true(are_alive)


async def until_blocked(host: Host, run_id: str, reasons: int) -> RunInfo:
    """Wait until so many hosts say why they can't load a run."""

    async def is_blocked() -> bool:
        return len((await host.info(run_id)).blocked or ()) == reasons

    await until_true(is_blocked)
    return await host.info(run_id)


def starter(storage: Storage | StoreStorage, tmp_path: Path, name: str, **options: Any) -> Host:
    """A host that starts runs of a version, and serves nothing."""
    host = Host(storage, **options)  # pyright: ignore[reportArgumentType] - each is one
    host.register(version(name, tmp_path / "gate"))
    return host


async def test_a_serving_host_is_listed_with_its_workflows(storage: StoreStorage) -> None:
    host = Host(storage)
    host.register(row("w", shout))
    host.register(row("v", shout, version=3))
    assert await host.hosts() == []
    async with host:
        (listed,) = await storage.hosts()
        assert (listed.host_id, dict(listed.workflows)) == (host.host_id, {"v": 3, "w": 1})
        async with Host(storage) as other:
            assert {each.host_id for each in await host.hosts()} == {host.host_id, other.host_id}
    assert await storage.hosts() == []
    async with host:
        assert [each.host_id for each in await storage.hosts()] == [host.host_id]


async def test_files_know_no_hosts(tmp_path: Path) -> None:
    assert await FileCheckpointStorage(tmp_path).hosts() == []


async def test_a_killed_host_disappears(place: Place, storage: StoreStorage) -> None:
    async with worker(place, "a") as one, worker(place, "a") as other:
        await until_hosts(storage, one, other)
        one.kill()
        await until_hosts(storage, other)
        (left,) = await storage.hosts()
        assert (left.process, dict(left.workflows)) == (other.pid, {"w": 1})
        other.terminate()
        await until_hosts(storage)


async def test_a_rolling_deploy_does_not_make_a_run_blocked(
    place: Place, storage: StoreStorage, tmp_path: Path, porter: Porter
) -> None:
    host = starter(storage, tmp_path, "new", blocked_seconds=0)
    first, second = [await host.start("w", number, run_id=f"r{number}") for number in (1, 2)]
    async with worker(place, "old"):
        # The old program can load neither.
        for run in (first, second):
            info = await until_blocked(host, run.run_id, 1)
            assert (info.status, len(info.blocked or ())) == ("blocked", 1)
        async with worker(place, "new") as new:
            # The new one is busy with the first, and will come to the second.
            visit = await porter.arrival()
            assert (visit.pid, visit.where, visit.message) == (new.pid, "new", 1)
            info = await second.info()
            assert (info.status, info.blocked, info.error) == ("running", None, None)
            assert await host.runs(status="blocked") == []
            results = asyncio.gather(first.result(), second.result())
            visit.let_pass()
            (await porter.arrival()).let_pass()
            assert [result.get_outputs() for result in await results] == [["1 by new"], ["2 by new"]]


async def test_a_run_that_no_host_can_load_shows_each_reason_and_goes_on_when_a_host_can(
    place: Place, storage: StoreStorage, tmp_path: Path, porter: Porter
) -> None:
    host = starter(storage, tmp_path, "new", blocked_seconds=None)
    run = await host.start("w", "hi", run_id="r")
    result = asyncio.create_task(run.result())
    async with worker(place, "old"), worker(place, "older"):
        info = await until_blocked(host, "r", 2)
        assert info.status == "blocked"
        assert {each.host_id for each in await storage.hosts()} == {*(info.blocked or ())}
        assert [each.run_id for each in await host.runs(status="blocked")] == ["r"]
        with pytest.raises(RunBlockedError, match="IncompatibleGraphError") as raised:
            await (await starter(storage, tmp_path, "new", blocked_seconds=0).run("r")).result()
        assert raised.value.reasons == info.blocked
        async with worker(place, "new"):
            (await porter.arrival()).let_pass()
            assert (await result).get_outputs() == ["hi by new"]
        info = await run.info()
        assert (info.status, info.blocked) == ("idle", None)


async def test_a_result_raises_when_no_host_has_come_for_a_while(
    timed: Storage, tmp_path: Path, clock: ManualClock
) -> None:
    host = starter(timed, tmp_path, "a")
    run = await host.start("w", "hi")
    result = asyncio.create_task(run.result())

    async def is_waiting() -> bool:
        return clock.sleepers > 0

    await until_true(is_waiting)
    clock.advance(timedelta(seconds=29))
    # A host with other workflows does not help.
    async with Host(timed) as stranger:
        assert (await stranger.info(run.run_id)).status == "blocked"
    assert not result.done()
    clock.advance(timedelta(seconds=2))
    with pytest.raises(RunBlockedError, match="no living host serves workflow 'w'") as raised:
        await asyncio.wait_for(result, 30)
    assert raised.value.reasons == {}


async def test_one_of_several_hosts_collects_once_an_hour(timed: Storage, clock: ManualClock) -> None:
    turns: list[bool] = []
    changed, collections = asyncio.Event(), 0

    async def begin_upkeep(real: Any, **moments: str) -> bool:
        turns.append(await real(**moments))
        changed.set()
        return turns[-1]

    async def collect(real: Any) -> int:
        nonlocal collections
        removed = await real()
        collections += 1
        changed.set()
        return removed

    async def until_done(count: int, collected: int) -> None:
        async with asyncio.timeout(30):
            while (len(turns), collections) != (count, collected):
                changed.clear()
                await changed.wait()

    storage = wrapped(timed, begin_upkeep=begin_upkeep, collect=collect)
    never = Host(storage, collect_every=None)
    async with Host(storage) as host, Host(storage), never:
        await until_done(2, 0)
        clock.advance(timedelta(minutes=59))
        await until_done(4, 0)
        clock.advance(timedelta(minutes=2))
        await until_done(6, 1)
        assert sorted(turns) == [False] * 5 + [True]
    assert not host.health().is_serving
    with pytest.raises(ValueError, match="collect_every must be a positive time"):
        Host(timed, collect_every=timedelta())


async def test_a_host_that_was_taken_for_dead_registers_again(timed: Storage, clock: ManualClock) -> None:
    async with Host(timed) as host:
        assert knows_hosts(timed.store)
        await timed.store.unregister_host(host.host_id)
        assert await host.hosts() == []
        clock.advance(timedelta(minutes=2))

        async def is_back() -> bool:
            return [each.host_id for each in await host.hosts()] == [host.host_id]

        await until_true(is_back)


async def test_health_tells_what_a_host_does(timed: Storage, clock: ManualClock) -> None:
    gate, fails = Gate(), True

    async def due(real: Any, **query: Any) -> Any:
        if fails:
            raise WorkflowCheckpointException("the server is gone")
        return await real(**query)

    host = Host(wrapped(timed, due=due), max_runs=1, drain_seconds=0)
    host.register(row("w", gate))
    health = host.health()
    assert (health.is_serving, health.is_draining, health.looked_at, health.running) == (False, False, None, 0)
    async with host:

        async def is_out_of_reach() -> bool:
            return not host.health().is_store_reachable

        async def is_at_work() -> bool:
            health = host.health()
            return (health.is_store_reachable, health.running, health.queue_depth) == (True, 1, 1)

        await until_true(is_out_of_reach)
        assert host.health().is_serving
        fails = False
        for number in range(3):
            await host.start("w", number, run_id=f"r{number}")
        clock.advance(timedelta(seconds=1))
        await until_true(is_at_work)
        assert host.health().looked_at == clock.now()
        draining = asyncio.create_task(host.drain(60))
        await asyncio.sleep(0)
        assert host.health().is_draining
        assert not host.health().is_serving
        gate.open()
        await draining
        assert not host.health().is_draining
