"""What is particular to the file store: its files, and what happens to them."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from typing_extensions import override

from perdure import FileCheckpointStorage, Host
from perdure.errors import CheckpointDamagedError, WorkflowCheckpointException
from perdure.records import KeepFor, KeepLast, LatestOnly, Retention, digest
from perdure.storage import Disk, FileStore
from perdure.storage.file import FileBackend, lines
from perdure.testing.stores import (
    LEAVING_IDS,
    ODD_IDS,
    ManualClock,
    RunDriver,
    command,
    events,
    finished,
    new_run,
    raw_blob,
    text_blob,
)

if TYPE_CHECKING:
    from pathlib import Path


class CountingDisk(Disk):
    """Counts what is read and written."""

    def __init__(self) -> None:
        self.reads = 0
        self.listings = 0
        self.written = 0
        self.syncs: list[str] = []
        self.changes: list[str] = []

    def reset(self) -> None:
        self.reads = self.listings = self.written = 0
        self.syncs.clear()
        self.changes.clear()

    @override
    def read(self, path: Path, *, start: int = 0, end: int | None = None) -> bytes:
        self.reads += 1
        return super().read(path, start=start, end=end)

    @override
    def names(self, directory: Path) -> list[str]:
        self.listings += 1
        return super().names(directory)

    @override
    def write_new(self, path: Path, data: bytes) -> None:
        self.written += len(data)
        self.syncs.append(path.name)
        self.changes.append(path.name)
        super().write_new(path, data)

    @override
    def write_at(self, path: Path, offset: int, data: bytes, *, sync: bool) -> None:
        self.written += len(data)
        self.changes.append(path.name)
        if sync:
            self.syncs.append(path.name)
        super().write_at(path, offset, data, sync=sync)

    @override
    def sync_directory(self, path: Path) -> None:
        self.syncs.append(f"{path.name}/")
        super().sync_directory(path)


def files_in(directory: Path) -> set[str]:
    return {path.name + ("/" if path.is_dir() else "") for path in directory.iterdir()}


async def start(store: FileStore, run_id: str = "r") -> RunDriver:
    return await RunDriver.start(store, ManualClock(), run_id)


async def test_a_checkpoint_is_a_readable_file(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    run = await start(store)
    small, large = text_blob("small"), raw_blob(b"\0" * 10_000)
    await run.commit({"state/a": small, "state/b": large}, settled=True)
    document = json.loads((tmp_path / "r@0.json").read_text("utf-8"))
    assert document["note"] == "für dich"
    assert document["numbers"] == [1, 2.5, None]
    assert document["manifest"]["workflow_name"] == "flow"
    assert document["manifest"]["checkpoint_id"] == "r@0"
    assert document["toc"] == {"state/a": small.hash, "state/b": large.hash}
    assert document["parts"] == {small.hash: {"refs": [], "value": "small"}}
    assert (tmp_path / ".perdure" / "parts" / large.hash).read_bytes().endswith(large.data)
    await store.close()


async def test_a_damaged_checkpoint_is_an_error_and_is_left_out_of_lists(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = FileStore(tmp_path)
    run = await start(store)
    for step in range(3):
        await run.commit({"a": text_blob(f"v{step}")})
    path = tmp_path / "r@2.json"
    path.write_bytes(path.read_bytes().replace(b'"v2"', b'"v1"'))
    for read in (store.manifest("r@2"), store.manifests(run_id="r")):
        with pytest.raises(CheckpointDamagedError, match="'r@2'"):
            await read
    assert list(await store.ids()) == ["r@0", "r@1"]
    assert "'r@2'" in caplog.text
    with pytest.raises(CheckpointDamagedError, match="'r@2'"):
        await store.latest(workflow_name="flow")
    record = await run.record()
    assert record.head == "r@2", "the head must not step back silently"
    assert await store.delete("r@2")
    assert (await run.record()).head == "r@1"
    assert list(await store.ids()) == ["r@0", "r@1"]
    await store.close()


async def test_a_checkpoint_under_another_name_is_damaged(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    run = await start(store)
    await run.commit()
    (tmp_path / "r@0.json").rename(tmp_path / "r@9.json")
    with pytest.raises(CheckpointDamagedError, match="'r@9'"):
        await store.manifest("r@9")
    assert list(await store.ids()) == []
    await store.close()


async def test_other_files_in_the_directory_are_left_alone(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    strangers = ["notes.txt", "r@1.json.tmp", "x.tmp", ".swap.json", "README"]
    for name in strangers:
        (tmp_path / name).write_text("not ours", "utf-8")
    run = await start(store)
    await run.commit()
    assert list(await store.ids()) == ["r@0"]
    await store.collect()
    assert files_in(tmp_path) == {*strangers, "r@0.json", ".perdure/"}
    await store.close()


async def test_a_json_file_that_is_no_checkpoint_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = FileStore(tmp_path)
    (tmp_path / "mine.json").write_text("{}", "utf-8")
    assert list(await store.manifests()) == []
    assert "'mine'" in caplog.text
    await store.close()


@pytest.mark.parametrize("name", LEAVING_IDS)
async def test_ids_that_lead_out_of_the_directory_are_refused(tmp_path: Path, name: str) -> None:
    store = FileStore(tmp_path / "store")
    run = await start(store)
    for attempt in (
        store.manifest(name),
        store.delete(name),
        store.run(name),
        store.acquire(name, create=new_run(name)),
    ):
        with pytest.raises(WorkflowCheckpointException, match="leads out"):
            await attempt
    with pytest.raises(WorkflowCheckpointException, match="leads out"):
        await run.commit(checkpoint_id=name)
    await store.close()


async def test_odd_ids_stay_inside_the_directory(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "store")
    for name in ODD_IDS:
        run = await start(store, name)
        await run.commit(checkpoint_id=name)
        await run.release()
    assert files_in(tmp_path) == {"store/"}
    files = files_in(tmp_path / "store") - {".perdure/"}
    assert len(files) == len(ODD_IDS)
    assert not any(name.endswith("/") for name in files)
    await store.close()


async def test_the_head_of_a_run_is_found_without_looking_at_the_others(quick_path: Path) -> None:
    disk = CountingDisk()
    store = FileStore(quick_path, disk=disk)
    runs = [await start(store, f"r{number}") for number in range(3)]
    for _ in range(60):
        for run in runs:
            await run.commit()
    await store.close()
    disk.reset()
    record = await store.run("r1")
    assert record is not None
    assert record.head == "r1@59"
    assert disk.reads < 10
    assert disk.listings <= 1, "one to open the store"
    latest = await store.latest(workflow_name="flow")
    assert latest is not None
    assert latest.checkpoint_id == "r2@59"
    assert disk.reads < 30, "a list reads the log of each run, not its checkpoints"
    await store.close()


async def test_size_of_a_commit_does_not_depend_on_the_size_of_the_store(quick_path: Path) -> None:
    disk = CountingDisk()
    store = FileStore(quick_path, disk=disk)
    state = {f"key {number}": text_blob(f"{number} " * 500) for number in range(200)}
    run = await start(store)
    await run.commit(state)
    written: list[int] = []
    for step in range(5):
        disk.reset()
        commit = run.next_commit({**state, "step": text_blob(f"{step}")})
        await run.write(type(commit)(commit.manifest, (text_blob(f"{step}"),), commit.expected_head, settled=False))
        written.append(disk.written)
    assert max(written) < 120_000
    manifest = await store.manifest("r@5")
    assert len(await store.blobs(manifest.toc.values())) == 201
    await store.close()


async def test_logs_are_shortened_when_checkpoints_are_forgotten(quick_path: Path) -> None:
    store = FileStore(quick_path, retention=Retention(checkpoints=KeepLast(3)))
    run = await start(store)
    for _ in range(400):
        await run.commit()
    assert (quick_path / ".perdure" / "runs" / "r.log").stat().st_size < 80 * 600
    assert [manifest.position for manifest in await store.manifests(run_id="r")] == [397, 398, 399]
    assert (await run.record()).position == 399
    await store.close()


async def test_the_latest_checkpoint_of_a_workflow_is_of_any_run(quick_path: Path) -> None:
    store = FileStore(quick_path, retention=Retention(checkpoints=LatestOnly()))
    runs = [await start(store, f"r{number}") for number in range(2)]
    for _ in range(20):
        for run in runs:
            await run.commit()
    latest = await store.latest(workflow_name="flow")
    assert latest is not None
    assert latest.checkpoint_id == "r1@19"
    await store.delete(latest.checkpoint_id)
    latest = await store.latest(workflow_name="flow")
    assert latest is not None
    assert latest.checkpoint_id == "r0@19"
    await store.close()


async def test_a_damaged_log_of_a_run_is_an_error(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    run = await start(store)
    await run.commit()
    await run.commit()
    await run.release()
    log = tmp_path / ".perdure" / "runs" / "r.log"
    log.write_bytes(log.read_bytes().replace(b'"head":"r@1"', b'"head":"r@0"'))
    with pytest.raises(WorkflowCheckpointException, match=r"r\.log"):
        await store.run("r")
    await store.close()


def log_path(directory: Path) -> Path:
    return directory / ".perdure" / "runs" / "r.log"


def forget_commits(directory: Path) -> None:
    """Leave the lines up to the first commit of a log. Earlier releases wrote no lines for most commits."""
    log = log_path(directory)
    log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:2]))


async def test_commits_that_the_log_does_not_tell_of_are_found_by_anyone(quick_path: Path) -> None:
    store = FileStore(quick_path)
    run = await start(store)
    for number in range(20):
        await run.commit({"a": text_blob(f"{number}")}, events=events(f"{number}"))
        if number % 3:
            forget_commits(quick_path)
        stranger = FileStore(quick_path)
        record, latest = await stranger.run("r"), await stranger.latest(workflow_name="flow")
        assert record is not None
        assert latest is not None
        assert (record.head, record.position, record.events) == (f"r@{number}", number, number + 1)
        assert latest.checkpoint_id == f"r@{number}"
        assert [batch.first for batch in await stranger.events("r")] == list(range(1, number + 2))
        await stranger.close()
    await store.close()


async def test_a_log_that_has_lost_more_than_commits_is_an_error_that_names_the_next_checkpoint(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    run = await start(store)
    for _ in range(3):
        await run.commit()
    before = log_path(tmp_path).read_bytes()
    await run.rewind("r@0")
    await run.commit()
    log_path(tmp_path).write_bytes(before)
    for read in (store.run("r"), store.acquire("r"), store.inbox("r"), store.events("r"), store.manifests(run_id="r")):
        with pytest.raises(CheckpointDamagedError, match=r"'r@3'.*lost its end"):
            await read
    await store.close()


async def test_a_file_that_is_gone_from_among_the_newest_is_no_step_back(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    run = await start(store)
    for _ in range(5):
        await run.commit()
    forget_commits(tmp_path)
    (tmp_path / "r@2.json").unlink()
    stranger = FileStore(tmp_path)
    for read in (stranger.run("r"), stranger.acquire("r")):
        with pytest.raises(CheckpointDamagedError, match=r"'r@2'.*gone"):
            await read
    await store.close()
    await stranger.close()


@pytest.mark.parametrize("damaged", [2, 4])
async def test_a_damaged_checkpoint_can_be_deleted(tmp_path: Path, damaged: int) -> None:
    store = FileStore(tmp_path)
    run = await start(store)
    for number in range(5):
        await run.commit(events=events(f"{number}"))
    path = tmp_path / f"r@{damaged}.json"
    path.write_bytes(path.read_bytes().replace(b'"count": 1', b'"count": 2'))
    stranger = FileStore(tmp_path)
    with pytest.raises(CheckpointDamagedError, match=f"'r@{damaged}'"):
        await stranger.events("r")
    assert await stranger.delete(f"r@{damaged}")
    record = await stranger.run("r")
    assert record is not None
    assert record.head == ("r@4" if damaged == 2 else "r@3")
    run.store, run.head, run.position = stranger, record.head, record.position
    await run.reacquire()
    await run.commit()
    assert [manifest.position for manifest in await stranger.manifests(run_id="r")][-1] == record.position + 1
    await store.close()
    await stranger.close()


async def test_unchanged_values_are_written_once(quick_path: Path) -> None:
    disk = CountingDisk()
    store = FileStore(quick_path, disk=disk)
    state = {f"key {number}": text_blob(f"{number} " * 20) for number in range(200)}
    run = await start(store)
    await run.commit(state)
    changed = text_blob("not yet")
    for step in range(3):
        disk.reset()
        changed = text_blob(f"{step}")
        commit = run.next_commit({**state, "changes": changed})
        await run.write(replace(commit, blobs=(changed,)))
    toc_size = sum(len(path) + len(blob.hash) + 10 for path, blob in state.items())
    assert disk.written < toc_size + 5000
    assert len(list((quick_path / ".perdure" / "parts").iterdir())) == 200, "each by its own name"
    await store.close()
    stranger = FileStore(quick_path)
    found = await stranger.blobs((await stranger.manifest("r@3")).roots)
    assert found == {blob.hash: blob.data for blob in (*state.values(), changed)}
    await stranger.close()


async def test_small_blobs_that_share_a_file_are_removed_one_by_one(quick_path: Path) -> None:
    store = FileStore(quick_path, retention=Retention(checkpoints=LatestOnly()))
    run = await start(store)
    state = {f"key {number}": text_blob(f"{number} " * 50) for number in range(100)}
    await run.commit(state)
    await run.commit(state)
    files = {path.stat().st_ino for path in (quick_path / ".perdure" / "parts").iterdir()}
    assert len(files) < 5
    left = dict(list(state.items())[::10])
    await run.commit(left)
    await store.collect()
    assert await store.blobs([blob.hash for blob in state.values()]) == {blob.hash: blob.data for blob in left.values()}
    await run.commit(state)
    assert await store.blobs([blob.hash for blob in state.values()]) == {
        blob.hash: blob.data for blob in state.values()
    }
    await store.close()


async def test_a_damaged_blob_is_an_error(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    run = await start(store)
    blob = raw_blob(b"x" * 9000)
    await run.commit({"a": blob})
    (tmp_path / ".perdure" / "parts" / blob.hash).write_bytes(b"")
    with pytest.raises(WorkflowCheckpointException, match=blob.hash):
        await store.blobs([blob.hash])
    await store.close()


async def test_commit_order_survives_the_loss_of_the_counter(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    first, second = await start(store, "b"), await start(store, "a")
    written = [await first.commit(), await second.commit(), await first.commit()]
    (tmp_path / ".perdure" / "counter").unlink()
    written += [await second.commit(), await first.commit()]
    assert list(await store.ids()) == written
    await store.close()


async def test_small_blobs_are_found_by_a_store_that_never_saw_them(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    run = await start(store)
    blob = text_blob("small")
    await run.commit({"a": blob})
    await store.close()
    stranger = FileStore(tmp_path)
    assert stranger.read_blobs([blob.hash]) == {blob.hash: blob.data}
    await stranger.close()


async def test_two_stores_on_one_directory_are_one_place(tmp_path: Path) -> None:
    one, other = FileStore(tmp_path), FileStore(str(tmp_path / "." / "x" / ".."))
    assert one.place == other.place
    run = await start(one)
    await run.commit()
    lease = await other.acquire("r")
    run.lease = lease
    await run.commit()
    assert list(await other.ids()) == ["r@0", "r@1"]
    await one.close()
    await other.close()


async def test_a_directory_that_can_not_be_made_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file", "utf-8")
    store = FileStore(tmp_path / "taken")
    with pytest.raises(WorkflowCheckpointException, match="taken"):
        await store.ids()
    await store.close()


async def test_a_directory_of_a_later_layout_is_refused(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    await (await start(store)).commit()
    await store.close()
    (tmp_path / ".perdure" / "format").write_text("1000\n", "utf-8")
    with pytest.raises(WorkflowCheckpointException, match="upgrade perdure"):
        await store.ids()
    await store.close()


async def test_one_of_many_processes_lays_out_a_new_directory(tmp_path: Path) -> None:
    disks = CountingDisk(), CountingDisk()
    stores = [FileStore(tmp_path, disk=disk) for disk in disks]
    assert await asyncio.gather(*(store.ids() for store in stores)) == [[], []]
    assert sorted(disk.changes.count("format.aside") for disk in disks) == [0, 1]
    for store in stores:
        await store.close()


async def test_a_run_that_begins_again_under_its_old_id_has_a_history_of_its_own(quick_path: Path) -> None:
    store, witness = FileStore(quick_path), FileStore(quick_path)
    for length in (1, 5, 2, 9):
        run = await start(store)
        for _ in range(length):
            await run.commit()
        for reader in (store, witness):
            history = await reader.manifests(run_id="r")
            assert [manifest.position for manifest in history] == list(range(length))
        await run.release()
        for position in range(length):
            await store.delete(f"r@{position}")
        assert await store.run("r") is None
    await store.close()
    await witness.close()


def journal_path(directory: Path) -> Path:
    return directory / ".perdure" / "journal" / "r.log"


async def test_a_record_costs_one_write_and_one_sync(tmp_path: Path) -> None:
    disk = CountingDisk()
    store = FileStore(tmp_path, disk=disk)
    run = await start(store)
    await run.commit()
    disk.reset()
    await run.note(finished("a", "x"))
    assert (disk.changes, disk.syncs) == (["r.log"] * 2, ["journal/", "r.log"]), "a new file is named first"
    disk.reset()
    await run.note(finished("b", "x"), finished("c", "x", text_blob("small")))
    await run.note(finished("d", "x"), durable=False)
    assert (disk.changes, disk.syncs) == (["r.log"] * 2, ["r.log"] * 2)
    assert disk.written < 500
    await store.close()


async def test_records_that_come_at_once_share_a_sync(tmp_path: Path) -> None:
    disk = CountingDisk()
    store = FileStore(tmp_path, disk=disk)
    run = await start(store)
    await run.commit()
    await run.note(finished("a"))
    disk.reset()
    await asyncio.gather(*(run.note(finished(f"{number}", "x")) for number in range(100)))
    assert len(disk.syncs) < 50
    assert len(await run.noted()) == 101
    await store.close()


async def test_commit_without_a_journal_does_no_work_for_it(tmp_path: Path) -> None:
    disk = CountingDisk()
    store = FileStore(tmp_path, disk=disk)
    run = await start(store)
    await run.commit()
    costs: list[tuple[int, int]] = []
    for notes in (0, 1):
        for _ in range(notes):
            await run.note(finished("a", "x"))
        disk.reset()
        await run.commit()
        costs.append((len(disk.changes), len(disk.syncs)))
    assert costs[0] == costs[1]
    await store.close()


async def test_a_journal_is_gone_after_the_commit_and_readable_before(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    run = await start(store)
    await run.commit()
    await run.note(finished("a", '{"answer":"für dich"}', text_blob("small"), raw_blob(b"\0" * 10_000)))
    line = json.loads(journal_path(tmp_path).read_text("utf-8").partition(" ")[2])
    assert line["head"] == "r@0"
    assert line["records"][0]["text"] == '{"answer":"für dich"}'
    assert [blob["text"] for blob in line["parts"]] == ['"small"']
    await run.commit()
    assert not journal_path(tmp_path).exists()
    await store.close()


async def test_a_journal_that_a_crash_left_behind_is_void(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    run = await start(store)
    await run.commit()
    await run.note(finished("a", "old"))
    leftover = journal_path(tmp_path).read_bytes()
    await run.commit()
    journal_path(tmp_path).write_bytes(leftover)
    assert await run.noted() == []
    await run.note(finished("b", "new"))
    assert await run.noted() == ["b=new"]
    await store.close()
    assert await run.noted() == ["b=new"]
    await run.commit()
    journal_path(tmp_path).write_bytes(leftover)
    await run.rewind("r@0", nonce="renewed")
    journal_path(tmp_path).write_bytes(leftover)
    assert await run.noted() == [], "the head is the same again, but the records are of another life of it"
    await store.collect()
    assert not journal_path(tmp_path).exists()
    await store.close()


async def test_a_line_of_a_journal_that_was_not_written_to_its_end_is_not_there(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    run = await start(store)
    await run.commit()
    await run.note(finished("a", "whole"))
    whole = journal_path(tmp_path).read_bytes()
    await run.note(finished("b", "torn"), finished("c", "torn"))
    data = journal_path(tmp_path).read_bytes()
    for size in range(len(whole), len(data)):
        journal_path(tmp_path).write_bytes(data[:size])
        assert await run.noted() == ["a=whole"]
    await run.note(finished("d", "next"))
    assert await run.noted() == ["a=whole", "d=next"]
    await store.close()
    assert await run.noted() == ["a=whole", "d=next"]
    await store.close()


async def test_a_hole_in_what_was_not_synced_ends_a_journal_and_one_elsewhere_is_damage(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    run = await start(store)
    await run.commit()
    ends: list[int] = []
    for name in "abcd":
        await run.note(finished(name, name * 1000))
    data = b""
    for line in journal_path(tmp_path).read_bytes().splitlines():
        # An earlier release wrote the last three without fsync.
        data += lines.encode({**json.loads(line.partition(b" ")[2]), "synced": ends[0] if ends else 0})
        ends.append(len(data))
    sectors = range(0, len(data), 512)
    in_second = [place for place in sectors if ends[0] < place < ends[1]]
    noted_first = [f"a={'a' * 1000}"]
    # What was added to a sector that was there, whole sectors, and the end of the file.
    for first, end in ((ends[0], in_second[0]), (in_second[0], in_second[1]), (ends[0] + 9, len(data))):
        journal_path(tmp_path).write_bytes(with_zeros(data, first, end))
        assert await run.noted() == noted_first
    damaged = [(0, 512), (0, ends[0]), (ends[0], ends[1]), (ends[0] + 9, in_second[0]), (in_second[0], ends[1] - 9)]
    for first, end in damaged:
        journal_path(tmp_path).write_bytes(with_zeros(data, first, end))
        with pytest.raises(CheckpointDamagedError, match=r"'r@0'.*journal of its run 'r'"):
            await store.journal("r")
    journal_path(tmp_path).write_bytes(with_zeros(data, ends[0], in_second[0]))
    await run.note(finished("e"))
    assert await run.noted() == [*noted_first, "e="]
    await store.close()
    assert await run.noted() == [*noted_first, "e="]
    await store.close()


async def test_a_hole_in_the_last_line_of_a_journal_ends_it_and_one_before_is_damage(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    run = await start(store)
    await run.commit()
    await run.note(finished("a", "a" * 1000))
    end = journal_path(tmp_path).stat().st_size
    await run.note(finished("b", "b" * 1000))
    data = journal_path(tmp_path).read_bytes()
    journal_path(tmp_path).write_bytes(with_zeros(data, 1536, 2048))
    assert await run.noted() == [f"a={'a' * 1000}"]
    journal_path(tmp_path).write_bytes(with_zeros(data, 512, 1024))
    assert 1024 < end < 1536
    with pytest.raises(CheckpointDamagedError, match=r"'r@0'.*journal of its run 'r'"):
        await store.journal("r")
    await store.close()


def with_zeros(data: bytes, start: int, end: int) -> bytes:
    return data[:start] + bytes(end - start) + data[end:]


async def test_any_changed_byte_of_a_journal_is_an_error_that_names_the_head(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    run = await start(store)
    await run.commit()
    await run.note(finished("a", "one", text_blob("small")))
    await run.note(finished("b", "two"))
    data = journal_path(tmp_path).read_bytes()
    for place in range(len(data)):
        journal_path(tmp_path).write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        with pytest.raises(CheckpointDamagedError, match=r"'r@0'.*journal of its run 'r'"):
            await store.journal("r")
    with pytest.raises(CheckpointDamagedError, match=r"'r@0'.*journal of its run 'r'"):
        await run.note(finished("c"))
    with pytest.raises(CheckpointDamagedError, match=r"'r@0'.*journal of its run 'r'"):
        await store.collect()
    await run.rewind("r@0", nonce="renewed")
    assert await run.noted() == []
    await store.close()


async def test_a_journal_is_shortened_when_records_were_replaced(quick_path: Path) -> None:
    store, witness = FileStore(quick_path), FileStore(quick_path)
    run = await start(store)
    await run.commit()
    leaf = text_blob("leaf")
    tree = text_blob("tree", leaf)
    await run.note(finished("first", "kept", tree, leaf))
    for step in range(2000):
        await run.note(finished("state", f"{step}", text_blob(f"{step} " * 200)), durable=False)
    assert journal_path(quick_path).stat().st_size < 600_000
    for reader in (store, witness):
        journal = await reader.journal("r")
        assert [(record.key, record.data) for record in journal] == [("first", b"kept"), ("state", b"1999")]
        blobs = await reader.blobs([*journal[0].refs, *journal[1].refs])
        assert blobs.keys() == {tree.hash, leaf.hash, text_blob("1999 " * 200).hash}
    await store.close()
    await witness.close()


async def test_small_blobs_of_a_journal_are_found_by_a_store_that_never_saw_them(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    run = await start(store)
    await run.commit()
    blob = text_blob("small")
    await run.note(finished("a", "", blob))
    await store.close()
    stranger = FileStore(tmp_path)
    assert stranger.read_blobs([blob.hash]) == {blob.hash: blob.data}
    await stranger.close()


def inbox_path(directory: Path) -> Path:
    return directory / ".perdure" / "inbox" / "r.log"


def events_path(directory: Path) -> Path:
    return directory / ".perdure" / "events" / "r.log"


async def test_events_and_commands_cost_a_commit_no_further_sync(tmp_path: Path) -> None:
    disk = CountingDisk()
    store = FileStore(tmp_path, disk=disk)
    run = await start(store)
    await run.commit()
    disk.reset()
    await run.commit()
    syncs = list(disk.syncs)
    await run.post(command("a"))
    disk.reset()
    await run.commit(consumed=("a",), events=events("told", blobs=(text_blob("small"),)))
    assert disk.syncs == syncs
    await store.close()


async def test_a_command_is_synced_and_so_is_the_name_of_a_new_inbox(tmp_path: Path) -> None:
    disk = CountingDisk()
    store = FileStore(tmp_path, disk=disk)
    run = await start(store)
    await run.commit()
    # Who posted the same command before may have been killed before its fsync.
    for command_id, syncs in (("a", ["inbox/", "r.log"]), ("b", ["r.log"]), ("b", ["r.log"])):
        disk.reset()
        await run.post(command(command_id))
        assert disk.syncs == syncs
    await store.close()


async def test_an_inbox_is_readable_and_gone_when_it_is_empty(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    run = await start(store)
    await run.commit()
    large = raw_blob(b"x" * 9000)
    await run.post(command("a", '{"answer":"für dich"}', text_blob("small"), large), command("b"))
    first = json.loads(inbox_path(tmp_path).read_text("utf-8").partition("\n")[0].partition(" ")[2])
    assert (first["id"], first["text"]) == ("a", '{"answer":"für dich"}')
    assert [blob["text"] for blob in first["parts"]] == ['"small"']
    assert (tmp_path / ".perdure" / "parts" / large.hash).exists()
    await run.commit(consumed=("a",))
    assert await run.inbox() == ["b="]
    await run.commit(consumed=("b",))
    assert not inbox_path(tmp_path).exists()
    await store.collect()
    assert not (tmp_path / ".perdure" / "parts" / large.hash).exists()
    await store.close()


async def test_commands_that_have_left_do_not_come_back_with_their_file(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    run = await start(store)
    await run.commit({"a": text_blob("asked")})
    await run.post(command("message"), command("answer", expects=("a", text_blob("asked").hash)))
    leftover = inbox_path(tmp_path).read_bytes()
    await run.commit(consumed=("message",))
    await run.rewind("r@0")
    for _ in range(3):
        inbox_path(tmp_path).write_bytes(leftover)
        assert await run.inbox() == []
        await run.commit()
    await store.delete("r@1")
    assert await run.inbox() == []
    await store.collect()
    assert not inbox_path(tmp_path).exists()
    await store.close()


async def test_files_of_an_old_run_do_not_belong_to_a_new_run_with_its_id(tmp_path: Path) -> None:
    store = FileStore(tmp_path, retention=Retention(checkpoints=LatestOnly()))
    run = await start(store)
    for _ in range(3):
        await run.commit(events=events("old"))
    await run.post(command("old"))
    leftovers = {path: path.read_bytes() for path in (inbox_path(tmp_path), events_path(tmp_path))}
    await run.release()
    await store.delete("r@2")
    assert not any(path.exists() for path in leftovers)
    run = await start(store)
    await run.commit(events=events("new"))
    for path, data in leftovers.items():
        path.write_bytes(data)
    assert (await run.inbox(), await run.events()) == ([], ["1=new"])
    await run.post(command("new"))
    await run.commit(events=events("newer"))
    await store.close()
    assert (await run.inbox(), await run.events()) == (["new="], ["1=new", "2=newer"])
    await store.close()


async def test_a_long_inbox_is_shortened_and_its_log_names_few_commands(quick_path: Path) -> None:
    store, witness = FileStore(quick_path), FileStore(quick_path)
    run = await start(store)
    await run.commit()
    await run.post(*(command(f"{number}", "x" * 100) for number in range(200)))
    whole = inbox_path(quick_path).stat().st_size
    for number in range(150):
        await run.commit(consumed=(f"{number}",))
    for reader in (store, witness):
        assert [each.id for each in await reader.inbox("r")] == [f"{number}" for number in range(150, 200)]
    assert inbox_path(quick_path).stat().st_size < whole / 2
    last = (quick_path / ".perdure" / "runs" / "r.log").read_text("utf-8").splitlines()[-1]
    assert len(json.loads(last.partition(" ")[2])["consumed"]) < 40
    await store.close()
    await witness.close()


async def test_any_changed_byte_of_an_inbox_is_an_error_that_names_the_run(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    run = await start(store)
    await run.commit()
    await run.post(command("a", "one", text_blob("small")), command("b", "two"))
    data = inbox_path(tmp_path).read_bytes()
    for place in range(len(data)):
        inbox_path(tmp_path).write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        with pytest.raises(CheckpointDamagedError, match=r"'r@0'.*inbox of its run 'r'"):
            await store.inbox("r")
    for change in (run.post(command("c")), run.commit(), store.collect()):
        with pytest.raises(CheckpointDamagedError, match=r"'r@0'.*inbox of its run 'r'"):
            await change
    for size in range(data.index(b"\n") + 1, len(data)):
        inbox_path(tmp_path).write_bytes(data[:size])
        assert await run.inbox() == ["a=one"], "what was not written to its end is not there"
    await store.close()


async def test_events_stay_in_their_checkpoint_until_it_is_deleted(tmp_path: Path) -> None:
    store = FileStore(tmp_path, retention=Retention(checkpoints=KeepLast(2)))
    run = await start(store)
    told = '[{"type":"output","data":"für dich"}]'
    small, large = text_blob("small"), raw_blob(b"x" * 9000)
    await run.commit(events=events(told, blobs=(small, large)))
    document = json.loads((tmp_path / "r@0.json").read_text("utf-8"))
    assert document["events"] == {
        "first": 1,
        "count": 1,
        "refs": [small.hash, large.hash],
        "value": [{"type": "output", "data": "für dich"}],
    }
    await run.commit(events=events("b", "not JSON"))
    assert not events_path(tmp_path).exists()
    await run.commit()
    line = json.loads(events_path(tmp_path).read_text("utf-8").partition(" ")[2])
    assert (line["checkpoint_id"], line["first"], line["text"]) == ("r@0", 1, told)
    assert [blob["text"] for blob in line["parts"]] == ['"small"']
    await store.collect()
    await store.close()
    assert await run.events() == [f"1={told}", "2=b", "3=not JSON"]
    (batch,) = await store.events("r", limit=1)
    assert await store.blobs(batch.refs) == {small.hash: small.data, large.hash: large.data}
    await store.close()


async def test_small_blobs_of_commands_and_events_are_found_by_a_store_that_never_saw_them(tmp_path: Path) -> None:
    store = FileStore(tmp_path, retention=Retention(checkpoints=LatestOnly()))
    run = await start(store)
    told, posted = text_blob("told"), text_blob("posted")
    await run.commit(events=events("a", blobs=(told,)))
    await run.commit()
    await run.post(command("a", "", posted))
    await store.close()
    stranger = FileStore(tmp_path)
    wanted = {blob.hash: blob.data for blob in (told, posted)}
    assert stranger.read_blobs(wanted) == wanted
    await stranger.close()


async def test_the_newest_events_are_read_without_the_others(quick_path: Path) -> None:
    disk = CountingDisk()
    store = FileStore(quick_path, disk=disk)
    run = await start(store)
    for number in range(100):
        await run.commit(events=events(f"{number}"))
        if number % 2:
            await store.delete(f"r@{number - 1}")
    await store.close()
    assert await run.events(after=98) == ["99=98", "100=99"]
    disk.reset()
    assert await run.events(after=98) == ["99=98", "100=99"]
    assert disk.reads < 16
    disk.reset()
    assert len(await run.events(limit=5)) == 5
    assert disk.reads < 50, "the log in blocks, and a few checkpoints"
    assert len(await run.events()) == 100
    await store.close()


async def test_events_are_forgotten_although_their_checkpoints_are_not(quick_path: Path) -> None:
    store = FileStore(quick_path, retention=Retention(events=KeepLast(2)))
    blobs = [raw_blob(f"{number}".encode() * 9000) for number in range(5)]
    run = await start(store)
    for number, blob in enumerate(blobs):
        await run.commit(events=events(f"{number}", blobs=(blob,)))
    assert await run.events() == ["4=3", "5=4"]
    await store.collect()
    found = await store.blobs([blob.hash for blob in blobs])
    assert found.keys() == {blob.hash for blob in blobs[3:]}
    lenient = FileStore(quick_path)
    run.store = lenient
    await run.commit(events=events("5"))
    assert await run.events() == ["4=3", "5=4", "6=5"], "what was forgotten stays so"
    await store.close()
    await lenient.close()


async def test_the_file_of_forgotten_events_is_shortened(quick_path: Path) -> None:
    retention = Retention(checkpoints=LatestOnly(), events=KeepLast(20))
    store, witness = FileStore(quick_path, retention=retention), FileStore(quick_path, retention=retention)
    run = await start(store)
    for number in range(300):
        await run.commit(events=events("x" * 1000 + f"{number}"))
        if number % 50 == 0:
            await witness.events("r")
    assert events_path(quick_path).stat().st_size < 120_000
    for reader in (store, witness):
        assert [batch.first for batch in await reader.events("r")] == list(range(281, 301))
    await store.close()
    await witness.close()


async def test_any_changed_byte_of_forgotten_events_is_an_error_that_names_the_run(tmp_path: Path) -> None:
    store = FileStore(tmp_path, retention=Retention(checkpoints=LatestOnly()))
    run = await start(store)
    for name in ("a", "b", "c"):
        await run.commit(events=events(name, blobs=(text_blob(name),)))
    data = events_path(tmp_path).read_bytes()
    for place in range(len(data)):
        events_path(tmp_path).write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        with pytest.raises(CheckpointDamagedError, match=r"'r@2'.*event file of its run 'r'"):
            await store.events("r")
        with pytest.raises(CheckpointDamagedError, match=r"'r@2'.*event file of its run 'r'"):
            await FileStore(tmp_path).events("r")
    await store.close()


async def test_damaged_checkpoint_with_events_is_not_deleted_by_retention(tmp_path: Path) -> None:
    store = FileStore(tmp_path, retention=Retention(checkpoints=KeepLast(2)))
    run = await start(store)
    for number in range(2):
        await run.commit(events=events(f"{number}"))
    path = tmp_path / "r@0.json"
    path.write_bytes(path.read_bytes().replace(b'"count": 1', b'"count": 2'))
    for number in range(2, 5):
        await run.commit(events=events(f"{number}"))
    with pytest.raises(CheckpointDamagedError, match="'r@0'"):
        await store.events("r")
    assert await run.events(after=1) == ["2=1", "3=2", "4=3", "5=4"]
    await store.delete("r@0")
    assert await run.events() == ["2=1", "3=2", "4=3", "5=4"]
    await store.close()


async def test_directory_from_before_inboxes_and_events_is_still_used(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    run = await start(store)
    await run.commit({"a": text_blob("x")})
    await run.commit(settled=True, status="idle")
    await run.release()
    await store.close()
    make_older(tmp_path)
    record = await run.record()
    assert (record.status, record.wake_at, record.events) == ("idle", None, 0)
    assert [each.run_id for each in await store.runs(status="idle")] == ["r"]
    assert (await run.inbox(), await run.events()) == ([], [])
    run.lease = await store.acquire("r")
    await run.post(command("a"))
    await run.rewind("r@0")
    assert (await run.record()).status == "running"
    await run.commit(consumed=("a",), events=events("first"))
    assert (await run.inbox(), await run.events()) == ([], ["1=first"])
    await store.delete("r@2")
    assert (await run.record()).status == "idle"
    await store.close()


def make_older(directory: Path) -> None:
    """Take away what files did not have before there were inboxes and events."""
    log = directory / ".perdure" / "runs" / "r.log"
    values = [json.loads(line.partition(" ")[2]) for line in log.read_text("utf-8").splitlines()]
    nothing: dict[str, Any] = {}
    for value in values:
        for fields in (value, value["newest"] or nothing):
            for name in ("status", "wake_at", "events", "told", "life", "consumed", "dropped", "forgotten"):
                fields.pop(name, None)
    log.write_bytes(b"".join(map(lines.encode, values)))
    for path in directory.glob("*.json"):
        body = path.read_bytes().rpartition(b',\n  "checksum": "')[0]
        body = re.sub(rb',\n    "(status|wake_at|events)": [^,\n]*', b"", body)
        path.write_bytes(body + b',\n  "checksum": "' + digest(body).encode() + b'"\n}\n')
    for name in ("inbox", "events"):
        (directory / ".perdure" / name).rmdir()


async def test_changes_by_another_process_change_the_version_of_the_data(tmp_path: Path) -> None:
    backend = FileBackend(tmp_path, retention=Retention(), clock=ManualClock(), disk=Disk())
    store = FileStore(tmp_path)
    seen = [backend.changes()]
    assert backend.changes() == seen[-1]
    run = await start(store)
    for work in (
        run.commit(),
        run.post(command("a")),
        run.commit(),
        run.rewind("r@0"),
        store.delete("r@0"),
        store.delete("r@1"),
    ):
        await work
        seen.append(backend.changes())
    assert len(set(seen)) == len(seen)
    await store.run("r")
    assert backend.changes() == seen[-1]
    await store.close()


async def test_runs_that_can_not_be_read_do_not_keep_the_finished_ones(tmp_path: Path) -> None:
    clock = ManualClock()
    store = FileStore(tmp_path, retention=Retention(finished_runs=KeepFor(timedelta(days=1))), clock=clock)
    for name in ("a", "b", "c", "d", "e", "f"):
        run = await RunDriver.start(store, clock, name)
        await run.commit(settled=True)
        await run.release()
    for name in ("a", "c", "e"):
        (tmp_path / ".perdure" / "runs" / f"{name}.log").write_bytes(b"not what was written\n" * 9)
    clock.advance(timedelta(days=2))
    busy = await RunDriver.start(store, clock, "busy")
    for _ in range(3):
        await busy.commit()
    assert [await store.run(name) for name in ("b", "d", "f")] == [None, None, None]
    with pytest.raises(WorkflowCheckpointException, match=r"a\.log' is damaged"):
        await store.run("a")
    await store.close()


def test_host_is_refused_with_the_advice_to_use_sqlite(tmp_path: Path) -> None:
    for storage in (FileCheckpointStorage(tmp_path), f"file:{tmp_path}"):
        with pytest.raises(TypeError, match=r"use SQLite: SqliteCheckpointStorage\(path\)"):
            Host(storage)


async def test_a_directory_of_an_earlier_release_gets_the_present_format(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    await (await start(store)).commit()
    await store.close()
    (tmp_path / ".perdure" / "format").write_text("1\n", "utf-8")
    assert list(await store.ids()) == ["r@0"]
    assert (tmp_path / ".perdure" / "format").read_text("utf-8") == "2\n"
    await store.close()
