"""Compaction: shorten a conversation before a model sees it. The history keeps what was said."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

from perdure.agents.client.tokens import CharacterEstimatorTokenizer, TokenizerProtocol, count_message_tokens
from perdure.agents.messages.message import Message
from perdure.errors import ChatClientInvalidRequestException, ChatClientInvalidResponseException
from perdure.graph import StepCall, activation_at_work, begin_step
from perdure.records import digest

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from perdure.agents.client.base import SupportsChatGetResponse

EXCLUDED: Final = "_excluded"
"""Key in `additional_properties` by which a strategy hides a message from the model."""
_SYSTEM: Final = frozenset({"system", "developer"})
_TOO_LONG: Final = (
    *("context_length_exceeded", "context length", "context window", "context size"),
    *("prompt is too long", "input is too long", "input token count", "too many tokens"),
)
_PROMPT: Final = (
    "Summarize the conversation above for an assistant that will continue it. Keep facts, decisions, names, numbers, "
    "results of tools and open questions. Answer with the summary alone."
)


@runtime_checkable
class CompactionStrategy(Protocol):
    """Shorten a conversation before a model sees it."""

    async def __call__(self, messages: list[Message]) -> bool:
        """Change the list or mark messages as excluded. Returns True if anything changed.

        The messages are copies: the history keeps the originals.
        """
        ...


def is_too_long(error: BaseException) -> bool:
    """Return True if a provider refused a request because the conversation is too long."""
    text = str(error).lower()
    return isinstance(error, ChatClientInvalidRequestException) and any(sign in text for sign in _TOO_LONG)


def included(messages: Iterable[Message]) -> list[Message]:
    """Return the messages that are not excluded."""
    return [message for message in messages if not message.additional_properties.get(EXCLUDED)]


def _groups(messages: Iterable[Message], *, preserve_system: bool = True) -> list[list[Message]]:
    """Return what can be excluded, oldest first. A tool call, its approval and its result are in one group."""
    groups: list[list[Message]] = []
    group_of: dict[str, int] = {}
    for message in included(messages):
        if preserve_system and message.role in _SYSTEM:
            continue
        about = [content.function_call or content for content in message.contents]
        ids = {content.call_id for content in about if content.call_id}
        first = min((group_of[each] for each in ids if each in group_of), default=len(groups))
        groups[first:] = [[each for group in groups[first:] for each in group] + [message]]
        group_of = {each: min(place, first) for each, place in group_of.items()} | dict.fromkeys(ids, first)
    return groups


def _exclude(groups: Iterable[Sequence[Message]]) -> bool:
    """Exclude all messages of groups. Return True if there are any."""
    excluded = [message for group in groups for message in group]
    for message in excluded:
        message.additional_properties[EXCLUDED] = True
    return bool(excluded)


def _require_positive(**numbers: int) -> None:
    for name, number in numbers.items():
        if number < 1:
            raise ValueError(f"{name} must be 1 or more, not {number!r}")


class SlidingWindowStrategy:
    """Keep the last groups of messages. A group is a message, or a tool call with its results."""

    def __init__(self, *, keep_last_groups: int, preserve_system: bool = True) -> None:
        _require_positive(keep_last_groups=keep_last_groups)
        self.keep_last_groups = keep_last_groups
        self.preserve_system = preserve_system

    async def __call__(self, messages: list[Message]) -> bool:
        """Exclude older groups."""
        return _exclude(_groups(messages, preserve_system=self.preserve_system)[: -self.keep_last_groups])


class TruncationStrategy:
    """Exclude the oldest groups if there are more than `max_n` tokens, until `compact_to` are left.

    Without a tokenizer, both numbers count messages. The last group always stays.
    """

    def __init__(
        self, *, max_n: int, compact_to: int, tokenizer: TokenizerProtocol | None = None, preserve_system: bool = True
    ) -> None:
        _require_positive(max_n=max_n, compact_to=compact_to)
        if compact_to > max_n:
            raise ValueError(f"compact_to is {compact_to}; it must not be greater than max_n, which is {max_n}")
        self.max_n = max_n
        self.compact_to = compact_to
        self.tokenizer = tokenizer
        self.preserve_system = preserve_system

    async def __call__(self, messages: list[Message]) -> bool:
        """Exclude the oldest groups."""
        size = self._size(included(messages))
        if size <= self.max_n:
            return False
        old: list[list[Message]] = []
        for group in _groups(messages, preserve_system=self.preserve_system)[:-1]:
            if size <= self.compact_to:
                break
            size -= self._size(group)
            old.append(group)
        return _exclude(old)

    def _size(self, messages: Sequence[Message]) -> int:
        return len(messages) if self.tokenizer is None else count_message_tokens(messages, self.tokenizer)


class TokenBudgetComposedStrategy:
    """Apply strategies one after the other until the conversation fits into a number of tokens.

    If none of them is enough, the oldest groups are excluded. System messages and the last group always stay.
    """

    def __init__(
        self,
        *,
        token_budget: int,
        tokenizer: TokenizerProtocol | None = None,
        strategies: Sequence[CompactionStrategy] = (),
        early_stop: bool = True,
    ) -> None:
        self.tokenizer = tokenizer or CharacterEstimatorTokenizer()
        self.token_budget = token_budget
        self.strategies = list(strategies)
        self.early_stop = early_stop
        self._last = TruncationStrategy(max_n=token_budget, compact_to=token_budget, tokenizer=self.tokenizer)

    async def __call__(self, messages: list[Message]) -> bool:
        """Apply the strategies."""
        has_changed = False
        for strategy in (*self.strategies, self._last):
            is_enough = count_message_tokens(included(messages), self.tokenizer) <= self.token_budget
            if is_enough and (self.early_stop or strategy is self._last):
                break
            has_changed |= await strategy(messages)
        return has_changed


class SummarizationStrategy:
    """Replace older messages by a summary, if there are more than `target_count + threshold` messages.

    About `target_count` messages stay. In a workflow the summary is a recorded call. A strategy remembers its
    summaries: the next one is made of the last one and what was said since. After a restart it summarizes once more.
    """

    def __init__(
        self,
        *,
        client: SupportsChatGetResponse,
        target_count: int = 4,
        threshold: int | None = 2,
        prompt: str | None = None,
    ) -> None:
        _require_positive(target_count=target_count)
        self.client = client
        self.target_count = target_count
        self.threshold = threshold or 0
        self.prompt = prompt or _PROMPT
        self._summaries: dict[str, str] = {}
        """Summaries by the digest of the messages that they stand for."""

    async def __call__(self, messages: list[Message]) -> bool:
        """Summarize older groups, or use the summary that was made of them before."""
        groups, digests = _groups(messages), [""]
        for group in groups:
            said = [[message.role, [content.to_dict() for content in message.contents]] for message in group]
            digests.append(digest(f"{digests[-1]}{said}".encode(errors="replace")))
        known = max((number for number, each in enumerate(digests) if each in self._summaries), default=0)
        end, kept = len(groups), 0
        while end > known and (not kept or kept + len(groups[end - 1]) <= self.target_count):
            end -= 1
            kept += len(groups[end])
        if sum(map(len, groups[known:])) > self.target_count + self.threshold and end > known:
            self._summaries[digests[end]] = await self._summarize(groups[known:end], digests[known], digests[end])
            known = end
        if not known:
            return False
        text = f"Summary of the conversation before:\n{self._summaries[digests[known]]}"
        messages.insert(messages.index(groups[0][0]), Message("user", [text]))
        return _exclude(groups[:known])

    async def _summarize(self, groups: Sequence[Sequence[Message]], before: str, key: str) -> str:
        """Return a summary of messages and of the summary before them. In a workflow it is a step."""
        earlier = [Message("user", [self._summaries[before]])] if before in self._summaries else []
        asked = [*earlier, *(message for group in groups for message in group), Message("user", [self.prompt])]

        async def ask() -> str:
            response: Any = await self.client.get_response(asked)
            if not response.text.strip():
                raise ChatClientInvalidResponseException(
                    "the summary of the conversation is empty; use another model or prompt for SummarizationStrategy"
                )
            return response.text

        activation = activation_at_work()
        return await (ask() if activation is None else begin_step(activation, StepCall("summary", ask, (), key[:16])))
