"""`WorkflowBuilder`: executors and edges put together and checked."""

from __future__ import annotations

import logging
import warnings
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, Literal

from perdure.graph.definition import DEFAULT_MAX_ITERATIONS, Graph, Migration, OutputDesignation, Rules
from perdure.graph.edges import (
    Case,
    Default,
    FanInEdgeGroup,
    FanOutEdgeGroup,
    InternalEdgeGroup,
    SingleEdgeGroup,
    SwitchCaseEdgeGroup,
    SwitchCaseEdgeGroupCase,
    SwitchCaseEdgeGroupDefault,
)
from perdure.graph.executor import Executor, wiring
from perdure.graph.signature import graph_signature, signature_hash
from perdure.graph.validation import validate_workflow_graph
from perdure.workflow.workflow import Workflow

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from perdure.clock import Clock
    from perdure.graph.definition import Reducer
    from perdure.graph.edges import EdgeCondition, EdgeGroup, SelectionFunc, SwitchEntry
    from perdure.storages.protocol import CheckpointStorage

logger = logging.getLogger(__name__)

_PAIR = 2


class _Unset:
    """Stands for a designation that was not given."""


_UNSET: Final = _Unset()


class WorkflowBuilder:
    """Describe a workflow: where it starts, and how its executors are joined.

    Beyond the reference: `reducers` merge several writes to a key of the shared state in one superstep, and
    `state_conflicts="strict"` makes such writes an error; `undelivered="error"` makes an error of a message that
    nobody can take; `on_checkpoint_error="warn"` lets a run go on without a checkpoint; `max_concurrency` limits how
    many handlers run at once; `version` and `migrations` say how to read what older versions have stored.
    """

    def __init__(
        self,
        max_iterations: int = DEFAULT_MAX_ITERATIONS,
        name: str | None = None,
        description: str | None = None,
        *,
        start_executor: Executor | None = None,
        checkpoint_storage: CheckpointStorage | None = None,
        output_from: Sequence[Executor] | Literal["all"] | _Unset | None = _UNSET,
        intermediate_output_from: Sequence[Executor] | Literal["all", "all_other"] | _Unset | None = _UNSET,
        output_executors: Sequence[Executor] | _Unset | None = _UNSET,
        max_concurrency: int | None = None,
        reducers: Mapping[str, Reducer] | None = None,
        state_conflicts: Literal["warn", "strict"] = "warn",
        undelivered: Literal["event", "error"] = "event",
        on_checkpoint_error: Literal["stop", "warn"] = "stop",
        version: int | None = None,
        migrations: Sequence[Migration] = (),
        clock: Clock | None = None,
    ) -> None:
        if not isinstance(output_executors, _Unset):
            if not isinstance(output_from, _Unset):
                raise TypeError("output_executors is the former name of output_from: give output_from only")
            warnings.warn("output_executors is deprecated; use output_from", DeprecationWarning, stacklevel=2)
            output_from = output_executors
        self._outputs = _designated("output_from", output_from, ("all",))
        self._intermediates = _designated("intermediate_output_from", intermediate_output_from, ("all", "all_other"))
        _require_positive("max_iterations", max_iterations)
        if max_concurrency is not None:
            _require_positive("max_concurrency", max_concurrency)
        self._max_iterations = max_iterations
        self._name = name
        self._description = description
        self._storage = checkpoint_storage
        self._clock = clock
        self._rules: dict[str, Any] = {
            "max_concurrency": max_concurrency,
            "reducers": dict(reducers or {}),
            "state_conflicts": _one_of("state_conflicts", state_conflicts, ("warn", "strict")),
            "undelivered": _one_of("undelivered", undelivered, ("event", "error")),
            "on_checkpoint_error": _one_of("on_checkpoint_error", on_checkpoint_error, ("stop", "warn")),
            "version": _version(version, migrations),
            "migrations": tuple(sorted(migrations, key=lambda migration: migration.to)),
        }
        self._executors: dict[str, Executor] = {}
        self._groups: list[EdgeGroup] = []
        self._start_id: str | None = None
        if start_executor is not None:
            self._start_id = self._node(start_executor).id

    def _node(self, candidate: object) -> Executor:
        """An executor of the graph, added with its way in when first seen."""
        if not isinstance(candidate, Executor):
            raise TypeError(f"a node is an Executor or an agent, not a {type(candidate).__name__}: {candidate!r}")
        wiring(candidate)
        known = self._executors.get(candidate.id)
        if known is None:
            self._executors[candidate.id] = candidate
            self._groups.append(InternalEdgeGroup(candidate.id))
        elif known is not candidate:
            raise ValueError(f"duplicate executor id {candidate.id!r}: two executors of one graph need two ids")
        return candidate

    def set_start_executor(self, executor: Executor) -> WorkflowBuilder:
        """Say where the workflow starts. The same as `start_executor=`."""
        self._start_id = self._node(executor).id
        return self

    def with_checkpointing(self, checkpoint_storage: CheckpointStorage) -> WorkflowBuilder:
        """Say where checkpoints go. The same as `checkpoint_storage=`."""
        self._storage = checkpoint_storage
        return self

    def set_max_iterations(self, max_iterations: int) -> WorkflowBuilder:
        """Limit the supersteps since the last input. The same as `max_iterations=`."""
        _require_positive("max_iterations", max_iterations)
        self._max_iterations = max_iterations
        return self

    def add_edge(self, source: Executor, target: Executor, condition: EdgeCondition | None = None) -> WorkflowBuilder:
        """Join two executors; with a condition, for the messages for which it holds."""
        self._groups.append(SingleEdgeGroup(self._node(source).id, self._node(target).id, condition))
        return self

    def add_fan_out_edges(self, source: Executor, targets: Sequence[Executor]) -> WorkflowBuilder:
        """Send every message of a source to all targets that can take it."""
        _require_two("add_fan_out_edges", "targets", targets)
        source_id = self._node(source).id
        self._groups.append(FanOutEdgeGroup(source_id, [self._node(target).id for target in targets]))
        return self

    def add_multi_selection_edge_group(
        self, source: Executor, targets: Sequence[Executor], selection_func: SelectionFunc
    ) -> WorkflowBuilder:
        """Send each message to the targets that `selection_func(message, target_ids)` chooses."""
        _require_two("add_multi_selection_edge_group", "targets", targets)
        source_id = self._node(source).id
        target_ids = [self._node(target).id for target in targets]
        self._groups.append(FanOutEdgeGroup(source_id, target_ids, selection_func))
        return self

    def add_switch_case_edge_group(self, source: Executor, cases: Sequence[Case | Default]) -> WorkflowBuilder:
        """Send each message to the target of the first case that holds, else to the default."""
        source_id = self._node(source).id
        entries: list[SwitchEntry] = []
        for case in cases:
            case.target = self._node(case.target)
            match case:
                case Default():
                    entries.append(SwitchCaseEdgeGroupDefault(case.target.id))
                case Case():
                    entries.append(SwitchCaseEdgeGroupCase(case.condition, case.target.id))
        if any(isinstance(case, Default) for case in cases[:-1]):
            logger.warning("the default of a switch from %r is not its last entry", source_id)
        self._groups.append(SwitchCaseEdgeGroup(source_id, entries))
        return self

    def add_fan_in_edges(self, sources: Sequence[Executor], target: Executor) -> WorkflowBuilder:
        """Send the target one list when every source has sent."""
        _require_two("add_fan_in_edges", "sources", sources)
        source_ids = [self._node(source).id for source in sources]
        self._groups.append(FanInEdgeGroup(source_ids, self._node(target).id))
        return self

    def add_chain(self, executors: Sequence[Executor]) -> WorkflowBuilder:
        """Join executors one after the other."""
        _require_two("add_chain", "executors", executors)
        for source, target in pairwise(executors):
            self.add_edge(source, target)
        return self

    def build(self) -> Workflow:
        """Check the graph and make a workflow of it. Raises WorkflowValidationError."""
        if self._start_id is None:
            raise TypeError("a workflow needs a start executor: WorkflowBuilder(start_executor=...)")
        designation = self._designation()
        validate_workflow_graph(
            self._groups, self._executors, self._start_id, designation.outputs, designation.intermediates
        )
        graph = Graph(
            name=self._name or "",
            start_id=self._start_id,
            executors=dict(self._executors),
            groups=tuple(self._groups),
            designation=designation,
            rules=Rules(max_iterations=self._max_iterations, **self._rules),
            description=self._description,
        )
        if not graph.name:
            object.__setattr__(graph, "name", f"workflow-{signature_hash(graph_signature(graph))[:12]}")
        return Workflow(graph, checkpoint_storage=self._storage, clock=self._clock)

    def _designation(self) -> OutputDesignation:
        if self._outputs is None and self._intermediates is None:
            return OutputDesignation()
        yielding = tuple(key for key, executor in self._executors.items() if executor.workflow_output_types)
        outputs = yielding if self._outputs == "all" else _ids(self._outputs)
        match self._intermediates:
            case "all":
                intermediates = yielding
            case "all_other":
                intermediates = tuple(key for key in yielding if key not in outputs)
            case _:
                intermediates = _ids(self._intermediates)
        return OutputDesignation(outputs, intermediates)


def _designated(name: str, given: Any, words: tuple[str, ...]) -> Any:
    if given is None or isinstance(given, _Unset):
        return None
    if isinstance(given, str):
        if given not in words:
            raise ValueError(f"{name} is a list of executors or {' or '.join(map(repr, words))}, not {given!r}")
        return given
    return list(given)


def _ids(designated: Any) -> tuple[str, ...]:
    ids: list[str] = []
    for entry in designated or ():
        if not isinstance(entry, Executor):
            raise TypeError(f"outputs come from executors and agents, not from a {type(entry).__name__}")
        ids.append(entry.id)
    return tuple(ids)


def _one_of(name: str, given: str, words: tuple[str, ...]) -> str:
    if given not in words:
        raise ValueError(f"{name} is {' or '.join(map(repr, words))}, not {given!r}")
    return given


def _version(version: int | None, migrations: Sequence[Migration]) -> int:
    newest = max((migration.to for migration in migrations), default=1)
    if version is not None and version < newest:
        raise ValueError(f"version {version} is older than the migration to {newest}")
    return version if version is not None else newest


def _require_positive(name: str, number: int) -> None:
    if number < 1:
        raise ValueError(f"{name} is 1 or more, not {number}")


def _require_two(method: str, what: str, given: Sequence[Any]) -> None:
    if len(given) < _PAIR:
        raise ValueError(f"{method} needs at least two {what}, not {len(given)}")
