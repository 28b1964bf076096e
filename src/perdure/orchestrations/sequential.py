"""`SequentialBuilder`: participants one after the other, each with what was said before it."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, Union, cast

from perdure import (
    AgentExecutorResponse,
    AgentResponse,
    Executor,
    FunctionExecutor,
    Message,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    handler,
)
from perdure.orchestrations.messages import messages_of, some_messages_of
from perdure.orchestrations.outputs import (
    UNSET,
    IntermediateOutputFrom,
    OutputFrom,
    Outputs,
    checked_iterations,
    iterations,
)
from perdure.orchestrations.participants import Named, Participant, checked_participants, name_of
from perdure.orchestrations.request_info import NO_REVIEWS, Reviews, nodes_of
from perdure.orchestrations.termination import TerminationCondition, is_over, require_condition

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from perdure import CheckpointStorage
    from perdure.orchestrations.termination import TerminationCondition


def gate_after(participant: Executor, condition: TerminationCondition) -> Executor:
    """Who looks after a participant's turn: it sends on what it gets, or makes it the output of all."""

    async def look(message: Any, ctx: WorkflowContext[Any, AgentResponse]) -> None:
        conversation = _conversation(message)
        if conversation and await is_over(condition, conversation):
            await ctx.yield_output(_said_last(message, conversation), in_pieces=True)
        else:
            await ctx.send_message(message)

    taken = _any_of(participant.output_types)
    return FunctionExecutor(look, f"after-{participant.id}", input=taken, output=taken, workflow_output=AgentResponse)


def _any_of(types: Sequence[Any]) -> Any:
    """What is sent by one who declares these types; without a declaration, anything."""
    return Union[tuple(types)] if types else Any  # noqa: UP007 - a union of types that are known at run time only


def _conversation(message: object) -> list[Message]:
    """What was said so far, as far as a message tells; nothing, if it tells something else."""
    match message:
        case AgentExecutorResponse():
            return message.full_conversation
        case str() | Message():
            return messages_of(message)
        case list() if all(isinstance(each, str | Message) for each in cast("list[object]", message)):
            return messages_of(cast("list[str | Message]", message))
        case _:
            return []


def _said_last(message: object, conversation: list[Message]) -> AgentResponse[Any]:
    if isinstance(message, AgentExecutorResponse):
        return message.agent_response
    return AgentResponse(messages=conversation[-1:])


class InputToConversation(Executor):
    """Makes messages of whatever a program says to begin with."""

    @handler
    async def from_str(self, prompt: str, ctx: WorkflowContext[list[Message]]) -> None:
        """Begin with a text."""
        await ctx.send_message(messages_of(prompt))

    @handler
    async def from_message(self, message: Message, ctx: WorkflowContext[list[Message]]) -> None:
        """Begin with a message."""
        await ctx.send_message(messages_of(message))

    @handler
    async def from_messages(self, messages: list[str | Message], ctx: WorkflowContext[list[Message]]) -> None:
        """Begin with a conversation. Raises ValueError if it is empty."""
        await ctx.send_message(some_messages_of(messages))


class SequentialBuilder:
    """Participants one after the other: `input-conversation`, then each under its name.

    An agent gets the conversation so far; with `chain_only_agent_responses`, only what the agent before it has said. An
    executor of your own gets what the one before it sends: `list[Message]` from the input, an `AgentExecutorResponse`
    from an agent. The output is what the last one yields, unless `output_from` or `intermediate_output_from` name
    others.

    `termination_condition` is asked after each participant but the last. When it says that the conversation is over,
    what was said last is the output, and the others have no turn. `max_iterations` limits the supersteps since the last
    input; without it there are enough for all participants.
    """

    def __init__(
        self,
        *,
        participants: Sequence[Participant],
        name: str | None = None,
        checkpoint_storage: CheckpointStorage | str | None = None,
        chain_only_agent_responses: bool = False,
        termination_condition: TerminationCondition | None = None,
        max_iterations: int | None = None,
        output_from: OutputFrom = UNSET,
        intermediate_output_from: IntermediateOutputFrom = None,
    ) -> None:
        self._participants = checked_participants(participants)
        self._name = name
        self._storage = checkpoint_storage
        self._max_iterations = checked_iterations(max_iterations)
        self._context_mode: Literal["full", "last_agent"] = "last_agent" if chain_only_agent_responses else "full"
        self._outputs = Outputs.of(output_from, intermediate_output_from)
        self._reviews = NO_REVIEWS
        self._termination: TerminationCondition | None = None
        if termination_condition is not None:
            self.with_termination_condition(termination_condition)

    def with_request_info(self, *, agents: Sequence[Named] | None = None) -> SequentialBuilder:
        """Ask a person after each turn of these agents, or of all, before the next participant has its turn."""
        self._reviews = Reviews.of(agents)
        return self

    def with_termination_condition(self, termination_condition: TerminationCondition) -> SequentialBuilder:
        """Say when the conversation is over before the last has spoken. The same as `termination_condition=`."""
        require_condition(termination_condition)
        self._termination = termination_condition
        return self

    def with_checkpointing(self, checkpoint_storage: CheckpointStorage | str) -> SequentialBuilder:
        """Say where checkpoints go. The same as `checkpoint_storage=`."""
        self._storage = checkpoint_storage
        return self

    def build(self) -> Workflow:
        """Join the participants. Raises ValueError, WorkflowValidationError."""
        names = [name_of(each) for each in self._participants]
        outputs, intermediates = self._outputs.names(names, default=names[-1:])
        nodes = nodes_of(
            self._participants, reviews=self._reviews, drafts=intermediates, context_mode=self._context_mode
        )
        gates = self._gates(nodes)
        beginning = InputToConversation("input-conversation")
        builder = WorkflowBuilder(
            name=self._name,
            max_iterations=iterations(self._max_iterations, turns=len(nodes)),
            start_executor=beginning,
            checkpoint_storage=self._storage,
            output_from=[
                *[node for node in nodes if node.id in outputs],
                # One whose output is told has told it: its gate would say the same again.
                *[gate for name, gate in gates.items() if name not in outputs],
            ],
            intermediate_output_from=[node for node in nodes if node.id in intermediates],
        )
        chain = [beginning, *_with_gates(nodes, gates)]
        for before, after in pairwise(chain):
            builder.add_edge(before, after)
        return builder.build()

    def _gates(self, nodes: Sequence[Executor]) -> dict[str, Executor]:
        """Who looks whether it is over, by the name of the participant that has spoken. The last one needs nobody."""
        if self._termination is None:
            return {}
        return {node.id: gate_after(node, self._termination) for node in nodes[:-1]}


def _with_gates(nodes: Sequence[Executor], gates: Mapping[str, Executor]) -> Iterator[Executor]:
    for node in nodes:
        yield node
        if node.id in gates:
            yield gates[node.id]
