"""Turn-based chat: one participant speaks at a time, and a function or an agent selects the next one."""

from __future__ import annotations

import inspect
import logging
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from typing_extensions import override

from perdure import Message, register_type
from perdure.orchestrations.messages import shared_messages
from perdure.orchestrations.orchestrator import BaseGroupChatOrchestrator

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure import AgentExecutorResponse
    from perdure.orchestrations.orchestrator import GroupChatContext, GroupChatResponseMessage
    from perdure.orchestrations.participants import ParticipantRegistry
    from perdure.orchestrations.termination import TerminationCondition

logger = logging.getLogger(__name__)

DEFAULT_ORCHESTRATOR_ID = "group_chat_orchestrator"
"""Id of an orchestrator that has no name of its own."""
_QUEUED_KEY = "unheard"


@dataclass(frozen=True)
class GroupChatState:
    """Input of a selection function: the round from 0, the participants' descriptions, and the conversation."""

    current_round: int
    participants: OrderedDict[str, str]
    conversation: list[Message]


GroupChatSelectionFunction: TypeAlias = Callable[[GroupChatState], str | Awaitable[str]]
"""Function that returns the name of the next speaker."""


def round_robin(state: GroupChatState) -> str:
    """Select the participants in order, again and again."""
    return list(state.participants)[state.current_round % len(state.participants)]


@dataclass
class QueuedMessage:
    """A message that the other participants have not received yet. `speaker` is None for input."""

    speaker: str | None
    message: Message


register_type(QueuedMessage, name="perdure:Unheard")


class TurnBasedOrchestrator(BaseGroupChatOrchestrator):
    """Leads a chat in rounds. A subclass selects the next speaker or returns the final message."""

    keeps_conversation: ClassVar[bool] = True
    """Tells a workflow as agent that this executor keeps the conversation, so it needs only new messages."""

    @property
    def _queued(self) -> list[QueuedMessage]:
        """Messages that the participants have not received yet."""
        return self._run_state.notes.setdefault(_QUEUED_KEY, [])

    @abstractmethod
    async def _select(self, ctx: GroupChatContext) -> str | Message:
        """Return the name of the next speaker, or a final message that ends the chat."""

    @override
    def _append_messages(self, messages: Sequence[Message]) -> None:
        """Add messages that no participant sent."""
        super()._append_messages(messages)
        self._queued.extend(QueuedMessage(None, message) for message in messages)

    @override
    async def _handle_messages(self, messages: list[Message], ctx: GroupChatContext) -> None:
        """Start or continue with a task. While a participant is about to answer, only deliver the messages."""
        self._append_messages(messages)
        if self._awaited:
            await self._deliver_messages(ctx)
            return
        self._round_index = 0
        if not await self._check_terminate_and_yield(ctx):
            await self._select_and_ask(ctx)

    @override
    async def _handle_response(
        self, response: AgentExecutorResponse | GroupChatResponseMessage, ctx: GroupChatContext
    ) -> None:
        """Record a participant's answer and ask the next speaker."""
        speaker = ctx.get_source_executor_id()
        messages = shared_messages(self._process_participant_response(response), speaker)
        super()._append_messages(messages)
        self._queued.extend(QueuedMessage(speaker, message) for message in messages)
        if self._awaited:
            logger.warning("participant %r spoke while it was the turn of %r", speaker, self._awaited[0])
            await self._deliver_messages(ctx)
        elif not await self._check_terminate_and_yield(ctx) and not await self._check_round_limit_and_yield(ctx):
            await self._select_and_ask(ctx)

    async def _select_and_ask(self, ctx: GroupChatContext) -> None:
        """Start the next round, or end the chat."""
        selected = await self._select(ctx)
        if isinstance(selected, Message):
            await self._end(selected, ctx)
            return
        await self._deliver_messages(ctx)
        await self._send_request_to_participant(selected, ctx)
        self._increment_round()

    async def _deliver_messages(self, ctx: GroupChatContext) -> None:
        """Send each participant the messages of the others that it has not received."""
        for name in self._participant_registry.participants:
            messages = [each.message for each in self._queued if each.speaker != name]
            if messages:
                await self._broadcast_messages_to_participants(messages, ctx, [name])
        self._queued.clear()


class GroupChatOrchestrator(TurnBasedOrchestrator):
    """Leads a chat in which a function selects the next speaker."""

    def __init__(
        self,
        id: str,  # noqa: A002 - the documented name
        participant_registry: ParticipantRegistry | None = None,
        selection_func: GroupChatSelectionFunction = round_robin,
        *,
        name: str | None = None,
        max_rounds: int | None = None,
        termination_condition: TerminationCondition | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            id,
            participant_registry,
            name=name,
            max_rounds=max_rounds,
            termination_condition=termination_condition,
            **kwargs,
        )
        if not callable(selection_func):
            raise TypeError(f"selection_func must be a function of a GroupChatState, not {selection_func!r}")
        self._selection_func = selection_func

    @override
    async def _select(self, ctx: GroupChatContext) -> str:
        """Call the selection function. Raises RuntimeError if it returns an unknown name."""
        names = self._participant_registry.participants
        state = GroupChatState(self._round_index, OrderedDict(names), self._get_conversation())
        selected: Any = self._selection_func(state)
        if inspect.isawaitable(selected):
            selected = await selected
        if not isinstance(selected, str) or selected not in names:
            known = ", ".join(map(repr, names))
            raise RuntimeError(
                f"selection_func returned {selected!r}, which is not a participant; the participants are {known}"
            )
        return selected
