"""`MagenticOrchestrator`: a team that follows a plan, and makes another when it does not get on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar, cast

from typing_extensions import override

from perdure import AgentResponse, AgentResponseUpdate, Message, WorkflowContext, WorkflowEvent, response_handler
from perdure.orchestrations.magentic_answers import checked_ledger, until_usable
from perdure.orchestrations.magentic_answers import spoken as with_words
from perdure.orchestrations.magentic_manager import TRIES
from perdure.orchestrations.magentic_state import MagenticState
from perdure.orchestrations.magentic_types import (
    MAGENTIC_MANAGER_NAME,
    MagenticOrchestratorEvent,
    MagenticOrchestratorEventType,
    MagenticPlanReviewRequest,
    MagenticPlanReviewResponse,
    MagenticProgressLedger,
    MagenticResetSignal,
)
from perdure.orchestrations.orchestrator import BaseGroupChatOrchestrator
from perdure.orchestrations.orchestrator_messages import GroupChatWorkflowContextOutT, spoken

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection

    from perdure import AgentExecutorResponse
    from perdure.orchestrations.magentic_manager import MagenticManagerBase
    from perdure.orchestrations.magentic_types import MagenticContext
    from perdure.orchestrations.orchestrator_messages import GroupChatResponseMessage
    from perdure.orchestrations.orchestrator_registry import ParticipantRegistry
    from perdure.orchestrations.termination import TerminationCondition

T = TypeVar("T")
MagenticRunContext: TypeAlias = WorkflowContext[
    GroupChatWorkflowContextOutT | MagenticResetSignal, AgentResponse | AgentResponseUpdate
]
"""What a handler of the orchestrator is given."""

_STATE = "magentic"
_MANAGER = "manager"


class MagenticOrchestrator(BaseGroupChatOrchestrator):
    """Has a plan made, asks the manager after each turn where the team stands, and hands the word on.

    Each answer of the manager is recorded when it is there, with what the manager keeps: a process that goes on with
    the run asks for nothing again. `heeds_reset` are the participants that take a `MagenticResetSignal`.
    """

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
            "magentic_orchestrator",
            participant_registry,
            name=MAGENTIC_MANAGER_NAME,
            max_rounds=manager.max_round_count,
            termination_condition=termination_condition,
        )
        self._manager = manager
        self._require_plan_signoff = require_plan_signoff
        self._heeds_reset = tuple(heeds_reset)
        self._state: MagenticState | None = None

    @property
    def _task(self) -> MagenticState:
        assert self._state is not None, "participants are asked, and plans reviewed, when there is a task"
        return self._state

    @override
    async def _handle_messages(self, messages: list[Message], ctx: Any) -> None:
        """Take a task, and plan. Raises ValueError for what is no task, RuntimeError if there is one already."""
        if self._state is not None:
            raise RuntimeError(_refusal(self._state))
        self._state = MagenticState(_task_of(messages))
        self._state.history.extend(messages)
        self._append_messages(messages)
        if not await self._is_over(ctx) and await self._has_plan(ctx):
            await self._lead(ctx)

    @override
    async def _handle_response(self, response: AgentExecutorResponse | GroupChatResponseMessage, ctx: Any) -> None:
        """Hear what a participant has done, tell the others, and go on."""
        speaker = ctx.get_source_executor_id()
        said = spoken(self._process_participant_response(response), speaker)
        self._task.history.extend(said)
        self._append_messages(said)
        others = [name for name in self._participant_registry.participants if name != speaker]
        if said:
            await self._broadcast_messages_to_participants(said, ctx, others)
        if not await self._is_over(ctx):
            await self._lead(ctx)

    @response_handler
    async def handle_plan_review_response(
        self,
        original_request: MagenticPlanReviewRequest,
        response: MagenticPlanReviewResponse,
        ctx: MagenticRunContext,
    ) -> None:
        """Follow the plan that a person has approved; or make another, and ask about that."""
        task = self._task
        assert task.plan is not None, "it is the plan that was asked about"
        if response.review:
            task.history.extend(response.review)
            self._append_messages(response.review)
            await self._make_plan(ctx, self._manager.replan, MagenticOrchestratorEventType.REPLANNED)
            await self._ask_for_review(ctx, is_stalled=original_request.is_stalled)
            return
        ctx.require_approved(task.plan.text)
        task.history.append(task.plan)
        await self._lead(ctx)

    async def _lead(self, ctx: MagenticRunContext) -> None:
        """Find out where the team stands, and hand the word on; end if there is nothing left to do."""
        task = self._task
        while not await self._has_reached_limit(ctx):
            task.round_count += 1
            self._increment_round()
            task.judge(await self._progress(ctx))
            assert task.progress is not None, "it was just judged"
            if task.progress.is_request_satisfied.answer:
                answer = await self._managed(ctx, "final answer", self._manager.prepare_final_answer, with_words)
                await self._finish(answer, ctx)
                return
            if task.stall_count <= self._manager.max_stall_count:
                await self._instruct(task.progress, ctx)
                return
            if not await self._has_begun_anew(ctx):
                return

    async def _progress(self, ctx: MagenticRunContext) -> MagenticProgressLedger:
        names = self._participant_registry.participants

        def checked(ledger: MagenticProgressLedger) -> MagenticProgressLedger:
            return checked_ledger(ledger, names)

        ledger = await self._managed(ctx, "progress ledger", self._manager.create_progress_ledger, checked)
        await self._tell(ctx, MagenticOrchestratorEventType.PROGRESS_LEDGER_UPDATED, ledger)
        return ledger

    async def _instruct(self, ledger: MagenticProgressLedger, ctx: MagenticRunContext) -> None:
        instruction = str(ledger.instruction_or_question.answer)
        self._task.history.append(Message("assistant", [instruction], author_name=MAGENTIC_MANAGER_NAME))
        await self._send_request_to_participant(
            str(ledger.next_speaker.answer), cast("Any", ctx), additional_instruction=instruction
        )

    async def _has_plan(self, ctx: MagenticRunContext) -> bool:
        """Make the first plan. Whether the team may follow it: somebody may have to be asked."""
        await self._make_plan(ctx, self._manager.plan, MagenticOrchestratorEventType.PLAN_CREATED)
        return await self._is_allowed(ctx, is_stalled=False)

    async def _has_begun_anew(self, ctx: MagenticRunContext) -> bool:
        """Let everybody forget, and make another plan. Whether the team may follow it."""
        self._task.reset()
        for name in self._heeds_reset:
            await ctx.send_message(MagenticResetSignal(), target_id=name)
        await self._make_plan(ctx, self._manager.replan, MagenticOrchestratorEventType.REPLANNED)
        return await self._is_allowed(ctx, is_stalled=True)

    async def _make_plan(
        self,
        ctx: MagenticRunContext,
        make: Callable[[MagenticContext], Awaitable[Message]],
        event_type: MagenticOrchestratorEventType,
    ) -> None:
        self._task.plan = await self._managed(ctx, "plan", make, with_words)
        await self._tell(ctx, event_type, self._task.plan)

    async def _is_allowed(self, ctx: MagenticRunContext, *, is_stalled: bool) -> bool:
        task = self._task
        if self._require_plan_signoff:
            await self._ask_for_review(ctx, is_stalled=is_stalled)
            return False
        assert task.plan is not None, "it was just made"
        task.history.append(task.plan)
        return True

    async def _ask_for_review(self, ctx: MagenticRunContext, *, is_stalled: bool) -> None:
        plan = self._task.plan
        assert plan is not None, "it was just made"
        request_id = f"plan-{ctx.idempotency_key}"
        request = MagenticPlanReviewRequest(plan, self._task.progress, is_stalled, request_id)
        await ctx.request_info(request, MagenticPlanReviewResponse, request_id=request_id, approves=plan.text)

    async def _managed(
        self,
        ctx: MagenticRunContext,
        what: str,
        ask: Callable[[MagenticContext], Awaitable[T]],
        check: Callable[[T], T],
    ) -> T:
        """What the manager answers, as a step: another life gets the answer, and the manager what it had kept then."""
        team, has_run = self._participant_registry.participants, False

        async def work() -> tuple[T, dict[str, Any]]:
            nonlocal has_run
            has_run = True
            answer = await until_usable(
                lambda corrections: ask(self._task.context(team, *corrections)), check, what=what, tries=TRIES
            )
            return answer, self._manager.on_checkpoint_save()

        answer, kept = await ctx.step(what, work)
        if not has_run:
            self._manager.on_checkpoint_restore(kept)
        return answer

    async def _has_reached_limit(self, ctx: MagenticRunContext) -> bool:
        """End the task if it has had as many rounds or resets as it may; whether it did."""
        most = self._manager.max_round_count, self._manager.max_reset_count
        counts = self._task.round_count, self._task.reset_count
        words = self.MAX_ROUNDS_MET_MESSAGE, self.MAX_RESETS_MET_MESSAGE
        for limit, count, word in zip(most, counts, words, strict=True):
            if limit is not None and count >= limit:
                await self._finish(self._create_completion_message(word), ctx)
                return True
        return False

    async def _is_over(self, ctx: MagenticRunContext) -> bool:
        """End the task if the termination condition says so; whether it did."""
        if not await self._check_termination():
            return False
        await self._finish(self._create_completion_message(self.TERMINATION_CONDITION_MET_MESSAGE), ctx)
        return True

    async def _finish(self, last_word: Message, ctx: MagenticRunContext) -> None:
        self._task.is_finished = True
        await self._end(last_word, cast("Any", ctx))

    async def _tell(
        self,
        ctx: MagenticRunContext,
        event_type: MagenticOrchestratorEventType,
        content: Message | MagenticProgressLedger,
    ) -> None:
        data = MagenticOrchestratorEvent(event_type, content)
        await ctx.add_event(WorkflowEvent("magentic_orchestrator", data, executor_id=self.id))

    @override
    def _snapshot_pattern_metadata(self) -> dict[str, Any]:
        """The task, and what the manager keeps."""
        return {_STATE: self._state, _MANAGER: self._manager.on_checkpoint_save()}

    @override
    def _restore_pattern_metadata(self, metadata: dict[str, Any]) -> None:
        """Take both over."""
        self._state = metadata.get(_STATE)
        if _MANAGER in metadata:
            self._manager.on_checkpoint_restore(metadata[_MANAGER])


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
