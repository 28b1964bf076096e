"""What the parts of the suite have in common: the store under test and its clock. Needs pytest."""

from __future__ import annotations

import asyncio
import functools
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, ParamSpec, TypedDict

import pytest
from typing_extensions import override

from perdure.errors import ClaimLostError, StaleHeadError
from perdure.records import Command, Commit, Halt, JournalRecord, Manifest, Mark, NewEvents, NewRun, Part, Retention
from perdure.testing.clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence
    from pathlib import Path
    from typing import Unpack

    from perdure.clock import Clock
    from perdure.records import (
        Archive,
        Claim,
        EventBatch,
        HaltKind,
        HeadStatus,
        RunRecord,
    )
    from perdure.storage import HostStore, Store, TenantStore

P = ParamSpec("P")

UNWOKEN_SECONDS = 30.0
"""When a test gives up on someone who should have been woken long ago."""

LATE_COMMITS_MAX = 200
"""How long a collection that nobody asked for may be late, as it runs beside the commits."""

REFUSED = (ClaimLostError, StaleHeadError)
"""What a writer is told whose run was replaced or is gone."""


class StoreSuite:
    """Tests that are run against a store of their own each."""

    def open_store(self, directory: Path, *, retention: Retention, clock: Clock) -> Store:
        """A new, empty store. It may use `directory`."""
        raise NotImplementedError(f"{type(self).__name__} must define open_store")

    @pytest.fixture
    def clock(self) -> ManualClock:
        """The store's clock."""
        return ManualClock()

    @pytest.fixture
    def store(self, tmp_path: Path, clock: ManualClock) -> Store:
        """A store that keeps everything."""
        return self.open_store(tmp_path, retention=Retention(), clock=clock)


class TenantStoreSuite(StoreSuite):
    """Tests of a store with whole runs and tenants."""

    @override
    def open_store(self, directory: Path, *, retention: Retention, clock: Clock) -> TenantStore:
        raise NotImplementedError(f"{type(self).__name__} must define open_store")

    @pytest.fixture
    @override
    def store(self, tmp_path: Path, clock: ManualClock) -> TenantStore:
        return self.open_store(tmp_path, retention=Retention(), clock=clock)


class HostStoreSuite(TenantStoreSuite):
    """Tests of a store that serves hosts."""

    @override
    def open_store(self, directory: Path, *, retention: Retention, clock: Clock) -> HostStore:
        raise NotImplementedError(f"{type(self).__name__} must define open_store")

    @pytest.fixture
    @override
    def store(self, tmp_path: Path, clock: ManualClock) -> HostStore:
        return self.open_store(tmp_path, retention=Retention(), clock=clock)


def in_a_loop(test: Callable[P, Coroutine[object, object, None]]) -> Callable[P, None]:
    """The test as a function that is not async: it has an event loop of its own, whatever plugins pytest has."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


async def latest_id(store: Store, workflow_name: str) -> str:
    """The id of the newest checkpoint of a workflow."""
    manifest = await store.latest(workflow_name=workflow_name)
    assert manifest is not None
    return manifest.checkpoint_id


async def contents_of(store: Store, checkpoint_id: str) -> Mapping[str, bytes]:
    """The values of a checkpoint, by path."""
    manifest = await store.manifest(checkpoint_id)
    parts = await store.parts(manifest.toc.values())
    return {path: parts[part] for path, part in manifest.toc.items()}


async def go_by_themselves(run: RunDriver, parts: Sequence[Part], **values: Part) -> bool:
    """Whether a third of these parts, which nothing needs any more, go while the run goes on with these values.

    Closes the store.
    """
    hashes, fewer = [part.hash for part in parts], 2 * len(parts) // 3
    for _ in range(LATE_COMMITS_MAX):
        if len(await run.store.parts(hashes)) < fewer:
            break
        await run.commit(values)
    # A collection that nobody asked for is waited for by who closes the store.
    await run.store.close()
    return len(await run.store.parts(hashes)) < fewer


NOWHERE = Mark(head="nowhere", events=-1, commands=-1)
"""The mark of no run at all."""


class Further(TypedDict, total=False):
    """What a commit changes besides its checkpoint."""

    settled: bool
    status: HeadStatus
    wake_at: str | None
    consumed: tuple[str, ...]
    taken: tuple[str, ...]
    events: NewEvents | None


class RunDriver:
    """Advances one run in a store, as an engine would, and knows where it should be."""

    def __init__(self, store: Store, clock: Clock, run_id: str, workflow_name: str) -> None:
        self.store = store
        self.clock = clock
        self.run_id = run_id
        self.workflow_name = workflow_name
        self.claim: Claim | None = None
        self.head: str | None = None
        self.position = -1
        self.waiting = 0
        """What the last commit has said: the number of the newest command that waits."""

    @classmethod
    async def start(
        cls, store: Store, clock: Clock, run_id: str, *, workflow_name: str = "flow", parent: str | None = None
    ) -> RunDriver:
        """Claim a new run, a fork if there is a `parent`."""
        driver = cls(store, clock, run_id, workflow_name)
        driver.head = parent
        driver.claim = await store.claim(run_id, create=new_run(run_id, workflow_name, parent=parent))
        return driver

    def next_commit(
        self, values: Mapping[str, Part] | None = None, *, checkpoint_id: str | None = None, **further: Unpack[Further]
    ) -> Commit:
        """The commit that would follow; `values` by path, each with its part."""
        contents = values or {}
        manifest = Manifest(
            checkpoint_id=checkpoint_id or f"{self.run_id}@{self.position + 1}",
            run_id=self.run_id,
            workflow_name=self.workflow_name,
            position=self.position + 1,
            previous_id=self.head,
            timestamp=self.clock.now().isoformat(),
            iteration_count=self.position + 1,
            header=b'{"note":"f\xc3\xbcr dich","numbers":[1,2.5,null]}',
            toc={path: part.hash for path, part in contents.items()},
        )
        return replace(Commit(manifest, tuple(contents.values()), self.head, settled=False), **further)

    async def write(self, commit: Commit, *further: Part) -> str:
        """Commit it, with further parts that its own refer to."""
        assert self.claim is not None
        self.waiting = await self.store.commit(self.claim, replace(commit, parts=(*commit.parts, *further)))
        self.head = commit.manifest.checkpoint_id
        self.position = commit.manifest.position
        return self.head

    async def commit(
        self,
        values: Mapping[str, Part] | None = None,
        *parts: Part,
        checkpoint_id: str | None = None,
        **further: Unpack[Further],
    ) -> str:
        """Write the next commit; its id."""
        return await self.write(self.next_commit(values, checkpoint_id=checkpoint_id, **further), *parts)

    async def rewind(self, to: str, *, nonce: str = "another") -> None:
        """Move the head back."""
        assert self.claim is not None
        assert self.head is not None
        await self.store.rewind(self.claim, expected_head=self.head, to=to, nonce=nonce)
        self.head = to

    async def note(self, *records: JournalRecord, durable: bool = True) -> None:
        """Record what the superstep in progress has finished."""
        assert self.claim is not None
        await self.store.record(self.claim, head=self.head, records=records, durable=durable)

    async def noted(self) -> Sequence[str]:
        """What the journal holds: of each record its key and its data."""
        return [f"{record.key}={record.data.decode()}" for record in await self.store.journal(self.run_id)]

    async def post(self, *commands: Command) -> Sequence[int]:
        """Put commands into the inbox; their numbers."""
        return [(await self.store.post(self.run_id, command)).number for command in commands]

    async def inbox(self) -> Sequence[str]:
        """What waits: of each command its id and its data."""
        return [f"{command.id}={command.data.decode()}" for command in await self.store.inbox(self.run_id)]

    async def events(self, *, after: int = 0, limit: int = 1000) -> Sequence[str]:
        """What was told: of each event its number and its text."""
        return [
            f"{number}={text}"
            for batch in await self.store.events(self.run_id, after=after, limit=limit)
            for number, text in enumerate(batch.data.decode().split("\n"), start=batch.first)
        ]

    async def mark(self) -> Mark:
        """How far the run is."""
        return await self.store.watch(self.run_id, seen=NOWHERE)

    def at(self, head: str, events: int = 0, commands: int = 0) -> Mark:
        """How far the run is while this driver holds it, if it is there."""
        assert self.claim is not None
        return Mark(head, events, commands, self.claim.owner.id)

    async def reclaim(self, *, token: int | None = None) -> Claim:
        """Claim the run anew, as a later life would that finds it where this one left it."""
        self.claim = await self.store.claim(self.run_id, token=token)
        return self.claim

    async def release(self, *, halt: Halt | None = None) -> None:
        """Give the run free."""
        assert self.claim is not None
        await self.store.release(self.claim, halt=halt)

    async def record(self) -> RunRecord:
        """The run as the store knows it."""
        record = await self.store.run(self.run_id)
        assert record is not None
        return record


def new_run(run_id: str, workflow_name: str = "flow", *, parent: str | None = None) -> NewRun:
    """What a run begins as."""
    return NewRun(
        run_id=run_id,
        workflow_name=workflow_name,
        created_at="2024-01-01T00:00:00+00:00",
        nonce=f"nonce of {run_id}",
        input_digest="digest",
        parent_checkpoint_id=parent,
    )


def halted(kind: HaltKind = "failed", reason: str = "of this and that") -> Halt:
    """Why nobody is to go on with a run."""
    return Halt(kind, "2024-02-03T04:05:06+00:00", reason, b"\xff of the engine\n\0")


def text_part(text: str, *refs: Part) -> Part:
    """A small part: a JSON string."""
    return Part.of(f'"{text}"'.encode(), tuple(part.hash for part in refs))


def raw_part(data: bytes, *refs: Part) -> Part:
    """A part of any bytes."""
    return Part.of(data, tuple(part.hash for part in refs), kind="raw")


def finished(key: str, data: str = "", *parts: Part) -> JournalRecord:
    """A record that comes with the parts that it refers to."""
    return JournalRecord(key, data.encode(), tuple(part.hash for part in parts), parts)


def command(command_id: str, data: str = "", *parts: Part, expects: tuple[str, str] | None = None) -> Command:
    """A command that comes with the parts that it refers to."""
    return Command(
        command_id, "message", data.encode(), tuple(part.hash for part in parts), parts=parts, expects=expects
    )


def events(*texts: str, parts: tuple[Part, ...] = ()) -> NewEvents:
    """Events of these texts, which come with the parts that they refer to."""
    return NewEvents(len(texts), "\n".join(texts).encode(), tuple(part.hash for part in parts), parts)


SOON, LATE = "2024-05-01T10:00:00+00:00", "2025-05-01T10:00:00+00:00"
HEAD = "r@1"
"""Where the run of a story is: it was moved back from its last checkpoint, whose position is 6."""


async def storied(store: Store, clock: Clock, run_id: str = "r", *, name: str = "flöw", of: str = "us") -> RunDriver:
    """A run with parts, events, journal and inbox, moved back to its second checkpoint. Its driver holds it.

    Everything that has a content tells whom it is of.
    """
    leaf, asked = raw_part(f"leaf of {of} ".encode() * 900), text_part(f"asked by {of}")
    values = {"state/ключ": text_part(f"tree of {of}", leaf), "empty": raw_part(b""), "asked": asked}
    run = await RunDriver.start(store, clock, run_id, workflow_name=name)
    await run.commit(values, leaf, events=events(f"1 {of}", f"2 {of}", parts=(text_part(f"told to {of}"),)))
    await run.commit({**values, "b": text_part(f"b of {of}")}, status="waiting", wake_at=SOON)
    await run.post(command("consumed", of))
    await run.commit(status="sleeping", wake_at=LATE, consumed=("consumed",), events=events(f"3 {of}"))
    await run.commit({"c": raw_part(f"c of {of}".encode() * 900)}, checkpoint_id=f"{run_id} by name")
    commit = run.next_commit({"d": text_part(f"d of {of}")}, settled=True, status="idle", events=events(f"4 {of}"))
    await run.write(replace(commit, manifest=replace(commit.manifest, position=6)))
    await run.rewind(f"{run_id}@1", nonce=f"nonce of {of}")
    await run.note(finished("a", f"first of {of}"), finished("b", of, text_part(f"noted by {of}", leaf), leaf))
    await run.note(finished("a", f"second of {of}"))
    await run.post(
        command("z", of, raw_part(f"posted by {of}".encode() * 900)),
        command("expecting", of, expects=("asked", asked.hash)),
        command("a", of),
    )
    return run


@dataclass(frozen=True)
class Picture:
    """All that can be read of a run, but for who owns it and how its commands are numbered."""

    record: RunRecord | None
    manifests: Sequence[Manifest]
    journal: Sequence[JournalRecord]
    inbox: Sequence[Command]
    events: Sequence[EventBatch]
    contents: Mapping[str, bytes]


NOTHING = Picture(None, [], [], [], [], {})
"""What there is of a run that is not there."""


async def pictured(store: Store, run_id: str = "r") -> Picture:
    """All that can be read of a run."""
    record = await store.run(run_id)
    manifests = [replace(each, toc=dict(each.toc)) for each in await store.manifests(run_id=run_id)]
    journal, inbox, told = await store.journal(run_id), await store.inbox(run_id), await store.events(run_id)
    roots = [*chain.from_iterable(each.toc.values() for each in manifests)]
    roots += chain.from_iterable(each.refs for each in (*journal, *inbox, *told))
    return Picture(
        record and replace(record, owner=None, halt=None, attempts=0),
        manifests,
        list(journal),
        [replace(each, number=0) for each in inbox],
        list(told),
        dict(await store.parts(roots)),
    )


def comparable(archive: Archive) -> Archive:
    """An archive without what may differ between two stores: the order of its parts, the numbers of its commands."""
    return replace(
        archive,
        checkpoints=tuple(
            replace(each, manifest=replace(each.manifest, toc=dict(each.manifest.toc))) for each in archive.checkpoints
        ),
        parts=tuple(sorted(archive.parts, key=lambda part: part.hash)),
        inbox=tuple(replace(each, number=0) for each in archive.inbox),
    )


class LifeConformance(StoreSuite):
    """A store is bound to its place, not to an event loop or to being open."""

    def test_a_store_outlives_the_event_loops_that_use_it(self, store: Store, clock: ManualClock) -> None:
        run = asyncio.run(RunDriver.start(store, clock, "r"))
        for position in range(3):
            assert asyncio.run(run.commit()) == f"r@{position}"
        asyncio.run(store.close())

    @in_a_loop
    async def test_a_closed_store_opens_again_when_it_is_used(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        await store.close()
        assert list(await store.ids()) == ["r@0"]
        await run.commit()
        await store.close()
        await store.close()
        assert (await run.record()).head == "r@1"
        await store.close()

    @in_a_loop
    async def test_two_stores_are_two_places(self, tmp_path: Path, clock: ManualClock) -> None:
        stores = [self.open_store(tmp_path / name, retention=Retention(), clock=clock) for name in ("one", "two")]
        assert stores[0].place != stores[1].place
        await (await RunDriver.start(stores[0], clock, "r")).commit()
        assert list(await stores[1].ids()) == []
        for store in stores:
            await store.close()
