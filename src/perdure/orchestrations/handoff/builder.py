"""`HandoffBuilder`: agents that hand the conversation to each other, whoever knows best what to say."""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self, TypeAlias, cast

from perdure import Agent, WorkflowBuilder
from perdure.orchestrations.handoff.executor import HandoffAgentExecutor, ReviewedHandoffAgentExecutor
from perdure.orchestrations.handoff.tools import HandoffConfiguration
from perdure.orchestrations.outputs import UNSET, Outputs, checked_iterations, iterations
from perdure.orchestrations.participants import checked_participants, name_of, one_of
from perdure.orchestrations.request_info import NO_REVIEWS, Reviews
from perdure.orchestrations.termination import require_condition

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from perdure import CheckpointStorage, Workflow
    from perdure.orchestrations.outputs import IntermediateOutputFrom, OutputFrom
    from perdure.orchestrations.participants import Named
    from perdure.orchestrations.termination import TerminationCondition

logger = logging.getLogger(__name__)

Routes: TypeAlias = "dict[str, dict[str, HandoffConfiguration]]"
"""Handoffs by who hands over, and to whom."""


@dataclass(frozen=True, slots=True)
class _Autonomy:
    """Who goes on without the user, for how many turns, and what they are told."""

    is_on: bool = False
    agents: Sequence[Named] = ()
    prompts: Mapping[str, str] = field(default_factory=dict[str, str])
    turn_limits: Mapping[str, int] = field(default_factory=dict[str, int])

    def require_participants(self, names: Sequence[str]) -> None:
        """Raise ValueError if it speaks of somebody who takes no part, or of less than no turn."""
        for each in (*self.agents, *self.prompts, *self.turn_limits):
            one_of(each, names, what="with_autonomous_mode")
        for name, limit in self.turn_limits.items():
            if limit < 0:
                raise ValueError(f"the turn limit of {name!r} is 0 or more, not {limit!r}")

    def is_for(self, name: str) -> bool:
        """Whether an agent goes on without the user."""
        return self.is_on and (not self.agents or name in map(name_of, self.agents))


class HandoffBuilder:
    """Agents that hand the conversation to each other.

    Each has a tool for each agent that it may hand over to: every other one, or those that `add_handoff` names. All
    hear what is said, one speaks. When it has spoken and hands over to nobody, the user is asked, unless it goes on by
    itself (`with_autonomous_mode`). The agents are copied; those that are given are not changed.

    `max_iterations` limits the supersteps since the last input, and so the handoffs: agents that hand over to each
    other for ever are stopped there. Without it there are enough for `MaxMessages`.
    """

    def __init__(
        self,
        *,
        name: str | None = None,
        participants: Sequence[Agent[Any]] | None = None,
        description: str | None = None,
        checkpoint_storage: CheckpointStorage | str | None = None,
        termination_condition: TerminationCondition | None = None,
        max_iterations: int | None = None,
        output_from: OutputFrom = UNSET,
        intermediate_output_from: IntermediateOutputFrom = None,
    ) -> None:
        self._name = name
        self._description = description
        self._storage = checkpoint_storage
        self._max_iterations = checked_iterations(max_iterations)
        self._outputs = Outputs.of(output_from, intermediate_output_from)
        self._agents: dict[str, Agent[Any]] = {}
        self._routes: Routes = {}
        self._start: str | None = None
        self._autonomy = _Autonomy()
        self._returns_to_previous = True
        self._reviews = NO_REVIEWS
        require_condition(termination_condition)
        self._condition = termination_condition
        if participants:
            self.participants(participants)

    def participants(self, participants: Sequence[Agent[Any]]) -> Self:
        """Say who takes part. Raises ValueError if that was said before; TypeError for what is no `Agent`."""
        if self._agents:
            raise ValueError("participants were given before: give all of them at once")
        for each in checked_participants(participants):
            name = name_of(each)
            if not isinstance(each, Agent):
                raise TypeError(
                    f"only an Agent can be given the tools to hand over, and {name!r} is a {type(each).__name__}; "
                    "make an Agent of it, or build a graph of your own"
                )
            self._agents[name] = cast("Agent[Any]", each)
        return self

    def add_handoff(
        self, source: Agent[Any] | str, targets: Sequence[Agent[Any] | str], *, description: str | None = None
    ) -> Self:
        """Let an agent hand over to others, and from now on only who was let so. Its model is told the description.

        Without one it is told what the target's own says. Raises ValueError if somebody is no participant.
        """
        giver = self._participant(source, "add_handoff")
        routes = self._routes.setdefault(giver, {})
        for target in targets:
            taker = self._participant(target, "add_handoff")
            if taker == giver:
                raise ValueError(f"agent {giver!r} can't hand over to itself: leave it out of the targets")
            routes[taker] = HandoffConfiguration(target=taker, description=description)
        return self

    def with_start_agent(self, agent: Agent[Any] | str) -> Self:
        """Say who speaks first. Raises ValueError if that is no participant."""
        self._start = self._participant(agent, "with_start_agent")
        return self

    def enable_return_to_previous(self, enabled: bool = True) -> Self:  # noqa: FBT001, FBT002 - the documented form
        """Say who is given the user's answers: the agent that has asked, or if not `enabled` the start agent."""
        self._returns_to_previous = enabled
        return self

    def with_autonomous_mode(
        self,
        *,
        agents: Sequence[Agent[Any] | str] | None = None,
        prompts: Mapping[str, str] | None = None,
        turn_limits: Mapping[str, int] | None = None,
    ) -> Self:
        """Let agents go on without the user, all of them or those that are named.

        In place of the user's answer an agent is told its prompt, so many times as its turn limit says, 50 unless one
        is given. Then the user is asked. Prompts and limits are given by the names of agents.
        """
        self._autonomy = _Autonomy(True, agents or (), prompts or {}, turn_limits or {})  # noqa: FBT003 - it is on
        return self

    def with_request_info(self, *, agents: Sequence[Named] | None = None) -> Self:
        """Ask a person after each turn of these agents, or of all, before the others hear of it or it hands over."""
        self._reviews = Reviews.of(agents)
        return self

    def with_checkpointing(self, checkpoint_storage: CheckpointStorage | str) -> Self:
        """Say where runs are kept."""
        self._storage = checkpoint_storage
        return self

    def with_termination_condition(self, termination_condition: TerminationCondition) -> Self:
        """Say when the conversation is over: nobody speaks any more, and the user is not asked."""
        require_condition(termination_condition)
        self._condition = termination_condition
        return self

    def build(self) -> Workflow:
        """The workflow: each agent is joined with all others. Raises ValueError if something is missing or wrong."""
        if not self._agents:
            raise ValueError("there are no participants: name them with participants(...)")
        if self._start is None:
            raise ValueError("nobody speaks first: name an agent with with_start_agent(...)")
        self._autonomy.require_participants(list(self._agents))
        nodes = self._nodes()
        outputs, intermediates = self._outputs.resolve(nodes, default=nodes)
        builder = WorkflowBuilder(
            name=self._name,
            description=self._description,
            max_iterations=iterations(self._max_iterations, condition=self._condition, speakers=len(nodes)),
            start_executor=next(node for node in nodes if node.id == self._start),
            checkpoint_storage=self._storage,
            output_from=outputs,
            intermediate_output_from=intermediates,
        )
        for node in nodes:
            others = [each for each in nodes if each is not node]
            if len(others) == 1:
                builder.add_edge(node, others[0])
            elif others:
                builder.add_fan_out_edges(node, others)
        return builder.build()

    def _participant(self, named: Agent[Any] | str, what: str) -> str:
        if not self._agents:
            raise ValueError(f"{what} speaks of participants: name them before, with participants(...)")
        return one_of(named, list(self._agents), what=what)

    def _handoffs(self, name: str) -> list[HandoffConfiguration]:
        """Whom an agent may hand over to: who was named for it, or if nobody was named for anybody, all others."""
        others = {other: HandoffConfiguration(target=other) for other in self._agents if other != name}
        chosen = self._routes.get(name, {}) if self._routes else others
        return [
            HandoffConfiguration(target=target, description=each.description or self._agents[target].description)
            for target, each in chosen.items()
        ]

    def _nodes(self) -> list[HandoffAgentExecutor]:
        names = list(self._agents)
        reviewed = self._reviews.among(list(self._agents.values()))
        _, intermediates = self._outputs.names(names, default=names)
        # Only drafts of those whose outputs are intermediate may be told: what others yield is final.
        makers = {
            name: functools.partial(ReviewedHandoffAgentExecutor, shows_drafts=name in intermediates)
            for name in reviewed
        }
        return [self._node(name, agent, makers.get(name, HandoffAgentExecutor)) for name, agent in self._agents.items()]

    def _node(self, name: str, agent: Agent[Any], make: Callable[..., HandoffAgentExecutor]) -> HandoffAgentExecutor:
        handoffs = self._handoffs(name)
        if not handoffs:
            logger.warning("agent %r can hand over to nobody; if it should, say so with add_handoff(...)", name)
        return make(
            agent,
            handoffs,
            is_start_agent=name == self._start,
            user_response_target_id=None if self._returns_to_previous else self._start,
            termination_condition=self._condition,
            autonomous_mode=self._autonomy.is_for(name),
            autonomous_mode_prompt=self._autonomy.prompts.get(name),
            autonomous_mode_turn_limit=self._autonomy.turn_limits.get(name),
        )
