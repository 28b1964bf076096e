"""What is particular to the SQLite store: its file and its schema."""

from __future__ import annotations

import asyncio
import contextlib
import re
import sqlite3
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from perdure.errors import CheckpointDamagedError, CheckpointWriteError, WorkflowCheckpointException
from perdure.records import KeepFor, Retention
from perdure.storage import SqliteDatabase, SqliteStore
from perdure.storage.sql.database import migrations, named_statements, statement_text
from perdure.storage.sqlite.database import split
from perdure.testing.stores import ManualClock, RunDriver, command, events, finished, halted, raw_blob, text_blob

if TYPE_CHECKING:
    from pathlib import Path


def change(path: Path, statement: str) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(statement)


async def store_with_a_run(path: Path) -> SqliteStore:
    store = SqliteStore(path)
    run = await RunDriver.start(store, ManualClock(), "r")
    await run.commit({"a": text_blob("v0")})
    await run.commit({"a": text_blob("v1")})
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
    for read in (store.manifest("r@1"), store.manifests(run_id="r")):
        with pytest.raises(CheckpointDamagedError, match="'r@1'"):
            await read
    assert [manifest.checkpoint_id for manifest in await store.manifests()] == ["r@0"]
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
    lease = await store.acquire("r")
    await store.record(lease, head="r@1", records=[finished(key, f"of {key}", text_blob(key)) for key in "ab"])
    change(path, damage)
    with pytest.raises(CheckpointDamagedError, match=r"'r@1'.*journal"):
        await store.journal("r")
    await store.rewind(lease, expected_head="r@1", to="r@0", nonce="another")
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
    expects = ("a", text_blob("v1").hash)
    for each in "ab":
        await store.post("r", command(each, f"of {each}", text_blob(each), expects=expects))
    change(path, f"UPDATE inbox SET {damage} WHERE number = 2")
    with pytest.raises(CheckpointDamagedError, match=r"'r@1'.*inbox"):
        await store.inbox("r")
    await store.rewind(await store.acquire("r"), expected_head="r@1", to="r@0", nonce="another")
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


@pytest.mark.parametrize(
    "damage",
    [
        "halt = ''",
        "halt = 7",
        "halt = '[]'",
        "halt = '{}'",
        "halt = x'00'",
        "halt = substr(halt, 1, length(halt) - 1)",
        "halt = replace(halt, 'failed', 'parked')",
        "halt = replace(halt, 'this', 'thus')",
        "halt = replace(halt, '2024', '2025')",
        "halt = replace(halt, 'ff', 'fe')",
        "halt = halt || ' '",
        "halt = CAST(x'7b22ff227d' AS TEXT)",
    ],
)
async def test_a_damaged_halt_is_an_error_that_names_the_run(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "runs.db"
    store = await store_with_a_run(path)
    await store.release(await store.acquire("r"), halt=halted())
    assert (await store.runs(status="failed"))[0].halt == halted()
    change(path, f"UPDATE runs SET {damage}")
    for read in (store.run("r"), store.acquire("r"), store.archive("r")):
        with pytest.raises(CheckpointDamagedError, match=r"'r'.*halted"):
            await read
    (listed,) = await store.runs()
    assert listed.halt is not None
    assert "halted" in listed.halt.reason
    await store.close()


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        ("UPDATE parts SET data = x'7b7d' WHERE hash = ?", "'r@0'"),
        ("UPDATE parts SET data = CAST(data AS TEXT) WHERE hash = ?", "'r@0'"),
        ("UPDATE parts SET refs = '[' WHERE hash = ?", "'r@1'"),
        ("""UPDATE parts SET refs = '["gone"]' WHERE hash = ?""", "'r@0'"),
        ("DELETE FROM parts WHERE hash = ?", "'r@0'"),
    ],
)
async def test_a_run_with_a_damaged_blob_can_not_be_archived(tmp_path: Path, damage: str, named: str) -> None:
    path = tmp_path / "runs.db"
    store = await store_with_a_run(path)
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(damage, (text_blob("v0").hash,))
    with pytest.raises(CheckpointDamagedError, match=named):
        await store.archive("r")
    await store.close()


async def test_a_counter_that_is_lost_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    store = await store_with_a_run(path)
    before = await store.acquire("r", token=70)
    change(path, "DELETE FROM counters")
    assert (await store.acquire("r")).token > before.token
    assert (await store.post("r", command("a"))).number > 0
    await store.close()


async def test_tokens_grow_past_one_that_was_made_elsewhere(tmp_path: Path) -> None:
    store = await store_with_a_run(tmp_path / "runs.db")
    await store.acquire("r", token=1_000)
    other = await RunDriver.start(store, ManualClock(), "s")
    assert other.lease is not None
    assert other.lease.token > 1_000
    await store.close()


async def store_that_tells(path: Path) -> SqliteStore:
    store = SqliteStore(path)
    run = await RunDriver.start(store, ManualClock(), "r")
    for text in ("one", "two", "three", "four"):
        await run.commit(events=events(text, blobs=(text_blob(text),)))
    return store


def empty_database(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path)
    for script in (*migrations("sqlite").values(), *migrations("sqlite", additive=True).values()):
        for statement in split(script):
            connection.execute(statement)
    return connection


def whole_statements() -> dict[str, str]:
    """All statements, and listings with each of the lines that can be added to them."""
    known = named_statements("sqlite")
    lines = [name for name in known if name.startswith("+") and name != "+by_status"]
    whole = {name: text for name, text in known.items() if not name.startswith("+")}
    added = ["".join(lines[: lines.index("+oldest") + 1]), "+newest", "+updated", "+oldest_of_few", "+newest_of_few"]
    listings = {name: statement_text(known, name) for name in (f"runs{each}" for each in added)}
    return {**whole, **listings, "status_counts+by_status": statement_text(known, "status_counts+by_status")}


def test_every_statement_fits_the_schema(tmp_path: Path) -> None:
    errors: dict[str, sqlite3.Error] = {}
    with contextlib.closing(empty_database(tmp_path / "runs.db")) as connection:
        for name, statement in whole_statements().items():
            try:
                connection.execute(f"EXPLAIN {statement}", parameters_of(statement))
            except sqlite3.Error as error:
                errors[name] = error
    assert errors == {}


@pytest.mark.parametrize(
    ("name", "index"),
    [
        ("latest_of_workflow", "checkpoints_of_workflow"),
        ("newest_of_run", "checkpoints_of_run"),
        ("prune_checkpoints_older", "checkpoints_of_run"),
        ("prune_checkpoints_but_newest", "checkpoints_of_run"),
        ("finished_runs", "runs_finished"),
        ("drop_journal", "journal_of_run"),
        ("count_replaced_with_parts", "journal_of_run"),
        ("drop_journals_of_forks", "runs_that_rest"),
        ("runs+oldest", "runs_in_order"),
        ("runs+newest", "runs_in_order"),
        ("runs+after_newest+newest", "runs_in_order"),
        ("runs+updated", "runs_by_update"),
        ("runs+requests+oldest", "runs_with_requests"),
        ("runs+parent+oldest", "runs_of_parent"),
        ("count_by_status", "runs_of_status"),
        ("runs+workflow+newest", "runs_of_workflow"),
        ("runs+status+newest", "runs_of_status"),
        ("mark", "inbox_in_order"),
        ("newest_command", "inbox_in_order"),
        ("commands", "inbox_in_order"),
        ("command", "inbox_by_id"),
        ("has_command", "inbox_by_id"),
        ("drop_command", "inbox_by_id"),
        ("batches", "events_of_run"),
        ("prune_events_but_newest", "events_of_run"),
        ("prune_events_older", "events_of_run"),
        ("runs+halt+newest", "runs_halted"),
        ("owners", "runs_owned"),
        ("next_wake", "runs_to_wake"),
    ],
)
def test_hot_statements_use_an_index(tmp_path: Path, name: str, index: str) -> None:
    plan = plan_of(tmp_path / "runs.db", name)
    assert any(f"INDEX {index} (tenant=?" in step for step in plan)
    assert "TEMP B-TREE" not in str(plan)


BY_PLACE = "SEARCH checkpoints USING INDEX checkpoints_of_run (tenant=? AND run_id=? AND position=?)"
BY_NAME = "SEARCH checkpoints USING INDEX checkpoints_by_name (tenant=? AND checkpoint_id=?)"


@pytest.mark.parametrize("name", ["checkpoint", "advance_run", "commit_run", "forks_that_rest", "finished_runs"])
def test_a_checkpoint_is_found_by_its_place_or_by_its_name(tmp_path: Path, name: str) -> None:
    searched = [step for step in plan_of(tmp_path / "runs.db", name) if step.startswith("SEARCH checkpoints")]
    assert searched == [BY_PLACE, BY_NAME]


def parameters_of(statement: str) -> dict[str, int]:
    return dict.fromkeys(re.findall(r":(\w+)", statement), 0)


def plan_of(path: Path, name: str) -> list[str]:
    with contextlib.closing(empty_database(path)) as connection:
        return explained(connection, statement_text(named_statements("sqlite"), name))


def explained(connection: sqlite3.Connection, statement: str) -> list[str]:
    rows = connection.execute(f"EXPLAIN QUERY PLAN {statement}", parameters_of(statement))
    return [str(row[3]) for row in rows]


TABLES = {"runs", "fork", "checkpoints", "parts", "journal", "inbox", "events", "counters"}


def test_no_statement_scans_a_whole_table(tmp_path: Path) -> None:
    with contextlib.closing(empty_database(tmp_path / "runs.db")) as connection:
        plans = {name: explained(connection, statement) for name, statement in whole_statements().items()}
    scanned = {name: {step.split()[1] for step in plan if step.startswith("SCAN ")} for name, plan in plans.items()}
    assert len(scanned) > 50
    assert {name: tables & TABLES for name, tables in scanned.items() if tables & TABLES} == {}


def test_due_runs_are_found_among_runs_that_can_go_on(tmp_path: Path) -> None:
    searched = [step for step in plan_of(tmp_path / "runs.db", "due") if step.startswith("SEARCH runs")]
    assert searched == [
        "SEARCH runs USING INDEX runs_ready (tenant=?)",
        "SEARCH runs USING INDEX runs_to_wake (tenant=? AND wake_at>? AND wake_at<?)",
        "SEARCH runs USING INDEX runs_owned (tenant=? AND owner_id=?)",
        "SEARCH runs USING INDEX sqlite_autoindex_runs_1 (tenant=? AND run_id=?)",
    ]


async def test_a_database_is_in_wal_mode_and_says_whose_it_is(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    store = await store_with_a_run(path)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        pragmas = [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "application_id")]
        version = connection.execute("PRAGMA user_version").fetchone()[0]
    assert pragmas == ["wal", int.from_bytes(b"perd")]
    assert version == len(migrations("sqlite"))
    await store.close()


async def test_a_damaged_run_does_not_stop_the_others(tmp_path: Path) -> None:
    path, clock = tmp_path / "runs.db", ManualClock()
    store = SqliteStore(path, retention=Retention(finished_runs=KeepFor(timedelta(days=1))), clock=clock)
    for name in ("damaged 1", "damaged 2", "sound"):
        run = await RunDriver.start(store, clock, name)
        await run.commit(settled=True, status="sleeping", wake_at="2024-01-01" if name == "sound" else "2023-01-01")
        await run.release()
        clock.advance(timedelta(seconds=1))
    change(path, "UPDATE runs SET created_at = 'x' WHERE run_id LIKE 'damaged%'")
    found = await store.due(at="2024-02", workflow_names=["flow"], limit=1)
    assert [each.record.run_id for each in found] == ["sound"]
    assert await store.next_wake(after="2022", workflow_names=["flow"]) == "2024-01-01"
    clock.advance(timedelta(days=2))
    busy = await RunDriver.start(store, clock, "busy")
    await busy.commit()
    assert await store.run("sound") is None
    with pytest.raises(CheckpointDamagedError, match="'damaged 1'"):
        await store.run("damaged 1")
    listed = {record.run_id: record.halt for record in await store.runs()}
    damage = listed["damaged 1"]
    assert damage is not None
    assert "not what was written" in damage.reason
    await store.close()


class Narrow(SqliteDatabase):
    """A database that takes no large values."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 100_000)


async def test_a_value_that_is_too_large_fails_what_it_belongs_to_and_nothing_else(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "runs.db", database=Narrow)
    runs = [await RunDriver.start(store, ManualClock(), name) for name in ("before", "large", "after")]
    values = [{"a": raw_blob(b"x" * size)} for size in (10, 200_000, 10)]
    commits = [run.commit(value) for run, value in zip(runs, values, strict=True)]
    ends = await asyncio.gather(*commits, return_exceptions=True)
    assert [ends[0], ends[2]] == ["before@0", "after@0"]
    assert isinstance(ends[1], CheckpointWriteError)
    assert "'large'" in str(ends[1])
    assert list(await store.ids()) == ["before@0", "after@0"]
    await runs[1].commit()
    assert (await runs[1].record()).head == "large@0"
    await store.close()
