"""`HandoffBuilder`: agents that hand the conversation off to each other."""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self, cast

from perdure import Agent
from perdure.orchestrations.builder import UNSET, OrchestrationBuilder
from perdure.orchestrations.handoff.executor import HandoffAgentExecutor, ReviewedHandoffAgentExecutor
from perdure.orchestrations.handoff.tools import HandoffConfiguration
from perdure.orchestrations.participants import check_participants, participant_name, resolve_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from perdure import CheckpointStorage, Workflow
    from perdure.orchestrations.builder import IntermediateOutputFrom, OutputFrom
    from perdure.orchestrations.participants import ParticipantRef
    from perdure.orchestrations.termination import TerminationCondition

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _AutonomousMode:
    """Options of `with_autonomous_mode`."""

    is_on: bool = False
    agents: Sequence[ParticipantRef] = ()
    prompts: Mapping[str, str] = field(default_factory=dict[str, str])
    turn_limits: Mapping[str, int] = field(default_factory=dict[str, int])

    def require_participants(self, names: Sequence[str]) -> None:
        """Raise ValueError for an unknown participant or a negative turn limit."""
        for each in (*self.agents, *self.prompts, *self.turn_limits):
            resolve_name(each, names, option="with_autonomous_mode")
        for name, limit in self.turn_limits.items():
            if limit < 0:
                raise ValueError(f"the turn limit of {name!r} must be 0 or more, not {limit!r}")

    def applies_to(self, name: str) -> bool:
        """Return True if the agent continues without the user."""
        return self.is_on and (not self.agents or name in map(participant_name, self.agents))


class HandoffBuilder(OrchestrationBuilder):
    """Builds a workflow of agents that hand the conversation off to each other.

    Each agent gets a tool for every agent that it may hand off to: all others, or those named with `add_handoff`. All
    agents receive all messages; one speaks. If it ends its turn without a handoff, the user is asked, unless the agent
    continues by itself (`with_autonomous_mode`). The builder works on copies of the agents.

    `max_iterations` limits the supersteps since the last input, and so stops agents that hand off to each other for
    ever. By default it allows `MaxMessages`.
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
        super().__init__(
            name=name,
            checkpoint_storage=checkpoint_storage,
            termination_condition=termination_condition,
            max_iterations=max_iterations,
            output_from=output_from,
            intermediate_output_from=intermediate_output_from,
        )
        self._description = description
        self._agents: dict[str, Agent[Any]] = {}
        self._routes: dict[str, dict[str, HandoffConfiguration]] = {}
        self._start: str | None = None
        self._autonomous_mode = _AutonomousMode()
        self._returns_to_previous = True
        if participants:
            self.participants(participants)

    def participants(self, participants: Sequence[Agent[Any]]) -> Self:
        """Set the participants. Raises ValueError if they are already set, TypeError for one that is not an `Agent`."""
        if self._agents:
            raise ValueError("participants are already set: give all of them in one call")
        for each in check_participants(participants):
            name = participant_name(each)
            if not isinstance(each, Agent):
                raise TypeError(
                    f"participant {name!r} is a {type(each).__name__}, but only an Agent can get handoff tools; make "
                    "it an Agent, or build your own graph"
                )
            self._agents[name] = cast("Agent[Any]", each)
        return self

    def add_handoff(
        self, source: Agent[Any] | str, targets: Sequence[Agent[Any] | str], *, description: str | None = None
    ) -> Self:
        """Allow handoffs from one agent to others. From then on, only handoffs that were added are allowed.

        The description is for the agent's model. The default is the target's own description. Raises ValueError for an
        unknown participant.
        """
        source_name = self._resolve_participant(source, "add_handoff")
        routes = self._routes.setdefault(source_name, {})
        for target in targets:
            target_name = self._resolve_participant(target, "add_handoff")
            if target_name == source_name:
                raise ValueError(f"agent {source_name!r} can't hand off to itself: remove it from the targets")
            routes[target_name] = HandoffConfiguration(target=target_name, description=description)
        return self

    def with_start_agent(self, agent: Agent[Any] | str) -> Self:
        """Set the agent that speaks first. Raises ValueError for an unknown participant."""
        self._start = self._resolve_participant(agent, "with_start_agent")
        return self

    def enable_return_to_previous(self, enabled: bool = True) -> Self:  # noqa: FBT001, FBT002 - the documented form
        """Send the user's answers to the agent that asked (the default), or to the start agent."""
        self._returns_to_previous = enabled
        return self

    def with_autonomous_mode(
        self,
        *,
        agents: Sequence[Agent[Any] | str] | None = None,
        prompts: Mapping[str, str] | None = None,
        turn_limits: Mapping[str, int] | None = None,
    ) -> Self:
        """Let these agents, or all agents, continue without the user.

        Instead of a user's answer the agent gets its prompt, until it reaches its turn limit (50 by default). Then the
        user is asked. Prompts and limits are given by agent name.
        """
        self._autonomous_mode = _AutonomousMode(True, agents or (), prompts or {}, turn_limits or {})  # noqa: FBT003 - it is on
        return self

    def build(self) -> Workflow:
        """Connect each agent with all others. Raises ValueError if an option is missing or wrong."""
        if not self._agents:
            raise ValueError("there are no participants: set them with participants(...)")
        if self._start is None:
            raise ValueError("there is no start agent: set one with with_start_agent(...)")
        self._autonomous_mode.require_participants(list(self._agents))
        nodes = self._make_nodes()
        outputs, intermediates = self._outputs.resolve(nodes, default=nodes)
        builder = self._workflow_builder(
            next(node for node in nodes if node.id == self._start),
            outputs,
            intermediates,
            condition=self._termination,
            speakers=len(nodes),
            description=self._description,
        )
        for node in nodes:
            others = [each for each in nodes if each is not node]
            if len(others) == 1:
                builder.add_edge(node, others[0])
            elif others:
                builder.add_fan_out_edges(node, others)
        return builder.build()

    def _resolve_participant(self, named: Agent[Any] | str, option: str) -> str:
        if not self._agents:
            raise ValueError(f"{option} needs participants: call participants(...) first")
        return resolve_name(named, list(self._agents), option=option)

    def _handoffs(self, name: str) -> list[HandoffConfiguration]:
        """Return the allowed handoffs of an agent. If no handoff was added, all are allowed."""
        others = {other: HandoffConfiguration(target=other) for other in self._agents if other != name}
        chosen = self._routes.get(name, {}) if self._routes else others
        return [
            HandoffConfiguration(target=target, description=each.description or self._agents[target].description)
            for target, each in chosen.items()
        ]

    def _make_nodes(self) -> list[HandoffAgentExecutor]:
        names = list(self._agents)
        reviewed = self._reviews.names_in(list(self._agents.values()))
        _, intermediates = self._outputs.resolve_names(names, default=names)
        # A draft may only be an intermediate output, because other outputs are final.
        factories = {
            name: functools.partial(ReviewedHandoffAgentExecutor, shows_drafts=name in intermediates)
            for name in reviewed
        }
        return [
            self._make_node(name, agent, factories.get(name, HandoffAgentExecutor))
            for name, agent in self._agents.items()
        ]

    def _make_node(
        self, name: str, agent: Agent[Any], make: Callable[..., HandoffAgentExecutor]
    ) -> HandoffAgentExecutor:
        handoffs = self._handoffs(name)
        if not handoffs:
            logger.warning("agent %r has no handoffs; add some with add_handoff(...) if it needs them", name)
        return make(
            agent,
            handoffs,
            is_start_agent=name == self._start,
            user_response_target_id=None if self._returns_to_previous else self._start,
            termination_condition=self._termination,
            autonomous_mode=self._autonomous_mode.applies_to(name),
            autonomous_mode_prompt=self._autonomous_mode.prompts.get(name),
            autonomous_mode_turn_limit=self._autonomous_mode.turn_limits.get(name),
        )
