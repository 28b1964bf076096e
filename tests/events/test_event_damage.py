"""Events that are not as they were written: an error that names the commit, never other events."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any

import pytest
from tests.events.samples import LARGE, SHOP, Cart, Teller, numbered

from perdure.errors import CheckpointDamagedError, EventsForgottenError, WorkflowException
from perdure.storage import FileStore, SqliteStore, committed_events

if TYPE_CHECKING:
    from pathlib import Path

    from perdure.storage import Store

TOLD = [(1, "a"), (2, Cart("ada", ["bread"])), (3, "c"), (4, Cart("bob", ["x" * LARGE])), (5, "e")]


async def tell(store: Store) -> None:
    """Three commits, of which the second tells most."""
    run = await Teller.start(store)
    await run.tell(TOLD[0][1])
    await run.tell(*(data for _, data in TOLD[1:4]))
    await run.tell(TOLD[4][1])
    await run.run.release()
    await store.close()


async def log(store: Store) -> list[tuple[int | None, Any]]:
    return await numbered(committed_events(store, lambda: SHOP, "r"))


def change(path: Path, statement: str, *values: object) -> None:
    connection = sqlite3.connect(path)
    with connection:
        assert connection.execute(statement, values).rowcount == 1
    connection.close()


@pytest.fixture
async def database(tmp_path: Path) -> Path:
    await tell(SqliteStore(tmp_path / "runs.db"))
    return tmp_path / "runs.db"


async def test_every_flipped_byte_of_a_stored_batch_is_noticed(database: Path) -> None:
    connection = sqlite3.connect(database)
    (original,) = connection.execute("SELECT data FROM events WHERE first = 2").fetchone()
    connection.close()
    store = SqliteStore(database)
    for place in range(len(original)):
        flipped = bytearray(original)
        flipped[place] ^= 1 << (place % 8)
        change(database, "UPDATE events SET data = ? WHERE first = 2", bytes(flipped))
        with pytest.raises(CheckpointDamagedError, match="r@1"):
            await log(store)
    change(database, "UPDATE events SET data = ? WHERE first = 2", original)
    assert await log(store) == TOLD
    await store.close()


@pytest.mark.parametrize(
    ("column", "value"),
    [("count", 2), ("count", 4), ("refs", "[]"), ("refs", "{"), ("checksum", ""), ("data", b""), ("data", "text")],
)
async def test_a_batch_with_another_value_in_a_column_is_named(database: Path, column: str, value: object) -> None:
    change(database, f"UPDATE events SET {column} = ? WHERE first = 2", value)
    store = SqliteStore(database)
    with pytest.raises(CheckpointDamagedError, match="r@1"):
        await log(store)
    await store.close()


@pytest.mark.parametrize("first", [1, 2, 5])
async def test_a_batch_that_is_gone_is_never_passed_over(database: Path, first: int) -> None:
    change(database, "DELETE FROM events WHERE first = ?", first)
    store = SqliteStore(database)
    with pytest.raises((CheckpointDamagedError, EventsForgottenError)):
        await log(store)
    await store.close()


@pytest.mark.parametrize("statement", ["UPDATE parts SET data = x'7b7d'", "DELETE FROM parts"])
async def test_a_blob_that_is_changed_or_gone_is_named_by_the_commit_that_told_it(
    database: Path, statement: str
) -> None:
    store = SqliteStore(database)
    (batch,) = (each for each in await store.events("r") if each.refs)
    for ref in batch.refs:
        change(database, f"{statement} WHERE hash = ?", ref)
    with pytest.raises(CheckpointDamagedError, match="r@1"):
        await log(store)
    await store.close()


def documents_and_blobs(directory: Path) -> list[Path]:
    documents = sorted(directory.glob("*.json"))
    blobs = [path for path in (directory / ".perdure" / "parts").rglob("*") if path.is_file()]
    assert (len(documents), len(blobs)) == (3, 1)
    return [*documents, *blobs]


async def test_files_that_are_changed_tell_the_same_events_or_an_error(tmp_path: Path) -> None:
    await tell(FileStore(tmp_path))
    store = FileStore(tmp_path)
    noticed = 0
    for path in documents_and_blobs(tmp_path):
        original = path.read_bytes()
        for place in range(0, len(original), max(7, len(original) // 100)):
            path.write_bytes(original[:place] + bytes([original[place] ^ 1]) + original[place + 1 :])
            try:
                assert await log(store) == TOLD
            except WorkflowException:
                noticed += 1
        path.write_bytes(original)
    assert noticed > 100
    assert await log(store) == TOLD
    await store.close()
