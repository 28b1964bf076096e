"""A chat in rounds: one participant speaks at a time, and somebody selects who is next."""

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
from perdure.orchestrations.messages import spoken
from perdure.orchestrations.orchestrator import BaseGroupChatOrchestrator

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure import AgentExecutorResponse
    from perdure.orchestrations.orchestrator import GroupChatContext, GroupChatResponseMessage
    from perdure.orchestrations.participants import ParticipantRegistry
    from perdure.orchestrations.termination import TerminationCondition

logger = logging.getLogger(__name__)

DEFAULT_ID = "group_chat_orchestrator"
"""What an orchestrator is called that has no name of its own."""
_UNHEARD = "unheard"


@dataclass(frozen=True)
class GroupChatState:
    """What a selection is made of: the number of the round, 0 for the first; who there is; and what was said."""

    current_round: int
    participants: OrderedDict[str, str]
    conversation: list[Message]


GroupChatSelectionFunction: TypeAlias = Callable[[GroupChatState], str | Awaitable[str]]
"""Selects who speaks next, by name."""


def round_robin(state: GroupChatState) -> str:
    """Selects one after the other, in the order of the participants, and then from the beginning."""
    return list(state.participants)[state.current_round % len(state.participants)]


@dataclass
class Unheard:
    """Something that was said, and by which participant, that the others have not been told."""

    speaker: str | None
    message: Message


register_type(Unheard, name="perdure:Unheard")


class SelectingOrchestrator(BaseGroupChatOrchestrator):
    """Leads a chat in rounds. A subclass selects who speaks next, or says the last word."""

    keeps_conversation: ClassVar[bool] = True
    """A workflow as agent that begins with such an executor is told only what is new, also of its own answers."""

    @property
    def _unheard(self) -> list[Unheard]:
        """What the participants have not been told."""
        return self._state_at_work.notes.setdefault(_UNHEARD, [])

    @abstractmethod
    async def _select(self, ctx: GroupChatContext) -> str | Message:
        """The name of who speaks next; or a message, and the chat ends with it."""

    @override
    def _append_messages(self, messages: Sequence[Message]) -> None:
        """Add to the conversation what no participant has said."""
        super()._append_messages(messages)
        self._unheard.extend(Unheard(None, message) for message in messages)

    @override
    async def _handle_messages(self, messages: list[Message], ctx: GroupChatContext) -> None:
        """Begin with a task, or go on with it. A word while somebody is about to speak waits for nothing else."""
        self._append_messages(messages)
        if self._awaited:
            await self._tell_everybody(ctx)
            return
        self._round_index = 0
        if not await self._check_terminate_and_yield(ctx):
            await self._go_on(ctx)

    @override
    async def _handle_response(
        self, response: AgentExecutorResponse | GroupChatResponseMessage, ctx: GroupChatContext
    ) -> None:
        """Hear what a participant has said, and let the next one speak."""
        speaker = ctx.get_source_executor_id()
        said = spoken(self._process_participant_response(response), speaker)
        super()._append_messages(said)
        self._unheard.extend(Unheard(speaker, message) for message in said)
        if self._awaited:
            logger.warning("participant %r speaks, and it is the turn of %r: it is heard", speaker, self._awaited[0])
            await self._tell_everybody(ctx)
        elif not await self._check_terminate_and_yield(ctx) and not await self._check_round_limit_and_yield(ctx):
            await self._go_on(ctx)

    async def _go_on(self, ctx: GroupChatContext) -> None:
        """The next round, or the end."""
        selected = await self._select(ctx)
        if isinstance(selected, Message):
            await self._end(selected, ctx)
            return
        await self._tell_everybody(ctx)
        await self._send_request_to_participant(selected, ctx)
        self._increment_round()

    async def _tell_everybody(self, ctx: GroupChatContext) -> None:
        """Tell each participant what the others have said since it was last told."""
        for name in self._participant_registry.participants:
            news = [each.message for each in self._unheard if each.speaker != name]
            if news:
                await self._broadcast_messages_to_participants(news, ctx, [name])
        self._unheard.clear()


class GroupChatOrchestrator(SelectingOrchestrator):
    """Leads a chat in which a function selects who speaks next."""

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
            raise TypeError(f"selection_func is a function of a GroupChatState, not {selection_func!r}")
        self._selection_func = selection_func

    @override
    async def _select(self, ctx: GroupChatContext) -> str:
        """Who the function selects. Raises RuntimeError if that is nobody."""
        names = self._participant_registry.participants
        state = GroupChatState(self._round_index, OrderedDict(names), self._get_conversation())
        selected: Any = self._selection_func(state)
        if inspect.isawaitable(selected):
            selected = await selected
        if not isinstance(selected, str) or selected not in names:
            known = ", ".join(map(repr, names))
            raise RuntimeError(f"the selection function has selected {selected!r}, who is no participant: {known}")
        return selected
