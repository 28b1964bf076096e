"""When a conversation is over: one interface for all orchestrations, and conditions that combine with `&`, `|` and `~`.

A condition is a function of the conversation and of nothing else, so a run that is resumed decides as it had decided.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from typing_extensions import override

from perdure import Message

if TYPE_CHECKING:
    from collections.abc import Sequence

TerminationCondition: TypeAlias = Callable[[list[Message]], bool | Awaitable[bool]]
"""Whether a conversation is over. It is asked about the input and after each answer, with all that was said so far."""


async def is_over(condition: TerminationCondition | None, conversation: Sequence[Message]) -> bool:
    """Whether a condition, if there is one, ends the conversation. It is given a list of its own."""
    if condition is None:
        return False
    answer: Any = condition(list(conversation))
    return bool(await answer if inspect.isawaitable(answer) else answer)


def require_condition(condition: object) -> None:
    """Raise TypeError if it can't be a condition."""
    if condition is not None and not callable(condition):
        raise TypeError(f"a termination condition is a function of the conversation, not {condition!r}")


def turns_max(condition: object, speakers: int) -> int | None:
    """After how many turns a condition ends a conversation at the latest, if each says something; None if unknown.

    `speakers` is how many take turns: one whose messages are counted may be one of many.
    """
    match condition:
        case MaxMessages():
            return condition.count * (1 if condition.by is None else max(1, speakers))
        case _Both():
            both = [turns_max(each, speakers) for each in (condition.one, condition.other)]
            known = [each for each in both if each is not None]
            return max(known) if len(known) == len(both) else None
        case _Either():
            either = [turns_max(each, speakers) for each in (condition.one, condition.other)]
            return min((each for each in either if each is not None), default=None)
        case _:
            return None


class Termination(ABC):
    """A condition that combines with others: `one & another`, `one | another`, `~one`. The other may be a function."""

    @abstractmethod
    def __call__(self, conversation: list[Message], /) -> bool | Awaitable[bool]:
        """Whether the conversation is over."""

    def __and__(self, other: TerminationCondition) -> Termination:
        """Over when both say so."""
        return _Both(self, _checked(other))

    def __rand__(self, other: TerminationCondition) -> Termination:
        """Over when both say so."""
        return _Both(_checked(other), self)

    def __or__(self, other: TerminationCondition) -> Termination:
        """Over when one of the two says so."""
        return _Either(self, _checked(other))

    def __ror__(self, other: TerminationCondition) -> Termination:
        """Over when one of the two says so."""
        return _Either(_checked(other), self)

    def __invert__(self) -> Termination:
        """Over when this one does not say so."""
        return _Not(self)


@dataclass(frozen=True)
class When(Termination):
    """A function of yours, sync or async, as a condition that combines with others."""

    condition: TerminationCondition

    def __post_init__(self) -> None:
        """Raise TypeError if it is no function."""
        _checked(self.condition)

    @override
    def __call__(self, conversation: list[Message], /) -> bool | Awaitable[bool]:
        """What the function says."""
        return self.condition(conversation)


@dataclass(frozen=True)
class MaxMessages(Termination):
    """Over when there are so many messages in the conversation, the input among them; `by` counts those of one alone.

    `by` is the name of a participant, or a role: `"user"`, `"assistant"`.
    """

    count: int
    by: str | None = None

    def __post_init__(self) -> None:
        """Raise ValueError if no conversation could be shorter."""
        if self.count < 1:
            raise ValueError(f"a conversation has at least one message: count is 1 or more, not {self.count!r}")

    @override
    def __call__(self, conversation: list[Message], /) -> bool:
        """Count."""
        return sum(self.by is None or _is_by(message, self.by) for message in conversation) >= self.count


@dataclass(frozen=True, init=False)
class TextMentioned(Termination):
    """Over when who spoke last has mentioned one of the texts.

    What the user says does not count: the task may well tell agents to end with that word. `by` says otherwise; it is
    the name of a participant, or a role: `"user"`.
    """

    texts: tuple[str, ...]
    by: str | None = None
    ignore_case: bool = False

    def __init__(self, *texts: str, by: str | None = None, ignore_case: bool = False) -> None:
        if not texts or not all(texts):
            raise ValueError("TextMentioned needs the text to look for, and the empty text is in every message")
        object.__setattr__(self, "texts", texts)
        object.__setattr__(self, "by", by)
        object.__setattr__(self, "ignore_case", ignore_case)

    @override
    def __call__(self, conversation: list[Message], /) -> bool:
        """Look for the texts in what was said last."""
        said = [message.text for message in _last_turn(conversation) if self._counts(message)]
        return any(self._folded(text) in self._folded(each) for each in said for text in self.texts)

    def _counts(self, message: Message) -> bool:
        return message.role != "user" if self.by is None else _is_by(message, self.by)

    def _folded(self, text: str) -> str:
        return text.casefold() if self.ignore_case else text


@dataclass(frozen=True, init=False)
class SpeakerWas(Termination):
    """Over when one of these has spoken last. They are names of participants, or a role: `"user"`."""

    names: tuple[str, ...]

    def __init__(self, *names: str) -> None:
        if not names:
            raise ValueError("SpeakerWas needs the name of a participant")
        object.__setattr__(self, "names", names)

    @override
    def __call__(self, conversation: list[Message], /) -> bool:
        """Look at who spoke last."""
        return bool(conversation) and any(_is_by(conversation[-1], name) for name in self.names)


@dataclass(frozen=True)
class _Both(Termination):
    one: TerminationCondition
    other: TerminationCondition

    @override
    async def __call__(self, conversation: list[Message], /) -> bool:
        return await is_over(self.one, conversation) and await is_over(self.other, conversation)


@dataclass(frozen=True)
class _Either(Termination):
    one: TerminationCondition
    other: TerminationCondition

    @override
    async def __call__(self, conversation: list[Message], /) -> bool:
        return await is_over(self.one, conversation) or await is_over(self.other, conversation)


@dataclass(frozen=True)
class _Not(Termination):
    one: TerminationCondition

    @override
    async def __call__(self, conversation: list[Message], /) -> bool:
        return not await is_over(self.one, conversation)


def _checked(condition: TerminationCondition) -> TerminationCondition:
    if condition is None:  # pyright: ignore[reportUnnecessaryComparison] - users' code is not always checked
        raise TypeError("None ends no conversation: combine conditions with functions of the conversation")
    require_condition(condition)
    return condition


def _is_by(message: Message, name: str) -> bool:
    return name in (message.author_name, message.role)


def _last_turn(conversation: Sequence[Message]) -> list[Message]:
    """What was said last, by one speaker, in one message or more."""
    turn: list[Message] = []
    for message in reversed(conversation):
        if turn and (message.role, message.author_name) != (turn[0].role, turn[0].author_name):
            break
        turn.append(message)
    return turn
