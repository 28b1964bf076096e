"""Writing threads: an append is one commit, on top of what the thread had."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.errors import ClaimLostError, StaleHeadError
from perdure.records import Commit, Manifest
from perdure.threads.errors import ThreadConflictError
from perdure.threads.holding import naming
from perdure.threads.thread import Header

if TYPE_CHECKING:
    from perdure.records import Claim, NewEvents
    from perdure.storage import HostStore
    from perdure.threads.events import Appended
    from perdure.threads.holding import Holding
    from perdure.threads.names import ThreadName
    from perdure.threads.reading import Reading
    from perdure.threads.thread import Place


class Writing:
    """Appends to threads."""

    def __init__(self, store: HostStore, reading: Reading, holding: Holding) -> None:
        self._store = store
        self._reading = reading
        self._holding = holding

    async def append(self, name: ThreadName, new: Appended, *, expected: int | None, since: int) -> int:
        """Append, unless it is done already; the number of its last event.

        Raises ThreadConflictError, ThreadDamagedError, ThreadWriteError.
        """
        # What was never tried stands nowhere, unless an earlier life has done it under the same key.
        looks_behind = None if new.key is None else since
        while True:
            try:
                with naming(name):
                    async with self._holding.of(name) as claim:
                        return await self._append(claim, name, new, expected=expected, looks_behind=looks_behind)
            except (ClaimLostError, StaleHeadError):
                # We were replaced. If the connection was lost meanwhile, it may be written all the same.
                looks_behind = since

    async def _append(
        self, claim: Claim, name: ThreadName, new: Appended, *, expected: int | None, looks_behind: int | None
    ) -> int:
        place = await self._reading.look(name)
        sequence = place.sequence if place else 0
        if place is not None and looks_behind is not None:
            done = await self._standing(place, new, behind=looks_behind)
            if done is not None:
                return done
        require_at(name, place, expected)
        if not new.events.count:
            return sequence
        header = Header(new.id, tags=new.tags)
        if place is not None:
            header = Header(new.id, place.header.forked_from, {**place.header.tags, **new.tags})
        await self.commit(claim, name, place, header, at=new.at, events=new.events)
        return sequence + new.events.count

    async def _standing(self, place: Place, new: Appended, *, behind: int) -> int | None:
        """The number of the last event of this append, or of an earlier one with its key, if there is one."""
        found = await self._reading.batches(place, after=behind)
        done = [each for each in found if each.append == new.id or (new.key is not None and each.key == new.key)]
        return done[-1].events[-1].sequence if done else None

    async def commit(
        self,
        claim: Claim,
        name: ThreadName,
        place: Place | None,
        header: Header,
        *,
        at: str,
        events: NewEvents | None = None,
    ) -> None:
        """Write the newest checkpoint of a thread, with events or without. Raises ClaimLostError, StaleHeadError."""
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
        # It has settled: no host ever takes a thread for work.
        await self._store.commit(claim, Commit(manifest, (), head, settled=True, status="idle", events=events))


def require_at(name: ThreadName, place: Place | None, expected: int | None) -> None:
    """Refuse to append to a thread that is not where it is expected."""
    sequence = place.sequence if place else 0
    if expected is not None and sequence != expected:
        raise ThreadConflictError(name.session_id, name.thread_id, expected=expected, sequence=sequence)
