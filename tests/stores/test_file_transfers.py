"""Whole runs that come to a directory and leave it: all of a run or nothing, whatever happens in between."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE
from typing import TYPE_CHECKING, TypeAlias, cast

import pytest
from tests import warm
from tests.soak import IS_SOAK

from perdure.errors import CheckpointDamagedError, RunExistsError, WorkflowCheckpointException
from perdure.records import Halt
from perdure.storage import FileStore, MemoryStore
from perdure.testing.clock import ManualClock
from perdure.testing.disk import EVERYTHING_SURVIVES, NOTHING_SURVIVES, SimulatedDisk
from perdure.testing.stores import finished, raw_blob
from perdure.testing.stores.base import HEAD, NOTHING, Picture, make_sample_run, read_run

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from simulated import Machine

    from perdure.records import Archive
    from perdure.storage import TenantStore

RESTORER = Path(__file__).with_name("restorer.py")
CHANCES = 40 if IS_SOAK else 1
"""How many ways of losing something are tried at each moment, besides losing all and nothing."""

EXPORTED = Halt("exported", "2024-01-01T00:00:00+00:00", "it has moved")

Doing: TypeAlias = "Callable[[TenantStore], Awaitable[object]]"


async def from_elsewhere() -> Archive:
    store = MemoryStore(clock=ManualClock())
    run = await make_sample_run(store, ManualClock(), of="another place")
    # As far as the one that was exported here.
    await run.commit({"more": raw_blob(b"of another place" * 900)})
    await run.rewind(HEAD, nonce="one more")
    await run.note(finished("a", "of another place"))
    return await store.archive("r")


async def with_another(store: TenantStore) -> None:
    """A run that nothing here is about."""
    await (await make_sample_run(store, ManualClock(), "other")).release()


async def with_an_exported(store: TenantStore) -> None:
    """One of the same id as the one that comes, with more to it."""
    await with_another(store)
    run = await make_sample_run(store, ManualClock())
    await run.commit({"more": raw_blob(b"than in the archive" * 900)})
    assert run.lease is not None
    await store.release(run.lease, halt=EXPORTED)


async def restore(store: TenantStore) -> None:
    await store.restore(await from_elsewhere())


async def remove(store: TenantStore) -> None:
    assert await store.remove("r")


TRANSFERS: Sequence[tuple[Doing, Doing]] = [
    (with_another, restore),
    (with_an_exported, restore),
    (with_an_exported, remove),
]


@dataclass(frozen=True)
class Seen:
    run: Picture
    other: Picture
    ids: Sequence[str]
    latest: str | None


async def seen(store: TenantStore) -> Seen:
    ids = list(await store.ids())
    latest = await store.latest(workflow_name="flöw")
    return Seen(await read_run(store), await read_run(store, "other"), ids, latest.checkpoint_id if latest else None)


class DyingDisk(SimulatedDisk):
    """One of which is kept, once it is watched, what a power cut would leave at each moment."""

    def __init__(self) -> None:
        super().__init__(before_change=self.cut)
        self.is_watched = False
        self.left: list[SimulatedDisk] = []
        self._seeds = itertools.count(2)

    def cut(self) -> None:
        if self.is_watched:
            chances = itertools.islice(self._seeds, CHANCES)
            self.left += [self.crash(seed) for seed in (NOTHING_SURVIVES, EVERYTHING_SURVIVES, *chances)]


@pytest.mark.parametrize(("prepare", "transfer"), TRANSFERS)
async def test_a_power_cut_leaves_the_run_as_it_was_or_as_it_is_then(
    machine: Machine, prepare: Doing, transfer: Doing
) -> None:
    disk = DyingDisk()
    store = cast("TenantStore", machine.open(disk, ManualClock()))
    await prepare(store)
    before = await seen(store)
    disk.is_watched = True
    await transfer(store)
    disk.cut()
    disk.is_watched = False
    after = await seen(store)
    found = [await seen(cast("TenantStore", machine.open(left, ManualClock()))) for left in disk.left]
    assert before != after
    assert [each for each in found if each not in (before, after)] == []
    assert (found[0], found[-1]) == (before, after)


@pytest.mark.parametrize(("prepare", "transfer"), TRANSFERS)
async def test_power_cut_in_a_transfer_leaves_the_heads_before_or_after_it(
    machine: Machine, prepare: Doing, transfer: Doing
) -> None:
    disk = DyingDisk()
    store = cast("TenantStore", machine.open(disk, ManualClock()))
    await prepare(store)
    before = await heads(store)
    disk.is_watched = True
    await transfer(store)
    disk.is_watched = False
    after = await heads(store)
    found = [await heads(cast("TenantStore", machine.open(left, ManualClock()))) for left in disk.left]
    assert [each for each in found if each not in (before, after)] == []


async def heads(store: TenantStore) -> Sequence[str | None]:
    """Of each checkpoint that there is at some time its checksum, read without anything else."""
    found: list[str | None] = []
    for checkpoint_id in ("r@0", "r@1", "r@2", "r by name", "r@4", "r@7"):
        try:
            found.append((await store.manifest(checkpoint_id)).checksum())
        except WorkflowCheckpointException:
            found.append(None)
    return found


class FailingDisk(SimulatedDisk):
    """One that fails at its n-th change from when it is told so, and at no other."""

    def __init__(self) -> None:
        super().__init__(before_change=self._count)
        self.changes_until_failure = -1

    def _count(self) -> None:
        self.changes_until_failure -= 1
        if self.changes_until_failure == 0:
            raise OSError(28, "No space left on device")


@pytest.mark.parametrize(("prepare", "transfer"), TRANSFERS)
async def test_a_transfer_that_failed_can_be_done_again(machine: Machine, prepare: Doing, transfer: Doing) -> None:
    undisturbed = cast("TenantStore", machine.open(SimulatedDisk(), ManualClock()))
    await prepare(undisturbed)
    before = await seen(undisturbed)
    await transfer(undisturbed)
    after = await seen(undisturbed)
    for moment in itertools.count(1):
        disk = FailingDisk()
        store = cast("TenantStore", machine.open(disk, ManualClock()))
        await prepare(store)
        disk.changes_until_failure = moment
        try:
            await transfer(store)
        except WorkflowCheckpointException:
            left = await seen(store)
            assert left in (before, after), f"change {moment}"
            if left == before:
                await transfer(store)
        assert await seen(store) == after, f"change {moment}"
        if disk.changes_until_failure > 0:
            break
    else:
        raise AssertionError("it always fails")


def kill_a_restorer(directory: Path, *, after: int) -> None:
    with warm.start(str(RESTORER), str(directory), stdout=PIPE) as process:
        assert process.stdout is not None
        for _ in range(after):
            assert process.stdout.readline()
        process.kill()


async def test_a_process_that_is_killed_leaves_a_whole_run_or_none(quick_path: Path) -> None:
    elsewhere = MemoryStore(clock=ManualClock())
    await make_sample_run(elsewhere, ManualClock())
    whole = await read_run(elsewhere)
    for times in range(8):
        kill_a_restorer(quick_path, after=times + 1)
        store = FileStore(quick_path)
        found = await read_run(store)
        assert found in (whole, NOTHING)
        assert list(await store.ids()) == [manifest.checkpoint_id for manifest in found.manifests]
        await store.close()


async def test_next_collection_removes_unfinished_files_of_a_killed_restore(machine: Machine) -> None:
    disk = FailingDisk()
    store = cast("TenantStore", machine.open(disk, ManualClock()))
    archive = await from_elsewhere()
    disk.changes_until_failure = 30
    with pytest.raises(WorkflowCheckpointException):
        await store.restore(archive)
    assert [path for path in disk.files() if path.parent.name in {"parts", "undertaking"}]
    await store.collect()
    assert [path for path in disk.files() if path.parent.name in {"parts", "undertaking"}] == []


async def test_a_checkpoint_of_another_run_is_not_replaced_by_one_that_comes(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    other = await make_sample_run(store, ManualClock(), "other")
    await other.commit(checkpoint_id="r@2")
    before = await read_run(store, "other")
    with pytest.raises(WorkflowCheckpointException, match="r@2"):
        await store.restore(await from_elsewhere())
    assert (await read_run(store), await read_run(store, "other")) == (NOTHING, before)
    await store.close()


async def test_a_restored_run_is_one_and_goes_on(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    await restore(store)
    with pytest.raises(RunExistsError):
        await restore(store)
    lease = await store.acquire("r")
    assert lease.attempts == 1
    await store.release(lease)
    await store.close()


async def test_an_archive_names_the_checkpoint_whose_blob_is_damaged(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    run = await make_sample_run(store, ManualClock())
    blob = raw_blob(b"of the last one" * 900)
    await run.commit({"large": blob})
    path = tmp_path / ".perdure" / "parts" / blob.hash
    path.write_bytes(path.read_bytes().replace(b"last", b"lost"))
    with pytest.raises(CheckpointDamagedError, match=run.head):
        await store.archive("r")
    path.unlink()
    with pytest.raises(CheckpointDamagedError, match=run.head):
        await store.archive("r")
    await store.close()
