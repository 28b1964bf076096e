"""Report how large a run is, which of its values are large, and which grow. Nothing is decoded for it."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING
from urllib.parse import unquote

from perdure.checkpoint import entries_of
from perdure.codec import DamagedPartError, references
from perdure.errors import RunNotFoundError
from perdure.graph import SHARED_SCOPE
from perdure.records import Command, EventBatch, JournalRecord, Manifest, digest
from perdure.storage.rules import reach

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from perdure.storage.port import Store

# The head is compared with the checkpoints this many commits before it, if they still exist.
GROWTH_OVER = (10, 100)
# Number of checkpoints that are read in one go. Their common blobs are read once, and all are in memory meanwhile.
_CHECKPOINTS_AT_ONCE = 200
_TABLE_ROWS_MAX = 20
_NAME_LENGTH_MAX = 60
_CONTENTS = "table of contents"


@dataclass(frozen=True, slots=True)
class PartSize:
    """The size of one value in a run's newest checkpoint: an entry of the state, an executor, the messages, ...

    Attributes:
        name: A readable name, like `state['history']`.
        size: Bytes, with all blobs that it consists of.
        parts: Number of blobs that it consists of. A blob that does not change is written once.
        new: Bytes that the older checkpoint does not have.
        shared: Bytes that belong to another value of this checkpoint as well.
        growth: Growth in bytes, for each number of commits.
    """

    name: str
    size: int
    parts: int
    new: int
    shared: int
    growth: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class SizeReport:
    """The size of a run in bytes. `str()` makes a readable table of it.

    Attributes:
        run_id: The run.
        checkpoint_id: The newest checkpoint; None before the first.
        since: The older checkpoint that it is compared with; None if there is none.
        size: Bytes of the newest checkpoint, with all its blobs.
        entries: The values of the newest checkpoint, largest first.
        checkpoints: Number of stored checkpoints.
        parts_stored: Bytes of all blobs that the run needs, each counted once.
        manifests_stored: Bytes of the checkpoints themselves: headers, tables of contents, small values.
        events_stored: Bytes of the stored events.
        journal_stored: Bytes of the journal of the superstep in progress.
        inbox_stored: Bytes of the commands that wait.
    """

    run_id: str
    checkpoint_id: str | None
    since: str | None
    size: int
    entries: tuple[PartSize, ...]
    checkpoints: int
    parts_stored: int
    manifests_stored: int
    events_stored: int
    journal_stored: int
    inbox_stored: int

    @property
    def stored(self) -> int:
        """Bytes of the whole run. Blobs that runs share count for each of them."""
        others = self.events_stored + self.journal_stored + self.inbox_stored
        return self.parts_stored + self.manifests_stored + others

    @property
    def grows(self) -> tuple[PartSize, ...]:
        """The values that have grown, fastest first."""
        growing = [entry for entry in self.entries if _growth_rate(entry) > 0]
        return tuple(sorted(growing, key=_growth_rate, reverse=True))

    def __str__(self) -> str:
        head = f"run {self.run_id!r} has no checkpoint yet"
        if self.checkpoint_id is not None:
            head = f"run {self.run_id!r} at {self.checkpoint_id!r}: {format_bytes(self.size)}"
        kinds = {name: getattr(self, f"{name}_stored") for name in ("parts", "manifests", "events", "journal", "inbox")}
        listed = ", ".join(f"{name} {format_bytes(size)}" for name, size in kinds.items() if size)
        checkpoints = "1 checkpoint" if self.checkpoints == 1 else f"{self.checkpoints} checkpoints"
        stored = f"stored: {format_bytes(self.stored)} in {checkpoints}" + (f" ({listed})" if listed else "")
        rest = self.entries[_TABLE_ROWS_MAX:]
        more = f"and {len(rest)} smaller ones: {format_bytes(sum(entry.size for entry in rest))}"
        return "\n".join([head, stored, *_table(self), *([more] if rest else [])])


async def size_report(store: Store, run_id: str, *, since: int = 1) -> SizeReport:
    """Measure a run. Compare its head with the checkpoint `since` commits before it, or with the oldest one.

    Data that is removed during the measurement is left out. Raises RunNotFoundError, CheckpointDamagedError.
    """
    if since < 1:
        raise ValueError(f"size_report(since={since}) compares the head with itself; give 1 or more")
    record = await store.run(run_id)
    if record is None:
        raise RunNotFoundError(run_id)
    scales = Scales(store)
    mine = list(await store.manifests(run_id=run_id))
    events, journal, inbox = await scales.add_others(run_id)
    await scales.add(mine)
    line = await _lineage(store, record.head, mine)
    await scales.add(line[:1])
    before = line[min(since, len(line) - 1)] if len(line) > 1 else None
    return SizeReport(
        run_id=run_id,
        checkpoint_id=record.head,
        since=None if before is None else before.checkpoint_id,
        size=sum(scales.blobs(line[0]).values()) if line else 0,
        entries=_entries(scales, line, before),
        checkpoints=len(mine),
        parts_stored=scales.total,
        manifests_stored=sum(len(each.header) + len(each.pieces) + len(each.table_text()) for each in mine),
        events_stored=events,
        journal_stored=journal,
        inbox_stored=inbox,
    )


async def _lineage(store: Store, head: str | None, mine: Sequence[Manifest]) -> list[Manifest]:
    """Return the head and its predecessors, as far as they exist. Rewinds have left others beside this line."""
    known = {manifest.checkpoint_id: manifest for manifest in mine}
    if head is None:
        return []
    if head not in known:
        # The head of a fork without a checkpoint of its own is one of another run.
        return [await store.manifest(head)]
    line = [known[head]]
    while line[-1].previous_id in known:
        line.append(known[line[-1].previous_id])
    return line


def _entries(scales: Scales, line: Sequence[Manifest], before: Manifest | None) -> tuple[PartSize, ...]:
    if not line:
        return ()
    values = scales.values(line[0])
    had: Mapping[str, int] = {} if before is None else scales.blobs(before)
    then = {
        over: {name: sum(blobs.values()) for name, blobs in scales.values(line[over]).items()}
        for over in GROWTH_OVER
        if over < len(line)
    }
    uses = Counter(chain.from_iterable(values.values()))
    found = [
        PartSize(
            name=name,
            size=sum(blobs.values()),
            parts=len(blobs),
            new=sum(size for key, size in blobs.items() if key not in had),
            shared=sum(size for key, size in blobs.items() if uses[key] > 1),
            growth={over: sum(blobs.values()) - sizes.get(name, 0) for over, sizes in then.items()},
        )
        for name, blobs in values.items()
    ]
    return tuple(sorted(found, key=lambda entry: (-entry.size, entry.name)))


def _growth_rate(entry: PartSize) -> float:
    """Return the bytes per checkpoint, over the longest known distance."""
    return max(entry.growth.items(), default=(1, 0))[1] / max(entry.growth, default=1)


class Scales:
    """Measure blobs. Keep the size and the references of each, not its bytes."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._sizes: dict[str, int] = {}
        self._refs: dict[str, tuple[str, ...]] = {}
        self._bases: dict[str, bytes] = {}

    @property
    def total(self) -> int:
        """The bytes of all blobs that were added, each counted once."""
        return sum(self._sizes.values())

    async def add(self, manifests: Sequence[Manifest]) -> None:
        """Add the blobs of checkpoints."""
        for start in range(0, len(manifests), _CHECKPOINTS_AT_ONCE):
            some = manifests[start : start + _CHECKPOINTS_AT_ONCE]
            bases = {manifest.base for manifest in some if manifest.base is not None}
            await self._add(chain.from_iterable(manifest.roots for manifest in some), bases)

    async def add_others(self, run_id: str) -> tuple[int, int, int]:
        """Add the blobs of a run's events, journal and inbox. Return the bytes of these three without their blobs."""
        store, events, after = self._store, 0, 0
        while batches := await store.events(run_id, after=after):
            events += await self._add_all(batches)
            after = batches[-1].last
        return events, await self._add_all(await store.journal(run_id)), await self._add_all(await store.inbox(run_id))

    async def _add_all(self, values: Sequence[EventBatch | JournalRecord | Command]) -> int:
        await self._add(ref for each in values for ref in each.refs)
        return sum(len(each.data) for each in values)

    async def _add(self, roots: Iterable[str], bases: Iterable[str] = ()) -> None:
        blobs = await self._store.blobs({root for root in roots if root not in self._sizes})
        new = {address: data for address, data in blobs.items() if address not in self._sizes}
        self._sizes |= {address: len(data) for address, data in new.items()}
        # The search for references takes time, and runs may go on in this process.
        self._refs |= await asyncio.to_thread(lambda: {address: _references(data) for address, data in new.items()})
        self._bases |= {base: blobs[base] for base in bases if base in blobs}

    def blobs(self, manifest: Manifest) -> Mapping[str, int]:
        """Return the size of each blob of a checkpoint, by hash. A value in the checkpoint itself counts as one."""
        return {key: size for _, blobs in self._entries(manifest) for key, size in blobs.items()}

    def values(self, manifest: Manifest) -> dict[str, dict[str, int]]:
        """Return the same for each value of a checkpoint, by its readable name."""
        values: dict[str, dict[str, int]] = {}
        for name, blobs in self._entries(manifest):
            values.setdefault(name, {}).update(blobs)
        return values

    def _entries(self, manifest: Manifest) -> Iterator[tuple[str, dict[str, int]]]:
        if manifest.base is not None:
            yield _CONTENTS, {manifest.base: self._sizes.get(manifest.base, 0)}
        if manifest.base not in self._bases:
            manifest = replace(manifest, base=None)
        for path, entry in entries_of(manifest, self._bases).items():
            if isinstance(entry, str):
                yield name_of(path), self._closure([entry])
            else:
                yield name_of(path), {digest(entry): len(entry), **self._closure(_references(entry))}

    def _closure(self, roots: Iterable[str]) -> dict[str, int]:
        """Return blobs with all that they refer to. Bytes of a user may look like references, so skip unknown ones."""
        reached = reach(roots, lambda address: self._refs.get(address, ()))
        return {address: self._sizes[address] for address in reached if address in self._sizes}


def _references(data: bytes) -> tuple[str, ...]:
    try:
        return references(data)
    except DamagedPartError:
        # Raw bytes, or damage that is reported when they are decoded.
        return ()


_NAMES: Mapping[str, str] = {
    "deliveries": "messages",
    "delayed": "delayed messages",
    "fan_in": "messages that wait in fan-ins",
    "suspended": "suspended handlers",
    "kwargs": "run kwargs",
    "cancelled": "why it was cancelled",
    "fields": "fields of a checkpoint made by hand",
}
_KINDS: Mapping[str, str] = {"executor": "executor", "request": "request", "carried": "record"}
_SEQUENCES: Mapping[str, str] = {"outputs": "outputs", "answered": "answered requests", "received": "received messages"}


def name_of(path: str) -> str:
    """Return a readable name for a path of a checkpoint. All chunks of a sequence have the same."""
    outer = ""
    while path.startswith("child/"):
        _, child, path = (*path.split("/", 2), "")[:3]
        outer += f"sub-workflow {unquote(child)!r}: "
    kind, slash, rest = path.partition("/")
    scope, _, key = rest.partition("/")
    match kind:
        case _ if not slash:
            return outer + _NAMES.get(path, path)
        case "state":
            return f"{outer}state[{key!r}]" + ("" if scope == SHARED_SCOPE else f" of scope {unquote(scope)!r}")
        case _ if kind in _KINDS:
            return f"{outer}{_KINDS[kind]} {rest!r}"
        case _:
            return outer + _SEQUENCES.get(kind, path)


def format_bytes(size: int) -> str:
    """Format a number of bytes for people."""
    for unit, factor in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if abs(size) >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size} B"


def _table(report: SizeReport) -> list[str]:
    """Return an empty line and the lines of a table; nothing if there are no values."""
    if not report.entries:
        return []
    new = "new" if report.since is None else f"new since {report.since}"
    rows = [["what", "size", "parts", new, "shared", *(f"growth over {over}" for over in report.entries[0].growth)]]
    for entry in report.entries[:_TABLE_ROWS_MAX]:
        name = entry.name if len(entry.name) <= _NAME_LENGTH_MAX else f"{entry.name[: _NAME_LENGTH_MAX - 1]}…"
        growth = [f"+{format_bytes(by)}" if by > 0 else format_bytes(by) for by in entry.growth.values()]
        sizes = format_bytes(entry.size), str(entry.parts), format_bytes(entry.new), format_bytes(entry.shared)
        rows.append([name, *sizes, *growth])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [""]
    for first, *others in rows:
        cells = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        lines.append("  ".join((first.ljust(widths[0]), *cells)).rstrip())
    return lines
