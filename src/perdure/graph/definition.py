"""The definition of a workflow as a value: executors, edges, rules; its signature; and the checks of `build()`.

The signature is stored in checkpoints, so that a changed graph can be told from the one that wrote them.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import Any, Literal, TypeAlias

from perdure.data_classes import new_dict
from perdure.errors import (
    EdgeDuplicationError,
    GraphConnectivityError,
    TypeCompatibilityError,
    ValidationTypeEnum,
    WorkflowValidationError,
)
from perdure.graph.context import SHARED_SCOPE, private_scope
from perdure.graph.edges import Edge, EdgeGroup, FanInEdgeGroup, FanOutEdgeGroup, InternalEdgeGroup
from perdure.graph.executors import Executor, on_error_ways, wiring
from perdure.graph.policy import FailedMessage
from perdure.stored_names import pinned_name
from perdure.typenames import describe_stored, module_name, stored_short_name
from perdure.types import is_type_compatible

logger = logging.getLogger(__name__)

DEFAULT_MAX_ITERATIONS = 100

OutputKind: TypeAlias = Literal["output", "intermediate"]
Reducer: TypeAlias = Callable[[Any, Any], Any]
Upgrade: TypeAlias = Callable[[dict[str, Any]], "dict[str, Any] | Awaitable[dict[str, Any]]"]


@dataclass(frozen=True, slots=True)
class OutputDesignation:
    """The executors whose yields are outputs or intermediate outputs. If both are None, all yields are outputs."""

    outputs: tuple[str, ...] | None = None
    intermediates: tuple[str, ...] | None = None

    @property
    def is_explicit(self) -> bool:
        """True if the builder designated outputs."""
        return self.outputs is not None or self.intermediates is not None

    def kind_of(self, executor_id: str) -> OutputKind | None:
        """Return the kind of an executor's yields; None if they are not emitted."""
        if self.outputs is self.intermediates is None or executor_id in (self.outputs or ()):
            return "output"
        return "intermediate" if executor_id in (self.intermediates or ()) else None


@dataclass(frozen=True, slots=True)
class Migration:
    """Describes how to read what an older version of a workflow stored.

    `rename` maps old executor ids to new ones. `drop` names removed executors whose stored state may be dropped.
    `executor_states` maps new executor ids to functions that upgrade their stored state, and `shared_state` upgrades
    the whole shared state. Each function gets a dict and returns one.
    """

    to: int
    rename: Mapping[str, str] = field(default_factory=new_dict)
    drop: frozenset[str] | set[str] | tuple[str, ...] = ()
    executor_states: Mapping[str, Upgrade] = field(default_factory=new_dict)
    shared_state: Upgrade | None = None


_CHOICES: Mapping[str, tuple[str, ...]] = {
    "state_conflicts": ("warn", "strict"),
    "undelivered": ("event", "error"),
    "on_checkpoint_error": ("stop", "warn"),
}


@dataclass(frozen=True, slots=True)
class Rules:
    """The builder's settings for execution. Raises ValueError or TypeError for one that can't work."""

    max_iterations: int = DEFAULT_MAX_ITERATIONS
    max_concurrency: int | None = None
    undelivered: Literal["event", "error"] = "event"
    state_conflicts: Literal["warn", "strict"] = "warn"
    on_checkpoint_error: Literal["stop", "warn"] = "stop"
    reducers: Mapping[str, Reducer] = field(default_factory=new_dict)
    version: int = 1
    migrations: tuple[Migration, ...] = ()
    record_payloads: bool = False

    def __post_init__(self) -> None:
        for name, number in (("max_iterations", self.max_iterations), ("max_concurrency", self.max_concurrency)):
            if number is not None and number < 1:
                raise ValueError(f"{name} must be 1 or more, not {number}")
        for name, words in _CHOICES.items():
            if getattr(self, name) not in words:
                raise ValueError(f"{name} must be {' or '.join(map(repr, words))}, not {getattr(self, name)!r}")
        for key, reducer in self.reducers.items():
            if not callable(reducer):
                raise TypeError(f"the reducer of {key!r} must be a function of two values, not {reducer!r}")
        for migration in self.migrations:
            if migration.to > self.version:
                raise ValueError(f"version {self.version} is older than the migration to {migration.to}")


@dataclass(frozen=True)
class Graph:
    """A workflow's executors, edges and rules. It never changes."""

    name: str
    start_id: str
    executors: Mapping[str, Executor]
    groups: tuple[EdgeGroup, ...]
    designation: OutputDesignation = field(default_factory=OutputDesignation)
    rules: Rules = field(default_factory=Rules)
    description: str | None = None

    @cached_property
    def groups_from(self) -> Mapping[str, tuple[EdgeGroup, ...]]:
        """The edge groups of each source, in order of declaration."""
        found: dict[str, list[EdgeGroup]] = {executor_id: [] for executor_id in self.executors}
        for group in self.groups:
            if not isinstance(group, InternalEdgeGroup):
                for source_id in group.source_executor_ids:
                    found[source_id].append(group)
        return {source_id: tuple(groups) for source_id, groups in found.items()}

    @cached_property
    def groups_between(self) -> Mapping[tuple[str, str], tuple[EdgeGroup, ...]]:
        """The edge groups between a source and a target, for messages that name their target."""
        found: dict[tuple[str, str], list[EdgeGroup]] = {}
        for group in self.groups:
            for ends in product(group.source_executor_ids, group.target_executor_ids):
                found.setdefault(ends, []).append(group)
        return {ends: tuple(groups) for ends, groups in found.items()}

    @cached_property
    def sources_with_conditions(self) -> frozenset[str]:
        """The sources whose messages pass conditions, cases or selections."""
        groups = [
            group
            for group in self.groups
            if isinstance(group, FanOutEdgeGroup) or any(edge.condition is not None for edge in group.edges)
        ]
        return frozenset(source_id for group in groups for source_id in group.source_executor_ids)

    @cached_property
    def sharing(self) -> Mapping[str, str]:
        """By executor that shares an object: the first one that does, whose scope holds the shared value."""
        found: dict[int, list[str]] = {}
        for executor_id, executor in self.executors.items():
            shared = executor.shares()
            if shared is not None:
                found.setdefault(id(shared.what), []).append(executor_id)
        return {executor_id: ids[0] for ids in found.values() if len(ids) > 1 for executor_id in ids}

    @cached_property
    def reducers(self) -> Mapping[tuple[str, str], Reducer]:
        """The reducers, by scope and key."""
        found = {(SHARED_SCOPE, key): reducer for key, reducer in self.rules.reducers.items()}
        for first_id in self.sharing.values():
            shared = self.executors[first_id].shares()
            if shared is not None:
                found[private_scope(first_id), shared.key] = shared.merge
        return found

    @cached_property
    def fan_ins(self) -> Mapping[str, FanInEdgeGroup]:
        """The fan-in groups by id, in order of declaration."""
        return {group.id: group for group in self.groups if isinstance(group, FanInEdgeGroup)}

    @cached_property
    def children(self) -> Mapping[str, Graph]:
        """The graphs of sub-workflows, by the id of their executor."""
        found = {executor_id: executor.child_graph() for executor_id, executor in self.executors.items()}
        return {executor_id: child for executor_id, child in found.items() if child is not None}

    @cached_property
    def signature(self) -> dict[str, Any]:
        """The documented signature: the start, the executors' classes, the edges."""
        return {
            "start_executor": self.start_id,
            "executors": {
                executor_id: _describe_executor(executor) for executor_id, executor in self.executors.items()
            },
            "edge_groups": sorted(map(_describe_group, self.groups), key=_group_order),
        }

    @cached_property
    def signature_hash(self) -> str:
        """The hash of the signature."""
        text = json.dumps(self.signature, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    @cached_property
    def document(self) -> dict[str, Any]:
        """The description of the graph that checkpoints store: its signature, and the types of its executors."""
        interfaces = {
            executor_id: {
                "takes": sorted(map(describe_stored, executor.input_types)),
                "sends": sorted(map(describe_stored, executor.output_types)),
                "answers": sorted(
                    [*map(describe_stored, each.types.takes)] for each in wiring(executor).dispatch.answers
                ),
            }
            for executor_id, executor in self.executors.items()
        }
        return {
            "signature": self.signature,
            "interfaces": interfaces,
            "version": self.rules.version,
            "children": {executor_id: child.document for executor_id, child in self.children.items()},
        }

    def types(self) -> Iterator[object]:
        """Yield every type in the annotations of handlers, including sub-workflows."""
        for executor in self.executors.values():
            for route in wiring(executor).dispatch.routes:
                yield from route.types.takes
                yield from route.types.sends
                yield from route.types.yields
        for child in self.children.values():
            yield from child.types()

    def modules(self) -> Iterator[str]:
        """Yield the modules that define the executors' classes and functions, including sub-workflows."""
        for executor in self.executors.values():
            function = getattr(executor, "func", None)
            yield function.__module__ if function is not None else executor.__class__.__module__
            yield from getattr(executor, "step_modules", ())
        for child in self.children.values():
            yield from child.modules()


def _describe_executor(executor: Executor) -> Any:
    """Return `module.Class`. A script run as `__main__` has the name under which it would be imported."""
    cls, child = executor.__class__, executor.child_graph()
    module = (pinned_name(cls) or module_name(cls.__module__)).partition(":")[0]
    name = f"{module}.{stored_short_name(cls)}"
    return name if child is None else {"type": name, "sub_workflow": child.signature}


def _describe_group(group: EdgeGroup) -> dict[str, Any]:
    edges = sorted((edge.source_id, edge.target_id, edge.condition_name or "") for edge in group.edges)
    selection = {"selection_func": group.selection_func_name} if isinstance(group, FanOutEdgeGroup) else {}
    return {
        "group_type": group.type,
        "sources": sorted({edge.source_id for edge in group.edges}),
        "targets": sorted({edge.target_id for edge in group.edges}),
        "edges": [{"source": source, "target": target, "condition": name or None} for source, target, name in edges],
        **selection,
    }


def _group_order(group: dict[str, Any]) -> tuple[str, ...]:
    """Order groups by their JSON texts. The order is part of the signature."""
    members = (group["sources"], group["targets"], group["edges"], group.get("selection_func"))
    return (group["group_type"], *(json.dumps(member, sort_keys=True) for member in members))


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
    groups = [group for group in edge_groups if not isinstance(group, InternalEdgeGroup)]
    edges = [edge for group in groups for edge in group.edges]
    _require_sound_edges(edges, executors)
    _require_distinct_nodes(executors, {})
    for group in groups:
        _require_fitting_types(group, executors)
    fallbacks = list(on_error_ways(executors))
    _require_fallbacks(fallbacks, executors)
    ways = [*((edge.source_id, edge.target_id) for edge in edges), *fallbacks]
    _require_reachable(ways, executors, start_id)
    _require_designation(output_executors or (), intermediate_executors or (), executors)


def _require_sound_edges(edges: Sequence[Edge], executors: Mapping[str, Executor]) -> None:
    seen: set[str] = set()
    for edge in edges:
        for end in (edge.source_id, edge.target_id):
            if end not in executors:
                raise GraphConnectivityError(f"Edge {edge.id} ends at {end!r}, which is not an executor of the graph")
        if edge.id in seen:
            raise EdgeDuplicationError(edge.id)
        seen.add(edge.id)


def _require_distinct_nodes(executors: Mapping[str, Executor], seen: dict[int, str], prefix: str = "") -> None:
    """Refuse one executor in two places: it would mix the states of two sub-workflows."""
    for executor_id, executor in executors.items():
        path = prefix + executor_id
        first = seen.setdefault(id(executor), path)
        if first != path:
            raise WorkflowValidationError(
                f"{first!r} and {path!r} are the same executor: build a workflow for each sub-workflow executor",
                ValidationTypeEnum.EXECUTOR_DUPLICATION,
            )
        child = executor.child_graph()
        if child is not None:
            _require_distinct_nodes(child.executors, seen, f"{path}/")


def _require_fitting_types(group: EdgeGroup, executors: Mapping[str, Executor]) -> None:
    gathers = isinstance(group, FanInEdgeGroup)
    for edge in group.edges:
        sends, takes = executors[edge.source_id].output_types, executors[edge.target_id].input_types
        if not sends or not takes:
            end, verb = (edge.target_id, "takes") if sends else (edge.source_id, "sends")
            logger.warning("edge %s is not checked: executor %r declares no types that it %s", edge.id, end, verb)
            continue
        offered = [list[type_] if gathers else type_ for type_ in sends]
        if not any(is_type_compatible(source, target) for source in offered for target in takes):
            raise TypeCompatibilityError(edge.source_id, edge.target_id, offered, takes)


def _require_fallbacks(fallbacks: Sequence[tuple[str, str]], executors: Mapping[str, Executor]) -> None:
    for source_id, target_id in fallbacks:
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


def _require_reachable(ways: Sequence[tuple[str, str]], executors: Mapping[str, Executor], start_id: str) -> None:
    reached: set[str] = set()
    frontier = {start_id}
    while frontier:
        reached |= frontier
        frontier = {target_id for source_id, target_id in ways if source_id in frontier} - reached
    lost = sorted(executors.keys() - reached)
    if lost:
        raise GraphConnectivityError(
            f"Executors that can't be reached from the start executor {start_id!r}: {', '.join(lost)}; "
            "join them with edges or remove them"
        )


def _require_designation(
    outputs: Sequence[str], intermediates: Sequence[str], executors: Mapping[str, Executor]
) -> None:
    for executor_id, count in Counter((*outputs, *intermediates)).items():
        if count > 1:
            fault = f"output_from and intermediate_output_from name executor {executor_id!r} twice"
        elif executor_id not in executors:
            fault = f"executor {executor_id!r} is to give outputs but is not part of the graph"
        elif not executors[executor_id].workflow_output_types:
            advice = "annotate its context as WorkflowContext[..., T]"
            fault = f"executor {executor_id!r} is to give outputs but declares none: {advice}"
        else:
            continue
        raise WorkflowValidationError(fault, ValidationTypeEnum.OUTPUT_VALIDATION)
