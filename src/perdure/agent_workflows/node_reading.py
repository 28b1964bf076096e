"""What an agent has answered, read as the node puts it out; and what a person makes of that."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from perdure import Content, Message
from perdure.agent_workflows.choices import made_choices
from perdure.agent_workflows.definition import (
    ANSWER,
    HANDOFF_TARGET,
    MATCHED_TYPE,
    RESULT,
    Handoffs,
    StructuredOutput,
    TextOutput,
    UnionOutput,
)
from perdure.agent_workflows.outputs import NoValueError, json_text, value_in
from perdure.agent_workflows.outputs_corrections import corrected_outputs

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from perdure import AgentExecutorResponse
    from perdure.agent_workflows.choices import Choice, Chosen
    from perdure.agent_workflows.definition import Output

_WORDS: Final = frozenset({"text", "data", "uri", "hosted_file"})
"""What of a message is said to others. Calls and their results are an affair of the agent and its tools."""


@dataclass(frozen=True, slots=True)
class Spoken:
    """What a node puts out: by key, as one text, and as messages for the conversation."""

    outputs: Mapping[str, Any]
    text: str
    said: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Reading:
    """How the answers of one node are read."""

    output: Output
    choices: Sequence[Choice]
    speaker: str
    """Under whose name it is said."""

    def read(self, answer: AgentExecutorResponse, *, before: Collection[str]) -> Spoken:
        """What an answer comes to. Raises NoValueError with what the model is told, if it is none."""
        if self.choices:
            return self._chosen(self._one_choice(answer, before), answer)
        match self.output:
            case StructuredOutput(wanted):
                try:
                    value = value_in(_last_words(answer.agent_response.messages), wanted)
                except NoValueError as fault:
                    raise NoValueError(
                        f"Your answer can't be used: {fault}. Answer again, with JSON of the form that was asked for "
                        "and nothing else."
                    ) from fault
                return self._valued({**value, RESULT: value}, value)
            case TextOutput(key):
                text = answer.agent_response.text
                return Spoken({key: text}, text, words_of(answer.agent_response.messages))
            case _:
                raise AssertionError("a node that chooses has choices")

    @property
    def has_default(self) -> bool:
        """Whether the node can do without a choice of the model."""
        return isinstance(self.output, Handoffs) and self.output.default is not None

    def defaulted(self, answer: AgentExecutorResponse) -> Spoken | None:
        """What the node puts out if the model does not choose, though it was told to; None if it can't do without."""
        if isinstance(self.output, Handoffs) and self.output.default is not None:
            return self._handed(self.output.default, *_words(answer))
        return None

    def _one_choice(self, answer: AgentExecutorResponse, before: Collection[str]) -> Chosen:
        found = made_choices(self.choices, answer.full_conversation, before=before)
        if len(found) == 1:
            return found[0]
        names = ", ".join(choice.tool_name for choice in self.choices)
        if not found:
            raise NoValueError(
                f"Nothing has come of that, as you have called none of these tools: {names}. Call exactly one of them."
            )
        called = " and ".join(each.choice.tool_name for each in found)
        raise NoValueError(
            f"Nothing has come of that, as you have called {called}. Call exactly one of these tools, once: {names}."
        )

    def _chosen(self, chosen: Chosen, answer: AgentExecutorResponse) -> Spoken:
        choice = chosen.choice
        if isinstance(self.output, Handoffs):
            return self._handed(choice.means, *_words(answer))
        try:
            value = value_in(json.dumps(chosen.value), choice.wanted)
        except NoValueError as fault:
            raise NoValueError(
                f"What you have given to {choice.tool_name} can't be used: {fault}. Call exactly one of these tools "
                f"again, with all that it takes: {', '.join(each.tool_name for each in self.choices)}."
            ) from fault
        matched = {MATCHED_TYPE: choice.means} if isinstance(self.output, UnionOutput) else {}
        return self._valued({**value, RESULT: value, **matched}, value)

    def _handed(self, target: str, text: str, said: tuple[Message, ...]) -> Spoken:
        # In a conversation somebody answers: a router that says nothing says whom it has chosen.
        return Spoken({HANDOFF_TARGET: target, ANSWER: text}, text, said or self._said(text or target))

    def _valued(self, outputs: Mapping[str, Any], value: object) -> Spoken:
        text = json_text(value)
        return Spoken(outputs, text, self._said(text))

    def _said(self, text: str) -> tuple[Message, ...]:
        return (Message("assistant", [text], author_name=self.speaker),) if text else ()

    def corrected(self, spoken: Spoken, changes: Mapping[str, Any]) -> Spoken:
        """What a person makes of it: other values under some keys. Raises NoValueError with what is wrong with them."""
        if not changes:
            return spoken
        outputs = corrected_outputs(self.output, spoken.outputs, changes)
        whole: object = outputs[self._whole_key()]
        text = whole if isinstance(whole, str) else json_text(whole)
        if isinstance(self.output, Handoffs):
            said = spoken.said if text and text == spoken.text else ()
            return self._handed(outputs[HANDOFF_TARGET], text, said)
        return Spoken(outputs, text, spoken.said if text == spoken.text else self._said(text))

    def _whole_key(self) -> str:
        match self.output:
            case TextOutput(key):
                return key
            case Handoffs():
                return ANSWER
            case _:
                return RESULT


def _words(answer: AgentExecutorResponse) -> tuple[str, tuple[Message, ...]]:
    """What was said, as a text and as messages."""
    return answer.agent_response.text, words_of(answer.agent_response.messages)


def words_of(messages: Iterable[Message]) -> tuple[Message, ...]:
    """What was said in messages to others."""
    found: list[Message] = []
    for message in messages:
        contents: list[str | Content] = [each for each in message.contents if _is_said(each)]
        if message.role == "assistant" and contents:
            found.append(Message("assistant", contents, author_name=message.author_name))
    return tuple(found)


def _is_said(content: Content) -> bool:
    return content.type in _WORDS and (content.type != "text" or bool(content.text))


def _last_words(messages: Sequence[Message]) -> str:
    """What was said last: before it called a tool, a model may have said something else."""
    for message in reversed(messages):
        if message.role == "assistant" and message.text:
            return message.text
    return ""
