"""The state of executor instances: save it with their hooks, restore it, and detect changes that would be lost."""

from __future__ import annotations

import inspect
from dataclasses import replace
from operator import is_
from typing import TYPE_CHECKING, Any, TypeAlias

from perdure.codec import as_kept
from perdure.errors import EncodeError, WorkflowCheckpointException
from perdure.graph import Executor, Wiring, no_exit
from perdure.kernel import Snapshot

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from perdure.codec import Kept, Values
    from perdure.graph import Graph

_ENGINE_ATTRIBUTE = "_perdure"
_MISSING = object()
_WITHOUT_LENGTH = frozenset({Wiring, bool, bytes, complex, float, int, str, tuple, type(None)})
"""Types whose instances never change their length."""


def has_hooks(executor: Executor) -> bool:
    """Return whether an executor saves its state in checkpoints."""
    return executor.__class__.on_checkpoint_save is not Executor.on_checkpoint_save


async def saved_state(executor: Executor, values: Values) -> Kept:
    """Ask an executor for its state, and encode it."""
    path = f"state of executor {executor.id!r}"
    try:
        with no_exit():
            state: Any = executor.on_checkpoint_save()
            if inspect.isawaitable(state):
                state = await state
    except Exception as error:  # noqa: BLE001 - the checkpoint can't be written, whatever the reason
        reason = f"its on_checkpoint_save raised {type(error).__name__}: {error}"
        refusal = EncodeError(path=path, reason=reason, remedy="fix the hook")
        refusal.__cause__ = error
        return values.refuse(refusal)
    if not isinstance(state, dict):
        reason = f"its on_checkpoint_save returned a {type(state).__name__}"
        return values.refuse(EncodeError(path=path, reason=reason, remedy="let the hook return a dict"))
    return values.fix(state, path)  # pyright: ignore[reportUnknownArgumentType]


async def restore_state(executor: Executor, state: Any) -> None:
    """Hand a state to an executor."""
    try:
        with no_exit():
            outcome = executor.on_checkpoint_restore(state)
            if inspect.isawaitable(outcome):
                await outcome
    except WorkflowCheckpointException:
        raise
    except Exception as error:
        raise WorkflowCheckpointException(
            f"executor {executor.id!r} could not restore its stored state: {type(error).__name__}: {error}", error
        ) from error


async def with_states(graph: Graph, snapshot: Snapshot, values: Values, *, only_missing: bool = False) -> Snapshot:
    """Return the snapshot with the executors' present states, or only those it lacks. Sub-workflows are included."""
    states = {
        executor_id: await saved_state(executor, values)
        for executor_id, executor in graph.executors.items()
        if has_hooks(executor) and not (only_missing and executor_id in snapshot.executors)
    }
    children = {
        executor_id: await with_states(
            child, snapshot.children.get(executor_id, Snapshot()), values, only_missing=only_missing
        )
        for executor_id, child in graph.children.items()
    }
    if not states and not children:
        return snapshot
    return replace(snapshot, executors={**snapshot.executors, **states}, children={**snapshot.children, **children})


def states_of(graph: Graph, snapshot: Snapshot) -> Iterator[tuple[Executor, object]]:
    """Return the executors with their states in a snapshot, sub-workflows included."""
    for executor_id, state in snapshot.executors.items():
        if executor_id in graph.executors and not as_kept(state).is_lost:
            yield graph.executors[executor_id], state
    for executor_id, child in graph.children.items():
        if executor_id in snapshot.children:
            yield from states_of(child, snapshot.children[executor_id])


async def load(graph: Graph, snapshot: Snapshot, values: Values, *, only: Iterable[str] | None = None) -> None:
    """Restore the executors, or some of them, to their states in a snapshot, sub-workflows included."""
    chosen = graph.executors.keys() if only is None else set(only)
    for executor_id in chosen:
        executor = graph.executors[executor_id]
        state = snapshot.executors.get(executor_id)
        if state is not None and has_hooks(executor) and not as_kept(state).is_lost:
            await restore_state(executor, values.give(state))
        child = graph.children.get(executor_id)
        if child is not None and executor_id in snapshot.children:
            await load(child, snapshot.children[executor_id], values)


Observation: TypeAlias = "tuple[dict[str, Any], Sequence[tuple[str, int | None]]]"
"""The attributes of an executor, and the lengths of those that have one."""


class ChangeDetector:
    """Detect changes of executors without hooks: a resumed run would lose them. Each executor is reported once.

    Only what is cheap is compared: the identity of each attribute, and its length.
    """

    def __init__(self) -> None:
        self._is_watched: dict[str, bool] = {}

    def observe(self, executor: Executor) -> Observation | None:
        """Return the executor as it is now; None if its changes are of no interest."""
        is_watched = self._is_watched.get(executor.id)
        if is_watched is None:
            is_watched = not has_hooks(executor) and executor.child_graph() is None
            self._is_watched[executor.id] = is_watched
        if not is_watched:
            return None
        # Holding the values ensures that no later object gets the identity of one of them.
        attributes = vars(executor).copy()
        return attributes, [
            (name, _length(value)) for name, value in attributes.items() if type(value) not in _WITHOUT_LENGTH
        ]

    def find_change(self, executor: Executor, before: Observation) -> str | None:
        """Return a warning about the first attribute that has changed, once for each executor."""
        attributes, lengths = before
        now, name = vars(executor), None
        if attributes.keys() != now.keys() or not all(map(is_, attributes.values(), now.values())):
            # An attribute that was deleted and set again has only changed its place.
            changed = (
                each
                for each in {**now, **attributes}
                if each != _ENGINE_ATTRIBUTE and now.get(each, _MISSING) is not attributes.get(each, _MISSING)
            )
            name = next(changed, None)
        if name is None:
            name = next((each for each, length in lengths if _length(now[each]) != length), None)
        if name is None or not self._is_watched[executor.id]:
            return None
        self._is_watched[executor.id] = False
        return (
            f"executor {executor.id!r} changed its attribute {name!r} but has no on_checkpoint_save and "
            "on_checkpoint_restore: a resumed run would not have the change; add the two hooks, or keep the "
            "value with ctx.set_state"
        )


def _length(value: Any) -> int | None:
    try:
        return len(value) if hasattr(value, "__len__") else None
    except Exception:  # noqa: BLE001 - a user's __len__ that fails only makes us notice less
        return None
