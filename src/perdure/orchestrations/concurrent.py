"""`ConcurrentBuilder`: participants side by side, and one who makes a whole of what they say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure import Executor, Workflow, WorkflowBuilder
from perdure.orchestrations.aggregators import Aggregating, AnswersTogether, aggregator_of
from perdure.orchestrations.concurrent_dispatch import DispatchToAllParticipants
from perdure.orchestrations.concurrent_end import (
    AnswersIfThereAreSome,
    ApprovalUnlessOver,
    DispatchUnlessOver,
    is_about_the_end,
)
from perdure.orchestrations.limits import checked_iterations, iterations
from perdure.orchestrations.outputs import UNSET, IntermediateOutputFrom, OutputFrom, Outputs
from perdure.orchestrations.participants import Named, Participant, checked_participants, name_of
from perdure.orchestrations.request_info import NO_REVIEWS, AgentApprovalExecutor, Reviews, nodes_of
from perdure.orchestrations.termination import TerminationCondition, require_condition

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure import CheckpointStorage

_SEVERAL = 2


class ConcurrentBuilder:
    """Participants side by side: `dispatcher`, then all at once, then `aggregator` when every one has answered.

    Each participant gets an `AgentExecutorRequest`; an executor of your own answers with an `AgentExecutorResponse`.
    The output is one `AgentResponse` with a message of each, in the order of the participants: the last of an agent,
    all words of a workflow that takes part as an agent. Or it is what your own aggregator makes of the answers.
    `output_from` and `intermediate_output_from` name participants whose outputs are told as well.
    `max_iterations` limits the supersteps since the last input.

    `termination_condition` is asked about the input and after each answer, with all that was said so far. If it is over
    with the input, nobody is asked, and the output is what the aggregator makes of no answers. Once it is over, one
    that a person sends back (`with_request_info`) does not speak again: its answer has no messages.
    """

    def __init__(
        self,
        *,
        participants: Sequence[Participant],
        name: str | None = None,
        checkpoint_storage: CheckpointStorage | str | None = None,
        termination_condition: TerminationCondition | None = None,
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
        self._termination: TerminationCondition | None = None
        if termination_condition is not None:
            self.with_termination_condition(termination_condition)

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

    def with_termination_condition(self, termination_condition: TerminationCondition) -> ConcurrentBuilder:
        """Say when nobody is to speak any more. The same as `termination_condition=`."""
        require_condition(termination_condition)
        self._termination = termination_condition
        return self

    def with_checkpointing(self, checkpoint_storage: CheckpointStorage | str) -> ConcurrentBuilder:
        """Say where checkpoints go. The same as `checkpoint_storage=`."""
        self._storage = checkpoint_storage
        return self

    def build(self) -> Workflow:
        """Join the participants. Raises ValueError, WorkflowValidationError."""
        dispatcher, aggregator = self._ends()
        _, intermediates = self._outputs.names([name_of(each) for each in self._participants])
        nodes = nodes_of(
            self._participants,
            reviews=self._reviews,
            drafts=intermediates,
            reviewed_as=AgentApprovalExecutor if self._termination is None else ApprovalUnlessOver,
        )
        outputs, intermediate_nodes = self._outputs.resolve(nodes, always=[aggregator])
        builder = WorkflowBuilder(
            name=self._name,
            max_iterations=iterations(self._max_iterations),
            start_executor=dispatcher,
            checkpoint_storage=self._storage,
            output_from=outputs,
            intermediate_output_from=intermediate_nodes,
        )
        builder.add_fan_out_edges(dispatcher, nodes).add_fan_in_edges(nodes, aggregator)
        if self._termination is not None:
            builder.add_edge(dispatcher, aggregator, is_about_the_end)
            for node in nodes:
                builder.add_edge(node, dispatcher)
        return builder.build()

    def _ends(self) -> tuple[Executor, Executor]:
        """Who asks the participants, and who makes a whole of their answers."""
        if self._termination is None:
            return DispatchToAllParticipants("dispatcher"), self._aggregator or AnswersTogether("aggregator")
        aggregator = self._aggregator or AnswersIfThereAreSome("aggregator")
        return DispatchUnlessOver("dispatcher", self._termination, aggregator.id), aggregator
