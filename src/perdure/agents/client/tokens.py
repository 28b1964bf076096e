"""Tokens: counting them in texts, and spending them from the budget of a run."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias, runtime_checkable

from perdure.agents.messages.responses import Response, token_spending
from perdure.errors import ChatClientInvalidResponseException

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from perdure.agents.messages.content import Content
    from perdure.agents.messages.message import Message
    from perdure.engine import ActivationRecorder

MissingUsage: TypeAlias = Literal["estimate", "warn", "raise"]
"""The policy for a response without token counts in a run with a token budget.

"estimate": count the tokens of the texts and emit a `warning` event. "warn": count nothing and emit the event.
"raise": stop the run.
"""

TOKEN_RESOURCES: Final = ("input_tokens", "output_tokens", "total_tokens")


@runtime_checkable
class TokenizerProtocol(Protocol):
    """Count tokens for compaction strategies and for models that don't report them."""

    def count_tokens(self, text: str) -> int:
        """Return the number of tokens of a text."""
        ...


class CharacterEstimatorTokenizer:
    """Estimate tokens: one for four characters of English, and more for scripts whose characters are longer."""

    def count_tokens(self, text: str) -> int:
        """Return the estimated number of tokens of a text, 1 or more."""
        return max(1, len(text.encode(errors="replace")) // 4)


def count_message_tokens(messages: Iterable[Message], tokenizer: TokenizerProtocol) -> int:
    """Count the tokens of texts, tool calls and tool results. Images and files are not counted."""
    texts = (_text_of(content) for message in messages for content in message.contents)
    return sum(tokenizer.count_tokens(text) for text in texts if text)


def _text_of(content: Content) -> str:
    if content.type == "function_call":
        given: Any = content.arguments
        arguments = given if isinstance(given, str) else json.dumps(given or {}, default=str)
        return f"{content.name} {arguments}"
    return str(content.result or "") if content.type == "function_result" else content.text or ""


@dataclass(frozen=True, slots=True)
class TokenCounter:
    """Count the tokens of a call against the budget of the run."""

    activation: ActivationRecorder | None
    messages: Sequence[Message]
    tokenizer: TokenizerProtocol | None = None
    missing: MissingUsage = "estimate"

    def count(self, response: Response[Any]) -> None:
        """Report what a response has cost, as reported by the model or else estimated."""
        if self.activation is None:
            return
        self.activation.describe_step(model=getattr(response, "model", None))
        spent = _reported(response)
        if self._missing_in(response) and self.missing != "warn":
            tokenizer = self.tokenizer or CharacterEstimatorTokenizer()
            asked = count_message_tokens(self.messages, tokenizer)
            answered = count_message_tokens(response.messages, tokenizer)
            spent = {"input_tokens": asked, "output_tokens": answered, "total_tokens": asked + answered, **spent}
        if spent:
            self.activation.spend(spent)

    def check(self, response: Response[Any]) -> None:
        """Warn or raise if a limited resource was not reported.

        Raises ChatClientInvalidResponseException.
        """
        missing = self._missing_in(response)
        if self.activation is None or not missing:
            return
        names = " and ".join(missing)
        if self.missing == "raise":
            raise ChatClientInvalidResponseException(
                f"the model reports no {names}, and the run has a budget for them; let the server report token usage, "
                "or set missing_usage of the client to 'estimate', or use a budget without them"
            )
        consequence = "they are estimated" if self.missing == "estimate" else "the budget can't be enforced"
        self.activation.warn_once_per_run(f"a model reports no {names}, which the run's budget limits; {consequence}")

    def _missing_in(self, response: Response[Any]) -> list[str]:
        if self.activation is None:
            return []
        limited, reported = self.activation.left, _reported(response)
        return [name for name in TOKEN_RESOURCES if name in limited and not reported.get(name)]


def _reported(response: Response[Any]) -> dict[str, float]:
    spent = token_spending(response)
    return {"total_tokens": sum(spent.values()), **spent} if spent else {}
