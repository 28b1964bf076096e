"""`GroupChatBuilder`: participants around an orchestrator, who says who speaks next."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, cast

from perdure import Agent, AgentExecutor, Executor, WorkflowBuilder
from perdure.orchestrations.group_chat.agent import AgentBasedGroupChatOrchestrator
from perdure.orchestrations.group_chat.selection import DEFAULT_ID, GroupChatOrchestrator, round_robin
from perdure.orchestrations.orchestrator import BaseGroupChatOrchestrator
from perdure.orchestrations.outputs import UNSET, Outputs, checked_iterations, iterations
from perdure.orchestrations.participants import ParticipantRegistry, checked_participants, name_of
from perdure.orchestrations.request_info import AgentApprovalExecutor, Reviews
from perdure.orchestrations.termination import require_condition

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure import CheckpointStorage, Workflow
    from perdure.orchestrations.group_chat.selection import GroupChatSelectionFunction
    from perdure.orchestrations.outputs import IntermediateOutputFrom, OutputFrom
    from perdure.orchestrations.participants import Named, Participant
    from perdure.orchestrations.termination import TerminationCondition

OrchestratorAgent: TypeAlias = Agent[Any] | Callable[[], Agent[Any]]
Orchestrator: TypeAlias = BaseGroupChatOrchestrator | Callable[[], BaseGroupChatOrchestrator]


class GroupChatBuilder:
    """Participants who speak one at a time, all in one conversation, and an orchestrator between them.

    Who speaks next is said by one of these: `selection_func`, a function of the `GroupChatState`, or `"round_robin"`;
    `orchestrator_agent`, an agent, whose answers are checked and asked again `retry_attempts` times; `orchestrator`, a
    `BaseGroupChatOrchestrator` of your own.

    The chat ends when the `termination_condition` says so, after `max_rounds` answers, or when the agent says so. The
    output is the last word, by the orchestrator; `output_from` and `intermediate_output_from` add what participants
    say. `participant_factories` make new participants for each `build`. `max_iterations` limits the supersteps since
    the last input; without it there are enough for `max_rounds` and for `MaxMessages`.
    """

    DEFAULT_ORCHESTRATOR_ID: ClassVar[str] = DEFAULT_ID

    def __init__(
        self,
        *,
        name: str | None = None,
        participants: Sequence[Participant] | None = None,
        participant_factories: Sequence[Callable[[], Participant]] | None = None,
        orchestrator_agent: OrchestratorAgent | None = None,
        orchestrator: Orchestrator | None = None,
        selection_func: GroupChatSelectionFunction | Literal["round_robin"] | None = None,
        orchestrator_name: str | None = None,
        termination_condition: TerminationCondition | None = None,
        max_rounds: int | None = None,
        max_iterations: int | None = None,
        retry_attempts: int | None = None,
        checkpoint_storage: CheckpointStorage | str | None = None,
        output_from: OutputFrom = UNSET,
        intermediate_output_from: IntermediateOutputFrom = None,
    ) -> None:
        require_condition(termination_condition)
        _require_one(orchestrator_agent, orchestrator, selection_func)
        self._name = name
        self._makers = _makers(participants, participant_factories)
        self._leading_agent = orchestrator_agent
        self._leader = orchestrator
        self._selection = _selection(selection_func)
        self._leader_name = orchestrator_name
        self._termination = termination_condition
        self._max_rounds = max_rounds
        self._max_iterations = checked_iterations(max_iterations)
        self._retry_attempts = retry_attempts
        self._storage = checkpoint_storage
        self._outputs = Outputs.of(output_from, intermediate_output_from)
        self._reviews: Reviews | None = None

    def with_termination_condition(self, termination_condition: TerminationCondition) -> GroupChatBuilder:
        """Say when the chat is over. The same as `termination_condition=`."""
        require_condition(termination_condition)
        self._termination = termination_condition
        return self

    def with_max_rounds(self, max_rounds: int | None) -> GroupChatBuilder:
        """Say how many answers a chat has at most; None for any number. The same as `max_rounds=`."""
        self._max_rounds = max_rounds
        return self

    def with_checkpointing(self, checkpoint_storage: CheckpointStorage | str) -> GroupChatBuilder:
        """Say where checkpoints go. The same as `checkpoint_storage=`."""
        self._storage = checkpoint_storage
        return self

    def with_request_info(self, *, agents: Sequence[Named] | None = None) -> GroupChatBuilder:
        """Ask a person after each turn of these agents, or of all, before the others hear of it."""
        self._reviews = Reviews.of(agents)
        return self

    def build(self) -> Workflow:
        """Join the orchestrator with each participant. Raises ValueError, WorkflowValidationError."""
        participants = self._nodes()
        leader = self._orchestrator()
        if leader.id in [each.id for each in participants]:
            raise ValueError(f"the orchestrator and a participant are both called {leader.id!r}: rename one of them")
        rounds, condition = leader.join(
            ParticipantRegistry(participants), max_rounds=self._max_rounds, termination_condition=self._termination
        )
        outputs, intermediates = self._outputs.resolve(participants, always=[leader])
        builder = WorkflowBuilder(
            max_iterations=iterations(
                self._max_iterations, turns=rounds, condition=condition, speakers=len(participants)
            ),
            name=self._name,
            start_executor=leader,
            checkpoint_storage=self._storage,
            output_from=outputs,
            intermediate_output_from=intermediates,
        )
        for participant in participants:
            builder.add_edge(leader, participant).add_edge(participant, leader)
        return builder.build()

    def _nodes(self) -> list[Executor]:
        participants = checked_participants([make() for make in self._makers], needs_names=True)
        reviewed = frozenset[str]() if self._reviews is None else self._reviews.among(participants)
        return [_node(each, is_reviewed=name_of(each) in reviewed) for each in participants]

    def _orchestrator(self) -> BaseGroupChatOrchestrator:
        if self._selection is not None:
            return GroupChatOrchestrator(DEFAULT_ID, selection_func=self._selection, name=self._leader_name)
        if self._leader is not None:
            return _made("orchestrator", self._leader, BaseGroupChatOrchestrator)
        if self._leading_agent is not None:
            agent: Agent[Any] = _made("orchestrator_agent", self._leading_agent, Agent)
            return _led_by(agent, self._retry_attempts)
        raise ValueError("nobody leads the chat: give selection_func, orchestrator_agent or orchestrator")


def _require_one(*given: object) -> None:
    if sum(each is not None for each in given) > 1:
        raise ValueError("one leads the chat: give one of selection_func, orchestrator_agent and orchestrator")


def _makers(
    participants: Sequence[Participant] | None, factories: Sequence[Callable[[], Participant]] | None
) -> list[Callable[[], Participant]]:
    if (participants is None) == (factories is None):
        raise ValueError("give the chat participants, or participant_factories, and not both")
    if factories is not None:
        if not factories:
            raise ValueError("participant_factories is empty: give at least one function that makes a participant")
        return list(factories)
    assert participants is not None, "one of the two was given"
    return [lambda each=each: each for each in checked_participants(participants, needs_names=True)]


def _selection(given: object) -> GroupChatSelectionFunction | None:
    if given == "round_robin":
        return round_robin
    if given is None or callable(given):
        return cast("GroupChatSelectionFunction | None", given)
    raise TypeError(f"selection_func is a function of a GroupChatState or 'round_robin', not {given!r}")


def _node(participant: Participant, *, is_reviewed: bool) -> Executor:
    if isinstance(participant, Executor):
        return participant
    return AgentApprovalExecutor(participant) if is_reviewed else AgentExecutor(participant)


def _made(what: str, given: object, kind: type[Any]) -> Any:
    """What was given, or what the function that was given makes. Raises TypeError if it is none of a kind."""
    made: object = given() if callable(given) and not isinstance(given, kind) else given
    if not isinstance(made, kind):
        raise TypeError(f"{what} is an instance of {kind.__name__} or a function that makes one, not {made!r}")
    return made


def _led_by(agent: Agent[Any], retry_attempts: int | None) -> AgentBasedGroupChatOrchestrator:
    return AgentBasedGroupChatOrchestrator(agent, retry_attempts=retry_attempts)
