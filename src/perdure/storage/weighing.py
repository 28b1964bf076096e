"""The sizes of parts, and which of them a thing in a checkpoint is made of."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

from perdure.checkpoint import entries_of
from perdure.codec import DamagedPartError, references
from perdure.data import frozen
from perdure.records import digest
from perdure.storage.size_names import name_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence

    from perdure.records import EventBatch, Manifest
    from perdure.storage.port import Store

_CHECKPOINTS_AT_ONCE = 200
"""How many checkpoints are read in one go: what they have in common is read once, and all of it is held meanwhile."""

_CONTENTS = "table of contents"


@frozen
class Beside:
    """What there is of a run beside its checkpoints, in bytes."""

    events: int
    journal: int
    inbox: int


class Scales:
    """Knows the parts that were put on it: how large each is, and what it refers to. Their bytes are let go."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._sizes: dict[str, int] = {}
        self._refs: dict[str, tuple[str, ...]] = {}
        self._bases: dict[str, bytes] = {}

    @property
    def parts_size(self) -> int:
        """The bytes of all parts that were put on, each counted once."""
        return sum(self._sizes.values())

    async def put(self, manifests: Sequence[Manifest]) -> None:
        """Put on what checkpoints are made of."""
        for start in range(0, len(manifests), _CHECKPOINTS_AT_ONCE):
            some = manifests[start : start + _CHECKPOINTS_AT_ONCE]
            bases = {manifest.base for manifest in some if manifest.base is not None}
            await self._put(chain.from_iterable(manifest.roots for manifest in some), bases)

    async def put_beside(self, run_id: str) -> Beside:
        """Put on what events, journal and inbox of a run refer to."""
        events = [(len(batch.data), batch.refs) async for batch in self._events(run_id)]
        journal = [(len(record.data), record.refs) for record in await self._store.journal(run_id)]
        inbox = [(len(command.data), command.refs) for command in await self._store.inbox(run_id)]
        await self._put(ref for _, refs in (*events, *journal, *inbox) for ref in refs)
        return Beside(*(sum(size for size, _ in kind) for kind in (events, journal, inbox)))

    async def _events(self, run_id: str) -> AsyncIterator[EventBatch]:
        after = 0
        while batches := await self._store.events(run_id, after=after):
            for batch in batches:
                yield batch
            after = batches[-1].last

    async def _put(self, roots: Iterable[str], bases: Iterable[str] = ()) -> None:
        missing = {root for root in roots if root not in self._sizes}
        if missing:
            parts = await self._store.parts(missing)
            # Looking for what they refer to takes its time, and runs may go on in this process.
            await asyncio.to_thread(self._note, parts, bases)

    def _note(self, parts: Mapping[str, bytes], bases: Iterable[str]) -> None:
        for address, data in parts.items():
            if address not in self._sizes:
                self._sizes[address] = len(data)
                self._refs[address] = _references(data)
        for base in bases:
            if base in parts:
                self._bases[base] = parts[base]

    def pieces(self, manifest: Manifest) -> Mapping[str, int]:
        """All that a checkpoint is made of, by its hash: the size of each."""
        return {key: size for _, pieces in self._entries(manifest) for key, size in pieces.items()}

    def things(self, manifest: Manifest) -> dict[str, dict[str, int]]:
        """The same by the things that it holds, in words."""
        things: dict[str, dict[str, int]] = {}
        for name, pieces in self._entries(manifest):
            things.setdefault(name, {}).update(pieces)
        return things

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
        """These parts and all that they refer to. Bytes of users may look as if they referred to what is not there."""
        found: dict[str, int] = {}
        waiting = list(roots)
        while waiting:
            address = waiting.pop()
            if address not in found and address in self._sizes:
                found[address] = self._sizes[address]
                waiting.extend(self._refs[address])
        return found


def _references(data: bytes) -> tuple[str, ...]:
    try:
        return references(data)
    except DamagedPartError:
        # Raw bytes, or damage that whoever decodes them will name.
        return ()
