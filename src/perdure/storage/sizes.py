"""How large a run is, what makes it so, and what of it grows. Nothing is decoded for it."""

from __future__ import annotations

from collections import Counter
from itertools import chain
from typing import TYPE_CHECKING

from perdure.codec import dumps
from perdure.data import frozen
from perdure.errors import RunNotFoundError
from perdure.storage.size_table import table
from perdure.storage.weighing import Scales

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from perdure.records import Manifest
    from perdure.storage.port import Store

GROWTH_OVER = (10, 100)
"""How many checkpoints back the head is compared with, where they are still there."""


@frozen
class PartSize:
    """One thing of a run's newest checkpoint: an entry of the state, an executor, the messages on their way, ..."""

    name: str
    """In words, like `state['history']`."""
    size: int
    """Bytes, with all that it is made of."""
    parts: int
    """How many pieces it is made of. A piece that does not change is written once."""
    new: int
    """How many of the bytes the checkpoint that it is compared with does not have."""
    shared: int
    """How many of the bytes something else in this checkpoint is made of as well."""
    growth: Mapping[int, int]
    """By how many bytes it has grown: by number of checkpoints over which."""


@frozen
class SizeReport:
    """The bytes of a run. `str()` of it is a table to read."""

    run_id: str
    checkpoint_id: str | None
    """The newest checkpoint; None before the first."""
    since: str | None
    """The checkpoint that it is compared with; None if no older one is there."""
    size: int
    """Bytes of the newest checkpoint, with all that it is made of."""
    entries: tuple[PartSize, ...]
    """What the newest checkpoint is made of, the largest first."""
    checkpoints: int
    """How many checkpoints of the run are stored."""
    parts_stored: int
    """Bytes of all parts that anything of the run needs, each counted once."""
    manifests_stored: int
    """Bytes of the checkpoints themselves: headers, tables of contents, small values."""
    events_stored: int
    """Bytes of the events that are kept."""
    journal_stored: int
    """Bytes of what the superstep in progress has noted."""
    inbox_stored: int
    """Bytes of the commands that wait."""

    @property
    def stored(self) -> int:
        """Bytes of the whole run. What it shares with other runs counts for each of them."""
        beside = self.events_stored + self.journal_stored + self.inbox_stored
        return self.parts_stored + self.manifests_stored + beside

    @property
    def grows(self) -> tuple[PartSize, ...]:
        """What has grown, the fastest first."""
        growing = [entry for entry in self.entries if _pace(entry) > 0]
        return tuple(sorted(growing, key=_pace, reverse=True))

    def __str__(self) -> str:
        return table(self)


async def size_report(store: Store, run_id: str, *, since: int = 1) -> SizeReport:
    """How large a run is. Its head is compared with the checkpoint that is `since` before it, or the oldest there is.

    What is pruned or collected meanwhile is left out. Raises RunNotFoundError, CheckpointDamagedError.
    """
    if since < 1:
        raise ValueError(f"size_report(since={since}) compares the head with itself; give 1 or more")
    record = await store.run(run_id)
    if record is None:
        raise RunNotFoundError(run_id)
    scales = Scales(store)
    mine = list(await store.manifests(run_id=run_id))
    beside = await scales.put_beside(run_id)
    await scales.put(mine)
    line = await _line(store, record.head, mine)
    await scales.put(line[:1])
    before = line[min(since, len(line) - 1)] if len(line) > 1 else None
    return SizeReport(
        run_id=run_id,
        checkpoint_id=record.head,
        since=None if before is None else before.checkpoint_id,
        size=sum(scales.pieces(line[0]).values()) if line else 0,
        entries=_entries(scales, line, before),
        checkpoints=len(mine),
        parts_stored=scales.parts_size,
        manifests_stored=sum(map(_manifest_size, mine)),
        events_stored=beside.events,
        journal_stored=beside.journal,
        inbox_stored=beside.inbox,
    )


async def _line(store: Store, head: str | None, mine: Sequence[Manifest]) -> list[Manifest]:
    """The head and what came before it, as far as it is there. A rewind has left others beside this line."""
    known = {manifest.checkpoint_id: manifest for manifest in mine}
    if head is None:
        return []
    if head not in known:
        # A fork that has no checkpoint of its own yet stands at one of another run.
        return [await store.manifest(head)]
    line = [known[head]]
    while line[-1].previous_id in known:
        line.append(known[line[-1].previous_id])
    return line


def _entries(scales: Scales, line: Sequence[Manifest], before: Manifest | None) -> tuple[PartSize, ...]:
    if not line:
        return ()
    things = scales.things(line[0])
    had: Mapping[str, int] = {} if before is None else scales.pieces(before)
    then = {over: _sizes(scales.things(line[over])) for over in GROWTH_OVER if over < len(line)}
    often = Counter(chain.from_iterable(things.values()))
    found = [
        PartSize(
            name=name,
            size=sum(pieces.values()),
            parts=len(pieces),
            new=sum(size for key, size in pieces.items() if key not in had),
            shared=sum(size for key, size in pieces.items() if often[key] > 1),
            growth={over: sum(pieces.values()) - sizes.get(name, 0) for over, sizes in then.items()},
        )
        for name, pieces in things.items()
    ]
    return tuple(sorted(found, key=lambda entry: (-entry.size, entry.name)))


def _sizes(things: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    return {name: sum(pieces.values()) for name, pieces in things.items()}


def _manifest_size(manifest: Manifest) -> int:
    return len(manifest.header) + len(manifest.pieces) + len(dumps(dict(manifest.table())))


def _pace(entry: PartSize) -> float:
    """Bytes for each checkpoint, as far back as can be seen."""
    return max(entry.growth.items(), default=(1, 0))[1] / max(entry.growth, default=1)
