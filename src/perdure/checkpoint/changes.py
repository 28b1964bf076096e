"""Find the entries of a checkpoint that must be written: those that differ from the previous snapshot.

Identical objects are skipped, so the cost depends on what changed, not on what exists.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from operator import is_
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias
from urllib.parse import quote

from perdure.checkpoint.documents import answered_text, cancelled_text, limits_text, received_text
from perdure.codec import Encoded, Needs, array, as_kept, plain
from perdure.kernel import Limits, Snapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from perdure.checkpoint.documents import PieceWriter
    from perdure.kernel import Request, StateKey, Trail
    from perdure.records import Blob

    Write: TypeAlias = Callable[[Any, Needs], bytes]

Pace: TypeAlias = Literal["passing", "value", "lasting", "full"]
"""How often an entry changes: "passing" with nearly every superstep, "value" when the program sets it, "lasting" never
until it is removed. "full" is a complete chunk of a trail, which never changes.
"""

_NOTHING = Snapshot()
_NO_LIMITS = Limits()


class Fresh(NamedTuple):
    """An entry that is new or changed."""

    encoded: Encoded
    pace: Pace
    before: Encoded | None = None
    """The previous content."""

    def blob(self) -> Blob:
        """Return the entry as a blob."""
        return self.encoded.blob()

    def nested(self) -> Iterable[Blob]:
        """Return the blobs that the entry needs and its previous content did not."""
        if not self.encoded.refs:
            return ()
        return self.encoded.blobs if self.before is None else self.encoded.beyond(self.before.has)


@dataclass(slots=True)
class Changes:
    """Changed entries and removed paths."""

    fresh: dict[str, Fresh] = field(default_factory=dict[str, Fresh])
    gone: list[str] = field(default_factory=list[str])

    def put(
        self, path: str, encoded: Encoded | Collection[object] | None, before: Callable[[], Encoded] | None = None
    ) -> None:
        """Set an entry that is always written as a whole, or remove it if it is empty.

        `before` encodes the previous content, if that can save blobs: of a log that is passed on, all but the new
        elements.
        """
        if isinstance(encoded, Encoded):
            self.fresh[path] = Fresh(encoded, "passing", before() if before is not None and encoded.refs else None)
        else:
            self.gone.append(path)


class ChangeFinder:
    """Compares the snapshots of one run."""

    def __init__(self, pieces: PieceWriter) -> None:
        self._pieces = pieces
        self._tails: dict[str, list[tuple[object, Encoded]]] = {}
        """The elements of incomplete chunks, as they were last written."""

    def changes(self, before: Snapshot | None, after: Snapshot, prefix: str = "") -> Changes:
        """Return the entries of `after` that differ from `before`, or all of them if `before` is None."""
        found = Changes()
        if prefix:
            self._counts(before, after, prefix, found)
        self._compare(before or _NOTHING, after, prefix, found)
        return found

    def _compare(self, before: Snapshot, after: Snapshot, prefix: str, found: Changes) -> None:
        if after.executors is not before.executors:
            self._values(before.executors, after.executors, lambda key: f"{prefix}executor/{key}", found)
        if after.state is not before.state:
            self._values(before.state, after.state, lambda key: _state_path(prefix, key), found)
        if after.requests is not before.requests:
            self._requests(before.requests, after.requests, prefix, found)
        self._passing(before, after, prefix, found)
        if after.outputs is not before.outputs:
            self._trail(f"{prefix}outputs", (before.outputs, after.outputs), self._pieces.output, found)
        if after.answered is not before.answered:
            self._trail(f"{prefix}answered", (before.answered, after.answered), answered_text, found)
        if after.received is not before.received:
            self._trail(f"{prefix}received", (before.received, after.received), received_text, found)
        if after.kwargs is not before.kwargs:
            values = [{} if kwargs is None else {"kwargs": kwargs} for kwargs in (before.kwargs, after.kwargs)]
            self._values(values[0], values[1], lambda key: f"{prefix}{key}", found)
        if after.carried is not before.carried:
            self._values(before.carried, after.carried, lambda key: f"{prefix}carried/{key}", found)
        if after.children is not before.children:
            self._children(before.children, after.children, prefix, found)

    def _values(
        self, before: Mapping[Any, object], after: Mapping[Any, object], path: Callable[[Any], str], found: Changes
    ) -> None:
        changed = [key for key, value in after.items() if before.get(key) is not value]
        for key in changed:
            new, old = as_kept(after[key]).require_encoded(), before.get(key)
            found.fresh[path(key)] = Fresh(new, "value", None if old is None else as_kept(old).encoded)
        if len(before) > len(after) - sum([key not in before for key in changed]):
            found.gone += [path(key) for key in before if key not in after]

    def _requests(
        self, before: Mapping[str, Request], after: Mapping[str, Request], prefix: str, found: Changes
    ) -> None:
        for key, request in after.items():
            if before.get(key) is not request:
                found.fresh[f"{prefix}request/{key}"] = Fresh(self._pieces.request(request), "lasting")
        found.gone += [f"{prefix}request/{key}" for key in before if key not in after]

    def _passing(self, before: Snapshot, after: Snapshot, prefix: str, found: Changes) -> None:
        """Compare entries that are always written as a whole."""
        pieces, cancelled, limits = self._pieces, after.cancelled, after.limits
        if not _is_same(before.deliveries, after.deliveries):
            self._put_all(f"{prefix}deliveries", (before.deliveries, after.deliveries), pieces.delivery, found)
        if after.fan_in is not before.fan_in and (after.fan_in or before.fan_in):
            gathered = after.fan_in and pieces.fan_in(after.fan_in)
            found.put(f"{prefix}fan_in", gathered, lambda: pieces.fan_in(before.fan_in))
        if before.suspended is not after.suspended and not _is_same(before.suspended, after.suspended):
            self._put_all(f"{prefix}suspended", (before.suspended, after.suspended), pieces.suspended, found)
        if before.delayed is not after.delayed and not _is_same(before.delayed, after.delayed):
            self._put_all(f"{prefix}delayed", (before.delayed, after.delayed), pieces.delayed, found)
        if cancelled is not before.cancelled:
            found.put(f"{prefix}cancelled", cancelled and cancelled_text(cancelled))
        if limits is not before.limits and limits != before.limits:
            found.put(f"{prefix}limits", limits_text(limits) if limits != _NO_LIMITS else None)

    def _put_all(self, path: str, items: tuple[Sequence[Any], Sequence[Any]], write: Write, found: Changes) -> None:
        before, after = items
        array = self._pieces.array
        found.put(path, after and array(after, write), lambda: array(before, write))

    def _counts(self, before: Snapshot | None, after: Snapshot, prefix: str, found: Changes) -> None:
        counts = [after.turn, after.iteration, after.since_input]
        if before is None or counts != [before.turn, before.iteration, before.since_input]:
            found.fresh[f"{prefix}counts"] = Fresh(plain(counts), "passing")

    def _children(
        self, before: Mapping[str, Snapshot], after: Mapping[str, Snapshot], prefix: str, found: Changes
    ) -> None:
        for key, child in after.items():
            old = before.get(key)
            if old is not child:
                inner = self.changes(old, child, _child_path(prefix, key))
                found.fresh.update(inner.fresh)
                found.gone += inner.gone
        for key, child in before.items():
            if key not in after:
                path = _child_path(prefix, key)
                found.gone += [f"{path}counts", *self.changes(child, _NOTHING, path).gone]

    def _trail(self, path: str, trails: tuple[Trail[Any], Trail[Any]], write: Write, found: Changes) -> None:
        before, after = trails
        first = _same_chunks(before, after)
        for index, chunk in enumerate(after.sealed[first:], first):
            place = f"{path}/{index}"
            found.fresh[place] = self._chunk(place, chunk, write, _tail_at(before, index), "full")
            self._tails.pop(place, None)
        count = len(after.sealed)
        if after.tail and not _is_same(after.tail, _tail_at(before, count)):
            place = f"{path}/{count}"
            found.fresh[place] = self._chunk(place, after.tail, write, _tail_at(before, count), "passing")
        count, count_before = [len(trail.sealed) + bool(trail.tail) for trail in (after, before)]
        found.gone += [f"{path}/{index}" for index in range(count, count_before)]

    def _chunk(self, place: str, items: tuple[Any, ...], write: Write, before: tuple[Any, ...], pace: Pace) -> Fresh:
        """Encode a chunk, reusing the elements that were encoded when it was last written."""
        known = self._tails.get(place, [])
        shared = 0
        while shared < min(len(known), len(items)) and known[shared][0] is items[shared]:
            shared += 1
        written = known[:shared]
        for item in items[shared:]:
            needs = Needs()
            written.append((item, needs.whole(write(item, needs))))
        self._tails[place] = written
        encoded = array([piece for _, piece in written])
        if not encoded.refs:
            return Fresh(encoded, pace)
        return Fresh(
            encoded, pace, array([piece for (item, piece), old in zip(written, before, strict=False) if item is old])
        )


def _is_same(before: tuple[object, ...], after: tuple[object, ...]) -> bool:
    return len(before) == len(after) and all(map(is_, before, after))


def _same_chunks(before: Trail[Any], after: Trail[Any]) -> int:
    """Return the number of full chunks that two trails share at their start."""
    count = len(before.sealed)
    # A trail only grows: if it has a chunk, it has everything before it.
    if count and count <= len(after.sealed) and after.sealed[count - 1] is before.sealed[count - 1]:
        return count
    return 0


def _tail_at(trail: Trail[Any], index: int) -> tuple[Any, ...]:
    return trail.tail if index == len(trail.sealed) else ()


def _state_path(prefix: str, place: StateKey) -> str:
    scope, key = place
    return f"{prefix}state/{_escaped(scope)}/{key}"


def _child_path(prefix: str, executor_id: str) -> str:
    return f"{prefix}child/{_escaped(executor_id)}/"


@lru_cache(maxsize=1024)
def _escaped(name: str) -> str:
    return quote(name, safe="")
