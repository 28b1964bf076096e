"""The file store, with every operation of its disk failing in turn."""

from __future__ import annotations

import errno
import itertools
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Literal, TypeAlias

import pytest
from tests.soak import IS_SOAK
from typing_extensions import override

from perdure.errors import WorkflowCheckpointException
from perdure.records import Command, HeadStatus, JournalRecord, KeepFor, KeepLast, LatestOnly, NewEvents, Retention
from perdure.storage import Disk, FileStore
from perdure.testing.disk import EVERYTHING_SURVIVES, SimulatedDisk
from perdure.testing.stores import ManualClock, RunDriver, new_run, raw_blob, text_blob

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Sequence
    from pathlib import Path

    from simulated import Machine

    from perdure.records import Blob
    from perdure.storage import Store

STRIDE = 1 if IS_SOAK else 5
"""Try every fifth moment at which something can go wrong; the soak tries all."""

Failure: TypeAlias = Literal["before", "torn"]
Operation: TypeAlias = "Callable[[Store, ManualClock], Awaitable[None]]"

LARGE = b"large " * 2000


class Crash(BaseException):
    """The end of the process."""


class RecordingDisk(SimulatedDisk):
    """Keeps what a crash of the process would leave: before each change, or in the middle of each write."""

    def __init__(self, how: Failure) -> None:
        super().__init__(before_change=self._before)
        self._how = how
        self.left: list[SimulatedDisk] = []
        """What a crash would have left since this was emptied last."""

    def _before(self) -> None:
        # What is synced means nothing to a process, so some moments are the same to it.
        if self._how == "before" and not (self.left and self.left[-1].files() == self.files()):
            self.left.append(self.crash(EVERYTHING_SURVIVES))

    @override
    def write_new(self, path: Path, data: bytes) -> None:
        if self._how == "torn":
            self.left.append(self.crash(EVERYTHING_SURVIVES))
            self.left[-1].write_new(path, half(data))
        super().write_new(path, data)

    @override
    def write_at(self, path: Path, offset: int, data: bytes, *, sync: bool) -> None:
        if self._how == "torn":
            self.left.append(self.crash(EVERYTHING_SURVIVES))
            self.left[-1].write_at(path, offset, half(data), sync=sync)
        super().write_at(path, offset, data, sync=sync)


def half(data: bytes) -> bytes:
    return data[: len(data) // 2]


class FailingDisk(SimulatedDisk):
    """Has no space left for its n-th change, or only for half of it, and then has some again."""

    def __init__(self, failing: int, how: Failure) -> None:
        super().__init__()
        self._left = failing
        self._how = how
        self.has_failed = False

    @contextmanager
    def _change(self, *, can_tear: bool = False) -> Generator[None]:
        self._left -= can_tear or self._how != "torn"
        is_now = self._left == 0 and not self.has_failed
        self.has_failed = self.has_failed or is_now
        error = OSError(errno.ENOSPC, "No space left on device")
        if is_now and self._how == "before":
            raise error
        yield
        if is_now:
            raise error

    def _cut(self, data: bytes) -> bytes:
        return half(data) if self._left == 0 and self._how == "torn" else data

    @override
    def make_directory(self, path: Path) -> None:
        with self._change():
            super().make_directory(path)

    @override
    def write_new(self, path: Path, data: bytes) -> None:
        with self._change(can_tear=True):
            super().write_new(path, self._cut(data))

    @override
    def write_at(self, path: Path, offset: int, data: bytes, *, sync: bool) -> None:
        with self._change(can_tear=True):
            super().write_at(path, offset, self._cut(data), sync=sync)

    @override
    def link(self, source: Path, target: Path) -> None:
        with self._change():
            super().link(source, target)

    @override
    def rename(self, source: Path, target: Path) -> None:
        with self._change():
            super().rename(source, target)

    @override
    def remove(self, path: Path) -> None:
        with self._change():
            super().remove(path)

    @override
    def sync_directory(self, path: Path) -> None:
        with self._change():
            super().sync_directory(path)


Held: TypeAlias = "list[tuple[str, bytes, dict[str, bytes]]]"
"""What a journal, an inbox or a list of events holds: names, data, and the parts that these refer to."""


@dataclass(frozen=True)
class View:
    """All that a reader can see."""

    runs: dict[str, tuple[object, ...] | None]
    journals: dict[str, Held]
    inboxes: dict[str, Held]
    told: dict[str, Held]
    latest: str | None
    contents: list[tuple[str, dict[str, bytes]]]


async def view(store: Store) -> View:
    runs: dict[str, tuple[object, ...] | None] = dict.fromkeys("rsf")
    for run_id in runs:
        record = await store.run(run_id)
        runs[run_id] = record and (
            record.head,
            record.position,
            record.settled,
            record.nonce,
            record.status,
            record.wake_at,
            record.events,
        )
    assert {record.run_id for record in await store.runs()} == {run_id for run_id, record in runs.items() if record}
    contents: list[tuple[str, dict[str, bytes]]] = []
    for manifest in await store.manifests():
        blobs = await store.blobs(manifest.toc.values())
        contents.append((manifest.checkpoint_id, {path: blobs[blob] for path, blob in manifest.toc.items()}))
    latest = await store.latest(workflow_name="flow")
    return View(
        runs=runs,
        journals={run_id: await journal(store, run_id) for run_id in runs},
        inboxes={run_id: await inbox(store, run_id) for run_id in runs},
        told={run_id: await told(store, run_id) for run_id in runs},
        latest=latest.checkpoint_id if latest else None,
        contents=contents,
    )


async def journal(store: Store, run_id: str) -> Held:
    records = await store.journal(run_id)
    return [(record.key, record.data, await all_of(store, record.refs)) for record in records]


async def inbox(store: Store, run_id: str) -> Held:
    commands = await store.inbox(run_id)
    return [
        (f"{command.id} {command.expects}", command.data, await all_of(store, command.refs)) for command in commands
    ]


async def told(store: Store, run_id: str) -> Held:
    batches = await store.events(run_id)
    return [
        (f"{batch.first}+{batch.count} {batch.checkpoint_id}", batch.data, await all_of(store, batch.refs))
        for batch in batches
    ]


async def all_of(store: Store, refs: Sequence[str]) -> dict[str, bytes]:
    blobs = await store.blobs(refs)
    return {blob: blobs[blob] for blob in refs}


def advance(
    run_id: str,
    *,
    settled: bool = False,
    status: HeadStatus = "running",
    wake_at: str | None = None,
    consumed: tuple[str, ...] = (),
    events: NewEvents | None = None,
    **values: Blob,
) -> Operation:
    async def operation(store: Store, clock: ManualClock) -> None:
        run = RunDriver(store, clock, run_id, "flow")
        run.lease = await store.acquire(run_id, create=new_run(run_id))
        record = await store.run(run_id)
        run.head, run.position = (record.head, record.position) if record else (None, -1)
        commit = run.next_commit(
            values, settled=settled, status=status, wake_at=wake_at, consumed=consumed, events=events
        )
        # As an engine does: only what the head does not have.
        known = set((await store.manifest(run.head)).toc.values()) if run.head else set[str]()
        await run.write(replace(commit, blobs=tuple(blob for blob in commit.blobs if blob.hash not in known)))
        await run.release()

    return operation


def post(run_id: str, command_id: str, *, expects: Blob | None = None) -> Operation:
    """Post a command with a small part and a large one, which may expect a part at "a"."""

    async def operation(store: Store, clock: ManualClock) -> None:
        del clock
        blobs = (text_blob(f"of {command_id}"), raw_blob(LARGE + command_id.encode()))
        refs = tuple(blob.hash for blob in blobs)
        expected = ("a", expects.hash) if expects else None
        await store.post(run_id, Command(command_id, "message", b"data", refs, blobs, expected))

    return operation


def telling(*texts: str) -> NewEvents:
    """Events with a small part and a large one."""
    blobs = (text_blob(f"told {texts}"), raw_blob(LARGE + texts[0].encode()))
    return NewEvents(len(texts), " ".join(texts).encode(), tuple(blob.hash for blob in blobs), blobs)


def note(run_id: str, *keys: str, durable: bool = True) -> Operation:
    """Record something under each key, with a small part and a large one."""

    async def operation(store: Store, clock: ManualClock) -> None:
        del clock
        lease = await store.acquire(run_id)
        record = await store.run(run_id)
        assert record is not None
        records: list[JournalRecord] = []
        for key in keys:
            blobs = (text_blob(f"{key} of {record.head}"), raw_blob(LARGE + key.encode()))
            records.append(JournalRecord(key, b"done", tuple(blob.hash for blob in blobs), blobs))
        await store.record(lease, head=record.head, records=records, durable=durable)
        await store.release(lease)

    return operation


def fork(run_id: str, parent: str) -> Operation:
    async def operation(store: Store, clock: ManualClock) -> None:
        del clock
        await store.release(await store.acquire(run_id, create=new_run(run_id, parent=parent)))

    return operation


def rewind(run_id: str, to: str) -> Operation:
    async def operation(store: Store, clock: ManualClock) -> None:
        del clock
        lease = await store.acquire(run_id)
        record = await store.run(run_id)
        assert record is not None
        assert record.head is not None
        await store.rewind(lease, expected_head=record.head, to=to, nonce="renewed")
        await store.release(lease)

    return operation


def delete(checkpoint_id: str) -> Operation:
    async def operation(store: Store, clock: ManualClock) -> None:
        del clock
        await store.delete(checkpoint_id)

    return operation


async def collect(store: Store, clock: ManualClock) -> None:
    del clock
    await store.collect()


async def after_an_hour(store: Store, clock: ManualClock) -> None:
    del store
    clock.advance(timedelta(hours=1))


SMALL = text_blob("constant")
BIG = raw_blob(LARGE)
HISTORY: Sequence[Operation] = (
    advance("r", a=text_blob("r0"), small=SMALL, big=BIG),
    note("r", "x", durable=False),
    note("r", "y", "x"),
    advance("r", a=text_blob("r1"), small=SMALL, big=BIG),
    advance("s", a=text_blob("s0"), small=SMALL),
    advance("r", a=text_blob("r2"), small=SMALL, other=raw_blob(LARGE + b"2")),
    fork("f", "r@1"),
    note("f", "x", "z"),
    advance("s", a=text_blob("s1"), settled=True),
    note("r", "x", "y"),
    rewind("r", "r@0"),
    note("r", "z"),
    advance("f", a=text_blob("f0"), small=SMALL, big=BIG),
    advance("r", a=text_blob("r3"), small=SMALL),
    note("r", "x"),
    note("s", "x"),
    collect,
    delete("r@3"),
    delete("r@1"),
    delete("s@1"),
    delete("s@0"),
    collect,
    advance("s", a=text_blob("s0 again")),
)

ASKED = text_blob("asked")
INBOX_HISTORY: Sequence[Operation] = (
    advance(
        "r", a=text_blob("r0"), status="sleeping", wake_at="2024-01-02T00:00:00+00:00", events=telling("r0", "too")
    ),
    post("r", "one"),
    post("r", "two"),
    advance("r", a=ASKED, status="waiting", consumed=("one",), events=telling("r1")),
    post("r", "answer", expects=ASKED),
    post("r", "answer", expects=ASKED),
    rewind("r", "r@0"),
    advance("r", a=ASKED, consumed=("two",), events=telling("r2", "more")),
    post("r", "another answer", expects=ASKED),
    post("r", "three"),
    fork("f", "r@2"),
    post("f", "one", expects=ASKED),
    advance("f", a=text_blob("f0"), consumed=("one",), events=telling("f0")),
    delete("r@1"),
    delete("r@2"),
    collect,
    advance("r", a=text_blob("r3"), consumed=("three",), events=telling("r3")),
    post("f", "two"),
    delete("f@0"),
    advance("f", a=text_blob("f0 again"), events=telling("f0 again")),
)
HISTORIES = pytest.mark.parametrize("history", [HISTORY, INBOX_HISTORY], ids=["journals", "inboxes"])


async def undisturbed(machine: Machine, history: Sequence[Operation], retention: Retention | None = None) -> list[View]:
    clock = ManualClock()
    store = machine.open(SimulatedDisk(), clock, retention)
    views = [await view(store)]
    for operation in history:
        await operation(store, clock)
        views.append(await view(store))
    return views


async def crashes(
    machine: Machine, how: Failure, history: Sequence[Operation], retention: Retention | None = None
) -> list[tuple[int, SimulatedDisk]]:
    """What a crash at each moment leaves, and the number of the operation that it interrupts."""
    disk, clock = RecordingDisk(how), ManualClock()
    store = machine.open(disk, clock, retention)
    found: list[tuple[int, SimulatedDisk]] = []
    for number, operation in enumerate(history):
        await operation(store, clock)
        found += [(number, left) for left in disk.left]
        disk.left.clear()
    assert len(found) > 50
    return found


def opened(machine: Machine, disk: SimulatedDisk, clock: ManualClock) -> Store:
    """The store, at the second try if the first one fails."""
    try:
        return machine.open(disk, clock)
    except WorkflowCheckpointException:
        return machine.open(disk, clock)


@HISTORIES
@pytest.mark.parametrize("how", ["before", "torn"])
async def test_a_crash_leaves_the_old_history_or_the_new_one(
    machine: Machine, how: Failure, history: Sequence[Operation]
) -> None:
    views = await undisturbed(machine, history)
    for moment, (number, left) in enumerate((await crashes(machine, how, history))[::STRIDE]):
        clock = ManualClock()
        reopened = machine.open(left, clock)
        seen = await view(reopened)
        assert seen in views[number : number + 2], f"crash {moment}, in operation {number}"
        was_done = seen == views[number + 1]
        for operation in history[number + was_done :]:
            await operation(reopened, clock)
        assert await view(reopened) == views[-1], f"after crash {moment}, in operation {number}"


@HISTORIES
@pytest.mark.parametrize("how", ["before", "torn"])
async def test_failed_operation_can_be_repeated(machine: Machine, how: Failure, history: Sequence[Operation]) -> None:
    views = await undisturbed(machine, history)
    failing = 0
    for failing in itertools.count(1, STRIDE):
        clock = ManualClock()
        disk = FailingDisk(failing, how)
        store = opened(machine, disk, clock)
        for number, operation in enumerate(history):
            try:
                await operation(store, clock)
            except WorkflowCheckpointException:
                seen = await view(store)
                assert seen in views[number : number + 2], f"failure {failing} in operation {number}"
                if seen == views[number]:
                    await operation(store, clock)
        assert await view(store) == views[-1], f"after failure {failing}"
        if not disk.has_failed:
            break
    assert failing > 50


FORGETFUL = Retention(checkpoints=LatestOnly(), finished_runs=KeepFor(timedelta(0)), events=KeepLast(3))
FORGETFUL_HISTORY: Sequence[Operation] = (
    advance("s", a=text_blob("s0"), events=telling("s0")),
    after_an_hour,
    post("s", "one"),
    advance("s", a=text_blob("s1"), big=BIG, settled=True, consumed=("one",), events=telling("s1")),
    note("s", "x"),
    after_an_hour,
    advance("r", a=text_blob("r0"), big=BIG, events=telling("r0", "too")),
    advance("r", a=text_blob("r1"), big=BIG, events=telling("r1")),
    fork("f", "r@1"),
    advance("r", a=text_blob("r2"), events=telling("r2", "too")),
    advance("f", a=text_blob("f0"), big=BIG),
    advance("r", a=text_blob("r3")),
    advance("r", a=text_blob("r4"), events=telling("r4")),
)


@pytest.mark.parametrize("how", ["before", "torn"])
async def test_a_crash_while_forgetting_loses_nothing_and_leaves_nothing(machine: Machine, how: Failure) -> None:
    views = await undisturbed(machine, FORGETFUL_HISTORY, FORGETFUL)
    for moment, (number, disk) in enumerate((await crashes(machine, how, FORGETFUL_HISTORY, FORGETFUL))[::STRIDE]):
        clock = ManualClock()
        clock.advance(timedelta(hours=2))
        reopened = machine.open(disk, clock, FORGETFUL)
        seen = await view(reopened)
        # The finished run goes at one of the commits after it.
        compared = "rfs" if number < 6 else "rf"
        was_done = is_alike(seen, views[number + 1], compared)
        assert was_done or is_alike(seen, views[number], compared)
        assert seen.journals["s"] == [] or seen.runs["s"] is not None
        for run in seen.runs.values():
            assert run is None or run[0] in dict(seen.contents)
        if seen.runs["s"] is not None:
            await reopened.release(await reopened.acquire("s"))
        for operation in FORGETFUL_HISTORY[number + was_done :]:
            await operation(reopened, clock)
        await advance("r", a=text_blob("r5"), events=telling("r5"))(reopened, clock)
        last = await view(reopened)
        assert [name for name, _, _ in last.told["r"]] == ["4+2 r@2", "6+1 r@4", "7+1 r@5"]
        assert [checkpoint_id for checkpoint_id, _ in last.contents] == ["f@0", "r@5"]
        assert last.runs["s"] is None
        await reopened.collect()
        left = [path for path in disk.files() if path.parent.name in {"journal", "inbox", "events"}]
        assert [path.name for path in left] == ["r.log"], f"after crash {moment}, in operation {number}"
        assert left[0].parent.name == "events"


def is_alike(one: View, other: View, run_ids: str) -> bool:
    """Whether these runs are the same in both, with their inboxes and what they told."""
    return all(
        (one.runs[run_id], one.inboxes[run_id], one.told[run_id])
        == (other.runs[run_id], other.inboxes[run_id], other.told[run_id])
        for run_id in run_ids
    )


class DiskUpToALink(Disk):
    """Crashes after a checkpoint has appeared, and does nothing from then on."""

    def __init__(self) -> None:
        self.has_crashed = False

    @override
    def link(self, source: Path, target: Path) -> None:
        super().link(source, target)
        if target.suffix == ".json":
            self.has_crashed = True
            raise Crash

    @override
    def remove(self, path: Path) -> None:
        if self.has_crashed:
            raise Crash
        super().remove(path)


async def test_a_journal_of_a_deleted_checkpoint_is_not_one_of_its_namesake(quick_path: Path) -> None:
    store, clock = FileStore(quick_path), ManualClock()
    run = await RunDriver.start(store, clock, "r")
    await run.commit()
    await run.commit(checkpoint_id="mine")
    await run.note(JournalRecord("a", b"of the first"))
    path = quick_path / ".perdure" / "journal" / "r.log"
    leftover = path.read_bytes()
    await store.delete("mine")
    path.write_bytes(leftover)
    run.store, run.head = FileStore(quick_path, disk=DiskUpToALink()), "r@0"
    with pytest.raises(Crash):
        await run.commit(checkpoint_id="mine")
    assert (await store.manifest("mine")).position == 2
    assert list(await store.journal("r")) == []
    await run.store.close()
    await store.close()


@pytest.mark.parametrize("checkpoint", ["there", "not there"])
async def test_a_command_has_left_the_inbox_exactly_if_the_commit_has_happened(
    quick_path: Path, checkpoint: str
) -> None:
    is_committed = checkpoint == "there"
    store, clock = FileStore(quick_path), ManualClock()
    run = await RunDriver.start(store, clock, "r")
    await run.commit()
    for name in ("a", "b"):
        await store.post("r", Command(name, "message", b""))
    run.store = FileStore(quick_path, disk=DiskUpToALink())
    with pytest.raises(Crash):
        await run.commit(consumed=("a",), events=telling("x"))
    if not is_committed:
        (quick_path / "r@1.json").unlink()
    assert [command.id for command in await store.inbox("r")] == (["b"] if is_committed else ["a", "b"])
    assert [batch.checkpoint_id for batch in await store.events("r")] == (["r@1"] if is_committed else [])
    await run.store.close()
    run.store, run.head, run.position = store, "r@1" if is_committed else "r@0", int(is_committed)
    await run.commit(consumed=("a", "b"), events=telling("y"))
    await store.delete("r@1")
    assert list(await store.inbox("r")) == []
    assert [batch.first for batch in await store.events("r")] == ([1, 2] if is_committed else [1])
    await store.close()
