"""Reading threads: where one stands, and its events, those that it was forked with among them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from perdure.codec import DamagedPartError
from perdure.errors import CheckpointNotFoundError
from perdure.threads.errors import ThreadDamagedError
from perdure.threads.events import batch_of
from perdure.threads.holding import naming
from perdure.threads.names import ThreadName, session_name, session_of
from perdure.threads.thread import Header, Place

if TYPE_CHECKING:
    from perdure.records import RunRecord
    from perdure.storage import HostStore
    from perdure.threads.events import Batch, ThreadEvent

_BATCHES_AT_ONCE = 1000


class Reading:
    """Reads what is there, whoever appends meanwhile."""

    def __init__(self, store: HostStore) -> None:
        self._store = store

    async def look(self, name: ThreadName) -> Place | None:
        """Where a thread stands; None if there is none. Raises ThreadDamagedError."""
        with naming(name):
            record = await self._store.run(name.run_id)
            return None if record is None else await self._place(name, record)

    async def places(self, session_id: str) -> list[Place]:
        """The threads of a session, in the order in which they began."""
        workflow_name = session_name(session_id)
        found: list[Place] = []
        for record in await self._store.runs(workflow_name=workflow_name):
            name = ThreadName.of_run(record.run_id, workflow_name=workflow_name)
            with naming(name):
                place = await self._place(name, record)
            if place is not None:
                found.append(place)
        return found

    async def sessions(self) -> list[str]:
        """The sessions that have threads, in the order in which they began."""
        return list(dict.fromkeys(session_of(record.workflow_name) for record in await self._store.runs()))

    async def _place(self, name: ThreadName, record: RunRecord) -> Place | None:
        """Where a thread stands. Of its checkpoints only the newest is kept, and it may be another one by now."""
        current: RunRecord | None = record
        while current is not None and current.head is not None:
            try:
                return Place(name, current, await self._header(name, current.head))
            except CheckpointNotFoundError as error:
                missing = current.head
                current = await self._store.run(name.run_id)
                if current is not None and current.head == missing:
                    raise _damaged(name, f"its newest checkpoint {missing!r} is gone") from error
        return None

    async def _header(self, name: ThreadName, head: str) -> Header:
        manifest = await self._store.manifest(head)
        try:
            return Header.from_bytes(manifest.header)
        except (DamagedPartError, KeyError, TypeError, ValueError) as error:
            raise _damaged(name, f"its newest checkpoint {head!r} can't be read: {error or repr(error)}") from error

    async def events(self, place: Place, *, after: int = 0, until: int | None = None) -> list[ThreadEvent]:
        """The events behind one number and up to another, in order. Raises ThreadDamagedError."""
        return [event for batch in await self.batches(place, after=after, until=until) for event in batch.events]

    async def batches(self, place: Place, *, after: int = 0, until: int | None = None) -> list[Batch]:
        """The same, as they were appended; of a batch only what is wanted."""
        found: list[Batch] = []
        for each, last in reversed(await self._line(place, after=after, until=until)):
            found += await self._own(each, after=max(after, each.base), until=last)
        return found

    async def _line(self, place: Place, *, after: int, until: int | None) -> list[tuple[Place, int | None]]:
        """The thread and those that it was forked from, as far as they are needed, and up to which number."""
        line = [(place, until)]
        while after < place.base and (parent := place.parent) is not None:
            until = place.base if until is None else min(until, place.base)
            found = await self.look(parent)
            if found is None or found.sequence < place.base:
                raise _damaged(place.name, f"the thread {parent.thread_id!r} that it was forked from is gone")
            place = found
            line.append((place, until))
        return line

    async def _own(self, place: Place, *, after: int, until: int | None) -> list[Batch]:
        """What was appended to a thread itself."""
        found: list[Batch] = []
        with naming(place.name):
            while until is None or after < until:
                # Each batch holds an event at least.
                wanted = _BATCHES_AT_ONCE if until is None else min(_BATCHES_AT_ONCE, until - after)
                batches = await self._store.events(place.name.run_id, after=after - place.base, limit=wanted)
                if not batches:
                    break
                parts = await self._store.parts({ref for batch in batches for ref in batch.refs})
                whole = [batch_of(place.name, each, parts, base=place.base) for each in batches]
                found += [_cut(each, after=after, until=until) for each in whole]
                after = place.base + batches[-1].last
        return [batch for batch in found if batch.events]


def _cut(batch: Batch, *, after: int, until: int | None) -> Batch:
    wanted = [event for event in batch.events if event.sequence > after and (until is None or event.sequence <= until)]
    return replace(batch, events=tuple(wanted))


def _damaged(name: ThreadName, reason: str) -> ThreadDamagedError:
    return ThreadDamagedError(name.session_id, name.thread_id, reason=reason)
