"""Runs that fail on a host, stores that fail under it, and programs that do not fit."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from tests.hosting.flows import Gate, fail, pass_on, row, shout, until
from tests.hosting.places import opened

from perdure import Host, InMemoryCheckpointStorage, RunFailedError, RunParkedError
from perdure.errors import CheckpointWriteError, EncodeError
from perdure.records import Halt
from perdure.storage import StoreStorage
from perdure.testing.clock import ManualClock

if TYPE_CHECKING:
    from pathlib import Path

    from tests.hosting.places import Storage
    from tests.workflow.nodes import Context


async def test_a_failed_run_gives_its_reason_and_continues_when_recovered(storage: Storage) -> None:
    tries: list[str] = []

    async def fail_once(message: Any, ctx: Context) -> None:
        tries.append(message)
        if len(tries) == 1:
            raise LookupError("not today")
        await ctx.yield_output(message)

    host = Host(storage)
    host.register(row("w", pass_on, fail_once))
    async with host:
        run = await host.start("w", "hi")
        with pytest.raises(RunFailedError, match="LookupError: not today"):
            await run.result()
        assert await host.recover() == []
        assert (await run.info()).status == "failed"
        assert await host.recover(run.run_id) == [run.run_id]
        assert (await run.result()).get_outputs() == ["hi"]
        assert (await run.info()).error is None
        assert await host.recover(run.run_id) == []
    assert tries == ["hi", "hi"]


async def test_a_recovered_run_that_fails_again_is_failed(storage: Storage) -> None:
    host = Host(storage)
    host.register(row("w", fail))
    async with host:
        run = await host.start("w", "hi")
        for _ in range(3):
            with pytest.raises(RunFailedError):
                await run.result()
            assert await host.recover(run.run_id) == [run.run_id]
        with pytest.raises(RunFailedError):
            await run.result()


async def test_a_failing_run_does_not_affect_the_others(storage: Storage) -> None:
    async def choose(message: Any, ctx: Context) -> None:
        await (fail if message % 2 else shout)(message, ctx)

    host = Host(storage)
    host.register(row("w", choose))
    async with host:
        runs = [await host.start("w", number) for number in range(10)]
        for number, run in enumerate(runs):
            await until(host, run.run_id, "failed" if number % 2 else "idle")


async def test_a_quarantined_run_is_not_advanced_until_it_is_recovered(storage: Storage) -> None:
    host = Host(storage)
    host.register(row("w", shout))
    run = await host.start("w", "hi")
    lease = await storage.store.acquire(run.run_id)
    await storage.store.release(lease, halt=Halt("parked", "2024-01-01T00:00:00+00:00", "it was too much"))
    async with host:
        with pytest.raises(RunParkedError, match="it was too much"):
            await run.result()
        assert [info.run_id for info in await host.runs(status="quarantined")] == [run.run_id]
        assert [info.run_id for info in await host.runs(status="parked")] == [run.run_id]
        assert await host.recover() == []
        await host.recover(run.run_id)
        assert (await run.result()).get_outputs() == ["hi!"]


class Flaky:
    """A store whose calls of one kind fail for a while."""

    def __init__(self, inner: Any, name: str, times: int) -> None:
        self._inner = inner
        self._name = name
        self.left = times
        self.is_well = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name != self._name:
            return found

        async def fail_or_call(*args: Any, **kwargs: Any) -> Any:
            if self.left:
                self.left -= 1
                if self.left == 0:
                    self.is_well.set()
                raise OSError("the line is dead")
            return await found(*args, **kwargs)

        return fail_or_call


async def flaky_result(kind: str, directory: Path, calls: str) -> tuple[list[Any], Flaky]:
    """What a run gives whose store fails three times in calls of a kind."""
    clock = ManualClock(skips=True)
    async with opened(kind, directory, clock=clock) as storage:
        host = Host(storage)
        host.register(row("w", pass_on, shout))
        run = await host.start("w", "hi")
        store = Flaky(storage.store, calls, times=3)
        other = Host(StoreStorage(store, clock=clock))  # pyright: ignore[reportArgumentType] - it is all that it wraps
        other.register(row("w", pass_on, shout))
        async with other:
            outputs = (await run.result()).get_outputs()
            # The run may be done before its host has looked so often for others.
            await asyncio.wait_for(store.is_well.wait(), timeout=60)
            return outputs, store


@pytest.mark.parametrize("calls", ["commit", "due", "next_wake", "run", "manifest"])
async def test_a_failing_store_is_retried_until_it_works(kind: str, tmp_path: Path, calls: str) -> None:
    outputs, store = await flaky_result(kind, tmp_path, calls)
    assert (outputs, store.left) == (["hi!"], 0)


async def test_a_run_that_cannot_be_written_is_not_started_even_with_on_checkpoint_error_warn(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as storage:
        store = Flaky(storage.store, "commit", times=1)
        host = Host(StoreStorage(store, clock=storage.clock))  # pyright: ignore[reportArgumentType] - it is all that it wraps
        host.register(row("w", shout, on_checkpoint_error="warn"))
        with pytest.raises(CheckpointWriteError, match="the line is dead"):
            await host.start("w", "hi", run_id="r")
        with pytest.raises(EncodeError):
            await host.start("w", lambda: "hi", run_id="s")
        assert await host.runs() == []
        assert await (await host.start("w", "hi", run_id="r")).outputs() == []


async def test_uncommitted_work_is_repeated_when_the_store_works_again(kind: str, tmp_path: Path) -> None:
    clock = ManualClock(skips=True)
    async with opened(kind, tmp_path, clock=clock) as storage:
        store = Flaky(storage.store, "commit", times=0)
        host = Host(StoreStorage(store, clock=clock))  # pyright: ignore[reportArgumentType] - it is all that it wraps
        host.register(row("w", pass_on, shout, on_checkpoint_error="warn"))
        run = await host.start("w", "hi")
        # The first life commits nothing, the second one only its last superstep.
        store.left = 3
        async with host:
            assert (await run.result()).get_outputs() == ["hi!"]
            assert (await until(host, run.run_id, "idle")).error is None
    assert store.left == 0


async def test_a_run_of_another_version_is_left_to_a_host_that_can_load_it(
    timed: Storage, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    async def sleep(message: Any, ctx: Context) -> None:
        await ctx.sleep(timedelta(hours=1))
        await ctx.yield_output(message)

    older, newer = Host(timed), Host(timed)
    older.register(row("w", pass_on, sleep))
    newer.register(row("w", sleep))
    newer.register(row("other", shout))
    async with older:
        run = await older.start("w", "hi")
        await until(older, run.run_id, "sleeping")
    clock.advance(timedelta(hours=1))

    def warnings() -> list[logging.LogRecord]:
        return [record for record in caplog.records if "can't be loaded by this host" in record.getMessage()]

    with caplog.at_level(logging.WARNING):
        async with newer, asyncio.timeout(30):
            while not warnings():  # noqa: ASYNC110 - a log tells nobody that it has grown
                await asyncio.sleep(0.01)
            for number in range(3):
                await (await newer.start("other", number)).result()
            info = await until(newer, run.run_id, "blocked")
    assert len(warnings()) == 1
    assert info.blocked is not None
    assert [*info.blocked] == [newer.host_id]
    assert info.blocked[newer.host_id].startswith("IncompatibleGraphError: ")
    assert info.attempts == 0
    async with older:
        assert (await run.result()).get_outputs() == ["hi"]


async def test_a_failing_factory_is_retried(kind: str, tmp_path: Path) -> None:
    broken: list[str] = []

    def build() -> Any:
        if broken:
            raise LookupError(broken.pop())
        return row("w", shout)()

    async with opened(kind, tmp_path, clock=ManualClock(skips=True)) as storage:
        host = Host(storage, blocked_seconds=None)
        host.register(build)
        run = await host.start("w", "hi")
        broken.extend(["no model", "no key"])
        async with host:
            assert (await run.result()).get_outputs() == ["hi!"]
    assert broken == []


async def test_a_damaged_run_fails_with_the_reason(tmp_path: Path) -> None:
    async with opened("sqlite", tmp_path) as storage:
        host = Host(storage)
        host.register(row("w", shout))
        run = await host.start("w", "hi")
    damage(tmp_path / "checkpoints.db")
    async with opened("sqlite", tmp_path) as storage:
        host = Host(storage)
        host.register(row("w", shout))
        async with host:
            with pytest.raises(RunFailedError, match="CheckpointDamagedError"):
                await (await host.run(run.run_id)).result()


def damage(path: Path) -> None:
    """Change what the parts of a database hold."""
    import sqlite3  # noqa: PLC0415

    with sqlite3.connect(path) as database:
        database.execute("UPDATE parts SET data = replace(data, 'hi', 'ho')")
    database.close()


async def test_a_host_without_workflows_advances_no_run() -> None:
    storage = InMemoryCheckpointStorage()
    host = Host(storage)
    host.register(row("w", shout))
    run = await host.start("w", "hi")
    gate = Gate()
    gate.open()
    stranger = Host(storage)
    stranger.register(row("other", gate))
    async with stranger:
        await (await stranger.start("other", "ho")).result()
        assert (await run.info()).status == "blocked"
    assert gate.came == ["ho"]
