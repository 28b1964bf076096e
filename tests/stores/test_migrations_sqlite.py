"""Databases of former schemas, as they are after the migration."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
from typing import TYPE_CHECKING

import pytest

from perdure.errors import WorkflowCheckpointException
from perdure.records import KeepLast, Retention
from perdure.storage import SqliteStore
from perdure.storage.sql.database import migrations
from perdure.storage.sqlite.database import split
from perdure.testing.stores import ManualClock, RunDriver, command, events, finished, new_run, raw_blob, text_blob

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from perdure.records import Archive, Manifest

PRESENT = len(migrations("sqlite"))
WITH_STATUS = 3
"""The first schema that tells what a head leaves to do."""
BEFORE_TENANTS = 3
"""The last schema whose rows belonged to nobody in particular."""


@contextlib.contextmanager
def database_of(path: Path, *, schema: int) -> Generator[sqlite3.Connection]:
    """A new database as a former perdure has laid it out."""
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        for script in list(migrations("sqlite").values())[:schema]:
            for statement in split(script):
                connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {int.from_bytes(b'perd')}")
        connection.execute(f"PRAGMA user_version = {schema:d}")
        yield connection


def old_database(path: Path, *, schema: int) -> Manifest:
    """A database as a former perdure has left it, with one settled run; its only checkpoint."""
    with database_of(path, schema=schema) as connection:
        connection.execute(
            "INSERT INTO runs (run_id, workflow_name, created_at, nonce, head, position, settled, token) "
            "VALUES ('r', 'flow', '2024-01-01', 'n', 'r@0', 0, 1, 1)"
        )
        connection.execute("UPDATE counters SET value = 1 WHERE name = 'token'")
        old = RunDriver(SqliteStore(path), ManualClock(), "r", "flow").next_commit({"a": text_blob("v0")})
        connection.execute(
            "INSERT INTO checkpoints (checkpoint_id, run_id, workflow_name, position, timestamp, iteration_count, "
            "settled, checksum, header, toc) VALUES ('r@0', 'r', 'flow', 0, ?, 0, 1, ?, ?, ?)",
            (old.manifest.timestamp, old.manifest.checksum(), old.manifest.header, json.dumps(dict(old.manifest.toc))),
        )
        connection.executemany(
            "INSERT INTO parts (hash, kind, refs, data) VALUES (?, 'json', '[]', ?)",
            [(blob.hash, blob.data) for blob in old.blobs],
        )
        if schema >= WITH_STATUS:
            connection.execute("UPDATE runs SET status = 'idle'")
            connection.execute("UPDATE checkpoints SET status = 'idle'")
    return old.manifest


@pytest.mark.parametrize("schema", range(1, PRESENT))
async def test_a_database_of_a_former_schema_is_upgraded(tmp_path: Path, schema: int) -> None:
    path = tmp_path / "runs.db"
    old = old_database(path, schema=schema)
    store = SqliteStore(path)
    assert await store.manifest("r@0") == old
    run = RunDriver(store, ManualClock(), "r", "flow")
    record = await run.record()
    assert (record.settled, record.status, record.wake_at, record.events) == (True, "idle", None, 0)
    run.lease, run.head, run.position = await store.acquire("r"), "r@0", 0
    await run.note(finished("a", "recorded"))
    assert await run.noted() == ["a=recorded"]
    await run.post(command("a", "posted", expects=("a", text_blob("v0").hash)))
    await run.commit(status="waiting", consumed=("a",), events=events("told"))
    assert list(await store.ids()) == ["r@0", "r@1"]
    assert await run.noted() == await run.inbox() == []
    assert await run.events() == ["1=told"]
    await run.rewind("r@0")
    assert (await run.record()).status == "idle"
    await (await RunDriver.start(store, ManualClock(), "a younger one")).commit()
    assert [record.run_id for record in await store.runs()] == ["r", "a younger one"]
    await store.close()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone()[0] == PRESENT


async def eventful_runs(path: Path) -> SqliteStore:
    """A store with a run that has something in every table, and with a fork that rests on it."""
    store = SqliteStore(path, retention=Retention(checkpoints=KeepLast(2), events=KeepLast(2)))
    run = await RunDriver.start(store, ManualClock(), "r")
    for number in range(4):
        leaf = raw_blob(b"leaf %d" % number)
        value = text_blob(f"v{number}", leaf)
        await run.commit({"a": value}, leaf, events=events(f"told {number}", "twice", blobs=(text_blob("event"),)))
    asked = text_blob("asked")
    await run.commit({"asked": asked}, status="sleeping", wake_at="2030-01-01T00:00:00+00:00")
    await run.note(finished("b", "later", text_blob("noted")), finished("a", "earlier"))
    await run.post(command("x"), command("y", "posted", text_blob("posted"), expects=("asked", asked.hash)))
    await store.acquire("fork", create=new_run("fork", parent="r@4"))
    return store


def as_former(path: Path, former: Path) -> None:
    """The rows of a database in one of the last schema without tenants, where the newest commit is gone already."""
    with database_of(former, schema=BEFORE_TENANTS) as connection:
        connection.execute("ATTACH ? AS present", (str(path),))
        # The counts of a run come with its row.
        for table in ("checkpoints", "parts", "journal", "inbox", "events", "counters", "runs"):
            columns = ", ".join(row[1] for row in connection.execute(f"PRAGMA main.table_info({table})"))
            connection.execute(f"INSERT OR REPLACE INTO main.{table} ({columns}) SELECT {columns} FROM present.{table}")
        connection.execute("DELETE FROM main.counters WHERE name = 'additions'")
        connection.execute("UPDATE main.sqlite_sequence SET seq = 99 WHERE name = 'checkpoints'")


async def former_database(path: Path) -> tuple[Archive, int]:
    """A database of a former schema with an eventful run; the run, and the token of the newest claim."""
    store = await eventful_runs(path.with_name("present.db"))
    archive, lease = await store.archive("r"), await store.acquire("fork")
    await store.close()
    as_former(path.with_name("present.db"), path)
    return archive, lease.token


async def test_migration_to_tenants_loses_nothing(tmp_path: Path) -> None:
    before, token = await former_database(tmp_path / "former.db")
    store = SqliteStore(tmp_path / "former.db")
    assert await store.archive("r") == before
    assert [record.run_id for record in await store.runs()] == ["r", "fork"]
    assert await store.next_wake(after="", workflow_names=["flow"]) == "2030-01-01T00:00:00+00:00"
    assert (await store.acquire("r")).token == token + 1
    assert (await store.post("r", command("z"))).number == before.inbox[-1].number + 1
    assert list(await store.tenant("another").runs()) == []
    assert list(await store.tenant("another").ids()) == []
    await store.close()


async def test_an_upgraded_database_goes_on_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "former.db"
    await former_database(path)
    store = SqliteStore(path)
    run = RunDriver(store, ManualClock(), "r", "flow")
    run.lease, run.head, run.position = await store.acquire("r"), "r@4", 4
    await run.commit(consumed=("x",), events=events("told"))
    assert await run.noted() == []
    assert await run.inbox() == ["y=posted"]
    assert (await run.events())[-1] == "9=told"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        newest = "SELECT checkpoint_id FROM checkpoints ORDER BY sequence DESC"
        assert connection.execute(newest).fetchone() == ("r@5",)
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
        names = [row[0] for row in connection.execute("SELECT name FROM sqlite_master")]
    assert not [name for name in names if "former" in name]
    await store.close()


async def test_a_run_of_an_upgraded_database_goes_with_all_that_it_has(tmp_path: Path) -> None:
    path = tmp_path / "former.db"
    await former_database(path)
    store = SqliteStore(path)
    for run_id in ("fork", "r"):
        assert await store.remove(run_id)
    await store.collect()
    await store.close()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        for table in ("runs", "checkpoints", "journal", "inbox", "events", "parts"):
            assert connection.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,), table


async def test_an_upgrade_that_fails_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "former.db"
    before, _ = await former_database(path)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE former_events (in_the_way)")
        connection.commit()
        found = list(connection.iterdump())
    store = SqliteStore(path)
    with pytest.raises(WorkflowCheckpointException, match="former_events"):
        await store.ids()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (BEFORE_TENANTS,)
        assert list(connection.iterdump()) == found
        connection.execute("DROP TABLE former_events")
    assert await store.archive("r") == before
    await store.close()


async def test_several_who_open_a_former_database_at_once_upgrade_it_once(tmp_path: Path) -> None:
    path = tmp_path / "former.db"
    before, _ = await former_database(path)
    stores = [SqliteStore(path) for _ in range(5)]
    assert await asyncio.gather(*(store.archive("r") for store in stores)) == [before] * 5
    for store in stores:
        await store.close()
