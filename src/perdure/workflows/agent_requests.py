"""Requests of a workflow as contents of an agent's answer, and contents of messages as answers to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from perdure.agent_errors import AgentInvalidResponseException
from perdure.agents import Content, Message
from perdure.events import WorkflowEvent

if TYPE_CHECKING:
    from collections.abc import Iterable

REQUEST_INFO_FUNCTION_NAME = "request_info"

_PLAIN = (str, int, float, bool, type(None))


@dataclass
class RequestInfoFunctionArgs:
    """The arguments of the call that a request is told as. They hold the request itself, as an object."""

    request_id: str
    request_event: WorkflowEvent[Any]

    def to_dict(self) -> dict[str, Any]:
        """As a dict. The request in it stays the object that it is."""
        return {"request_id": self.request_id, "request_event": self.request_event.to_dict()}

    @classmethod
    def from_dict(cls, payload: Mapping[str, Any]) -> RequestInfoFunctionArgs:
        """The arguments of what `to_dict` gave. Raises ValueError if something is missing."""
        for name in ("request_id", "request_event"):
            if not payload.get(name):
                raise ValueError(
                    f"the arguments of a {REQUEST_INFO_FUNCTION_NAME!r} call have a request_id and a request_event; "
                    f"{name!r} is missing or empty"
                )
        return cls(payload["request_id"], WorkflowEvent.from_dict(payload["request_event"]))


def content_of_request(event: WorkflowEvent[Any]) -> Content:
    """A request, as whoever uses the agent is told of it: what an agent asks as it is, all else as a call."""
    data: object = event.data
    if isinstance(data, Content) and data.user_input_request:
        return data
    arguments = RequestInfoFunctionArgs(event.request_id, event).to_dict()
    return Content.from_function_call(event.request_id, REQUEST_INFO_FUNCTION_NAME, arguments=arguments)


def answered_ids(messages: Iterable[Message]) -> list[str]:
    """What messages answer; nothing if anything in them is no answer."""
    found = [_answered_id(content) for message in messages for content in message.contents]
    answered = [each for each in found if each is not None]
    return answered if len(answered) == len(found) else []


def answers_in(messages: Iterable[Message], pending: Mapping[str, WorkflowEvent[Any]]) -> dict[str, Any]:
    """The answers in messages, by request. Raises AgentInvalidResponseException for what is none."""
    found: dict[str, Any] = {}
    for content in (content for message in messages for content in message.contents):
        told_id = _answered_id(content)
        if told_id is None:
            raise AgentInvalidResponseException(
                f"the workflow waits for {_named(pending)}, and a content of type {content.type!r} answers nothing: "
                "answer with Content.from_function_result(request_id, result=...), or with "
                "request.to_function_approval_response(...)"
            )
        event = pending.get(told_id) or _asked_as(told_id, pending)
        found[told_id if event is None else event.request_id] = _answer(content, event)
    return found


def _named(pending: Mapping[str, WorkflowEvent[Any]]) -> str:
    asked = (f"{key!r} of executor {event.source_executor_id!r}" for key, event in pending.items())
    return f"answers to its requests {', '.join(asked)}"


def _answered_id(content: Content) -> str | None:
    """What a content answers, if it is an answer."""
    match content.type:
        case "function_result":
            return content.call_id
        case "function_approval_response":
            return content.id
        case _:
            return None


def _asked_as(told_id: str, pending: Mapping[str, WorkflowEvent[Any]]) -> WorkflowEvent[Any] | None:
    """The request that was told as a content with an id of its own."""
    for event in pending.values():
        data: object = event.data
        if isinstance(data, Content) and data.user_input_request and told_id in {data.id, data.call_id}:
            return event
    return None


def _answer(content: Content, event: WorkflowEvent[Any] | None) -> Any:
    """The answer itself. Who asks for a content gets the content, who asks for a value what the content brings.

    An answer to nothing that waits stays as it is: whoever refuses it says why.
    """
    if event is not None and isinstance(content.result, Content):
        return content.result
    if event is None or event.response_type is Content or content.type == "function_approval_response":
        return content
    return content.result


def plain_messages(messages: Iterable[Message]) -> list[Message]:
    """Messages for a history: what requests and answers hold as objects, as plain data."""
    return [_plain_message(message) for message in messages]


def _plain_message(message: Message) -> Message:
    contents = [_plain_content(content) for content in message.contents]
    if all(mine is its for mine, its in zip(contents, message.contents, strict=True)):
        return message
    return Message(
        message.role,
        contents,
        author_name=message.author_name,
        message_id=message.message_id,
        additional_properties=message.additional_properties,
    )


def _plain_content(content: Content) -> Content:
    if content.type == "function_call" and isinstance(content.arguments, Mapping):
        arguments = cast("Mapping[str, Any]", plain(content.arguments))
        return content if arguments == content.arguments else replace(content, arguments=arguments)
    if content.type == "function_result" and not isinstance(content.result, _PLAIN):
        return replace(content, result=plain(content.result))
    return content


def plain(value: Any) -> Any:
    """A value as JSON has it; what JSON does not have, as the text that it prints."""
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, Content | Message):
        return plain(value.to_dict())
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    dump: Any = getattr(value, "model_dump", None)
    if callable(dump):
        return plain(dump(mode="json"))
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, Sequence | set | frozenset) and not isinstance(value, bytes):
        return [plain(each) for each in cast("Sequence[Any]", value)]
    return str(value)
