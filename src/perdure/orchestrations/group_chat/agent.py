"""`AgentBasedGroupChatOrchestrator`: an agent leads the chat. An invalid answer is sent back for correction."""

from __future__ import annotations

import json
import logging
from copy import deepcopy
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from typing_extensions import override

from perdure import AgentInvalidResponseException, Message
from perdure.orchestrations.group_chat.selection import DEFAULT_ORCHESTRATOR_ID, TurnBasedOrchestrator

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from perdure import Agent, AgentResponse, AgentSession
    from perdure.orchestrations.orchestrator import GroupChatContext
    from perdure.orchestrations.participants import ParticipantRegistry
    from perdure.orchestrations.termination import TerminationCondition


logger = logging.getLogger(__name__)

RETRY_ATTEMPTS = 3
_SESSION_KEY = "session"
_SEEN_KEY = "asked"


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


def correction_prompt(error: InvalidDecisionError) -> str:
    """Return the prompt that follows an invalid answer."""
    return f"That answer can't be used: {error}. Answer again, with one JSON object of the form above and nothing else."


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
        max_rounds: int | None = None,
        termination_condition: TerminationCondition | None = None,
        retry_attempts: int | None = None,
        session: AgentSession | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            # The generated id of an unnamed agent differs in each process.
            agent.name or DEFAULT_ORCHESTRATOR_ID,
            participant_registry,
            max_rounds=max_rounds,
            termination_condition=termination_condition,
            **kwargs,
        )
        self._agent = agent
        self._retry_attempts = RETRY_ATTEMPTS if retry_attempts is None else retry_attempts
        if self._retry_attempts < 0:
            raise ValueError(f"retry_attempts must be 0 or more, not {retry_attempts!r}")
        self._session = session or agent.create_session()

    @property
    def _seen_count(self) -> int:
        """Number of messages that the agent has seen."""
        return self._run_state.notes.get(_SEEN_KEY, 0)

    @_seen_count.setter
    def _seen_count(self, count: int) -> None:
        self._run_state.notes[_SEEN_KEY] = count

    @override
    def _clear_conversation(self) -> None:
        """Clear the conversation. The agent's session still has it."""
        super()._clear_conversation()
        self._seen_count = 0

    @override
    async def _select(self, ctx: GroupChatContext) -> str | Message:
        """Return the agent's choice, or its final message."""
        # Each run has its own session, which starts as a copy of the given one.
        session: AgentSession = ctx.scope().get(_SESSION_KEY) or deepcopy(self._session)
        decision = await self._ask_agent(session)
        ctx.scope().set(_SESSION_KEY, session)
        self._seen_count = len(self._full_conversation)
        if decision.terminate:
            final_message = decision.final_message or "The conversation has been terminated by the agent."
            return self._create_completion_message(final_message)
        assert decision.next_speaker is not None, "it was checked"
        return decision.next_speaker

    async def _ask_agent(self, session: AgentSession) -> AgentOrchestrationOutput:
        """Ask the agent until its answer is valid. Raises AgentInvalidResponseException."""
        participants = self._participant_registry.participants
        messages = [*self._full_conversation[self._seen_count :], Message("user", [decision_prompt(participants)])]
        errors: list[InvalidDecisionError] = []
        while len(errors) <= self._retry_attempts:
            response = await self._agent.run(
                messages, session=session, options={"response_format": AgentOrchestrationOutput}
            )
            self._require_no_request(response)
            try:
                return parse_decision(response, participants)
            except InvalidDecisionError as error:
                logger.info("agent %r gave an invalid decision: %s", self.id, error)
                errors.append(error)
                messages = [Message("user", [correction_prompt(error)])]
        raise AgentInvalidResponseException(
            f"orchestrator agent {self.id!r} gave no valid decision in {len(errors)} answers; about the last one: "
            f"{errors[-1]}. The answers are recorded: to ask again, resume with a larger retry_attempts"
        ) from errors[-1]

    def _require_no_request(self, response: AgentResponse[Any]) -> None:
        if response.user_input_requests:
            raise AgentInvalidResponseException(
                f"orchestrator agent {self.id!r} asked for an approval or user input, which it can't get; give it "
                "tools that need none, or give those tools to a participant"
            )
