"""A run as a whole, on values: what its archive needs, and what can be said of it again where it is restored."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING

from perdure.errors import CheckpointDamagedError
from perdure.records import digest
from perdure.storage import rules
from perdure.storage.retention import moment

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from perdure.records import Archive, Part


def roots(archive: Archive) -> Iterator[str]:
    """What everything in it refers to directly."""
    of_checkpoints = (checkpoint.manifest.roots for checkpoint in archive.checkpoints)
    of_others = (each.refs for each in (*archive.journal, *archive.inbox, *archive.events))
    return itertools.chain.from_iterable(itertools.chain(of_checkpoints, of_others))


def whole(archive: Archive, parts: Iterable[Part]) -> Archive:
    """The archive with all the parts that it needs. Raises CheckpointDamagedError for one that is not as it was."""
    there = {part.hash: part for part in parts}
    for part in there.values():
        if digest(part.data) != part.hash:
            raise CheckpointDamagedError(
                _which_needs(archive, part.hash, there), f"its part {part.hash!r} is not whole"
            )
    wanted = itertools.chain(roots(archive), *(part.refs for part in there.values()))
    missing = next((each for each in wanted if each not in there), None)
    if missing is not None:
        raise CheckpointDamagedError(_which_needs(archive, missing, there), f"its part {missing!r} is missing")
    return replace(archive, parts=tuple(there.values()))


def _which_needs(archive: Archive, part_hash: str, there: Mapping[str, Part]) -> str:
    """The checkpoint that a part belongs to; the head if it is something else that does."""
    for checkpoint in archive.checkpoints:
        waiting = list(checkpoint.manifest.roots)
        seen: set[str] = set()
        while waiting:
            each = waiting.pop()
            if each == part_hash:
                return checkpoint.manifest.checkpoint_id
            if each in there and each not in seen:
                seen.add(each)
                waiting.extend(there[each].refs)
    return archive.record.head or archive.record.run_id


def state_of(archive: Archive, *, token: int) -> rules.RunState:
    """The run as its new store has it, given free, under a token that nobody holds."""
    return rules.RunState(archive.record, token, moment(archive.checkpoints[-1].manifest.timestamp))


def forgotten(archive: Archive) -> int:
    """The number of the last event that is not kept any more, 0 if all are."""
    return archive.events[0].first - 1 if archive.events else archive.record.events


def moments_told(archive: Archive) -> Sequence[float | None]:
    """When each batch of events was told. Of a commit that is forgotten the next one's moment is taken instead."""
    known = {each.manifest.checkpoint_id: moment(each.manifest.timestamp) for each in archive.checkpoints}
    moments: list[float | None] = []
    for batch in reversed(archive.events):
        moments.append(known.get(batch.checkpoint_id, moments[-1] if moments else None))
    return moments[::-1]
