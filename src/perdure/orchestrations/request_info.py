"""Reviews of agent turns: after each turn a person approves it or sends the agent more messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from typing_extensions import Unpack

from perdure import (
    AgentExecutor,
    AgentExecutorRequest,
    AgentExecutorResponse,
    AgentResponse,
    Executor,
    Log,
    Message,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowExecutor,
    handler,
    register_type,
    response_handler,
)
from perdure.orchestrations.participants import Participant, participant_name

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from perdure import SupportsAgentRun

# Messages before the reviewed turn, if the agent was sent more.
_EARLIER_KEY = "before"


@dataclass
class AgentRequestInfoResponse:
    """A person's review of an agent's turn. Messages make the agent take another turn; an empty list approves."""

    messages: list[Message]

    @staticmethod
    def from_messages(messages: list[Message]) -> AgentRequestInfoResponse:
        """Send the agent more messages."""
        return AgentRequestInfoResponse(list(messages))

    @staticmethod
    def from_strings(texts: list[str]) -> AgentRequestInfoResponse:
        """Send the agent more user messages."""
        return AgentRequestInfoResponse([Message("user", [text]) for text in texts])

    @staticmethod
    def approve() -> AgentRequestInfoResponse:
        """Approve the turn."""
        return AgentRequestInfoResponse([])


register_type(AgentRequestInfoResponse, name="perdure:AgentRequestInfoResponse")


@dataclass
class TooLateResponse(AgentRequestInfoResponse):
    """Rejection that came after the conversation ended. The turn is dropped and the agent takes no other."""


register_type(TooLateResponse, name="perdure:TooLateResponse")


class AgentRequestInfoExecutor(Executor):
    """Asks a person to review each turn of an agent until one is approved."""

    @handler
    async def request_info(self, turn: AgentExecutorResponse, ctx: WorkflowContext) -> None:
        """Ask for a review, with all messages since the agent was first asked."""
        earlier: Sequence[Message] = ctx.scope().get(_EARLIER_KEY, ())
        whole = AgentExecutorResponse(turn.executor_id, turn.agent_response, [*earlier, *turn.full_conversation])
        await ctx.request_info(whole, AgentRequestInfoResponse)

    @response_handler
    async def handle_request_info_response(
        self,
        original_request: AgentExecutorResponse,
        response: AgentRequestInfoResponse,
        ctx: WorkflowContext[AgentExecutorRequest, AgentExecutorResponse],
    ) -> None:
        """Yield the approved turn, or ask the agent for another. A late rejection yields an empty response."""
        scope = ctx.scope()
        is_too_late = isinstance(response, TooLateResponse)
        if response.messages and not is_too_late:
            scope.set(_EARLIER_KEY, Log(original_request.full_conversation))
            await ctx.send_message(AgentExecutorRequest(response.messages))
            return
        if scope.has(_EARLIER_KEY):
            scope.delete(_EARLIER_KEY)
        if is_too_late:
            await ctx.send_message(AgentExecutorRequest(response.messages, should_respond=False))
            await ctx.yield_output(AgentExecutorResponse(original_request.executor_id, AgentResponse(), []))
        else:
            await ctx.yield_output(original_request)


class AgentOptions(TypedDict, total=False):
    """Options of the executor that runs an agent."""

    context_mode: Literal["full", "last_agent"]
    ensure_trailing_user_turn: bool


class AgentApprovalExecutor(WorkflowExecutor):
    """An agent with its reviewer, as one participant under the agent's name.

    It behaves like an `AgentExecutor`: it takes the same messages, sends an approved turn as an
    `AgentExecutorResponse`, and yields it as an `AgentResponse`, also in a stream. A turn under review is a draft. The
    request shows it; with `shows_drafts`, drafts are also streamed intermediate outputs. `kind` is the executor class
    that runs the agent, and `options` are its options.
    """

    def __init__(
        self,
        agent: SupportsAgentRun,
        *,
        shows_drafts: bool = False,
        kind: type[AgentExecutor] = AgentExecutor,
        **options: Unpack[AgentOptions],
    ) -> None:
        node = kind(agent, **options)
        reviewer = AgentRequestInfoExecutor("agent_request_info_executor")
        builder = WorkflowBuilder(
            name=f"{node.id}-reviewed",
            start_executor=node,
            output_from=[reviewer],
            intermediate_output_from=[node] if shows_drafts else None,
        )
        workflow = builder.add_edge(node, reviewer).add_edge(reviewer, node).build()
        super().__init__(workflow, id=node.id, propagate_request=True)
        self.agent = agent
        self.description = agent.description

    @property
    def workflow_output_types(self) -> list[Any]:
        """The type of an approved turn as an output."""
        return [AgentResponse]

    @response_handler
    async def process_propagated(self, request: object, response: object, ctx: WorkflowContext[Any, Any]) -> None:
        """Pass on a person's review. If it approves the turn, yield the turn as an output."""
        await super().process_propagated(request, response, ctx)
        for sent in ctx.get_sent_messages():
            if isinstance(sent, AgentExecutorResponse) and not isinstance(response, TooLateResponse):
                await ctx.yield_output(sent.agent_response)


def make_nodes(
    participants: Sequence[Participant],
    *,
    reviewed: Collection[str],
    drafts: Collection[str] = (),
    kind: type[AgentExecutor] = AgentExecutor,
    reviewed_kind: type[AgentApprovalExecutor] = AgentApprovalExecutor,
    **options: Unpack[AgentOptions],
) -> list[Executor]:
    """Return the executors of the participants. An executor is its own.

    `reviewed` names the agents whose turns are reviewed, `drafts` those whose drafts are outputs. `kind` and
    `reviewed_kind` are the classes that run agents.
    """

    def make_node(participant: Participant) -> Executor:
        if isinstance(participant, Executor):
            return participant
        name = participant_name(participant)
        if name in reviewed:
            return reviewed_kind(participant, shows_drafts=name in drafts, kind=kind, **options)
        return kind(participant, **options)

    return [make_node(participant) for participant in participants]
