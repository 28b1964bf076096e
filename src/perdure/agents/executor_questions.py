"""What a workflow inside of an agent asks: the run around it asks it in its place, and the answer goes back inside."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from perdure.agents.content import Content
from perdure.engine import ActivationRecorder
from perdure.graph import Terms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from perdure.agents.messages import Message
    from perdure.graph import ActivationPort
    from perdure.kernel import Request

_NAME: Final = "request_info"
"""The function that a workflow as agent seems to call when it asks."""
_INWARDS: Final = "answers_inside"
"""Marks what answers a question of the workflow inside. It is nobody else's affair."""
_ANSWERS: Final = frozenset({"function_result", "function_approval_response"})


def is_question(content: Content) -> bool:
    """Whether a content is how the workflow tells of a question. The arguments of a model's calls hold no event."""
    arguments: object = content.arguments
    is_call = content.type == "function_call" and content.name == _NAME
    return is_call and isinstance(arguments, Mapping) and isinstance(arguments.get("request_event"), Mapping)


def questions_of(activation: ActivationPort) -> list[Request]:
    """What the workflow waits for as this handler call has left it, but for what agents in it ask as contents."""
    if not isinstance(activation, ActivationRecorder) or activation.child is None:
        return []
    give, asked = activation.around.values.give, activation.asked_inside
    found = [asked.get(key, each) for key, each in activation.child.requests.items()]
    return [each for each in found if not _asks_as_content(give(each.data))]


def _asks_as_content(data: object) -> bool:
    return isinstance(data, Content) and data.user_input_request is True


def asked_outside(activation: ActivationPort, questions: Iterable[Request]) -> dict[str, Content]:
    """Open a request for each; by the ids that they have outside, which call an answer is the result of inside."""
    assert isinstance(activation, ActivationRecorder), "who has a workflow inside is run by the engine"
    opened: dict[str, Content] = {}
    for each in questions:
        chosen = f"{each.id}-{activation.idempotency_key}" if activation.is_open(each.id) else each.id
        give = activation.around.values.give
        terms = Terms(approved_digest=each.approves)
        if each.deadline is not None and each.default is not None:
            # Nobody looks at the deadlines of what waits inside.
            terms = replace(terms, deadline=datetime.fromisoformat(each.deadline), default=give(each.default))
        activation.request(give(each.data), each.response_type, chosen, terms)
        opened[chosen] = Content.from_function_call(each.id, _NAME)
    return opened


def result_inside(question: Content, answer: Any) -> Content:
    """The answer to a question, as the workflow inside is told it."""
    return Content("function_result", call_id=question.call_id, result=answer, additional_properties={_INWARDS: True})


def without_inside(messages: Sequence[Message]) -> list[Message]:
    """Messages without the questions that were answered from outside, and without the answers."""
    every = (content for message in messages for content in message.contents)
    answered = {content.call_id for content in every if _INWARDS in content.additional_properties}
    if not answered:
        return list(messages)
    return left_over(messages, lambda content: content.call_id in answered)


def left_over(messages: Iterable[Message], is_out: Callable[[Content], bool]) -> list[Message]:
    """Messages without some contents, and without those that were nothing else."""
    return [kept for message in messages if (kept := _rest_of(message, is_out)) is not None]


def _rest_of(message: Message, is_out: Callable[[Content], bool]) -> Message | None:
    contents = [content for content in message.contents if not is_out(content)]
    if len(contents) == len(message.contents):
        return message
    kept = copy(message)
    kept.contents = contents
    return kept if contents else None


def first_told(messages: Sequence[Message]) -> Sequence[Message]:
    """What a workflow that waits is told now: answers come alone, whatever else was said meanwhile."""
    is_answer = bool(messages) and all(content.type in _ANSWERS for content in messages[0].contents)
    return messages[:1] if is_answer else messages
