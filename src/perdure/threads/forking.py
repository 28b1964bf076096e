"""Forks of threads, by pointer: a fork knows where it begins, and the thread that it rests on stays.

Who forks a thread and who deletes it both hold it meanwhile, so a fork never loses what it begins with.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from perdure.errors import ClaimLostError, RunNotFoundError, StaleHeadError
from perdure.threads.errors import ThreadExistsError, ThreadInUseError, ThreadNotFoundError
from perdure.threads.holding import naming
from perdure.threads.thread import ForkPoint, Header

if TYPE_CHECKING:
    from perdure.clock import Clock
    from perdure.records import Claim
    from perdure.storage import HostStore
    from perdure.threads.holding import Holding
    from perdure.threads.names import ThreadName
    from perdure.threads.reading import Reading
    from perdure.threads.thread import Place, Thread
    from perdure.threads.writing import Writing


class Forking:
    """Makes forks, and removes threads that no fork rests on."""

    def __init__(self, store: HostStore, clock: Clock, reading: Reading, writing: Writing, holding: Holding) -> None:
        self._store = store
        self._clock = clock
        self._reading = reading
        self._writing = writing
        self._holding = holding

    async def fork(self, parent: ThreadName, new: ThreadName, *, from_message: str | int | None) -> Thread:
        """The fork, made now or before. Raises ThreadNotFoundError, ThreadExistsError, TypeError."""
        _require_message(from_message)
        while True:
            try:
                with naming(new):
                    return await self._fork(parent, new, from_message)
            except (ClaimLostError, StaleHeadError):
                # We were replaced, and begin again with what is there by now.
                continue
            except RunNotFoundError as error:
                raise ThreadNotFoundError(parent.session_id, parent.thread_id) from error

    async def _fork(self, parent: ThreadName, new: ThreadName, from_message: str | int | None) -> Thread:
        if parent == new:
            raise ThreadExistsError(new.session_id, new.thread_id, what="the thread to be forked itself")
        async with AsyncExitStack() as held:
            claims: dict[ThreadName, Claim] = {}
            # In one order, or two who fork each other's threads would wait for each other.
            for each in sorted((parent, new), key=lambda name: name.run_id):
                claims[each] = await held.enter_async_context(self._holding.of(each, creates=each == new))
            place = await self._reading.look(parent)
            if place is None:
                raise ThreadNotFoundError(parent.session_id, parent.thread_id)
            point = ForkPoint(parent.thread_id, await self._point(place, from_message))
            found = await self._reading.look(new)
            if found is None:
                found = await self._made(claims[parent], place, claims[new], new, point)
            return _same(found, point).thread()

    async def _point(self, place: Place, from_message: str | int | None) -> int:
        match from_message:
            case None:
                return place.sequence
            case int() if 0 <= from_message <= place.sequence:
                return from_message
            case str():
                numbers = [
                    each.sequence for each in await self._reading.events(place) if each.message_id == from_message
                ]
                if numbers:
                    return numbers[-1]
            case int():
                pass
        name = place.name
        raise ThreadNotFoundError(name.session_id, name.thread_id, message=from_message, last=place.sequence)

    async def _made(self, held: Claim, parent: Place, claim: Claim, new: ThreadName, point: ForkPoint) -> Place:
        header = Header(self._clock.new_id(), point)
        await self._writing.commit(claim, new, None, header, at=self._clock.now().isoformat())
        try:
            # Only who still holds the parent knows that nobody has removed it, unaware of the fork.
            await self._store.record(held, head=parent.record.head, records=(), durable=False)
        except (ClaimLostError, StaleHeadError):
            await self._store.remove(new.run_id, takeover=True)
            raise
        found = await self._reading.look(new)
        assert found is not None, f"the fork {new.run_id!r} was made, and it is held"
        return found

    async def delete(self, name: ThreadName) -> bool:
        """Remove a thread; False if there is none. Raises ThreadInUseError."""
        with naming(name):
            try:
                async with self._holding.of(name, creates=False):
                    await self._require_no_forks(name)
                    return await self._store.remove(name.run_id, takeover=True)
            except RunNotFoundError:
                return False

    async def _require_no_forks(self, name: ThreadName) -> None:
        places = await self._reading.places(name.session_id)
        forks = [place.name.thread_id for place in places if place.parent == name]
        if forks:
            raise ThreadInUseError(name.session_id, name.thread_id, forks=forks)


def _same(found: Place, point: ForkPoint) -> Place:
    """The thread that is there, if it is the fork that is wanted."""
    there = found.header.forked_from
    if there == point:
        return found
    what = "no fork" if there is None else f"a fork of {there.thread_id!r} at {there.sequence}, not at {point.sequence}"
    if there is not None and there.thread_id != point.thread_id:
        what = f"a fork of {there.thread_id!r}, not of {point.thread_id!r}"
    raise ThreadExistsError(found.name.session_id, found.name.thread_id, what=what)


def _require_message(given: object) -> None:
    """Raise TypeError for what names no message. True is a number, and nobody means the first message by it."""
    if given is not None and (isinstance(given, bool) or not isinstance(given, str | int)):
        raise TypeError(
            f"from_message is {given!r}: give the id of a message, its sequence number, 0 for none of them, or leave "
            "it out for the last"
        )
