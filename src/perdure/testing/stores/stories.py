"""A run that has something of everything, and all that can be read of a run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING

from perdure.testing.stores.driver import RunDriver, command, events, finished, raw_part, text_part

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from perdure.clock import Clock
    from perdure.records import Archive, Command, EventBatch, JournalRecord, Manifest, RunRecord
    from perdure.storage import Store

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
