"""Hosts in processes of their own that are asked to end, or killed: others go on with their runs, unasked."""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
from tests.hosting.hosting_worker import LEASE_SECONDS, POISON, host_at
from tests.hosting.porter import gate_at

from perdure import RunParkedError

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from tests.hosting.porter import Porter

    from perdure import Host

LONG_LEASE_SECONDS = 30.0


@pytest.fixture
async def porter(tmp_path: Path) -> AsyncGenerator[Porter]:
    async with gate_at(tmp_path / "gate") as porter:
        yield porter


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """A host that starts and looks, and serves nothing."""
    return host_at(tmp_path, LONG_LEASE_SECONDS)


async def begin_worker(directory: Path, lease_seconds: float) -> Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-W", "error", "-m", "tests.hosting.hosting_worker", str(directory), str(lease_seconds)
    )


@asynccontextmanager
async def worker(directory: Path, lease_seconds: float = LONG_LEASE_SECONDS) -> AsyncGenerator[Process]:
    process = await begin_worker(directory, lease_seconds)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def ended(process: Process) -> int:
    return await asyncio.wait_for(process.wait(), 60)


async def test_a_terminated_host_stops_at_a_boundary_and_another_continues(
    tmp_path: Path, host: Host, porter: Porter
) -> None:
    run = await host.start("gated", "hi")
    async with worker(tmp_path) as one:
        visit = await porter.arrival()
        assert (visit.pid, visit.where) == (one.pid, "first")
        one.send_signal(signal.SIGTERM)
        visit.let_pass()
        assert await ended(one) == 0
    info = await run.info()
    assert (info.status, info.owner, info.checkpoint_id) == ("blocked", None, f"{run.run_id}@1")
    async with worker(tmp_path) as other:
        visit = await porter.arrival()
        assert (visit.pid, visit.where) == (other.pid, "second")
        visit.let_pass()
        assert (await run.result()).get_outputs() == ["first", "second"]
        other.send_signal(signal.SIGINT)
        assert await ended(other) == 0
    assert porter.seen == [("first", "hi"), ("second", "hi")]


async def test_a_second_signal_ends_a_host_in_the_middle_of_a_superstep(
    tmp_path: Path, host: Host, porter: Porter
) -> None:
    run = await host.start("gated", "hi")
    async with worker(tmp_path) as one:
        await porter.arrival()
        one.send_signal(signal.SIGTERM)
        # Two signals of one kind are one if they come at once.
        one.send_signal(signal.SIGINT)
        assert await ended(one) == 0
    assert ((await run.info()).owner, porter.seen) == (None, [("first", "hi")])
    async with worker(tmp_path):
        for where in ("first", "second"):
            visit = await porter.arrival()
            assert visit.where == where
            visit.let_pass()
        assert (await run.result()).get_outputs() == ["first", "second"]


async def test_a_killed_host_is_replaced_at_once_by_a_serving_one(tmp_path: Path, host: Host, porter: Porter) -> None:
    run = await host.start("gated", "hi")
    async with worker(tmp_path) as one:
        (await porter.arrival()).let_pass()
        assert (await porter.arrival()).pid == one.pid
        async with worker(tmp_path) as other:
            one.kill()
            visit = await porter.arrival()
            assert (visit.pid, visit.where) == (other.pid, "second")
            assert (await run.info()).attempts == 1
            visit.let_pass()
            assert (await run.result()).get_outputs() == ["first", "second"]
    assert porter.seen == [("first", "hi"), ("second", "hi"), ("second", "hi")]


async def test_a_handler_that_blocks_the_event_loop_does_not_cost_the_host_its_lease(
    tmp_path: Path, host: Host, porter: Porter
) -> None:
    run = await host.start("blocked", "hi")
    async with worker(tmp_path, LEASE_SECONDS) as one:
        visit = await porter.arrival()
        async with worker(tmp_path, LEASE_SECONDS):
            # It takes longer than a few leases, and the other host is the only one that can do it.
            await (await host.start("naps", "zzz")).result()
            info = await run.info()
            assert info.owner is not None
            assert (str(one.pid) in info.owner, info.attempts) == (True, 1)
            visit.let_pass()
            assert (await run.result()).get_outputs() == ["hi"]
    assert porter.seen == [("blocked", "hi")]


async def test_a_run_that_kills_its_hosts_is_quarantined_and_the_others_continue(tmp_path: Path, host: Host) -> None:
    innocent = [await host.start("deadly", f"innocent {number}") for number in range(3)]
    poison = await host.start("deadly", POISON)
    innocent += [await host.start("deadly", f"innocent {number}") for number in range(3, 6)]
    deaths = 0
    parked = asyncio.create_task(poison.result())
    while not parked.done():
        async with worker(tmp_path) as process:
            dies = asyncio.create_task(process.wait())
            await asyncio.wait_for(asyncio.wait([dies, parked], return_when=asyncio.FIRST_COMPLETED), 60)
            deaths += dies.done()
            dies.cancel()
    with pytest.raises(RunParkedError, match="the last 3 processes that advanced it died without progress"):
        await parked
    async with worker(tmp_path):
        outputs = [(await run.result()).get_outputs() for run in innocent]
    assert outputs == [[f"innocent {number}"] for number in range(6)]
    assert deaths == 3
    effects = (tmp_path / "effects").read_text(encoding="utf-8").splitlines()
    assert effects.count(POISON) == 3
