"""What an agent asks of the outside in the middle of a turn, and what an answer comes to."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

from perdure.agents.content import Content
from perdure.agents.executor_questions import without_inside
from perdure.agents.messages import Message
from perdure.agents.repair import is_of_a_tool
from perdure.data import frozen

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

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
