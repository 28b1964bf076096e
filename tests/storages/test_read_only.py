"""Storages that are opened read-only, migrated, copied and checked."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from tests.postgres_server import needs_postgres, shared_server
from tests.storages.kinds import LASTING, opened

from perdure import (
    Executor,
    FileCheckpointStorage,
    PostgresCheckpointStorage,
    SqliteCheckpointStorage,
    StorageOutdatedError,
    StorageReadOnlyError,
    Workflow,
    WorkflowBuilder,
    WorkflowCheckpointException,
    WorkflowContext,
    handler,
    open_storage,
    response_handler,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from perdure.storage import Damage, StoreStorage

GOLDEN = Path(__file__).parents[1] / "golden" / "format-1"


class Ask(Executor):
    """Asks before it sends an order."""

    @handler
    async def ask(self, order: str, ctx: WorkflowContext[str, str]) -> None:
        ctx.set_state("order", order)
        ctx.set_state("long", f"{order} " * 3000)
        await ctx.request_info(f"may I send {order}?", bool)

    @response_handler
    async def send(self, question: str, is_allowed: bool, ctx: WorkflowContext[str, str]) -> None:  # noqa: FBT001
        await ctx.yield_output(f"{question} {is_allowed}")


def orders() -> Workflow:
    return WorkflowBuilder(name="orders", start_executor=Ask(id="ask")).build()


async def run_orders(storage: StoreStorage, *run_ids: str) -> None:
    for run_id in run_ids:
        await orders().run("flowers", run_id=run_id, checkpoint_storage=storage)
    await storage.close()


async def damage(storage: StoreStorage) -> list[Damage]:
    return [each async for each in storage.check()]


async def respond(storage: StoreStorage) -> None:
    [request] = await storage.requests()
    await storage.respond("r", {request.request_id: True})


WRITES: dict[str, Callable[[StoreStorage], Awaitable[Any]]] = {
    "send": lambda storage: storage.send("r", "more"),
    "cancel": lambda storage: storage.cancel("r"),
    "restore": lambda storage: storage.restore("r", "r@0"),
    "delete": lambda storage: storage.delete("r@0"),
    "delete_run": lambda storage: storage.delete_run("r"),
    "collect": lambda storage: storage.collect(),
    "migrate": lambda storage: storage.migrate(),
    "run": lambda storage: orders().run("flowers", run_id="new", checkpoint_storage=storage),
    "respond": respond,
}


@pytest.mark.parametrize("kind", LASTING)
@pytest.mark.parametrize("write", WRITES)
async def test_a_storage_that_is_read_only_refuses_writes(kind: str, write: str, tmp_path: Path) -> None:
    await run_orders(opened(kind, tmp_path), "r")
    async with opened(kind, tmp_path, read_only=True) as storage:
        with pytest.raises(StorageReadOnlyError, match="opened read-only"):
            await WRITES[write](storage)
        assert [info.status for info in await storage.runs()] == ["waiting"]


@pytest.mark.parametrize("kind", LASTING)
async def test_a_storage_that_is_read_only_shows_everything_and_what_others_write(kind: str, tmp_path: Path) -> None:
    await run_orders(opened(kind, tmp_path), "r")
    async with opened(kind, tmp_path, read_only=True) as storage:
        assert [info.run_id for info in await storage.runs()] == ["r"]
        assert [request.data for request in await storage.requests()] == ["may I send flowers?"]
        assert "request_info" in [event.type async for event in storage.events("r")]
        assert (await storage.view("r@1")).state["order"] == "flowers"
        assert await damage(storage) == []
        await run_orders(opened(kind, tmp_path), "later")
        assert [info.run_id for info in await storage.runs()] == ["r", "later"]


@pytest.mark.parametrize("kind", LASTING)
async def test_nothing_is_created_for_a_reader(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path, read_only=True) as storage:
        for _ in range(2):
            with pytest.raises(WorkflowCheckpointException, match="there is no"):
                await storage.runs()
    assert os.listdir(tmp_path) == []  # noqa: PTH208


async def test_the_url_of_a_storage_can_be_opened_read_only(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    await run_orders(open_storage(url), "r")
    storage = open_storage(url, read_only=True)
    assert storage is not open_storage(url)
    with pytest.raises(StorageReadOnlyError):
        await storage.collect()
    await storage.close()


async def test_a_reader_of_an_older_sqlite_file_migrates_a_copy(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    shutil.copy(GOLDEN / "runs.sqlite", path)
    before = path.read_bytes()
    async with SqliteCheckpointStorage(path, read_only=True) as storage:
        assert "waiting" in {info.run_id for info in await storage.runs()}
        assert await storage.requests("waiting")
        assert await damage(storage) == []
    assert path.read_bytes() == before
    async with SqliteCheckpointStorage(path) as storage:
        assert (await storage.migrate())[-1] >= "0001_run_facts"
        assert await storage.migrate() == ()
    async with SqliteCheckpointStorage(path) as storage:
        assert await storage.migrate() == ()


async def test_a_reader_of_an_older_directory_says_what_to_do(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "files", tmp_path / "runs")
    async with FileCheckpointStorage(tmp_path / "runs", read_only=True) as storage:
        with pytest.raises(StorageOutdatedError, match="perdure store migrate"):
            await storage.runs()
    async with FileCheckpointStorage(tmp_path / "runs") as storage:
        assert await storage.migrate() == ("format_2",)
    async with FileCheckpointStorage(tmp_path / "runs", read_only=True) as storage:
        assert await storage.requests("waiting")
        assert await damage(storage) == []


@needs_postgres
async def test_a_reader_of_an_older_schema_says_what_to_do() -> None:
    dsn, schema = shared_server().dsn, shared_server().fresh_schema()
    async with PostgresCheckpointStorage(dsn, schema=schema) as storage:
        assert (await storage.migrate())[0] == "0001_runs"
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("SELECT set_config('search_path', %s, FALSE)", [schema])
        connection.execute("UPDATE schema_version SET version = 0")
    async with PostgresCheckpointStorage(dsn, schema=schema, read_only=True) as storage:
        with pytest.raises(StorageOutdatedError, match="perdure store migrate"):
            await storage.runs()


@pytest.mark.parametrize("kind", ["file", "sqlite"])
async def test_a_copy_is_complete_and_can_be_used(kind: str, tmp_path: Path) -> None:
    (tmp_path / "copied").mkdir()
    storage = opened(kind, tmp_path)
    await run_orders(storage, "r", "s")
    await run_orders(storage.tenant("other"), "t")
    target = tmp_path / "copied" / ("runs" if kind == "file" else "runs.db")
    async with opened(kind, tmp_path, read_only=True) as reader:
        await reader.backup(target)
        with pytest.raises(WorkflowCheckpointException, match="exists already"):
            await reader.backup(target)
    async with opened(kind, tmp_path / "copied") as copied:
        assert [info.run_id for info in await copied.runs()] == ["r", "s"]
        assert [info.run_id for info in await copied.tenant("other").runs()] == ["t"]
        assert await damage(copied) == await damage(copied.tenant("other")) == []
        [request] = await copied.requests("r")
        await copied.respond("r", {request.request_id: True})
        await orders().run(run_id="r", checkpoint_storage=copied)
        assert (await copied.run("r")).status == "idle"
    assert [each.name for each in target.parent.iterdir() if each.name.endswith(".part")] == []


@needs_postgres
async def test_a_copy_of_a_postgres_schema_is_made_by_its_own_tools(tmp_path: Path) -> None:
    async with opened("postgres", tmp_path) as storage:
        with pytest.raises(WorkflowCheckpointException, match="pg_dump --schema="):
            await storage.backup(tmp_path / "copy")


async def test_a_check_names_every_damaged_row_and_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    await run_orders(SqliteCheckpointStorage(path), "a", "b", "c", "d", "e")
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE checkpoints SET header = 'x' WHERE run_id = 'a'")
        connection.execute("UPDATE events SET data = 'x' WHERE run_id = 'b' AND first = 1")
        connection.execute("UPDATE runs SET workflow_name = 'x' WHERE run_id = 'c'")
        connection.execute("UPDATE runs SET checkpoints = 9 WHERE run_id = 'd'")
        [blob] = connection.execute("SELECT hash FROM parts WHERE length(data) > 2000").fetchone()
        connection.execute("UPDATE parts SET data = 'x' WHERE hash = ?", [blob])
    async with SqliteCheckpointStorage(path, read_only=True) as storage:
        found = {(each.run_id, each.kind, each.name) for each in await damage(storage)}
    lost = {(run_id, "blob", blob) for run_id in ("b", "c", "d", "e")}
    assert found == lost | {
        ("a", "checkpoint", "a@0"),
        ("a", "checkpoint", "a@1"),
        ("b", "events", "b@0"),
        ("c", "run", "c"),
        ("d", "run", "d"),
    }


async def test_a_check_names_every_damaged_file(tmp_path: Path) -> None:
    directory = tmp_path / "runs"
    await run_orders(FileCheckpointStorage(directory), "a", "b", "c", "%" * 150)
    (directory / "a@0.json").write_text("x")
    (directory / ".perdure" / "runs" / "b.log").unlink()
    [blob] = (directory / ".perdure" / "parts").iterdir()
    blob.unlink()
    async with FileCheckpointStorage(directory, read_only=True) as storage:
        found = {(each.run_id, each.kind, each.name) for each in await damage(storage)}
    lost = {(run_id, "blob", blob.name) for run_id in ("a", "b", "c", "%" * 150)}
    assert found - lost == {("a", "checkpoint", "a@0"), ("a", "events", "a@0"), ("b", "run", "b")}
    assert lost - found <= {("b", "blob", blob.name)}
