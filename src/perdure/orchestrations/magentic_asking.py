"""`Asking`: each question to a Magentic manager is a step, and the manager has what it kept for that task."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any, TypeVar

from perdure.orchestrations.magentic_answers import checked_ledger, spoken, until_usable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from perdure import Message, WorkflowContext
    from perdure.orchestrations.magentic_manager import MagenticManagerBase
    from perdure.orchestrations.magentic_state import MagenticState
    from perdure.orchestrations.magentic_types import MagenticContext, MagenticProgressLedger

T = TypeVar("T")


class Asking:
    """Asks a manager about tasks. It may be one that others ask too, about other tasks, in other runs."""

    def __init__(self, manager: MagenticManagerBase, team: Mapping[str, str]) -> None:
        self.manager = manager
        self._team = team
        self._kept_first = manager.kept_first()

    async def plan(self, task: MagenticState, ctx: WorkflowContext[Any, Any]) -> Message:
        """The first plan."""
        return await self._answer(task, ctx, "plan", self.manager.plan, spoken)

    async def replan(self, task: MagenticState, ctx: WorkflowContext[Any, Any]) -> Message:
        """Another plan."""
        return await self._answer(task, ctx, "plan", self.manager.replan, spoken)

    async def progress(self, task: MagenticState, ctx: WorkflowContext[Any, Any]) -> MagenticProgressLedger:
        """Where the team stands."""

        def checked(ledger: MagenticProgressLedger) -> MagenticProgressLedger:
            return checked_ledger(ledger, self._team)

        return await self._answer(
            task, ctx, "progress ledger", self.manager.create_progress_ledger, checked, may_raise=True
        )

    async def final_answer(self, task: MagenticState, ctx: WorkflowContext[Any, Any]) -> Message:
        """The last word."""
        return await self._answer(task, ctx, "final answer", self.manager.prepare_final_answer, spoken)

    async def _answer(
        self,
        task: MagenticState,
        ctx: WorkflowContext[Any, Any],
        what: str,
        ask: Callable[[MagenticContext], Awaitable[T]],
        check: Callable[[T], T],
        *,
        may_raise: bool = False,
    ) -> T:
        """What the manager answers, as a step: another life gets the answer, and what the manager had kept then."""

        async def asked(corrections: list[Message]) -> T:
            # Before each question: since the last one the manager may have been asked about another task.
            self.manager.on_checkpoint_restore(deepcopy(task.kept if task.kept is not None else self._kept_first))
            answer = await ask(task.context(self._team, *corrections))
            task.kept = deepcopy(self.manager.on_checkpoint_save())
            return answer

        async def work() -> tuple[T, dict[str, Any] | None]:
            tries = self.manager.progress_ledger_retry_count
            return await until_usable(asked, check, what=what, tries=tries, may_raise=may_raise), task.kept

        answer, task.kept = await ctx.step(what, work)
        return answer
