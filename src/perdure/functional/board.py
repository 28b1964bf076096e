"""The state as the steps of a function set it. Who has the last word is the same in every life.

Steps that run side by side see what others set at once, as in any Python program. If two of them set one key and the
second did not look at what the first had set, the one that was called later has the last word.
"""

from __future__ import annotations

import asyncio
import threading
from bisect import insort
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from perdure.graph.port import ABSENT

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

Rank: TypeAlias = tuple[int, int, str]
"""How many writes of a key came before, which call of a step it was by, and the step's own key. The highest counts."""

_FIRST: Rank = (0, 0, "")
_TURNS = 8


class Store(Protocol):
    """Where the values are."""

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key, or the default."""
        ...

    def set(self, key: str, value: Any) -> None:
        """Keep a value."""
        ...

    def delete(self, key: str) -> None:
        """Forget a key."""
        ...


class OwnStore:
    """Values that are needed as long as a function runs, and no longer."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key, or the default."""
        return self._values.get(key, default)

    def set(self, key: str, value: Any) -> None:
        """Keep a value."""
        self._values[key] = value

    def delete(self, key: str) -> None:
        """Forget a key."""
        del self._values[key]


@dataclass(slots=True, eq=False)
class Writer:
    """One call of a step, as far as it sets state."""

    board: Board
    name: str
    call: int
    began: int
    outer: Writer | None
    place: str = ""
    seen: dict[str, int] = field(default_factory=dict[str, int])
    """By key: when it looked at it last."""
    has_ended: bool = False
    conflicts: list[str] = field(default_factory=list[str])
    """What there is to warn of."""

    @property
    def is_over(self) -> bool:
        """Whether it has ended, or a step around it has."""
        return self.has_ended or (self.outer is not None and self.outer.is_over)

    def is_within(self, other: Writer) -> bool:
        """Whether it is that call, or a step inside of it."""
        return self is other or (self.outer is not None and self.outer.is_within(other))


@dataclass(slots=True, eq=False)
class _Entry:
    """What a step has set."""

    rank: Rank
    value: Any
    writer: Writer
    at: int


class Board:
    """The state of one entry of a function. It may be used in threads.

    `has_past` says whether steps of the function may have been done in an entry before.
    """

    def __init__(self, store: Store, *, has_past: bool = True) -> None:
        self._store = store
        self._has_past = has_past
        self._entries: dict[str, list[_Entry]] = {}
        self._floors: dict[str, Any] = {}
        """By key that steps have set: what it was before."""
        self._unsettled: set[int] = set()
        """The calls of steps of which it is not known yet whether they are to be done, or were."""
        self._lock = threading.RLock()
        self._time = 0
        self._calls = 0

    def called(self, name: str) -> Writer:
        """A step is called."""
        with self._lock:
            self._calls += 1
            self._unsettled.add(self._calls)
            return Writer(self, name, self._calls, self._tick(), self._writing())

    async def done_before(self, writer: Writer) -> None:
        """A step is to be done: let those that were called beside it, and were done in another life, be set first.

        What they set then is what this one would have seen. Finding a record takes them some turns of the loop.
        """
        self._unsettled.discard(writer.call)
        for _ in range(_TURNS if self._has_past else 0):
            if not self._unsettled:
                return
            await asyncio.sleep(0)

    def get(self, key: str, default: Any) -> Any:
        """The value of a key."""
        with self._lock:
            writer = self._writing()
            if writer is not None:
                writer.seen[key] = self._tick()
            return self._store.get(key, default)

    def set(self, key: str, value: Any) -> None:
        """Keep a value. Raises RuntimeError in what a step has left running."""
        with self._lock:
            writer = self._writing()
            if writer is None:
                self._entries.pop(key, None)
                self._store.set(key, value)
                return
            if writer.is_over:
                raise RuntimeError(
                    f"step {writer.name!r} has ended: the state {key!r} that it sets now would be lost; await every "
                    "task that the step begins inside of it"
                )
            self._put(key, value, writer)

    def _put(self, key: str, value: Any, writer: Writer) -> None:
        entries = self._begun(key)
        top = entries[-1] if entries else None
        if top is not None and top.writer is writer:
            rank = top.rank
        elif top is None or not _is_blind(key, writer, top):
            rank = (1 if top is None else top.rank[0] + 1, writer.call, writer.place)
        else:
            rank = (top.rank[0], writer.call, writer.place)
            writer.conflicts.append(
                f"steps {top.writer.name!r} and {writer.name!r} run side by side and both set the state {key!r}: what "
                f"{(writer if rank > top.rank else top.writer).name!r} sets stands, which was called later; let one of "
                "them set it, or read it before it is set"
            )
        entries[:] = [entry for entry in entries if entry.writer is not writer]
        self._insert(key, _Entry(rank, value, writer, self._tick()))

    def _begun(self, key: str) -> list[_Entry]:
        if key not in self._entries:
            self._floors[key] = self._store.get(key, ABSENT)
        return self._entries.setdefault(key, [])

    def _insert(self, key: str, entry: _Entry) -> None:
        insort(self._entries[key], entry, key=lambda each: each.rank)
        self._show(key)

    def _show(self, key: str) -> None:
        """Let the value be what the last word is now."""
        entries, floor = self._entries[key], self._floors[key]
        if entries or floor is not ABSENT:
            self._store.set(key, entries[-1].value if entries else floor)
        else:
            self._store.delete(key)

    def withdraw(self, writer: Writer) -> None:
        """An attempt at a step has failed: what it has set is not kept, by no life."""
        with self._lock:
            writer.has_ended = True
            self._unsettled.discard(writer.call)
            for key, entries in self._entries.items():
                left = [entry for entry in entries if not entry.writer.is_within(writer)]
                if len(left) < len(entries):
                    entries[:] = left
                    self._show(key)

    def settled(self, writer: Writer) -> tuple[dict[str, Any], dict[str, Rank]]:
        """What a step and those in it have set, and in which order with others. It has ended well."""
        with self._lock:
            writer.has_ended = True
            found = {
                key: entry
                for key, entries in self._entries.items()
                for entry in entries
                if entry.writer.is_within(writer)
            }
            return {key: entry.value for key, entry in found.items()}, {key: found[key].rank for key in found}

    def restore(self, writer: Writer, values: Mapping[str, Any], ranks: Mapping[str, Rank]) -> None:
        """A step was done, in this life or another: what it has set is set, as it was recorded."""
        with self._lock:
            self._unsettled.discard(writer.call)
            for key, value in values.items():
                entries = self._begun(key)
                own = [entry for entry in entries if entry.writer.is_within(writer)]
                # Who has looked at it since it was set knows of it.
                at = max((entry.at for entry in own), default=0) or self._tick()
                entries[:] = [entry for entry in entries if entry not in own]
                self._insert(key, _Entry(ranks.get(key, _FIRST), value, writer, at))

    def _tick(self) -> int:
        self._time += 1
        return self._time

    def _writing(self) -> Writer | None:
        """The step of this function that is running here. That of another one around it sets its own."""
        writer = _writer.get()
        return writer if writer is not None and writer.board is self else None


def _is_blind(key: str, writer: Writer, top: _Entry) -> bool:
    """Whether somebody overwrites what they can't have known of."""
    knew = max(writer.began, writer.seen.get(key, 0)) > top.at
    return not (knew or writer.is_within(top.writer) or top.writer.is_within(writer))


_writer: ContextVar[Writer | None] = ContextVar("perdure_step_writer", default=None)


@contextmanager
def writing(writer: Writer) -> Generator[None]:
    """What is set in the state meanwhile is set by this step."""
    token = _writer.set(writer)
    try:
        yield
    finally:
        _writer.reset(token)
