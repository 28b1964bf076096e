"""What a commit waits for, and what is left of a process that was killed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, cast

import pytest
from test_processes import OK, Child
from typing_extensions import override

from perdure import FileCheckpointStorage, SqliteCheckpointStorage
from perdure.errors import CheckpointDamagedError
from perdure.records import Halt, LatestOnly, Retention
from perdure.storage import Disk, FileStore, SqliteStore
from perdure.testing.disk import SimulatedDisk
from perdure.testing.stores import ManualClock, RunDriver, command, events, finished, raw_blob, text_blob

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from simulated import Machine

    from perdure.storage import Store, TenantStore


class SyncCountingDisk(Disk):
    """Counts how often the machine's disk was waited for."""

    def __init__(self, durability: Literal["commit", "os"]) -> None:
        super().__init__(durability=durability)
        self.syncs = 0

    @override
    def _sync(self, descriptor: int, *, data_only: bool = False) -> None:
        self.syncs += 1
        super()._sync(descriptor, data_only=data_only)


async def test_a_commit_waits_for_its_line_its_file_and_its_name_and_for_nothing_else(tmp_path: Path) -> None:
    disk = SyncCountingDisk("commit")
    store = FileStore(tmp_path, disk=disk)
    run = await RunDriver.start(store, ManualClock(), "r")
    constant = text_blob("constant")
    await run.commit({"constant": constant})
    for step in range(10):
        disk.syncs = 0
        await run.commit({"constant": constant, "a": text_blob(f"{step}")}, events=events("told"))
        assert disk.syncs == 3
    await store.close()


async def test_only_an_export_is_synced_with_durability_os(tmp_path: Path) -> None:
    disk = SyncCountingDisk("os")
    store = FileStore(tmp_path, disk=disk)
    run = await RunDriver.start(store, ManualClock(), "r")
    for step in range(40):
        await run.commit({"a": text_blob(f"{step}"), "b": raw_blob(f"{step}".encode() * 9000)}, events=events("told"))
    await run.note(finished("a", "x", raw_blob(b"x" * 9000)))
    await run.post(command("a", "x", raw_blob(b"y" * 9000)))
    await run.rewind("r@3")
    await run.release()
    await store.collect()
    assert disk.syncs == 0
    assert await store.close_run("r", halt=Halt("exported", "2024-01-01T00:00:00+00:00", "it moved"))
    assert disk.syncs > 0, "it must not come alive here while it goes on elsewhere"
    await store.close()


async def test_run_stays_durable_after_retention_with_any_durability(machine: Machine) -> None:
    latest_only = Retention(checkpoints=LatestOnly())
    for seed in range(12):
        disk = SimulatedDisk(durability="os")
        store = machine.open(disk, ManualClock(), latest_only)
        run = await RunDriver.start(store, ManualClock(), "r")
        told = {"small": text_blob("kept"), "large": raw_blob(b"kept" * 9000)}
        for _ in range(3):
            await run.commit(told, events=events("told"))
        after = machine.open(disk.crash(seed), ManualClock(), latest_only)
        record = await after.run("r")
        assert record is not None
        assert record.head == run.head
        assert len(await after.blobs((await after.manifest(record.head or "")).roots)) == 2


async def test_a_command_that_was_taken_is_not_lost_with_the_commit_that_took_it(machine: Machine) -> None:
    for seed in range(12):
        disk = SimulatedDisk(durability="os")
        run = await RunDriver.start(machine.open(disk, ManualClock()), ManualClock(), "r")
        await run.commit()
        await run.post(command("answer"))
        await run.commit(consumed=("answer",))
        record = await machine.open(disk.crash(seed), ManualClock()).run("r")
        assert record is not None
        assert record.head == "r@1"


async def test_restored_run_is_durable_with_any_durability(machine: Machine, tmp_path: Path) -> None:
    source = FileStore(tmp_path)
    run = await RunDriver.start(source, ManualClock(), "r")
    await run.commit({"small": text_blob("a"), "large": raw_blob(b"a" * 9000)}, events=events("told"))
    await run.post(command("waits"))
    await run.release()
    archive = await cast("TenantStore", source).archive("r")
    for seed in range(12):
        disk = SimulatedDisk(durability="os")
        await cast("TenantStore", machine.open(disk, ManualClock())).restore(archive)
        after = cast("TenantStore", machine.open(disk.crash(seed), ManualClock()))
        there = await after.archive("r")
        assert (there.checkpoints, set(there.blobs)) == (archive.checkpoints, set(archive.blobs))
        assert [each.id for each in there.inbox] == ["waits"]
    await source.close()


async def test_a_run_whose_every_checkpoint_is_gone_is_damaged_not_absent(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    run = await RunDriver.start(store, ManualClock(), "r")
    for name in ("first", "second", "third"):
        await run.commit(checkpoint_id=name)
    await store.close()
    for name in ("first", "second", "third"):
        (tmp_path / f"{name}.json").unlink()
    with pytest.raises(CheckpointDamagedError, match="'third' is damaged: its file is gone, and so is every other"):
        await FileStore(tmp_path).run("r")


def test_other_words_are_refused_with_what_is_possible(tmp_path: Path) -> None:
    words: dict[str, Any] = {"durability": "sometimes"}
    makes: list[Callable[[], object]] = [
        lambda: FileCheckpointStorage(tmp_path, **words),
        lambda: SqliteCheckpointStorage(tmp_path / "runs.db", **words),
    ]
    for make in makes:
        with pytest.raises(ValueError, match=r"durability='sometimes' is none; give 'commit' .* or 'os'"):
            make()


@pytest.mark.parametrize("kind", ["file os", "sqlite os"])
async def test_a_killed_process_loses_nothing_that_the_system_was_to_keep(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "runs"
    told: list[str] = []
    for commits in (3, 20):
        with Child(kind, path) as child:
            assert child.ask("claim", run="r") == OK
            child.tell("commit on and on", run="r")
            told += [child.hear() for _ in range(commits)]
            child.kill()
    store: Store = FileStore(path) if kind.startswith("file") else SqliteStore(path)
    record, history = await store.run("r"), await store.manifests(run_id="r")
    assert record is not None
    assert {manifest.checkpoint_id for manifest in history} >= set(told)
    assert record.head == history[-1].checkpoint_id
    for manifest in history:
        assert len(await store.blobs(manifest.toc.values())) == 2
    await store.close()
