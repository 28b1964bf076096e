"""The file store on a disk that loses what was not synced: a power cut at every moment of a history."""

from __future__ import annotations

import inspect
import itertools
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from scripted import AN_HOUR_PASSES, FORGETFUL, FORGETFUL_HISTORY, FURTHER, HISTORY, RUNS, View, view
from tests.soak import IS_SOAK
from typing_extensions import override

from perdure.errors import WorkflowCheckpointException
from perdure.records import Retention
from perdure.storage import Disk
from perdure.testing.disk import EVERYTHING_SURVIVES, NOTHING_SURVIVES, SimulatedDisk
from perdure.testing.stores import ManualClock

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from scripted import Operation
    from simulated import Machine

    from perdure.records import Manifest

pytestmark = pytest.mark.timeout(3600 if IS_SOAK else 120)

CHANCES = 40 if IS_SOAK else 1
"""How many ways of losing something are tried at each moment, besides losing all and nothing."""

MADE_OF_OTHERS = {"replace", "flush", "always_fsync", "secure", "sync_directory"}
"""Methods of a disk that only call others, `_sync_by_name` among them."""

STRIDE = 1 if IS_SOAK else 2
"""Of all that a power cut can leave, each so many-th is looked at."""


@dataclass(frozen=True)
class PowerCut:
    """What was left when the machine went down at a moment of an operation."""

    operation: int
    moment: int
    seed: int
    disk: SimulatedDisk

    def __str__(self) -> str:
        return f"power cut {self.moment} in operation {self.operation}, seed {self.seed}"


@dataclass
class Recording:
    """A history as it went, and what a power cut at any moment of it would have left."""

    history: Sequence[Operation]
    retention: Retention
    views: list[View] = field(default_factory=list[View])
    cuts: list[PowerCut] = field(default_factory=list[PowerCut])
    _moment: int = 0
    _known: set[object] = field(default_factory=set[object])

    async def make(self, machine: Machine, disk_type: type[SimulatedDisk]) -> None:
        """Let two processes do the history in turns."""
        disk = disk_type(before_change=lambda: self._cut(disk))
        clock = ManualClock()
        stores = [machine.open(disk, clock, self.retention) for _ in range(2)]
        for number, operation in enumerate(self.history):
            # Looking changes nothing, so no moment is missed meanwhile.
            self.views.append(await view(stores[number // 2 % 2]))
            await operation.work(stores[number // 2 % 2], clock)
        self.views.append(await view(stores[0]))
        self._cut(disk)

    def _cut(self, disk: SimulatedDisk) -> None:
        self._moment += 1
        chances = range(2 + self._moment * CHANCES, 2 + (self._moment + 1) * CHANCES)
        # The view after the last operation is taken before the next one begins.
        operation = max(0, len(self.views) - 1)
        for seed in (NOTHING_SURVIVES, EVERYTHING_SURVIVES, *chances):
            left = disk.crash(seed)
            key = (operation, frozenset(left.files().items()))
            if key not in self._known:
                self._known.add(key)
                self.cuts.append(PowerCut(operation, self._moment, seed, left))

    @property
    def ever(self) -> Mapping[str, Manifest]:
        """Every checkpoint that there was at any time."""
        return {key: manifest for each in self.views for key, manifest in each.checkpoints.items()}

    def journals(self, run_id: str, after: int) -> Sequence[object]:
        """What a run's journal may be, if so many operations were done."""
        since = after
        while since > 0 and not (self.history[since - 1].run_id == run_id and self.history[since - 1].lasts):
            since -= 1
        return [self.views[number].journals[run_id] for number in range(since, after + 1)]


async def recorded(
    machine: Machine,
    history: Sequence[Operation] = HISTORY,
    *,
    retention: Retention | None = None,
    disk_type: type[SimulatedDisk] = SimulatedDisk,
) -> Recording:
    recording = Recording(history, retention or Retention())
    await recording.make(machine, disk_type)
    return recording


def is_after(recording: Recording, done: int, seen: View) -> bool:
    """Whether this is what has to be there after so many operations, or as much of it."""
    if done >= len(recording.views):
        return False
    is_possible = all(seen.journals[run_id] in recording.journals(run_id, done) for run_id in RUNS)
    return is_possible and replace(seen, journals={}) == replace(recording.views[done], journals={})


async def assert_survives(machine: Machine, recording: Recording, cut: PowerCut, *, going_on: bool) -> None:
    """What lasted is there and whole, nothing else is, and the rest of the history can be done."""
    clock = ManualClock()
    store = machine.open(cut.disk, clock, recording.retention)
    seen = await view(store)
    after = [done for done in (cut.operation, cut.operation + 1) if is_after(recording, done, seen)]
    assert after, f"after a {cut} this is there: {seen}"
    if going_on:
        for operation in recording.history[after[-1] :]:
            await operation.work(store, clock)
        assert await view(store) == recording.views[-1], f"going on after a {cut}"


def test_the_simulated_disk_leaves_no_operation_to_the_real_one() -> None:
    operations = {name for name, _ in inspect.getmembers(Disk, inspect.isfunction) if not name.startswith("_")}
    assert operations - MADE_OF_OTHERS <= vars(SimulatedDisk).keys()


async def assert_all_survive(machine: Machine, recording: Recording) -> None:
    for cut in recording.cuts[::STRIDE]:
        await assert_survives(machine, recording, cut, going_on=IS_SOAK or cut.moment % 7 == 0)


async def test_acknowledged_writes_survive_a_power_cut_at_any_moment(machine: Machine) -> None:
    recording = await recorded(machine)
    await assert_all_survive(machine, recording)
    assert {cut.operation for cut in recording.cuts[::STRIDE]} == set(range(len(HISTORY) + 1))
    assert len(recording.cuts) > 500


async def test_a_power_cut_while_forgetting_loses_nothing_that_is_kept(machine: Machine) -> None:
    recording = await recorded(machine, FORGETFUL_HISTORY, retention=FORGETFUL)
    for cut in recording.cuts[::STRIDE]:
        await assert_forgets(machine, recording, cut)
    assert len(recording.cuts) > 200


async def assert_forgets(machine: Machine, recording: Recording, cut: PowerCut) -> None:
    """What has to stay is there and whole, and what may go is gone in the end."""
    clock = ManualClock()
    store = machine.open(cut.disk, clock, recording.retention)
    seen = await view(store)
    around = recording.views[cut.operation : cut.operation + 2]
    for run_id, record in seen.runs.items():
        assert record in [each.runs[run_id] for each in around], f"after a {cut}"
        assert record is None or record.head in seen.checkpoints, f"after a {cut}"
        told = [number for batch in seen.events[run_id] for number in range(batch.first, batch.last + 1)]
        newest = record.events if record else 0
        assert told == list(range(newest - len(told) + 1, newest + 1)), f"after a {cut}"
        assert len(told) >= min(len(each.events[run_id]) for each in around), f"after a {cut}"
        journals = [recording.journals(run_id, cut.operation + number) for number in range(len(around))]
        assert seen.journals[run_id] in itertools.chain(*journals), f"after a {cut}"
    assert seen.latest in [each.latest for each in around], f"after a {cut}"
    assert all(recording.ever[each] == manifest for each, manifest in seen.checkpoints.items()), f"after a {cut}"
    assert seen.checkpoints.keys() >= set[str].intersection(*(set(each.checkpoints) for each in around))
    done = cut.operation
    if cut.operation < len(recording.history):
        run_id = recording.history[cut.operation].run_id
        done += run_id is not None and seen.runs[run_id] == around[-1].runs[run_id] != around[0].runs[run_id]
    if seen.runs["s"] is not None:
        # The process that had claimed it would be dead now, but it is this one.
        await store.release(await store.acquire("s"))
    clock.advance(timedelta(hours=sum(each is AN_HOUR_PASSES for each in recording.history[:done])))
    for operation in recording.history[done:]:
        await operation.work(store, clock)
    await FURTHER.work(store, clock)
    await store.collect()
    last = await view(store)
    assert list(last.checkpoints) == ["f@0", "r@5"], f"going on after a {cut}"
    assert last.runs["s"] is None, f"going on after a {cut}"
    assert len([path for path in cut.disk.files() if path.parent.name == "parts"]) == 1, f"going on after a {cut}"


class FileSyncsDoNothing(SimulatedDisk):
    @override
    def sync_file(self, path: Path) -> None:
        pass


class DirectorySyncsDoNothing(SimulatedDisk):
    @override
    def sync_directory(self, path: Path) -> None:
        pass


class SyncsDoNothing(FileSyncsDoNothing, DirectorySyncsDoNothing):
    pass


@pytest.mark.parametrize("disk_type", [FileSyncsDoNothing, DirectorySyncsDoNothing, SyncsDoNothing])
async def test_a_store_that_did_not_sync_would_not_outlast_a_power_cut(
    machine: Machine, disk_type: type[SimulatedDisk]
) -> None:
    recording = await recorded(machine, disk_type=disk_type)
    with pytest.raises((AssertionError, WorkflowCheckpointException)):
        await assert_all_survive(machine, recording)


def test_names_and_data_come_to_the_disk_apart_from_each_other() -> None:
    disk = SimulatedDisk()
    place = Path("/place")
    disk.make_directory(place)
    disk.write_at(place / "synced", 0, b"data", sync=True)
    disk.write_at(place / "named", 0, b"data", sync=False)
    left = [disk.crash(seed).files() for seed in range(100)]
    assert left[NOTHING_SURVIVES] == {}
    assert left[EVERYTHING_SURVIVES] == {place / "synced": b"data", place / "named": b"data"}
    assert all(files.get(place / "synced", b"data") == b"data" for files in left)
    assert {files.get(place / "named") for files in left} >= {None, b"", b"d", b"dat", b"data", b"da\0\0"}
    disk.sync_directory(place)
    assert disk.crash(NOTHING_SURVIVES).files() == {place / "synced": b"data", place / "named": b""}


def test_a_rename_comes_to_the_disk_in_both_directories_or_in_neither() -> None:
    disk = SimulatedDisk()
    old, new = Path("/old/name"), Path("/new/name")
    for path in (old, new):
        disk.make_directory(path.parent)
    disk.write_new(old, b"data")
    disk.sync_directory(old.parent)
    disk.rename(old, new)
    assert {tuple(disk.crash(seed).files()) for seed in range(20)} == {(old,), (new,)}
    disk.sync_directory(new.parent)
    assert {tuple(disk.crash(seed).files()) for seed in range(20)} == {(new,)}


def test_a_write_in_place_can_be_torn_between_old_and_new() -> None:
    disk = SimulatedDisk()
    disk.write_at(Path("/file"), 0, b"old one", sync=True)
    disk.sync_directory(Path("/"))
    disk.write_at(Path("/file"), 0, b"new", sync=False)
    found = {disk.crash(seed).files()[Path("/file")] for seed in range(100)}
    assert found >= {b"old one", b"nld one", b"ned one", b"new"}
    assert len(disk.read(Path("/file"))) == 3


def test_a_link_is_another_name_of_the_same_file() -> None:
    disk = SimulatedDisk()
    first, second = Path("/first"), Path("/second")
    disk.write_new(first, b"data")
    disk.link(first, second)
    with pytest.raises(FileExistsError):
        disk.link(first, second)
    disk.write_at(second, 4, b" and more", sync=True)
    disk.remove(first)
    disk.remove(first)
    assert disk.stamp(first) is None
    assert disk.names(Path("/")) == ["second"]
    assert disk.read(second, start=2, end=8) == b"ta and"
    with pytest.raises(FileNotFoundError):
        disk.read(first)
