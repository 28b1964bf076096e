"""State: what an activation sees of it, what is spent before the commit, and the saved states of executors."""

from __future__ import annotations

import asyncio
import inspect
import operator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from perdure.codec import Kept, Values, as_kept
from perdure.data_classes import new_dict
from perdure.errors import EncodeError, WorkflowCheckpointException
from perdure.graph import SHARED_SCOPE, Executor, Graph, no_exit, wiring
from perdure.kernel import Snapshot, StateKey, Write

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from perdure.engine.superstep import ActivationContext

RUN_KWARGS_KEY = "_workflow_run_kwargs"
_KWARGS = (SHARED_SCOPE, RUN_KWARGS_KEY)

_ENGINE_ATTRIBUTE = "_perdure"
_MISSING = object()
_WITHOUT_LENGTH = frozenset({bool, bytes, complex, float, int, str, tuple, type(None)})
"""Types whose instances never change their length."""


_ERASED = object()


class StateView:
    """The state as one activation sees it: committed, plus earlier writes of its executor, plus its own writes."""

    def __init__(self, executor: Executor, context: ActivationContext) -> None:
        self._context = context
        self._own: dict[StateKey, Any] = {}
        self._updates: dict[StateKey, list[object | None]] = {}
        # An executor that handles several messages at once has no earlier writes: the result must not be a race.
        is_parallel = wiring(executor).max_concurrency > 1
        self._earlier: Mapping[StateKey, Write] = {} if is_parallel else context.overlays.get(executor.id, {})

    def read(self, key: StateKey) -> Any:
        """Return a value, a copy if it is mutable. Raises KeyError."""
        if not self.has(key):
            raise KeyError(key[1])
        if key in self._own:
            own = self._own[key]
            return self._context.values.give_state(own) if isinstance(own, Kept) else own
        context, earlier = self._context, self._earlier.get(key)
        if earlier is None and key == _KWARGS:
            return {kind: dict(by_target) for kind, by_target in context.run_kwargs.items()}
        return context.values.give_state(context.snapshot.state[key] if earlier is None else earlier.value)

    def write(self, key: StateKey, value: Any, *, copies: bool) -> None:
        """Stage a value. For a key with a reducer it is an update that is merged when the superstep ends.

        If it `copies`, later changes of the object don't count. The copy is the encoded value, if there is a storage.
        """
        reducer = self._context.graph.reducers.get(key)
        if reducer is not None:
            values = self._context.values
            fixed = values.fix(value, _state_path(key))
            self._updates.setdefault(key, []).append(fixed)
            update = values.give_state(fixed)
            value = reducer(self.read(key), update) if self.has(key) else update
        elif copies:
            value = self._context.values.copied(value, _state_path(key))
        self._own[key] = value

    def erase(self, key: StateKey) -> None:
        """Stage the removal of a key. Raises KeyError."""
        if not self.has(key):
            raise KeyError(key[1])
        if key in self._context.graph.reducers:
            self._updates[key] = [None]
        self._own[key] = _ERASED

    def has(self, key: StateKey) -> bool:
        """Return whether a key has a value, without reading it."""
        if key in self._own:
            return self._own[key] is not _ERASED
        earlier = self._earlier.get(key)
        if earlier is not None:
            return not earlier.erase
        return key in self._context.snapshot.state or key == _KWARGS

    def keys(self, scope: str) -> Sequence[str]:
        """Return the keys of a scope."""
        known = dict.fromkeys([*self._context.snapshot.state, *self._earlier, *self._own])
        return [key[1] for key in known if key[0] == scope and self.has(key)]

    def writes(self) -> tuple[Write, ...]:
        """Encode the writes as they are now, removals first."""
        fix, own = self._context.values.fix, self._own.items()
        erased = [Write(key, None, erase=True) for key in sorted(key for key, value in own if value is _ERASED)]
        kept = [(key, value) for key, value in own if value is not _ERASED]
        return (
            *erased,
            *(Write(key, value if isinstance(value, Kept) else fix(value, _state_path(key))) for key, value in kept),
        )

    def updates(self) -> dict[StateKey, tuple[object | None, ...]]:
        """Return the updates that reducers merge, by key."""
        return {key: tuple(updates) for key, updates in self._updates.items()}


def _state_path(state_key: StateKey) -> str:
    scope, key = state_key
    return f"state[{key!r}]" if scope == SHARED_SCOPE else f"state[{key!r}] of scope {scope!r}"


@dataclass(slots=True, eq=False)
class CallsInFlight:
    """Calls of a run and its sub-workflows whose cost is not known yet, so that parallel calls share what is left.

    A call reserves as much as the largest call before it. The first call runs alone.
    """

    number: int = 0
    largest: dict[str, float] = field(default_factory=new_dict)
    _line: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    _ended: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    async def begin(self, fits: Callable[[], bool]) -> None:
        """Wait until the call fits or no other is in flight. Calls begin in the order in which they ask."""
        async with self._line:
            while self.number and not fits():
                self._ended.clear()
                await self._ended.wait()
            self.number += 1

    def end(self, spent: Mapping[str, float]) -> None:
        """Note the end of a call and its cost."""
        self.number -= 1
        self.largest.update({name: max(amount, self.largest.get(name, 0)) for name, amount in spent.items()})
        self._ended.set()


@dataclass(slots=True, eq=False)
class BudgetTracker:
    """Track the spending of one activation since the last commit, so that parallel ones share one budget.

    A commit adds spending to the run's totals. Until then each activation reports here, and sub-workflows nest.
    """

    parent: BudgetTracker | None = None
    activation_id: str = ""
    _totals: Mapping[str, float] = field(default_factory=new_dict, init=False)
    _children: dict[str, BudgetTracker] = field(default_factory=new_dict, init=False)
    calls: CallsInFlight = field(init=False)
    warned: dict[str, str] = field(init=False)
    """Warnings that are emitted once per run, and the activations that emit them."""

    def __post_init__(self) -> None:
        self.calls = CallsInFlight() if self.parent is None else self.parent.calls
        self.warned = {} if self.parent is None else self.parent.warned

    def child(self, activation_id: str) -> BudgetTracker:
        """Return the tracker of an activation inside this one."""
        return self._children.get(activation_id) or BudgetTracker(self, activation_id)

    def report(self, totals: Mapping[str, float]) -> None:
        """Replace this activation's spending with `totals`, which include its children."""
        for tracker in self._children.values():
            tracker.report({})
        self._totals, self._children = totals, {}
        self._register()

    def _register(self) -> None:
        """Make this tracker visible to its siblings. One that has spent nothing stays out."""
        if self.parent is not None and self.parent._children.get(self.activation_id) is not self:
            self.parent._children[self.activation_id] = self
            self.parent._register()

    def spent_by_siblings(self, resource: str) -> float:
        """Return the spending of parallel activations, here and in every enclosing superstep."""
        if self.parent is None:
            return 0
        siblings = (tracker for tracker in self.parent._children.values() if tracker is not self)
        return self.parent.spent_by_siblings(resource) + sum(tracker._spent(resource) for tracker in siblings)

    def _spent(self, resource: str) -> float:
        return self._totals.get(resource, 0) + sum(tracker._spent(resource) for tracker in self._children.values())


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


Attributes: TypeAlias = "tuple[dict[str, Any], list[tuple[str, int | None]]]"


@dataclass(slots=True)
class ChangeDetector:
    """Detect changes of executors without hooks: a resumed run would lose them. Each executor is reported once.

    Only what is cheap is compared: the identity of each attribute, and its length.
    """

    _is_watched: dict[str, bool] = field(default_factory=new_dict)

    def observe(self, executor: Executor) -> Attributes | None:
        """Return the attributes of the executor with their lengths; None if its changes are of no interest."""
        is_watched = self._is_watched.get(executor.id)
        if is_watched is None:
            is_watched = not has_hooks(executor) and executor.child_graph() is None
            self._is_watched[executor.id] = is_watched
        if not is_watched:
            return None
        # Holding the values ensures that no later object gets the identity of one of them.
        attributes = vars(executor).copy()
        lengths = [(name, _length(value)) for name, value in attributes.items() if type(value) not in _WITHOUT_LENGTH]
        return attributes, lengths

    def find_change(self, executor: Executor, before: Attributes) -> str | None:
        """Return a warning about the first attribute that has changed, once for each executor."""
        attributes, lengths = before
        now, changed = vars(executor), list[str]()
        if attributes.keys() != now.keys() or not all(map(operator.is_, attributes.values(), now.values())):
            every = (name for name in {**now, **attributes} if name != _ENGINE_ATTRIBUTE)
            changed = [name for name in every if now.get(name, _MISSING) is not attributes.get(name, _MISSING)]
        changed += [name for name, length in lengths if name not in changed and _length(now[name]) != length]
        if not changed or not self._is_watched[executor.id]:
            return None
        self._is_watched[executor.id] = False
        return (
            f"executor {executor.id!r} changed its attribute {changed[0]!r} but has no on_checkpoint_save and "
            "on_checkpoint_restore: a resumed run would not have the change; add the two hooks, or keep the "
            "value with ctx.set_state"
        )


def _length(value: Any) -> int | None:
    try:
        return len(value) if hasattr(value, "__len__") else None
    except Exception:  # noqa: BLE001 - a user's __len__ that fails only makes us notice less
        return None
