"""`BaseGroupChatOrchestrator`: who leads a chat. Subclass it to lead one in your own way."""

from __future__ import annotations

import logging
from abc import ABC
from typing import TYPE_CHECKING, Any, ClassVar

from perdure import (
    AgentExecutorRequest,
    AgentExecutorResponse,
    AgentResponse,
    Log,
    Message,
    WorkflowEvent,
    handler,
)
from perdure.orchestrations.conversation import messages_of
from perdure.orchestrations.orchestrator_keeping import KeepingOrchestrator
from perdure.orchestrations.orchestrator_messages import (
    GroupChatContext,
    GroupChatParticipantMessage,
    GroupChatRequestMessage,
    GroupChatRequestSentEvent,
    GroupChatResponseMessage,
    GroupChatResponseReceivedEvent,
    create_completion_message,
)
from perdure.orchestrations.termination import is_over, require_condition

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure.orchestrations.orchestrator_registry import ParticipantRegistry
    from perdure.orchestrations.termination import TerminationCondition

logger = logging.getLogger(__name__)


class BaseGroupChatOrchestrator(KeepingOrchestrator, ABC):
    """Leads a chat: it is given the task, asks participants to speak, hears what they say, and has the last word.

    A subclass says what to do with a task (`_handle_messages`) and with an answer (`_handle_response`). The methods
    below are for it: they keep the conversation, count rounds, tell everybody, ask somebody, and end the chat. What
    they keep belongs to the run and is in its checkpoint; of a call that fails nothing is kept. What
    `_snapshot_pattern_metadata` and `_restore_pattern_metadata` add is kept in the same way. A new run begins with what
    the orchestrator was made with.

    Who takes part is told by the builder, if `participant_registry` is not given.
    """

    TERMINATION_CONDITION_MET_MESSAGE: ClassVar[str] = "The group chat has reached its termination condition."
    MAX_ROUNDS_MET_MESSAGE: ClassVar[str] = "The group chat has reached the maximum number of rounds."

    def __init__(
        self,
        id: str,  # noqa: A002 - the documented name
        participant_registry: ParticipantRegistry | None = None,
        *,
        name: str | None = None,
        max_rounds: int | None = None,
        termination_condition: TerminationCondition | None = None,
        **kwargs: Any,
    ) -> None:
        require_condition(termination_condition)
        super().__init__(id, name=name, **kwargs)
        self._max_rounds = None if max_rounds is None else max(1, max_rounds)
        self._termination_condition = termination_condition
        self._registry = participant_registry

    def join(
        self,
        registry: ParticipantRegistry,
        *,
        max_rounds: int | None = None,
        termination_condition: TerminationCondition | None = None,
    ) -> tuple[int | None, TerminationCondition | None]:
        """Take what the builder knows, as far as the orchestrator was not given it. Raises ValueError.

        What holds then: after how many rounds the chat ends, and on which condition.
        """
        if self._registry is not None and list(self._registry.participants) != list(registry.participants):
            mine, its = (", ".join(map(repr, each.participants)) for each in (self._registry, registry))
            raise ValueError(f"orchestrator {self.id!r} knows the participants {mine}, and the chat has {its}")
        self._registry = self._registry or registry
        if self._max_rounds is None and max_rounds is not None:
            self._max_rounds = max(1, max_rounds)
        self._termination_condition = self._termination_condition or termination_condition
        return self._max_rounds, self._termination_condition

    @property
    def _participant_registry(self) -> ParticipantRegistry:
        if self._registry is None:
            raise RuntimeError(f"orchestrator {self.id!r} has no participants: give it to a GroupChatBuilder")
        return self._registry

    @handler
    async def handle_str(self, task: str, ctx: GroupChatContext) -> None:
        """Begin with a text."""
        await self._handle_messages(messages_of(task), ctx)

    @handler
    async def handle_message(self, task: Message, ctx: GroupChatContext) -> None:
        """Begin with a message."""
        await self._handle_messages([task], ctx)

    @handler
    async def handle_messages(self, task: list[str | Message], ctx: GroupChatContext) -> None:
        """Begin with messages. Raises ValueError if there are none."""
        if not task:
            raise ValueError("a chat begins with a message: the list is empty")
        await self._handle_messages(messages_of(task), ctx)

    @handler
    async def handle_participant_response(
        self, response: AgentExecutorResponse | GroupChatResponseMessage, ctx: GroupChatContext
    ) -> None:
        """Hear what a participant has said."""
        speaker = ctx.get_source_executor_id()
        if speaker in self._awaited:
            self._awaited.remove(speaker)
        heard = GroupChatResponseReceivedEvent(round_index=self._round_index, participant_name=speaker)
        await ctx.add_event(WorkflowEvent("group_chat", heard))
        await self._handle_response(response, ctx)

    async def _handle_messages(self, messages: list[Message], ctx: GroupChatContext) -> None:
        """Do something about a task."""
        raise NotImplementedError(f"{type(self).__name__} needs an async method _handle_messages(messages, ctx)")

    async def _handle_response(
        self, response: AgentExecutorResponse | GroupChatResponseMessage, ctx: GroupChatContext
    ) -> None:
        """Do something about an answer."""
        raise NotImplementedError(f"{type(self).__name__} needs an async method _handle_response(response, ctx)")

    def _append_messages(self, messages: Sequence[Message]) -> None:
        """Add to the conversation."""
        self._full_conversation.extend(messages)

    def _get_conversation(self) -> list[Message]:
        """The conversation so far, as a list of your own."""
        return list(self._full_conversation)

    def _clear_conversation(self) -> None:
        """Forget the conversation."""
        self._state_at_work.conversation = Log()

    def _process_participant_response(
        self, response: AgentExecutorResponse | GroupChatResponseMessage
    ) -> list[Message]:
        """The messages of an answer."""
        if isinstance(response, GroupChatResponseMessage):
            return [response.message]
        return list(response.agent_response.messages)

    def _increment_round(self) -> None:
        """Count a round."""
        self._round_index += 1

    async def _check_termination(self) -> bool:
        """Whether the termination condition says that it is over."""
        return await is_over(self._termination_condition, self._full_conversation)

    async def _check_terminate_and_yield(self, ctx: GroupChatContext) -> bool:
        """End the chat if the termination condition says so; whether it did."""
        if not await self._check_termination():
            return False
        await self._end(self._create_completion_message(self.TERMINATION_CONDITION_MET_MESSAGE), ctx)
        return True

    def _check_round_limit(self) -> bool:
        """Whether there were as many rounds as there may be."""
        is_reached = self._max_rounds is not None and self._round_index >= self._max_rounds
        if is_reached:
            logger.info("the chat of %r ends: it has had %d rounds", self.id, self._round_index)
        return is_reached

    async def _check_round_limit_and_yield(self, ctx: GroupChatContext) -> bool:
        """End the chat if there were as many rounds as there may be; whether it did."""
        if not self._check_round_limit():
            return False
        await self._end(self._create_completion_message(self.MAX_ROUNDS_MET_MESSAGE), ctx)
        return True

    def _create_completion_message(self, message: str) -> Message:
        """The last word, in the orchestrator's name."""
        return create_completion_message(text=message, author_name=self._name)

    async def _end(self, last_word: Message, ctx: GroupChatContext) -> None:
        """Add the last word to the conversation, and yield it. It is for the outside: no participant is told."""
        self._full_conversation.append(last_word)
        await self._yield_completion(ctx, last_word)

    async def _yield_completion(self, ctx: GroupChatContext, completion_message: Message) -> None:
        """Yield a message as the output. Who reads a stream is told an update."""
        await ctx.yield_output(AgentResponse(messages=[completion_message]), in_pieces=True)

    async def _broadcast_messages_to_participants(
        self, messages: list[Message], ctx: GroupChatContext, participants: Sequence[str] | None = None
    ) -> None:
        """Tell participants, or all of them, what was said; they are not asked to speak."""
        registry = self._participant_registry
        for name in registry.participants if participants is None else participants:
            is_agent = registry.is_agent(name)
            told = list(messages)
            await ctx.send_message(
                AgentExecutorRequest(told, should_respond=False) if is_agent else GroupChatParticipantMessage(told),
                target_id=name,
            )

    async def _send_request_to_participant(
        self,
        target: str,
        ctx: GroupChatContext,
        *,
        additional_instruction: str | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> None:
        """Ask a participant to speak; `metadata` is for executors alone. Raises ValueError if there is none such."""
        if self._participant_registry.is_agent(target):
            said = [Message("user", [additional_instruction])] if additional_instruction else []
            await ctx.send_message(AgentExecutorRequest(said, should_respond=True), target_id=target)
        else:
            await ctx.send_message(GroupChatRequestMessage(additional_instruction, metadata), target_id=target)
        self._awaited.append(target)
        asked = GroupChatRequestSentEvent(round_index=self._round_index, participant_name=target)
        await ctx.add_event(WorkflowEvent("group_chat", asked))
