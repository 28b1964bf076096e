"""`WorkflowBuilder`: put executors and edges together and validate the graph."""

from __future__ import annotations

import logging
import warnings
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from perdure import graph
from perdure.agents import AgentExecutor, SupportsAgentRun
from perdure.errors import ValidationTypeEnum, WorkflowValidationError
from perdure.typenames import require_unicode
from perdure.workflows.workflow import Workflow

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from perdure.clock import Clock
    from perdure.storage import CheckpointStorage

logger = logging.getLogger(__name__)

_PAIR = 2

Node: TypeAlias = "graph.Executor | SupportsAgentRun"
"""An executor or an agent."""


class _Unset:
    """The type of an argument that was not given."""


_UNSET: Final = _Unset()


class WorkflowBuilder:
    """Describe a workflow: its start and the edges between its executors.

    An agent can be used in place of an executor: it becomes an `AgentExecutor` with the agent's name.

    Perdure's own options: `reducers` merge several writes to a key of the shared state in one superstep, and
    `state_conflicts="strict"` makes such writes an error; `undelivered="error"` makes an undeliverable message an
    error; `on_checkpoint_error="warn"` lets a run continue without a checkpoint; `max_concurrency` limits the handlers
    that run at once; `version` and `migrations` describe how to read data of older versions; `record_payloads` stores
    the inputs and messages of executors with the events.
    """

    def __init__(
        self,
        max_iterations: int = graph.DEFAULT_MAX_ITERATIONS,
        name: str | None = None,
        description: str | None = None,
        *,
        start_executor: Node | None = None,
        checkpoint_storage: CheckpointStorage | str | None = None,
        output_from: Sequence[Node] | Literal["all"] | _Unset | None = _UNSET,
        intermediate_output_from: Sequence[Node] | Literal["all", "all_other"] | _Unset | None = _UNSET,
        output_executors: Sequence[Node] | _Unset | None = _UNSET,
        max_concurrency: int | None = None,
        reducers: Mapping[str, graph.Reducer] | None = None,
        state_conflicts: Literal["warn", "strict"] = "warn",
        undelivered: Literal["event", "error"] = "event",
        on_checkpoint_error: Literal["stop", "warn"] = "stop",
        version: int | None = None,
        migrations: Sequence[graph.Migration] = (),
        record_payloads: bool = False,
        clock: Clock | None = None,
    ) -> None:
        if not isinstance(output_executors, _Unset):
            if not isinstance(output_from, _Unset):
                raise TypeError("output_executors is the former name of output_from; give output_from only")
            warnings.warn("output_executors is deprecated; use output_from", DeprecationWarning, stacklevel=2)
            output_from = output_executors
        self._outputs = _given_designation("output_from", output_from, ("all",))
        self._intermediates = _given_designation(
            "intermediate_output_from", intermediate_output_from, ("all", "all_other")
        )
        self._name = name
        self._description = description
        self._storage = checkpoint_storage
        self._clock = clock
        self._rules = graph.Rules(
            max_iterations=max_iterations,
            max_concurrency=max_concurrency,
            reducers=dict(reducers or {}),
            state_conflicts=state_conflicts,
            undelivered=undelivered,
            on_checkpoint_error=on_checkpoint_error,
            version=max((migration.to for migration in migrations), default=1) if version is None else version,
            migrations=tuple(sorted(migrations, key=lambda migration: migration.to)),
            record_payloads=record_payloads,
        )
        self._executors: dict[str, graph.Executor] = {}
        self._agents: dict[int, AgentExecutor] = {}
        """Executors by the identity of their agent."""
        self._groups: list[graph.EdgeGroup] = []
        self._start_id: str | None = None
        if start_executor is not None:
            self.set_start_executor(start_executor)

    def _nodes(self, *candidates: object) -> list[graph.Executor]:
        """Return executors for this graph, with agents converted. A refused call adds nothing."""
        known = dict(self._executors)
        nodes = [each if isinstance(each, graph.Executor) else self._node_of(each) for each in candidates]
        for executor in _with_fallbacks(nodes):
            name = executor.id
            if known.setdefault(name, executor) is executor:
                continue
            if sum(node.id == name for node in self._agents.values()) > 1:
                raise ValueError(
                    f"two agents are called {name!r}; rename one of them, or give it another id with "
                    "AgentExecutor(agent, id=...)"
                )
            raise ValueError(f"duplicate executor id {name!r}: each executor of a graph needs its own id")
        return nodes

    def _node_of(self, agent: object) -> AgentExecutor:
        """Return the executor of an agent. One agent is one node, wherever it is named."""
        if not isinstance(agent, SupportsAgentRun):
            raise TypeError(f"a node must be an Executor or an agent, not a {type(agent).__name__}: {agent!r}")
        if id(agent) not in self._agents:
            self._agents[id(agent)] = AgentExecutor(agent)
        return self._agents[id(agent)]

    def _add(self, executors: Sequence[graph.Executor], *groups: graph.EdgeGroup) -> WorkflowBuilder:
        """Add executors, each with an internal edge when it is new, and groups."""
        for node in _with_fallbacks(executors):
            if node.id not in self._executors:
                self._executors[node.id] = node
                self._groups.append(graph.InternalEdgeGroup(node.id))
        self._groups.extend(groups)
        return self

    def set_start_executor(self, executor: Node) -> WorkflowBuilder:
        """Set the start. Equal to `start_executor=`."""
        nodes = self._nodes(executor)
        self._start_id = nodes[0].id
        return self._add(nodes)

    def with_checkpointing(self, checkpoint_storage: CheckpointStorage | str) -> WorkflowBuilder:
        """Set the checkpoint storage. Equal to `checkpoint_storage=`."""
        self._storage = checkpoint_storage
        return self

    def set_max_iterations(self, max_iterations: int) -> WorkflowBuilder:
        """Limit the supersteps since the last input. Equal to `max_iterations=`."""
        self._rules = replace(self._rules, max_iterations=max_iterations)
        return self

    def add_edge(self, source: Node, target: Node, condition: graph.EdgeCondition | None = None) -> WorkflowBuilder:
        """Join two executors, optionally only for messages that satisfy a condition."""
        first, last = nodes = self._nodes(source, target)
        return self._add(nodes, graph.SingleEdgeGroup(first.id, last.id, condition))

    def add_fan_out_edges(self, source: Node, targets: Sequence[Node]) -> WorkflowBuilder:
        """Send every message of a source to all targets that can handle it."""
        first, *others = nodes = self._nodes(source, *targets)
        return self._add(nodes, graph.FanOutEdgeGroup(first.id, _ids(others)))

    def add_multi_selection_edge_group(
        self, source: Node, targets: Sequence[Node], selection_func: graph.SelectionFunc
    ) -> WorkflowBuilder:
        """Send each message to the targets that `selection_func(message, target_ids)` returns."""
        first, *others = nodes = self._nodes(source, *targets)
        return self._add(nodes, graph.FanOutEdgeGroup(first.id, _ids(others), selection_func))

    def add_switch_case_edge_group(self, source: Node, cases: Sequence[graph.Case | graph.Default]) -> WorkflowBuilder:
        """Send each message to the target of the first case that matches, else to the default."""
        first, *others = nodes = self._nodes(source, *[case.target for case in cases])
        entries = [
            graph.SwitchCaseEdgeGroupDefault(target.id)
            if isinstance(case, graph.Default)
            else graph.SwitchCaseEdgeGroupCase(case.condition, target.id)
            for case, target in zip(cases, others, strict=True)
        ]
        group = graph.SwitchCaseEdgeGroup(first.id, entries)
        if any(isinstance(case, graph.Default) for case in cases[:-1]):
            logger.warning("the default of the switch from %r is not its last entry", first.id)
        return self._add(nodes, group)

    def add_fan_in_edges(self, sources: Sequence[Node], target: Node) -> WorkflowBuilder:
        """Send the target one list when every source has sent."""
        *others, last = nodes = self._nodes(*sources, target)
        return self._add(nodes, graph.FanInEdgeGroup(_ids(others), last.id))

    def add_chain(self, executors: Sequence[Node]) -> WorkflowBuilder:
        """Join executors one after the other."""
        if len(executors) < _PAIR:
            raise ValueError(f"a chain needs at least two executors, not {len(executors)}")
        for source, target in pairwise(self._nodes(*executors)):
            self.add_edge(source, target)
        return self

    def build(self) -> Workflow:
        """Validate the graph and return the workflow. Raises WorkflowValidationError."""
        if self._start_id is None:
            raise TypeError("a workflow needs a start executor: WorkflowBuilder(start_executor=...)")
        is_explicit = self._outputs is not None or self._intermediates is not None
        designation = self._designation() if is_explicit else graph.OutputDesignation()
        if is_explicit and not designation.outputs and not designation.intermediates:
            raise WorkflowValidationError(
                "output_from and intermediate_output_from are both empty: the workflow would emit no output",
                ValidationTypeEnum.OUTPUT_VALIDATION,
            )
        graph.validate_workflow_graph(
            self._groups, self._executors, self._start_id, designation.outputs, designation.intermediates
        )
        definition = graph.Graph(
            name=require_unicode("workflow name", self._name or ""),
            start_id=self._start_id,
            executors=dict(self._executors),
            groups=tuple(self._groups),
            designation=designation,
            rules=self._rules,
            description=self._description,
        )
        if not definition.name:
            object.__setattr__(definition, "name", f"workflow-{definition.signature_hash[:12]}")
        return Workflow(definition, checkpoint_storage=self._storage, clock=self._clock)

    def _designation(self) -> graph.OutputDesignation:
        yielding = tuple(key for key, executor in self._executors.items() if executor.workflow_output_types)
        outputs = yielding if self._outputs == "all" else self._designated_ids(self._outputs)
        match self._intermediates:
            case "all":
                intermediates = yielding
            case "all_other":
                intermediates = tuple(key for key in yielding if key not in outputs)
            case _:
                intermediates = self._designated_ids(self._intermediates)
        return graph.OutputDesignation(outputs, intermediates)

    def _designated_ids(self, designated: Any) -> tuple[str, ...]:
        nodes = (each if isinstance(each, graph.Executor) else self._node_of(each) for each in designated or ())
        return tuple(node.id for node in nodes)


def _with_fallbacks(executors: Sequence[graph.Executor]) -> Iterator[graph.Executor]:
    """Yield each executor, its `on_error` executor, that one's own, and so on."""
    for executor in executors:
        node: graph.Executor | None = executor
        while node is not None:
            yield node
            node = graph.wiring(node).fallback


def _ids(executors: Sequence[graph.Executor]) -> list[str]:
    return [executor.id for executor in executors]


def _given_designation(name: str, given: Any, words: tuple[str, ...]) -> Any:
    if given is None or isinstance(given, _Unset):
        return None
    if not isinstance(given, str):
        return list(given)
    if given not in words:
        raise ValueError(f"{name} must be a list of executors or {' or '.join(map(repr, words))}, not {given!r}")
    return given
