"""`AgentBasedGroupChatOrchestrator`: an agent leads the chat. Its answers are checked, and asked again if need be."""

from __future__ import annotations

import json
import logging
from copy import deepcopy
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from typing_extensions import override

from perdure import AgentInvalidResponseException, Message
from perdure.orchestrations.group_chat.selection import DEFAULT_ID, SelectingOrchestrator

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from perdure import Agent, AgentResponse, AgentSession
    from perdure.orchestrations.orchestrator import GroupChatContext
    from perdure.orchestrations.participants import ParticipantRegistry
    from perdure.orchestrations.termination import TerminationCondition


class AgentOrchestrationOutput(BaseModel):
    """What the agent decides: that the chat is over, and its last word; or who speaks next."""

    model_config = ConfigDict(
        extra="forbid",
        # Providers with a strict mode want every property to be required.
        json_schema_extra={"required": ["terminate", "reason", "next_speaker", "final_message"]},
    )

    terminate: bool = Field(description="whether the chat is over")
    reason: str = Field(description="why you decide so")
    next_speaker: str | None = Field(default=None, description="the name of who speaks next, unless the chat is over")
    final_message: str | None = Field(default=None, description="the last word, if the chat is over")


class UnusableAnswerError(ValueError):
    """An answer that is no decision; the message says why, to the model."""


def question(participants: Mapping[str, str]) -> str:
    """What the agent is asked after each turn."""
    listed = "\n".join(f"- {name}: {description}" for name, description in participants.items())
    return (
        "Decide how the conversation goes on. Answer with one JSON object and nothing else:\n"
        '{"terminate": true or false, "reason": "why you decide so", '
        '"next_speaker": "who speaks next, null if you terminate", '
        '"final_message": "the last word if you terminate, else null"}\n'
        f"These can speak, by their exact names:\n{listed}"
    )


def complaint(error: UnusableAnswerError) -> str:
    """What the agent is told when its answer will not do."""
    return f"That answer can't be used: {error}. Answer again, with one JSON object of the form above and nothing else."


def decision_of(response: AgentResponse[Any], participants: Mapping[str, str]) -> AgentOrchestrationOutput:
    """What the agent has decided. Raises UnusableAnswerError."""
    decision = _read(response)
    selected = (decision.next_speaker or "").strip()
    if decision.terminate:
        if selected and not (decision.final_message or "").strip():
            raise UnusableAnswerError(
                f"it terminates without a final_message, and lets {selected!r} speak next: it is one or the other"
            )
        return decision
    known = ", ".join(map(repr, participants))
    if not selected:
        raise UnusableAnswerError(f"it does not terminate and names no next_speaker; it is one of {known}")
    if selected not in participants:
        raise UnusableAnswerError(f"nobody is called {selected!r}; next_speaker is one of {known}")
    return decision.model_copy(update={"next_speaker": selected})


def _read(response: AgentResponse[Any]) -> AgentOrchestrationOutput:
    said = [message.text.strip() for message in response.messages if message.role == "assistant"]
    text = next((each for each in reversed(said) if each), "")
    if not text:
        raise UnusableAnswerError("it is empty")
    try:
        return AgentOrchestrationOutput.model_validate(_object(text))
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        raise UnusableAnswerError(wrong) from error


def _object(text: str) -> object:
    """The JSON object in an answer, whatever stands around it. Of several in a row the last one counts."""
    found: list[object] = []
    end_before = 0
    for start, end, each in _objects(text):
        if found and each != found[-1] and text[end_before:start].strip():
            raise UnusableAnswerError("it has several JSON objects with words between them, and they differ")
        found.append(each)
        end_before = end
    if not found:
        raise UnusableAnswerError("it is no JSON object")
    return found[-1]


def _objects(text: str) -> Iterator[tuple[int, int, object]]:
    """The JSON objects in a text, with where each starts and ends."""
    decoder, place = json.JSONDecoder(), 0
    while (start := text.find("{", place)) >= 0:
        try:
            found, place = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            place = start + 1
        else:
            yield start, place, found


logger = logging.getLogger(__name__)

RETRY_ATTEMPTS = 3
_SESSION = "session"
_ASKED = "asked"


class AgentBasedGroupChatOrchestrator(SelectingOrchestrator):
    """Leads a chat in which an agent selects who speaks next, and when it is over.

    The agent is asked for an `AgentOrchestrationOutput`. If it answers something else, or names somebody who does not
    take part, it is told so and asked again, `retry_attempts` times; then the run fails. Its answers are recorded, and
    its session, which begins as the one that is given, is part of the run.
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
            # The id of an agent without a name is another in each process.
            agent.name or DEFAULT_ID,
            participant_registry,
            max_rounds=max_rounds,
            termination_condition=termination_condition,
            **kwargs,
        )
        self._agent = agent
        self._retry_attempts = _checked(RETRY_ATTEMPTS if retry_attempts is None else retry_attempts)
        self._session = session or agent.create_session()

    @property
    def _asked(self) -> int:
        """How much of the conversation the agent has been told."""
        return self._state_at_work.notes.get(_ASKED, 0)

    @_asked.setter
    def _asked(self, asked: int) -> None:
        self._state_at_work.notes[_ASKED] = asked

    @override
    def _clear_conversation(self) -> None:
        """Forget the conversation. The agent's session remembers it."""
        super()._clear_conversation()
        self._asked = 0

    @override
    async def _select(self, ctx: GroupChatContext) -> str | Message:
        """Who the agent selects, or its last word."""
        # What a run makes of the session is the run's: another begins with what was given.
        session: AgentSession = ctx.scope().get(_SESSION) or deepcopy(self._session)
        decision = await self._decision(session)
        ctx.scope().set(_SESSION, session)
        self._asked = len(self._full_conversation)
        if decision.terminate:
            last_word = decision.final_message or "The conversation has been terminated by the agent."
            return self._create_completion_message(last_word)
        assert decision.next_speaker is not None, "it was checked"
        return decision.next_speaker

    async def _decision(self, session: AgentSession) -> AgentOrchestrationOutput:
        """What the agent decides. Raises AgentInvalidResponseException if nothing that it answers is a decision."""
        participants = self._participant_registry.participants
        told = [*self._full_conversation[self._asked :], Message("user", [question(participants)])]
        misfits: list[UnusableAnswerError] = []
        while len(misfits) <= self._retry_attempts:
            response = await self._agent.run(
                told, session=session, options={"response_format": AgentOrchestrationOutput}
            )
            self._require_no_request(response)
            try:
                return decision_of(response, participants)
            except UnusableAnswerError as error:
                logger.info("agent %r was asked who is next, and the answer is no decision: %s", self.id, error)
                misfits.append(error)
                told = [Message("user", [complaint(error)])]
        raise AgentInvalidResponseException(
            f"agent {self.id!r} leads the chat, and none of its {len(misfits)} answers is a decision; of the last, "
            f"{misfits[-1]}. The answers are recorded: to ask it once more, run again with larger retry_attempts"
        ) from misfits[-1]

    def _require_no_request(self, response: AgentResponse[Any]) -> None:
        if response.user_input_requests:
            raise AgentInvalidResponseException(
                f"agent {self.id!r} leads the chat and asks for an approval or an answer; give it tools that "
                "need none, or let a participant have them"
            )


def _checked(retry_attempts: int) -> int:
    if retry_attempts < 0:
        raise ValueError(f"retry_attempts is 0 or more, not {retry_attempts!r}")
    return retry_attempts
