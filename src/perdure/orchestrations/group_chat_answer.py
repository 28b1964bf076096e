"""What an agent that leads a chat is asked, what it is to answer, and whether an answer will do."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from perdure import AgentResponse


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
