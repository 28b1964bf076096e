"""The workflows that a host knows, each by a factory: every life of a run has executors of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from perdure.errors import UnknownWorkflowError
from perdure.graph import FunctionExecutor
from perdure.workflows import Workflow, WorkflowExecutor

if TYPE_CHECKING:
    from perdure.clock import Clock
    from perdure.graph import Executor, Graph

Factory: TypeAlias = Callable[[], Workflow]


class Catalog:
    """Factories by the names of their workflows. What they build goes by the clock of the host."""

    def __init__(self, storage: object, clock: Clock) -> None:
        self._storage = storage
        self._clock = clock
        self._factories: dict[str, Factory] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The names that are known."""
        return tuple(self._factories)

    def add(self, factory: Factory, *, name: str | None) -> None:
        """Take up a factory, after a look at what it builds.

        Raises TypeError for what is no factory of workflows, ValueError for one that builds shared executors, and for a
        name that is taken.
        """
        if not callable(factory):
            raise TypeError(f"a factory is called to build a workflow, {factory!r} can't be; give a function")
        first, second = self._built(factory, name), self._built(factory, name)
        if first.name in self._factories:
            raise ValueError(f"there is a workflow {first.name!r} already; give this one another name")
        _require_apart(first, second)
        # From now on the storage reads what this workflow trusts.
        first.blueprint.bound(self._storage)
        self._factories[first.name] = factory

    def build(self, name: str) -> Workflow:
        """A workflow of a name, with executors of its own. Raises UnknownWorkflowError."""
        factory = self._factories.get(name)
        if factory is None:
            raise UnknownWorkflowError(name, known=self.names)
        return self._built(factory, name)

    def _built(self, factory: Factory, name: str | None) -> Workflow:
        made = factory()
        if not isinstance(made, Workflow):  # pyright: ignore[reportUnnecessaryIsInstance] - users may not check
            raise TypeError(
                f"{factory!r} gave a {type(made).__name__}, not a Workflow; let it return WorkflowBuilder(...).build()"
            )
        return _of_its_own(replace(made.graph, name=name or made.name), self._clock)


def _of_its_own(graph: Graph, clock: Clock) -> Workflow:
    """A workflow of these executors, where those that keep nothing have become copies: modules may share them."""
    executors = {executor_id: _own(executor, clock) for executor_id, executor in graph.executors.items()}
    return Workflow(replace(graph, executors=executors), checkpoint_storage=None, clock=clock)


def _own(executor: Executor, clock: Clock) -> Executor:
    """A copy of one that is but a function, or a workflow of such; any other as it is."""
    if type(executor) is FunctionExecutor:
        return executor.clone(deep=False)
    if type(executor) is WorkflowExecutor:
        copy = executor.clone(deep=False)
        assert isinstance(copy, WorkflowExecutor), "a copy is of the same class"
        copy.workflow = _of_its_own(executor.workflow.graph, clock)
        return copy
    return executor


def _require_apart(first: Workflow, second: Workflow) -> None:
    known = {id(executor) for executor in first.blueprint.executors()}
    for executor in second.blueprint.executors():
        if id(executor) in known:
            raise ValueError(
                f"the factory of workflow {first.name!r} gives the same executor {executor.id!r} each time, so two "
                "runs would share its state; build the workflow and its executors inside of the factory"
            )
