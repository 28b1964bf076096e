"""A person between participants: after each turn of an agent, somebody may let it pass or tell the agent more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from perdure import (
    AgentExecutor,
    AgentExecutorRequest,
    AgentExecutorResponse,
    AgentResponse,
    Executor,
    Log,
    Message,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowExecutor,
    handler,
    register_type,
    response_handler,
)
from perdure.orchestrations.participants import Named, Participant, name_of, one_of

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from perdure import SupportsAgentRun

_BEFORE = "before"
"""What was said before the turn that is looked at, if the agent was told more."""


@dataclass
class AgentRequestInfoResponse:
    """What a person says to an agent's turn: messages, and the agent goes on with them; none, and the turn passes."""

    messages: list[Message]

    @staticmethod
    def from_messages(messages: list[Message]) -> AgentRequestInfoResponse:
        """Tell the agent more."""
        return AgentRequestInfoResponse(list(messages))

    @staticmethod
    def from_strings(texts: list[str]) -> AgentRequestInfoResponse:
        """Tell the agent more, as the user."""
        return AgentRequestInfoResponse([Message("user", [text]) for text in texts])

    @staticmethod
    def approve() -> AgentRequestInfoResponse:
        """Let the turn pass."""
        return AgentRequestInfoResponse([])


register_type(AgentRequestInfoResponse, name="perdure:AgentRequestInfoResponse")


@dataclass
class TooLateResponse(AgentRequestInfoResponse):
    """What a person says to an agent that may not speak any more: the turn does not pass, and there is no other."""


register_type(TooLateResponse, name="perdure:TooLateResponse")


class AgentRequestInfoExecutor(Executor):
    """Asks a person about each turn of the agent beside it, until one passes."""

    @handler
    async def request_info(self, turn: AgentExecutorResponse, ctx: WorkflowContext) -> None:
        """Ask, with all that was said since the agent was first asked."""
        before: Sequence[Message] = ctx.scope().get(_BEFORE, ())
        whole = AgentExecutorResponse(turn.executor_id, turn.agent_response, [*before, *turn.full_conversation])
        await ctx.request_info(whole, AgentRequestInfoResponse)

    @response_handler
    async def handle_request_info_response(
        self,
        original_request: AgentExecutorResponse,
        response: AgentRequestInfoResponse,
        ctx: WorkflowContext[AgentExecutorRequest, AgentExecutorResponse],
    ) -> None:
        """Let the turn pass, or let the agent take another. If that is too late, the agent has said nothing."""
        own = ctx.scope()
        is_too_late = isinstance(response, TooLateResponse)
        if response.messages and not is_too_late:
            own.set(_BEFORE, Log(original_request.full_conversation))
            await ctx.send_message(AgentExecutorRequest(response.messages))
            return
        if own.has(_BEFORE):
            own.delete(_BEFORE)
        if is_too_late:
            await ctx.send_message(AgentExecutorRequest(response.messages, should_respond=False))
            await ctx.yield_output(AgentExecutorResponse(original_request.executor_id, AgentResponse(), []))
        else:
            await ctx.yield_output(original_request)


class AgentApprovalExecutor(WorkflowExecutor):
    """An agent and who asks about its turns, as one participant under the agent's name.

    To the others it is what an `AgentExecutor` is: it takes the same messages, and a turn that has passed is sent on as
    an `AgentExecutorResponse`, and is an output as an `AgentResponse`, in a stream as its updates. A
    turn that somebody is asked about is a draft, which the request shows; with `shows_drafts`, drafts are intermediate
    outputs too, and are streamed. `kind` is what the agent is inside of it.
    """

    def __init__(
        self,
        agent: SupportsAgentRun,
        context_mode: Literal["full", "last_agent"] | None = None,
        *,
        shows_drafts: bool = False,
        kind: type[AgentExecutor] = AgentExecutor,
    ) -> None:
        node = kind(agent, context_mode=context_mode)
        super().__init__(_reviewed(node, shows_drafts=shows_drafts), id=node.id, propagate_request=True)
        self._agent = agent

    @property
    def agent(self) -> SupportsAgentRun:
        """The agent."""
        return self._agent

    @property
    def description(self) -> str | None:
        """What the agent is for."""
        return self._agent.description

    @property
    def workflow_output_types(self) -> list[Any]:
        """What a turn that has passed is to readers of the outputs."""
        return [AgentResponse]

    @response_handler
    async def process_propagated(self, request: object, response: object, ctx: WorkflowContext[Any, Any]) -> None:
        """An answer of a person. If the turn has passed with it, it has been sent on, and is an output too."""
        await super().process_propagated(request, response, ctx)
        for sent in ctx.get_sent_messages():
            if isinstance(sent, AgentExecutorResponse) and not isinstance(response, TooLateResponse):
                await ctx.yield_output(sent.agent_response, in_pieces=True)


def _reviewed(agent: AgentExecutor, *, shows_drafts: bool) -> Workflow:
    person = AgentRequestInfoExecutor("agent_request_info_executor")
    builder = WorkflowBuilder(
        name=f"{agent.id}-reviewed",
        start_executor=agent,
        output_from=[person],
        intermediate_output_from=[agent] if shows_drafts else None,
    )
    return builder.add_edge(agent, person).add_edge(person, agent).build()


@dataclass(frozen=True, slots=True)
class Reviews:
    """After whose turns a person is asked: `with_request_info(agents=...)`. None means all agents."""

    agents: tuple[Named, ...] | None = ()

    @classmethod
    def of(cls, agents: Sequence[Named] | None) -> Reviews:
        """What a program has said. Raises TypeError for what can't be a participant."""
        if isinstance(agents, str):
            raise TypeError(f"agents is a list of agents or names, not {agents!r}")
        for agent in agents or ():
            name_of(agent)
        return cls(tuple(agents) if agents else None)

    def among(self, participants: Sequence[Participant]) -> frozenset[str]:
        """The names of those agents. Raises ValueError for one that is no agent among the participants."""
        names = [name_of(each) for each in participants if not isinstance(each, Executor)]
        if self.agents is None:
            return frozenset(names)
        return frozenset(one_of(each, names, what="with_request_info") for each in self.agents)


NO_REVIEWS: Final = Reviews()


def nodes_of(
    participants: Sequence[Participant],
    *,
    reviews: Reviews = NO_REVIEWS,
    drafts: Collection[str] = (),
    context_mode: Literal["full", "last_agent"] | None = None,
    reviewed_as: type[AgentApprovalExecutor] = AgentApprovalExecutor,
) -> list[Executor]:
    """What participants become in a graph; executors stay what they are. `drafts` names those whose drafts are told.

    `reviewed_as` is what an agent becomes that a person is asked about.
    """
    reviewed = reviews.among(participants)

    def node(participant: Participant) -> Executor:
        if isinstance(participant, Executor):
            return participant
        name = name_of(participant)
        if name in reviewed:
            return reviewed_as(participant, context_mode, shows_drafts=name in drafts)
        return AgentExecutor(participant, context_mode=context_mode)

    return [node(participant) for participant in participants]
