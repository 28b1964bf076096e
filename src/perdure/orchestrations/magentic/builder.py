"""`MagenticBuilder`: a manager that plans, and a team that follows the plan."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final, Self

from perdure import Executor, Workflow, WorkflowMessage
from perdure.orchestrations.builder import UNSET, OrchestrationBuilder
from perdure.orchestrations.magentic.manager import MagenticManagerBase, StandardMagenticManager
from perdure.orchestrations.magentic.orchestrator import MagenticAgentExecutor, MagenticOrchestrator
from perdure.orchestrations.magentic.types import MagenticResetSignal
from perdure.orchestrations.participants import ParticipantRegistry, check_participants
from perdure.orchestrations.request_info import make_nodes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from perdure import CheckpointStorage, SupportsAgentRun
    from perdure.orchestrations.builder import IntermediateOutputFrom, OutputFrom
    from perdure.orchestrations.magentic.types import MagenticTaskLedger
    from perdure.orchestrations.participants import Participant
    from perdure.orchestrations.termination import TerminationCondition

logger = logging.getLogger(__name__)

_MAX_STALL_COUNT: Final = 3


class MagenticBuilder(OrchestrationBuilder):
    """Builds a workflow of a manager and its team.

    Give one manager: `manager` or `manager_factory` with its own limits and prompts; or `manager_agent` or
    `manager_agent_factory`, for a `StandardMagenticManager` with the limits and prompts given here. With
    `enable_plan_review`, a person reviews each plan (`MagenticPlanReviewRequest`). `max_iterations` limits the
    supersteps since the last input; by default it allows the other limits.
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
        max_stall_count: int = _MAX_STALL_COUNT,
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
        super().__init__(
            name=name,
            checkpoint_storage=checkpoint_storage,
            termination_condition=termination_condition,
            max_iterations=max_iterations,
            output_from=output_from,
            intermediate_output_from=intermediate_output_from,
        )
        self._participants = check_participants(participants, needs_names=True)
        self._make_manager = _manager_factory(
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
        self._enable_plan_review = enable_plan_review

    def with_plan_review(self, enable: bool = True) -> Self:  # noqa: FBT001, FBT002 - the documented signature
        """Ask a person to review each plan, like `enable_plan_review=`."""
        self._enable_plan_review = enable
        return self

    def build(self) -> Workflow:
        """Connect the manager with the team. Raises ValueError if there is no manager."""
        if self._make_manager is None:
            raise ValueError(
                "No manager configured: give MagenticBuilder a manager, manager_factory, manager_agent or "
                "manager_agent_factory"
            )
        manager = _check_manager(self._make_manager())
        nodes = make_nodes(self._participants, reviews=self._reviews, kind=MagenticAgentExecutor)
        orchestrator = MagenticOrchestrator(
            manager,
            ParticipantRegistry(nodes),
            require_plan_signoff=self._enable_plan_review,
            termination_condition=self._termination,
            heeds_reset=[node.id for node in nodes if _handles_reset(node)],
        )
        outputs, intermediates = self._outputs.resolve(nodes, always=[orchestrator])
        builder = self._workflow_builder(
            orchestrator,
            outputs,
            intermediates,
            turns=manager.max_round_count,
            condition=self._termination,
            speakers=len(nodes),
        )
        for node in nodes:
            builder.add_edge(orchestrator, node).add_edge(node, orchestrator)
        return builder.build()


def _manager_factory(
    *,
    manager: MagenticManagerBase | None,
    manager_factory: Callable[[], MagenticManagerBase] | None,
    manager_agent: SupportsAgentRun | None,
    manager_agent_factory: Callable[[], SupportsAgentRun] | None,
    options: dict[str, Any],
) -> Callable[[], MagenticManagerBase] | None:
    """Return a function that makes the manager. Raises ValueError if more than one way is given."""
    given = [each for each in (manager, manager_factory, manager_agent, manager_agent_factory) if each is not None]
    if len(given) > 1:
        raise ValueError(
            "Exactly one of manager, manager_factory, manager_agent and manager_agent_factory can be given"
        )
    if manager_agent is not None:
        return lambda: StandardMagenticManager(manager_agent, **options)
    if manager_agent_factory is not None:
        return lambda: StandardMagenticManager(manager_agent_factory(), **options)
    if given and any(value not in (None, _MAX_STALL_COUNT) for value in options.values()):
        logger.warning("the manager has its own prompts and limits: those given to MagenticBuilder are ignored")
    return manager_factory if manager is None else lambda: manager


def _check_manager(manager: object) -> MagenticManagerBase:
    if not isinstance(manager, MagenticManagerBase):
        raise TypeError(f"a manager must be a MagenticManagerBase, not a {type(manager).__name__}: {manager!r}")
    return manager


def _handles_reset(node: Executor) -> bool:
    return node.can_handle(WorkflowMessage(MagenticResetSignal(), source_id=""))
