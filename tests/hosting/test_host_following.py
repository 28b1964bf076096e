"""Following a hosted run to its end, and what is left alone unless somebody asks for it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import pytest
from tests.hosting.flows import fail, office, row

from perdure import Host, RunParkedError
from perdure.engine import Call
from perdure.records import Halt

if TYPE_CHECKING:
    from tests.hosting.places import Storage

    from perdure import HostedRun, RunStatus


async def to_the_end(run: HostedRun) -> list[str]:
    return [event.type async for event in run.events(until_end=True)]


async def test_a_run_with_a_request_is_followed_until_it_is_answered(storage: Storage) -> None:
    host = Host(storage)
    host.register(office)
    async with host:
        run = await host.start("office", "tea")
        following = asyncio.create_task(to_the_end(run))
        await run.result()
        await run.respond({"about tea": "yes"})
        told = await following
    assert told.index("request_info") < told.index("answered") < told.index("output")


async def test_following_a_run_ends_when_it_fails(storage: Storage) -> None:
    host = Host(storage)
    host.register(row("w", fail))
    async with host:
        run = await host.start("w", "hi")
        assert "output" not in await to_the_end(run)
        assert (await run.info()).status == "failed"


async def test_an_unknown_status_is_refused(storage: Storage) -> None:
    with pytest.raises(ValueError, match=r"unknown status 'asleep'; use one of running, waiting"):
        await Host(storage).runs(status=cast("RunStatus", "asleep"))


async def unasked(storage: Storage, factory: Any, run_id: str) -> None:
    call = Call(run_id=run_id, storage=storage, skip_past_events=True, is_hosted=True, waits=False)
    async for _ in factory().stream(call):
        pass


async def test_a_run_halted_just_before_it_is_acquired_stays_halted(storage: Storage) -> None:
    host, factory = Host(storage), row("w", fail)
    host.register(factory)
    run = await host.start("w", "hi")
    lease = await storage.store.acquire(run.run_id)
    await storage.store.release(lease, halt=Halt("parked", "2026-01-01T00:00:00+00:00", "enough"))
    with pytest.raises(RunParkedError, match="enough"):
        await unasked(storage, factory, run.run_id)
    info = await run.info()
    assert (info.status, info.error, info.owner) == ("quarantined", "enough", None)


async def test_a_run_cancelled_just_before_it_is_acquired_stays_cancelled(storage: Storage) -> None:
    host = Host(storage)
    host.register(office)
    run = await host.start("office", "tea")
    async with host:
        await run.result()
        await run.cancel("not needed")
        await to_the_end(run)
    await unasked(storage, office, run.run_id)
    assert (await run.info()).status == "cancelled"
