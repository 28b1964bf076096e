"""The part of the builder that joins nodes, and says when an edge is taken. Routers bring edges with them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self, cast

from perdure.agent_workflows.builder_noting import Noting
from perdure.agent_workflows.checking_words import told
from perdure.agent_workflows.conditions import (
    AtLeast,
    AtMost,
    Condition,
    Contains,
    ContainsAll,
    ContainsAny,
    Empty,
    EndsWith,
    Equals,
    Exists,
    GreaterThan,
    LessThan,
    Matches,
    NotEmpty,
    NotEquals,
    NotExists,
    StartsWith,
)
from perdure.agent_workflows.definition import HANDOFF_TARGET, MATCHED_TYPE, Edge, Handoffs
from perdure.agent_workflows.errors import AgentWorkflowBuildError
from perdure.agent_workflows.outputs import title_of
from perdure.agent_workflows.predicates import all_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from perdure.agent_workflows.definition import Node, Predicate


class EdgesBuilder(Noting):
    """Adds edges. `when...` and `as_default` are about those that the last `to` has added."""

    def __init__(self) -> None:
        super().__init__()
        self._edges: list[Edge] = []
        self._sources: tuple[str, ...] = ()
        self._is_led = True
        """Whether edges begin at the sources."""
        self._latest = 0
        """How many edges the last `to` has added: the last of the list."""
        self._types: list[tuple[str, str]] = []
        """What `when_type` has named: a node, and a type that it is to put out."""

    def from_(self, *nodes: str) -> Self:
        """Say where the next edges begin: at these nodes, or at `START`."""
        _require_some("from_", nodes)
        self._problems += self._dangling()
        self._sources, self._latest, self._is_led = self._ids("from_", nodes), 0, False
        return self

    def to(self, *nodes: str, when: Condition | Predicate | None = None) -> Self:
        """Join each of the nodes of `from_` with each of these, or with `END`."""
        _require_some("to", nodes)
        targets = self._ids("to", nodes)
        added = [Edge(source, target) for source in self._require_sources("to") for target in targets]
        self._edges += added
        self._latest, self._is_led = len(added), True
        return self if when is None else self.when(when)

    def when(self, condition: Condition | Predicate) -> Self:
        """Take the edges just added if this holds for what their source has put out; all of several have to hold.

        A condition can be written down with the workflow. A predicate is a function of an `EdgeContext`, sync or async.
        """
        if isinstance(condition, Condition):
            return self._change("when", lambda edge: with_condition(edge, condition))
        if not callable(condition):
            raise TypeError(f"when takes a condition or a function of an EdgeContext, not {condition!r}")
        return self._change("when", lambda edge: replace(edge, predicate=all_of(edge.predicate, condition)))

    def as_default(self) -> Self:
        """Take the edges just added if none of the conditional ones of their source was."""
        return self._change("as_default", lambda edge: replace(edge, is_default=True))

    def when_equals(self, key: str, value: Any) -> Self:
        """The value under the key is this."""
        return self.when(Equals(key, value))

    def when_not_equals(self, key: str, value: Any) -> Self:
        """The value under the key is another, or there is none."""
        return self.when(NotEquals(key, value))

    def when_exists(self, key: str) -> Self:
        """There is a value under the key."""
        return self.when(Exists(key))

    def when_not_exists(self, key: str) -> Self:
        """There is no value under the key."""
        return self.when(NotExists(key))

    def when_greater_than(self, key: str, value: float | str) -> Self:
        """What stands under the key is greater: a number, or a text where that is given."""
        return self.when(GreaterThan(key, value))

    def when_less_than(self, key: str, value: float | str) -> Self:
        """What stands under the key is less."""
        return self.when(LessThan(key, value))

    def when_at_least(self, key: str, value: float | str) -> Self:
        """What stands under the key is this or greater."""
        return self.when(AtLeast(key, value))

    def when_at_most(self, key: str, value: float | str) -> Self:
        """What stands under the key is this or less."""
        return self.when(AtMost(key, value))

    def when_contains(self, key: str, value: Any) -> Self:
        """The text under the key has this in it, or the list has it as an item."""
        return self.when(Contains(key, value))

    def when_starts_with(self, key: str, value: str) -> Self:
        """The text under the key begins so."""
        return self.when(StartsWith(key, value))

    def when_ends_with(self, key: str, value: str) -> Self:
        """The text under the key ends so."""
        return self.when(EndsWith(key, value))

    def when_matches(self, key: str, pattern: str, *, ignore_case: bool = False) -> Self:
        """The regular expression is found in the text under the key."""
        return self.when(Matches(key, pattern, ignore_case=ignore_case))

    def when_empty(self, key: str) -> Self:
        """There is nothing under the key: no value, an empty text or list."""
        return self.when(Empty(key))

    def when_not_empty(self, key: str) -> Self:
        """There is something under the key."""
        return self.when(NotEmpty(key))

    def when_contains_any(self, key: str, values: Sequence[Any]) -> Self:
        """One of these is in the text or list under the key."""
        return self.when(ContainsAny(key, values))

    def when_contains_all(self, key: str, values: Sequence[Any]) -> Self:
        """All of these are in the text or list under the key."""
        return self.when(ContainsAll(key, values))

    def route_by_type(self) -> Self:
        """Go on by what type the node of `from_` has put out: `when_type` and `default` say where. One node only."""
        sources = self._require_sources("route_by_type")
        if len(sources) > 1:
            named = ", ".join(map(repr, sources))
            raise AgentWorkflowBuildError(
                f"route_by_type is about the output of one node, not of {named}: write from_ and route_by_type for each"
            )
        return self

    def when_type(self, type_: type[Any] | Mapping[str, Any] | str, *targets: str) -> Self:
        """Go on to these nodes if the output is of this type: a class of the `union_output`, or a schema's title."""
        name = type_ if isinstance(type_, str) else title_of(type_) or ""
        self._types += [(source, name) for source in self._require_sources("when_type")]
        return self.to(*targets).when(Equals(MATCHED_TYPE, name))

    def default(self, *targets: str) -> Self:
        """Go on to these nodes if none of the conditional edges was taken."""
        return self.to(*targets).as_default()

    def _ids(self, method: str, nodes: Sequence[object]) -> tuple[str, ...]:
        found: list[object] = []
        for each in nodes:
            if not isinstance(each, str):
                self._note(f"{method} takes the ids of nodes, as {method}('a', 'b'), not {told(each)}")
            found += cast("list[object]", each) if isinstance(each, list | tuple) else [each]
        return tuple(map(str, found))

    def _dangling(self) -> list[str]:
        """That nothing follows the last `from_`."""
        if self._is_led:
            return []
        named = ", ".join(map(repr, self._sources))
        return [f"from_({named}) leads nowhere: call to('node') after it, or leave it out"]

    def _require_sources(self, method: str) -> tuple[str, ...]:
        if not self._sources:
            raise AgentWorkflowBuildError(f"{method} has to know where its edges begin: call from_('node') before it")
        return self._sources

    def _change(self, method: str, change: Callable[[Edge], Edge]) -> Self:
        if not self._latest:
            raise AgentWorkflowBuildError(
                f"{method} is about edges that were just added, and there are none: call it right after "
                "from_('node').to('node')"
            )
        self._edges[-self._latest :] = [change(edge) for edge in self._edges[-self._latest :]]
        return self


def with_condition(edge: Edge, condition: Condition) -> Edge:
    """The edge with a further condition: both have to hold."""
    return replace(edge, condition=condition if edge.condition is None else edge.condition & condition)


def _require_some(method: str, nodes: Sequence[str]) -> None:
    if not nodes:
        raise AgentWorkflowBuildError(f"{method} needs the id of a node at least")


def with_router_edges(nodes: Sequence[Node], edges: Sequence[Edge]) -> list[Edge]:
    """The declared edges, those to chosen nodes with their condition, and behind them those that nobody declared."""
    choices = {node.id: node.output for node in nodes if isinstance(node.output, Handoffs)}
    declared = [_chosen(edge, choices) for edge in edges]
    return [*declared, *_undeclared(choices, declared)]


def _chosen(edge: Edge, choices: Mapping[str, Handoffs]) -> Edge:
    router = choices.get(edge.source)
    if router is None or edge.target not in router.targets or edge.is_default:
        return edge
    is_said = edge.condition is not None and HANDOFF_TARGET in edge.condition.fields()
    return edge if is_said else with_condition(edge, Equals(HANDOFF_TARGET, edge.target))


def _undeclared(choices: Mapping[str, Handoffs], declared: Sequence[Edge]) -> Iterator[Edge]:
    joined = {(edge.source, edge.target) for edge in declared}
    for router, output in choices.items():
        for target in output.targets:
            if (router, target) not in joined:
                yield Edge(router, target, condition=Equals(HANDOFF_TARGET, target))
