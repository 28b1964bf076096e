"""`SequentialBuilder`: participants act one after the other, each on the conversation so far."""

from __future__ import annotations

from copy import copy
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, Union, cast

from typing_extensions import Unpack

from perdure import (
    AgentExecutorResponse,
    AgentResponse,
    Executor,
    FunctionExecutor,
    Message,
    Workflow,
    WorkflowContext,
    WorkflowExecutor,
    handler,
)
from perdure.orchestrations.builder import OrchestrationBuilder, OrchestrationOptions
from perdure.orchestrations.participants import (
    Participant,
    check_participants,
    participant_name,
    require_messages,
    to_messages,
)
from perdure.orchestrations.request_info import AgentApprovalExecutor, make_nodes
from perdure.orchestrations.termination import TerminationCondition, should_terminate

if TYPE_CHECKING:
    from collections.abc import Sequence


def make_gate(participant: Executor, condition: TerminationCondition) -> Executor:
    """Return an executor that ends the workflow after a participant's turn, or passes its message on."""

    async def check(message: Any, ctx: WorkflowContext[Any, AgentResponse]) -> None:
        conversation = _conversation_in(message)
        if not conversation or not await should_terminate(condition, conversation):
            await ctx.send_message(message)
        elif isinstance(message, AgentExecutorResponse):
            await ctx.yield_output(message.agent_response, in_pieces=True)
        else:
            await ctx.yield_output(AgentResponse(messages=conversation[-1:]), in_pieces=True)

    types = participant.output_types
    sent: Any = Union[tuple(types)] if types else Any  # noqa: UP007 - a union of types that are known at run time only
    return FunctionExecutor(check, f"after-{participant.id}", input=sent, output=sent, workflow_output=AgentResponse)


def _conversation_in(message: object) -> list[Message]:
    """Return the conversation that a message holds; an empty list if it holds something else."""
    match message:
        case AgentExecutorResponse():
            return message.full_conversation
        case str() | Message():
            return to_messages(message)
        case list() if all(isinstance(each, str | Message) for each in cast("list[object]", message)):
            return to_messages(cast("list[str | Message]", message))
        case _:
            return []


class InputToConversation(Executor):
    """Converts the input to a list of messages."""

    @handler
    async def from_input(self, given: str | Message | list[str | Message], ctx: WorkflowContext[list[Message]]) -> None:
        """Start with a text, a message or a conversation. Raises ValueError if it is empty."""
        await ctx.send_message(require_messages(given))

    @handler
    async def from_response(self, prior: AgentExecutorResponse, ctx: WorkflowContext[list[Message]]) -> None:
        """Start with the response of an agent outside this workflow."""
        await ctx.send_message(require_messages(prior.full_conversation))


class SequentialBuilder(OrchestrationBuilder):
    """Builds a chain: `input-conversation`, then each participant under its name.

    An agent gets the conversation so far; with `chain_only_agent_responses`, only the response of the agent before it.
    With `ensure_trailing_user_turn`, it also gets a user message if that ends with an assistant's message, because some
    models reject such input.

    Your own executor gets what its predecessor sends: `list[Message]` from the input, an `AgentExecutorResponse` from
    an agent. The output is what the last participant yields, unless `output_from` or `intermediate_output_from` name
    others. Outputs and requests of a `WorkflowExecutor` at the end are those of the workflow.

    `termination_condition` is checked after each participant except the last. When it holds, the last response is the
    output and the remaining participants are skipped. `max_iterations` limits the supersteps since the last input; by
    default it allows all participants.
    """

    def __init__(
        self,
        *,
        participants: Sequence[Participant],
        chain_only_agent_responses: bool = False,
        ensure_trailing_user_turn: bool = False,
        **options: Unpack[OrchestrationOptions],
    ) -> None:
        super().__init__(**options)
        self._participants = check_participants(participants)
        self._context_mode: Literal["full", "last_agent"] = "last_agent" if chain_only_agent_responses else "full"
        self._ensure_trailing_user_turn = ensure_trailing_user_turn

    def build(self) -> Workflow:
        """Connect the participants. Raises ValueError, WorkflowValidationError."""
        names = [participant_name(each) for each in self._participants]
        outputs, intermediates = self._outputs.resolve_names(names, default=names[-1:])
        nodes = make_nodes(
            self._participants,
            reviewed=self._reviewed_names(self._participants),
            drafts=intermediates,
            context_mode=self._context_mode,
            ensure_trailing_user_turn=self._ensure_trailing_user_turn,
        )
        if isinstance(nodes[-1], WorkflowExecutor) and not isinstance(nodes[-1], AgentApprovalExecutor):
            # Only the parent can take the outputs and requests of a sub-workflow at the end.
            nodes[-1] = last = copy(nodes[-1])
            last.allow_direct_output = last.propagate_request = True
        start = InputToConversation("input-conversation")
        chain: list[Executor] = [start]
        gates: list[Executor] = []
        for node in nodes:
            chain.append(node)
            if self._termination is not None and node is not nodes[-1]:
                gate = make_gate(node, self._termination)
                chain.append(gate)
                if node.id not in outputs:  # else the participant has yielded the output already
                    gates.append(gate)
        builder = self._workflow_builder(
            start,
            [*[node for node in nodes if node.id in outputs], *gates],
            [node for node in nodes if node.id in intermediates],
            turns=len(nodes),
        )
        for before, after in pairwise(chain):
            builder.add_edge(before, after)
        return builder.build()
