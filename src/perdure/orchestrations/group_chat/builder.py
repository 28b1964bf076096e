"""`GroupChatBuilder`: participants around an orchestrator that selects the next speaker."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeAlias, cast

from perdure import Agent
from perdure.orchestrations.builder import UNSET, OrchestrationBuilder
from perdure.orchestrations.group_chat.agent import AgentBasedGroupChatOrchestrator
from perdure.orchestrations.group_chat.selection import DEFAULT_ORCHESTRATOR_ID, GroupChatOrchestrator, round_robin
from perdure.orchestrations.orchestrator import BaseGroupChatOrchestrator
from perdure.orchestrations.participants import ParticipantRegistry, check_participants
from perdure.orchestrations.request_info import make_nodes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure import CheckpointStorage, Workflow
    from perdure.orchestrations.builder import IntermediateOutputFrom, OutputFrom
    from perdure.orchestrations.group_chat.selection import GroupChatSelectionFunction
    from perdure.orchestrations.participants import Participant
    from perdure.orchestrations.termination import TerminationCondition

OrchestratorAgent: TypeAlias = Agent[Any] | Callable[[], Agent[Any]]
Orchestrator: TypeAlias = BaseGroupChatOrchestrator | Callable[[], BaseGroupChatOrchestrator]


class GroupChatBuilder(OrchestrationBuilder):
    """Builds a chat: participants speak one at a time in one conversation, led by an orchestrator.

    One of these selects the next speaker: `selection_func`, a function of the `GroupChatState`, or `"round_robin"`;
    `orchestrator_agent`, an agent, which is asked again up to `retry_attempts` times if its answer is invalid;
    `orchestrator`, your own `BaseGroupChatOrchestrator`.

    The chat ends when `termination_condition` holds, after `max_rounds` answers, or when the agent ends it. The output
    is the orchestrator's final message; `output_from` and `intermediate_output_from` add outputs of participants.
    `participant_factories` make new participants for each `build`. `max_iterations` limits the supersteps since the
    last input; by default it allows `max_rounds` and `MaxMessages`.
    """

    DEFAULT_ORCHESTRATOR_ID: ClassVar[str] = DEFAULT_ORCHESTRATOR_ID

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
        super().__init__(
            name=name,
            checkpoint_storage=checkpoint_storage,
            termination_condition=termination_condition,
            max_iterations=max_iterations,
            output_from=output_from,
            intermediate_output_from=intermediate_output_from,
        )
        if sum(each is not None for each in (orchestrator_agent, orchestrator, selection_func)) > 1:
            raise ValueError("give only one of selection_func, orchestrator_agent and orchestrator")
        self._factories = _participant_factories(participants, participant_factories)
        self._orchestrator_agent = orchestrator_agent
        self._orchestrator = orchestrator
        self._selection_func = _check_selection_func(selection_func)
        self._orchestrator_name = orchestrator_name
        self._max_rounds = max_rounds
        self._retry_attempts = retry_attempts

    def with_max_rounds(self, max_rounds: int | None) -> Self:
        """Limit the number of answers in a chat, like `max_rounds=`. None means no limit."""
        self._max_rounds = max_rounds
        return self

    def build(self) -> Workflow:
        """Connect the orchestrator with each participant. Raises ValueError, WorkflowValidationError."""
        participants = check_participants([make() for make in self._factories], needs_names=True)
        nodes = make_nodes(participants, reviews=self._reviews)
        orchestrator = self._make_orchestrator()
        if orchestrator.id in [node.id for node in nodes]:
            raise ValueError(f"the orchestrator and a participant both have the name {orchestrator.id!r}: rename one")
        rounds, condition = orchestrator.join(
            ParticipantRegistry(nodes), max_rounds=self._max_rounds, termination_condition=self._termination
        )
        outputs, intermediates = self._outputs.resolve(nodes, always=[orchestrator])
        builder = self._workflow_builder(
            orchestrator, outputs, intermediates, turns=rounds, condition=condition, speakers=len(nodes)
        )
        for node in nodes:
            builder.add_edge(orchestrator, node).add_edge(node, orchestrator)
        return builder.build()

    def _make_orchestrator(self) -> BaseGroupChatOrchestrator:
        if self._selection_func is not None:
            return GroupChatOrchestrator(
                DEFAULT_ORCHESTRATOR_ID, selection_func=self._selection_func, name=self._orchestrator_name
            )
        if self._orchestrator is not None:
            return _resolve("orchestrator", self._orchestrator, BaseGroupChatOrchestrator)
        if self._orchestrator_agent is not None:
            agent: Agent[Any] = _resolve("orchestrator_agent", self._orchestrator_agent, Agent)
            return AgentBasedGroupChatOrchestrator(agent, retry_attempts=self._retry_attempts)
        raise ValueError("the chat has no orchestrator: give selection_func, orchestrator_agent or orchestrator")


def _participant_factories(
    participants: Sequence[Participant] | None, factories: Sequence[Callable[[], Participant]] | None
) -> list[Callable[[], Participant]]:
    if (participants is None) == (factories is None):
        raise ValueError("give either participants or participant_factories")
    if factories is not None:
        if not factories:
            raise ValueError("participant_factories is empty: give at least one function that makes a participant")
        return list(factories)
    assert participants is not None, "one of the two was given"
    return [lambda each=each: each for each in check_participants(participants, needs_names=True)]


def _check_selection_func(given: object) -> GroupChatSelectionFunction | None:
    if given == "round_robin":
        return round_robin
    if given is None or callable(given):
        return cast("GroupChatSelectionFunction | None", given)
    raise TypeError(f"selection_func must be a function of a GroupChatState or 'round_robin', not {given!r}")


def _resolve(option: str, given: object, kind: type[Any]) -> Any:
    """Return the given instance, or call the given factory. Raises TypeError for another type."""
    found: object = given() if callable(given) and not isinstance(given, kind) else given
    if not isinstance(found, kind):
        raise TypeError(f"{option} must be a {kind.__name__} or a function that makes one, not {found!r}")
    return found
