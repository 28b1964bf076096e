"""What an agent says in a turn that it breaks off to ask something: the same, however it was told."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any

from perdure.agents.executor_questions import is_question, left_over

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from perdure.agents.messages import Message
    from perdure.agents.responses import AgentResponse


def said_in(messages: Sequence[Message]) -> list[Message]:
    """Messages without the questions of a workflow inside, and without calls that are asked about beside them.

    A stream tells a call, and then asks about it; a whole answer only asks.
    """
    every = [content for message in messages for content in message.contents]
    asked = {content.function_call.call_id for content in every if content.user_input_request and content.function_call}
    return left_over(
        messages,
        lambda content: is_question(content) or (content.type == "function_call" and content.call_id in asked),
    )


def words_in(messages: Iterable[Message]) -> list[Message]:
    """The words alone, of those messages of the agent that have some."""
    worded = [message for message in messages if message.role == "assistant" and message.text.strip()]
    return left_over(worded, lambda content: content.type != "text")


def with_messages(response: AgentResponse[Any], messages: Sequence[Message]) -> AgentResponse[Any]:
    """The same response with other messages."""
    other = copy(response)
    other.messages = list(messages)
    return other
