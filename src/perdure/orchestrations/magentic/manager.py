"""Managers of a Magentic team: they plan, check progress, and give the final answer."""

from __future__ import annotations

import ast
import json
from abc import ABC, abstractmethod
from copy import deepcopy
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypedDict, TypeVar, cast

from typing_extensions import Unpack

from perdure import AgentInvalidResponseException, AgentResponse, Message, SupportsAgentRun, return_requests
from perdure.orchestrations.magentic import prompts
from perdure.orchestrations.magentic.types import (
    MAGENTIC_MANAGER_NAME,
    MagenticContext,
    MagenticProgressLedger,
    MagenticProgressLedgerItem,
    MagenticTaskLedger,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence


T = TypeVar("T")

_BOOLEAN_FIELDS: Final = ("is_request_satisfied", "is_in_loop", "is_progress_being_made")
_LEDGER_FIELDS: Final = dict.fromkeys(each.name for each in fields(MagenticProgressLedger)).keys()
_REPR_LENGTH_MAX: Final = 200


class MagenticAnswerError(AgentInvalidResponseException, RuntimeError):
    """The manager gave no valid answer in all its attempts."""


async def ask_until_valid(
    ask: Callable[[list[Message]], Awaitable[T]],
    check: Callable[[T], T],
    *,
    what: str,
    attempts: int,
    may_raise: bool = False,
) -> T:
    """Ask until an answer passes the check, adding a correction after each failure. Raises MagenticAnswerError.

    `ask` gets the messages to add to the conversation. `check` raises ValueError, or returns the answer, possibly
    normalized. With `may_raise`, a ValueError from `ask` also counts as an invalid answer.
    """
    corrections: list[Message] = []
    error: ValueError | None = None
    for _ in range(max(1, attempts)):
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
        corrections.append(Message("user", [prompts.CORRECTION.format(error=error)]))
    raise MagenticAnswerError(
        f"the manager gave no valid {what} in {max(1, attempts)} attempts; about the last one: {error}. Its answers "
        "are recorded: resume with run(run_id=...) and a larger progress_ledger_retry_count to ask again; or change "
        "its prompts or model, and fork the run to ask from the start"
    ) from error


def require_words(message: Message) -> Message:
    """Return the message. Raises ValueError if it has no text."""
    if not message.text.strip():
        raise ValueError("it is empty")
    return message


def parse_ledger(text: str, names: Collection[str]) -> MagenticProgressLedger:
    """Return the progress ledger in a model's answer. Raises ValueError with the reason if it is invalid.

    A model may repeat its ledger. Two different ledgers are an error.
    """
    found, *others = [check_ledger(MagenticProgressLedger.from_dict(each), names) for each in _find_ledgers(text)]
    for other in others:
        if differing := _differences(found, other):
            named = ", ".join(map(repr, differing))
            raise ValueError(f"there are two ledgers in it that differ in {named}, and only one can be followed")
    return found


def _differences(ledger: MagenticProgressLedger, other: MagenticProgressLedger) -> list[str]:
    """Return the fields whose answers differ. Reasons don't count. Two satisfied ledgers never differ."""
    is_done = ledger.is_request_satisfied.answer is True and other.is_request_satisfied.answer is True
    names = () if is_done else _LEDGER_FIELDS
    return [name for name in names if getattr(ledger, name).answer != getattr(other, name).answer]


def check_ledger(ledger: MagenticProgressLedger, names: Collection[str]) -> MagenticProgressLedger:
    """Return the ledger with real booleans and a known speaker. Raises ValueError."""
    found = replace(ledger, **{name: _as_boolean(getattr(ledger, name)) for name in _BOOLEAN_FIELDS})
    is_done = found.is_request_satisfied.answer is True
    # If the task is done, the other fields don't matter.
    for name in () if is_done else _BOOLEAN_FIELDS:
        answer: object = getattr(found, name).answer
        if not isinstance(answer, bool):
            raise ValueError(f"the answer of {name!r} is true or false, {_describe_answer(answer)}")
    if is_done:
        return found
    speaker = _require_text("next_speaker", ledger.next_speaker)
    if speaker.answer not in names:
        values = ", ".join(map(repr, names))
        raise ValueError(f"'next_speaker' is {_short_repr(speaker.answer)}, who is not in the team; there are {values}")
    instruction = _require_text("instruction_or_question", ledger.instruction_or_question)
    return replace(found, next_speaker=speaker, instruction_or_question=instruction)


def _as_boolean(item: MagenticProgressLedgerItem) -> MagenticProgressLedgerItem:
    """Convert the texts "true" and "false" to booleans, because a non-empty "false" is true in Python."""
    word = str(item.answer).strip().lower()
    return replace(item, answer=word == "true") if word in {"true", "false"} else item


def _require_text(name: str, item: MagenticProgressLedgerItem) -> MagenticProgressLedgerItem:
    answer = cast("object", item.answer)
    if not isinstance(answer, str) or not answer.strip():
        raise ValueError(f"the answer of {name!r} is a text that is not empty, {_describe_answer(answer)}")
    return replace(item, answer=answer.strip())


def _describe_answer(answer: object) -> str:
    return "and there is none" if answer == "" else f"not {_short_repr(answer)}"


def _short_repr(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= _REPR_LENGTH_MAX else f"{shown[:_REPR_LENGTH_MAX]}..."


def _find_ledgers(text: str) -> list[Mapping[str, Any]]:
    """Return the ledgers in a text, or else its first object. Raises ValueError if there is no object."""
    objects = list(_find_objects(text))
    if not objects:
        raise ValueError("there is no JSON object in it, or one that is broken")
    return [each for each in objects if not _LEDGER_FIELDS.isdisjoint(each)] or objects[:1]


def _find_objects(text: str) -> Iterator[Mapping[str, Any]]:
    """Yield the objects in a text, written as JSON or as Python."""
    for candidate in _find_balanced(text):
        for read in (json.loads, ast.literal_eval):
            try:
                found: object = read(candidate)
            except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
                continue
            if isinstance(found, dict):
                yield cast("Mapping[str, Any]", found)
                break


def _find_balanced(text: str) -> Iterator[str]:
    """Yield the outermost balanced braces with their contents. Braces in quotes don't count."""
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


ATTEMPTS: Final = 3
"""Default number of attempts to get a valid answer."""


class ManagerPrompts(TypedDict, total=False):
    """Prompts of the standard manager, in place of its own."""

    task_ledger_facts_prompt: str | None
    task_ledger_plan_prompt: str | None
    task_ledger_full_prompt: str | None
    task_ledger_facts_update_prompt: str | None
    task_ledger_plan_update_prompt: str | None
    progress_ledger_prompt: str | None
    final_answer_prompt: str | None


class ManagerOptions(ManagerPrompts, total=False):
    """Options of the standard manager."""

    task_ledger: MagenticTaskLedger | None
    max_stall_count: int
    max_reset_count: int | None
    max_round_count: int | None
    progress_ledger_retry_count: int | None


class MagenticManagerBase(ABC):
    """Leads a team. Subclass it to replace `StandardMagenticManager`.

    A manager gets a copy of the context. Return its own state as plain values from `on_checkpoint_save`. It is restored
    with `on_checkpoint_restore` before each call, in any process, so one manager can serve several tasks. If tasks run
    at the same time, the manager must not keep state across an await; use a `manager_factory` otherwise. An invalid
    answer is requested again, `progress_ledger_retry_count` times in all.
    """

    progress_ledger_retry_count: int = ATTEMPTS
    task_ledger_full_prompt: str = prompts.FULL_PROMPT
    _initial_state: dict[str, Any] | None = None

    def __init__(
        self, *, max_stall_count: int = 3, max_reset_count: int | None = None, max_round_count: int | None = None
    ) -> None:
        self.max_stall_count = max_stall_count
        self.max_reset_count = max_reset_count
        self.max_round_count = max_round_count

    @abstractmethod
    async def plan(self, magentic_context: MagenticContext) -> Message:
        """Return the first plan, with everything that the team needs to know."""

    @abstractmethod
    async def replan(self, magentic_context: MagenticContext) -> Message:
        """Return another plan, because the old one made no progress or a person rejected it."""

    @abstractmethod
    async def create_progress_ledger(self, magentic_context: MagenticContext) -> MagenticProgressLedger:
        """Return the team's progress and the next speaker."""

    @abstractmethod
    async def prepare_final_answer(self, magentic_context: MagenticContext) -> Message:
        """Return the answer to the task."""

    def on_checkpoint_save(self) -> dict[str, Any]:
        """Return the manager's state."""
        return {}

    def on_checkpoint_restore(self, state: dict[str, Any]) -> None:  # noqa: B027 - who keeps nothing has nothing to do
        """Restore the result of `on_checkpoint_save`."""

    def _get_initial_state(self) -> dict[str, Any]:
        """Return the manager's state from before its first task."""
        if self._initial_state is None:
            self._initial_state = deepcopy(self.on_checkpoint_save())
        return self._initial_state


class StandardMagenticManager(MagenticManagerBase):
    """A manager that asks an agent, in a new session for each question.

    The answers are checked: after an empty plan or an invalid ledger the agent gets the reason and is asked again,
    `progress_ledger_retry_count` times in all. Then MagenticAnswerError is raised.
    """

    MANAGER_NAME: ClassVar[str] = "StandardMagenticManager"

    task_ledger_facts_prompt: str = prompts.FACTS_PROMPT
    task_ledger_plan_prompt: str = prompts.PLAN_PROMPT
    task_ledger_facts_update_prompt: str = prompts.FACTS_UPDATE_PROMPT
    task_ledger_plan_update_prompt: str = prompts.PLAN_UPDATE_PROMPT
    progress_ledger_prompt: str = prompts.PROGRESS_PROMPT
    final_answer_prompt: str = prompts.FINAL_PROMPT

    def __init__(
        self,
        agent: SupportsAgentRun,
        task_ledger: MagenticTaskLedger | None = None,
        *,
        max_stall_count: int = 3,
        max_reset_count: int | None = None,
        max_round_count: int | None = None,
        progress_ledger_retry_count: int | None = None,
        **prompts: Unpack[ManagerPrompts],
    ) -> None:
        super().__init__(
            max_stall_count=max_stall_count, max_reset_count=max_reset_count, max_round_count=max_round_count
        )
        self._agent = agent
        self.task_ledger = task_ledger
        if unknown := prompts.keys() - ManagerPrompts.__annotations__.keys():
            raise TypeError(f"StandardMagenticManager has no option {', '.join(map(repr, sorted(unknown)))}")
        for name, prompt in cast("Mapping[str, str | None]", prompts).items():
            if prompt:
                setattr(self, name, _check_prompt(name, prompt))
        if progress_ledger_retry_count is not None:
            self.progress_ledger_retry_count = progress_ledger_retry_count

    async def plan(self, magentic_context: MagenticContext) -> Message:
        """Ask for the facts, then for a plan."""
        return await self._make_plan(magentic_context, self.task_ledger_facts_prompt, self.task_ledger_plan_prompt)

    async def replan(self, magentic_context: MagenticContext) -> Message:
        """Ask for new facts and a new plan. Raises RuntimeError if there is no plan yet."""
        if self.task_ledger is None:
            raise RuntimeError("there is no plan yet: call plan() before replan()")
        prompts = self.task_ledger_facts_update_prompt, self.task_ledger_plan_update_prompt
        return await self._make_plan(magentic_context, *prompts)

    async def _make_plan(self, context: MagenticContext, facts_prompt: str, plan_prompt: str) -> Message:
        values = _placeholders(context, self.task_ledger)
        about_facts = Message("user", [facts_prompt.format_map(values)])
        facts = await self._answer([*context.chat_history, about_facts], what="list of facts")
        about_plan = Message("user", [plan_prompt.format_map(values)])
        plan = await self._answer([*context.chat_history, about_facts, facts, about_plan], what="plan")
        self.task_ledger = MagenticTaskLedger(facts, plan)
        ledger_text = self.task_ledger_full_prompt.format_map({**values, "facts": facts.text, "plan": plan.text})
        return Message("assistant", [ledger_text], author_name=MAGENTIC_MANAGER_NAME)

    async def create_progress_ledger(self, magentic_context: MagenticContext) -> MagenticProgressLedger:
        """Ask for the team's progress."""
        values = _placeholders(magentic_context, self.task_ledger)
        question = [*magentic_context.chat_history, Message("user", [self.progress_ledger_prompt.format_map(values)])]
        names = list(magentic_context.participant_descriptions)

        def check(answer: Message) -> Message:
            parse_ledger(require_words(answer).text, names)
            return answer

        answer = await self._answer(question, what="progress ledger", check=check)
        return parse_ledger(answer.text, names)

    async def prepare_final_answer(self, magentic_context: MagenticContext) -> Message:
        """Ask for the answer to the task."""
        values = _placeholders(magentic_context, self.task_ledger)
        question = Message("user", [self.final_answer_prompt.format_map(values)])
        answer = await self._answer([*magentic_context.chat_history, question], what="final answer")
        return Message("assistant", [answer.text], author_name=answer.author_name or MAGENTIC_MANAGER_NAME)

    async def _answer(
        self, messages: list[Message], *, what: str, check: Callable[[Message], Message] = require_words
    ) -> Message:
        return await ask_until_valid(
            lambda corrections: self._complete([*messages, *corrections]),
            check,
            what=what,
            attempts=self.progress_ledger_retry_count,
        )

    async def _complete(self, messages: list[Message]) -> Message:
        """Return the agent's answer. Each question has the whole conversation, so the session is new."""
        with return_requests(self._agent):
            response: AgentResponse[Any] = await self._agent.run(messages, session=self._agent.create_session())
        if response.user_input_requests:
            raise MagenticAnswerError(
                "the manager's agent asked for an approval, which it can't get: give it tools without "
                "approval_mode='always_require', or give those tools to a participant"
            )
        with_words = [message for message in response.messages if message.text.strip()]
        return with_words[-1] if with_words else Message("assistant", [])

    def on_checkpoint_save(self) -> dict[str, Any]:
        """Return the facts and the plan."""
        return {} if self.task_ledger is None else {"task_ledger": self.task_ledger.to_dict()}

    def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        """Restore the facts and the plan."""
        ledger = state.get("task_ledger")
        self.task_ledger = None if ledger is None else MagenticTaskLedger.from_dict(ledger)


_PLACEHOLDERS: Final[Sequence[str]] = ("task", "team", "names", "facts", "old_facts", "plan")


def _placeholders(context: MagenticContext, ledger: MagenticTaskLedger | None) -> Mapping[str, str]:
    """Return the values of the placeholders, which every prompt may use."""
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


def _check_prompt(name: str, prompt: str) -> str:
    """Return the prompt. Raises ValueError if its placeholders can't be filled in."""
    try:
        prompt.format(**dict.fromkeys(_PLACEHOLDERS, ""))
    except (KeyError, ValueError, IndexError, AttributeError) as error:
        values = ", ".join(f"{{{each}}}" for each in _PLACEHOLDERS)
        raise ValueError(
            f"{name} can't be filled in: {type(error).__name__}: {error}; the placeholders are {values}; write any "
            "other brace twice"
        ) from error
    return prompt
