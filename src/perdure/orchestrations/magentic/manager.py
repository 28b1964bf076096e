"""Managers of a Magentic orchestration: who plans, says where the team stands, and gives the final answer."""

from __future__ import annotations

import ast
import json
from abc import ABC, abstractmethod
from copy import deepcopy
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar, cast

from typing_extensions import override

from perdure import AgentInvalidResponseException, AgentResponse, Message, SupportsAgentRun
from perdure.orchestrations.magentic.prompts import (
    CORRECTION,
    FACTS_PROMPT,
    FACTS_UPDATE_PROMPT,
    FINAL_PROMPT,
    FULL_PROMPT,
    PLAN_PROMPT,
    PLAN_UPDATE_PROMPT,
    PROGRESS_PROMPT,
)
from perdure.orchestrations.magentic.types import (
    MAGENTIC_MANAGER_NAME,
    MagenticProgressLedger,
    MagenticProgressLedgerItem,
    MagenticTaskLedger,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping

    from perdure import WorkflowContext
    from perdure.orchestrations.magentic.orchestrator import MagenticState
    from perdure.orchestrations.magentic.types import MagenticContext

T = TypeVar("T")

_WORDS: Final[Mapping[str, bool]] = {"true": True, "false": False}
_ITEMS: Final = dict.fromkeys(each.name for each in fields(MagenticProgressLedger)).keys()
_SHOWN_MAX: Final = 200


class MagenticAnswerError(AgentInvalidResponseException, RuntimeError):
    """A manager has given no answer that can be used, however often it was told what was wrong."""


async def until_usable(
    ask: Callable[[list[Message]], Awaitable[T]],
    check: Callable[[T], T],
    *,
    what: str,
    tries: int,
    may_raise: bool = False,
) -> T:
    """Ask until an answer passes a check, telling what was wrong with those before. Raises MagenticAnswerError.

    `ask` is given what to add to the conversation; `check` raises ValueError, and may give a mended answer. With
    `may_raise` a ValueError of `ask` is an answer that can't be used, too.
    """
    corrections: list[Message] = []
    error: ValueError | None = None
    for _ in range(max(1, tries)):
        answer: T | None = None
        try:
            answer = await ask(list(corrections))
            return check(answer)
        except ValueError as reason:
            if answer is None and not may_raise:
                raise
            error = reason
        if isinstance(answer, Message) and answer.text.strip():
            corrections.append(answer)
        corrections.append(Message("user", [CORRECTION.format(error=error)]))
    raise MagenticAnswerError(_failure(what, max(1, tries), error)) from error


def _failure(what: str, tries: int, error: ValueError | None) -> str:
    return (
        f"the manager gave no {what} that can be used in {tries} tries; the last: {error}. What it has answered is "
        "recorded: go on by run(run_id=...) with a larger progress_ledger_retry_count to have it asked once more; or "
        "mend its prompts or its model, and fork the run to have it asked anew"
    )


def spoken(message: Message) -> Message:
    """The same message. Raises ValueError if it has no words."""
    if not message.text.strip():
        raise ValueError("it is empty")
    return message


def ledger_of(text: str, names: Collection[str]) -> MagenticProgressLedger:
    """The progress ledger that a model wrote. Raises ValueError that says what is wrong with it.

    A model may write it twice. If it writes two, nobody knows which it means.
    """
    found, *others = [checked_ledger(MagenticProgressLedger.from_dict(each), names) for each in _ledgers_in(text)]
    for other in others:
        if differing := _differing(found, other):
            named = ", ".join(map(repr, differing))
            raise ValueError(f"there are two ledgers in it that differ in {named}, and only one can be followed")
    return found


def _differing(ledger: MagenticProgressLedger, other: MagenticProgressLedger) -> list[str]:
    """In what two ledgers answer otherwise. Reasons don't count; and nothing else does, if both are done."""
    is_done = ledger.is_request_satisfied.answer is True and other.is_request_satisfied.answer is True
    names = () if is_done else _ITEMS
    return [name for name in names if getattr(ledger, name).answer != getattr(other, name).answer]


def checked_ledger(ledger: MagenticProgressLedger, names: Collection[str]) -> MagenticProgressLedger:
    """The ledger with booleans that are booleans, and a speaker that exists. Raises ValueError."""
    satisfied = _judged("is_request_satisfied", ledger.is_request_satisfied)
    if satisfied.answer:
        # Nobody speaks next, and nothing else counts, whatever the model has put there or left out.
        loops, moves = _as_boolean(ledger.is_in_loop), _as_boolean(ledger.is_progress_being_made)
        return replace(ledger, is_request_satisfied=satisfied, is_in_loop=loops, is_progress_being_made=moves)
    found = replace(
        ledger,
        is_request_satisfied=satisfied,
        is_in_loop=_judged("is_in_loop", ledger.is_in_loop),
        is_progress_being_made=_judged("is_progress_being_made", ledger.is_progress_being_made),
    )
    speaker = _worded("next_speaker", ledger.next_speaker)
    if speaker.answer not in names:
        known = ", ".join(map(repr, names))
        raise ValueError(f"'next_speaker' is {_shown(speaker.answer)}, who is not in the team; there are {known}")
    instruction = _worded("instruction_or_question", ledger.instruction_or_question)
    return replace(found, next_speaker=speaker, instruction_or_question=instruction)


def _judged(name: str, item: MagenticProgressLedgerItem) -> MagenticProgressLedgerItem:
    found = _as_boolean(item)
    if not isinstance(found.answer, bool):
        raise ValueError(f"the answer of {name!r} is true or false, {_but(found.answer)}")
    return found


def _as_boolean(item: MagenticProgressLedgerItem) -> MagenticProgressLedgerItem:
    """With a yes or no, if the answer is one. The words count as well: a text that says false is not true."""
    answer = cast("object", item.answer)
    is_word = isinstance(answer, str) and answer.strip().lower() in _WORDS
    return replace(item, answer=_WORDS[str(answer).strip().lower()]) if is_word else item


def _worded(name: str, item: MagenticProgressLedgerItem) -> MagenticProgressLedgerItem:
    answer = cast("object", item.answer)
    if not isinstance(answer, str) or not answer.strip():
        raise ValueError(f"the answer of {name!r} is a text that is not empty, {_but(answer)}")
    return replace(item, answer=answer.strip())


def _but(answer: object) -> str:
    return "and there is none" if answer == "" else f"not {_shown(answer)}"


def _shown(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= _SHOWN_MAX else f"{shown[:_SHOWN_MAX]}..."


def _ledgers_in(text: str) -> list[Mapping[str, Any]]:
    """The ledgers in a text, or else the first object, which is to be one. Raises ValueError if there is none."""
    objects = list(_objects_in(text))
    if not objects:
        raise ValueError("there is no JSON object in it, or one that is broken")
    return [each for each in objects if not _ITEMS.isdisjoint(each)] or objects[:1]


def _objects_in(text: str) -> Iterator[Mapping[str, Any]]:
    """The objects in a text, as JSON or as Python writes them; the text around them does not matter."""
    for candidate in _balanced(text):
        for read in (json.loads, ast.literal_eval):
            try:
                found: object = read(candidate)
            except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
                continue
            if isinstance(found, dict):
                yield cast("Mapping[str, Any]", found)
                break


def _balanced(text: str) -> Iterator[str]:
    """The outermost stretches from a brace to the one that closes it. Braces in quotes don't count."""
    start, depth, quote = 0, 0, ""
    is_escaped = False
    for place, char in enumerate(text):
        if quote:
            quote = "" if char == quote and not is_escaped else quote
            is_escaped = char == "\\" and not is_escaped
        elif depth and char in "\"'":
            quote = char
        elif char == "{":
            start = place if depth == 0 else start
            depth += 1
        elif char == "}" and depth:
            depth -= 1
            if depth == 0:
                yield text[start : place + 1]


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
