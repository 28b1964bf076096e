"""Termination conditions for all orchestrations. They combine with `&`, `|` and `~`.

A condition depends on the conversation alone, so a resumed run decides as it did before.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from perdure import Message

TerminationCondition: TypeAlias = Callable[[list[Message]], bool | Awaitable[bool]]
"""Function of the whole conversation that returns True to end it. Called for the input and after each answer."""


async def should_terminate(condition: TerminationCondition | None, conversation: Sequence[Message]) -> bool:
    """Return True if a condition ends the conversation. The condition gets its own list."""
    if condition is None:
        return False
    answer: Any = condition(list(conversation))
    return bool(await answer if inspect.isawaitable(answer) else answer)


def check_condition(condition: object) -> None:
    """Raise TypeError if the value can't be a condition."""
    if condition is not None and not callable(condition):
        raise TypeError(f"a termination condition must be a function of the conversation, not {condition!r}")


def turn_limit(condition: object, speakers: int) -> int | None:
    """Return the number of turns after which a condition surely holds, or None if that is unknown.

    `speakers` is the number of participants that take turns: `MaxMessages(by=...)` may count only one of them.
    """
    match condition:
        case MaxMessages():
            return condition.count * (1 if condition.by is None else max(1, speakers))
        case _Combined():
            both = [turn_limit(each, speakers) for each in (condition.one, condition.other)]
            known = [each for each in both if each is not None]
            if condition.needs_both:
                return max(known) if len(known) == len(both) else None
            return min(known, default=None)
        case _:
            return None


class Termination(ABC):
    """A condition that combines with other conditions and functions: `one & another`, `one | another`, `~one`."""

    @abstractmethod
    def __call__(self, conversation: list[Message], /) -> bool | Awaitable[bool]:
        """Return True to end the conversation."""

    def __and__(self, other: TerminationCondition) -> Termination:
        """Hold when both hold."""
        return _Combined(self, _check_operand(other), needs_both=True)

    def __rand__(self, other: TerminationCondition) -> Termination:
        """Hold when both hold."""
        return _Combined(_check_operand(other), self, needs_both=True)

    def __or__(self, other: TerminationCondition) -> Termination:
        """Hold when at least one holds."""
        return _Combined(self, _check_operand(other), needs_both=False)

    def __ror__(self, other: TerminationCondition) -> Termination:
        """Hold when at least one holds."""
        return _Combined(_check_operand(other), self, needs_both=False)

    def __invert__(self) -> Termination:
        """Hold when this condition does not."""
        return _Not(self)


@dataclass(frozen=True)
class When(Termination):
    """Wraps your function, sync or async, so that it combines with other conditions."""

    condition: TerminationCondition

    def __post_init__(self) -> None:
        """Raise TypeError if the condition is not callable."""
        _check_operand(self.condition)

    def __call__(self, conversation: list[Message], /) -> bool | Awaitable[bool]:
        """Call the function."""
        return self.condition(conversation)


@dataclass(frozen=True)
class MaxMessages(Termination):
    """Holds when the conversation, including the input, has `count` messages.

    `by` counts only the messages of one participant, or of one role: `"user"`, `"assistant"`.
    """

    count: int
    by: str | None = None

    def __post_init__(self) -> None:
        """Raise ValueError if the count is less than 1."""
        if self.count < 1:
            raise ValueError(f"count must be 1 or more, because a conversation has a message; got {self.count!r}")

    def __call__(self, conversation: list[Message], /) -> bool:
        """Count the messages."""
        return sum(self.by is None or _was_sent_by(message, self.by) for message in conversation) >= self.count


@dataclass(frozen=True, init=False)
class TextMentioned(Termination):
    """Holds when the last speaker mentioned one of the texts.

    User messages don't count by default, since the task may tell agents to end with that word. `by` selects another
    speaker: the name of a participant, or a role such as `"user"`.
    """

    texts: tuple[str, ...]
    by: str | None = None
    ignore_case: bool = False

    def __init__(self, *texts: str, by: str | None = None, ignore_case: bool = False) -> None:
        if not texts or not all(texts):
            raise ValueError("TextMentioned needs a text to look for; an empty text is in every message")
        object.__setattr__(self, "texts", texts)
        object.__setattr__(self, "by", by)
        object.__setattr__(self, "ignore_case", ignore_case)

    def __call__(self, conversation: list[Message], /) -> bool:
        """Look for the texts in the last turn."""
        found = [message.text for message in _last_turn(conversation) if self._counts(message)]
        return any(self._folded(text) in self._folded(each) for each in found for text in self.texts)

    def _counts(self, message: Message) -> bool:
        return message.role != "user" if self.by is None else _was_sent_by(message, self.by)

    def _folded(self, text: str) -> str:
        return text.casefold() if self.ignore_case else text


@dataclass(frozen=True, init=False)
class SpeakerWas(Termination):
    """Holds when one of these spoke last. Give names of participants or a role such as `"user"`."""

    names: tuple[str, ...]

    def __init__(self, *names: str) -> None:
        if not names:
            raise ValueError("SpeakerWas needs the name of a participant")
        object.__setattr__(self, "names", names)

    def __call__(self, conversation: list[Message], /) -> bool:
        """Check the author of the last message."""
        return bool(conversation) and any(_was_sent_by(conversation[-1], name) for name in self.names)


@dataclass(frozen=True)
class _Combined(Termination):
    one: TerminationCondition
    other: TerminationCondition
    needs_both: bool

    async def __call__(self, conversation: list[Message], /) -> bool:
        is_met = await should_terminate(self.one, conversation)
        return is_met if is_met != self.needs_both else await should_terminate(self.other, conversation)


@dataclass(frozen=True)
class _Not(Termination):
    one: TerminationCondition

    async def __call__(self, conversation: list[Message], /) -> bool:
        return not await should_terminate(self.one, conversation)


def _check_operand(condition: TerminationCondition) -> TerminationCondition:
    if condition is None:  # pyright: ignore[reportUnnecessaryComparison] - users' code is not always checked
        raise TypeError("None is not a condition: combine conditions with functions of the conversation")
    check_condition(condition)
    return condition


def _was_sent_by(message: Message, name: str) -> bool:
    return name in (message.author_name, message.role)


def _last_turn(conversation: Sequence[Message]) -> list[Message]:
    """Return the last messages that have the same speaker."""
    turn: list[Message] = []
    for message in reversed(conversation):
        if turn and (message.role, message.author_name) != (turn[0].role, turn[0].author_name):
            break
        turn.append(message)
    return turn
