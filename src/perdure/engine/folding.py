"""The end of a superstep: messages are routed, updates merged, and all is folded into the next snapshot."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from perdure.engine.logbook import FRAMEWORK
from perdure.engine.outside import fan_ins_of
from perdure.engine.routing import is_known_by_class, is_straight, route
from perdure.errors import StateConflictError, UndeliveredError
from perdure.events import UndeliveredMessage, WorkflowEvent
from perdure.kernel import RoutedMessage, conflicts, fold

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from perdure.codec import Values
    from perdure.graph import Graph, Ways
    from perdure.kernel import ActivationResult, Effects, Snapshot, StateKey, UnroutedMessage


class Folding:
    """Makes of what the activations of a superstep did the next snapshot."""

    def __init__(self, graph: Graph, values: Values) -> None:
        self._graph = graph
        self._values = values
        self._fan_ins = fan_ins_of(graph)
        self._ways: dict[tuple[str, type[object]], Ways] = {}
        """By source and class where each message goes, if that depends on nothing else."""
        self._is_known: dict[tuple[Ways, type[object]], bool] = {}
        """Whether it does. Many sources may have the same ways."""

    async def folded(
        self, before: Snapshot, outcomes: Sequence[ActivationResult]
    ) -> tuple[Snapshot, list[WorkflowEvent[Any]]]:
        """The next snapshot, and what there is to tell of it. Users' conditions are asked in the order of the plan."""
        told: list[WorkflowEvent[Any]] = []
        effects = [
            self._straight(done) or await self._routed(done, told) if done.unrouted else done.effects
            for done in outcomes
        ]
        if len(effects) > 1:
            told += self._conflicts(effects)
        after = fold(before, effects, fan_ins=self._fan_ins, merged=self._merged(before, outcomes))
        for text in self._values.warnings():
            told.append(WorkflowEvent("warning", text, origin=FRAMEWORK))
        return after, told

    def _straight(self, outcome: ActivationResult) -> Effects | None:
        """The effects, if all messages go where they go by their type alone."""
        source_id = outcome.effects.activation.executor_id
        sent: list[RoutedMessage] = []
        for unrouted in outcome.unrouted:
            if unrouted.asked_for is not None:
                return None
            ways = self._ways.get((source_id, type(unrouted.message))) or self._straight_ways(source_id, unrouted)
            if ways is None:
                return None
            sent.append(RoutedMessage(unrouted.data, None, ways.targets, ways.fan_ins, unrouted.due))
        return replace(outcome.effects, sends=tuple(sent))

    def _straight_ways(self, source_id: str, unrouted: UnroutedMessage) -> Ways | None:
        ways, cls = self._graph.open_ways.get(source_id), type(unrouted.message)
        if ways is None:
            return None
        is_known = self._is_known.get((ways, cls))
        if is_known is None:
            is_known = self._is_known[ways, cls] = is_known_by_class(self._graph, ways, cls)
        if not is_known:
            return ways if is_straight(self._graph, ways, self._looked_at(source_id, unrouted)) else None
        self._ways[source_id, cls] = ways
        return ways

    async def _routed(self, outcome: ActivationResult, told: list[WorkflowEvent[Any]]) -> Effects:
        source_id = outcome.effects.activation.executor_id
        return replace(
            outcome.effects, sends=tuple([await self._sent(source_id, unrouted, told) for unrouted in outcome.unrouted])
        )

    async def _sent(self, source_id: str, unrouted: UnroutedMessage, told: list[WorkflowEvent[Any]]) -> RoutedMessage:
        asked_for, message = unrouted.asked_for, self._looked_at(source_id, unrouted)
        routing = await route(self._graph, source_id=source_id, target_id=asked_for, message=message)
        if routing.undelivered is not None:
            if self._graph.rules.undelivered == "error":
                raise UndeliveredError(source_id=source_id, target_id=asked_for, reason=routing.undelivered)
            data = UndeliveredMessage(unrouted.message, source_id, asked_for, routing.undelivered)
            told.append(WorkflowEvent("undelivered", data, executor_id=source_id, origin=FRAMEWORK))
        return RoutedMessage(unrouted.data, asked_for, routing.targets, routing.fan_ins, unrouted.due)

    def _looked_at(self, source_id: str, unrouted: UnroutedMessage) -> Any:
        """Users' code must see the value as it was fixed, and not as it is now."""
        return self._values.give(unrouted.data) if source_id in self._graph.asking else unrouted.message

    def _conflicts(self, effects: Sequence[Effects]) -> list[WorkflowEvent[Any]]:
        """The warnings about keys that several executors wrote. Raises StateConflictError where that is an error."""
        found: list[WorkflowEvent[Any]] = []
        for conflict in conflicts(effects):
            if conflict.key in self._graph.reducers:
                continue
            error = StateConflictError(key=conflict.key[1], executor_ids=conflict.executor_ids)
            if self._graph.rules.state_conflicts == "strict":
                raise error
            found.append(WorkflowEvent("warning", f"{error}; the write of the last one stands", origin=FRAMEWORK))
        return found

    def _merged(self, before: Snapshot, outcomes: Sequence[ActivationResult]) -> Mapping[StateKey, object]:
        updates: dict[StateKey, list[object | None]] = {}
        for outcome in outcomes:
            for place, values in outcome.updates.items():
                # What an earlier version of the program has noted may have no reducer any more: the last write stands.
                if place in self._graph.reducers:
                    updates.setdefault(place, []).extend(values)
        if not updates:
            return updates
        merged = {place: self._reduced(before, place, values) for place, values in updates.items()}
        return {place: value for place, value in merged.items() if value is not None}

    def _reduced(self, before: Snapshot, place: StateKey, updates: Sequence[object | None]) -> object | None:
        """The value that the updates make of the committed one, fixed; None if they end with its removal."""
        reducer = self._graph.reducers[place]
        merged = [self._values.give_state(before.state[place])] if place in before.state else []
        for update in updates:
            if update is None:
                merged.clear()
            else:
                given = self._values.give_state(update)
                merged = [reducer(merged[0], given) if merged else given]
        return self._values.fix(merged[0], f"state[{place[1]!r}]") if merged else None
