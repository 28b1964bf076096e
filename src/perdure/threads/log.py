"""Read, append to, fork and delete threads. A fork shares the events of its parent.

A thread is changed by one caller at a time: a queue orders the tasks of this process, a lease the processes.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
from collections import deque
from concurrent.futures import Future
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

from perdure import errors
from perdure.clock import Clock, SystemClock
from perdure.codec import DamagedPartError
from perdure.records import Commit, Lease, Manifest, NewEvents, NewRun, RunRecord
from perdure.threads.errors import (
    ThreadConflictError,
    ThreadDamagedError,
    ThreadExistsError,
    ThreadInUseError,
    ThreadNotFoundError,
    ThreadWriteError,
)
from perdure.threads.thread import (
    Appended,
    Batch,
    ForkPoint,
    Header,
    StoredThread,
    Thread,
    ThreadEvent,
    ThreadName,
    batch_of,
    session_name,
    session_of,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator

    from perdure.storage import TenantStore

_BATCHES_AT_ONCE = 1000
_LOOK_SECONDS = 0.01
_LOOKS_MAX = 100

# Other processes use the machine's time, whatever clock a store was given.
_pause = SystemClock().sleep


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    """A position in a queue. Its turn comes when `turn` has a result."""

    loop: asyncio.AbstractEventLoop
    turn: Future[None]


# By subject. The first of each queue has the turn.
_queues: dict[str, deque[_Waiting]] = {}
_lock = threading.Lock()


@asynccontextmanager
async def turn(subject: str) -> AsyncGenerator[None]:
    """Wait for the turn and keep it until the block ends."""
    mine = _Waiting(asyncio.get_running_loop(), Future())
    # A concurrent future can't be cancelled by a task, so the position is kept until it is left.
    mine.turn.set_running_or_notify_cancel()
    with _lock:
        _queues.setdefault(subject, deque()).append(mine)
        _advance(subject)
    try:
        if not mine.turn.done():
            await asyncio.wrap_future(mine.turn)
        yield
    finally:
        with _lock:
            if mine in _queues.get(subject, ()):
                _queues[subject].remove(mine)
                _advance(subject)


def _advance(subject: str) -> None:
    """Give the first in the queue its turn. Skip closed event loops, which never leave."""
    queue = _queues[subject]
    while queue and queue[0].loop.is_closed():
        queue.popleft()
    if not queue:
        del _queues[subject]
    elif not queue[0].turn.done():
        queue[0].turn.set_result(None)


def _start_afresh() -> None:
    global _lock  # noqa: PLW0603 - those who wait are the parent's, and a forked child may not inherit a taken lock
    _lock = threading.Lock()
    _queues.clear()


os.register_at_fork(after_in_child=_start_afresh)


@contextmanager
def thread_errors(name: ThreadName) -> Generator[None]:
    """Make errors of the store name the thread instead of its run."""
    try:
        yield
    except (errors.CheckpointDamagedError, errors.PartDamagedError) as error:
        raise ThreadDamagedError(name.session_id, name.thread_id, reason=error.reason) from error
    except errors.CheckpointWriteError as error:
        raise ThreadWriteError(name.session_id, name.thread_id, reason=error.reason) from error


class ThreadLog:
    """The threads of a store."""

    def __init__(self, store: TenantStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def find(self, name: ThreadName) -> StoredThread | None:
        """Return the state of a thread, or None. Raises ThreadDamagedError."""
        with thread_errors(name):
            record = await self._store.run(name.run_id)
            return None if record is None else await self._read(name, record)

    async def threads(self, session_id: str) -> list[StoredThread]:
        """List the threads of a session in the order they started."""
        workflow_name = session_name(session_id)
        found: list[StoredThread] = []
        for record in await self._store.runs(workflow_name=workflow_name):
            name = ThreadName.of_run(record.run_id, workflow_name=workflow_name)
            with thread_errors(name):
                stored = await self._read(name, record)
            if stored is not None:
                found.append(stored)
        return found

    async def sessions(self) -> list[str]:
        """List the sessions that have threads in the order they started."""
        return list(dict.fromkeys(session_of(record.workflow_name) for record in await self._store.runs()))

    async def _read(self, name: ThreadName, record: RunRecord) -> StoredThread | None:
        """Return the state of a thread. Only its newest checkpoint is kept, and it may be replaced while it is read."""
        current: RunRecord | None = record
        while current is not None and current.head is not None:
            try:
                return StoredThread(name, current, await self._header(name, current.head))
            except errors.CheckpointNotFoundError as error:
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

    async def events(self, stored: StoredThread, *, after: int = 0, until: int | None = None) -> list[ThreadEvent]:
        """Return the events after one number and up to another, in order. Raises ThreadDamagedError."""
        return [event for batch in await self.batches(stored, after=after, until=until) for event in batch.events]

    async def batches(self, stored: StoredThread, *, after: int = 0, until: int | None = None) -> list[Batch]:
        """Return the events after one number and up to another, grouped by append."""
        found: list[Batch] = []
        for each, last in reversed(await self._ancestry(stored, after=after, until=until)):
            found += await self._own_batches(each, after=max(after, each.base), until=last)
        return found

    async def _ancestry(
        self, stored: StoredThread, *, after: int, until: int | None
    ) -> list[tuple[StoredThread, int | None]]:
        """Return the thread and its ancestors as far as they are needed, each with its last number."""
        line = [(stored, until)]
        while after < stored.base and (parent := stored.parent) is not None:
            until = stored.base if until is None else min(until, stored.base)
            found = await self.find(parent)
            if found is None or found.sequence < stored.base:
                raise _damaged(stored.name, f"the thread {parent.thread_id!r} that it was forked from is gone")
            stored = found
            line.append((stored, until))
        return line

    async def _own_batches(self, stored: StoredThread, *, after: int, until: int | None) -> list[Batch]:
        """Return the batches that were appended to the thread itself."""
        found: list[Batch] = []
        with thread_errors(stored.name):
            while until is None or after < until:
                # Each batch holds at least one event.
                wanted = _BATCHES_AT_ONCE if until is None else min(_BATCHES_AT_ONCE, until - after)
                batches = await self._store.events(stored.name.run_id, after=after - stored.base, limit=wanted)
                if not batches:
                    break
                blobs = await self._store.blobs({ref for batch in batches for ref in batch.refs})
                whole = [batch_of(stored.name, each, blobs, base=stored.base) for each in batches]
                found += [_cut(each, after=after, until=until) for each in whole]
                after = stored.base + batches[-1].last
        return [batch for batch in found if batch.events]

    async def append(self, name: ThreadName, new: Appended, *, expected: int | None, since: int) -> int:
        """Append, unless it was done already. Return the number of the last event.

        Raises ThreadConflictError, ThreadDamagedError, ThreadWriteError.
        """
        # On the first attempt only an append with the same key, made by an earlier attempt, can exist.
        looks_behind = None if new.key is None else since
        while True:
            try:
                with thread_errors(name):
                    async with self._leased(name) as lease:
                        return await self._append(lease, name, new, expected=expected, looks_behind=looks_behind)
            except (errors.LeaseLostError, errors.StaleHeadError):
                # Another owner has replaced us. If the connection was lost, our write may have succeeded.
                looks_behind = since

    async def _append(
        self, lease: Lease, name: ThreadName, new: Appended, *, expected: int | None, looks_behind: int | None
    ) -> int:
        stored = await self.find(name)
        sequence = stored.sequence if stored else 0
        if stored is not None and looks_behind is not None:
            done = await self._find_append(stored, new, behind=looks_behind)
            if done is not None:
                return done
        if expected is not None and sequence != expected:
            raise ThreadConflictError(name.session_id, name.thread_id, expected=expected, sequence=sequence)
        if not new.events.count:
            return sequence
        before = stored.header if stored else Header("")
        header = Header(new.id, before.forked_from, {**before.tags, **new.tags})
        await self._commit(lease, name, stored, header, at=new.at, events=new.events)
        return sequence + new.events.count

    async def _find_append(self, stored: StoredThread, new: Appended, *, behind: int) -> int | None:
        """Return the last number of this append, or of an earlier one with its key, if there is one."""
        found = await self.batches(stored, after=behind)
        done = [each for each in found if each.append == new.id or (new.key is not None and each.key == new.key)]
        return done[-1].events[-1].sequence if done else None

    async def _commit(
        self,
        lease: Lease,
        name: ThreadName,
        stored: StoredThread | None,
        header: Header,
        *,
        at: str,
        events: NewEvents | None = None,
    ) -> None:
        """Write the newest checkpoint of a thread, with or without events. Raises LeaseLostError, StaleHeadError."""
        head, position = (stored.record.head, stored.record.position + 1) if stored else (None, 0)
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

    @asynccontextmanager
    async def _leased(self, name: ThreadName, *, creates: bool = True) -> AsyncGenerator[Lease]:
        """Take the lease of a thread, and create the thread if `creates`. Raises RunNotFoundError.

        A change is short, so a living owner is waited for, one second at most. After that the thread is taken over,
        because its owner is frozen or unreachable. Every write carries the lease's token, so a replaced owner can't
        write.
        """
        async with turn(f"{self._store.place} {name.run_id}"):
            now, nonce = self._clock.now().isoformat(), self._clock.new_id()
            create = NewRun(name.run_id, name.workflow_name, created_at=now, nonce=nonce) if creates else None
            lease: Lease | None = None
            with thread_errors(name):
                for looks in itertools.count():
                    try:
                        lease = await self._store.acquire(name.run_id, create=create, takeover=looks >= _LOOKS_MAX)
                        break
                    except errors.RunBusyError:
                        await _pause(_LOOK_SECONDS)
            assert lease is not None, "a lease that is taken over is not refused"
            try:
                yield lease
            finally:
                await self._store.release(lease)

    async def fork(self, parent: ThreadName, new: ThreadName, *, from_message: str | int | None) -> Thread:
        """Return the fork, made now or before. Raises ThreadNotFoundError, ThreadExistsError, TypeError."""
        given = cast("object", from_message)
        if isinstance(given, bool) or not isinstance(given, str | int | None):
            raise TypeError(
                f"from_message is {from_message!r}: give the id of a message, its sequence number, 0 for none of them, "
                "or leave it out for the last"
            )
        while True:
            try:
                with thread_errors(new):
                    return await self._fork(parent, new, from_message)
            except (errors.LeaseLostError, errors.StaleHeadError):
                # Another owner has replaced us. Start again from the present state.
                continue
            except errors.RunNotFoundError as error:
                raise ThreadNotFoundError(parent.session_id, parent.thread_id) from error

    async def _fork(self, parent: ThreadName, new: ThreadName, from_message: str | int | None) -> Thread:
        if parent == new:
            raise ThreadExistsError(new.session_id, new.thread_id, what="the thread to be forked itself")
        async with AsyncExitStack() as stack:
            leases: dict[ThreadName, Lease] = {}
            # Take leases in a fixed order, or two tasks that fork each other's threads would deadlock.
            for each in sorted((parent, new), key=lambda name: name.run_id):
                leases[each] = await stack.enter_async_context(self._leased(each, creates=each == new))
            stored = await self.find(parent)
            if stored is None:
                raise ThreadNotFoundError(parent.session_id, parent.thread_id)
            point = ForkPoint(parent.thread_id, await self._point(stored, from_message))
            found = await self.find(new)
            if found is None:
                found = await self._make_fork(leases[parent], stored, leases[new], new, point)
            _require_fork(found, point)
            return found.thread()

    async def _point(self, stored: StoredThread, from_message: str | int | None) -> int:
        if from_message is None:
            return stored.sequence
        if isinstance(from_message, str):
            numbers = [each.sequence for each in await self.events(stored) if each.message_id == from_message]
        else:
            numbers = [from_message] if 0 <= from_message <= stored.sequence else []
        if not numbers:
            name = stored.name
            raise ThreadNotFoundError(name.session_id, name.thread_id, message=from_message, last=stored.sequence)
        return numbers[-1]

    async def _make_fork(
        self, parent_lease: Lease, parent: StoredThread, lease: Lease, new: ThreadName, point: ForkPoint
    ) -> StoredThread:
        header = Header(self._clock.new_id(), point)
        await self._commit(lease, new, None, header, at=self._clock.now().isoformat())
        try:
            # Only the owner of the parent's lease knows that nobody is deleting it.
            await self._store.record(parent_lease, head=parent.record.head, records=(), durable=False)
        except (errors.LeaseLostError, errors.StaleHeadError):
            await self._store.remove(new.run_id, takeover=True)
            raise
        found = await self.find(new)
        assert found is not None, f"the fork {new.run_id!r} was made, and it is leased"
        return found

    async def delete(self, name: ThreadName) -> bool:
        """Delete a thread. Return False if there is none. Raises ThreadInUseError."""
        with thread_errors(name):
            try:
                async with self._leased(name, creates=False):
                    stored = await self.threads(name.session_id)
                    forks = [each.name.thread_id for each in stored if each.parent == name]
                    if forks:
                        raise ThreadInUseError(name.session_id, name.thread_id, forks=forks)
                    return await self._store.remove(name.run_id, takeover=True)
            except errors.RunNotFoundError:
                return False


def _cut(batch: Batch, *, after: int, until: int | None) -> Batch:
    wanted = [event for event in batch.events if event.sequence > after and (until is None or event.sequence <= until)]
    return replace(batch, events=tuple(wanted))


def _damaged(name: ThreadName, reason: str) -> ThreadDamagedError:
    return ThreadDamagedError(name.session_id, name.thread_id, reason=reason)


def _require_fork(found: StoredThread, point: ForkPoint) -> None:
    """Raise ThreadExistsError unless an existing thread is the requested fork."""
    actual = found.header.forked_from
    if actual == point:
        return
    if actual is None:
        what = "no fork"
    elif actual.thread_id == point.thread_id:
        what = f"a fork of {actual.thread_id!r} at {actual.sequence}, not at {point.sequence}"
    else:
        what = f"a fork of {actual.thread_id!r}, not of {point.thread_id!r}"
    raise ThreadExistsError(found.name.session_id, found.name.thread_id, what=what)
