"""Histories of runs, operation by operation, and all that a reader can see of them."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, TypeAlias

from perdure.records import Command, JournalRecord, KeepFor, KeepLast, LatestOnly, NewEvents, Retention, digest
from perdure.testing.stores import ManualClock, RunDriver, halted, new_run, raw_blob, text_blob

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

    from perdure.records import Blob, EventBatch, Manifest, RunRecord
    from perdure.storage import Store

RUNS = "rsf"
LARGE = b"large " * 2000

Work: TypeAlias = "Callable[[Store, ManualClock], Awaitable[None]]"


@dataclass(frozen=True)
class Operation:
    """One thing that a process does. Without `lasts` it may be lost until its run writes something that does."""

    work: Work
    run_id: str | None = None
    lasts: bool = True


@dataclass(frozen=True)
class View:
    """All that a reader can see, except owners and halts, which a lease changes before the operation itself."""

    runs: Mapping[str, RunRecord | None]
    journals: Mapping[str, Sequence[JournalRecord]]
    inboxes: Mapping[str, Sequence[Command]]
    events: Mapping[str, Sequence[EventBatch]]
    latest: Manifest | None
    checkpoints: Mapping[str, Manifest]


async def view(store: Store) -> View:
    """What is there, all of it read and found to be whole."""
    records = {run_id: await store.run(run_id) for run_id in RUNS}
    journals = {run_id: list(await store.journal(run_id)) for run_id in RUNS}
    inboxes = {run_id: [replace(each, number=0) for each in await store.inbox(run_id)] for run_id in RUNS}
    events = {run_id: list(await store.events(run_id)) for run_id in RUNS}
    checkpoints = {manifest.checkpoint_id: manifest for manifest in await store.manifests()}
    for each in itertools.chain(*journals.values(), *inboxes.values(), *events.values()):
        await require_whole(store, each.refs)
    for manifest in checkpoints.values():
        await require_whole(store, manifest.toc.values())
    return View(
        runs={
            run_id: record and replace(record, owner=None, attempts=0, halt=None) for run_id, record in records.items()
        },
        journals=journals,
        inboxes=inboxes,
        events=events,
        latest=await store.latest(workflow_name="flow"),
        checkpoints=checkpoints,
    )


async def require_whole(store: Store, roots: Collection[str]) -> None:
    """These parts are there, each with the bytes that its hash promises."""
    blobs = await store.blobs(roots)
    assert blobs.keys() >= set(roots), f"of {roots} only {list(blobs)} are there"
    assert all(digest(data) == blob_hash for blob_hash, data in blobs.items())


def advance(run_id: str, *, settled: bool = False, **values: Blob) -> Operation:
    async def work(store: Store, clock: ManualClock) -> None:
        run = await acquired(store, clock, run_id)
        commit = run.next_commit(values, settled=settled)
        # As an engine does: only what the head does not have.
        known = set((await store.manifest(run.head)).toc.values()) if run.head else set[str]()
        blobs = tuple(blob for blob in commit.blobs if blob.hash not in known)
        consumed = tuple(command.id for command in await store.inbox(run_id))
        told = (text_blob(f"told by {commit.manifest.checkpoint_id}"), *values.values())
        events = NewEvents(2, b"two events", refs=tuple(blob.hash for blob in told), blobs=told)
        await run.write(replace(commit, blobs=blobs, consumed=consumed, events=events))
        await run.release()

    return Operation(work, run_id)


async def acquired(store: Store, clock: ManualClock, run_id: str) -> RunDriver:
    run = RunDriver(store, clock, run_id, "flow")
    run.lease = await store.acquire(run_id, create=new_run(run_id), takeover=True)
    record = await store.run(run_id)
    run.head, run.position = (record.head, record.position) if record else (None, -1)
    return run


def note(run_id: str, *keys: str, durable: bool = True, data: bytes = b"done") -> Operation:
    """Record something under each key, with a small part and a large one."""

    async def work(store: Store, clock: ManualClock) -> None:
        run = await acquired(store, clock, run_id)
        records: list[JournalRecord] = []
        for key in keys:
            blobs = (text_blob(f"{key} of {run.head}"), raw_blob(LARGE + key.encode()))
            records.append(JournalRecord(key, data, tuple(blob.hash for blob in blobs), blobs))
        await run.note(*records, durable=durable)
        await run.release()

    return Operation(work, run_id, lasts=durable)


def post(run_id: str, command_id: str, *, expects: Blob | None = None) -> Operation:
    """Put a command into an inbox, with a small part and a large one."""

    async def work(store: Store, clock: ManualClock) -> None:
        del clock
        blobs = (text_blob(command_id), raw_blob(LARGE + command_id.encode()))
        refs = tuple(blob.hash for blob in blobs)
        await store.post(
            run_id, Command(command_id, "order", b"do it", refs, blobs, expects=expects and ("a", expects.hash))
        )

    return Operation(work)


def take(run_id: str) -> Operation:
    """Claim a run and leave it so."""

    async def work(store: Store, clock: ManualClock) -> None:
        await acquired(store, clock, run_id)

    return Operation(work)


def fail(run_id: str) -> Operation:
    """Release a run with a failure, whose events have a small part and a large one."""

    async def work(store: Store, clock: ManualClock) -> None:
        run = await acquired(store, clock, run_id)
        blobs = (text_blob(f"failed at {run.head}"), raw_blob(LARGE + b"failed"))
        events = NewEvents(1, b"failed", tuple(blob.hash for blob in blobs), blobs)
        await run.release(halt=replace(halted(), events=events))

    return Operation(work, run_id)


def fork(run_id: str, parent: str) -> Operation:
    async def work(store: Store, clock: ManualClock) -> None:
        del clock
        await store.release(await store.acquire(run_id, create=new_run(run_id, parent=parent)))

    return Operation(work, run_id)


def rewind(run_id: str, to: str, *, nonce: str) -> Operation:
    async def work(store: Store, clock: ManualClock) -> None:
        run = await acquired(store, clock, run_id)
        await run.rewind(to, nonce=nonce)
        await run.release()

    return Operation(work, run_id)


def delete(checkpoint_id: str, *, is_head: bool) -> Operation:
    """Forget a checkpoint; with the head goes its journal."""

    async def work(store: Store, clock: ManualClock) -> None:
        del clock
        await store.delete(checkpoint_id)

    return Operation(work, checkpoint_id[0], lasts=is_head)


def collect() -> Operation:
    async def work(store: Store, clock: ManualClock) -> None:
        del clock
        await store.collect()

    return Operation(work)


def an_hour_passes() -> Operation:
    async def work(store: Store, clock: ManualClock) -> None:
        del store
        clock.advance(timedelta(hours=1))

    return Operation(work)


AN_HOUR_PASSES = an_hour_passes()
FURTHER = advance("r", a=text_blob("r5"))
SMALL = text_blob("constant")
BIG = raw_blob(LARGE)
HISTORY: Sequence[Operation] = (
    advance("r", a=text_blob("r0"), small=SMALL, big=BIG),
    note("r", "x", durable=False),
    note("r", "w", durable=False),
    note("r", "y", "x"),
    note("r", "x", durable=False, data=b"done again"),
    post("r", "first"),
    post("r", "second", expects=text_blob("r0")),
    advance("r", a=text_blob("r1"), small=SMALL, big=BIG),
    advance("s", a=text_blob("s0"), small=SMALL),
    take("r"),
    fail("r"),
    advance("r", a=text_blob("r2"), small=SMALL, other=raw_blob(LARGE + b"2")),
    fork("f", "r@1"),
    note("f", "x", "z"),
    advance("s", a=text_blob("s1"), settled=True),
    note("r", "x", "y"),
    post("r", "lasting"),
    post("r", "dropped", expects=text_blob("r2")),
    post("s", "waiting"),
    rewind("r", "r@0", nonce="renewed"),
    note("r", "z", durable=False),
    note("r", "y", durable=False),
    advance("f", a=text_blob("f0"), small=SMALL, big=BIG),
    rewind("r", "r@0", nonce="once more"),
    note("r", "v"),
    advance("r", a=text_blob("r3"), small=SMALL),
    note("r", "x"),
    note("s", "x"),
    collect(),
    delete("r@3", is_head=True),
    note("r", "x", durable=False),
    delete("r@1", is_head=False),
    fail("r"),
    take("s"),
    delete("s@1", is_head=True),
    delete("s@0", is_head=True),
    collect(),
    advance("s", a=text_blob("s0 again")),
    advance("r", a=text_blob("r4"), small=SMALL, big=BIG),
    collect(),
)

FORGETFUL = Retention(checkpoints=LatestOnly(), finished_runs=KeepFor(timedelta(0)), events=KeepLast(2))
FORGETFUL_HISTORY: Sequence[Operation] = (
    advance("s", a=text_blob("s0")),
    AN_HOUR_PASSES,
    advance("s", a=text_blob("s1"), big=BIG, settled=True),
    note("s", "x"),
    AN_HOUR_PASSES,
    advance("r", a=text_blob("r0"), big=BIG),
    note("r", "x", durable=False),
    advance("r", a=text_blob("r1"), big=BIG),
    fork("f", "r@1"),
    advance("r", a=text_blob("r2")),
    fail("r"),
    advance("f", a=text_blob("f0"), big=BIG),
    collect(),
    advance("r", a=text_blob("r3")),
    advance("r", a=text_blob("r4")),
    collect(),
)
