"""`BaseGroupChatOrchestrator`: base class of chat orchestrators. Subclass it to lead a chat in your own way."""

from __future__ import annotations

import functools
import inspect
import logging
from abc import ABC
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from copy import deepcopy
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, TypedDict, cast

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
from perdure.orchestrations.participants import (
    GroupChatContext,
    GroupChatParticipantMessage,
    GroupChatRequestMessage,
    GroupChatRequestSentEvent,
    GroupChatResponseMessage,
    GroupChatResponseReceivedEvent,
    ParticipantRegistry,
    create_completion_message,
    is_from_outside,
    require_messages,
    to_messages,
)
from perdure.orchestrations.termination import TerminationCondition, check_condition, should_terminate

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence
    from datetime import timedelta

    from perdure import Retry

logger = logging.getLogger(__name__)

_STATE_KEY = "orchestration"
# States of the runs whose handlers are active, by orchestrator: one chat may run inside another.
_ACTIVE_STATES: ContextVar[Mapping[int, OrchestrationState]] = ContextVar("_ACTIVE_STATES")


@dataclass
class OrchestrationState:
    """State of a chat: the conversation, the number of rounds, and in `metadata` the additions of a subclass.

    `awaited` names participants that were asked and have not answered. `notes` holds the additions of the library's own
    orchestrators.
    """

    conversation: Sequence[Message] = field(default_factory=Log[Message])
    round_index: int = 0
    orchestrator_name: str = ""
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    task: Message | None = None
    awaited: list[str] = field(default_factory=list[str])
    notes: dict[str, Any] = field(default_factory=dict[str, Any])

    def to_dict(self) -> dict[str, Any]:
        """Return the fields by name. A missing task is left out."""
        copies = {"metadata": dict(self.metadata), "awaited": list(self.awaited), "notes": dict(self.notes)}
        found = {**vars(self), **copies}
        task = found.pop("task")
        return found if task is None else {**found, "task": task}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> OrchestrationState:
        """Return the state from the result of `to_dict`. Missing fields get their defaults."""
        names = {each.name for each in fields(cls)}
        return cls(**{name: value for name, value in data.items() if name in names})


class OrchestratorOptions(TypedDict, total=False):
    """Options of every chat orchestrator, and of every executor."""

    name: str | None
    max_rounds: int | None
    termination_condition: TerminationCondition | None
    retry: Retry | None
    timeout: float | timedelta | None
    on_error: str | Executor | None


def _with_run_state(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method so that a call with a context loads the state of that run, and saves it at the end."""

    @functools.wraps(method)
    async def wrapper(self: BaseGroupChatOrchestrator, *args: Any, **kwargs: Any) -> Any:
        given = (*args, *kwargs.values())
        contexts = [cast("WorkflowContext[Any, Any]", each) for each in given if isinstance(each, WorkflowContext)]
        with self.use_run_state(contexts[0]) if contexts else nullcontext():
            return await method(self, *args, **kwargs)

    wrapper.__has_run_state__ = True  # pyright: ignore[reportFunctionMemberAccess, reportAttributeAccessIssue]
    return wrapper


class BaseGroupChatOrchestrator(Executor, ABC):
    """Leads a chat: takes the task, asks participants to speak, records their answers, and ends the chat.

    A subclass implements `_handle_messages` for a task and `_handle_response` for an answer. The methods below help
    it: they record the conversation, count rounds, send messages, ask participants, and end the chat. Their state
    belongs to the run and is in its checkpoint, together with what `_snapshot_pattern_metadata` adds. A call that fails
    changes nothing. A new run starts with the orchestrator's initial state.

    The builder sets the participants if `participant_registry` is not given.

    Attributes:
        keeps_conversation: True if a later turn needs only the new messages. In a workflow used as an agent, there may
            be none.
    """

    TERMINATION_CONDITION_MET_MESSAGE: ClassVar[str] = "The group chat has reached its termination condition."
    MAX_ROUNDS_MET_MESSAGE: ClassVar[str] = "The group chat has reached the maximum number of rounds."

    keeps_conversation: ClassVar[bool] = False

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
        check_condition(termination_condition)
        if kwargs.get("max_concurrency", 1) != 1:
            raise ValueError(f"orchestrator {id!r} must handle one message at a time: leave max_concurrency at 1")
        super().__init__(id, **kwargs)
        self._name = name or id
        self.__initial_state = OrchestrationState(orchestrator_name=self._name)
        # The metadata is added for the first run: here the subclass has not been initialized yet.
        self.__has_metadata = False
        self._max_rounds = None if max_rounds is None else max(1, max_rounds)
        self._termination_condition = termination_condition
        self._registry = participant_registry

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Give the subclass's async methods the state of the run, if they are called with a context."""
        super().__init_subclass__(**kwargs)
        for name, method in inspect.getmembers_static(cls, inspect.iscoroutinefunction):
            if not getattr(method, "__has_run_state__", False) and getattr(Executor, name, None) is not method:
                setattr(cls, name, _with_run_state(method))

    @contextmanager
    def use_run_state(self, ctx: WorkflowContext[Any, Any]) -> Generator[None]:
        """Use the state of the run inside the block. Save it if the block ends without an error."""
        active = _ACTIVE_STATES.get({})
        if id(self) in active:
            yield
            return
        state = self.__load_state(ctx)
        now_active = {**active, id(self): state}
        token = _ACTIVE_STATES.set(now_active)
        try:
            yield
            state.metadata = self._snapshot_pattern_metadata()
            ctx.scope().set(_STATE_KEY, state.to_dict())
        finally:
            # A task that outlives the handler has a copy of the variable, with this dict in it.
            del now_active[id(self)]
            _ACTIVE_STATES.reset(token)

    def __load_state(self, ctx: WorkflowContext[Any, Any]) -> OrchestrationState:
        if not self.__has_metadata:
            self.__initial_state.metadata = deepcopy(self._snapshot_pattern_metadata())
            self.__has_metadata = True
        saved: Mapping[str, Any] | None = ctx.scope().get(_STATE_KEY)
        state = deepcopy(self.__initial_state) if saved is None else OrchestrationState.from_dict(saved)
        self._restore_pattern_metadata(state.metadata)
        return state

    @property
    def _run_state(self) -> OrchestrationState:
        """The state of the run in a handler; elsewhere the initial state."""
        return _ACTIVE_STATES.get({}).get(id(self), self.__initial_state)

    @property
    def _full_conversation(self) -> Log[Message]:
        conversation = self._run_state.conversation
        if not isinstance(conversation, Log):
            conversation = self._run_state.conversation = Log(conversation)
        return conversation

    @_full_conversation.setter
    def _full_conversation(self, conversation: Sequence[Message]) -> None:
        self._run_state.conversation = conversation

    @property
    def _round_index(self) -> int:
        return self._run_state.round_index

    @_round_index.setter
    def _round_index(self, round_index: int) -> None:
        self._run_state.round_index = round_index

    @property
    def _awaited(self) -> list[str]:
        """Participants that were asked and have not answered."""
        return self._run_state.awaited

    async def on_checkpoint_save(self) -> dict[str, Any]:
        """Return state of a subclass that does not belong to a run. Nothing by default."""
        return {}

    async def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        """Restore the subclass's state."""

    def _snapshot_pattern_metadata(self) -> dict[str, Any]:
        """Return a subclass's additions to the state of the run."""
        return {}

    def _restore_pattern_metadata(self, metadata: dict[str, Any]) -> None:
        """Restore the subclass's additions."""

    def join(
        self,
        registry: ParticipantRegistry,
        *,
        max_rounds: int | None = None,
        termination_condition: TerminationCondition | None = None,
    ) -> tuple[int | None, TerminationCondition | None]:
        """Use the builder's options where the orchestrator has none of its own. Raises ValueError.

        Returns the maximum number of rounds and the termination condition that apply.
        """
        if self._registry is not None and list(self._registry.participants) != list(registry.participants):
            mine, its = (", ".join(map(repr, each.participants)) for each in (self._registry, registry))
            raise ValueError(f"orchestrator {self.id!r} knows the participants {mine}, but the chat has {its}")
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
    async def handle_input(self, task: str | Message | list[str | Message], ctx: GroupChatContext) -> None:
        """Start with a text, a message or a list of these. Raises ValueError if the list is empty."""
        may_be_empty = self.keeps_conversation and self._has_started(ctx)
        await self._handle_messages(to_messages(task) if may_be_empty else require_messages(task), ctx)

    @handler
    async def handle_participant_response(
        self, response: AgentExecutorResponse | GroupChatResponseMessage, ctx: GroupChatContext
    ) -> None:
        """Take a participant's answer. A response from outside the workflow is a task."""
        if is_from_outside(self, ctx):
            await self._handle_messages(self._get_task(response), ctx)
            return
        speaker = ctx.get_source_executor_id()
        if speaker in self._awaited:
            self._awaited.remove(speaker)
        received = GroupChatResponseReceivedEvent(round_index=self._round_index, participant_name=speaker)
        await ctx.add_event(WorkflowEvent("group_chat", received))
        await self._handle_response(response, ctx)

    def _has_started(self, ctx: WorkflowContext[Any, Any]) -> bool:
        """Return True if the run has a conversation."""
        del ctx
        return bool(self._full_conversation)

    async def _handle_messages(self, messages: list[Message], ctx: GroupChatContext) -> None:
        """Handle a task."""
        raise NotImplementedError(f"{type(self).__name__} needs an async method _handle_messages(messages, ctx)")

    async def _handle_response(
        self, response: AgentExecutorResponse | GroupChatResponseMessage, ctx: GroupChatContext
    ) -> None:
        """Handle an answer."""
        raise NotImplementedError(f"{type(self).__name__} needs an async method _handle_response(response, ctx)")

    def _append_messages(self, messages: Sequence[Message]) -> None:
        """Add messages to the conversation."""
        self._full_conversation.extend(messages)

    def _get_conversation(self) -> list[Message]:
        """Return the conversation as a new list."""
        return list(self._full_conversation)

    def _clear_conversation(self) -> None:
        """Clear the conversation."""
        self._run_state.conversation = Log()

    def _process_participant_response(
        self, response: AgentExecutorResponse | GroupChatResponseMessage
    ) -> list[Message]:
        """Return the messages of an answer."""
        if isinstance(response, GroupChatResponseMessage):
            return [response.message]
        return list(response.agent_response.messages)

    def _get_task(self, response: AgentExecutorResponse | GroupChatResponseMessage) -> list[Message]:
        """Return the messages of a response from outside the workflow."""
        if isinstance(response, GroupChatResponseMessage):
            return [response.message]
        return list(response.full_conversation)

    def _increment_round(self) -> None:
        """Count a round."""
        self._round_index += 1

    async def _check_termination(self) -> bool:
        """Return True if the termination condition holds."""
        return await should_terminate(self._termination_condition, self._full_conversation)

    async def _check_terminate_and_yield(self, ctx: GroupChatContext) -> bool:
        """End the chat if the termination condition holds. Return True if it ended."""
        if not await self._check_termination():
            return False
        await self._end(self._create_completion_message(self.TERMINATION_CONDITION_MET_MESSAGE), ctx)
        return True

    def _check_round_limit(self) -> bool:
        """Return True if the maximum number of rounds is reached."""
        is_reached = self._max_rounds is not None and self._round_index >= self._max_rounds
        if is_reached:
            logger.info("orchestrator %r ends the chat after %d rounds", self.id, self._round_index)
        return is_reached

    async def _check_round_limit_and_yield(self, ctx: GroupChatContext) -> bool:
        """End the chat if the maximum number of rounds is reached. Return True if it ended."""
        if not self._check_round_limit():
            return False
        await self._end(self._create_completion_message(self.MAX_ROUNDS_MET_MESSAGE), ctx)
        return True

    def _create_completion_message(self, message: str) -> Message:
        """Return a final message with the orchestrator's name."""
        return create_completion_message(text=message, author_name=self._name)

    async def _end(self, final_message: Message, ctx: GroupChatContext) -> None:
        """Record the final message and yield it. Participants don't get it."""
        self._full_conversation.append(final_message)
        await self._yield_completion(ctx, final_message)

    async def _yield_completion(self, ctx: GroupChatContext, completion_message: Message) -> None:
        """Yield a message as the output. A stream gets it as an update."""
        await ctx.yield_output(AgentResponse(messages=[completion_message]), in_pieces=True)

    async def _broadcast_messages_to_participants(
        self, messages: list[Message], ctx: GroupChatContext, participants: Sequence[str] | None = None
    ) -> None:
        """Send messages to these participants, or to all, without asking them to speak.

        Executors without a handler for them get none.
        """
        registry = self._participant_registry
        names = registry.participants if participants is None else participants
        for name in filter(registry.is_listener, names):
            copied = list(messages)
            await ctx.send_message(
                AgentExecutorRequest(copied, should_respond=False)
                if registry.is_agent(name)
                else GroupChatParticipantMessage(copied),
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
        """Ask a participant to speak. Only executors get `metadata`. Raises ValueError for an unknown name."""
        if self._participant_registry.is_agent(target):
            messages = [Message("user", [additional_instruction])] if additional_instruction else []
            await ctx.send_message(AgentExecutorRequest(messages, should_respond=True), target_id=target)
        else:
            await ctx.send_message(GroupChatRequestMessage(additional_instruction, metadata), target_id=target)
        self._awaited.append(target)
        sent = GroupChatRequestSentEvent(round_index=self._round_index, participant_name=target)
        await ctx.add_event(WorkflowEvent("group_chat", sent))
