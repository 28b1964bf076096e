"""Questions of an agent to the outside: approvals, calls that the user answers, requests of an inner workflow."""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from perdure.agents.messages.content import Content
from perdure.agents.messages.conversation import is_tool_question
from perdure.agents.messages.message import Message
from perdure.engine import ActivationRecorder, terms_of
from perdure.events import WorkflowEvent
from perdure.graph import Terms

if TYPE_CHECKING:
    from perdure.kernel import Request

_NAME: Final = "request_info"
"""The function by which a workflow used as an agent asks."""
_INNER_ANSWER: Final = "answers_inside"
"""Marks the answer to a question of the inner workflow. Other agents don't see it."""


def is_inner_question(content: Content) -> bool:
    """Return True for a content that stands for a request of an inner workflow. Calls of models contain no event."""
    arguments: object = content.arguments
    is_call = content.type == "function_call" and content.name == _NAME
    return is_call and isinstance(arguments, Mapping) and isinstance(arguments.get("request_event"), Mapping)


def inner_requests(activation: ActivationRecorder) -> list[Request]:
    """Return the open requests of the inner workflow, except those that its agents ask as contents."""
    if activation.child is None:
        return []
    give, opened = activation.context.values.give, activation.asked_inside
    found = [opened.get(key, each) for key, each in activation.child.requests.items()]
    data = [(each, give(each.data)) for each in found]
    return [each for each, asked in data if not (isinstance(asked, Content) and asked.user_input_request is True)]


def open_outer_requests(activation: ActivationRecorder, questions: Iterable[Request]) -> dict[str, Content]:
    """Open a request for each inner one. Returns the calls that the answers belong to, by outer request id."""
    opened: dict[str, Content] = {}
    for each in questions:
        chosen = f"{each.id}-{activation.idempotency_key}" if activation.is_open(each.id) else each.id
        # Deadlines inside are not watched, so the outer request takes them over.
        values = activation.context.values
        activation.request(values.give(each.data), each.response_type, chosen, terms_of(each, values))
        opened[chosen] = Content.from_function_call(each.id, _NAME)
    return opened


def to_inner_result(question: Content, answer: Any) -> Content:
    """Return an answer as the inner workflow gets it."""
    return Content(
        "function_result", call_id=question.call_id, result=answer, additional_properties={_INNER_ANSWER: True}
    )


def without_contents(messages: Iterable[Message], is_out: Callable[[Content], bool]) -> list[Message]:
    """Remove contents from messages, and messages that become empty."""
    kept: list[Message] = []
    for message in messages:
        contents = [content for content in message.contents if not is_out(content)]
        if contents or not message.contents:
            kept.append(message.with_contents(contents))
    return kept


def visible_messages(messages: Sequence[Message]) -> list[Message]:
    """Remove inner questions, and calls whose approval is requested in the same response.

    A stream sends a call and then asks about it; a complete response only asks.
    """
    every = [content for message in messages for content in message.contents]
    asked = {content.function_call.call_id for content in every if content.user_input_request and content.function_call}
    return without_contents(
        messages,
        lambda content: is_inner_question(content) or (content.type == "function_call" and content.call_id in asked),
    )


def spoken_messages(messages: Iterable[Message]) -> list[Message]:
    """Return the texts of the agent's own messages."""
    worded = [message for message in messages if message.role == "assistant" and message.text.strip()]
    return without_contents(worded, lambda content: content.type != "text")


APPROVAL = "function_approval_request"
_APPROVALS = frozenset({APPROVAL, "function_approval_response"})
_OF_CALLS = _APPROVALS | {"function_call", "function_result"}

Answer: TypeAlias = Content | bool
"""An answer to an approval request. True and False are accepted."""


def deduplicate(asked: Iterable[Content]) -> list[Content]:
    """Remove duplicates: a stream asks in its updates and in its final response.

    Questions about two calls differ, whatever their ids.
    """
    found: list[Content] = []
    keys: list[object] = []
    for content in asked:
        key = (content.type, content.id, content.call_id, approved_call(content))
        if content not in found and (content.id is None or key not in keys):
            found.append(content)
            keys.append(key)
    return found


def approved_call(asked: Content) -> dict[str, Any] | None:
    """Return the call that an approval allows; None if this is no approval request."""
    return _call(asked.function_call) if asked.type == APPROVAL and asked.function_call is not None else None


def _call(call: Content) -> dict[str, Any]:
    return {"name": call.name, "arguments": call.parse_arguments()}


def find_mismatch(asked: Content, answer: Answer) -> str | None:
    """Return why an answer doesn't fit the question; None if it fits."""
    if isinstance(answer, bool):
        return None if asked.type == APPROVAL else "True and False answer only approval requests"
    if asked.type == "function_call":
        return None if answer.type == "function_result" else f"a {answer.type!r} content is not a function_result"
    if asked.type != APPROVAL:
        # It must not be taken for the answer to another question.
        is_about_call = answer.type in _OF_CALLS
        return f"a {answer.type!r} content is about a call, but no call was asked about" if is_about_call else None
    if answer.type != "function_approval_response" or answer.approved is None:
        return f"a {answer.type!r} content says neither yes nor no"
    call = answer.function_call
    if answer.approved and call is not None and _call(call) != approved_call(asked):
        return f"it approves another {call.name!r} call than the one that was asked about"
    return None


def to_answer(asked: Content, answer: Answer) -> Content:
    """Return the answer for the agent. The call comes from the question, never from the answer."""
    if asked.type != APPROVAL:
        assert isinstance(answer, Content), "checked by find_mismatch"
        return replace(answer, call_id=asked.call_id) if asked.type == "function_call" else answer
    approved = answer if isinstance(answer, bool) else answer.approved is True
    return asked.to_function_approval_response(approved)


async def ask_all(activation: ActivationRecorder, asked: Sequence[Content]) -> list[Content]:
    """Ask an agent's questions as requests that the activation waits for. Returns the answers for the agent."""
    if len(asked) == 1:
        return [await _ask(activation, asked[0])]
    return list(await asyncio.gather(*[_ask(activation, each) for each in asked]))


async def _ask(activation: ActivationRecorder, asked: Content) -> Content:
    done = approved_call(asked)
    terms = Terms() if done is None else Terms(approves=done)
    while True:
        answer = await activation.ask(asked, Content if done is None else Answer, None, terms)
        reason = find_mismatch(asked, answer)
        if reason is None:
            return to_answer(asked, answer)
        activation.emit(WorkflowEvent.warning(f"question {asked.id!r} is asked again: {reason}"))


def share_conversation(said: Sequence[Message]) -> list[Message]:
    """Return a conversation for other agents: approved calls become plain calls, calls without result are removed.

    Another agent would take a question or an answer in it for one of its own.
    """
    every = [content for message in said for content in message.contents]
    answered = {content.call_id for content in every if _INNER_ANSWER in content.additional_properties}
    conversation = without_contents(said, lambda content: content.call_id in answered) if answered else list(said)
    every = [content for message in conversation for content in message.contents]
    if not any(_is_between_turns(content) for content in every):
        return conversation
    done = {content.call_id for content in every if content.type == "function_result"}
    calls = {content.call_id for content in every if content.type == "function_call"} & done

    def resolve(content: Content) -> Content | None:
        call = content.function_call
        match content.type:
            case "function_call" if content.call_id in done:
                return content if content.user_input_request is None else replace(content, user_input_request=None)
            case "function_call":
                return None
            case "function_approval_request" if call is not None and not is_tool_question(content):
                return call if call.call_id in done - calls else None
            case _:
                return None if _is_between_turns(content) else content

    shared: list[Message] = []
    for message in conversation:
        contents = [kept for content in message.contents if (kept := resolve(content)) is not None]
        if len(contents) == len(message.contents) and all(map(operator.is_, contents, message.contents)):
            shared.append(message)
        elif contents:
            shared.append(Message(message.role, contents, author_name=message.author_name))
    return shared


def _is_between_turns(content: Content) -> bool:
    return content.type in _APPROVALS or content.user_input_request is True
