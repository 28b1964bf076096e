"""What is particular to the PostgreSQL store: its schema, its connection string, its text, its plans."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import traceback
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from psycopg import sql
from tests.postgres_server import needs_postgres, shared_server

from perdure.errors import BlobDamagedError, CheckpointDamagedError, CheckpointWriteError, WorkflowCheckpointException
from perdure.storage import PostgresStore
from perdure.storage.postgres.target import escape_text, unescape_text
from perdure.storage.sql.database import named_statements
from perdure.testing.stores import ManualClock, RunDriver, command, finished, text_blob

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = needs_postgres

PASSWORD = "hunter2 %2"
ENCODED = "hunter2%20%252"


def change(schema: str, statement: str) -> None:
    with contextlib.closing(shared_server().connect()) as connection:
        connection.execute(sql.SQL("SET search_path = {}").format(sql.Identifier(schema)))
        connection.execute(statement.encode())


async def test_a_schema_of_a_later_perdure_is_refused() -> None:
    schema = shared_server().fresh_schema()
    store = PostgresStore(shared_server().dsn, schema=schema)
    await store.ids()
    await store.close()
    change(schema, "UPDATE schema_version SET version = 1000")
    with pytest.raises(WorkflowCheckpointException, match=r"version 1000.*upgrade perdure"):
        await store.ids()
    await store.close()


@pytest.mark.parametrize("table", ["runs (x TEXT)", "customers (x TEXT)", "schema_version (version TEXT)"])
async def test_a_schema_of_another_program_is_refused(table: str) -> None:
    schema = shared_server().fresh_schema()
    shared_server().execute(f"CREATE SCHEMA {schema}")
    change(schema, f"CREATE TABLE {table}")
    store = PostgresStore(shared_server().dsn, schema=schema)
    with pytest.raises(WorkflowCheckpointException, match="another program; choose another schema"):
        await store.ids()
    await store.close()


@pytest.mark.parametrize("schema", ['we"ird; DROP', "größe", "select", "a b", "x" * 63])
async def test_any_name_can_be_that_of_the_schema(schema: str) -> None:
    store = PostgresStore(shared_server().dsn, schema=schema)
    run = await RunDriver.start(store, ManualClock(), "r")
    await run.commit({"a": text_blob("x")})
    assert list(await store.ids()) == ["r@0"]
    await run.release()
    assert await store.remove("r")
    await store.close()


@pytest.mark.parametrize("schema", ["", "$user", "a\0b", "\ud800", "x" * 64])
def test_ambiguous_schema_names_are_refused(schema: str) -> None:
    with pytest.raises(WorkflowCheckpointException, match="can't be the name of a schema"):
        PostgresStore(shared_server().dsn, schema=schema)


@pytest.mark.parametrize("text", ["", "plain", "\0", "\ud800", "a\udfff\0b", "\ufdd0", "\ufdd00000", "ä€𝄞", "\\u0000"])
def test_every_text_can_be_kept(text: str) -> None:
    kept = escape_text(text)
    assert unescape_text(kept) == text
    assert "\0" not in kept
    assert kept.encode().decode() == kept


async def test_names_and_keys_may_be_longer_than_an_entry_of_an_index() -> None:
    long = "x" * 50_000
    store = PostgresStore(shared_server().dsn, schema=shared_server().fresh_schema())
    run = await RunDriver.start(store, ManualClock(), "r", workflow_name=long)
    await run.commit()
    await run.note(finished(f"{long}a", "1"), finished(f"{long}b", "2"), finished(f"{long}a", "3"))
    assert [record.data for record in await store.journal("r")] == [b"3", b"2"]
    first = await store.post("r", command(long, "1"))
    assert await store.post("r", command(long, "2")) == first
    latest = await store.latest(workflow_name=long)
    assert latest is not None
    assert latest.workflow_name == long
    await store.close()


async def test_a_write_that_the_server_refuses_is_the_only_one_that_fails() -> None:
    store = PostgresStore(shared_server().dsn, schema=shared_server().fresh_schema())
    runs = [await RunDriver.start(store, ManualClock(), run_id) for run_id in "abc"]
    commits = [run.next_commit() for run in runs]
    commits[1] = replace(commits[1], manifest=replace(commits[1].manifest, iteration_count=2**70))
    written = [run.write(commit) for run, commit in zip(runs, commits, strict=True)]
    ends = await asyncio.gather(*written, return_exceptions=True)
    assert (ends[0], ends[2]) == ("a@0", "c@0")
    assert isinstance(ends[1], CheckpointWriteError)
    assert sorted(await store.ids()) == ["a@0", "c@0"]
    await store.close()


async def test_password_is_never_printed() -> None:
    store = PostgresStore(f"postgresql://user:{ENCODED}@127.0.0.1:1/database", patience_seconds=0.0)
    assert "127.0.0.1:1/database/perdure" in store.place
    with pytest.raises(WorkflowCheckpointException, match="can't be reached") as caught:
        await store.ids()
    told = "".join(traceback.format_exception(caught.value))
    for text in (store.place, repr(store), repr(vars(store)), told):
        assert "hunter2" not in text
    await store.close()


@pytest.mark.parametrize("dsn", ["postgresql://user:hun ter2@host/x", "pass=hunter2", "hunter2", "host=x hunter2"])
def test_unreadable_connection_string_is_not_shown(dsn: str) -> None:
    with pytest.raises(WorkflowCheckpointException, match="can't be read") as caught:
        PostgresStore(dsn)
    assert "ter2" not in "".join(traceback.format_exception_only(caught.value))
    assert caught.value.__suppress_context__


async def test_missing_database_is_reported_at_once() -> None:
    store = PostgresStore(shared_server().dsn.replace("/postgres?", "/nowhere?"), patience_seconds=1e6)
    with pytest.raises(WorkflowCheckpointException, match='"nowhere" does not exist'):
        await store.ids()
    await store.close()


async def test_a_database_of_another_encoding_is_refused() -> None:
    name = shared_server().fresh_schema()
    shared_server().execute(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'SQL_ASCII'")
    store = PostgresStore(shared_server().dsn.replace("/postgres?", f"/{name}?"))
    with pytest.raises(WorkflowCheckpointException, match=r"SQL_ASCII.*ENCODING 'UTF8'"):
        await store.ids()
    await store.close()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("service=one", "service=two"),
        ("postgresql:///?service=one", "postgresql:///"),
        ("host=h hostaddr=10.0.0.1", "host=h hostaddr=10.0.0.2"),
        ("dbname=x", "host=localhost dbname=x"),
        ("host=h dbname=a/b", "host=h dbname=a"),
        ("host=h,i", "host=h"),
        ("host=h port=1", "host=h port=2"),
    ],
)
def test_two_databases_are_two_places(one: str, other: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    services = tmp_path / "services"
    services.write_text("[one]\nhost=h1\ndbname=d\n[two]\nhost=h2\ndbname=d\n", encoding="utf-8")
    monkeypatch.setenv("PGSERVICEFILE", str(services))
    assert PostgresStore(one).place != PostgresStore(other).place
    assert PostgresStore("service=one").place == PostgresStore("host=h1 dbname=d").place


def test_connection_string_with_an_unknown_service_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGSERVICEFILE", str(tmp_path / "nowhere"))
    with pytest.raises(WorkflowCheckpointException, match="check the service"):
        PostgresStore("service=one password=hunter2")


def test_missing_driver_library_error_says_how_to_install_it() -> None:
    script = (
        "import ctypes.util; ctypes.util.find_library = lambda name: None\n"
        "from perdure.storage import PostgresStore\nPostgresStore('postgresql://host/x')"
    )
    environment = {**os.environ, "PSYCOPG_IMPL": "python"}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    assert "needs the library libpq" in done.stderr
    assert "pip install 'psycopg[binary]'" in done.stderr


@pytest.mark.parametrize("module", ["psycopg", "psycopg_pool"])
def test_missing_driver_error_says_how_to_install_it(module: str) -> None:
    script = f"import sys; sys.modules[{module!r}] = None; from perdure.storage import PostgresStore; "
    script += "PostgresStore('postgresql://host/x')"
    done = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True)
    assert "pip install 'perdure[postgres]'" in done.stderr


def test_a_program_that_leaves_a_store_open_ends_quietly() -> None:
    script = (
        "import asyncio, sys; from perdure.storage import PostgresStore; "
        "from perdure.testing.stores import RunDriver, ManualClock\n"
        "store = PostgresStore(sys.argv[1], schema=sys.argv[2])\n"
        "run = asyncio.run(RunDriver.start(store, ManualClock(), 'r'))\n"
        "print(asyncio.run(run.commit()))\n"
    )
    arguments = [shared_server().dsn, shared_server().fresh_schema()]
    done = subprocess.run([sys.executable, "-c", script, *arguments], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "r@0\n", "")


@pytest.mark.parametrize(
    ("damage", "where"),
    [
        ("UPDATE checkpoints SET header = '\\x7b7d' WHERE checkpoint_id = 'r@1'", "r@1"),
        ("UPDATE checkpoints SET toc = '{' WHERE checkpoint_id = 'r@1'", "r@1"),
        ("UPDATE checkpoints SET iteration_count = 7 WHERE checkpoint_id = 'r@1'", "r@1"),
        ("UPDATE runs SET nonce = 'x'", "r"),
        ("UPDATE runs SET checkpoints = 3", "r@1"),
    ],
)
async def test_damage_is_an_error_that_names_what_is_damaged(damage: str, where: str) -> None:
    schema = shared_server().fresh_schema()
    store = PostgresStore(shared_server().dsn, schema=schema)
    run = await RunDriver.start(store, ManualClock(), "r")
    await run.commit()
    await run.commit()
    change(schema, damage)
    with pytest.raises(CheckpointDamagedError, match=f"'{where}'"):
        await read_all(store)
    await store.close()


async def read_all(store: PostgresStore) -> None:
    await store.run("r")
    await store.manifests(run_id="r")


@pytest.mark.parametrize("refs", ["", "[", "[7]", "{}", '["a" "b"]'])
async def test_damaged_references_are_an_error_and_nothing_is_swept(refs: str) -> None:
    schema = shared_server().fresh_schema()
    store = PostgresStore(shared_server().dsn, schema=schema)
    run = await RunDriver.start(store, ManualClock(), "r")
    leaf, unneeded = text_blob("leaf"), text_blob("unneeded")
    blob = text_blob("x", leaf)
    await run.commit({"a": blob}, leaf, unneeded)
    change(schema, f"UPDATE parts SET refs = '{refs}' WHERE hash = '{blob.hash}'")
    with pytest.raises(BlobDamagedError, match=blob.hash):
        await store.blobs([blob.hash])
    if refs != "[7]":
        with pytest.raises(WorkflowCheckpointException):
            await store.collect()
        assert list(await store.blobs([leaf.hash])) == [leaf.hash]
    await store.close()


async def test_due_runs_are_found_without_reading_waiting_runs() -> None:
    schema = shared_server().fresh_schema()
    store = PostgresStore(shared_server().dsn, schema=schema)
    run = await RunDriver.start(store, ManualClock(), "r")
    await run.commit(status="waiting")
    await run.release()
    change(
        schema,
        "INSERT INTO runs (tenant, run_id, workflow_name, created_at, nonce, head, position, settled, status, wake_at, "
        "events, checksum, moment, token, began) "
        "SELECT tenant, 'r' || n, workflow_name, created_at, nonce, head, position, settled, status, '9999', "
        "events, checksum, moment, token, began FROM runs, generate_series(1, 5000) AS n",
    )
    change(schema, "ANALYZE runs")
    plans = {name: plan_of(schema, name) for name in ("due", "next_wake")}
    assert "Seq Scan" not in plans["due"]
    assert "Seq Scan" not in plans["next_wake"]
    assert {"runs_ready", "runs_to_wake", "runs_owned"} <= {name for name in INDEXES if name in plans["due"]}
    await store.close()


INDEXES = ("runs_ready", "runs_to_wake", "runs_owned")


def plan_of(schema: str, name: str) -> str:
    values = {"tenant": "", "at": "2024", "after": "2024", "workflow_names": ["flow"], "owners": ["x"], "limit": 10}
    with contextlib.closing(shared_server().connect()) as connection:
        connection.execute(sql.SQL("SET search_path = {}").format(sql.Identifier(schema)))
        statement = "EXPLAIN (FORMAT JSON) " + named_statements("postgres")[name]
        row = connection.execute(statement.encode(), values).fetchone()
        assert row is not None
        return json.dumps(row[0])
