"""`MagenticBuilder`: a manager that plans, and a team that follows the plan."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from perdure import Executor, Workflow, WorkflowBuilder, WorkflowMessage
from perdure.orchestrations.magentic.manager import MagenticManagerBase, StandardMagenticManager
from perdure.orchestrations.magentic.orchestrator import MagenticAgentExecutor, MagenticOrchestrator
from perdure.orchestrations.magentic.types import MagenticResetSignal
from perdure.orchestrations.outputs import UNSET, Outputs, checked_iterations, iterations
from perdure.orchestrations.participants import ParticipantRegistry, checked_participants, name_of
from perdure.orchestrations.request_info import NO_REVIEWS, AgentApprovalExecutor, Reviews
from perdure.orchestrations.termination import require_condition

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from perdure import CheckpointStorage, SupportsAgentRun
    from perdure.orchestrations.magentic.types import MagenticTaskLedger
    from perdure.orchestrations.outputs import IntermediateOutputFrom, OutputFrom
    from perdure.orchestrations.participants import Named, Participant
    from perdure.orchestrations.termination import TerminationCondition

logger = logging.getLogger(__name__)

_STALLS: Final = 3


class MagenticBuilder:
    """Describe a team and its manager, and `build` a workflow of them.

    The manager is one of four: a `manager` or a `manager_factory`, which bring their own limits and prompts; or a
    `manager_agent` or a `manager_agent_factory`, for which a `StandardMagenticManager` is made with those given here.
    With `enable_plan_review` a person is asked about each plan, by a `MagenticPlanReviewRequest`. `max_iterations` are
    the supersteps since the last input; if it is not given, there are enough for the other limits.
    """

    def __init__(
        self,
        *,
        participants: Sequence[Participant],
        manager: MagenticManagerBase | None = None,
        manager_factory: Callable[[], MagenticManagerBase] | None = None,
        manager_agent: SupportsAgentRun | None = None,
        manager_agent_factory: Callable[[], SupportsAgentRun] | None = None,
        task_ledger: MagenticTaskLedger | None = None,
        task_ledger_facts_prompt: str | None = None,
        task_ledger_plan_prompt: str | None = None,
        task_ledger_full_prompt: str | None = None,
        task_ledger_facts_update_prompt: str | None = None,
        task_ledger_plan_update_prompt: str | None = None,
        progress_ledger_prompt: str | None = None,
        final_answer_prompt: str | None = None,
        max_stall_count: int = _STALLS,
        max_reset_count: int | None = None,
        max_round_count: int | None = None,
        progress_ledger_retry_count: int | None = None,
        enable_plan_review: bool = False,
        termination_condition: TerminationCondition | None = None,
        checkpoint_storage: CheckpointStorage | str | None = None,
        output_from: OutputFrom = UNSET,
        intermediate_output_from: IntermediateOutputFrom = None,
        max_iterations: int | None = None,
        name: str | None = None,
    ) -> None:
        self._participants = checked_participants(participants, needs_names=True)
        self._make_manager = _manager_maker(
            manager=manager,
            manager_factory=manager_factory,
            manager_agent=manager_agent,
            manager_agent_factory=manager_agent_factory,
            options={
                "task_ledger": task_ledger,
                "task_ledger_facts_prompt": task_ledger_facts_prompt,
                "task_ledger_plan_prompt": task_ledger_plan_prompt,
                "task_ledger_full_prompt": task_ledger_full_prompt,
                "task_ledger_facts_update_prompt": task_ledger_facts_update_prompt,
                "task_ledger_plan_update_prompt": task_ledger_plan_update_prompt,
                "progress_ledger_prompt": progress_ledger_prompt,
                "final_answer_prompt": final_answer_prompt,
                "max_stall_count": max_stall_count,
                "max_reset_count": max_reset_count,
                "max_round_count": max_round_count,
                "progress_ledger_retry_count": progress_ledger_retry_count,
            },
        )
        require_condition(termination_condition)
        self._termination_condition = termination_condition
        self._enable_plan_review = enable_plan_review
        self._storage = checkpoint_storage
        self._outputs = Outputs.of(output_from, intermediate_output_from)
        self._max_iterations = checked_iterations(max_iterations)
        self._name = name
        self._reviews = NO_REVIEWS

    def with_request_info(self, *, agents: Sequence[Named] | None = None) -> MagenticBuilder:
        """Ask a person after each turn of these agents, or of all, before the manager hears of it."""
        self._reviews = Reviews.of(agents)
        return self

    def with_plan_review(self, enable: bool = True) -> MagenticBuilder:  # noqa: FBT001, FBT002 - the documented signature
        """Ask a person about each plan. The same as `enable_plan_review=`."""
        self._enable_plan_review = enable
        return self

    def with_checkpointing(self, checkpoint_storage: CheckpointStorage | str) -> MagenticBuilder:
        """Say where checkpoints go. The same as `checkpoint_storage=`."""
        self._storage = checkpoint_storage
        return self

    def with_termination_condition(self, termination_condition: TerminationCondition) -> MagenticBuilder:
        """End when a function of the conversation says so. The same as `termination_condition=`."""
        require_condition(termination_condition)
        self._termination_condition = termination_condition
        return self

    def build(self) -> Workflow:
        """Make a workflow of the manager and the team. Raises ValueError if there is no manager."""
        if self._make_manager is None:
            raise ValueError(
                "No manager configured: give MagenticBuilder a manager, manager_factory, manager_agent or "
                "manager_agent_factory"
            )
        manager = _checked_manager(self._make_manager())
        reviewed = self._reviews.among(self._participants)
        nodes = [_node_of(each, is_reviewed=name_of(each) in reviewed) for each in self._participants]
        orchestrator = MagenticOrchestrator(
            manager,
            ParticipantRegistry(nodes),
            require_plan_signoff=self._enable_plan_review,
            termination_condition=self._termination_condition,
            heeds_reset=[node.id for node in nodes if _heeds_reset(node)],
        )
        outputs, intermediates = self._outputs.resolve(nodes, always=[orchestrator])
        builder = WorkflowBuilder(
            max_iterations=iterations(
                self._max_iterations,
                turns=manager.max_round_count,
                condition=self._termination_condition,
                speakers=len(nodes),
            ),
            name=self._name,
            start_executor=orchestrator,
            checkpoint_storage=self._storage,
            output_from=outputs,
            intermediate_output_from=intermediates or None,
        )
        for node in nodes:
            builder.add_edge(orchestrator, node).add_edge(node, orchestrator)
        return builder.build()


def _manager_maker(
    *,
    manager: MagenticManagerBase | None,
    manager_factory: Callable[[], MagenticManagerBase] | None,
    manager_agent: SupportsAgentRun | None,
    manager_agent_factory: Callable[[], SupportsAgentRun] | None,
    options: dict[str, Any],
) -> Callable[[], MagenticManagerBase] | None:
    """How a manager is made when the workflow is built. Raises ValueError if there is more than one way."""
    given = [each for each in (manager, manager_factory, manager_agent, manager_agent_factory) if each is not None]
    if len(given) > 1:
        raise ValueError(
            "Exactly one of manager, manager_factory, manager_agent and manager_agent_factory can be given"
        )
    if manager_agent is not None:
        return lambda: StandardMagenticManager(manager_agent, **options)
    if manager_agent_factory is not None:
        return lambda: StandardMagenticManager(manager_agent_factory(), **options)
    if given and any(value not in (None, _STALLS) for value in options.values()):
        logger.warning("a manager brings its own prompts and limits: those that MagenticBuilder was given are ignored")
    return manager_factory if manager is None else lambda: manager


def _checked_manager(manager: object) -> MagenticManagerBase:
    if not isinstance(manager, MagenticManagerBase):
        raise TypeError(f"a manager is a MagenticManagerBase, not a {type(manager).__name__}: {manager!r}")
    return manager


def _node_of(participant: Participant, *, is_reviewed: bool) -> Executor:
    if isinstance(participant, Executor):
        return participant
    if is_reviewed:
        return AgentApprovalExecutor(participant, kind=MagenticAgentExecutor)
    return MagenticAgentExecutor(participant)


def _heeds_reset(node: Executor) -> bool:
    return node.can_handle(WorkflowMessage(MagenticResetSignal(), source_id=""))
