"""Budgets of hosted runs that are raised when they are used up."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from tests.hosting.flows import pass_on, row, shout, until

from perdure import Host, RunFailedError, SqliteCheckpointStorage

if TYPE_CHECKING:
    from pathlib import Path

    from tests.hosting.places import Storage

KILLED = """
import asyncio, os, signal, sys
from perdure import SqliteCheckpointStorage

async def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

storage = SqliteCheckpointStorage(sys.argv[1])
storage.store.acquire = die
asyncio.run(storage.recover("r", budget={"supersteps": 9}))
"""
"""A process that dies when it is about to take the lease, which ends the halt."""


def host_on(storage: Storage) -> Host:
    host = Host(storage)
    host.register(row("w", pass_on, pass_on, shout))
    return host


async def exhaust(host: Host) -> None:
    run = await host.start("w", "hi", run_id="r", budget={"supersteps": 1, "coins": 3})
    with pytest.raises(RunFailedError, match=r"host\.recover\('r', budget=\{'supersteps': \.\.\.\}\)"):
        await run.result()


async def test_a_run_that_has_used_up_its_budget_continues_with_a_larger_one(storage: Storage) -> None:
    async with host_on(storage) as host:
        await exhaust(host)
        assert await host.recover("r", budget={"supersteps": 2}) == ["r"]
        await until(host, "r", "failed")
        with pytest.raises(RunFailedError):
            await (await host.run("r")).result()
        assert await host.recover("r", budget={"supersteps": 3}) == ["r"]
        assert (await (await host.run("r")).result()).get_outputs() == ["hi!"]
        head = (await host.info("r")).checkpoint_id
        assert head is not None
        assert (await storage.view(head)).budget == {"supersteps": 3, "coins": 3}


async def test_the_store_alone_raises_a_budget(storage: Storage) -> None:
    async with host_on(storage) as host:
        await exhaust(host)
    assert await storage.recover("r", budget={"supersteps": 3})
    async with host_on(storage) as host:
        assert (await (await host.run("r")).result()).get_outputs() == ["hi!"]


async def test_a_fork_gets_a_budget_of_its_own(storage: Storage) -> None:
    async with host_on(storage) as host:
        await exhaust(host)
        fork = await (await host.run("r")).fork(budget={"supersteps": 3})
        assert (await fork.result()).get_outputs() == ["hi!"]
        assert (await host.info("r")).status == "failed"


async def test_a_budget_that_is_none_changes_nothing(storage: Storage) -> None:
    async with host_on(storage) as host:
        await exhaust(host)
        with pytest.raises(ValueError, match="not negative"):
            await host.recover("r", budget={"supersteps": -1})
        with pytest.raises(ValueError, match="give its run_id"):
            await host.recover(budget={"supersteps": 1})
        assert (await host.info("r")).status == "failed"


async def test_a_process_that_is_killed_before_the_halt_ends_leaves_the_new_budget(tmp_path: Path) -> None:
    storage = SqliteCheckpointStorage(tmp_path / "runs.db")
    async with host_on(storage) as host:
        await exhaust(host)
    await storage.close()
    done = subprocess.run([sys.executable, "-c", KILLED, str(storage.path)], check=False)  # noqa: ASYNC221
    assert done.returncode == -signal.SIGKILL
    async with storage:
        assert (await storage.run("r")).status == "failed"
        assert await storage.recover("r")
        async with host_on(storage) as host:
            assert (await (await host.run("r")).result()).get_outputs() == ["hi!"]
