"""Managers of a Magentic orchestration: who plans, says where the team stands, and gives the final answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from copy import deepcopy
from typing import TYPE_CHECKING, Any, ClassVar, Final

from typing_extensions import override

from perdure import AgentResponse, Message, SupportsAgentRun
from perdure.orchestrations.magentic_answers import MagenticAnswerError, ledger_of, spoken, until_usable
from perdure.orchestrations.magentic_prompts import (
    FACTS_PROMPT,
    FACTS_UPDATE_PROMPT,
    FINAL_PROMPT,
    FULL_PROMPT,
    PLAN_PROMPT,
    PLAN_UPDATE_PROMPT,
    PROGRESS_PROMPT,
)
from perdure.orchestrations.magentic_types import MAGENTIC_MANAGER_NAME, MagenticTaskLedger

if TYPE_CHECKING:
    from collections.abc import Mapping

    from perdure.orchestrations.magentic_types import MagenticContext, MagenticProgressLedger

TRIES: Final = 3
"""How often a manager is asked before its answer counts as a failure."""


class MagenticManagerBase(ABC):
    """Leads a team. Subclass it to lead in another way than by `StandardMagenticManager`.

    A manager is shown a copy of the context. What it keeps between two calls belongs into `on_checkpoint_save`, as
    plain values, and comes back with `on_checkpoint_restore`: before each call, in whichever process that is made, so
    that one manager can serve several tasks. If it serves several at once, it must not keep anything while it waits:
    give the builder a `manager_factory` else. An answer that can't be used is asked for again, as often as
    `progress_ledger_retry_count` says.
    """

    progress_ledger_retry_count: int = TRIES
    _kept_first: dict[str, Any] | None = None

    def __init__(
        self, *, max_stall_count: int = 3, max_reset_count: int | None = None, max_round_count: int | None = None
    ) -> None:
        self.max_stall_count = max_stall_count
        self.max_reset_count = max_reset_count
        self.max_round_count = max_round_count
        self.task_ledger_full_prompt: str = FULL_PROMPT

    @abstractmethod
    async def plan(self, magentic_context: MagenticContext) -> Message:
        """The first plan, with all that the team needs to know."""

    @abstractmethod
    async def replan(self, magentic_context: MagenticContext) -> Message:
        """Another plan: the old one did not get on, or a person wants it changed."""

    @abstractmethod
    async def create_progress_ledger(self, magentic_context: MagenticContext) -> MagenticProgressLedger:
        """Where the team stands, and who acts next."""

    @abstractmethod
    async def prepare_final_answer(self, magentic_context: MagenticContext) -> Message:
        """The answer for who gave the task."""

    def on_checkpoint_save(self) -> dict[str, Any]:
        """What the manager keeps."""
        return {}

    def on_checkpoint_restore(self, state: dict[str, Any]) -> None:  # noqa: B027 - who keeps nothing has nothing to do
        """Take over what `on_checkpoint_save` gave."""

    def kept_first(self) -> dict[str, Any]:
        """What the manager kept before it had a task."""
        if self._kept_first is None:
            self._kept_first = deepcopy(self.on_checkpoint_save())
        return self._kept_first


class StandardMagenticManager(MagenticManagerBase):
    """A manager whose thinking is done by an agent, in a conversation of its own for each question.

    What the agent answers is looked at: it is told what is wrong with an empty plan or a ledger that makes no sense,
    and asked again, `progress_ledger_retry_count` times in all. Then MagenticAnswerError is raised.
    """

    MANAGER_NAME: ClassVar[str] = "StandardMagenticManager"

    def __init__(
        self,
        agent: SupportsAgentRun,
        task_ledger: MagenticTaskLedger | None = None,
        *,
        task_ledger_facts_prompt: str | None = None,
        task_ledger_plan_prompt: str | None = None,
        task_ledger_full_prompt: str | None = None,
        task_ledger_facts_update_prompt: str | None = None,
        task_ledger_plan_update_prompt: str | None = None,
        progress_ledger_prompt: str | None = None,
        final_answer_prompt: str | None = None,
        max_stall_count: int = 3,
        max_reset_count: int | None = None,
        max_round_count: int | None = None,
        progress_ledger_retry_count: int | None = None,
    ) -> None:
        super().__init__(
            max_stall_count=max_stall_count, max_reset_count=max_reset_count, max_round_count=max_round_count
        )
        self._agent = agent
        self.task_ledger = task_ledger
        self.task_ledger_facts_prompt = _checked("task_ledger_facts_prompt", task_ledger_facts_prompt or FACTS_PROMPT)
        self.task_ledger_plan_prompt = _checked("task_ledger_plan_prompt", task_ledger_plan_prompt or PLAN_PROMPT)
        self.task_ledger_full_prompt = _checked("task_ledger_full_prompt", task_ledger_full_prompt or FULL_PROMPT)
        self.task_ledger_facts_update_prompt = _checked(
            "task_ledger_facts_update_prompt", task_ledger_facts_update_prompt or FACTS_UPDATE_PROMPT
        )
        self.task_ledger_plan_update_prompt = _checked(
            "task_ledger_plan_update_prompt", task_ledger_plan_update_prompt or PLAN_UPDATE_PROMPT
        )
        self.progress_ledger_prompt = _checked("progress_ledger_prompt", progress_ledger_prompt or PROGRESS_PROMPT)
        self.final_answer_prompt = _checked("final_answer_prompt", final_answer_prompt or FINAL_PROMPT)
        self.progress_ledger_retry_count = TRIES if progress_ledger_retry_count is None else progress_ledger_retry_count

    @override
    async def plan(self, magentic_context: MagenticContext) -> Message:
        """Ask for the facts, then for a plan."""
        return await self._planned(magentic_context, self.task_ledger_facts_prompt, self.task_ledger_plan_prompt)

    @override
    async def replan(self, magentic_context: MagenticContext) -> Message:
        """Ask for the facts and the plan anew. Raises RuntimeError if there are none yet."""
        if self.task_ledger is None:
            raise RuntimeError("there is no plan yet that could be made anew: call plan() before replan()")
        prompts = self.task_ledger_facts_update_prompt, self.task_ledger_plan_update_prompt
        return await self._planned(magentic_context, *prompts)

    async def _planned(self, context: MagenticContext, facts_prompt: str, plan_prompt: str) -> Message:
        known = _placeholders(context, self.task_ledger)
        about_facts = Message("user", [facts_prompt.format_map(known)])
        facts = await self._answer([*context.chat_history, about_facts], what="list of facts")
        about_plan = Message("user", [plan_prompt.format_map(known)])
        plan = await self._answer([*context.chat_history, about_facts, facts, about_plan], what="plan")
        self.task_ledger = MagenticTaskLedger(facts, plan)
        whole = self.task_ledger_full_prompt.format_map({**known, "facts": facts.text, "plan": plan.text})
        return Message("assistant", [whole], author_name=MAGENTIC_MANAGER_NAME)

    @override
    async def create_progress_ledger(self, magentic_context: MagenticContext) -> MagenticProgressLedger:
        """Ask where the team stands."""
        known = _placeholders(magentic_context, self.task_ledger)
        question = [*magentic_context.chat_history, Message("user", [self.progress_ledger_prompt.format_map(known)])]
        names = list(magentic_context.participant_descriptions)

        def readable(answer: Message) -> Message:
            ledger_of(spoken(answer).text, names)
            return answer

        answer = await until_usable(
            lambda corrections: self._complete([*question, *corrections]),
            readable,
            what="progress ledger",
            tries=self.progress_ledger_retry_count,
        )
        return ledger_of(answer.text, names)

    @override
    async def prepare_final_answer(self, magentic_context: MagenticContext) -> Message:
        """Ask for the answer to the task."""
        known = _placeholders(magentic_context, self.task_ledger)
        question = Message("user", [self.final_answer_prompt.format_map(known)])
        answer = await self._answer([*magentic_context.chat_history, question], what="final answer")
        return Message("assistant", [answer.text], author_name=answer.author_name or MAGENTIC_MANAGER_NAME)

    async def _answer(self, messages: list[Message], *, what: str) -> Message:
        return await until_usable(
            lambda corrections: self._complete([*messages, *corrections]),
            spoken,
            what=what,
            tries=self.progress_ledger_retry_count,
        )

    async def _complete(self, messages: list[Message]) -> Message:
        """What the agent answers, in a new session: each question carries all that was said."""
        response: AgentResponse[Any] = await self._agent.run(messages, session=self._agent.create_session())
        if response.user_input_requests:
            raise MagenticAnswerError(
                "the manager's agent asks for an approval, which nobody can give here: give it tools without "
                "approval_mode='always_require', or give such tools to a participant"
            )
        with_words = [message for message in response.messages if message.text.strip()]
        return with_words[-1] if with_words else Message("assistant", [])

    @override
    def on_checkpoint_save(self) -> dict[str, Any]:
        """The facts and the plan."""
        return {} if self.task_ledger is None else {"task_ledger": self.task_ledger.to_dict()}

    @override
    def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        """Take over the facts and the plan."""
        ledger = state.get("task_ledger")
        self.task_ledger = None if ledger is None else MagenticTaskLedger.from_dict(ledger)


_NOTHING: Final[Mapping[str, str]] = {"task": "", "team": "", "names": "", "facts": "", "old_facts": "", "plan": ""}


def _placeholders(context: MagenticContext, ledger: MagenticTaskLedger | None) -> Mapping[str, str]:
    """What stands for the names in braces. Every prompt may use all of them."""
    team = context.participant_descriptions
    facts, plan = ("", "") if ledger is None else (ledger.facts.text, ledger.plan.text)
    return {
        "task": context.task,
        "team": "\n".join(f"- {name}: {description}" for name, description in team.items()),
        "names": ", ".join(team),
        "facts": facts,
        "old_facts": facts,
        "plan": plan,
    }


def _checked(name: str, prompt: str) -> str:
    """The prompt. Raises ValueError now if it could not be filled in later."""
    try:
        prompt.format_map(_NOTHING)
    except (KeyError, ValueError, IndexError, AttributeError) as error:
        known = ", ".join(f"{{{each}}}" for each in _NOTHING)
        raise ValueError(
            f"{name} can't be filled in: {type(error).__name__}: {error}; its placeholders are {known}, and a brace "
            "that is none is written twice"
        ) from error
    return prompt
