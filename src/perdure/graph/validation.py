"""The checks of `build()`."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from perdure.errors import (
    EdgeDuplicationError,
    GraphConnectivityError,
    TypeCompatibilityError,
    ValidationTypeEnum,
    WorkflowValidationError,
)
from perdure.graph.edges import FanInEdgeGroup, InternalEdgeGroup, group_edges
from perdure.graph.executors import on_error_ways
from perdure.graph.policy import FailedMessage
from perdure.types import is_type_compatible

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from perdure.graph.edges import Edge, EdgeGroup
    from perdure.graph.executors import Executor

logger = logging.getLogger(__name__)


def validate_workflow_graph(
    edge_groups: Sequence[EdgeGroup],
    executors: Mapping[str, Executor],
    start_executor: Executor | str,
    output_executors: Sequence[str] | None = None,
    intermediate_executors: Sequence[str] | None = None,
) -> None:
    """Raise the WorkflowValidationError of the first rule that the graph breaks."""
    start_id = start_executor if isinstance(start_executor, str) else start_executor.id
    if start_id not in executors:
        raise GraphConnectivityError(f"Start executor {start_id!r} is not part of the graph: join it with an edge")
    _require_known_ends(edge_groups, executors)
    _require_distinct_nodes(executors)
    _require_distinct_edges(edge_groups)
    for group in edge_groups:
        if not isinstance(group, InternalEdgeGroup):
            _require_fitting_types(group, executors)
    _require_fallbacks(executors)
    _require_reachable(edge_groups, executors, start_id)
    _log_unusual(edge_groups, executors)
    if output_executors is not None or intermediate_executors is not None:
        _require_designation(output_executors or (), intermediate_executors or (), executors)


def _require_known_ends(edge_groups: Sequence[EdgeGroup], executors: Mapping[str, Executor]) -> None:
    for edge in group_edges(edge_groups):
        for end in (edge.source_id, edge.target_id):
            if end not in executors:
                raise GraphConnectivityError(f"Edge {edge.id} ends at {end!r}, which is not an executor of the graph")


def _require_distinct_nodes(executors: Mapping[str, Executor]) -> None:
    """Refuse one executor in two places: it would mix the states of two sub-workflows."""
    paths: dict[int, str] = {}
    for path, executor in _nodes(executors, ()):
        first = paths.setdefault(id(executor), path)
        if first != path:
            raise WorkflowValidationError(
                f"{first!r} and {path!r} are the same executor: build a workflow for each sub-workflow executor",
                ValidationTypeEnum.EXECUTOR_DUPLICATION,
            )


def _nodes(executors: Mapping[str, Executor], path: tuple[str, ...]) -> Iterator[tuple[str, Executor]]:
    for executor_id, executor in executors.items():
        yield "/".join((*path, executor_id)), executor
        child = executor.child_graph()
        if child is not None:
            yield from _nodes(child.executors, (*path, executor_id))


def _require_distinct_edges(edge_groups: Sequence[EdgeGroup]) -> None:
    seen: set[str] = set()
    for edge in group_edges(edge_groups):
        if edge.id in seen:
            raise EdgeDuplicationError(edge.id)
        seen.add(edge.id)


def _require_fitting_types(group: EdgeGroup, executors: Mapping[str, Executor]) -> None:
    gathers = isinstance(group, FanInEdgeGroup)
    for edge in group.edges:
        sends = executors[edge.source_id].output_types
        takes = executors[edge.target_id].input_types
        if not sends or not takes:
            _warn_unchecked(edge, sends_nothing=not sends)
            continue
        offered = [list[type_] if gathers else type_ for type_ in sends]
        if not any(is_type_compatible(source, target) for source in offered for target in takes):
            raise TypeCompatibilityError(edge.source_id, edge.target_id, offered, takes)


def _warn_unchecked(edge: Edge, *, sends_nothing: bool) -> None:
    end, verb = (edge.source_id, "sends") if sends_nothing else (edge.target_id, "takes")
    logger.warning("edge %s is not checked: executor %r declares no types that it %s", edge.id, end, verb)


def _require_fallbacks(executors: Mapping[str, Executor]) -> None:
    for source_id, target_id in on_error_ways(executors):
        if target_id not in executors:
            raise GraphConnectivityError(
                f"on_error of executor {source_id!r} names {target_id!r}, which is not an executor of the graph: "
                "give the executor itself as on_error, or join it with an edge"
            )
        if target_id == source_id:
            raise GraphConnectivityError(
                f"on_error of executor {source_id!r} is that executor itself: name another one, "
                "or give it retry=Retry(...)"
            )
        takes = executors[target_id].input_types
        if takes and not any(is_type_compatible(FailedMessage, type_) for type_ in takes):
            raise TypeCompatibilityError(source_id, target_id, [FailedMessage], takes)


def _require_reachable(edge_groups: Sequence[EdgeGroup], executors: Mapping[str, Executor], start_id: str) -> None:
    ways: dict[str, list[str]] = {executor_id: [] for executor_id in executors}
    for edge in group_edges(edge_groups):
        ways[edge.source_id].append(edge.target_id)
    for source_id, target_id in on_error_ways(executors):
        ways[source_id].append(target_id)
    reached = {start_id}
    frontier = [start_id]
    while frontier:
        fresh = [target for target in ways[frontier.pop()] if target not in reached]
        reached.update(fresh)
        frontier.extend(fresh)
    lost = sorted(executors.keys() - reached)
    if lost:
        raise GraphConnectivityError(
            f"Executors that can't be reached from the start executor {start_id!r}: {', '.join(lost)}; "
            "join them with edges or remove them"
        )


def _log_unusual(edge_groups: Sequence[EdgeGroup], executors: Mapping[str, Executor]) -> None:
    edges = group_edges(edge_groups)
    for edge in edges:
        if edge.source_id == edge.target_id:
            logger.debug("executor %r sends to itself", edge.source_id)
    ends = executors.keys() - {edge.source_id for edge in edges}
    if ends:
        logger.debug("executors without outgoing edges: %s", ", ".join(sorted(ends)))


def _require_designation(
    outputs: Sequence[str], intermediates: Sequence[str], executors: Mapping[str, Executor]
) -> None:
    if not outputs and not intermediates:
        raise _designation_error(
            "output_from and intermediate_output_from are both empty: the workflow would emit no output"
        )
    for name, ids in (("output_from", outputs), ("intermediate_output_from", intermediates)):
        doubled = _doubled(ids)
        if doubled:
            raise _designation_error(f"{name} names {doubled!r} twice")
    for executor_id in outputs:
        if executor_id in intermediates:
            raise _designation_error(f"executor {executor_id!r} is in output_from and in intermediate_output_from")
    for executor_id in (*outputs, *intermediates):
        if executor_id not in executors:
            raise _designation_error(f"executor {executor_id!r} is to give outputs but is not part of the graph")
        if not executors[executor_id].workflow_output_types:
            raise _designation_error(
                f"executor {executor_id!r} is to give outputs but declares none: "
                "annotate its context as WorkflowContext[..., T]"
            )


def _designation_error(message: str) -> WorkflowValidationError:
    return WorkflowValidationError(message, ValidationTypeEnum.OUTPUT_VALIDATION)


def _doubled(ids: Iterable[str]) -> str | None:
    seen: set[str] = set()
    for executor_id in ids:
        if executor_id in seen:
            return executor_id
        seen.add(executor_id)
    return None
