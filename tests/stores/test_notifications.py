"""How a store notices what others do to its runs."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import pytest

from perdure.clock import SystemClock
from perdure.records import Mark, Retention
from perdure.storage import SqliteStore
from perdure.storage.notifications import Listener, Poller
from perdure.storage.sqlite.store import sqlite_backend
from perdure.testing.stores import ManualClock, RunDriver, command
from perdure.testing.stores.base import watcher

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from perdure.storage.sql.backend import SqlBackend


class Pauses:
    """Lets time pass when it is told to, and knows who waits for that."""

    def __init__(self) -> None:
        self.waiting: list[asyncio.Future[None]] = []
        self._begun = asyncio.Event()

    async def __call__(self, seconds: float) -> None:
        assert seconds > 0
        pause = asyncio.get_running_loop().create_future()
        self.waiting.append(pause)
        self._begun.set()
        try:
            await pause
        finally:
            self.waiting.remove(pause)

    async def begun(self) -> None:
        """Return when there is a pause."""
        await self._begun.wait()

    async def end(self) -> None:
        """End the pause that there is, or that is about to begin."""
        await self.begun()
        (pause,) = self.waiting
        self._begun.clear()
        pause.set_result(None)


@pytest.fixture
def pauses() -> Pauses:
    return Pauses()


@pytest.fixture
def store(tmp_path: Path, pauses: Pauses) -> SqliteStore:
    return SqliteStore(tmp_path / "runs.db", pause=pauses)


@contextlib.contextmanager
def another_process(store: SqliteStore) -> Generator[SqlBackend]:
    """The file as another process has it: nobody in this one is told of what it does."""
    backend = sqlite_backend(store.path, retention=Retention(), clock=SystemClock())
    yield backend
    backend.close()


async def test_changes_by_another_process_are_noticed_at_the_next_poll(store: SqliteStore, pauses: Pauses) -> None:
    run = await RunDriver.start(store, ManualClock(), "r")
    await run.commit()
    watch = await watcher(store, "r", seen=run.at("r@0"))
    with another_process(store) as other:
        await pauses.end()
        await pauses.begun()
        assert not watch.done()
        posted = other.post("r", command("a"))
        await pauses.end()
        assert await watch == run.at("r@0", commands=posted.number)
    assert pauses.waiting == []
    await store.close()


async def test_changes_of_other_runs_wake_nobody_for_good(store: SqliteStore, pauses: Pauses) -> None:
    run, other_run = [await RunDriver.start(store, ManualClock(), name) for name in "rs"]
    await run.commit()
    await other_run.commit()
    watch = await watcher(store, "r", seen=run.at("r@0"))
    with another_process(store) as other:
        other.post("s", command("a"))
        await pauses.end()
        await pauses.begun()
        await store.run("r")
        assert not watch.done()
        other.post("r", command("a"))
        await pauses.end()
        assert (await watch).commands == 2
    await store.close()


async def test_a_change_while_the_file_is_opened_again_is_noticed(store: SqliteStore, pauses: Pauses) -> None:
    run = await RunDriver.start(store, ManualClock(), "r")
    await run.commit()
    watch = await watcher(store, "r", seen=run.at("r@0"))
    await store.close()
    with another_process(store) as other:
        other.post("r", command("a"))
    await pauses.end()
    assert (await watch).commands == 1
    await store.close()


async def test_one_poll_serves_all_waiters(store: SqliteStore, pauses: Pauses) -> None:
    run = await RunDriver.start(store, ManualClock(), "r")
    await run.commit()
    watches = [await watcher(store, "r", seen=run.at("r@0")) for _ in range(3)]
    watches += [await watcher(store, "nowhere", seen=Mark())]
    await pauses.begun()
    assert len(pauses.waiting) == 1
    watches[0].cancel()
    await asyncio.wait(watches[:1])
    assert len(pauses.waiting) == 1
    await run.commit()
    await asyncio.wait(watches[1:3])
    assert len(pauses.waiting) == 1
    watches[3].cancel()
    await asyncio.wait(watches[3:])
    assert pauses.waiting == []
    assert asyncio.all_tasks() == {asyncio.current_task()}
    await store.close()


async def test_store_is_not_polled_when_nobody_waits(store: SqliteStore, pauses: Pauses) -> None:
    run = await RunDriver.start(store, ManualClock(), "r")
    await run.commit()
    assert await store.watch("r", seen=Mark()) == run.at("r@0")
    assert pauses.waiting == []
    await store.close()


async def test_another_store_object_on_the_file_wakes_at_once(store: SqliteStore, pauses: Pauses) -> None:
    run = await RunDriver.start(store, ManualClock(), "r")
    await run.commit()
    twin = SqliteStore(store.path)
    assert twin.place == store.place
    watch = await watcher(store, "r", seen=run.at("r@0"))
    posted = await twin.post("r", command("a"))
    assert await watch == run.at("r@0", commands=posted.number)
    assert pauses.waiting == []
    await twin.close()
    await store.close()


async def test_watcher_gets_the_error_of_an_unreadable_store(pauses: Pauses) -> None:
    async def changes() -> object:
        raise OSError

    poller, listener = Poller(changes, pauses), Listener()
    poller.join(listener, known=0)
    await pauses.end()
    await listener.wait()
    await poller.leave(listener)
    assert pauses.waiting == []
