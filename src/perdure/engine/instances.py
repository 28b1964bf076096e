"""Executors as instances: asking them for their state, and putting them back to it."""

from __future__ import annotations

import inspect
from dataclasses import replace
from operator import is_
from typing import TYPE_CHECKING, Any

from perdure.codec import as_kept
from perdure.errors import EncodeError, WorkflowCheckpointException
from perdure.graph import Executor, Wiring, no_exit
from perdure.kernel import Snapshot

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from perdure.codec import Kept, Values
    from perdure.graph import Graph

_OURS = "_perdure"
"""The attribute of an executor that is the engine's own."""

_NOTHING = object()

_UNCHANGING = frozenset({Wiring, bool, bytes, complex, float, int, str, tuple, type(None)})


def has_hooks(executor: Executor) -> bool:
    """Whether an executor gives its state to checkpoints."""
    return executor.__class__.on_checkpoint_save is not Executor.on_checkpoint_save


async def saved_state(executor: Executor, values: Values) -> Kept:
    """Ask an executor for its state and fix it."""
    path = f"state of executor {executor.id!r}"
    try:
        with no_exit():
            state: Any = executor.on_checkpoint_save()
            if inspect.isawaitable(state):
                state = await state
    except Exception as error:  # noqa: BLE001 - the checkpoint can't be written, whatever the reason
        reason = f"its on_checkpoint_save raised {type(error).__name__}: {error}"
        refusal = EncodeError(path=path, reason=reason, remedy="mend the hook")
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
            f"executor {executor.id!r} could not take over its stored state: {type(error).__name__}: {error}", error
        ) from error


async def with_states(graph: Graph, snapshot: Snapshot, values: Values, *, only_missing: bool = False) -> Snapshot:
    """The snapshot with the states that the executors have now; or only those that it lacks. Sub-workflows included."""
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
    return replace(snapshot, executors={**snapshot.executors, **states}, children={**snapshot.children, **children})


def states_of(graph: Graph, snapshot: Snapshot) -> Iterator[tuple[Executor, object]]:
    """The executors whose states a snapshot holds, sub-workflows included."""
    for executor_id, state in snapshot.executors.items():
        if executor_id in graph.executors and not as_kept(state).is_lost:
            yield graph.executors[executor_id], state
    for executor_id, child in graph.children.items():
        if executor_id in snapshot.children:
            yield from states_of(child, snapshot.children[executor_id])


async def load(graph: Graph, snapshot: Snapshot, values: Values, *, only: Iterable[str] | None = None) -> None:
    """Put the executors, or some of them, to the states that a snapshot holds, sub-workflows included."""
    chosen = graph.executors.keys() if only is None else set(only)
    for executor_id in chosen:
        executor = graph.executors[executor_id]
        state = snapshot.executors.get(executor_id)
        if state is not None and has_hooks(executor) and not as_kept(state).is_lost:
            await restore_state(executor, values.give(state))
        child = graph.children.get(executor_id)
        if child is not None and executor_id in snapshot.children:
            await load(child, snapshot.children[executor_id], values)


class Look:
    """An executor as far as it can be compared cheaply: which object each attribute is, and how long."""

    __slots__ = ("_attributes", "_lengths")

    def __init__(self, executor: Executor) -> None:
        # They are held, so that none that comes later can be taken for one of them.
        self._attributes = vars(executor).copy()
        # Most of what an executor has has no length.
        self._lengths = [
            (name, _length(value)) for name, value in self._attributes.items() if type(value) not in _UNCHANGING
        ]

    def changed(self, executor: Executor) -> str | None:
        """The first attribute that is another one by now, or longer or shorter; None if there is none."""
        before, now = self._attributes, vars(executor)
        if before.keys() != now.keys() or not all(map(is_, before.values(), now.values())):
            # Those that were deleted and set again have changed places.
            for name in {**now, **before}:
                if name != _OURS and now.get(name, _NOTHING) is not before.get(name, _NOTHING):
                    return name
        return next((name for name, length in self._lengths if _length(now[name]) != length), None)


class Drift:
    """Notices that an executor without hooks changes: its changes would be lost by a resume."""

    def __init__(self) -> None:
        self._is_watched: dict[str, bool] = {}
        """By executor: whether a change would be lost, and was not told yet."""

    def look(self, executor: Executor) -> Look | None:
        """What the executor is now; None if nobody wants to know."""
        is_watched = self._is_watched.get(executor.id)
        if is_watched is None:
            is_watched = not has_hooks(executor) and executor.child_graph() is None
            self._is_watched[executor.id] = is_watched
        return Look(executor) if is_watched else None

    def noticed(self, executor: Executor, before: Look) -> str | None:
        """The warning about the first attribute that is not as before; once for each executor."""
        name = before.changed(executor)
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
