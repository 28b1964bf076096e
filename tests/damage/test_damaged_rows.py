"""Every byte of every column of the SQLite store, changed or cut off through SQL."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import pytest
from smallrun import LIMIT_SECONDS, RUN_ID, cuts, flips, noticed, read_runs, stride

from perdure import SqliteCheckpointStorage
from perdure.storage.sql.database import migrations

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perdure.errors import WorkflowException

pytestmark = pytest.mark.timeout(LIMIT_SECONDS)

Column: TypeAlias = tuple[str, str]

UNREAD = {"run_tags", "hosts", "host_workflows", "run_blocks", "upkeep"}

UNCHECKED: dict[Column, str] = {
    ("checkpoints", "sequence"): "the order of commits: a row is found by it, and it is nowhere else",
    ("checkpoints", "moment"): "the timestamp once more, for the retention alone",
    ("checkpoints", "settled"): "what the head says, once more, for rewinding alone",
    ("checkpoints", "status"): "what the head says, once more, for rewinding alone",
    ("checkpoints", "wake_at"): "what the head says, once more, for rewinding alone",
    ("counters", "tenant"): "numbers that are not used twice; nothing is read by them",
    ("counters", "name"): "numbers that are not used twice; nothing is read by them",
    ("counters", "value"): "numbers that are not used twice; nothing is read by them",
    ("events", "batch"): "a row's own number, without a meaning",
    ("events", "moment"): "for the retention alone",
    ("journal", "ordinal"): "the order of first recording; records are found by their keys",
    ("parts", "epoch"): "for the collection alone",
    ("parts", "kind"): "a hint for stores that people can read",
    ("runs", "attempts"): "of claims, which end with their processes",
    ("runs", "began"): "the order in which runs are listed",
    ("runs", "moment"): "for the retention and for listings by time",
    ("runs", "token"): "of claims, which end with their processes",
    ("runs", "owner_id"): "of claims, which end with their processes",
    ("runs", "owner_host"): "of claims, which end with their processes",
    ("runs", "owner_boot"): "of claims, which end with their processes",
    ("runs", "owner_pid"): "of claims, which end with their processes",
}
"""Columns on which no state depends. All others are covered by a checksum, or found to be missing."""


def columns() -> list[Column]:
    """Every column of every table that the migrations make."""
    connection = sqlite3.connect(":memory:")
    for script in (*migrations("sqlite").values(), *migrations("sqlite", additive=True).values()):
        connection.executescript(script)
    # Tags are an index of those in the records of the runs, and hosts are no part of any run.
    names = [table for table in tables(connection) if table not in UNREAD]
    found = [(table, column) for table in names for column in columns_of(connection, table)]
    connection.close()
    return found


def tables(connection: sqlite3.Connection) -> list[str]:
    query = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%' ORDER BY name"
    return [str(row[0]) for row in connection.execute(query)]


def columns_of(connection: sqlite3.Connection, table: str) -> list[str]:
    return [str(row[0]) for row in connection.execute("SELECT name FROM pragma_table_info(?)", (table,))]


class Damager:
    """Changes one cell at a time, and puts it right again."""

    def __init__(self, path: Path, column: Column) -> None:
        self.table, self.column = column
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._connection.execute("PRAGMA busy_timeout = 10000")

    def cells(self) -> list[tuple[int, str, object]]:
        query = f"SELECT rowid, typeof({self.column}), {self.column} FROM {self.table}"
        return [
            (rowid, kind, value.encode() if isinstance(value, str) else value)
            for rowid, kind, value in self._connection.execute(query)
        ]

    def put(self, rowid: int, kind: str, value: object) -> int | None:
        """Write a cell; where it is from then on, None if the table does not take it."""
        cast = "CAST(? AS TEXT)" if kind == "text" else "?"
        statement = f"UPDATE {self.table} SET {self.column} = {cast} WHERE rowid = ? RETURNING rowid"
        try:
            ((changed,),) = self._connection.execute(statement, (value, rowid)).fetchall()
        except sqlite3.IntegrityError:
            return None
        return int(changed)

    def close(self) -> None:
        self._connection.close()


def spoilt(kind: str, value: object) -> Iterator[object]:
    """Other values of a cell, one byte or a cut away from this one."""
    match value:
        case b"":
            yield from (b"x", b"\xff")
        case bytes():
            yield from flips(value, stride=stride(len(value), most=20))
            yield from cuts(value, stride=stride(len(value), most=8))
        case int() | float():
            yield from (value + 1, value - 1, value + 256, -value - 1)
        case _:
            assert kind == "null"
            yield from (b"", b"x", 0)


def is_named(error: WorkflowException, spoilt_name: object) -> bool:
    """Whether it says which run or checkpoint, also if that is what was damaged."""
    is_spoilt = isinstance(spoilt_name, bytes) and repr(spoilt_name.decode("utf-8", "surrogateescape")) in str(error)
    return RUN_ID in str(error) or is_spoilt


@pytest.mark.parametrize("column", [each for each in columns() if each not in UNCHECKED], ids=".".join)
async def test_a_damaged_cell_is_an_error_that_names_what_it_is_of(
    database: Path, tmp_path: Path, column: Column
) -> None:
    path = Path(shutil.copy(database, tmp_path / "runs.db"))
    storage, damager = SqliteCheckpointStorage(path), Damager(path, column)
    undamaged = await read_runs(storage)
    damaged = 0
    try:
        for rowid, kind, value in damager.cells():
            for other in spoilt(kind, value):
                if (at := damager.put(rowid, kind, other)) is not None:
                    error = await noticed(storage, undamaged)
                    assert error, f"{value!r} became {other!r}, and nobody noticed"
                    assert is_named(error, other), f"{value!r} became {other!r}: {error}"
                    damager.put(at, kind, value)
                    damaged += 1
    finally:
        damager.close()
        await storage.close()
    assert damaged > 0, f"there is nothing in {'.'.join(column)}"


@pytest.mark.parametrize("column", UNCHECKED, ids=".".join)
async def test_a_damaged_cell_of_no_consequence_changes_no_state(
    database: Path, tmp_path: Path, column: Column
) -> None:
    path = Path(shutil.copy(database, tmp_path / "runs.db"))
    storage, damager = SqliteCheckpointStorage(path), Damager(path, column)
    head = (await read_runs(storage)).head
    try:
        for rowid, kind, value in damager.cells():
            for other in spoilt(kind, value):
                if (at := damager.put(rowid, kind, other)) is not None:
                    assert (await read_runs(storage)).head == head
                    damager.put(at, kind, value)
    finally:
        damager.close()
        await storage.close()


def test_every_column_is_of_consequence_or_says_why_not() -> None:
    assert UNCHECKED.keys() <= set(columns())
