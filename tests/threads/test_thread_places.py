"""Session stores beside others on one place: storages of workflows, tenants; and places that are damaged."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from tests.threads.session_kinds import KINDS, LASTING, ON_DISK, opened
from tests.threads.test_session_stores import said, texts

from perdure import (
    FileCheckpointStorage,
    InMemoryCheckpointStorage,
    SqliteCheckpointStorage,
    WorkflowBuilder,
    WorkflowContext,
    executor,
)
from perdure.errors import WorkflowCheckpointException
from perdure.records import Commit, KeepFor, KeepLast, Manifest, NewRun, Retention
from perdure.storage import FileStore, MemoryStore, SqliteStore
from perdure.threads import SessionStore, ThreadDamagedError
from perdure.threads.log import turn
from perdure.threads.thread import TENANT, ThreadName

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from pathlib import Path

    from perdure.storage import StoreStorage, TenantStore


@executor
async def echo(text: str, ctx: WorkflowContext[None, str]) -> None:
    await ctx.yield_output(text)


def beside(kind: str, directory: Path, retention: Retention) -> StoreStorage:
    """A storage of workflows on the place of the session store."""
    if kind == "file":
        return FileCheckpointStorage(directory / "sessions", retention=retention)
    return SqliteCheckpointStorage(directory / "sessions.db", retention=retention)


@pytest.mark.parametrize("kind", ON_DISK)
async def test_neither_sees_or_prunes_what_is_the_others(kind: str, tmp_path: Path) -> None:
    at_once = Retention(finished_runs=KeepFor(timedelta(0)))
    async with opened(kind, tmp_path) as sessions, beside(kind, tmp_path, at_once) as storage:
        await sessions.append("s", "t", said("a", "large" * 3000))
        await sessions.append("s", "u", said("b"))
        workflow = WorkflowBuilder(start_executor=echo, name="s", checkpoint_storage=storage).build()
        for number in range(3):
            await workflow.run("x", run_id=f"run {number}")
        # It prunes its own, and nothing else.
        assert {checkpoint.run_id for checkpoint in await storage.list_checkpoints()} == {"run 2"}
        assert await sessions.sessions() == ["s"]
        assert await texts(sessions) == ["a", "large" * 3000]
        before = await storage.list_checkpoint_ids()
        for _ in range(3):
            await sessions.append("s", "t", said("c"))
        await sessions.delete("s", "u")
        await sessions.collect()
        assert await storage.list_checkpoint_ids() == before
        assert (await workflow.run(run_id="run 2")).get_outputs() == ["x"]
        kept = await texts(sessions)
        await storage.collect()
        assert (await storage.runs(), await sessions.sessions(), await texts(sessions)) == ([], ["s"], kept)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_tenant_has_sessions_of_its_own(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as everybody:
        ada, bob = everybody.tenant("ada"), everybody.tenant("bob")
        for number, view in enumerate((everybody, ada, bob)):
            assert await view.append("s", "t", said(f"{number}"), expected=0) == 1
        await bob.delete("s", "t")
        assert await texts(everybody) == ["0"]
        assert await texts(ada) == ["1"]
        assert await bob.sessions() == []
        assert ada.place != bob.place


@pytest.mark.parametrize("kind", LASTING)
async def test_a_tenant_is_named_when_a_store_is_made(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as everybody, opened(kind, tmp_path, tenant="ada") as ada:
        await ada.append("s", "t", said("a"))
        assert await texts(everybody.tenant("ada")) == ["a"]
        assert await everybody.sessions() == []


def damage(directory: Path) -> None:
    """Change a word, wherever it stands."""
    for path in directory.rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes().replace(b"findme", b"damage"))


@pytest.mark.parametrize("kind", ON_DISK)
async def test_a_damaged_thread_is_named(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as sessions:
        await sessions.append("s", "t", said("findme"))
        await sessions.append("s", "t", said("b"))
        await sessions.append("s", "u", said("whole"))
    damage(tmp_path)
    async with opened(kind, tmp_path) as sessions:
        with pytest.raises(ThreadDamagedError, match="thread 't' of session 's' is damaged") as caught:
            await sessions.read("s", "t")
        assert (caught.value.session_id, caught.value.thread_id) == ("s", "t")
        assert await texts(sessions, "u") == ["whole"]


async def test_data_of_a_later_version_is_refused() -> None:
    store = MemoryStore()
    name = ThreadName("s", "t")
    view = store.tenant(TENANT)
    lease = await view.acquire(name.run_id, create=NewRun(name.run_id, name.workflow_name, "2024-01-01", "n"))
    header = b'{"format":2}'
    manifest = Manifest(f"{name.run_id}@0", name.run_id, name.workflow_name, 0, None, "2024-01-01", 0, header, {})
    await view.commit(lease, Commit(manifest, (), None, settled=True, status="idle"))
    await view.release(lease)
    sessions = SessionStore(store)
    with pytest.raises(ThreadDamagedError, match="it has format 2, and this version of perdure reads 1"):
        await sessions.append("s", "t", said("a"))
    with pytest.raises(ThreadDamagedError, match="thread 't'"):
        await sessions.threads("s")


async def test_invalid_tenant_names_are_refused() -> None:
    with pytest.raises(WorkflowCheckpointException, match="control characters"):
        SessionStore(MemoryStore(), tenant="a\n")
    with pytest.raises(WorkflowCheckpointException, match="reserved for perdure's own data"):
        InMemoryCheckpointStorage().tenant(TENANT)


async def test_the_view_of_a_tenant_has_the_sessions_of_that_tenant() -> None:
    store = MemoryStore()
    await SessionStore(store.tenant("ada")).append("s", "t", said("a"))
    assert await texts(SessionStore(store).tenant("ada")) == ["a"]
    assert await SessionStore(store).thread("s", "t") is None


@pytest.mark.parametrize("kind", ["memory", "file", "sqlite"])
async def test_retention_of_runs_does_not_apply_to_threads(kind: str, tmp_path: Path) -> None:
    forgetful = Retention(finished_runs=KeepFor(timedelta(0)), events=KeepLast(1))
    stores: dict[str, TenantStore] = {
        "memory": MemoryStore(retention=forgetful),
        "file": FileStore(tmp_path / "runs", retention=forgetful),
        "sqlite": SqliteStore(tmp_path / "runs.db", retention=forgetful),
    }
    sessions = SessionStore(stores[kind])
    for each in ("a", "b", "c"):
        await sessions.append("s", "t", said(each))
        await sessions.append("s", each, said(each))
    assert await texts(sessions) == ["a", "b", "c"]
    assert [thread.thread_id for thread in await sessions.threads("s")] == ["t", "a", "b", "c"]


class TestTurns:
    """Who of one process has a thread."""

    async def test_they_come_one_after_the_other(self) -> None:
        order: list[str] = []

        async def take(name: str) -> None:
            async with turn("x"):
                order.append(name)
                await asyncio.sleep(0)
                order.append(name)

        await asyncio.gather(*(take(name) for name in "abc"))
        assert order == list("aabbcc")

    async def test_cancelled_waiter_lets_the_next_one_in(self) -> None:
        async with turn("x"):
            first, second = (asyncio.create_task(self.taken()) for _ in range(2))
            await asyncio.sleep(0)
            first.cancel()
            await asyncio.wait([first])
        await second
        assert first.cancelled()

    def test_waiters_of_a_closed_loop_are_skipped(self) -> None:
        left = asyncio.new_event_loop()
        waiting = self.taken()

        async def meanwhile() -> None:
            async with turn("x"):
                await asyncio.to_thread(self.begin_and_leave, left, waiting)

        asyncio.run(meanwhile())
        asyncio.run(self.taken())
        assert left.is_closed()
        waiting.close()

    async def taken(self) -> None:
        async with turn("x"):
            await asyncio.sleep(0)

    @staticmethod
    def begin_and_leave(loop: asyncio.AbstractEventLoop, waiting: Coroutine[Any, Any, None]) -> None:
        """Let it come to where it waits, in an event loop that is closed then."""

        async def begin() -> None:
            waiting.send(None)

        loop.run_until_complete(begin())
        loop.close()
