"""Rules for whole runs that move between stores, as pure functions on values."""

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
    """Return every blob that the checkpoints, journal, inbox and events refer to directly."""
    of_checkpoints = (checkpoint.manifest.roots for checkpoint in archive.checkpoints)
    of_others = (each.refs for each in (*archive.journal, *archive.inbox, *archive.events))
    return itertools.chain.from_iterable(itertools.chain(of_checkpoints, of_others))


def whole(archive: Archive, parts: Iterable[Part]) -> Archive:
    """Return the archive with its blobs. Raises CheckpointDamagedError if one is missing or damaged."""
    there = {part.hash: part for part in parts}
    for part in there.values():
        if digest(part.data) != part.hash:
            raise CheckpointDamagedError(_which_needs(archive, part.hash, there), f"its blob {part.hash!r} is damaged")
    wanted = itertools.chain(roots(archive), *(part.refs for part in there.values()))
    missing = next((each for each in wanted if each not in there), None)
    if missing is not None:
        raise CheckpointDamagedError(_which_needs(archive, missing, there), f"its blob {missing!r} is missing")
    return replace(archive, parts=tuple(there.values()))


def _which_needs(archive: Archive, part_hash: str, there: Mapping[str, Part]) -> str:
    """Return the checkpoint that needs a blob, or the head if something else needs it."""
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
    """Return the run for its new store: without an owner, under a token that nobody has."""
    return rules.RunState(archive.record, token, moment(archive.checkpoints[-1].manifest.timestamp))


def forgotten(archive: Archive) -> int:
    """Return the number of the last event that was removed, or 0."""
    return archive.events[0].first - 1 if archive.events else archive.record.events


def moments_told(archive: Archive) -> Sequence[float | None]:
    """Return when each batch of events was committed. If that commit was removed, take the next one's time."""
    known = {each.manifest.checkpoint_id: moment(each.manifest.timestamp) for each in archive.checkpoints}
    moments: list[float | None] = []
    for batch in reversed(archive.events):
        moments.append(known.get(batch.checkpoint_id, moments[-1] if moments else None))
    return moments[::-1]
