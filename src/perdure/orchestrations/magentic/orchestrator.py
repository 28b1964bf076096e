"""`MagenticBuilder` and its orchestrator, which leads a team along a plan and replans when the team is stuck."""

from __future__ import annotations

import functools
import logging
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self, TypeAlias, TypeVar, cast

from typing_extensions import Unpack

from perdure import (
    AgentExecutor,
    AgentExecutorResponse,
    AgentResponse,
    AgentResponseUpdate,
    Log,
    Message,
    WorkflowContext,
    WorkflowEvent,
    handler,
    register_type,
    response_handler,
)
from perdure.orchestrations.builder import OrchestrationBuilder, OrchestrationOptions
from perdure.orchestrations.magentic.manager import (
    MagenticAnswerError,
    MagenticManagerBase,
    ManagerOptions,
    StandardMagenticManager,
    ask_until_valid,
    check_ledger,
    require_words,
)
from perdure.orchestrations.magentic.types import (
    MAGENTIC_MANAGER_NAME,
    MagenticContext,
    MagenticOrchestratorEvent,
    MagenticOrchestratorEventType,
    MagenticPlanReviewRequest,
    MagenticPlanReviewResponse,
    MagenticProgressLedger,
    MagenticResetSignal,
)
from perdure.orchestrations.orchestrator import BaseGroupChatOrchestrator
from perdure.orchestrations.participants import (
    GroupChatContext,
    GroupChatResponseMessage,
    GroupChatWorkflowContextOutT,
    Participant,
    ParticipantRegistry,
    can_handle,
    check_participants,
    is_from_history,
    new_messages,
    shared_messages,
)
from perdure.orchestrations.request_info import make_nodes
from perdure.orchestrations.termination import TerminationCondition, should_terminate

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

    from perdure import SupportsAgentRun, Workflow

T = TypeVar("T")
logger = logging.getLogger(__name__)


@dataclass
class MagenticState:
    """State of a task. `history` has the messages since the last reset, `conversation` has all messages.

    `kept` is the manager's state for this task. `idle_resets` counts the resets since a participant or person last
    acted. `tasks` has the input and the final answer of every task of the run, including this one.
    """

    task: str
    round_count: int = 0
    stall_count: int = 0
    reset_count: int = 0
    plan: Message | None = None
    progress: MagenticProgressLedger | None = None
    history: Log[Message] = field(default_factory=Log[Message])
    conversation: Log[Message] = field(default_factory=Log[Message])
    kept: dict[str, Any] | None = None
    idle_resets: int = 0
    is_finished: bool = False
    tasks: Log[Message] = field(default_factory=Log[Message])

    @property
    def current_plan(self) -> Message:
        """The plan. Every task has one after its start."""
        assert self.plan is not None, "a task begins with its plan"
        return self.plan

    def add_messages(self, messages: Sequence[Message]) -> None:
        """Add messages of a participant or a person."""
        self.history.extend(messages)
        self.conversation.extend(messages)
        self.idle_resets = 0

    def update_progress(self, progress: MagenticProgressLedger) -> None:
        """Take a ledger and count stalls: a round with progress undoes one stall."""
        self.progress = progress
        is_stuck = progress.is_in_loop.answer or not progress.is_progress_being_made.answer
        self.stall_count = self.stall_count + 1 if is_stuck else max(0, self.stall_count - 1)

    def context(self, team: Mapping[str, str], *more: Message) -> MagenticContext:
        """Return a context for the manager. It is a copy, since messages in a log must not change."""
        return MagenticContext(
            task=self.task,
            chat_history=deepcopy([*self.history, *more]),
            participant_descriptions=dict(team),
            round_count=self.round_count,
            stall_count=self.stall_count,
            reset_count=self.reset_count,
        )


register_type(MagenticState, name="perdure:MagenticState")

MagenticRunContext: TypeAlias = WorkflowContext[
    GroupChatWorkflowContextOutT | MagenticResetSignal, AgentResponse | AgentResponseUpdate
]
"""Context of the orchestrator's handlers."""

_TASK: Final = "task"
# Messages that came while a task was in progress. Each is a task of its own.
_QUEUE: Final = "queue"
# Limit of resets in a row without any turn, for a team that has no other limits.
_RESETS_WITHOUT_ACTION_MAX: Final = 10


class MagenticOrchestrator(BaseGroupChatOrchestrator):
    """Asks the manager for a plan, asks for progress after each turn, and instructs the next speaker.

    A message after the end of a task is a new task, with counts and a conversation of its own. One that comes while a
    task is in progress waits for its end. The task is in the orchestrator's private scope; each handler loads it first
    and saves it last. The manager's answers are recorded, so a resumed run does not ask again. `heeds_reset` names the
    participants that take a `MagenticResetSignal`.
    """

    keeps_conversation: ClassVar[bool] = True

    MANAGER_NAME: ClassVar[str] = "magentic_orchestrator"
    TERMINATION_CONDITION_MET_MESSAGE: ClassVar[str] = "Workflow terminated due to reaching its termination condition."
    MAX_ROUNDS_MET_MESSAGE: ClassVar[str] = "Workflow terminated due to reaching maximum round count."
    MAX_RESETS_MET_MESSAGE: ClassVar[str] = "Workflow terminated due to reaching maximum reset count."

    def __init__(
        self,
        manager: MagenticManagerBase,
        participant_registry: ParticipantRegistry,
        *,
        require_plan_signoff: bool = False,
        termination_condition: TerminationCondition | None = None,
        heeds_reset: Collection[str] = (),
    ) -> None:
        super().__init__(
            self.MANAGER_NAME,
            participant_registry,
            name=MAGENTIC_MANAGER_NAME,
            max_rounds=manager.max_round_count,
            termination_condition=termination_condition,
        )
        self._manager = manager
        self._initial_state = manager._get_initial_state()  # pyright: ignore[reportPrivateUsage] - hidden from subclasses of users
        self._require_plan_signoff = require_plan_signoff
        self._heeds_reset = tuple(heeds_reset)

    def _has_started(self, ctx: WorkflowContext[Any, Any]) -> bool:
        """Return True if the run has had a task."""
        return ctx.scope().has(_TASK)

    async def _handle_messages(self, messages: list[Message], ctx: Any) -> None:
        """Start a task, or queue it while another is in progress. Raises ValueError if a first task has no text."""
        current: MagenticState | None = ctx.scope().get(_TASK)
        if current is None or current.is_finished:
            await self._start_task(messages, current, ctx)
        elif _task_text(messages):
            ctx.scope().set(_QUEUE, [*ctx.scope().get(_QUEUE, ()), messages])
        else:
            await ctx.add_event(WorkflowEvent.warning("a message without text came during a task: it is ignored"))

    async def _start_task(self, messages: Sequence[Message], previous: MagenticState | None, ctx: Any) -> None:
        """Plan a task. The manager sees the inputs and answers of earlier tasks before it.

        A team that is asked again without a new text works on its task again.
        """
        tasks = Log[Message]() if previous is None else previous.tasks
        new = new_messages(messages, tasks)
        text = _task_text(new) or ("" if previous is None else previous.task)
        if not text:
            raise ValueError("the task of a Magentic workflow must have text")
        tasks.extend(new)
        task = MagenticState(text, history=Log(tasks), conversation=Log(new), tasks=tasks)
        if not await self._finish_if_terminated(task, ctx):
            await self._make_plan(task, ctx, MagenticOrchestratorEventType.PLAN_CREATED)
            if await self._start_plan(task, ctx, is_stalled=False):
                await self._advance(task, ctx)
        await self._save(task, ctx)

    async def _save(self, task: MagenticState, ctx: Any) -> None:
        """Store the task. If it is finished, start the next queued one."""
        ctx.scope().set(_TASK, task)
        queue: list[list[Message]] = ctx.scope().get(_QUEUE, [])
        if task.is_finished and queue:
            ctx.scope().set(_QUEUE, queue[1:])
            await self._start_task(queue[0], task, ctx)

    async def _handle_response(self, response: AgentExecutorResponse | GroupChatResponseMessage, ctx: Any) -> None:
        """Record a participant's answer, send it to the others, and continue."""
        task, speaker = _load_task(ctx), ctx.get_source_executor_id()
        messages = shared_messages(self._process_participant_response(response), speaker)
        task.add_messages(messages)
        others = [name for name in self._participant_registry.participants if name != speaker]
        if messages:
            await self._broadcast_messages_to_participants(messages, ctx, others)
        if not await self._finish_if_terminated(task, ctx):
            await self._advance(task, ctx)
        await self._save(task, ctx)

    @response_handler
    async def handle_plan_review_response(
        self, original_request: MagenticPlanReviewRequest, response: MagenticPlanReviewResponse, ctx: MagenticRunContext
    ) -> None:
        """Follow the approved plan; or make another and ask for its review."""
        task = _load_task(ctx)
        task.history.append(task.current_plan)
        task.add_messages(response.review)
        if response.review:
            await self._make_plan(task, ctx, MagenticOrchestratorEventType.REPLANNED)
            await self._ask_for_review(task, ctx, is_stalled=original_request.is_stalled)
        else:
            ctx.require_approved(task.current_plan.text)
            await self._advance(task, ctx)
        await self._save(task, ctx)

    async def _advance(self, task: MagenticState, ctx: MagenticRunContext) -> None:
        """Check the progress, then instruct the next speaker or end the task."""
        while not await self._finish_at_limit(task, ctx):
            task.round_count += 1
            check = functools.partial(check_ledger, names=self._participant_registry.participants)
            progress = await self._ask_manager(
                task, ctx, "progress ledger", self._manager.create_progress_ledger, check, may_raise=True
            )
            task.update_progress(progress)
            await self._emit(ctx, MagenticOrchestratorEventType.PROGRESS_LEDGER_UPDATED, progress)
            if progress.is_request_satisfied.answer:
                answer = await self._ask_manager(
                    task, ctx, "final answer", self._manager.prepare_final_answer, require_words
                )
                await self._finish(task, answer, ctx)
                return
            if task.stall_count <= self._manager.max_stall_count:
                await self._instruct(task, progress, ctx)
                return
            if not await self._restart(task, ctx):
                return

    async def _instruct(self, task: MagenticState, ledger: MagenticProgressLedger, ctx: Any) -> None:
        """Instruct the next speaker."""
        instruction, speaker = str(ledger.instruction_or_question.answer), str(ledger.next_speaker.answer)
        task.history.append(Message("assistant", [instruction], author_name=MAGENTIC_MANAGER_NAME))
        self._round_index = task.round_count
        await self._send_request_to_participant(speaker, ctx, additional_instruction=instruction)

    async def _restart(self, task: MagenticState, ctx: MagenticRunContext) -> bool:
        """Reset the team and replan. Return True if the team may follow the plan now. Raises MagenticAnswerError."""
        is_limited = self._manager.max_reset_count is not None or self._manager.max_round_count is not None
        if task.idle_resets >= _RESETS_WITHOUT_ACTION_MAX and not is_limited:
            raise MagenticAnswerError(
                f"the manager found the team stuck {_RESETS_WITHOUT_ACTION_MAX + 1} times in a row without a turn in "
                f"between: with max_stall_count={self._manager.max_stall_count} one ledger without progress causes a "
                "reset. Set a larger max_stall_count, or set max_reset_count to end the task"
            )
        task.stall_count = 0
        task.reset_count += 1
        task.idle_resets += 1
        for name in self._heeds_reset:
            await ctx.send_message(MagenticResetSignal(), target_id=name)
        await self._make_plan(task, ctx, MagenticOrchestratorEventType.REPLANNED)
        # Clear the history last: the manager needs it for the new plan.
        task.history = Log()
        return await self._start_plan(task, ctx, is_stalled=True)

    async def _make_plan(
        self, task: MagenticState, ctx: MagenticRunContext, event_type: MagenticOrchestratorEventType
    ) -> None:
        is_first = event_type is MagenticOrchestratorEventType.PLAN_CREATED
        make = self._manager.plan if is_first else self._manager.replan
        task.plan = await self._ask_manager(task, ctx, "plan", make, require_words)
        await self._emit(ctx, event_type, task.plan)

    async def _ask_manager(
        self,
        task: MagenticState,
        ctx: MagenticRunContext,
        what: str,
        ask: Callable[[MagenticContext], Awaitable[T]],
        check: Callable[[T], T],
        *,
        may_raise: bool = False,
    ) -> T:
        """Ask the manager in a step. A resumed run gets the recorded answer and the manager's state of that time."""
        manager, team = self._manager, self._participant_registry.participants

        async def ask_once(corrections: list[Message]) -> T:
            # The manager may have worked on another task since the last question.
            manager.on_checkpoint_restore(deepcopy(self._initial_state if task.kept is None else task.kept))
            answer = await ask(task.context(team, *corrections))
            task.kept = deepcopy(manager.on_checkpoint_save())
            return answer

        async def work() -> tuple[T, dict[str, Any] | None]:
            attempts = manager.progress_ledger_retry_count
            return await ask_until_valid(ask_once, check, what=what, attempts=attempts, may_raise=may_raise), task.kept

        answer, task.kept = await ctx.step(what, work)
        return answer

    async def _start_plan(self, task: MagenticState, ctx: MagenticRunContext, *, is_stalled: bool) -> bool:
        """Return True if the team may follow the plan now. Otherwise ask a person to review it."""
        if self._require_plan_signoff:
            await self._ask_for_review(task, ctx, is_stalled=is_stalled)
            return False
        task.history.append(task.current_plan)
        return True

    async def _ask_for_review(self, task: MagenticState, ctx: MagenticRunContext, *, is_stalled: bool) -> None:
        plan = task.current_plan
        request_id = f"plan-{ctx.idempotency_key}"
        request = MagenticPlanReviewRequest(plan, task.progress, is_stalled, request_id)
        await ctx.request_info(request, MagenticPlanReviewResponse, request_id=request_id, approves=plan.text)

    async def _finish_at_limit(self, task: MagenticState, ctx: MagenticRunContext) -> bool:
        """End the task if it reached its round or reset limit. Return True if it ended."""
        manager = self._manager
        for limit, count, text in (
            (manager.max_round_count, task.round_count, self.MAX_ROUNDS_MET_MESSAGE),
            (manager.max_reset_count, task.reset_count, self.MAX_RESETS_MET_MESSAGE),
        ):
            if limit is not None and count >= limit:
                await self._finish(task, self._create_completion_message(text), ctx)
                return True
        return False

    async def _finish_if_terminated(self, task: MagenticState, ctx: Any) -> bool:
        """End the task if the termination condition holds. Return True if it ended."""
        if not await should_terminate(self._termination_condition, task.conversation):
            return False
        await self._finish(task, self._create_completion_message(self.TERMINATION_CONDITION_MET_MESSAGE), ctx)
        return True

    async def _finish(self, task: MagenticState, final_message: Message, ctx: MagenticRunContext) -> None:
        task.is_finished = True
        task.conversation.append(final_message)
        task.tasks.append(final_message)
        await self._yield_completion(cast("GroupChatContext", ctx), final_message)

    async def _emit(
        self,
        ctx: MagenticRunContext,
        event_type: MagenticOrchestratorEventType,
        content: Message | MagenticProgressLedger,
    ) -> None:
        data = MagenticOrchestratorEvent(event_type, content)
        await ctx.add_event(WorkflowEvent("magentic_orchestrator", data, executor_id=self.id))


def _task_text(messages: Sequence[Message]) -> str:
    """Return the text of a task: the texts of users, or of everybody if no user said anything.

    A team inside a group chat gets the messages of the other participants too. Its manager sees all of them.
    """
    said = [message for message in messages if not is_from_history(message)]
    by_users = [message for message in said if message.role == "user" and message.text.strip()]
    texts = [message.text for message in by_users or said]
    return "\n\n".join(text for text in texts if text.strip())


def _load_task(ctx: WorkflowContext[Any, Any]) -> MagenticState:
    """Return a copy of the run's task."""
    task: MagenticState | None = ctx.scope().get(_TASK)
    assert task is not None, "participants are asked, and plans reviewed, when there is a task"
    return task


class MagenticAgentExecutor(AgentExecutor):
    """Runs an agent of a Magentic team. A reset renews its session."""

    @handler
    async def handle_magentic_reset(self, signal: MagenticResetSignal, ctx: WorkflowContext) -> None:
        """Renew the session."""
        del signal, ctx
        self.renew_session()


class MagenticOptions(OrchestrationOptions, ManagerOptions, total=False):
    """Options of `MagenticBuilder` that its base class or the standard manager take."""


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
        enable_plan_review: bool = False,
        **options: Unpack[MagenticOptions],
    ) -> None:
        is_managers = ManagerOptions.__annotations__.__contains__
        manager_options: Any = {name: value for name, value in options.items() if is_managers(name)}
        shared: Any = {name: value for name, value in options.items() if not is_managers(name)}
        super().__init__(**shared)
        self._participants = check_participants(participants, needs_names=True)
        given = [each for each in (manager, manager_factory, manager_agent, manager_agent_factory) if each is not None]
        if len(given) > 1:
            raise ValueError(
                "Exactly one of manager, manager_factory, manager_agent and manager_agent_factory can be given"
            )
        if manager_agent is not None:
            self._make_manager = lambda: StandardMagenticManager(manager_agent, **manager_options)
        elif manager_agent_factory is not None:
            self._make_manager = lambda: StandardMagenticManager(manager_agent_factory(), **manager_options)
        else:
            self._make_manager = manager_factory if manager is None else lambda: manager
            if given and any(value is not None for value in manager_options.values()):
                logger.warning("the manager has its own prompts and limits: those given to MagenticBuilder are ignored")
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
        manager = self._make_manager()
        if not isinstance(manager, MagenticManagerBase):  # pyright: ignore[reportUnnecessaryIsInstance] - users' code is not always checked
            raise TypeError(f"a manager must be a MagenticManagerBase, not a {type(manager).__name__}: {manager!r}")
        nodes = make_nodes(
            self._participants, reviewed=self._reviewed_names(self._participants), kind=MagenticAgentExecutor
        )
        orchestrator = MagenticOrchestrator(
            manager,
            ParticipantRegistry(nodes),
            require_plan_signoff=self._enable_plan_review,
            termination_condition=self._termination,
            heeds_reset=[node.id for node in nodes if can_handle(node, MagenticResetSignal())],
        )
        return self._build_star(orchestrator, nodes, turns=manager.max_round_count, condition=self._termination)
