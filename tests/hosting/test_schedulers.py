"""The port between a host and its scheduler: another engine decides when runs are advanced, and makes the tokens."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from tests.hosting.flows import Gate, fail, row, shout
from tests.hosting.wrapped import wrapped

from perdure import Dispatch, Host, RunFailedError

if TYPE_CHECKING:
    from collections.abc import Collection
    from datetime import datetime

    from tests.hosting.places import Storage
    from tests.workflow.nodes import Context

    from perdure import AdvanceResult
    from perdure.hosting.scheduler import Advance
    from perdure.records import RunRecord
    from perdure.testing.clock import ManualClock


class ByHand:
    """Advances what it is told to, when it is told to, under tokens of its own."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []
        self.names: Collection[str] = ()
        self._advance: asyncio.Future[Advance] = asyncio.get_running_loop().create_future()
        self._token = 1000

    async def start(self, run_id: str) -> None:
        self.told.append(("start", run_id))

    async def wake(self, run_id: str) -> None:
        self.told.append(("wake", run_id))

    async def wake_at(self, run_id: str, moment: datetime) -> None:
        self.told.append((f"wake at {moment}", run_id))

    async def cancel(self, run_id: str) -> None:
        self.told.append(("cancel", run_id))

    async def serve(self, advance: Advance, workflow_names: Collection[str]) -> None:
        self.names = workflow_names
        self._advance.set_result(advance)
        await asyncio.get_running_loop().create_future()

    async def dispatch(self, run_id: str, token: int | None = None) -> AdvanceResult:
        self._token += 1
        return await (await self._advance)(Dispatch(run_id, token or self._token))


async def test_another_scheduler_decides_when_a_run_is_advanced(timed: Storage, clock: ManualClock) -> None:
    async def sleep(message: Any, ctx: Context) -> None:
        await ctx.sleep(timedelta(hours=1))
        await ctx.yield_output(message)

    engine = ByHand()
    host = Host(timed, scheduler=engine)
    host.register(row("w", sleep))
    async with host:
        run = await host.start("w", "hi", run_id="r")
        rest = await engine.dispatch("r")
        assert (rest.status, rest.wake_at, rest.has_changed) == ("sleeping", clock.now() + timedelta(hours=1), True)
        clock.advance(timedelta(hours=1))
        rest = await engine.dispatch("r")
        assert (rest.status, rest.wake_at) == ("idle", None)
        assert (await run.result()).get_outputs() == ["hi"]
        rest = await engine.dispatch("r")
        assert (rest.status, rest.has_changed) == ("idle", False)
    assert engine.names == ("w",)


async def test_the_scheduler_is_notified_of_starts_messages_and_cancellations(storage: Storage) -> None:
    engine = ByHand()
    host = Host(storage, scheduler=engine)
    host.register(row("w", shout))
    async with host:
        await host.start("w", "hi", run_id="r")
        await host.send("r", "ho")
        await host.cancel("r")
        await host.recover()
    assert engine.told == [("start", "r"), ("wake", "r"), ("cancel", "r"), ("wake", "r")]


async def test_a_token_that_is_too_small_advances_nothing(storage: Storage) -> None:
    engine = ByHand()
    gate = Gate()
    gate.open()
    host = Host(storage, scheduler=engine)
    host.register(row("w", gate))
    async with host:
        await host.start("w", "hi", run_id="r")
        assert (await engine.dispatch("r", token=5000)).status == "idle"
        await host.send("r", "ho")
        rest = await engine.dispatch("r", token=4000)
        assert (rest.status, rest.tries_again, gate.came) == (None, True, ["hi"])
        assert (await engine.dispatch("r", token=5001)).status == "idle"
    assert gate.came == ["hi", "ho"]


async def test_a_run_is_advanced_once_if_the_scheduler_asks_twice(storage: Storage) -> None:
    engine = ByHand()
    gate = Gate()
    host = Host(storage, scheduler=engine)
    host.register(row("w", gate))
    async with host:
        await host.start("w", "hi", run_id="r")
        first = asyncio.create_task(engine.dispatch("r"))
        await gate.holds(1)
        assert (await engine.dispatch("r")).tries_again
        gate.open()
        assert (await first).status == "idle"
    assert gate.came == ["hi"]


async def test_the_scheduler_gets_the_status_of_missing_and_failed_runs(storage: Storage) -> None:
    engine = ByHand()
    host = Host(storage, scheduler=engine)
    host.register(row("w", fail))
    async with host:
        run = await host.start("w", "hi", run_id="r")
        assert (await engine.dispatch("nobody")).status is None
        assert (await engine.dispatch("r")).status == "failed"
        with pytest.raises(RunFailedError):
            await run.result()


async def test_a_run_that_made_progress_before_quarantine_continues_under_the_scheduler_token(storage: Storage) -> None:
    async def seen_too_late(run: Any, run_id: str) -> RunRecord | None:
        record = await run(run_id)
        return record and replace(record, attempts=5)

    engine = ByHand()
    host = Host(wrapped(storage, run=seen_too_late), scheduler=engine)
    host.register(row("w", shout))
    async with host:
        run = await host.start("w", "hi", run_id="r")
        for message in ("hi", "ho"):
            assert (await engine.dispatch("r")).status == "idle"
            assert await run.outputs() == [f"{message}!"]
            assert (await storage.store.run("r")).owner is None  # pyright: ignore[reportOptionalMemberAccess]
            await host.send("r", "ho")


async def test_a_failing_scheduler_ends_serving(storage: Storage) -> None:
    class Broken(ByHand):
        async def serve(self, advance: Advance, workflow_names: Collection[str]) -> None:
            del advance, workflow_names
            raise LookupError("no engine")

    host = Host(storage, scheduler=Broken())
    with pytest.raises(LookupError, match="no engine"):
        await host.serve()
    assert not host.is_serving
