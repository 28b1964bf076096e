"""The definition of a workflow as a value: executors, edges, rules; and its signature.

The signature is stored in checkpoints, so that a changed graph can be told from the one that wrote them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from perdure.graph.context import SHARED_SCOPE, private_scope
from perdure.graph.edges import (
    FanInEdgeGroup,
    FanOutEdgeGroup,
    InternalEdgeGroup,
    SingleEdgeGroup,
    SwitchCaseEdgeGroup,
)
from perdure.graph.executors import wiring
from perdure.stored_names import pinned_name
from perdure.typenames import describe_stored, module_name, stored_short_name

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable, Iterator, Mapping

    from perdure.graph.edges import Edge, EdgeGroup
    from perdure.graph.executors import Executor

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
        if not self.is_explicit or executor_id in (self.outputs or ()):
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
    rename: Mapping[str, str] = field(default_factory=dict[str, str])
    drop: frozenset[str] | set[str] | tuple[str, ...] = ()
    executor_states: Mapping[str, Upgrade] = field(default_factory=dict[str, "Upgrade"])
    shared_state: Upgrade | None = None


@dataclass(frozen=True, slots=True)
class Rules:
    """The builder's settings for execution."""

    max_iterations: int = DEFAULT_MAX_ITERATIONS
    max_concurrency: int | None = None
    undelivered: Literal["event", "error"] = "event"
    state_conflicts: Literal["warn", "strict"] = "warn"
    on_checkpoint_error: Literal["stop", "warn"] = "stop"
    reducers: Mapping[str, Reducer] = field(default_factory=dict[str, "Reducer"])
    version: int = 1
    migrations: tuple[Migration, ...] = ()
    record_payloads: bool = False


@dataclass(frozen=True, slots=True)
class Ways:
    """The receivers of a source's messages."""

    targets: tuple[str, ...]
    fan_ins: tuple[str, ...]
    """The ids of fan-in groups."""
    gatherers: tuple[str, ...]
    """The targets of those fan-ins."""


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
    def open_ways(self) -> Mapping[str, Ways]:
        """The receivers of each source without conditions, cases or selections."""
        found = {source_id: _open_ways(groups) for source_id, groups in self.groups_from.items()}
        return {source_id: ways for source_id, ways in found.items() if ways is not None}

    @cached_property
    def asking(self) -> frozenset[str]:
        """The sources whose messages pass conditions, cases or selections."""
        groups = [
            group
            for group in self.groups
            if isinstance(group, FanOutEdgeGroup) or any(edge.has_condition for edge in group.edges)
        ]
        return frozenset(source_id for group in groups for source_id in group.source_executor_ids)

    @cached_property
    def output_kinds(self) -> Mapping[str, OutputKind | None]:
        """The kind of each executor's yields."""
        return {executor_id: self.designation.kind_of(executor_id) for executor_id in self.executors}

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

    def types(self) -> Iterator[object]:
        """Yield every type in the annotations of handlers, including sub-workflows."""
        for executor in self.executors.values():
            for route in wiring(executor).dispatch.routes():
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


def _open_ways(groups: Iterable[EdgeGroup]) -> Ways | None:
    targets: list[str] = []
    fan_ins: dict[str, str] = {}
    for group in groups:
        match group:
            case FanInEdgeGroup():
                fan_ins[group.id] = group.target_id
            case SwitchCaseEdgeGroup():
                return None
            case FanOutEdgeGroup() if group.selection_func is None:
                targets += group.target_ids
            case SingleEdgeGroup() if not group.edges[0].has_condition:
                targets.append(group.edges[0].target_id)
            case _:
                return None
    return Ways(tuple(targets), tuple(fan_ins), tuple(fan_ins.values()))


_text = json.JSONEncoder(sort_keys=True).encode


def graph_signature(graph: Graph) -> dict[str, Any]:
    """Return the documented signature: the start, the executors' classes, the edges."""
    return {
        "start_executor": graph.start_id,
        "executors": {executor_id: _executor(executor) for executor_id, executor in graph.executors.items()},
        "edge_groups": sorted((_group(group) for group in graph.groups), key=_sort_key),
    }


def graph_document(graph: Graph) -> dict[str, Any]:
    """Return the description of the graph that checkpoints store."""
    return {
        "signature": graph_signature(graph),
        "interfaces": interfaces(graph),
        "version": graph.rules.version,
        "children": {executor_id: graph_document(child) for executor_id, child in graph.children.items()},
    }


def signature_hash(signature: dict[str, Any]) -> str:
    """Return the hash of a signature."""
    text = json.dumps(signature, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def interfaces(graph: Graph) -> dict[str, Any]:
    """Return the types that each executor takes, sends and asks for."""
    return {
        executor_id: {
            "takes": sorted(map(describe_stored, executor.input_types)),
            "sends": sorted(map(describe_stored, executor.output_types)),
            "answers": sorted(
                list(map(describe_stored, route.types.takes)) for route in wiring(executor).dispatch.answers
            ),
        }
        for executor_id, executor in graph.executors.items()
    }


def class_name(executor: Executor) -> str:
    """Return `module.Class`. A script run as `__main__` has the name under which it would be imported."""
    cls = executor.__class__
    pinned = pinned_name(cls)
    module = module_name(cls.__module__) if pinned is None else pinned.partition(":")[0]
    return f"{module}.{stored_short_name(cls)}"


def _executor(executor: Executor) -> Any:
    child = executor.child_graph()
    if child is None:
        return class_name(executor)
    return {"type": class_name(executor), "sub_workflow": graph_signature(child)}


def _group(group: EdgeGroup) -> dict[str, Any]:
    told: dict[str, Any] = {
        "group_type": group.type,
        "sources": sorted({edge.source_id for edge in group.edges}),
        "targets": sorted({edge.target_id for edge in group.edges}),
        "edges": [
            {"source": edge.source_id, "target": edge.target_id, "condition": edge.condition_name}
            for edge in sorted(group.edges, key=_edge_order)
        ],
    }
    if isinstance(group, FanOutEdgeGroup):
        told["selection_func"] = group.selection_func_name
    return told


def _edge_order(edge: Edge) -> tuple[str, str, str]:
    return edge.source_id, edge.target_id, edge.condition_name or ""


def _sort_key(group: dict[str, Any]) -> tuple[str, ...]:
    """Order groups by their JSON texts. The order is part of the signature."""
    members = (group["sources"], group["targets"], group["edges"], group.get("selection_func"))
    return (group["group_type"], *map(_text, members))
