"""Where a message goes. Conditions and selections are users' code, asked here, once the superstep has ended."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, cast

from perdure.data import value
from perdure.graph import (
    Executor,
    FailedMessage,
    FanInEdgeGroup,
    FanOutEdgeGroup,
    SwitchCaseEdgeGroup,
    SwitchCaseEdgeGroupCase,
    WorkflowMessage,
    ask,
    wiring,
)
from perdure.typenames import type_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure.graph import EdgeGroup, Graph, Ways


@value
class Routing:
    """Where one message goes; `undelivered` says why it goes nowhere, if that is a loss."""

    targets: tuple[str, ...] = ()
    fan_ins: tuple[str, ...] = ()
    undelivered: str | None = None


class _Verdict:
    """What the groups said of one message, collected."""

    def __init__(self) -> None:
        self.targets: list[str] = []
        self.fan_ins: list[str] = []
        self.refused: list[str] = []
        self.is_held_back = False


def is_straight(graph: Graph, ways: Ways, message: Any) -> bool:
    """Whether every executor on ways where nobody is asked can take a message."""
    executors = graph.executors
    return all(accepts(executors[target_id], message) for target_id in ways.targets) and all(
        accepts(executors[target_id], [message]) for target_id in ways.gatherers
    )


def is_known_by_class(graph: Graph, ways: Ways, cls: type) -> bool:
    """Whether all direct instances of a class go these ways, whatever they hold."""
    targets = [graph.executors[name] for name in ways.targets]
    gathering = [graph.executors[name] for name in ways.gatherers]
    return (
        all(each.__class__.can_handle is Executor.can_handle for each in (*targets, *gathering))
        and all(wiring(each).dispatch.takes_all(cls) for each in targets)
        and all(wiring(each).dispatch.takes_lists_of(cls) for each in gathering)
    )


async def route(graph: Graph, *, source_id: str, target_id: str | None, message: Any) -> Routing:
    """Ask every group of the source where this message goes. A failure goes to its source's `on_error` unasked."""
    if target_id is not None and isinstance(message, FailedMessage) and target_id == _on_error(graph, source_id):
        return _handed_on(graph, target_id, message)
    if target_id is None:
        groups = graph.groups_from[source_id]
    else:
        groups = graph.groups_between.get((source_id, target_id), ())
        if not groups:
            return Routing(undelivered=f"executor {target_id!r} is not connected to {source_id!r}")
    verdict = _Verdict()
    for group in groups:
        if not _offer_unasked(graph, group, message, target_id, verdict):
            await _ask_group(graph, group, message, target_id, verdict)
    undelivered = None
    if verdict.refused and not verdict.targets and not verdict.fan_ins and not verdict.is_held_back:
        undelivered = _refusal(message, verdict.refused)
    return Routing(tuple(verdict.targets), tuple(verdict.fan_ins), undelivered)


def _on_error(graph: Graph, source_id: str) -> str | None:
    return wiring(graph.executors[source_id]).policy.on_error


def _handed_on(graph: Graph, target_id: str, message: FailedMessage) -> Routing:
    if accepts(graph.executors[target_id], message):
        return Routing((target_id,))
    return Routing(undelivered=_refusal(message, (target_id,)))


def _refusal(message: Any, refused: Iterable[str]) -> str:
    takers = ", ".join(map(repr, dict.fromkeys(refused)))
    return f"a {type_of(message)} can't be handled by {takers}"


def _offer_unasked(graph: Graph, group: EdgeGroup, message: Any, target_id: str | None, verdict: _Verdict) -> bool:
    """Offer the message to the targets of a group that asks nobody; False if it is one that does."""
    match group:
        case FanInEdgeGroup():
            if accepts(graph.executors[group.target_id], [message]):
                verdict.fan_ins.append(group.id)
            else:
                verdict.refused.append(group.target_id)
        case FanOutEdgeGroup():
            if group.selection_func is not None or isinstance(group, SwitchCaseEdgeGroup):
                return False
            _offer(graph, group.target_ids, message, target_id, verdict)
        case _:
            edge = group.edges[0]
            if edge.condition is not None:
                return False
            _offer(graph, (edge.target_id,), message, None, verdict)
    return True


async def _ask_group(graph: Graph, group: EdgeGroup, message: Any, target_id: str | None, verdict: _Verdict) -> None:
    match group:
        case SwitchCaseEdgeGroup():
            _offer(graph, (await _switch(graph, group, message),), message, target_id, verdict)
        case FanOutEdgeGroup():
            _offer(graph, await _selected(group, message), message, target_id, verdict)
        case _:
            edge = group.edges[0]
            if not accepts(graph.executors[edge.target_id], message):
                verdict.refused.append(edge.target_id)
            elif await edge.should_route(message):
                verdict.targets.append(edge.target_id)
            else:
                verdict.is_held_back = True


def _offer(graph: Graph, chosen: Sequence[str], message: Any, target_id: str | None, verdict: _Verdict) -> None:
    if target_id is not None:
        chosen = [target_id] if target_id in chosen else []
    if not chosen:
        verdict.is_held_back = True
    for candidate in chosen:
        if accepts(graph.executors[candidate], message):
            verdict.targets.append(candidate)
        else:
            verdict.refused.append(candidate)


async def _switch(graph: Graph, group: SwitchCaseEdgeGroup, message: Any) -> str:
    for case in group.cases:
        if not isinstance(case, SwitchCaseEdgeGroupCase):
            continue
        if accepts(graph.executors[case.target_id], message) and await ask(case.condition, message):
            return case.target_id
    return group.default_id


async def _selected(group: FanOutEdgeGroup, message: Any) -> Sequence[str]:
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


def accepts(executor: Executor, message: Any) -> bool:
    """Whether an executor has a handler for a message."""
    if executor.__class__.can_handle is Executor.can_handle:
        return wiring(executor).dispatch.route_of(message) is not None
    return executor.can_handle(WorkflowMessage(message, source_id=executor.id))
