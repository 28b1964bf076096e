"""A conversation that is known beforehand, and the model that plays its part in it."""

from __future__ import annotations

import random
import string
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

T = TypeVar("T")

QUESTION_BYTES: Final = 300
ANSWER_BYTES: Final = 700
TURN_BYTES: Final = QUESTION_BYTES + ANSWER_BYTES
_TOKEN_BYTES = 4


@dataclass(frozen=True, slots=True)
class Script:
    """Questions and answers, turn by turn: random texts that no database can compress."""

    questions: tuple[str, ...]
    answers: tuple[str, ...]

    @classmethod
    def of(cls, turns: int) -> Script:
        """Make the texts. They are equal in every round and for every peer."""
        chance = random.Random(turns)  # noqa: S311 - nobody has to be kept from guessing them
        letters = string.ascii_letters + string.digits

        def texts(size: int) -> tuple[str, ...]:
            return tuple("".join(chance.choices(letters, k=size)) for _ in range(turns))

        return cls(texts(QUESTION_BYTES), texts(ANSWER_BYTES))

    @property
    def size(self) -> int:
        """The characters of all that is said."""
        return sum(map(len, self.questions)) + sum(map(len, self.answers))


@dataclass(frozen=True, slots=True)
class Said:
    """A response of the model."""

    text: str
    input_tokens: int
    output_tokens: int


class Model:
    """Stands in for a model, which finds its place by what it is shown: whoever forgets gets another answer.

    `heard` are the characters that it was shown in the last turn. In the others it doesn't read, for a real model is
    not read to by the process that asks it.
    """

    def __init__(self, script: Script) -> None:
        self._answers = script.answers
        self.heard = 0

    def reply(self, shown: Sequence[T], text: Callable[[T], str]) -> Said:
        """The answer to a conversation; `text` says what stands in a message."""
        turn = len(shown) // 2
        if turn == len(self._answers) - 1:
            self.heard = sum(len(text(message)) for message in shown)
        tokens = (turn * TURN_BYTES + QUESTION_BYTES) // _TOKEN_BYTES
        return Said(self._answers[turn], tokens, ANSWER_BYTES // _TOKEN_BYTES)
