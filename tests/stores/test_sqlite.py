"""What is particular to the SQLite store: its file and its schema."""

from __future__ import annotations

import contextlib
import json
import re
import sqlite3
from typing import TYPE_CHECKING

import pytest

from perdure.errors import CheckpointDamagedError, WorkflowCheckpointException
from perdure.stores.sqlite import SqliteStore
from perdure.stores.statements import migrations, named_statements, split
from perdure.testing.stores import ManualClock, RunDriver, command, events, finished, text_part

if TYPE_CHECKING:
    from pathlib import Path

    from perdure.records import Manifest


def change(path: Path, statement: str) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(statement)


async def store_with_a_run(path: Path) -> SqliteStore:
    store = SqliteStore(path)
    run = await RunDriver.start(store, ManualClock(), "r")
    await run.commit({"a": text_part("v0")})
    await run.commit({"a": text_part("v1")})
    return store


async def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "letter.txt"
    path.write_text("Dear database, " * 100, "utf-8")
    store = SqliteStore(path)
    with pytest.raises(WorkflowCheckpointException, match="not a SQLite database"):
        await store.ids()
    assert path.read_text("utf-8") == "Dear database, " * 100
    await store.close()


async def test_a_database_of_another_program_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    change(path, "CREATE TABLE customers (name TEXT)")
    store = SqliteStore(path)
    with pytest.raises(WorkflowCheckpointException, match="another program"):
        await store.ids()
    await store.close()


async def test_a_database_of_a_later_schema_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    await (await store_with_a_run(path)).close()
    change(path, "PRAGMA user_version = 1000")
    store = SqliteStore(path)
    with pytest.raises(WorkflowCheckpointException, match="upgrade perdure"):
        await store.ids()
    await store.close()


@pytest.mark.parametrize("path", ["", ":memory:"])
def test_a_database_without_a_file_is_refused(path: str) -> None:
    with pytest.raises(WorkflowCheckpointException, match="in-memory storage"):
        SqliteStore(path)


async def test_a_store_that_could_not_be_opened_opens_when_the_cause_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    path.mkdir()
    store = SqliteStore(path)
    with pytest.raises(WorkflowCheckpointException, match=r"runs\.db"):
        await store.ids()
    path.rmdir()
    assert list(await store.ids()) == []
    await store.close()


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE checkpoints SET header = x'7b7d' WHERE checkpoint_id = 'r@1'",
        "UPDATE checkpoints SET toc = '{' WHERE checkpoint_id = 'r@1'",
        "UPDATE checkpoints SET toc = '{}' WHERE checkpoint_id = 'r@1'",
        "UPDATE checkpoints SET toc = CAST(x'22ff22' AS TEXT) WHERE checkpoint_id = 'r@1'",
        "UPDATE checkpoints SET iteration_count = 7 WHERE checkpoint_id = 'r@1'",
        "UPDATE checkpoints SET header = 'text' WHERE checkpoint_id = 'r@1'",
        "UPDATE checkpoints SET checksum = '' WHERE checkpoint_id = 'r@1'",
    ],
)
async def test_a_damaged_checkpoint_is_an_error_wherever_it_is_met(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "runs.db"
    store = await store_with_a_run(path)
    change(path, damage)
    for read in (store.manifest("r@1"), store.manifests(), store.manifests(run_id="r")):
        with pytest.raises(CheckpointDamagedError, match="'r@1'"):
            await read
    with pytest.raises(CheckpointDamagedError, match="'r@1'"):
        await store.latest(workflow_name="flow")
    assert (await store.manifest("r@0")).position == 0
    await store.close()


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE journal SET data = x'7b7d' WHERE key = '\"b\"'",
        "UPDATE journal SET data = 'of b' WHERE key = '\"b\"'",
        "UPDATE journal SET refs = '[' WHERE key = '\"b\"'",
        "UPDATE journal SET refs = '[]' WHERE key = '\"b\"'",
        "UPDATE journal SET refs = CAST(x'5b22ff225d' AS TEXT) WHERE key = '\"b\"'",
        "UPDATE journal SET key = '\"c\"' WHERE key = '\"b\"'",
        "UPDATE journal SET key = 'b' WHERE key = '\"b\"'",
        "UPDATE journal SET head = 'r@0' WHERE key = '\"b\"'",
        "UPDATE journal SET checksum = '' WHERE key = '\"b\"'",
    ],
)
async def test_a_damaged_journal_is_an_error_that_names_the_head(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "runs.db"
    store = await store_with_a_run(path)
    claim = await store.claim("r")
    await store.record(claim, head="r@1", records=[finished(key, f"of {key}", text_part(key)) for key in "ab"])
    change(path, damage)
    with pytest.raises(CheckpointDamagedError, match=r"'r@1'.*journal"):
        await store.journal("r")
    await store.rewind(claim, expected_head="r@1", to="r@0", nonce="another")
    assert list(await store.journal("r")) == []
    await store.close()


@pytest.mark.parametrize(
    "damage",
    [
        "data = x'7b7d'",
        "data = 'of b'",
        "refs = '['",
        "refs = '[]'",
        "refs = '7'",
        "refs = CAST(x'5b22ff225d' AS TEXT)",
        "id = '\"c\"'",
        "id = 'b'",
        "kind = '\"answer\"'",
        "kind = CAST(x'22ff22' AS TEXT)",
        "expects = NULL",
        "expects = '[\"a\"]'",
        'expects = \'["a", "b"]\'',
        "number = 77",
        "checksum = ''",
    ],
)
async def test_a_damaged_command_is_an_error_that_names_the_head(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "runs.db"
    store = await store_with_a_run(path)
    expects = ("a", text_part("v1").hash)
    for each in "ab":
        await store.post("r", command(each, f"of {each}", text_part(each), expects=expects))
    change(path, f"UPDATE inbox SET {damage} WHERE number = 2")
    with pytest.raises(CheckpointDamagedError, match=r"'r@1'.*inbox"):
        await store.inbox("r")
    await store.rewind(await store.claim("r"), expected_head="r@1", to="r@0", nonce="another")
    if damage != "expects = NULL":
        assert list(await store.inbox("r")) == []
    await store.close()


@pytest.mark.parametrize(
    "damage",
    [
        "data = x'7b7d'",
        "data = 'two'",
        "refs = '['",
        "refs = '[]'",
        "refs = CAST(x'5b22ff225d' AS TEXT)",
        "count = 2",
        "count = 'many'",
        "checksum = ''",
        "checksum = CAST(x'ff' AS TEXT)",
    ],
)
async def test_damaged_events_are_an_error_that_names_their_checkpoint(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "runs.db"
    store = await store_that_tells(path)
    change(path, f"UPDATE events SET {damage} WHERE first = 2")
    with pytest.raises(CheckpointDamagedError, match=r"'r@1'.*events"):
        await store.events("r")
    assert [batch.first for batch in await store.events("r", limit=1)] == [1]
    assert [batch.first for batch in await store.events("r", after=3)] == [4]
    await store.close()


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        ("UPDATE events SET first = 7 WHERE first = 2", "'r@1'"),
        ("UPDATE events SET run_id = 's' WHERE first = 2", "'r@2'"),
        ("UPDATE events SET checkpoint_id = CAST(x'72ff' AS TEXT) WHERE first = 2", r"'r\\udcff'"),
        ("DELETE FROM events WHERE first = 3", "'r@3'"),
        ("DELETE FROM events WHERE first = 4", "'r@3'"),
    ],
)
async def test_events_that_are_missing_are_an_error(tmp_path: Path, damage: str, named: str) -> None:
    path = tmp_path / "runs.db"
    store = await store_that_tells(path)
    await (await RunDriver.start(store, ManualClock(), "s")).commit()
    change(path, damage)
    with pytest.raises(CheckpointDamagedError, match=named):
        await store.events("r")
    await store.close()


async def store_that_tells(path: Path) -> SqliteStore:
    store = SqliteStore(path)
    run = await RunDriver.start(store, ManualClock(), "r")
    for text in ("one", "two", "three", "four"):
        await run.commit(events=events(text, parts=(text_part(text),)))
    return store


def old_database(path: Path, *, schema: int) -> Manifest:
    """A database as a former perdure has left it, with one settled run; its only checkpoint."""
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        for script in migrations()[:schema]:
            for statement in split(script):
                connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {int.from_bytes(b'perd')}")
        connection.execute(f"PRAGMA user_version = {schema:d}")
        connection.execute(
            "INSERT INTO runs (run_id, workflow_name, created_at, nonce, head, position, settled, token) "
            "VALUES ('r', 'flow', '2024-01-01', 'n', 'r@0', 0, 1, 1)"
        )
        connection.execute("UPDATE counters SET value = 1 WHERE name = 'token'")
        old = RunDriver(SqliteStore(path), ManualClock(), "r", "flow").next_commit({"a": text_part("v0")})
        connection.execute(
            "INSERT INTO checkpoints (checkpoint_id, run_id, workflow_name, position, timestamp, iteration_count, "
            "settled, checksum, header, toc) VALUES ('r@0', 'r', 'flow', 0, ?, 0, 1, ?, ?, ?)",
            (old.manifest.timestamp, old.manifest.checksum(), old.manifest.header, json.dumps(dict(old.manifest.toc))),
        )
        connection.executemany(
            "INSERT INTO parts VALUES (?, 'json', '[]', ?)", [(part.hash, part.data) for part in old.parts]
        )
    return old.manifest


@pytest.mark.parametrize("schema", range(1, len(migrations())))
async def test_a_database_of_a_former_schema_is_upgraded(tmp_path: Path, schema: int) -> None:
    path = tmp_path / "runs.db"
    old = old_database(path, schema=schema)
    store = SqliteStore(path)
    assert await store.manifest("r@0") == old
    run = RunDriver(store, ManualClock(), "r", "flow")
    record = await run.record()
    assert (record.settled, record.status, record.wake_at, record.events) == (True, "idle", None, 0)
    run.claim, run.head, run.position = await store.claim("r"), "r@0", 0
    await run.note(finished("a", "recorded"))
    assert await run.noted() == ["a=recorded"]
    await run.post(command("a", "posted", expects=("a", text_part("v0").hash)))
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
        assert connection.execute("PRAGMA user_version").fetchone()[0] == len(migrations())


def empty_database(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path)
    for script in migrations():
        for statement in split(script):
            connection.execute(statement)
    return connection


@pytest.mark.parametrize("name", named_statements())
def test_every_statement_fits_the_schema(tmp_path: Path, name: str) -> None:
    statement = named_statements()[name]
    with contextlib.closing(empty_database(tmp_path / "runs.db")) as connection:
        connection.execute(f"EXPLAIN {statement}", dict.fromkeys(re.findall(r":(\w+)", statement), 0))


@pytest.mark.parametrize(
    ("name", "index"),
    [
        ("latest_of_workflow", "checkpoints_of_workflow"),
        ("newest_of_run", "checkpoints_of_run"),
        ("prune_older", "checkpoints_by_age"),
        ("finished_runs", "runs_finished"),
        ("drop_journal", "journal_of_run"),
        ("count_records_with_parts", "journal_of_run"),
        ("has_record_with_parts", "journal_of_run"),
        ("drop_journals_of_forks", "runs_that_rest"),
        ("runs", "runs_in_order"),
        ("runs_of_workflow", "runs_of_workflow"),
        ("runs_of_status", "runs_of_status"),
        ("mark", "inbox_in_order"),
        ("newest_command", "inbox_in_order"),
        ("commands", "inbox_in_order"),
        ("command", "inbox_by_id"),
        ("has_command", "inbox_by_id"),
        ("has_command_with_parts", "inbox_by_id"),
        ("drop_command", "inbox_by_id"),
        ("batches", "events_of_run"),
        ("batches_but_newest", "events_of_run"),
        ("batches_older", "events_of_run"),
        ("drop_batches", "events_of_run"),
    ],
)
def test_what_must_be_fast_goes_by_an_index(tmp_path: Path, name: str, index: str) -> None:
    statement = named_statements()[name]
    parameters = dict.fromkeys(re.findall(r":(\w+)", statement), 0)
    with contextlib.closing(empty_database(tmp_path / "runs.db")) as connection:
        plan = connection.execute(f"EXPLAIN QUERY PLAN {statement}", parameters).fetchall()
    assert index in str(plan)
    assert "TEMP B-TREE" not in str(plan)


async def test_a_database_is_in_wal_mode_and_says_whose_it_is(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    store = await store_with_a_run(path)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        pragmas = [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "application_id")]
        version = connection.execute("PRAGMA user_version").fetchone()[0]
    assert pragmas == ["wal", int.from_bytes(b"perd")]
    assert version == len(migrations())
    await store.close()
