"""`SequentialBuilder`: participants one after the other, each with what was said before it."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from perdure import Executor, Message, Workflow, WorkflowBuilder, WorkflowContext, handler
from perdure.orchestrations.conversation import messages_of, some_messages_of
from perdure.orchestrations.limits import checked_iterations, iterations
from perdure.orchestrations.outputs import UNSET, IntermediateOutputFrom, OutputFrom, Outputs
from perdure.orchestrations.participants import Named, Participant, checked_participants, name_of
from perdure.orchestrations.request_info import NO_REVIEWS, Reviews, nodes_of
from perdure.orchestrations.sequential_end import gate_after
from perdure.orchestrations.termination import TerminationCondition, require_condition

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from perdure import CheckpointStorage


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
