"""The definition of a workflow as a value: executors, edges, who may give outputs, and the declared rules."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import field
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from perdure.data import frozen
from perdure.graph.context import SHARED_SCOPE, private_scope
from perdure.graph.edges import (
    FanInEdgeGroup,
    FanOutEdgeGroup,
    InternalEdgeGroup,
    SingleEdgeGroup,
    SwitchCaseEdgeGroup,
)
from perdure.graph.executor import wiring

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from perdure.graph.edges import EdgeGroup
    from perdure.graph.executor import Executor

DEFAULT_MAX_ITERATIONS = 100

OutputKind: TypeAlias = Literal["output", "intermediate"]
Reducer: TypeAlias = Callable[[Any, Any], Any]
Upgrade: TypeAlias = Callable[[dict[str, Any]], "dict[str, Any] | Awaitable[dict[str, Any]]"]


@frozen
class OutputDesignation:
    """Whose yields are outputs and whose are intermediate. Both None: everybody's are outputs."""

    outputs: tuple[str, ...] | None = None
    intermediates: tuple[str, ...] | None = None

    @property
    def is_explicit(self) -> bool:
        """Whether the builder was told."""
        return self.outputs is not None or self.intermediates is not None

    def kind_of(self, executor_id: str) -> OutputKind | None:
        """How a yield of this executor is told, if at all."""
        if not self.is_explicit or executor_id in (self.outputs or ()):
            return "output"
        return "intermediate" if executor_id in (self.intermediates or ()) else None


@frozen
class Migration:
    """How to read what an older version of a workflow has stored.

    `rename` maps old executor ids to new ones. `drop` names executors that are gone and whose stored state may go too.
    `executor_states` has a function for each executor (by its new id) whose stored state needs a change, and
    `shared_state` one for the whole shared state; each gets a dict and returns one.
    """

    to: int
    rename: Mapping[str, str] = field(default_factory=dict[str, str])
    drop: frozenset[str] | set[str] | tuple[str, ...] = ()
    executor_states: Mapping[str, Upgrade] = field(default_factory=dict[str, "Upgrade"])
    shared_state: Upgrade | None = None


@frozen
class Rules:
    """What the builder was told about running."""

    max_iterations: int = DEFAULT_MAX_ITERATIONS
    max_concurrency: int | None = None
    undelivered: Literal["event", "error"] = "event"
    state_conflicts: Literal["warn", "strict"] = "warn"
    on_checkpoint_error: Literal["stop", "warn"] = "stop"
    reducers: Mapping[str, Reducer] = field(default_factory=dict[str, "Reducer"])
    version: int = 1
    migrations: tuple[Migration, ...] = ()
    record_payloads: bool = False


@frozen
class Ways:
    """Where messages go."""

    targets: tuple[str, ...]
    fan_ins: tuple[str, ...]
    """The ids of groups."""
    gatherers: tuple[str, ...]
    """The executors that the fan-ins end at."""


@frozen
class Graph:
    """What there is to run. Built once, never changed."""

    name: str
    start_id: str
    executors: Mapping[str, Executor]
    groups: tuple[EdgeGroup, ...]
    designation: OutputDesignation = field(default_factory=OutputDesignation)
    rules: Rules = field(default_factory=Rules)
    description: str | None = None

    @cached_property
    def groups_from(self) -> Mapping[str, tuple[EdgeGroup, ...]]:
        """The groups that a source's messages go through, in the order of their declaration."""
        found: dict[str, list[EdgeGroup]] = {executor_id: [] for executor_id in self.executors}
        for group in self.groups:
            if not isinstance(group, InternalEdgeGroup):
                for source_id in group.source_executor_ids:
                    found[source_id].append(group)
        return {source_id: tuple(groups) for source_id, groups in found.items()}

    @cached_property
    def groups_between(self) -> Mapping[tuple[str, str], tuple[EdgeGroup, ...]]:
        """By source and target: the groups that a message goes through which names its target."""
        found: dict[tuple[str, str], list[EdgeGroup]] = {}
        for group in self.groups:
            for ends in product(group.source_executor_ids, group.target_executor_ids):
                found.setdefault(ends, []).append(group)
        return {ends: tuple(groups) for ends, groups in found.items()}

    @cached_property
    def open_ways(self) -> Mapping[str, Ways]:
        """By source: where each message goes that its takers can take; only of sources where nobody is asked."""
        found = {source_id: _open_ways(groups) for source_id, groups in self.groups_from.items()}
        return {source_id: ways for source_id, ways in found.items() if ways is not None}

    @cached_property
    def asking(self) -> frozenset[str]:
        """The sources whose messages users' code looks at on their way: conditions, cases, selections."""
        groups = [
            group
            for group in self.groups
            if isinstance(group, FanOutEdgeGroup) or any(edge.has_condition for edge in group.edges)
        ]
        return frozenset(source_id for group in groups for source_id in group.source_executor_ids)

    @cached_property
    def output_kinds(self) -> Mapping[str, OutputKind | None]:
        """How a yield of each executor is told, if at all."""
        return {executor_id: self.designation.kind_of(executor_id) for executor_id in self.executors}

    @cached_property
    def sharing(self) -> Mapping[str, str]:
        """By executor that has something in common with others: the first of them, in whose scope it stands."""
        found: dict[int, list[str]] = {}
        for executor_id, executor in self.executors.items():
            shared = executor.shares()
            if shared is not None:
                found.setdefault(id(shared.what), []).append(executor_id)
        return {executor_id: ids[0] for ids in found.values() if len(ids) > 1 for executor_id in ids}

    @cached_property
    def reducers(self) -> Mapping[tuple[str, str], Reducer]:
        """By scope and key: how writes are merged, where they are."""
        found = {(SHARED_SCOPE, key): reducer for key, reducer in self.rules.reducers.items()}
        for first_id in self.sharing.values():
            shared = self.executors[first_id].shares()
            if shared is not None:
                found[private_scope(first_id), shared.key] = shared.merge
        return found

    @cached_property
    def fan_ins(self) -> Mapping[str, FanInEdgeGroup]:
        """The fan-in groups by id, in the order of their declaration."""
        return {group.id: group for group in self.groups if isinstance(group, FanInEdgeGroup)}

    @cached_property
    def children(self) -> Mapping[str, Graph]:
        """The graphs of the sub-workflows, by the id of the executor that runs them."""
        found = {executor_id: executor.child_graph() for executor_id, executor in self.executors.items()}
        return {executor_id: child for executor_id, child in found.items() if child is not None}

    def types(self) -> Iterator[object]:
        """Every type that stands in the annotations of a handler, sub-workflows included."""
        for executor in self.executors.values():
            for route in wiring(executor).dispatch.routes():
                yield from route.types.takes
                yield from route.types.sends
                yield from route.types.yields
        for child in self.children.values():
            yield from child.types()

    def modules(self) -> Iterator[str]:
        """The modules that the executors' classes and functions were defined in, sub-workflows included."""
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
