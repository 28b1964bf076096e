"""What an agent asks of the outside in the middle of a turn, and what an answer comes to."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from perdure.agents.messages.content import Content
from perdure.agents.messages.conversation import is_of_a_tool
from perdure.agents.messages.message import Message
from perdure.data import frozen
from perdure.engine import ActivationRecorder
from perdure.graph import Terms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

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


APPROVAL = "function_approval_request"
_APPROVALS = frozenset({APPROVAL, "function_approval_response"})
_OF_CALLS = _APPROVALS | {"function_call", "function_result"}

Answer: TypeAlias = Content | bool
"""An answer to a question whether a call may be made. True and False will do."""


def distinct(asked: Iterable[Content]) -> list[Content]:
    """What is asked, each once: a stream tells it in its updates and in its whole."""
    found: list[Content] = []
    for content in asked:
        if not any(content == each or _is_same(content, each) for each in found):
            found.append(content)
    return found


def _is_same(asked: Content, other: Content) -> bool:
    """Whether two contents ask one thing. Two questions about two calls are two, whatever their ids are."""
    if asked.id is None or (asked.type, asked.id, asked.call_id) != (other.type, other.id, other.call_id):
        return False
    return what_is_done(asked) == what_is_done(other)


def what_is_done(asked: Content) -> dict[str, Any] | None:
    """The call that is made if a question is answered with yes; None if it is no such question."""
    call = asked.function_call
    if asked.type != APPROVAL or call is None:
        return None
    return _call(call)


def _call(call: Content) -> dict[str, Any]:
    return {"name": call.name, "arguments": call.parse_arguments()}


def misfit(asked: Content, answer: Answer) -> str | None:
    """Why an answer is none to what was asked; None if it is one."""
    if isinstance(answer, bool):
        return None if asked.type == APPROVAL else "True and False answer only whether a call may be made"
    if asked.type != APPROVAL:
        return _misfit_of_others(asked, answer)
    if answer.type != "function_approval_response" or answer.approved is None:
        return f"a content of type {answer.type!r} says neither yes nor no"
    call = answer.function_call
    if answer.approved and call is not None and _call(call) != what_is_done(asked):
        return f"it approves another call of {call.name!r} than the one that was asked about"
    return None


def _misfit_of_others(asked: Content, answer: Content) -> str | None:
    """Why an answer is none to what is no question for approval: it must not be taken for an answer to another one."""
    if asked.type == "function_call":
        is_result = answer.type == "function_result"
        return None if is_result else f"a content of type {answer.type!r} is no function_result"
    if answer.type in _OF_CALLS:
        return f"a content of type {answer.type!r} is about a call, and none was asked about"
    return None


def answer_to(asked: Content, answer: Answer) -> Content:
    """The answer as the agent gets it. Which call it is about is what was asked, and never what the answer says."""
    if asked.type != APPROVAL:
        assert isinstance(answer, Content), "an answer that fits was given"
        return replace(answer, call_id=asked.call_id) if asked.type == "function_call" else answer
    approved = answer if isinstance(answer, bool) else answer.approved is True
    return asked.to_function_approval_response(approved)


def message_of(answers: Sequence[Content]) -> Message:
    """The answers as a message: results of calls come from a tool."""
    are_results = all(answer.type == "function_result" for answer in answers)
    return Message("tool" if are_results else "user", list(answers))


def told_on(said: Sequence[Message]) -> list[Message]:
    """A conversation as others get it: calls that were asked about are calls, and those that came to nothing are gone.

    A question or an answer that another agent found in it would be taken for one of its own.
    """
    conversation = without_inside(said)
    every = [content for message in conversation for content in message.contents]
    if not any(_is_between_turns(content) for content in every):
        return conversation
    done = {content.call_id for content in every if content.type == "function_result"}
    told = {content.call_id for content in every if content.type == "function_call"}
    calls = _Calls(done=done, told=told & done)
    return [kept for message in conversation if (kept := calls.told_on(message)) is not None]


def _is_between_turns(content: Content) -> bool:
    return content.type in _APPROVALS or content.user_input_request is True


@frozen
class _Calls:
    """The calls of a conversation, by id: those that have a result, and those of them that are told as calls."""

    done: set[str | None]
    told: set[str | None]

    def told_on(self, message: Message) -> Message | None:
        if not any(self._is_to_change(content) for content in message.contents):
            return message
        contents = [kept for content in message.contents if (kept := self._settled(content)) is not None]
        return Message(message.role, contents, author_name=message.author_name) if contents else None

    def _is_to_change(self, content: Content) -> bool:
        return _is_between_turns(content) or (content.type == "function_call" and content.call_id not in self.done)

    def _settled(self, content: Content) -> Content | None:
        if content.type == "function_call":
            return replace(content, user_input_request=None) if content.call_id in self.done else None
        if content.type != APPROVAL:
            return None if _is_between_turns(content) else content
        call = content.function_call
        is_call = call is not None and not is_of_a_tool(content) and call.call_id in self.done - self.told
        return call if is_call else None
