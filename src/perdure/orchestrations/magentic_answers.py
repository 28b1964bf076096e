"""What managers answer, looked at before anybody acts on it: a ledger that is none is told what is wrong with it."""

from __future__ import annotations

import ast
import json
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from perdure import AgentInvalidResponseException, Message
from perdure.orchestrations.magentic_prompts import CORRECTION
from perdure.orchestrations.magentic_types import MagenticProgressLedger, MagenticProgressLedgerItem

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping

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
