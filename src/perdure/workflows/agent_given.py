"""What a workflow is given as a turn: the conversation so far, or what of it is new to a run that remembers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.agents import AgentExecutor, InMemoryHistoryProvider, SessionContext, told_on
from perdure.data import frozen
from perdure.graph import FanOutEdgeGroup, SwitchCaseEdgeGroup

if TYPE_CHECKING:
    from collections.abc import Mapping

    from perdure.agents import Message
    from perdure.graph import EdgeGroup
    from perdure.workflows.agent import WorkflowAgent


@frozen
class Given:
    """A conversation, by who has kept it, and what is said now. What is told again says so: who knows it skips it."""

    before: Mapping[str, list[Message]]
    said: list[Message]
    counts: Mapping[str, int]
    """How many messages there are in the histories that only grow, if the run remembers what it was told."""

    @classmethod
    def of(cls, agent: WorkflowAgent, context: SessionContext, said: list[Message]) -> Given:
        """What is given to the workflow of an agent."""
        before = context.context_messages
        growing = [each.source_id for each in agent.context_providers if type(each) is InMemoryHistoryProvider]
        known = {key: len(before[key]) for key in growing if key in before} if _counts(agent) else {}
        return cls(before, said, known)

    def whole(self) -> list[Message]:
        """All of it, for a run that knows nothing yet."""
        return self.since({})

    def since(self, heard: Mapping[str, int]) -> list[Message]:
        """What is behind the messages that a run has heard of each history; all of a history that became shorter."""
        context = SessionContext(input_messages=[])
        for source_id, messages in self.before.items():
            known = heard.get(source_id, 0) if source_id in self.counts else 0
            context.extend_messages(source_id, told_on(messages[known if known <= len(messages) else 0 :]))
        return [*context.get_messages(), *self.said]


def hears_itself(agent: WorkflowAgent) -> bool:
    """Whether who leads the workflow keeps the conversation, also what the workflow itself has said."""
    return bool(getattr(agent.workflow.get_start_executor(), "keeps_conversation", False))


def _counts(agent: WorkflowAgent) -> bool:
    return hears_itself(agent) or _remembers(agent)


def _remembers(agent: WorkflowAgent) -> bool:
    """Whether all in the workflow are agents with sessions of their own, which are told of every turn.

    Where somebody else is told something, or somebody is told only of some turns, that may be all they know.
    """
    graph = agent.workflow.graph
    return not any(map(_chooses, graph.groups)) and all(map(AgentExecutor.remembers, graph.executors.values()))


def _chooses(group: EdgeGroup) -> bool:
    is_selecting = isinstance(group, FanOutEdgeGroup) and (
        isinstance(group, SwitchCaseEdgeGroup) or group.selection_func is not None
    )
    return is_selecting or any(edge.has_condition for edge in group.edges)
