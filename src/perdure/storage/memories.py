"""What a process remembers of the runs in a user's own storage, which has no place for it."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from perdure.records import Manifest, NewRun

_RUNS_MAX = 256


@dataclass(slots=True)
class Remembered:
    """How a run began, and its newest checkpoint with all its parts."""

    begun: NewRun | None = None
    head: Manifest | None = None
    parts: Mapping[str, bytes] = field(default_factory=dict[str, bytes])


class Memory:
    """The runs that were used last. Of one that is forgotten, the storage has to tell."""

    def __init__(self) -> None:
        self._runs: OrderedDict[str, Remembered] = OrderedDict()

    def of(self, run_id: str) -> Remembered:
        """What is remembered of a run; it may be nothing."""
        found = self._runs.setdefault(run_id, Remembered())
        self._runs.move_to_end(run_id)
        if len(self._runs) > _RUNS_MAX:
            self._runs.popitem(last=False)
        return found


_memories: dict[int, tuple[weakref.ref[object], Memory]] = {}


def memory_of(storage: object) -> Memory:
    """The memory for a storage, as long as it lives. By identity: a storage need not be hashable."""
    key = id(storage)
    known = _memories.get(key)
    if known is not None and known[0]() is storage:
        return known[1]
    memory = Memory()
    try:
        _memories[key] = (weakref.ref(storage, lambda _: _memories.pop(key, None)), memory)
    except TypeError:
        # An object with slots and no room for a weak reference is remembered by those who hold its memory.
        return memory
    return memory
