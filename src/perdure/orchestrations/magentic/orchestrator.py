"""`MagenticOrchestrator`: a team that follows a plan, and makes another when it does not get on."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias, cast

from typing_extensions import override

from perdure import (
    AgentExecutor,
    AgentExecutorRequest,
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
from perdure.orchestrations.magentic.manager import Asking, MagenticAnswerError
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
from perdure.orchestrations.messages import GroupChatWorkflowContextOutT, spoken
from perdure.orchestrations.orchestrator import (
    BaseGroupChatOrchestrator,
    GroupChatContext,
    GroupChatRequestMessage,
    GroupChatRequestSentEvent,
    GroupChatResponseMessage,
    GroupChatResponseReceivedEvent,
)
from perdure.orchestrations.termination import is_over

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from perdure.orchestrations.magentic.manager import MagenticManagerBase
    from perdure.orchestrations.participants import ParticipantRegistry
    from perdure.orchestrations.termination import TerminationCondition


@dataclass
class MagenticState:
    """A task under way. `history` is what was said since the last reset, `conversation` all that was said.

    `kept` is what the manager keeps for this task; `idle_resets` are the resets since somebody has acted.
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

    @property
    def plan_made(self) -> Message:
        """The plan, which is there when the task has begun."""
        assert self.plan is not None, "a task begins with its plan"
        return self.plan

    def hear(self, said: Sequence[Message]) -> None:
        """Add what a participant or a person has said: somebody has acted."""
        self.history.extend(said)
        self.conversation.extend(said)
        self.idle_resets = 0

    def count_reset(self) -> None:
        """Count a reset, and no stalls. What was said is still there: another plan is made of it."""
        self.stall_count = 0
        self.reset_count += 1
        self.idle_resets += 1

    def forget(self) -> None:
        """Forget what was said: it did not lead on."""
        self.history = Log()

    def judge(self, progress: MagenticProgressLedger) -> None:
        """Take a ledger, and count whether the team is stuck: each round that gets on makes up for one that did not."""
        self.progress = progress
        is_stuck = progress.is_in_loop.answer or not progress.is_progress_being_made.answer
        self.stall_count = self.stall_count + 1 if is_stuck else max(0, self.stall_count - 1)

    def context(self, team: Mapping[str, str], *more: Message) -> MagenticContext:
        """What a manager is shown. It is a copy: what is in a log must not be changed."""
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
"""What a handler of the orchestrator is given."""

_TASK: Final = "task"
_IDLE_RESETS_MAX: Final = 10
"""How often a team without limits begins anew, while nobody acts, until that counts as a failure."""


class MagenticOrchestrator(BaseGroupChatOrchestrator):
    """Has a plan made, asks the manager after each turn where the team stands, and hands the word on.

    The task is in the orchestrator's private scope: a handler reads it when it begins, and keeps it when it ends. Each
    answer of the manager is recorded when it is there: a process that goes on with the run asks for nothing again.
    `heeds_reset` are the participants that take a `MagenticResetSignal`.
    """

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
        self._asking = Asking(manager, participant_registry.participants)
        self._require_plan_signoff = require_plan_signoff
        self._heeds_reset = tuple(heeds_reset)

    @override
    async def _handle_messages(self, messages: list[Message], ctx: Any) -> None:
        """Take a task, and plan. Raises ValueError for what is no task, RuntimeError if there is one already."""
        known: MagenticState | None = ctx.scope().get(_TASK)
        if known is not None:
            raise RuntimeError(_refusal(known))
        task = MagenticState(_task_of(messages))
        task.hear(messages)
        if not await self._is_over(task, ctx):
            await self._make_plan(task, ctx, MagenticOrchestratorEventType.PLAN_CREATED)
            if await self._is_allowed(task, ctx, is_stalled=False):
                await self._lead(task, ctx)
        ctx.scope().set(_TASK, task)

    @handler
    @override
    async def handle_participant_response(
        self, response: AgentExecutorResponse | GroupChatResponseMessage, ctx: GroupChatContext
    ) -> None:
        """Hear what a participant has done, tell the others, and go on."""
        task, speaker = _task_in(ctx), ctx.get_source_executor_id()
        heard = GroupChatResponseReceivedEvent(round_index=task.round_count, participant_name=speaker)
        await ctx.add_event(WorkflowEvent("group_chat", heard))
        said = spoken(self._process_participant_response(response), speaker)
        task.hear(said)
        others = [name for name in self._participant_registry.participants if name != speaker]
        if said:
            await self._broadcast_messages_to_participants(said, ctx, others)
        if not await self._is_over(task, ctx):
            await self._lead(task, cast("MagenticRunContext", ctx))
        ctx.scope().set(_TASK, task)

    @response_handler
    async def handle_plan_review_response(
        self,
        original_request: MagenticPlanReviewRequest,
        response: MagenticPlanReviewResponse,
        ctx: MagenticRunContext,
    ) -> None:
        """Follow the plan that a person has approved; or make another, and ask about that."""
        task = _task_in(ctx)
        task.history.append(task.plan_made)
        task.hear(response.review)
        if response.review:
            await self._make_plan(task, ctx, MagenticOrchestratorEventType.REPLANNED)
            await self._ask_for_review(task, ctx, is_stalled=original_request.is_stalled)
        else:
            ctx.require_approved(task.plan_made.text)
            await self._lead(task, ctx)
        ctx.scope().set(_TASK, task)

    async def _lead(self, task: MagenticState, ctx: MagenticRunContext) -> None:
        """Find out where the team stands, and hand the word on; end if there is nothing left to do."""
        while not await self._has_reached_limit(task, ctx):
            task.round_count += 1
            progress = await self._asking.progress(task, ctx)
            task.judge(progress)
            await self._tell(ctx, MagenticOrchestratorEventType.PROGRESS_LEDGER_UPDATED, progress)
            if progress.is_request_satisfied.answer:
                await self._finish(task, await self._asking.final_answer(task, ctx), ctx)
                return
            if task.stall_count <= self._manager.max_stall_count:
                await self._instruct(task, progress, ctx)
                return
            if not await self._has_begun_anew(task, ctx):
                return

    async def _instruct(self, task: MagenticState, ledger: MagenticProgressLedger, ctx: MagenticRunContext) -> None:
        """Hand the word on."""
        instruction, speaker = str(ledger.instruction_or_question.answer), str(ledger.next_speaker.answer)
        task.history.append(Message("assistant", [instruction], author_name=MAGENTIC_MANAGER_NAME))
        if self._participant_registry.is_agent(speaker):
            asked = AgentExecutorRequest([Message("user", [instruction])], should_respond=True)
            await ctx.send_message(asked, target_id=speaker)
        else:
            await ctx.send_message(GroupChatRequestMessage(instruction), target_id=speaker)
        sent = GroupChatRequestSentEvent(round_index=task.round_count, participant_name=speaker)
        await ctx.add_event(WorkflowEvent("group_chat", sent))

    async def _has_begun_anew(self, task: MagenticState, ctx: MagenticRunContext) -> bool:
        """Make another plan, and let everybody forget. Whether the team may follow it. Raises MagenticAnswerError."""
        is_limited = self._manager.max_reset_count is not None or self._manager.max_round_count is not None
        if task.idle_resets >= _IDLE_RESETS_MAX and not is_limited:
            raise MagenticAnswerError(_stuck(self._manager.max_stall_count))
        task.count_reset()
        for name in self._heeds_reset:
            await ctx.send_message(MagenticResetSignal(), target_id=name)
        await self._make_plan(task, ctx, MagenticOrchestratorEventType.REPLANNED)
        # The manager comes last: it has to know what failed to plan something else.
        task.forget()
        return await self._is_allowed(task, ctx, is_stalled=True)

    async def _make_plan(
        self, task: MagenticState, ctx: MagenticRunContext, event_type: MagenticOrchestratorEventType
    ) -> None:
        is_first = event_type is MagenticOrchestratorEventType.PLAN_CREATED
        make = self._asking.plan if is_first else self._asking.replan
        task.plan = await make(task, ctx)
        await self._tell(ctx, event_type, task.plan)

    async def _is_allowed(self, task: MagenticState, ctx: MagenticRunContext, *, is_stalled: bool) -> bool:
        """Whether the team may follow the plan: somebody may have to be asked."""
        if self._require_plan_signoff:
            await self._ask_for_review(task, ctx, is_stalled=is_stalled)
            return False
        task.history.append(task.plan_made)
        return True

    async def _ask_for_review(self, task: MagenticState, ctx: MagenticRunContext, *, is_stalled: bool) -> None:
        plan = task.plan_made
        request_id = f"plan-{ctx.idempotency_key}"
        request = MagenticPlanReviewRequest(plan, task.progress, is_stalled, request_id)
        await ctx.request_info(request, MagenticPlanReviewResponse, request_id=request_id, approves=plan.text)

    async def _has_reached_limit(self, task: MagenticState, ctx: MagenticRunContext) -> bool:
        """End the task if it has had as many rounds or resets as it may; whether it did."""
        most = self._manager.max_round_count, self._manager.max_reset_count
        counts = task.round_count, task.reset_count
        words = self.MAX_ROUNDS_MET_MESSAGE, self.MAX_RESETS_MET_MESSAGE
        for limit, count, word in zip(most, counts, words, strict=True):
            if limit is not None and count >= limit:
                await self._finish(task, self._create_completion_message(word), ctx)
                return True
        return False

    async def _is_over(self, task: MagenticState, ctx: Any) -> bool:
        """End the task if the termination condition says so; whether it did."""
        if not await is_over(self._termination_condition, task.conversation):
            return False
        await self._finish(task, self._create_completion_message(self.TERMINATION_CONDITION_MET_MESSAGE), ctx)
        return True

    async def _finish(self, task: MagenticState, last_word: Message, ctx: MagenticRunContext) -> None:
        task.is_finished = True
        task.conversation.append(last_word)
        await self._yield_completion(cast("GroupChatContext", ctx), last_word)

    async def _tell(
        self,
        ctx: MagenticRunContext,
        event_type: MagenticOrchestratorEventType,
        content: Message | MagenticProgressLedger,
    ) -> None:
        data = MagenticOrchestratorEvent(event_type, content)
        await ctx.add_event(WorkflowEvent("magentic_orchestrator", data, executor_id=self.id))


def _task_in(ctx: WorkflowContext[Any, Any]) -> MagenticState:
    """The task of this run, as a copy of one's own."""
    task: MagenticState | None = ctx.scope().get(_TASK)
    assert task is not None, "participants are asked, and plans reviewed, when there is a task"
    return task


def _task_of(messages: list[Message]) -> str:
    """The task that a run begins with. Raises ValueError if it is not one message with words."""
    if len(messages) != 1:
        raise ValueError(f"a Magentic workflow begins with a single task message, not with {len(messages)}")
    if not messages[0].text.strip():
        raise ValueError("the task of a Magentic workflow is a text that is not empty")
    return messages[0].text


def _refusal(task: MagenticState) -> str:
    if task.is_finished:
        return "this Magentic workflow has finished its task: give another task to a new run"
    return (
        "this Magentic workflow is at work on a task: answer what it asks, or let it go on without a message; give "
        "another task to a new run"
    )


def _stuck(max_stall_count: int) -> str:
    return (
        f"the manager has found the team stuck {_IDLE_RESETS_MAX + 1} times in a row, and nobody could act in between: "
        f"with max_stall_count={max_stall_count} one ledger without progress is enough to begin anew. Give a larger "
        "max_stall_count; or a max_reset_count, and the task ends with it"
    )


class MagenticAgentExecutor(AgentExecutor):
    """An agent of a Magentic team. A reset renews its session: it remembers nothing of what did not lead on."""

    @handler
    async def handle_magentic_reset(self, signal: MagenticResetSignal, ctx: WorkflowContext) -> None:
        """Begin anew."""
        del signal, ctx
        self.renew_session()
