"""Read, append to, fork and delete threads. A fork shares the events of its parent."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from perdure.codec import DamagedPartError
from perdure.errors import CheckpointNotFoundError, LeaseLostError, RunNotFoundError, StaleHeadError
from perdure.records import Commit, Manifest
from perdure.threads.errors import (
    ThreadConflictError,
    ThreadDamagedError,
    ThreadExistsError,
    ThreadInUseError,
    ThreadNotFoundError,
)
from perdure.threads.lease import thread_errors
from perdure.threads.thread import ForkPoint, Header, Place, ThreadName, batch_of, session_name, session_of

if TYPE_CHECKING:
    from perdure.clock import Clock
    from perdure.records import Lease, NewEvents, RunRecord
    from perdure.storage import TenantStore
    from perdure.threads.lease import ThreadLeases
    from perdure.threads.thread import Appended, Batch, Thread, ThreadEvent

_BATCHES_AT_ONCE = 1000


class ThreadReader:
    """Read threads while others append."""

    def __init__(self, store: TenantStore) -> None:
        self._store = store

    async def find(self, name: ThreadName) -> Place | None:
        """Return the state of a thread, or None. Raises ThreadDamagedError."""
        with thread_errors(name):
            record = await self._store.run(name.run_id)
            return None if record is None else await self._place(name, record)

    async def places(self, session_id: str) -> list[Place]:
        """List the threads of a session in the order they started."""
        workflow_name = session_name(session_id)
        found: list[Place] = []
        for record in await self._store.runs(workflow_name=workflow_name):
            name = ThreadName.of_run(record.run_id, workflow_name=workflow_name)
            with thread_errors(name):
                place = await self._place(name, record)
            if place is not None:
                found.append(place)
        return found

    async def sessions(self) -> list[str]:
        """List the sessions that have threads in the order they started."""
        return list(dict.fromkeys(session_of(record.workflow_name) for record in await self._store.runs()))

    async def _place(self, name: ThreadName, record: RunRecord) -> Place | None:
        """Return the state of a thread. Only its newest checkpoint is kept, and it may be replaced while it is read."""
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
        """Return the events after one number and up to another, in order. Raises ThreadDamagedError."""
        return [event for batch in await self.batches(place, after=after, until=until) for event in batch.events]

    async def batches(self, place: Place, *, after: int = 0, until: int | None = None) -> list[Batch]:
        """Return the same events grouped by append."""
        found: list[Batch] = []
        for each, last in reversed(await self._ancestry(place, after=after, until=until)):
            found += await self._own_batches(each, after=max(after, each.base), until=last)
        return found

    async def _ancestry(self, place: Place, *, after: int, until: int | None) -> list[tuple[Place, int | None]]:
        """Return the thread and its ancestors as far as they are needed, each with its last number."""
        line = [(place, until)]
        while after < place.base and (parent := place.parent) is not None:
            until = place.base if until is None else min(until, place.base)
            found = await self.find(parent)
            if found is None or found.sequence < place.base:
                raise _damaged(place.name, f"the thread {parent.thread_id!r} that it was forked from is gone")
            place = found
            line.append((place, until))
        return line

    async def _own_batches(self, place: Place, *, after: int, until: int | None) -> list[Batch]:
        """Return the batches that were appended to the thread itself."""
        found: list[Batch] = []
        with thread_errors(place.name):
            while until is None or after < until:
                # Each batch holds at least one event.
                wanted = _BATCHES_AT_ONCE if until is None else min(_BATCHES_AT_ONCE, until - after)
                batches = await self._store.events(place.name.run_id, after=after - place.base, limit=wanted)
                if not batches:
                    break
                blobs = await self._store.blobs({ref for batch in batches for ref in batch.refs})
                whole = [batch_of(place.name, each, blobs, base=place.base) for each in batches]
                found += [_cut(each, after=after, until=until) for each in whole]
                after = place.base + batches[-1].last
        return [batch for batch in found if batch.events]


def _cut(batch: Batch, *, after: int, until: int | None) -> Batch:
    wanted = [event for event in batch.events if event.sequence > after and (until is None or event.sequence <= until)]
    return replace(batch, events=tuple(wanted))


def _damaged(name: ThreadName, reason: str) -> ThreadDamagedError:
    return ThreadDamagedError(name.session_id, name.thread_id, reason=reason)


class ThreadWriter:
    """Append to threads."""

    def __init__(self, store: TenantStore, reader: ThreadReader, leases: ThreadLeases) -> None:
        self._store = store
        self._reader = reader
        self._leases = leases

    async def append(self, name: ThreadName, new: Appended, *, expected: int | None, since: int) -> int:
        """Append, unless it was done already. Return the number of the last event.

        Raises ThreadConflictError, ThreadDamagedError, ThreadWriteError.
        """
        # On the first attempt only an append with the same key, made by an earlier attempt, can exist.
        looks_behind = None if new.key is None else since
        while True:
            try:
                with thread_errors(name):
                    async with self._leases.of(name) as lease:
                        return await self._append(lease, name, new, expected=expected, looks_behind=looks_behind)
            except (LeaseLostError, StaleHeadError):
                # Another owner has replaced us. If the connection was lost, our write may have succeeded.
                looks_behind = since

    async def _append(
        self, lease: Lease, name: ThreadName, new: Appended, *, expected: int | None, looks_behind: int | None
    ) -> int:
        place = await self._reader.find(name)
        sequence = place.sequence if place else 0
        if place is not None and looks_behind is not None:
            done = await self._find_append(place, new, behind=looks_behind)
            if done is not None:
                return done
        require_at(name, place, expected)
        if not new.events.count:
            return sequence
        header = Header(new.id, tags=new.tags)
        if place is not None:
            header = Header(new.id, place.header.forked_from, {**place.header.tags, **new.tags})
        await self.commit(lease, name, place, header, at=new.at, events=new.events)
        return sequence + new.events.count

    async def _find_append(self, place: Place, new: Appended, *, behind: int) -> int | None:
        """Return the last number of this append, or of an earlier one with its key, if there is one."""
        found = await self._reader.batches(place, after=behind)
        done = [each for each in found if each.append == new.id or (new.key is not None and each.key == new.key)]
        return done[-1].events[-1].sequence if done else None

    async def commit(
        self,
        lease: Lease,
        name: ThreadName,
        place: Place | None,
        header: Header,
        *,
        at: str,
        events: NewEvents | None = None,
    ) -> None:
        """Write the newest checkpoint of a thread, with or without events. Raises LeaseLostError, StaleHeadError."""
        head, position = (place.record.head, place.record.position + 1) if place else (None, 0)
        manifest = Manifest(
            checkpoint_id=f"{name.run_id}@{position}",
            run_id=name.run_id,
            workflow_name=name.workflow_name,
            position=position,
            previous_id=head,
            timestamp=at,
            iteration_count=0,
            header=header.to_bytes(),
            toc={},
        )
        # Settled, so that no host takes a thread for work.
        await self._store.commit(lease, Commit(manifest, (), head, settled=True, status="idle", events=events))


def require_at(name: ThreadName, place: Place | None, expected: int | None) -> None:
    """Raise ThreadConflictError unless the thread is at the expected number."""
    sequence = place.sequence if place else 0
    if expected is not None and sequence != expected:
        raise ThreadConflictError(name.session_id, name.thread_id, expected=expected, sequence=sequence)


class ThreadForks:
    """Fork threads, and delete threads without forks."""

    def __init__(
        self, store: TenantStore, clock: Clock, reader: ThreadReader, writer: ThreadWriter, leases: ThreadLeases
    ) -> None:
        self._store = store
        self._clock = clock
        self._reader = reader
        self._writer = writer
        self._leases = leases

    async def fork(self, parent: ThreadName, new: ThreadName, *, from_message: str | int | None) -> Thread:
        """Return the fork, made now or before. Raises ThreadNotFoundError, ThreadExistsError, TypeError."""
        _require_message(from_message)
        while True:
            try:
                with thread_errors(new):
                    return await self._fork(parent, new, from_message)
            except (LeaseLostError, StaleHeadError):
                # Another owner has replaced us. Start again from the present state.
                continue
            except RunNotFoundError as error:
                raise ThreadNotFoundError(parent.session_id, parent.thread_id) from error

    async def _fork(self, parent: ThreadName, new: ThreadName, from_message: str | int | None) -> Thread:
        if parent == new:
            raise ThreadExistsError(new.session_id, new.thread_id, what="the thread to be forked itself")
        async with AsyncExitStack() as held:
            leases: dict[ThreadName, Lease] = {}
            # Take leases in a fixed order, or two tasks that fork each other's threads would deadlock.
            for each in sorted((parent, new), key=lambda name: name.run_id):
                leases[each] = await held.enter_async_context(self._leases.of(each, creates=each == new))
            place = await self._reader.find(parent)
            if place is None:
                raise ThreadNotFoundError(parent.session_id, parent.thread_id)
            point = ForkPoint(parent.thread_id, await self._point(place, from_message))
            found = await self._reader.find(new)
            if found is None:
                found = await self._made(leases[parent], place, leases[new], new, point)
            return _same(found, point).thread()

    async def _point(self, place: Place, from_message: str | int | None) -> int:
        match from_message:
            case None:
                return place.sequence
            case int() if 0 <= from_message <= place.sequence:
                return from_message
            case str():
                numbers = [
                    each.sequence for each in await self._reader.events(place) if each.message_id == from_message
                ]
                if numbers:
                    return numbers[-1]
            case int():
                pass
        name = place.name
        raise ThreadNotFoundError(name.session_id, name.thread_id, message=from_message, last=place.sequence)

    async def _made(self, held: Lease, parent: Place, lease: Lease, new: ThreadName, point: ForkPoint) -> Place:
        header = Header(self._clock.new_id(), point)
        await self._writer.commit(lease, new, None, header, at=self._clock.now().isoformat())
        try:
            # Only the owner of the parent's lease knows that nobody is deleting it.
            await self._store.record(held, head=parent.record.head, records=(), durable=False)
        except (LeaseLostError, StaleHeadError):
            await self._store.remove(new.run_id, takeover=True)
            raise
        found = await self._reader.find(new)
        assert found is not None, f"the fork {new.run_id!r} was made, and it is held"
        return found

    async def delete(self, name: ThreadName) -> bool:
        """Delete a thread. Return False if there is none. Raises ThreadInUseError."""
        with thread_errors(name):
            try:
                async with self._leases.of(name, creates=False):
                    await self._require_no_forks(name)
                    return await self._store.remove(name.run_id, takeover=True)
            except RunNotFoundError:
                return False

    async def _require_no_forks(self, name: ThreadName) -> None:
        places = await self._reader.places(name.session_id)
        forks = [place.name.thread_id for place in places if place.parent == name]
        if forks:
            raise ThreadInUseError(name.session_id, name.thread_id, forks=forks)


def _same(found: Place, point: ForkPoint) -> Place:
    """Return the existing thread if it is the requested fork."""
    there = found.header.forked_from
    if there == point:
        return found
    what = "no fork" if there is None else f"a fork of {there.thread_id!r} at {there.sequence}, not at {point.sequence}"
    if there is not None and there.thread_id != point.thread_id:
        what = f"a fork of {there.thread_id!r}, not of {point.thread_id!r}"
    raise ThreadExistsError(found.name.session_id, found.name.thread_id, what=what)


def _require_message(given: object) -> None:
    """Raise TypeError unless the value names a message. A bool is refused although it is an int."""
    if given is not None and (isinstance(given, bool) or not isinstance(given, str | int)):
        raise TypeError(
            f"from_message is {given!r}: give the id of a message, its sequence number, 0 for none of them, or leave "
            "it out for the last"
        )
