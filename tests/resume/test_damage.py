"""Damage on disk is an error that names it, never a fallback to an older checkpoint."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from shapes import Tally, asking, counting

from perdure import CheckpointDamagedError, FileCheckpointStorage, SqliteCheckpointStorage, WorkflowCheckpointException

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Storage


async def written(directory: Path, kind: str, *, large: bool = False) -> list[str]:
    """The ids of a run that was written to a storage which is closed again."""
    place = directory / ("checkpoints" if kind == "file" else "checkpoints.db")
    async with FileCheckpointStorage(place) if kind == "file" else SqliteCheckpointStorage(place) as storage:
        tally = Tally()
        tally.seen = list(range(30_000)) if large else []
        await counting(storage, tally=tally).run(1, run_id="r")
        return await storage.list_checkpoint_ids()


def change_sqlite(directory: Path, statement: str, *values: Any) -> None:
    with sqlite3.connect(directory / "checkpoints.db") as connection:
        assert connection.execute(statement, values).rowcount > 0
    connection.close()


async def assert_named(storage: Storage, checkpoint_id: str) -> None:
    """Whoever meets the damaged checkpoint hears its name."""
    for meeting in (
        storage.load(checkpoint_id),
        storage.list_checkpoints(workflow_name="counting"),
        counting(storage).run(checkpoint_id=checkpoint_id),
    ):
        with pytest.raises(CheckpointDamagedError, match=checkpoint_id) as caught:
            await meeting
        assert caught.value.checkpoint_id == checkpoint_id


async def assert_latest_named(storage: Storage, checkpoint_id: str) -> None:
    for meeting in (storage.get_latest(workflow_name="counting"), counting(storage).run(run_id="r")):
        with pytest.raises(CheckpointDamagedError, match=checkpoint_id):
            await meeting


COLUMNS = ["header", "toc", "pieces", "previous_id", "timestamp", "iteration_count", "run_id"]


@pytest.mark.parametrize("column", [*COLUMNS, "checksum", "workflow_name"])
async def test_a_changed_record_in_sqlite_is_named(tmp_path: Path, column: str) -> None:
    ids = await written(tmp_path, "sqlite")
    change_sqlite(tmp_path, f"UPDATE checkpoints SET {column} = ? WHERE checkpoint_id = ?", "spoilt", ids[-1])
    async with SqliteCheckpointStorage(tmp_path / "checkpoints.db") as storage:
        with pytest.raises(CheckpointDamagedError, match=ids[-1]):
            await storage.load(ids[-1])
        if column in {"header", "toc", "pieces", "previous_id", "timestamp", "iteration_count", "checksum"}:
            await assert_named(storage, ids[-1])
            await assert_latest_named(storage, ids[-1])


@pytest.mark.parametrize("column", ["header", "toc", "pieces"])
async def test_every_flipped_bit_of_a_record_in_sqlite_is_noticed(tmp_path: Path, column: str) -> None:
    ids = await written(tmp_path, "sqlite")
    with sqlite3.connect(tmp_path / "checkpoints.db") as connection:
        query = f"SELECT CAST({column} AS BLOB) FROM checkpoints WHERE checkpoint_id = ?"
        (original,) = connection.execute(query, (ids[-1],)).fetchone()
    connection.close()
    async with SqliteCheckpointStorage(tmp_path / "checkpoints.db") as storage:
        for place in range(0, len(original), 7):
            flipped = bytearray(original)
            flipped[place] ^= 1 << (place % 8)
            value = bytes(flipped) if column != "toc" else bytes(flipped).decode("utf-8", "surrogateescape")
            if isinstance(value, str) and not value.isprintable():
                continue
            change_sqlite(tmp_path, f"UPDATE checkpoints SET {column} = ? WHERE checkpoint_id = ?", value, ids[-1])
            with pytest.raises(CheckpointDamagedError, match=ids[-1]):
                await storage.load(ids[-1])


async def test_a_changed_blob_in_sqlite_is_named_by_every_checkpoint_that_needs_it(tmp_path: Path) -> None:
    ids = await written(tmp_path, "sqlite", large=True)
    async with SqliteCheckpointStorage(tmp_path / "checkpoints.db") as storage:
        head = await storage.store.manifest(ids[-1])
    change_sqlite(tmp_path, "UPDATE parts SET data = ? WHERE hash = ?", b"[]", head.toc["executor/tally"])
    async with SqliteCheckpointStorage(tmp_path / "checkpoints.db") as storage:
        with pytest.raises(CheckpointDamagedError, match=ids[-1]):
            await counting(storage).run(run_id="r")
        with pytest.raises(CheckpointDamagedError, match=ids[-1]):
            _ = (await storage.load(ids[-1])).state
        fork = counting(storage)
        assert (await fork.run(checkpoint_id=ids[1])).get_outputs() == [[*range(30_000), 1, 2, 3]]


async def test_a_blob_that_is_gone_is_named_by_the_checkpoint_that_needs_it(tmp_path: Path) -> None:
    ids = await written(tmp_path, "sqlite", large=True)
    async with SqliteCheckpointStorage(tmp_path / "checkpoints.db") as storage:
        head = await storage.store.manifest(ids[-1])
        blobs = await storage.store.blobs([head.toc["executor/tally"]])
    chunk = next(key for key in blobs if key != head.toc["executor/tally"])
    change_sqlite(tmp_path, "DELETE FROM parts WHERE hash = ?", chunk)
    async with SqliteCheckpointStorage(tmp_path / "checkpoints.db") as storage:
        with pytest.raises(CheckpointDamagedError, match=ids[-1]):
            await counting(storage).run(run_id="r")


def files_of(directory: Path, checkpoint_id: str) -> Path:
    (found,) = (directory / "checkpoints").glob(f"{checkpoint_id}.json")
    return found


async def test_every_flipped_bit_of_a_file_is_noticed(tmp_path: Path) -> None:
    ids = await written(tmp_path, "file")
    path = files_of(tmp_path, ids[-1])
    original = path.read_bytes()
    async with FileCheckpointStorage(tmp_path / "checkpoints") as storage:
        for place in range(0, len(original), 13):
            flipped = bytearray(original)
            flipped[place] ^= 1 << (place % 8)
            path.write_bytes(bytes(flipped))
            if _same_data(original, bytes(flipped)):
                continue
            with pytest.raises(CheckpointDamagedError, match=ids[-1]):
                (await storage.load(ids[-1])).to_dict()


def _same_data(first: bytes, second: bytes) -> bool:
    """Whether two texts say the same: a space may have become another one."""
    try:
        return json.loads(first) == json.loads(second)
    except ValueError:
        return False


@pytest.mark.parametrize("content", [b"", b"{", b"null", b"[]", b"{}", b'"text"', b"\xff\xfe", b'{"manifest": 5}'])
async def test_a_file_that_is_no_checkpoint_any_more_is_named(tmp_path: Path, content: bytes) -> None:
    ids = await written(tmp_path, "file")
    files_of(tmp_path, ids[-1]).write_bytes(content)
    async with FileCheckpointStorage(tmp_path / "checkpoints") as storage:
        await assert_named(storage, ids[-1])
        await assert_latest_named(storage, ids[-1])


async def test_a_file_that_is_gone_is_no_step_back_for_its_run(tmp_path: Path) -> None:
    ids = await written(tmp_path, "file")
    files_of(tmp_path, ids[-1]).unlink()
    async with FileCheckpointStorage(tmp_path / "checkpoints") as storage:
        with pytest.raises(WorkflowCheckpointException, match=ids[-1]):
            await storage.load(ids[-1])
        with pytest.raises(WorkflowCheckpointException, match=ids[-1]):
            await counting(storage).run(checkpoint_id=ids[-1])


@pytest.mark.parametrize("damage", ["flipped", "gone", "short"])
async def test_a_damaged_blob_beside_the_files_is_named(tmp_path: Path, damage: str) -> None:
    ids = await written(tmp_path, "file", large=True)
    blobs = [path for path in (tmp_path / "checkpoints" / ".perdure" / "parts").rglob("*") if path.is_file()]
    assert blobs
    for path in blobs:
        data = path.read_bytes()
        match damage:
            case "flipped":
                path.write_bytes(bytes([data[0] ^ 1]) + data[1:])
            case "short":
                path.write_bytes(data[:-1])
            case _:
                path.unlink()
    async with FileCheckpointStorage(tmp_path / "checkpoints") as storage:
        with pytest.raises(CheckpointDamagedError, match=ids[-1]):
            await counting(storage).run(run_id="r")


async def test_an_older_checkpoint_can_be_chosen_by_its_id_beside_a_damaged_one(
    open_on_disk: Callable[..., Storage], tmp_path: Path
) -> None:
    async with open_on_disk() as storage:
        await counting(storage).run(1, run_id="r")
        ids = await storage.list_checkpoint_ids()
        kind = "file" if isinstance(storage, FileCheckpointStorage) else "sqlite"
    if kind == "file":
        files_of(tmp_path, ids[-1]).write_bytes(b"{")
    else:
        change_sqlite(tmp_path, "UPDATE checkpoints SET header = ? WHERE checkpoint_id = ?", b"{", ids[-1])
    async with open_on_disk() as storage:
        fork = counting(storage)
        assert (await fork.run(checkpoint_id=ids[1])).get_outputs() == [[1, 2, 3]]


async def test_a_checkpoint_of_a_later_format_is_refused_by_its_number(tmp_path: Path) -> None:
    ids = await written(tmp_path, "sqlite")
    async with SqliteCheckpointStorage(tmp_path / "checkpoints.db") as storage:
        manifest = await storage.store.manifest(ids[-1])
    header = json.loads(manifest.header)
    header["format"] = 99
    text = json.dumps(header).encode()
    checksum = replace(manifest, header=text).checksum()
    change_sqlite(
        tmp_path, "UPDATE checkpoints SET header = ?, checksum = ? WHERE checkpoint_id = ?", text, checksum, ids[-1]
    )
    async with SqliteCheckpointStorage(tmp_path / "checkpoints.db") as storage:
        for meeting in (
            storage.load(ids[-1]),
            storage.get_latest(workflow_name="counting"),
            storage.list_checkpoints(workflow_name="counting"),
            counting(storage).run(run_id="r"),
        ):
            with pytest.raises(WorkflowCheckpointException, match=f"{ids[-1]}' has format 99, .* reads up to 2"):
                await meeting


async def test_the_files_can_be_read_as_plain_json(tmp_path: Path) -> None:
    async with FileCheckpointStorage(tmp_path) as storage:
        await asking(storage).run(["hue"])
        ids = await storage.list_checkpoint_ids()
    document = json.loads((tmp_path / f"{ids[-1]}.json").read_text())
    assert document["workflow_name"] == "asking"
    assert document["checkpoint_id"] == ids[-1]
    assert document["iteration_count"] == 1
    assert list(document["pending_request_info_events"]) == ["about-hue"]
    assert document["pending_request_info_events"]["about-hue"]["request_id"] == "about-hue"


@pytest.mark.parametrize("checkpoint_id", ["../outside", "/etc/passwd", "a/../../b", "..", ""])
async def test_an_id_that_tries_to_leave_the_directory_is_refused(tmp_path: Path, checkpoint_id: str) -> None:
    (tmp_path / "outside.json").write_text("{}")
    async with FileCheckpointStorage(tmp_path / "checkpoints") as storage:
        with pytest.raises(WorkflowCheckpointException):
            await storage.load(checkpoint_id)
        with pytest.raises(WorkflowCheckpointException):
            await storage.delete(checkpoint_id)
    assert (tmp_path / "outside.json").read_text() == "{}"
