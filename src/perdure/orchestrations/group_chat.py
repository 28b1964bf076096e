"""Group chat: participants speak one at a time, and a function or an agent selects the next speaker."""

from __future__ import annotations

import inspect
import json
import logging
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from typing_extensions import Unpack

from perdure import (
    Agent,
    AgentInvalidResponseException,
    FunctionInvocationLayer,
    Message,
    register_type,
    return_requests,
)
from perdure.orchestrations.builder import OrchestrationBuilder, OrchestrationOptions
from perdure.orchestrations.orchestrator import BaseGroupChatOrchestrator, OrchestratorOptions
from perdure.orchestrations.participants import (
    GroupChatContext,
    GroupChatResponseMessage,
    Participant,
    ParticipantRegistry,
    RunKwargs,
    check_participants,
    run_kwargs,
    shared_messages,
)
from perdure.orchestrations.request_info import make_nodes

if TYPE_CHECKING:
    from perdure import AgentExecutorResponse, AgentResponse, AgentSession, Workflow

logger = logging.getLogger(__name__)

DEFAULT_ORCHESTRATOR_ID = "group_chat_orchestrator"
"""Id of an orchestrator that has no name of its own."""
_RETRY_ATTEMPTS = 3
_QUEUED_KEY = "unheard"
_SESSION_KEY = "session"
_SEEN_KEY = "asked"


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

    @property
    def _queued(self) -> list[QueuedMessage]:
        """Messages that the participants have not received yet."""
        return self._run_state.notes.setdefault(_QUEUED_KEY, [])

    @abstractmethod
    async def _select(self, ctx: GroupChatContext) -> str | Message:
        """Return the name of the next speaker, or a final message that ends the chat."""

    def _append_messages(self, messages: Sequence[Message]) -> None:
        """Add messages that no participant sent."""
        super()._append_messages(messages)
        self._queued.extend(QueuedMessage(None, message) for message in messages)

    async def _handle_messages(self, messages: list[Message], ctx: GroupChatContext) -> None:
        """Start or continue with a task. While a participant is about to answer, only deliver the messages."""
        self._append_messages(messages)
        if self._awaited:
            await self._deliver_messages(ctx)
            return
        self._round_index = 0
        if not await self._check_terminate_and_yield(ctx):
            await self._select_and_ask(ctx)

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
    """Leads a chat in which a function selects the next speaker. The other options are those of its base class."""

    def __init__(
        self,
        id: str,  # noqa: A002 - the documented name
        participant_registry: ParticipantRegistry | None = None,
        selection_func: GroupChatSelectionFunction = round_robin,
        **options: Unpack[OrchestratorOptions],
    ) -> None:
        super().__init__(id, participant_registry, **options)
        if not callable(selection_func):
            raise TypeError(f"selection_func must be a function of a GroupChatState, not {selection_func!r}")
        self._selection_func = selection_func

    async def _select(self, ctx: GroupChatContext) -> str:
        """Call the selection function. Raises RuntimeError if it returns an unknown name."""
        del ctx
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


class AgentOrchestrationOutput(BaseModel):
    """Decision of the orchestrator agent: the next speaker, or the end of the chat with a final message."""

    model_config = ConfigDict(
        extra="forbid",
        # Providers with a strict mode require every property.
        json_schema_extra={"required": ["terminate", "reason", "next_speaker", "final_message"]},
    )

    terminate: bool = Field(description="whether the chat is over")
    reason: str = Field(description="why you decide so")
    next_speaker: str | None = Field(default=None, description="the name of who speaks next, unless the chat is over")
    final_message: str | None = Field(default=None, description="the last word, if the chat is over")


class InvalidDecisionError(ValueError):
    """The answer is not a valid decision. The model gets the message."""


class GroupChatDecisionError(AgentInvalidResponseException, ValueError):
    """The orchestrator agent gave no valid decision in all its attempts."""


def decision_prompt(participants: Mapping[str, str]) -> str:
    """Return the prompt that follows each turn."""
    listed = "\n".join(f"- {name}: {description}" for name, description in participants.items())
    return (
        "Decide how the conversation goes on. Answer with one JSON object and nothing else:\n"
        '{"terminate": true or false, "reason": "why you decide so", '
        '"next_speaker": "who speaks next, null if you terminate", '
        '"final_message": "the last word if you terminate, else null"}\n'
        f"These can speak, by their exact names:\n{listed}"
    )


CORRECTION_PROMPT = (
    "That answer can't be used: {error}. Answer again, with one JSON object of the form above and nothing else."
)


def parse_decision(response: AgentResponse[Any], participants: Mapping[str, str]) -> AgentOrchestrationOutput:
    """Return the agent's decision. Raises InvalidDecisionError."""
    decision = _parse_output(response)
    selected = (decision.next_speaker or "").strip()
    if decision.terminate:
        if selected and not (decision.final_message or "").strip():
            raise InvalidDecisionError(
                f"it terminates without a final_message, and lets {selected!r} speak next: it is one or the other"
            )
        return decision
    known = ", ".join(map(repr, participants))
    if not selected:
        raise InvalidDecisionError(f"it does not terminate and names no next_speaker; it is one of {known}")
    if selected not in participants:
        raise InvalidDecisionError(f"nobody is called {selected!r}; next_speaker is one of {known}")
    return decision.model_copy(update={"next_speaker": selected})


def _parse_output(response: AgentResponse[Any]) -> AgentOrchestrationOutput:
    texts = [message.text.strip() for message in response.messages if message.role == "assistant"]
    text = next((each for each in reversed(texts) if each), "")
    if not text:
        raise InvalidDecisionError("it is empty")
    try:
        return AgentOrchestrationOutput.model_validate(_last_object(text))
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        raise InvalidDecisionError(wrong) from error


def _last_object(text: str) -> object:
    """Return the last JSON object of an answer. Text before and after is ignored."""
    found: list[object] = []
    end_before = 0
    for start, end, each in _find_objects(text):
        if found and each != found[-1] and text[end_before:start].strip():
            raise InvalidDecisionError("it has several JSON objects with words between them, and they differ")
        found.append(each)
        end_before = end
    if not found:
        raise InvalidDecisionError("it is no JSON object")
    return found[-1]


def _find_objects(text: str) -> Iterator[tuple[int, int, object]]:
    """Yield the JSON objects in a text with their start and end."""
    decoder, place = json.JSONDecoder(), 0
    while (start := text.find("{", place)) >= 0:
        try:
            found, place = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            place = start + 1
        else:
            yield start, place, found


class AgentBasedGroupChatOrchestrator(TurnBasedOrchestrator):
    """Leads a chat in which an agent selects the next speaker and ends the chat.

    The agent must answer with an `AgentOrchestrationOutput` that names a participant. Otherwise it gets the error and
    is asked again, up to `retry_attempts` times; then the run fails. Its answers are recorded. Each run starts with a
    copy of the given session.
    """

    def __init__(
        self,
        agent: Agent[Any],
        participant_registry: ParticipantRegistry | None = None,
        *,
        retry_attempts: int | None = None,
        session: AgentSession | None = None,
        **options: Unpack[OrchestratorOptions],
    ) -> None:
        # The generated id of an unnamed agent differs in each process.
        super().__init__(agent.name or DEFAULT_ORCHESTRATOR_ID, participant_registry, **options)
        self._agent = agent
        self._retry_attempts = _RETRY_ATTEMPTS if retry_attempts is None else retry_attempts
        if self._retry_attempts < 0:
            raise ValueError(f"retry_attempts must be 0 or more, not {retry_attempts!r}")
        self._session = session or agent.create_session()

    def _clear_conversation(self) -> None:
        """Clear the conversation. The agent's session still has it."""
        super()._clear_conversation()
        self._run_state.notes[_SEEN_KEY] = 0

    async def _select(self, ctx: GroupChatContext) -> str | Message:
        """Return the agent's choice, or its final message."""
        # Each run has its own session, which starts as a copy of the given one.
        session: AgentSession = ctx.scope().get(_SESSION_KEY) or deepcopy(self._session)
        decision = await self._ask_agent(session, run_kwargs(self.id, ctx))
        ctx.scope().set(_SESSION_KEY, session)
        self._run_state.notes[_SEEN_KEY] = len(self._full_conversation)
        if decision.terminate or decision.next_speaker is None:
            final_message = decision.final_message or "The conversation has been terminated by the agent."
            return self._create_completion_message(final_message)
        return decision.next_speaker

    async def _ask_agent(self, session: AgentSession, kwargs: RunKwargs) -> AgentOrchestrationOutput:
        """Ask the agent until its answer is valid. Raises GroupChatDecisionError."""
        participants = self._participant_registry.participants
        unseen = self._full_conversation[self._run_state.notes.get(_SEEN_KEY, 0) :]
        messages = [*unseen, Message("user", [decision_prompt(participants)])]
        options: dict[str, Any] = {"response_format": AgentOrchestrationOutput}
        if isinstance(self._agent.client, FunctionInvocationLayer):
            # This loop asks again, as it does in the records of runs that earlier versions began.
            options["check_response_format"] = False
        errors: list[InvalidDecisionError] = []
        while len(errors) <= self._retry_attempts:
            with return_requests(self._agent):
                response = await self._agent.run(messages, session=session, options=options, **kwargs)
            if response.user_input_requests:
                raise GroupChatDecisionError(
                    f"orchestrator agent {self.id!r} asked for an approval or user input, which it can't get; give it "
                    "tools that need none, or give those tools to a participant"
                )
            try:
                return parse_decision(response, participants)
            except InvalidDecisionError as error:
                logger.info("agent %r gave an invalid decision: %s", self.id, error)
                errors.append(error)
                messages = [Message("user", [CORRECTION_PROMPT.format(error=error)])]
        raise GroupChatDecisionError(
            f"orchestrator agent {self.id!r} gave no valid decision in {len(errors)} answers; about the last one: "
            f"{errors[-1]}. The answers are recorded: to ask again, resume with a larger retry_attempts"
        ) from errors[-1]


OrchestratorAgent: TypeAlias = Agent[Any] | Callable[[], Agent[Any]]
Orchestrator: TypeAlias = BaseGroupChatOrchestrator | Callable[[], BaseGroupChatOrchestrator]


class GroupChatBuilder(OrchestrationBuilder):
    """Builds a chat: participants speak one at a time in one conversation, led by an orchestrator.

    One of these selects the next speaker: `selection_func`, a function of the `GroupChatState`, or `"round_robin"`;
    `orchestrator_agent`, an agent, which is asked again up to `retry_attempts` times if its answer is invalid;
    `orchestrator`, your own `BaseGroupChatOrchestrator`.

    The chat ends when `termination_condition` holds, after `max_rounds` answers, or when the agent ends it. The output
    is the orchestrator's final message; `output_from` and `intermediate_output_from` add outputs of participants.
    `participant_factories` make new participants for each `build`. `max_iterations` limits the supersteps since the
    last input; by default it allows `max_rounds` and `MaxMessages`.
    """

    DEFAULT_ORCHESTRATOR_ID: ClassVar[str] = DEFAULT_ORCHESTRATOR_ID

    def __init__(
        self,
        *,
        participants: Sequence[Participant] | None = None,
        participant_factories: Sequence[Callable[[], Participant]] | None = None,
        orchestrator_agent: OrchestratorAgent | None = None,
        orchestrator: Orchestrator | None = None,
        selection_func: GroupChatSelectionFunction | Literal["round_robin"] | None = None,
        orchestrator_name: str | None = None,
        max_rounds: int | None = None,
        retry_attempts: int | None = None,
        **options: Unpack[OrchestrationOptions],
    ) -> None:
        super().__init__(**options)
        if sum(each is not None for each in (orchestrator_agent, orchestrator, selection_func)) > 1:
            raise ValueError("give only one of selection_func, orchestrator_agent and orchestrator")
        if selection_func is not None and selection_func != "round_robin" and not callable(selection_func):
            raise TypeError(
                f"selection_func must be a function of a GroupChatState or 'round_robin', not {selection_func!r}"
            )
        if (participants is None) == (participant_factories is None):
            raise ValueError("give either participants or participant_factories")
        if participant_factories is not None and not participant_factories:
            raise ValueError("participant_factories is empty: give at least one function that makes a participant")
        self._participants = None if participants is None else check_participants(participants, needs_names=True)
        self._factories = list(participant_factories or ())
        self._orchestrator_agent = orchestrator_agent
        self._orchestrator = orchestrator
        self._selection_func = round_robin if selection_func == "round_robin" else selection_func
        self._orchestrator_name = orchestrator_name
        self._max_rounds = max_rounds
        self._retry_attempts = retry_attempts

    def with_max_rounds(self, max_rounds: int | None) -> Self:
        """Limit the number of answers in a chat, like `max_rounds=`. None means no limit."""
        self._max_rounds = max_rounds
        return self

    def build(self) -> Workflow:
        """Connect the orchestrator with each participant. Raises ValueError, WorkflowValidationError."""
        participants = self._participants
        if participants is None:
            participants = check_participants([make() for make in self._factories], needs_names=True)
        nodes = make_nodes(participants, reviewed=self._reviewed_names(participants))
        orchestrator = self._make_orchestrator()
        if orchestrator.id in [node.id for node in nodes]:
            raise ValueError(f"the orchestrator and a participant both have the name {orchestrator.id!r}: rename one")
        rounds, condition = orchestrator.join(
            ParticipantRegistry(nodes), max_rounds=self._max_rounds, termination_condition=self._termination
        )
        return self._build_star(orchestrator, nodes, turns=rounds, condition=condition)

    def _make_orchestrator(self) -> BaseGroupChatOrchestrator:
        if self._selection_func is not None:
            return GroupChatOrchestrator(
                DEFAULT_ORCHESTRATOR_ID, selection_func=self._selection_func, name=self._orchestrator_name
            )
        if self._orchestrator is not None:
            return _resolve("orchestrator", self._orchestrator, BaseGroupChatOrchestrator)
        if self._orchestrator_agent is not None:
            agent: Agent[Any] = _resolve("orchestrator_agent", self._orchestrator_agent, Agent)
            return AgentBasedGroupChatOrchestrator(agent, retry_attempts=self._retry_attempts)
        raise ValueError("the chat has no orchestrator: give selection_func, orchestrator_agent or orchestrator")


def _resolve(option: str, given: object, kind: type[Any]) -> Any:
    """Return the given instance, or call the given factory. Raises TypeError for another type."""
    found: object = given() if callable(given) and not isinstance(given, kind) else given
    if not isinstance(found, kind):
        raise TypeError(f"{option} must be a {kind.__name__} or a function that makes one, not {found!r}")
    return found
