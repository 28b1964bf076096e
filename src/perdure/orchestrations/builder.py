"""Options that all orchestration builders share: storage, termination, reviews, outputs and the superstep limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias, TypedDict

from perdure import DEFAULT_MAX_ITERATIONS, Executor, WorkflowBuilder
from perdure.orchestrations.participants import Participant, ParticipantRef, participant_name, resolve_name
from perdure.orchestrations.termination import TerminationCondition, check_condition, turn_limit

if TYPE_CHECKING:
    from perdure import CheckpointStorage, Workflow

OutputFrom: TypeAlias = Sequence[ParticipantRef] | Literal["all"] | None
IntermediateOutputFrom: TypeAlias = Sequence[ParticipantRef] | Literal["all", "all_other"] | None

# Each turn takes one superstep of the orchestrator and one of the participant.
_SUPERSTEPS_PER_TURN = 2
_EXTRA_SUPERSTEPS = 2


class OrchestrationOptions(TypedDict, total=False):
    """Options of every orchestration builder."""

    name: str | None
    checkpoint_storage: CheckpointStorage | str | None
    termination_condition: TerminationCondition | None
    max_iterations: int | None
    output_from: OutputFrom
    intermediate_output_from: IntermediateOutputFrom


@dataclass(frozen=True, slots=True)
class Outputs:
    """Choice of the participants whose outputs are outputs of the orchestration."""

    output_from: OutputFrom
    intermediate_output_from: IntermediateOutputFrom

    def __post_init__(self) -> None:
        """Raise ValueError for an unknown word."""
        _check_option("output_from", self.output_from, ("all",))
        _check_option("intermediate_output_from", self.intermediate_output_from, ("all", "all_other"))

    def resolve(
        self, participants: Sequence[Executor], *, default: Sequence[Executor] = (), always: Sequence[Executor] = ()
    ) -> tuple[list[Executor], list[Executor]]:
        """Return the executors with outputs, and those with intermediate outputs. Raises ValueError.

        `default` is used if the program names no outputs. `always` is added to those that it names.
        """
        nodes = {node.id: node for node in participants}
        outputs, intermediates = self.resolve_names(list(nodes), default=[node.id for node in default])
        return [*always, *[nodes[name] for name in outputs]], [nodes[name] for name in intermediates]

    def resolve_names(self, participants: Sequence[str], *, default: Sequence[str] = ()) -> tuple[list[str], list[str]]:
        """Return the names of participants with outputs and with intermediate outputs. Raises ValueError."""
        options = (self.output_from, self.intermediate_output_from)
        if any(option is not None for option in options) and not any(options):
            raise ValueError("output_from and intermediate_output_from are both empty: name at least one participant")
        intermediates = _resolve_all("intermediate_output_from", self.intermediate_output_from, participants)
        if self.output_from is not None:
            outputs = _resolve_all("output_from", self.output_from, participants)
        elif isinstance(self.intermediate_output_from, str):
            outputs = []
        else:
            outputs = [name for name in default if name not in intermediates]
        if self.intermediate_output_from == "all_other":
            intermediates = [name for name in participants if name not in outputs]
        both = [name for name in outputs if name in intermediates]
        if both:
            named = ", ".join(map(repr, both))
            raise ValueError(f"output_from and intermediate_output_from both name {named}: name each in one of them")
        return outputs, intermediates


def _check_option(name: str, given: object, words: tuple[str, ...]) -> None:
    if isinstance(given, str) and given not in words:
        known = " or ".join(map(repr, words))
        other = "; 'all_other' is for intermediate_output_from" if given == "all_other" else ""
        raise ValueError(f"{name} must be a list of participants or {known}, not {given!r}{other}")


def _resolve_all(option: str, chosen: IntermediateOutputFrom, participants: Sequence[str]) -> list[str]:
    """Return the chosen names. Those of "all_other" depend on the other option."""
    if isinstance(chosen, str):
        return list(participants) if chosen == "all" else []
    names = [resolve_name(each, participants, option=option) for each in chosen or ()]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{option} names {name!r} twice")
    return names


class OrchestrationBuilder:
    """Base class of the builders."""

    def __init__(
        self,
        *,
        name: str | None = None,
        checkpoint_storage: CheckpointStorage | str | None = None,
        termination_condition: TerminationCondition | None = None,
        max_iterations: int | None = None,
        output_from: OutputFrom = None,
        intermediate_output_from: IntermediateOutputFrom = None,
    ) -> None:
        check_condition(termination_condition)
        if max_iterations is not None and max_iterations < 1:
            raise ValueError(f"max_iterations must be 1 or more, not {max_iterations!r}")
        self._name = name
        self._storage = checkpoint_storage
        self._termination = termination_condition
        self._max_iterations = max_iterations
        self._outputs = Outputs(output_from, intermediate_output_from)
        self._reviewed: Sequence[ParticipantRef] | None = ()

    def with_request_info(self, *, agents: Sequence[ParticipantRef] | None = None) -> Self:
        """Ask a person to review each turn of these agents, or of all agents, before it takes effect."""
        if isinstance(agents, str):
            raise TypeError(f"agents must be a list of agents or names, not {agents!r}")
        for agent in agents or ():
            participant_name(agent)
        self._reviewed = agents or None
        return self

    def _reviewed_names(self, participants: Sequence[Participant]) -> frozenset[str]:
        """Return the names of the agents whose turns are reviewed. Raises ValueError if one takes no part."""
        names = [participant_name(each) for each in participants if not isinstance(each, Executor)]
        chosen = names if self._reviewed is None else self._reviewed
        return frozenset(resolve_name(each, names, option="with_request_info") for each in chosen)

    def with_termination_condition(self, termination_condition: TerminationCondition) -> Self:
        """Set the condition that ends the conversation, like `termination_condition=`."""
        check_condition(termination_condition)
        self._termination = termination_condition
        return self

    def with_checkpointing(self, checkpoint_storage: CheckpointStorage | str) -> Self:
        """Set the checkpoint storage, like `checkpoint_storage=`."""
        self._storage = checkpoint_storage
        return self

    def _workflow_builder(
        self,
        start: Executor,
        outputs: Sequence[Executor],
        intermediates: Sequence[Executor],
        *,
        turns: int | None = None,
        condition: TerminationCondition | None = None,
        speakers: int = 1,
        **options: Any,
    ) -> WorkflowBuilder:
        """Return a workflow builder with the shared options.

        Without `max_iterations`, the limit allows `turns` turns and those that `condition` can need. A condition that
        is a function has no known limit, so the default applies.
        """
        limits = [limit for limit in (turns, turn_limit(condition, speakers)) if limit is not None]
        supersteps = _SUPERSTEPS_PER_TURN * min(limits, default=0) + _EXTRA_SUPERSTEPS
        return WorkflowBuilder(
            name=self._name,
            max_iterations=self._max_iterations or max(DEFAULT_MAX_ITERATIONS, supersteps),
            start_executor=start,
            checkpoint_storage=self._storage,
            output_from=list(outputs),
            intermediate_output_from=list(intermediates),
            **options,
        )

    def _build_star(
        self,
        orchestrator: Executor,
        nodes: Sequence[Executor],
        turns: int | None,
        condition: TerminationCondition | None,
    ) -> Workflow:
        """Connect an orchestrator with each participant, in both directions."""
        outputs, intermediates = self._outputs.resolve(nodes, always=[orchestrator])
        builder = self._workflow_builder(
            orchestrator, outputs, intermediates, turns=turns, condition=condition, speakers=len(nodes)
        )
        for node in nodes:
            builder.add_edge(orchestrator, node).add_edge(node, orchestrator)
        return builder.build()
