"""`ConcurrentBuilder`: participants side by side, and one who makes a whole of what they say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure import (
    AgentExecutorRequest,
    Executor,
    Message,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    handler,
)
from perdure.orchestrations.aggregators import Aggregating, AnswersTogether, aggregator_of
from perdure.orchestrations.conversation import messages_of, some_messages_of
from perdure.orchestrations.limits import checked_iterations, iterations
from perdure.orchestrations.outputs import UNSET, IntermediateOutputFrom, OutputFrom, Outputs
from perdure.orchestrations.participants import Named, Participant, checked_participants, name_of
from perdure.orchestrations.request_info import NO_REVIEWS, Reviews, nodes_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure import CheckpointStorage

_SEVERAL = 2


class DispatchToAllParticipants(Executor):
    """Asks all participants the same."""

    @handler
    async def from_request(self, request: AgentExecutorRequest, ctx: WorkflowContext[AgentExecutorRequest]) -> None:
        """Ask what was asked."""
        await ctx.send_message(request)

    @handler
    async def from_str(self, prompt: str, ctx: WorkflowContext[AgentExecutorRequest]) -> None:
        """Ask with a text."""
        await ctx.send_message(AgentExecutorRequest(messages_of(prompt)))

    @handler
    async def from_message(self, message: Message, ctx: WorkflowContext[AgentExecutorRequest]) -> None:
        """Ask with a message."""
        await ctx.send_message(AgentExecutorRequest(messages_of(message)))

    @handler
    async def from_messages(self, messages: list[str | Message], ctx: WorkflowContext[AgentExecutorRequest]) -> None:
        """Ask with a conversation. Raises ValueError if it is empty."""
        await ctx.send_message(AgentExecutorRequest(some_messages_of(messages)))


class ConcurrentBuilder:
    """Participants side by side: `dispatcher`, then all at once, then `aggregator` when every one has answered.

    Each participant gets an `AgentExecutorRequest`; an executor of your own answers with an `AgentExecutorResponse`.
    The output is one `AgentResponse` with the last message of each, in the order of the participants, or what your own
    aggregator makes of the answers. `output_from` and `intermediate_output_from` name participants whose outputs are
    told as well. `max_iterations` limits the supersteps since the last input.
    """

    def __init__(
        self,
        *,
        participants: Sequence[Participant],
        name: str | None = None,
        checkpoint_storage: CheckpointStorage | str | None = None,
        max_iterations: int | None = None,
        output_from: OutputFrom = UNSET,
        intermediate_output_from: IntermediateOutputFrom = None,
    ) -> None:
        self._participants = checked_participants(participants)
        if len(self._participants) < _SEVERAL:
            raise ValueError("ConcurrentBuilder needs at least two participants; one alone is a SequentialBuilder")
        self._name = name
        self._storage = checkpoint_storage
        self._max_iterations = checked_iterations(max_iterations)
        self._outputs = Outputs.of(output_from, intermediate_output_from)
        self._reviews = NO_REVIEWS
        self._aggregator: Executor | None = None

    def with_aggregator(self, aggregator: Executor | Aggregating) -> ConcurrentBuilder:
        """Say who makes a whole of the answers: an executor, or a function `(results)` or `(results, ctx)`.

        `results` are the `AgentExecutorResponse`s in the order of the participants. What a function returns is the
        output, unless it is None. A sync function runs in a thread. Raises ValueError if there is an aggregator.
        """
        if self._aggregator is not None:
            raise ValueError(f"there is an aggregator already, {self._aggregator.id!r}: call with_aggregator once")
        self._aggregator = aggregator_of(aggregator)
        return self

    def with_request_info(self, *, agents: Sequence[Named] | None = None) -> ConcurrentBuilder:
        """Ask a person after each turn of these agents, or of all, before the answers are put together."""
        self._reviews = Reviews.of(agents)
        return self

    def with_checkpointing(self, checkpoint_storage: CheckpointStorage | str) -> ConcurrentBuilder:
        """Say where checkpoints go. The same as `checkpoint_storage=`."""
        self._storage = checkpoint_storage
        return self

    def build(self) -> Workflow:
        """Join the participants. Raises ValueError, WorkflowValidationError."""
        dispatcher = DispatchToAllParticipants("dispatcher")
        aggregator = self._aggregator or AnswersTogether("aggregator")
        _, intermediates = self._outputs.names([name_of(each) for each in self._participants])
        nodes = nodes_of(self._participants, reviews=self._reviews, drafts=intermediates)
        outputs, intermediate_nodes = self._outputs.resolve(nodes, always=[aggregator])
        builder = WorkflowBuilder(
            name=self._name,
            max_iterations=iterations(self._max_iterations),
            start_executor=dispatcher,
            checkpoint_storage=self._storage,
            output_from=outputs,
            intermediate_output_from=intermediate_nodes,
        )
        return builder.add_fan_out_edges(dispatcher, nodes).add_fan_in_edges(nodes, aggregator).build()
