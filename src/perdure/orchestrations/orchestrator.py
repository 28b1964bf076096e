"""`BaseGroupChatOrchestrator`: who leads a chat. Subclass it to lead one in your own way."""

from __future__ import annotations

import functools
import inspect
import logging
from abc import ABC
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, cast

from typing_extensions import override

from perdure import (
    AgentExecutorRequest,
    AgentExecutorResponse,
    AgentResponse,
    Executor,
    Log,
    Message,
    WorkflowContext,
    WorkflowEvent,
    handler,
)
from perdure.orchestrations.messages import (
    GroupChatContext,
    GroupChatParticipantMessage,
    GroupChatRequestMessage,
    GroupChatRequestSentEvent,
    GroupChatResponseMessage,
    GroupChatResponseReceivedEvent,
    create_completion_message,
    messages_of,
)
from perdure.orchestrations.termination import is_over, require_condition

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from perdure.orchestrations.participants import ParticipantRegistry
    from perdure.orchestrations.termination import TerminationCondition


@dataclass
class OrchestrationState:
    """The conversation, how many rounds it has had, and in `metadata` what a subclass adds.

    `awaited` are the participants that were asked and have not answered yet; `notes` is what the kinds of orchestrators
    that come with the library add.
    """

    conversation: Sequence[Message] = field(default_factory=Log[Message])
    round_index: int = 0
    orchestrator_name: str = ""
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    task: Message | None = None
    awaited: list[str] = field(default_factory=list[str])
    notes: dict[str, Any] = field(default_factory=dict[str, Any])

    def to_dict(self) -> dict[str, Any]:
        """The fields by name; without a task, if there is none."""
        found: dict[str, Any] = {
            "conversation": self.conversation,
            "round_index": self.round_index,
            "orchestrator_name": self.orchestrator_name,
            "metadata": dict(self.metadata),
            "awaited": list(self.awaited),
            "notes": dict(self.notes),
        }
        return found if self.task is None else {**found, "task": self.task}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> OrchestrationState:
        """The state of what `to_dict` gave. What is not there is as in the beginning."""
        return cls(
            conversation=data.get("conversation", Log()),
            round_index=data.get("round_index", 0),
            orchestrator_name=data.get("orchestrator_name", ""),
            metadata=dict(data.get("metadata", {})),
            task=data.get("task"),
            awaited=list(data.get("awaited", ())),
            notes=dict(data.get("notes", {})),
        )


class Keeper(Protocol):
    """Who has a state in each run."""

    def keeping(self, ctx: WorkflowContext[Any, Any], /) -> AbstractContextManager[None]:
        """In it, the state is that of the run."""
        ...


def with_state(method: Callable[..., Any]) -> Callable[..., Any]:
    """The same method. When it is called with a context, it sees the state of that run, and what it changes is kept."""

    @functools.wraps(method)
    async def kept(self: Keeper, *args: Any, **kwargs: Any) -> Any:
        given = (*args, *kwargs.values())
        contexts = [cast("WorkflowContext[Any, Any]", each) for each in given if isinstance(each, WorkflowContext)]
        with self.keeping(contexts[0]) if contexts else nullcontext():
            return await method(self, *args, **kwargs)

    kept.__keeps_state__ = True  # pyright: ignore[reportFunctionMemberAccess, reportAttributeAccessIssue]
    return kept


def is_with_state(method: object) -> bool:
    """Whether a method was made by `with_state`."""
    return getattr(method, "__keeps_state__", False)


_KEPT = "orchestration"
_AT_WORK: ContextVar[Mapping[int, OrchestrationState]] = ContextVar("_AT_WORK")
"""The states of the runs that are at work here, by orchestrator: one may lead a chat inside of another's."""


class KeepingOrchestrator(Executor):
    """An executor with an `OrchestrationState` in each run, read when a handler begins and kept when it ends.

    A call that fails leaves nothing, and one run knows nothing of another.
    """

    def __init__(
        self,
        id: str,  # noqa: A002 - the documented name
        *,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        if kwargs.get("max_concurrency", 1) != 1:
            raise ValueError(f"orchestrator {id!r} has one conversation: it handles one message at a time")
        super().__init__(id, **kwargs)
        self._name = name or id
        self.__made_with = OrchestrationState(orchestrator_name=self._name)
        """What a run begins with. The metadata is added when the first one does: then the subclass is made, too."""
        self.__is_made = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Let each method that is given a context see the state of that run; handlers are such methods."""
        super().__init_subclass__(**kwargs)
        for name, method in inspect.getmembers_static(cls, inspect.iscoroutinefunction):
            if not is_with_state(method) and getattr(Executor, name, None) is not method:
                setattr(cls, name, with_state(method))

    @contextmanager
    def keeping(self, ctx: WorkflowContext[Any, Any]) -> Generator[None]:
        """In it, the orchestrator has the state of the run, which is kept when it ends without an error."""
        at_work = _AT_WORK.get({})
        if id(self) in at_work:
            yield
            return
        state = self.__state_in(ctx)
        now_at_work = {**at_work, id(self): state}
        entered = _AT_WORK.set(now_at_work)
        try:
            yield
            state.metadata = self._snapshot_pattern_metadata()
            ctx.scope().set(_KEPT, state.to_dict())
        finally:
            # A task that was begun in the handler and goes on without it has this, too: its runs are others.
            del now_at_work[id(self)]
            _AT_WORK.reset(entered)

    def __state_in(self, ctx: WorkflowContext[Any, Any]) -> OrchestrationState:
        if not self.__is_made:
            self.__made_with.metadata = deepcopy(self._snapshot_pattern_metadata())
            self.__is_made = True
        kept: Mapping[str, Any] | None = ctx.scope().get(_KEPT)
        state = deepcopy(self.__made_with) if kept is None else OrchestrationState.from_dict(kept)
        self._restore_pattern_metadata(state.metadata)
        return state

    @property
    def _state_at_work(self) -> OrchestrationState:
        """The state of the run whose message is being handled; outside of a handler, what a run begins with."""
        return _AT_WORK.get({}).get(id(self), self.__made_with)

    @property
    def _full_conversation(self) -> Log[Message]:
        said = self._state_at_work.conversation
        if not isinstance(said, Log):
            said = self._state_at_work.conversation = Log(said)
        return said

    @_full_conversation.setter
    def _full_conversation(self, conversation: Sequence[Message]) -> None:
        self._state_at_work.conversation = conversation

    @property
    def _round_index(self) -> int:
        return self._state_at_work.round_index

    @_round_index.setter
    def _round_index(self, round_index: int) -> None:
        self._state_at_work.round_index = round_index

    @property
    def _awaited(self) -> list[str]:
        """Who was asked and has not answered yet."""
        return self._state_at_work.awaited

    @override
    async def on_checkpoint_save(self) -> dict[str, Any]:
        """What a subclass adds that keeps something beside the state of the run; nothing by itself."""
        return {}

    @override
    async def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        """Take over what the subclass has added."""

    def _snapshot_pattern_metadata(self) -> dict[str, Any]:
        """What a subclass adds to the checkpoint."""
        return {}

    def _restore_pattern_metadata(self, metadata: dict[str, Any]) -> None:
        """Take over what the subclass has added."""


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
