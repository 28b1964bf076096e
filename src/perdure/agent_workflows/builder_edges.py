"""The part of the builder that joins nodes, and says when an edge is taken."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

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
from perdure.agent_workflows.definition import MATCHED_TYPE, Edge
from perdure.agent_workflows.errors import AgentWorkflowBuildError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from perdure.agent_workflows.definition import EdgeContext, Predicate


class EdgesBuilder:
    """Adds edges. `when...` and `as_default` are about those that the last `to` has added."""

    def __init__(self) -> None:
        super().__init__()
        self._edges: list[Edge] = []
        self._sources: tuple[str, ...] = ()
        self._latest = 0
        """How many edges the last `to` has added: the last of the list."""
        self._types: list[tuple[str, str]] = []
        """What `when_type` has named: a node, and a type that it is to put out."""

    def from_(self, *nodes: str) -> Self:
        """Say where the next edges begin: at these nodes, or at `START`."""
        _require_some("from_", nodes)
        self._sources, self._latest = nodes, 0
        return self

    def to(self, *nodes: str, when: Condition | Predicate | None = None) -> Self:
        """Join each of the nodes of `from_` with each of these, or with `END`."""
        _require_some("to", nodes)
        added = [Edge(source, target) for source in self._require_sources("to") for target in nodes]
        self._edges += added
        self._latest = len(added)
        return self if when is None else self.when(when)

    def when(self, condition: Condition | Predicate) -> Self:
        """Take the edges just added if this holds for what their source has put out; all of several have to hold.

        A condition can be written down with the workflow. A predicate is a function of an `EdgeContext`, sync or async.
        """
        if isinstance(condition, Condition):
            return self._change("when", lambda edge: with_condition(edge, condition))
        if not callable(condition):
            raise TypeError(f"when takes a condition or a function of an EdgeContext, not {condition!r}")
        return self._change("when", lambda edge: _with_predicate(edge, condition))

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
        return self.when(ContainsAny(key, tuple(values)))

    def when_contains_all(self, key: str, values: Sequence[Any]) -> Self:
        """All of these are in the text or list under the key."""
        return self.when(ContainsAll(key, tuple(values)))

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
        name = _type_name(type_)
        self._types += [(source, name) for source in self._require_sources("when_type")]
        return self.to(*targets).when(Equals(MATCHED_TYPE, name))

    def default(self, *targets: str) -> Self:
        """Go on to these nodes if none of the conditional edges was taken."""
        return self.to(*targets).as_default()

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
    if edge.predicate is not None:
        return replace(edge, predicate=_both(edge.predicate, _asked(condition)))
    return replace(edge, condition=condition if edge.condition is None else edge.condition & condition)


def _with_predicate(edge: Edge, predicate: Predicate) -> Edge:
    # An edge has one of them: what is asked of a function in part is asked of a function.
    before = _asked(edge.condition) if edge.condition is not None else edge.predicate
    return replace(edge, condition=None, predicate=predicate if before is None else _both(before, predicate))


def _asked(condition: Condition) -> Predicate:
    def holds(context: EdgeContext) -> bool:
        return condition.holds(context.outputs)

    holds.__name__ = condition.describe()
    return holds


def _both(first: Predicate, second: Predicate) -> Predicate:
    async def holds(context: EdgeContext) -> bool:
        return await _answer(first, context) and await _answer(second, context)

    holds.__name__ = f"{_name(first)} and {_name(second)}"
    return holds


def _name(predicate: Predicate) -> str:
    return getattr(predicate, "__name__", type(predicate).__name__)


async def _answer(predicate: Predicate, context: EdgeContext) -> bool:
    answer = predicate(context)
    return bool(await answer) if inspect.isawaitable(answer) else bool(answer)


def _type_name(type_: type[Any] | Mapping[str, Any] | str) -> str:
    if isinstance(type_, Mapping):
        return str(type_.get("title", ""))
    return type_ if isinstance(type_, str) else type_.__name__


def _require_some(method: str, nodes: Sequence[str]) -> None:
    if not nodes:
        raise AgentWorkflowBuildError(f"{method} needs the id of a node at least")
