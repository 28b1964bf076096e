"""The loop that drives one run: plan, run, route, fold, commit, tell, until nothing is left to deliver."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from perdure.errors import (
    ClaimLostError,
    StaleHeadError,
    StateConflictError,
    UndeliveredError,
    WorkflowCheckpointException,
    WorkflowConvergenceException,
)
from perdure.events import UndeliveredMessage, WorkflowEvent
from perdure.graph.context import SHARED_SCOPE
from perdure.graph.edges import FanOutEdgeGroup
from perdure.kernel.effects import Sent
from perdure.kernel.superstep import FanIn, conflicts, fold, plan
from perdure.runtime.activation import FRAMEWORK, Surroundings
from perdure.runtime.closing import Closing
from perdure.runtime.instances import Drift, load
from perdure.runtime.routing import route
from perdure.runtime.superstep import Superstep, Telling

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence

    from perdure.checkpoint.values import Values
    from perdure.graph.definition import Graph
    from perdure.kernel.effects import Done, Effects, Unrouted
    from perdure.kernel.snapshot import Snapshot, StateKey
    from perdure.runtime.journal import Journal
    from perdure.runtime.ledger import Ledger


@dataclass
class Driver:
    """Drives one run of a graph. `snapshot` is always the newest that was committed."""

    graph: Graph
    snapshot: Snapshot
    values: Values
    ledger: Ledger
    scope_id: str
    is_checkpointed: bool
    streaming: bool = False
    run_kwargs: dict[str, Any] = field(default_factory=dict[str, Any])
    drift: Drift = field(default_factory=Drift)

    async def supersteps(self) -> AsyncGenerator[WorkflowEvent[Any]]:
        """Run supersteps until the run is idle. Between two of them nothing happens unless the reader asks on."""
        journal = await self.ledger.open()
        while not self.snapshot.is_idle:
            if self.snapshot.since_input >= self.graph.rules.max_iterations:
                raise WorkflowConvergenceException(
                    f"workflow {self.graph.name!r} did not end within {self.graph.rules.max_iterations} supersteps "
                    "since its last input, and messages are left; raise max_iterations if it is meant to run on"
                )
            async with Closing(self._superstep(journal)) as events:
                async for event in events:
                    yield event

    async def _superstep(self, journal: Journal) -> AsyncGenerator[WorkflowEvent[Any]]:
        before = self.snapshot
        iteration = before.iteration + 1
        yield WorkflowEvent("superstep_started", iteration=iteration, origin=FRAMEWORK)
        activations = plan(before)
        telling = Telling()
        superstep = Superstep(activations, self._surroundings(telling, journal), telling, self.drift)
        is_kept = False
        try:
            async with Closing(superstep.events()) as events:
                async for event in events:
                    yield event
            after = await self._folded(superstep.outcomes, telling)
            for event in telling.told():
                yield event
            told = await self._commit(after)
            is_kept = True
        finally:
            if not is_kept and self.is_checkpointed:
                await load(self.graph, before, self.values, only={a.executor_id for a in activations})
        if told is not None:
            yield told
        yield WorkflowEvent("superstep_completed", iteration=iteration, origin=FRAMEWORK)

    def _surroundings(self, telling: Telling, journal: Journal) -> Surroundings:
        return Surroundings(
            graph=self.graph,
            snapshot=self.snapshot,
            values=self.values,
            tell=telling.tell,
            scope_id=f"{self.scope_id}/{self.snapshot.turn}/{self.snapshot.iteration}",
            run_kwargs=self.run_kwargs,
            journal=journal.under(f"{self.snapshot.turn}.{self.snapshot.iteration}/"),
            streaming=self.streaming,
            is_checkpointed=self.is_checkpointed,
        )

    async def _commit(self, after: Snapshot) -> WorkflowEvent[Any] | None:
        """Commit and tell; what could not be written stops the run, or is a warning if the workflow says so."""
        try:
            info = await self.ledger.commit(after, "superstep")
        except (StaleHeadError, ClaimLostError):
            raise
        except WorkflowCheckpointException as error:
            if self.graph.rules.on_checkpoint_error == "stop":
                raise
            self.snapshot = after
            return WorkflowEvent("warning", f"no checkpoint of superstep {after.iteration}: {error}", origin=FRAMEWORK)
        self.snapshot = after
        return None if info is None else WorkflowEvent("checkpoint", info, origin=FRAMEWORK)

    async def _folded(self, outcomes: Sequence[Done], telling: Telling) -> Snapshot:
        effects: list[Effects] = []
        for outcome in outcomes:
            sends = [await self._sent(outcome, unrouted, telling) for unrouted in outcome.unrouted]
            effects.append(replace(outcome.effects, sends=tuple(sends)))
        self._tell_conflicts(effects, telling)
        fan_ins = {
            group_id: FanIn(tuple(group.source_executor_ids), group.target_id)
            for group_id, group in self.graph.fan_ins.items()
        }
        return fold(self.snapshot, effects, fan_ins=fan_ins, merged=self._merged(outcomes))

    async def _sent(self, outcome: Done, unrouted: Unrouted, telling: Telling) -> Sent:
        source_id = outcome.effects.activation.executor_id
        message = unrouted.message if not self._asks_users(source_id) else self.values.give(unrouted.data)
        routing = await route(self.graph, source_id=source_id, target_id=unrouted.asked_for, message=message)
        if routing.undelivered is not None:
            if self.graph.rules.undelivered == "error":
                raise UndeliveredError(source_id=source_id, target_id=unrouted.asked_for, reason=routing.undelivered)
            data = UndeliveredMessage(unrouted.message, source_id, unrouted.asked_for, routing.undelivered)
            telling.tell(WorkflowEvent("undelivered", data, executor_id=source_id, origin=FRAMEWORK))
        return Sent(unrouted.data, unrouted.asked_for, routing.targets, routing.fan_ins)

    def _asks_users(self, source_id: str) -> bool:
        """Whether routing calls users' code, which must see the value as it was fixed and not as it is now."""
        return any(
            isinstance(group, FanOutEdgeGroup) or any(edge.has_condition for edge in group.edges)
            for group in self.graph.groups_from[source_id]
        )

    def _tell_conflicts(self, effects: Sequence[Effects], telling: Telling) -> None:
        for conflict in conflicts(effects):
            scope, key = conflict.key
            if scope == SHARED_SCOPE and key in self.graph.rules.reducers:
                continue
            error = StateConflictError(key=key, executor_ids=conflict.executor_ids)
            if self.graph.rules.state_conflicts == "strict":
                raise error
            telling.tell(WorkflowEvent("warning", f"{error}; the write of the last one stands", origin=FRAMEWORK))

    def _merged(self, outcomes: Sequence[Done]) -> Mapping[StateKey, object]:
        updates: dict[StateKey, list[object | None]] = {}
        for outcome in outcomes:
            for place, values in outcome.updates.items():
                updates.setdefault(place, []).extend(values)
        merged = {place: self._reduced(place, values) for place, values in updates.items()}
        return {place: value for place, value in merged.items() if value is not None}

    def _reduced(self, place: StateKey, updates: Sequence[object | None]) -> object | None:
        """The value that the updates make of the committed one, fixed; None if they end with its removal."""
        reducer = self.graph.rules.reducers[place[1]]
        merged = [self.values.give_state(self.snapshot.state[place])] if place in self.snapshot.state else []
        for update in updates:
            if update is None:
                merged.clear()
            else:
                given = self.values.give_state(update)
                merged = [reducer(merged[0], given) if merged else given]
        return self.values.fix(merged[0], f"state[{place[1]!r}]") if merged else None
