"""Shared parts of the store tests: the store under test, its clock, and a driver of runs. Needs pytest."""

from __future__ import annotations

import asyncio
import functools
import inspect
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, ParamSpec, TypedDict, TypeVar, Unpack

import pytest
from typing_extensions import override

from perdure.errors import LeaseLostError, StaleHeadError
from perdure.records import (
    Archive,
    Blob,
    Command,
    Commit,
    EventBatch,
    Halt,
    HaltKind,
    HeadStatus,
    JournalRecord,
    Lease,
    Manifest,
    Mark,
    NewEvents,
    NewRun,
    Retention,
    RunRecord,
)
from perdure.storage import HostStore, MemoryStore, Store, TenantStore
from perdure.testing.clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence
    from pathlib import Path

    from perdure.clock import Clock

P = ParamSpec("P")
E = TypeVar("E", bound=Exception)

UNWOKEN_SECONDS = 30.0
"""Time after which a test gives up waiting for a wake-up."""

REFUSED = (LeaseLostError, StaleHeadError)
"""Errors for a writer whose run was replaced or removed."""


def keeps(**kept: Any) -> pytest.MarkDecorator:
    """Let the `store` of a test have a `Retention` of these."""
    return pytest.mark.parametrize("retention", [Retention(**kept)], ids=["-".join(kept)])


class AsyncSuite:
    """Base class of async tests. Each runs in its own event loop, so that no pytest plugin is needed.

    A fixture may return a coroutine: the test gets its result. Stores are closed after the test.
    """

    def __init_subclass__(cls) -> None:
        if cls.__module__.startswith("perdure."):
            for name, test in list(vars(cls).items()):
                if name.startswith("test_") and inspect.iscoroutinefunction(test):
                    setattr(cls, name, _in_a_loop(test))


class StoreSuite(AsyncSuite):
    """Base class of tests that each get their own store."""

    def open_store(self, directory: Path, *, retention: Retention, clock: Clock) -> Store:
        """Return a new, empty store. It may use `directory`."""
        raise NotImplementedError(f"{type(self).__name__} must define open_store")

    @pytest.fixture
    def clock(self) -> ManualClock:
        """The store's clock."""
        return ManualClock()

    @pytest.fixture
    def retention(self) -> Retention:
        """The store's retention. `keeps` sets another one."""
        return Retention()

    @pytest.fixture
    def store(self, tmp_path: Path, clock: ManualClock, retention: Retention) -> Store:
        """An empty store."""
        return self.open_store(tmp_path, retention=retention, clock=clock)

    @pytest.fixture
    def fresh(self, store: Store, clock: ManualClock) -> Coroutine[object, object, RunDriver]:
        """A run without a checkpoint, whose lease the driver holds."""
        return RunDriver.start(store, clock, "r")

    @pytest.fixture
    def run(self, store: Store, clock: ManualClock) -> Coroutine[object, object, RunDriver]:
        """A run with one checkpoint, r@0, whose lease the driver holds."""
        return RunDriver.start(store, clock, "r", commits=1)

    @pytest.fixture
    def sample(self, store: Store, clock: ManualClock) -> Coroutine[object, object, RunDriver]:
        """A run with all kinds of data, as `make_sample_run` makes it."""
        return make_sample_run(store, clock)


class TenantStoreSuite(StoreSuite):
    """Tests of a store with whole runs and tenants."""

    @override
    def open_store(self, directory: Path, *, retention: Retention, clock: Clock) -> TenantStore:
        raise NotImplementedError(f"{type(self).__name__} must define open_store")

    @pytest.fixture
    def elsewhere(self, clock: ManualClock) -> MemoryStore:
        """Another store."""
        return MemoryStore(clock=clock)

    @pytest.fixture
    def archive(self, clock: ManualClock) -> Coroutine[object, object, Archive]:
        """The archive of a run from another store."""
        return archive_from_elsewhere(clock)


class HostStoreSuite(TenantStoreSuite):
    """Tests of a store that serves hosts."""

    @override
    def open_store(self, directory: Path, *, retention: Retention, clock: Clock) -> HostStore:
        raise NotImplementedError(f"{type(self).__name__} must define open_store")


def _in_a_loop(test: Callable[P, Coroutine[object, object, None]]) -> Callable[P, None]:
    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        asyncio.run(_run(test, *args, **kwargs))

    return run


async def _run(test: Callable[P, Coroutine[object, object, None]], *args: P.args, **kwargs: P.kwargs) -> None:
    async with AsyncExitStack() as stack:
        for name, value in kwargs.items():
            if inspect.iscoroutine(value):
                kwargs[name] = await value
        for name in ("store", "fresh", "run", "sample"):
            if name in kwargs:
                found: Any = kwargs[name]
                stack.push_async_callback((found if name == "store" else found.store).close)
        await test(*args, **kwargs)


async def refused(error: type[E] | tuple[type[E], ...], doing: Awaitable[object], match: str | None = None) -> E:
    """Require that this fails, and return the error."""
    with pytest.raises(error, match=match) as caught:
        await doing
    return caught.value


async def latest_id(store: Store, workflow_name: str) -> str:
    """Return the id of a workflow's newest checkpoint."""
    manifest = await store.latest(workflow_name=workflow_name)
    assert manifest is not None
    return manifest.checkpoint_id


async def read_contents(store: Store, checkpoint_id: str) -> Mapping[str, bytes]:
    """Return the values of a checkpoint by path."""
    manifest = await store.manifest(checkpoint_id)
    blobs = await store.blobs(manifest.toc.values())
    return {path: blobs[blob] for path, blob in manifest.toc.items()}


ODD_IDS = (
    "plain",
    "with space",
    "a/b",
    "a%2Fb",
    "a:b*c?d",
    "UPPER",
    "upper",
    ".hidden",
    "x.json",
    "naïve",
    "日本語",
    "👩‍👩‍👧",
    "~tilde",
    "%7Etilde",
    "-",
    "n" * 200,
    "n" * 199 + "m",
    "日" * 200,
    "日" * 199 + "月",
)
LEAVING_IDS = ("..", "../x", "/etc/passwd", "a/../../x", "..\\x", "a/b/../../../c")
REFUSED_IDS = ("", "new\nline", "nul\0", "n" * 300, "\x1b[31m", *LEAVING_IDS)

NOWHERE = Mark(head="nowhere", events=-1, commands=-1)
"""A mark of no run."""


class Further(TypedDict, total=False):
    """Other values of a commit than usual. `manifest` has those of its manifest."""

    checkpoint_id: str
    manifest: Mapping[str, Any]
    blobs: tuple[Blob, ...]
    expected_head: str
    settled: bool
    status: HeadStatus
    wake_at: str | None
    consumed: tuple[str, ...]
    taken: tuple[str, ...]
    events: NewEvents | None


@dataclass(eq=False)
class RunDriver:
    """Advances one run in a store like an engine, and knows its expected position."""

    store: Store
    clock: Clock
    run_id: str
    workflow_name: str
    lease: Lease = field(init=False)
    head: str | None = None
    position: int = -1
    waiting: int = 0
    """Number of the newest waiting command, as the last commit returned it."""

    @classmethod
    async def start(
        cls,
        store: Store,
        clock: Clock,
        run_id: str,
        *,
        workflow_name: str = "flow",
        parent: str | None = None,
        commits: int = 0,
    ) -> RunDriver:
        """Take the lease of a new run, or of a fork if there is a `parent`, and commit empty checkpoints."""
        driver = cls(store, clock, run_id, workflow_name, head=parent)
        driver.lease = await store.acquire(run_id, create=new_run(run_id, workflow_name, parent=parent))
        for _ in range(commits):
            await driver.commit()
        return driver

    async def another(self, run_id: str, *, parent: str | None = None, commits: int = 0) -> RunDriver:
        """Start another run in the same store."""
        return await RunDriver.start(self.store, self.clock, run_id, parent=parent, commits=commits)

    def next_commit(self, values: Mapping[str, Blob] | None = None, *inner: Blob, **further: Unpack[Further]) -> Commit:
        """Return the next commit. `values` has blobs by path, `inner` those that they refer to."""
        contents = values or {}
        manifest = Manifest(
            checkpoint_id=further.pop("checkpoint_id", f"{self.run_id}@{self.position + 1}"),
            run_id=self.run_id,
            workflow_name=self.workflow_name,
            position=self.position + 1,
            previous_id=self.head,
            timestamp=self.clock.now().isoformat(),
            iteration_count=self.position + 1,
            header=b'{"note":"f\xc3\xbcr dich","numbers":[1,2.5,null]}',
            toc={path: blob.hash for path, blob in contents.items()},
        )
        manifest = replace(manifest, **further.pop("manifest", {}))
        return replace(Commit(manifest, (*contents.values(), *inner), self.head, settled=False), **further)

    async def write(self, commit: Commit, *further: Blob) -> str:
        """Write the commit, with further blobs that its own refer to."""
        self.waiting = await self.store.commit(self.lease, replace(commit, blobs=(*commit.blobs, *further)))
        self.head = commit.manifest.checkpoint_id
        self.position = commit.manifest.position
        return self.head

    async def commit(self, values: Mapping[str, Blob] | None = None, *inner: Blob, **further: Unpack[Further]) -> str:
        """Write the next commit and return its id."""
        return await self.write(self.next_commit(values, *inner, **further))

    async def rewind(self, to: str, *, nonce: str = "another") -> None:
        """Move the head back."""
        assert self.head is not None
        await self.store.rewind(self.lease, expected_head=self.head, to=to, nonce=nonce)
        self.head = to

    async def note(self, *records: JournalRecord, durable: bool = True) -> None:
        """Record finished work of the current superstep."""
        await self.store.record(self.lease, head=self.head, records=records, durable=durable)

    async def noted(self) -> Sequence[str]:
        """Return key and data of each journal record."""
        return [f"{record.key}={record.data.decode()}" for record in await self.store.journal(self.run_id)]

    async def post(self, *commands: Command) -> Sequence[int]:
        """Post commands and return their numbers."""
        return [(await self.store.post(self.run_id, command)).number for command in commands]

    async def inbox(self) -> Sequence[str]:
        """Return id and data of each waiting command."""
        return [f"{command.id}={command.data.decode()}" for command in await self.store.inbox(self.run_id)]

    async def events(self, *, after: int = 0, limit: int = 1000) -> Sequence[str]:
        """Return number and text of each event."""
        return [
            f"{number}={text}"
            for batch in await self.store.events(self.run_id, after=after, limit=limit)
            for number, text in enumerate(batch.data.decode().split("\n"), start=batch.first)
        ]

    async def mark(self) -> Mark:
        """Return the run's mark."""
        return await self.store.watch(self.run_id, seen=NOWHERE)

    def at(self, head: str, events: int = 0, commands: int = 0) -> Mark:
        """Return the mark that the run should have at this head, while this driver holds its lease."""
        return Mark(head, events, commands, self.lease.owner.id)

    async def reacquire(self, *, token: int | None = None) -> Lease:
        """Take the lease again, like a later process that finds the run at the same place."""
        self.lease = await self.store.acquire(self.run_id, token=token)
        return self.lease

    async def release(self, *, halt: Halt | None = None) -> None:
        """Release the run."""
        await self.store.release(self.lease, halt=halt)

    async def record(self) -> RunRecord:
        """Return the run's record in the store."""
        record = await self.store.run(self.run_id)
        assert record is not None
        return record

    async def require(self, **expected: object) -> None:
        """Require these values in the run's record."""
        record = await self.record()
        assert {name: getattr(record, name) for name in expected} == expected


def new_run(run_id: str, workflow_name: str = "flow", *, parent: str | None = None) -> NewRun:
    """Return the record of a new run."""
    return NewRun(
        run_id=run_id,
        workflow_name=workflow_name,
        created_at="2024-01-01T00:00:00+00:00",
        nonce=f"nonce of {run_id}",
        input_digest="digest",
        parent_checkpoint_id=parent,
    )


def halted(kind: HaltKind = "failed", reason: str = "of this and that") -> Halt:
    """Return the reason for which a run halts."""
    return Halt(kind, "2024-02-03T04:05:06+00:00", reason, b"\xff of the engine\n\0")


def text_blob(text: str, *refs: Blob) -> Blob:
    """Return a small blob: a JSON string."""
    return Blob.of(f'"{text}"'.encode(), tuple(blob.hash for blob in refs))


def raw_blob(data: bytes, *refs: Blob) -> Blob:
    """Return a blob of any bytes."""
    return Blob.of(data, tuple(blob.hash for blob in refs), kind="raw")


def finished(key: str, data: str = "", *blobs: Blob) -> JournalRecord:
    """Return a journal record with the blobs that it refers to."""
    return JournalRecord(key, data.encode(), tuple(blob.hash for blob in blobs), blobs)


def command(command_id: str, data: str = "", *blobs: Blob, expects: tuple[str, str] | None = None) -> Command:
    """Return a command with the blobs that it refers to."""
    return Command(
        command_id, "message", data.encode(), tuple(blob.hash for blob in blobs), blobs=blobs, expects=expects
    )


def events(*texts: str, blobs: tuple[Blob, ...] = ()) -> NewEvents:
    """Return events with these texts, and the blobs that they refer to."""
    return NewEvents(len(texts), "\n".join(texts).encode(), tuple(blob.hash for blob in blobs), blobs)


SOON, LATE = "2024-05-01T10:00:00+00:00", "2025-05-01T10:00:00+00:00"
HEAD = "r@1"
"""Head of the sample run. It was moved back from its last checkpoint, at position 6."""


async def make_sample_run(
    store: Store, clock: Clock, run_id: str = "r", *, name: str = "flöw", of: str = "us"
) -> RunDriver:
    """Make a run with blobs, events, journal and inbox, moved back to its second checkpoint.

    The returned driver holds its lease.

    All contents contain `of`, so that tests can tell the owners apart.
    """
    leaf, asked = raw_blob(f"leaf of {of} ".encode() * 900), text_blob(f"asked by {of}")
    values = {"state/ключ": text_blob(f"tree of {of}", leaf), "empty": raw_blob(b""), "asked": asked}
    run = await RunDriver.start(store, clock, run_id, workflow_name=name)
    await run.commit(values, leaf, events=events(f"1 {of}", f"2 {of}", blobs=(text_blob(f"told to {of}"),)))
    await run.commit({**values, "b": text_blob(f"b of {of}")}, status="waiting", wake_at=SOON)
    await run.post(command("consumed", of))
    await run.commit(status="sleeping", wake_at=LATE, consumed=("consumed",), events=events(f"3 {of}"))
    small, base = text_blob(f"small of {of}"), Blob.of(f'{{"of {of}":"{leaf.hash}"}}'.encode(), (leaf.hash,))
    pieces = {"pieces": f'{{"piece":"of {of}"}}'.encode(), "refs": (small.hash,), "base": base.hash, "gone": ("x",)}
    large = {"c": raw_blob(f"c of {of}".encode() * 900)}
    await run.commit(large, small, base, leaf, checkpoint_id=f"{run_id} by name", manifest=pieces)
    last = {"d": text_blob(f"d of {of}")}
    await run.commit(last, settled=True, status="idle", events=events(f"4 {of}"), manifest={"position": 6})
    await run.rewind(f"{run_id}@1", nonce=f"nonce of {of}")
    await run.note(finished("a", f"first of {of}"), finished("b", of, text_blob(f"noted by {of}", leaf), leaf))
    await run.note(finished("a", f"second of {of}"))
    await run.post(
        command("z", of, raw_blob(f"posted by {of}".encode() * 900)),
        command("expecting", of, expects=("asked", asked.hash)),
        command("a", of),
    )
    return run


@dataclass(frozen=True)
class Picture:
    """All readable data of a run, except its owner and the numbers of its commands."""

    record: RunRecord | None
    manifests: Sequence[Manifest]
    journal: Sequence[JournalRecord]
    inbox: Sequence[Command]
    events: Sequence[EventBatch]
    contents: Mapping[str, bytes]


NOTHING = Picture(None, [], [], [], [], {})
"""Data of a run that does not exist."""


async def read_run(store: Store, run_id: str = "r") -> Picture:
    """Read all data of a run."""
    record = await store.run(run_id)
    manifests = list(await store.manifests(run_id=run_id))
    journal, inbox, told = await store.journal(run_id), await store.inbox(run_id), await store.events(run_id)
    roots = [*chain.from_iterable(each.roots for each in manifests)]
    roots += chain.from_iterable(each.refs for each in (*journal, *inbox, *told))
    return Picture(
        record and replace(record, owner=None, halt=None, attempts=0),
        manifests,
        list(journal),
        [replace(each, number=0) for each in inbox],
        list(told),
        dict(await store.blobs(roots)),
    )


def comparable(archive: Archive) -> Archive:
    """Return an archive without the order of its blobs and the numbers of its commands, which depend on the store."""
    return replace(
        archive,
        blobs=tuple(sorted(archive.blobs, key=lambda blob: blob.hash)),
        inbox=tuple(replace(each, number=0) for each in archive.inbox),
    )


async def archive_from_elsewhere(clock: ManualClock, run_id: str = "r", *, of: str = "another place") -> Archive:
    """Return the archive of a run from another store."""
    store = MemoryStore(clock=clock)
    await make_sample_run(store, clock, run_id, of=of)
    return await store.archive(run_id)


async def watcher(store: Store, run_id: str, *, seen: Mark, commands_only: bool = False) -> asyncio.Task[Mark]:
    """Start a task that watches a run, and return it when it is waiting."""
    task = asyncio.create_task(store.watch(run_id, seen=seen, commands_only=commands_only))
    # The store answers in order, so the watcher is waiting after this call.
    await asyncio.sleep(0)
    await store.run(run_id)
    assert not task.done()
    return task


@asynccontextmanager
async def watching(store: Store, run_id: str, *, seen: Mark) -> AsyncGenerator[asyncio.Task[Mark]]:
    """Watch a run. The block must wake the watcher."""
    task = await watcher(store, run_id, seen=seen)
    yield task
    await asyncio.wait_for(task, UNWOKEN_SECONDS)
