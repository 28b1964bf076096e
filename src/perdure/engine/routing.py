"""Routing: find the targets of messages, and fold the results of a superstep into the next snapshot.

Conditions and selections are users' code. They run here when the superstep has ended, in plan order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from perdure.data_classes import evolve, value_class
from perdure.engine.commit import FRAMEWORK, warning_event
from perdure.errors import StateConflictError, UndeliveredError
from perdure.events import UndeliveredMessage, WorkflowEvent
from perdure.failures import note_executor
from perdure.graph import (
    EdgeGroup,
    Executor,
    FailedMessage,
    FanInEdgeGroup,
    FanOutEdgeGroup,
    Graph,
    SwitchCaseEdgeGroup,
    SwitchCaseEdgeGroupCase,
    WorkflowMessage,
    ask,
    wiring,
)
from perdure.kernel import (
    ActivationResult,
    Effects,
    FanIn,
    RoutedMessage,
    Snapshot,
    StateKey,
    UnroutedMessage,
    conflicts,
    fold,
)
from perdure.typenames import type_of

if TYPE_CHECKING:
    from perdure.codec import Values


@value_class
class Routing:
    """The destinations of one message; `undelivered` says why it has none, if that is a loss."""

    targets: tuple[str, ...] = ()
    fan_ins: tuple[str, ...] = ()
    undelivered: str | None = None


def accepts(executor: Executor, message: Any) -> bool:
    """Return whether an executor has a handler for a message."""
    if executor.__class__.can_handle is Executor.can_handle:
        return wiring(executor).dispatch.route_of(message) is not None
    return executor.can_handle(WorkflowMessage(message, source_id=executor.id))


def fan_ins_of(graph: Graph) -> Mapping[str, FanIn]:
    """Return the fan-in groups of a graph for the kernel."""
    return {
        group_id: FanIn(tuple(group.source_executor_ids), group.target_id) for group_id, group in graph.fan_ins.items()
    }


async def route(graph: Graph, *, source_id: str, target_id: str | None, message: Any) -> Routing:
    """Ask every edge group of the source about a message. A FailedMessage goes straight to `on_error`."""
    on_error = wiring(graph.executors[source_id]).policy.on_error if isinstance(message, FailedMessage) else None
    if target_id is not None and target_id == on_error:
        if accepts(graph.executors[target_id], message):
            return Routing((target_id,))
        return Routing(undelivered=_refusal(message, (target_id,)))
    if target_id is None:
        groups = graph.groups_from[source_id]
    else:
        groups = graph.groups_between.get((source_id, target_id), ())
        if not groups:
            return Routing(undelivered=f"executor {target_id!r} is not connected to {source_id!r}")
    targets: list[str] = []
    fan_ins: list[str] = []
    refused: list[str] = []
    is_held_back = False
    for group in groups:
        chosen = await _choose(graph, group, message)
        if target_id is not None:
            chosen = [target_id] if target_id in chosen else []
        is_held_back = is_held_back or not chosen
        is_fan_in = isinstance(group, FanInEdgeGroup)
        for each in chosen:
            if not accepts(graph.executors[each], [message] if is_fan_in else message):
                refused.append(each)
            elif is_fan_in:
                fan_ins.append(group.id)
            else:
                targets.append(each)
    is_lost = refused and not (targets or fan_ins or is_held_back)
    return Routing(tuple(targets), tuple(fan_ins), _refusal(message, refused) if is_lost else None)


def _refusal(message: Any, refused: Iterable[str]) -> str:
    takers = ", ".join(map(repr, dict.fromkeys(refused)))
    return f"a {type_of(message)} can't be handled by {takers}"


async def _choose(graph: Graph, group: EdgeGroup, message: Any) -> Sequence[str]:
    """Return the executors that a group sends a message to, if they can handle it."""
    match group:
        case FanInEdgeGroup():
            return (group.target_id,)
        case SwitchCaseEdgeGroup():
            return (await _switch(graph, group, message),)
        case FanOutEdgeGroup():
            # A selection sees only messages that some target can handle.
            is_asked = group.selection_func is not None
            is_asked = is_asked and any(accepts(graph.executors[each], message) for each in group.target_ids)
            return await _select(group, message) if is_asked else group.target_ids
        case _:
            edge = group.edges[0]
            # A condition sees only messages that its target can handle.
            is_open = edge.condition is None or not accepts(graph.executors[edge.target_id], message)
            return (edge.target_id,) if is_open or await edge.should_route(message) else ()


async def _switch(graph: Graph, group: SwitchCaseEdgeGroup, message: Any) -> str:
    for case in group.cases:
        if not isinstance(case, SwitchCaseEdgeGroupCase):
            continue
        if accepts(graph.executors[case.target_id], message) and await ask(case.condition, message):
            return case.target_id
    return group.default_id


async def _select(group: FanOutEdgeGroup, message: Any) -> Sequence[str]:
    assert group.selection_func is not None, "a group without a selection sends to all"
    selected: object = await ask(group.selection_func, message, list(group.target_ids))
    label = f"selection {group.selection_func_name!r} of executor {group.source_executor_ids[0]!r}"
    if isinstance(selected, str) or not isinstance(selected, Iterable):
        raise RuntimeError(f"{label} must return a list of ids, it returned {selected!r}")
    chosen = list(dict.fromkeys(cast("Iterable[str]", selected)))
    strangers = [target_id for target_id in chosen if target_id not in group.target_ids]
    if strangers:
        raise RuntimeError(
            f"{label} chose {', '.join(map(repr, strangers))}; "
            f"it may choose of {', '.join(map(repr, group.target_ids))}"
        )
    return chosen


async def fold_superstep(
    graph: Graph, values: Values, fan_ins: Mapping[str, FanIn], before: Snapshot, results: Sequence[ActivationResult]
) -> tuple[Snapshot, list[WorkflowEvent[Any]]]:
    """Route the messages of a superstep, merge state updates, and fold everything into the next snapshot.

    Return it with the events about undelivered messages and conflicts.
    """
    events: list[WorkflowEvent[Any]] = []
    effects: list[Effects] = []
    for result in results:
        try:
            sends = [await _route(graph, values, result, unrouted, events) for unrouted in result.unrouted]
        except Exception as error:
            note_executor(error, result.effects.activation.executor_id)
            raise
        effects.append(evolve(result.effects, sends=tuple(sends)) if sends else result.effects)
    for conflict in conflicts(effects) if len(effects) > 1 else ():
        if conflict.key not in graph.reducers:
            error = StateConflictError(key=conflict.key[1], executor_ids=conflict.executor_ids)
            if graph.rules.state_conflicts == "strict":
                raise error
            events.append(warning_event(f"{error}; the last write wins"))
    updates = [result.updates for result in results if result.updates]
    merged = _merge(graph, values, before, updates) if updates else None
    after = fold(before, effects, fan_ins=fan_ins, merged=merged)
    return after, [*events, *(warning_event(text) for text in values.warnings())]


async def _route(
    graph: Graph, values: Values, result: ActivationResult, unrouted: UnroutedMessage, events: list[WorkflowEvent[Any]]
) -> RoutedMessage:
    source_id, target_id = result.effects.activation.executor_id, unrouted.asked_for
    # Users' code gets the message as it was encoded, not as it may have changed since.
    message = values.give(unrouted.data) if source_id in graph.sources_with_conditions else unrouted.message
    routing = await route(graph, source_id=source_id, target_id=target_id, message=message)
    if routing.undelivered is not None:
        if graph.rules.undelivered == "error":
            raise UndeliveredError(source_id=source_id, target_id=target_id, reason=routing.undelivered)
        data = UndeliveredMessage(unrouted.message, source_id, target_id, routing.undelivered)
        events.append(WorkflowEvent("undelivered", data, executor_id=source_id, origin=FRAMEWORK))
    return RoutedMessage(unrouted.data, target_id, routing.targets, routing.fan_ins, unrouted.due)


def _merge(
    graph: Graph, values: Values, before: Snapshot, updates: Iterable[Mapping[StateKey, tuple[object | None, ...]]]
) -> Mapping[StateKey, object]:
    """Apply reducers. A recorded update whose key has no reducer any more is an ordinary write."""
    by_key: dict[StateKey, list[object | None]] = {}
    for each in updates:
        for key, values_of_key in each.items():
            if key in graph.reducers:
                by_key.setdefault(key, []).extend(values_of_key)
    merged: dict[StateKey, object] = {}
    for key, several in by_key.items():
        found = [values.give_state(before.state[key])] if key in before.state else []
        for update in several:
            if update is None:
                found.clear()
            else:
                value = values.give_state(update)
                found = [graph.reducers[key](found[0], value) if found else value]
        if found:
            merged[key] = values.fix(found[0], f"state[{key[1]!r}]")
    return merged
