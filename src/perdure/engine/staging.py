"""The state as one activation sees it, and what it writes: staged until the superstep is folded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.graph import SHARED_SCOPE, wiring
from perdure.kernel import Write

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from perdure.engine.activation import Surroundings
    from perdure.graph import Executor, Reducer
    from perdure.kernel import StateKey

RUN_KWARGS_KEY = "_workflow_run_kwargs"


class Staging:
    """What was committed, the writes of the executor's earlier activations in this superstep, and its own."""

    def __init__(self, executor: Executor, around: Surroundings) -> None:
        self._executor = executor
        self._around = around
        self._own: dict[StateKey, Any] = {}
        self._erased: set[StateKey] = set()
        self._updates: dict[StateKey, list[object | None]] = {}

    def read(self, place: StateKey) -> Any:
        """A value of the state, a copy if it could be changed. Raises KeyError."""
        if place in self._own:
            return self._own[place]
        if place in self._erased:
            raise KeyError(place[1])
        earlier = self._overlay().get(place)
        if earlier is not None:
            if earlier.erase:
                raise KeyError(place[1])
            return self._around.values.give_state(earlier.value)
        if place == (SHARED_SCOPE, RUN_KWARGS_KEY):
            return {kind: dict(by_target) for kind, by_target in self._around.run_kwargs.items()}
        return self._around.values.give_state(self._around.snapshot.state[place])

    def write(self, place: StateKey, value: Any) -> None:
        """Stage a value; of a key with a reducer, an update that is merged when the superstep ends."""
        reducer = self._reducer(place)
        if reducer is not None:
            value = self._updated(reducer, place, value)
        self._own[place] = value
        self._erased.discard(place)

    def _reducer(self, place: StateKey) -> Reducer | None:
        return self._around.graph.reducers.get(place)

    def _updated(self, reducer: Reducer, place: StateKey, update: Any) -> Any:
        """Note an update, and merge it for this activation's own eyes. A reducer may change what it is given."""
        values = self._around.values
        fixed = values.fix(update, _state_path(place))
        self._updates.setdefault(place, []).append(fixed)
        try:
            current = self.read(place)
        except KeyError:
            return values.give_state(fixed)
        return reducer(current, values.give_state(fixed))

    def erase(self, place: StateKey) -> None:
        """Stage the removal of a value. Raises KeyError."""
        self.read(place)
        self._own.pop(place, None)
        if self._reducer(place) is not None:
            self._updates[place] = [None]
        self._erased.add(place)

    def has(self, place: StateKey) -> bool:
        """Whether a key has a value, as this activation sees it. Nothing is read for that."""
        if place in self._own:
            return True
        if place in self._erased:
            return False
        earlier = self._overlay().get(place)
        return place in self._around.snapshot.state if earlier is None else not earlier.erase

    def keys(self, scope: str) -> Sequence[str]:
        """The keys of a scope as this activation sees it."""
        found = dict.fromkeys(key for place, key in self._around.snapshot.state if place == scope)
        for (place, key), write in self._overlay().items():
            if place == scope:
                found.pop(key, None) if write.erase else found.setdefault(key)
        found.update(dict.fromkeys(key for place, key in self._own if place == scope))
        return [key for key in found if (scope, key) not in self._erased]

    def _overlay(self) -> Mapping[StateKey, Write]:
        """Of an executor that handles several messages at once none is earlier: what each sees must not be a race."""
        is_parallel = wiring(self._executor).max_concurrency > 1
        return {} if is_parallel else self._around.overlays.get(self._executor.id, {})

    def writes(self) -> tuple[Write, ...]:
        """What was written, fixed as it is now."""
        fix = self._around.values.fix
        erased = [Write(place, None, erase=True) for place in sorted(self._erased)]
        return (*erased, *(Write(place, fix(value, _state_path(place))) for place, value in self._own.items()))

    def updates(self) -> dict[StateKey, tuple[object | None, ...]]:
        """What is to be merged by reducers, by key."""
        return {place: tuple(updates) for place, updates in self._updates.items()}


def _state_path(place: StateKey) -> str:
    scope, key = place
    return f"state[{key!r}]" if scope == SHARED_SCOPE else f"state[{key!r}] of scope {scope!r}"
