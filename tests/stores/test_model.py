"""Random operations on a store and on a model of it that is too simple to be wrong."""

from __future__ import annotations

import asyncio
import copy
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pytest
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from tests.soak import IS_SOAK, MEMORY

from perdure.errors import (
    CommandWaitsError,
    LeaseLostError,
    RunExistsError,
    RunExportedError,
    RunNotFoundError,
    StaleCommandError,
    StaleHeadError,
    WorkflowCheckpointException,
)
from perdure.records import Blob, Command, EventBatch, FullHistory, JournalRecord, KeepLast, Mark, NewEvents, Retention
from perdure.storage import FileStore, MemoryStore, SqliteStore, is_host_store
from perdure.testing.stores import ManualClock, RunDriver, halted, new_run, raw_blob, text_blob
from perdure.testing.stores.base import comparable

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from perdure.records import Archive, Halt, HaltKind, HeadStatus, Lease
    from perdure.storage import TenantStore

T = TypeVar("T")

RUNS = ("a", "b", "c")
FORKS = ("f", "g")
COMMANDS = ("x", "y", "z")
TENANTS = ("", "tenant")
TIMES = tuple(f"2024-05-0{day}T10:00:00+00:00" for day in (1, 2, 3))
STANDINGS = ("running", "waiting", "sleeping", "idle", "cancelled", "failed", "parked", "exported")
WORKFLOWS = {"a": "one", "b": "one", "c": "two", "f": "one", "g": "two"}
LEAF = text_blob("leaf")
VALUES: tuple[Blob, ...] = (
    text_blob("x"),
    text_blob("y", LEAF),
    raw_blob(b"z" * 5000, LEAF),
    raw_blob(b"w" * 5000),
    text_blob("v" * 4000),
)
RAM_DISK = Path("/dev/shm")


@dataclass(frozen=True)
class Kept:
    checkpoint_id: str
    run_id: str
    position: int
    settled: bool
    status: HeadStatus
    wake_at: str | None
    values: dict[str, Blob]


@dataclass
class Run:
    head: str | None
    parent: str | None
    nonce: str
    position: int = -1
    settled: bool = False
    status: HeadStatus = "running"
    wake_at: str | None = None
    is_acquired: bool = False
    attempts: int = 0
    halt: Halt | None = None
    journal: dict[str, Blob] = field(default_factory=dict[str, Blob])
    inbox: dict[str, Command] = field(default_factory=dict[str, Command])
    posted: int = 0
    events: int = 0
    told: list[EventBatch] = field(default_factory=list[EventBatch])

    @property
    def rests_on(self) -> str | None:
        return self.parent if self.position == -1 else None

    @property
    def is_exported(self) -> bool:
        return self.halt is not None and self.halt.kind == "exported"

    @property
    def may_wake(self) -> bool:
        return self.halt is None and self.status != "cancelled"

    @property
    def is_due(self) -> bool:
        if self.head is None or self.is_acquired or not self.may_wake:
            return False
        return self.status == "running" or bool(self.inbox) or (self.wake_at is not None and self.wake_at <= TIMES[1])

    @property
    def newest_command(self) -> int:
        return max((command.number for command in self.inbox.values()), default=0)

    def move(self, to: Kept) -> None:
        self.head, self.settled, self.status, self.wake_at = to.checkpoint_id, to.settled, to.status, to.wake_at
        self.journal.clear()
        self.inbox = {name: command for name, command in self.inbox.items() if command.expects is None}


@dataclass
class Model:
    """Lists and loops."""

    keep: int | None = None
    kept: list[Kept] = field(default_factory=list[Kept])
    runs: dict[str, Run] = field(default_factory=dict[str, Run])

    def of(self, run_id: str) -> list[Kept]:
        return [kept for kept in self.kept if kept.run_id == run_id]

    def values(self, checkpoint_id: str | None) -> dict[str, Blob]:
        return next((kept.values for kept in self.kept if kept.checkpoint_id == checkpoint_id), dict[str, Blob]())

    def can_be_replaced(self, run_id: str, moved: Moved) -> bool:
        """Whether a run that was exported is not set back, and no fork loses what it rests on."""
        run, ids = self.runs[run_id], {kept.checkpoint_id for kept in self.of(run_id)}
        rested_on = ids & {other.rests_on for other in self.runs.values()}
        is_older = moved.run.position < run.position or moved.run.events < run.events
        return not is_older and rested_on <= {kept.checkpoint_id for kept in moved.kept}

    def tell(self, kept: Kept, events: NewEvents) -> None:
        run = self.runs[kept.run_id]
        if events.count:
            batch = EventBatch(
                kept.run_id, kept.checkpoint_id, run.events + 1, events.count, events.data, refs=events.refs
            )
            run.told.append(batch)
            run.events = batch.last
        if self.keep:
            run.told = run.told[-self.keep :]

    def commit(self, kept: Kept) -> None:
        self.kept.append(kept)
        run = self.runs[kept.run_id]
        run.head, run.position, run.settled = kept.checkpoint_id, kept.position, kept.settled
        run.status, run.wake_at, run.attempts = kept.status, kept.wake_at, 0
        run.journal.clear()
        if self.keep:
            spared = {run.head, *(other.rests_on for other in self.runs.values())}
            for old in self.of(kept.run_id)[: -self.keep]:
                if old.checkpoint_id not in spared:
                    self.kept.remove(old)

    def delete(self, doomed: Kept) -> None:
        self.kept.remove(doomed)
        for run in self.runs.values():
            if run.head == doomed.checkpoint_id:
                run.journal.clear()
        remaining = self.of(doomed.run_id)
        if not remaining:
            del self.runs[doomed.run_id]
        elif self.runs[doomed.run_id].head == doomed.checkpoint_id:
            self.runs[doomed.run_id].move(max(remaining, key=lambda kept: kept.position))

    def is_rested_on(self, run_id: str) -> bool:
        own = {kept.checkpoint_id for kept in self.of(run_id)}
        return any(run.rests_on in own for name, run in self.runs.items() if name != run_id)

    def forget(self, run_id: str) -> None:
        del self.runs[run_id]
        self.kept = [kept for kept in self.kept if kept.run_id != run_id]


@dataclass(frozen=True)
class Moved:
    """A run that can be restored, and the model of it."""

    archive: Archive
    run: Run
    kept: list[Kept]


@dataclass
class Space:
    """What belongs to one tenant, and the model of it."""

    store: TenantStore
    model: Model
    leases: dict[str, Lease] = field(default_factory=dict[str, "Lease"])
    tokens: dict[str, int] = field(default_factory=dict[str, int])
    """By run the largest token that there ever was."""


class StoreMachine(RuleBasedStateMachine):
    """Does the same to both and compares all that can be read."""

    kind: str

    @initialize(keep=st.sampled_from([None, 2]))
    def open(self, keep: int | None) -> None:
        self.directory = tempfile.TemporaryDirectory(dir=RAM_DISK if RAM_DISK.is_dir() else None)
        self.clock = ManualClock()
        kept = KeepLast(keep) if keep else FullHistory()
        retention = Retention(checkpoints=kept, events=kept)
        store = self.open_store(Path(self.directory.name), retention)
        self.spaces = [Space(store.tenant(name) if name else store, Model(keep)) for name in TENANTS]
        self.space = self.spaces[0]
        self.moved: dict[str, Moved] = {}
        self.nonces = 0

    @property
    def store(self) -> TenantStore:
        return self.space.store

    @property
    def model(self) -> Model:
        return self.space.model

    @property
    def leases(self) -> dict[str, Lease]:
        return self.space.leases

    def open_store(self, directory: Path, retention: Retention) -> TenantStore:
        match self.kind:
            case "memory":
                return MemoryStore(retention=retention, clock=self.clock)
            case "sqlite":
                return SqliteStore(directory / "runs.db", retention=retention, clock=self.clock)
            case _:
                return FileStore(directory / "runs", retention=retention, clock=self.clock)

    def teardown(self) -> None:
        if hasattr(self, "spaces"):
            self.wait(self.spaces[0].store.close())
            self.directory.cleanup()

    def wait(self, result: Coroutine[object, object, T]) -> T:
        return asyncio.run(result)

    def driver(self, run_id: str) -> RunDriver:
        driver = RunDriver(self.store, self.clock, run_id, WORKFLOWS[run_id])
        run = self.model.runs[run_id]
        driver.lease, driver.head, driver.position = self.leases[run_id], run.head, run.position
        return driver

    @rule(number=st.integers(0, len(TENANTS) - 1))
    def turn_to(self, number: int) -> None:
        self.space = self.spaces[number]

    @rule(run_id=st.sampled_from(RUNS), creates=st.booleans())
    def acquire(self, run_id: str, *, creates: bool) -> None:
        run = self.model.runs.get(run_id)
        if run is not None and run.is_exported:
            with pytest.raises(RunExportedError):
                self.wait(self.store.acquire(run_id))
            return
        self.nonces += 1
        create = replace(new_run(run_id, WORKFLOWS[run_id]), nonce=f"nonce {self.nonces}") if creates else None
        if (run is None or run.head is None) and not creates:
            with pytest.raises(RunNotFoundError):
                self.wait(self.store.acquire(run_id))
            return
        lease = self.wait(self.store.acquire(run_id, create=create))
        if run is None or run.head is None:
            # It begins now, after all the others.
            self.model.runs.pop(run_id, None)
            self.model.runs[run_id] = Run(head=None, parent=None, nonce=f"nonce {self.nonces}")
        self.acquired(run_id, lease)

    def acquired(self, run_id: str, lease: Lease) -> None:
        run = self.model.runs[run_id]
        run.is_acquired, run.halt, run.attempts = True, None, run.attempts + 1
        assert lease.attempts == run.attempts
        assert lease.token > self.space.tokens.get(run_id, 0)
        self.leases[run_id], self.space.tokens[run_id] = lease, lease.token

    @rule(run_id=st.sampled_from(RUNS + FORKS), step=st.integers(-1, 4))
    def lease_with_a_token(self, run_id: str, step: int) -> None:
        run, token = self.model.runs.get(run_id), self.space.tokens.get(run_id, 0) + step
        if run is None or run.head is None or run_id not in self.leases:
            return
        if step <= 0 or run.is_exported:
            with pytest.raises(RunExportedError if step > 0 else LeaseLostError):
                self.wait(self.store.acquire(run_id, token=token))
            return
        lease = self.wait(self.store.acquire(run_id, token=token))
        assert lease.token == token
        self.acquired(run_id, lease)

    @rule(run_id=st.sampled_from(FORKS), number=st.integers(0, 20))
    def fork(self, run_id: str, number: int) -> None:
        if run_id in self.model.runs or not self.model.kept:
            return
        parent = self.model.kept[number % len(self.model.kept)].checkpoint_id
        create = new_run(run_id, WORKFLOWS[run_id], parent=parent)
        lease = self.wait(self.store.acquire(run_id, create=create))
        self.model.runs[run_id] = Run(head=parent, parent=parent, nonce=create.nonce)
        self.acquired(run_id, lease)

    @rule(run_id=st.sampled_from(RUNS + FORKS), kind=st.sampled_from([None, None, "failed", "parked", "exported"]))
    def release(self, run_id: str, kind: HaltKind | None) -> None:
        if run_id not in self.leases:
            return
        halt = halted(kind) if kind else None
        self.wait(self.store.release(self.leases[run_id], halt=halt))
        run = self.model.runs.get(run_id)
        if run and run.is_acquired:
            run.is_acquired, run.halt, run.attempts = False, halt, 0
            if run.head is None:
                del self.model.runs[run_id]

    @rule(
        run_id=st.sampled_from(RUNS + FORKS),
        steps=st.lists(st.dictionaries(st.sampled_from("pqr"), st.sampled_from(VALUES)), min_size=1, max_size=4),
        settled=st.booleans(),
        standing=st.sampled_from([("running", None), ("waiting", None), ("sleeping", TIMES[0]), ("waiting", TIMES[2])]),
        consumed=st.sets(st.sampled_from(COMMANDS)),
        told=st.lists(st.sampled_from(VALUES), max_size=3),
    )
    def commit(
        self,
        run_id: str,
        steps: list[dict[str, Blob]],
        standing: tuple[HeadStatus, str | None],
        consumed: set[str],
        told: list[Blob],
        *,
        settled: bool,
    ) -> None:
        if run_id not in self.model.runs and run_id in FORKS:
            self.fork(run_id, len(self.model.kept))
        elif run_id not in self.model.runs or not self.model.runs[run_id].is_acquired:
            self.acquire(run_id, creates=True)
        run = self.model.runs.get(run_id)
        if run is None or not run.is_acquired:
            return
        status, wake_at = ("idle", None) if settled else standing
        events = NewEvents(len(told), b"told", tuple(blob.hash for blob in told), (*told, LEAF))
        for values in steps:
            driver = self.driver(run_id)
            commit = driver.next_commit(
                values, settled=settled, status=status, consumed=tuple(consumed), taken=tuple(consumed), events=events
            )
            self.wait(driver.write(replace(commit, wake_at=wake_at), LEAF))
            kept = Kept(commit.manifest.checkpoint_id, run_id, driver.position, settled, status, wake_at, values)
            self.model.commit(kept)
            self.model.tell(kept, events)
            run.inbox = {name: command for name, command in run.inbox.items() if name not in consumed}
            assert driver.waiting == run.newest_command

    @rule(run_id=st.sampled_from(RUNS + FORKS))
    def commit_what_a_command_asks_for(self, run_id: str) -> None:
        run = self.model.runs.get(run_id)
        if run and run.is_acquired and run.inbox:
            driver = self.driver(run_id)
            with pytest.raises(CommandWaitsError):
                self.wait(driver.write(driver.next_commit(taken=tuple(run.inbox), consumed=tuple(run.inbox)[1:])))

    @rule(
        run_id=st.sampled_from(RUNS + FORKS),
        name=st.sampled_from(COMMANDS),
        blob=st.sampled_from(VALUES),
        expects=st.one_of(st.none(), st.tuples(st.sampled_from("pqr"), st.sampled_from(VALUES))),
    )
    def post(self, run_id: str, name: str, blob: Blob, expects: tuple[str, Blob] | None) -> None:
        run = self.model.runs.get(run_id)
        expected = (expects[0], expects[1].hash) if expects else None
        command = Command(name, "kind", name.encode(), (blob.hash,), (blob, LEAF), expects=expected)
        if run is None or run.head is None:
            with pytest.raises(RunNotFoundError):
                self.wait(self.store.post(run_id, command))
        elif run.is_exported and name not in run.inbox:
            with pytest.raises(RunExportedError):
                self.wait(self.store.post(run_id, command))
        elif name in run.inbox:
            assert self.wait(self.store.post(run_id, command)) == run.inbox[name]
        elif expects and self.model.values(run.head).get(expects[0]) != expects[1]:
            with pytest.raises(StaleCommandError):
                self.wait(self.store.post(run_id, command))
        else:
            posted = run.inbox[name] = self.wait(self.store.post(run_id, command))
            assert posted == replace(command, blobs=(), number=posted.number)
            assert posted.number > run.posted
            run.posted = posted.number

    @rule(
        run_id=st.sampled_from(RUNS + FORKS),
        finished=st.lists(st.tuples(st.sampled_from("klm"), st.sampled_from(VALUES)), min_size=1, max_size=3),
        durable=st.booleans(),
    )
    def note(self, run_id: str, finished: list[tuple[str, Blob]], *, durable: bool) -> None:
        run = self.model.runs.get(run_id)
        if run is None or not run.is_acquired:
            return
        records = [JournalRecord(key, key.encode(), (blob.hash,), (blob, LEAF)) for key, blob in finished]
        self.wait(self.driver(run_id).note(*records, durable=durable))
        run.journal.update(finished)
        run.attempts = 0

    @rule(run_id=st.sampled_from(RUNS + FORKS))
    def note_without_a_lease(self, run_id: str) -> None:
        run = self.model.runs.get(run_id)
        if run_id in self.leases and run and not run.is_acquired:
            with pytest.raises(LeaseLostError):
                self.wait(self.driver(run_id).note(JournalRecord("k", b"lost")))

    @rule(run_id=st.sampled_from(RUNS + FORKS))
    def note_on_another_head(self, run_id: str) -> None:
        run = self.model.runs.get(run_id)
        if run_id in self.leases and run and run.is_acquired:
            driver = self.driver(run_id)
            driver.head = "elsewhere"
            with pytest.raises(StaleHeadError):
                self.wait(driver.note(JournalRecord("k", b"lost")))

    @rule(run_id=st.sampled_from(RUNS + FORKS))
    def commit_without_a_lease(self, run_id: str) -> None:
        run = self.model.runs.get(run_id)
        if run_id in self.leases and run and not run.is_acquired:
            driver = self.driver(run_id)
            with pytest.raises(LeaseLostError):
                self.wait(driver.write(driver.next_commit()))

    @rule(run_id=st.sampled_from(RUNS + FORKS))
    def commit_on_another_head(self, run_id: str) -> None:
        run = self.model.runs.get(run_id)
        if run_id in self.leases and run and run.is_acquired:
            driver = self.driver(run_id)
            with pytest.raises(StaleHeadError):
                self.wait(driver.write(replace(driver.next_commit(), expected_head="elsewhere")))

    @rule(run_id=st.sampled_from(RUNS + FORKS), number=st.integers(0, 20))
    def rewind(self, run_id: str, number: int) -> None:
        history = self.model.of(run_id)
        run = self.model.runs.get(run_id)
        if run is None or not run.is_acquired or not history:
            return
        to = history[number % len(history)]
        self.nonces += 1
        self.wait(self.driver(run_id).rewind(to.checkpoint_id, nonce=f"nonce {self.nonces}"))
        run.nonce = f"nonce {self.nonces}"
        run.move(to)

    @precondition(lambda self: self.model.kept)
    @rule(number=st.integers(0, 20))
    def delete(self, number: int) -> None:
        doomed = self.model.kept[number % len(self.model.kept)]
        assert self.wait(self.store.delete(doomed.checkpoint_id))
        self.model.delete(doomed)

    @rule(run_id=st.sampled_from(RUNS + FORKS))
    def remove(self, run_id: str) -> None:
        run = self.model.runs.get(run_id)
        if run is None or run.head is None:
            assert self.wait(self.store.remove(run_id)) is False
        elif self.model.is_rested_on(run_id):
            with pytest.raises(WorkflowCheckpointException):
                self.wait(self.store.remove(run_id))
        else:
            assert self.wait(self.store.remove(run_id)) is True
            self.model.forget(run_id)

    @rule(run_id=st.sampled_from(RUNS + FORKS))
    def archive(self, run_id: str) -> None:
        run, kept = self.model.runs.get(run_id), self.model.of(run_id)
        if run is None or run.head is None:
            with pytest.raises(RunNotFoundError):
                self.wait(self.store.archive(run_id))
        elif run.rests_on is not None:
            with pytest.raises(WorkflowCheckpointException):
                self.wait(self.store.archive(run_id))
        else:
            archive = self.wait(self.store.archive(run_id))
            assert_archived(archive, run, kept)
            left = replace(copy.deepcopy(run), is_acquired=False, halt=None, attempts=0)
            self.moved[run_id] = Moved(archive, left, kept)

    @rule(run_id=st.sampled_from(RUNS + FORKS), takes_a_detour=st.booleans())
    def restore(self, run_id: str, *, takes_a_detour: bool) -> None:
        moved, run = self.moved.get(run_id), self.model.runs.get(run_id)
        if moved is None:
            return
        if run is not None and run.head is not None and not run.is_exported:
            with pytest.raises(RunExistsError):
                self.wait(self.store.restore(moved.archive))
            return
        if run is not None and run.head is not None and not self.model.can_be_replaced(run_id, moved):
            with pytest.raises(WorkflowCheckpointException):
                self.wait(self.store.restore(moved.archive))
            return
        self.wait(self.store.restore(self.wait(detoured(moved.archive)) if takes_a_detour else moved.archive))
        if run is not None:
            self.model.forget(run_id)
        run = self.model.runs[run_id] = copy.deepcopy(moved.run)
        self.model.kept += moved.kept
        waiting = self.wait(self.store.inbox(run_id))
        assert [replace(each, number=0) for each in waiting] == [replace(each, number=0) for each in run.inbox.values()]
        run.inbox = {each.id: each for each in waiting}
        run.posted = run.newest_command

    @rule()
    def collect(self) -> None:
        self.wait(self.store.collect())

    @rule()
    def close(self) -> None:
        self.wait(self.store.close())

    @invariant()
    def both_are_the_same(self) -> None:
        if hasattr(self, "spaces"):
            self.wait(self.compare())

    async def compare(self) -> None:
        for run_id in RUNS + FORKS:
            await self.compare_run(run_id)
            await self.compare_journal(run_id)
            await self.compare_inbox_and_events(run_id)
        known = [run_id for run_id, run in self.model.runs.items() if run.head is not None]
        assert [record.run_id for record in await self.store.runs()] == known
        await self.compare_agenda(known)
        assert list(await self.store.ids()) == [kept.checkpoint_id for kept in self.model.kept]
        for kept in self.model.kept:
            await self.compare_checkpoint(kept)
        for name in ("one", "two"):
            latest = await self.store.latest(workflow_name=name)
            of_workflow = [kept.checkpoint_id for kept in self.model.kept if WORKFLOWS[kept.run_id] == name]
            assert (latest and latest.checkpoint_id) == (of_workflow[-1] if of_workflow else None)

    async def compare_run(self, run_id: str) -> None:
        record, run = await self.store.run(run_id), self.model.runs.get(run_id)
        if run is None or run.head is None:
            assert record is None
            return
        assert record is not None
        assert (record.head, record.position, record.settled, record.nonce, record.parent_checkpoint_id) == (
            (run.head, run.position, run.settled, run.nonce, run.parent)
        )
        assert (record.status, record.wake_at, record.events) == (run.status, run.wake_at, run.events)
        assert (record.halt, record.attempts) == (run.halt, run.attempts)
        assert (record.owner is not None) == run.is_acquired
        history = await self.store.manifests(run_id=run_id)
        assert [manifest.checkpoint_id for manifest in history] == [
            kept.checkpoint_id for kept in self.model.of(run_id)
        ]

    async def compare_agenda(self, known: list[str]) -> None:
        runs = {run_id: self.model.runs[run_id] for run_id in known}
        standings = {run_id: run.halt.kind if run.halt else run.status for run_id, run in runs.items()}
        for status in STANDINGS:
            found = [record.run_id for record in await self.store.runs(status=status)]
            assert found == [run_id for run_id in known if standings[run_id] == status]
        if not is_host_store(self.store):
            return
        due = await self.store.due(at=TIMES[1], workflow_names=["one", "two"], limit=100)
        assert {each.record.run_id: each.commands for each in due} == {
            run_id: run.newest_command for run_id, run in runs.items() if run.is_due
        }
        set_timers = [run.wake_at for run in runs.values() if run.may_wake and run.wake_at]
        wakes = [wake_at for wake_at in set_timers if wake_at > TIMES[0]]
        assert await self.store.next_wake(after=TIMES[0], workflow_names=["one", "two"]) == min(wakes, default=None)

    async def compare_journal(self, run_id: str) -> None:
        run = self.model.runs.get(run_id)
        expected = run.journal if run else {}
        records = await self.store.journal(run_id)
        assert [(record.key, record.data, record.refs) for record in records] == [
            (key, key.encode(), (blob.hash,)) for key, blob in expected.items()
        ]
        blobs = await self.store.blobs(blob.hash for blob in expected.values())
        for blob in expected.values():
            assert blobs[blob.hash] == blob.data
            assert blobs.keys() >= set(blob.refs)

    async def compare_inbox_and_events(self, run_id: str) -> None:
        run = self.model.runs.get(run_id) or Run(head=None, parent=None, nonce="")
        inbox, told = await self.store.inbox(run_id), await self.store.events(run_id)
        assert list(inbox) == list(run.inbox.values())
        assert list(told) == run.told
        newest, is_halted = run.newest_command, run.halt is not None
        mark = Mark(run.head, run.events, newest, is_halted=is_halted) if run.head else Mark()
        seen = await self.store.watch(run_id, seen=replace(mark, events=-1))
        assert replace(seen, owner=None) == mark
        assert (seen.owner is not None) == (run.head is not None and run.is_acquired)
        refs = {ref for each in (*inbox, *told) for ref in each.refs}
        blobs = await self.store.blobs(refs)
        for blob in VALUES:
            if blob.hash in refs:
                assert blobs[blob.hash] == blob.data
                assert blobs.keys() >= set(blob.refs)

    async def compare_checkpoint(self, kept: Kept) -> None:
        manifest = await self.store.manifest(kept.checkpoint_id)
        blobs = await self.store.blobs(manifest.toc.values())
        assert {path: blobs[blob] for path, blob in manifest.toc.items()} == {
            path: blob.data for path, blob in kept.values.items()
        }
        for blob in kept.values.values():
            assert blobs.keys() >= set(blob.refs)


def assert_archived(archive: Archive, run: Run, kept: list[Kept]) -> None:
    assert [(each.manifest.checkpoint_id, each.settled, each.status, each.wake_at) for each in archive.checkpoints] == [
        (each.checkpoint_id, each.settled, each.status, each.wake_at) for each in kept
    ]
    assert [(record.key, record.refs) for record in archive.journal] == [
        (key, (blob.hash,)) for key, blob in run.journal.items()
    ]
    assert list(archive.inbox) == list(run.inbox.values())
    assert list(archive.events) == run.told
    needed = {blob.hash for each in kept for blob in each.values.values()}
    needed |= {ref for each in (*archive.journal, *archive.inbox, *archive.events) for ref in each.refs}
    refs = {ref for blob in VALUES if blob.hash in needed for ref in blob.refs}
    assert sorted(blob.hash for blob in archive.blobs) == sorted(needed | refs)


async def detoured(archive: Archive) -> Archive:
    elsewhere = MemoryStore()
    await elsewhere.restore(archive)
    assert await elsewhere.run(archive.record.run_id) == archive.record
    again = await elsewhere.archive(archive.record.run_id)
    assert comparable(again) == comparable(archive)
    return again


SETTINGS = settings(
    max_examples=60 if IS_SOAK else 6,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    database=None,
)


@pytest.mark.parametrize("kind", ["sqlite", "file", *MEMORY])
def test_a_store_does_what_its_model_does(kind: str) -> None:
    machine = type("Machine", (StoreMachine,), {"kind": kind})
    run_state_machine_as_test(machine, settings=SETTINGS)
