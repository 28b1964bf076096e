"""Requests of a workflow as contents of an agent's answer, and contents of messages as answers to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeGuard, cast

from perdure.agents import (
    AgentExecutor,
    AgentResponse,
    AgentResponseUpdate,
    Content,
    InMemoryHistoryProvider,
    Message,
    SessionContext,
    add_usage_details,
    told_on,
)
from perdure.data import frozen, mutable
from perdure.errors import AgentInvalidRequestException, AgentInvalidResponseException
from perdure.events import WorkflowEvent
from perdure.graph import FanOutEdgeGroup, SwitchCaseEdgeGroup

if TYPE_CHECKING:
    from collections.abc import Iterable

    from perdure.agents import UsageDetails
    from perdure.clock import Clock
    from perdure.graph import EdgeGroup
    from perdure.workflows.as_agent.agent import WorkflowAgent

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


@frozen
class Given:
    """A conversation, by who has kept it, and what is said now. What is told again says so: who knows it skips it."""

    before: Mapping[str, list[Message]]
    said: list[Message]
    counts: Mapping[str, int]
    """How many messages there are in the histories that only grow, if the run remembers what it was told."""

    @classmethod
    def of(cls, agent: WorkflowAgent, context: SessionContext, said: list[Message]) -> Given:
        """What is given to the workflow of an agent."""
        before = context.context_messages
        growing = [each.source_id for each in agent.context_providers if type(each) is InMemoryHistoryProvider]
        known = {key: len(before[key]) for key in growing if key in before} if _counts(agent) else {}
        return cls(before, said, known)

    def whole(self) -> list[Message]:
        """All of it, for a run that knows nothing yet."""
        return self.since({})

    def since(self, heard: Mapping[str, int]) -> list[Message]:
        """What is behind the messages that a run has heard of each history; all of a history that became shorter."""
        context = SessionContext(input_messages=[])
        for source_id, messages in self.before.items():
            known = heard.get(source_id, 0) if source_id in self.counts else 0
            context.extend_messages(source_id, told_on(messages[known if known <= len(messages) else 0 :]))
        return [*context.get_messages(), *self.said]


def hears_itself(agent: WorkflowAgent) -> bool:
    """Whether who leads the workflow keeps the conversation, also what the workflow itself has said."""
    return bool(getattr(agent.workflow.get_start_executor(), "keeps_conversation", False))


def _counts(agent: WorkflowAgent) -> bool:
    return hears_itself(agent) or _remembers(agent)


def _remembers(agent: WorkflowAgent) -> bool:
    """Whether all in the workflow are agents with sessions of their own, which are told of every turn.

    Where somebody else is told something, or somebody is told only of some turns, that may be all they know.
    """
    graph = agent.workflow.graph
    return not any(map(_chooses, graph.groups)) and all(map(AgentExecutor.remembers, graph.executors.values()))


def _chooses(group: EdgeGroup) -> bool:
    is_selecting = isinstance(group, FanOutEdgeGroup) and (
        isinstance(group, SwitchCaseEdgeGroup) or group.selection_func is not None
    )
    return is_selecting or any(edge.has_condition for edge in group.edges)


TOLD = frozenset({"output", "intermediate", "data", "request_info"})
"""The events that become part of an answer. All others are the workflow's own affair."""


@mutable
class Teller:
    """Makes the answer of one call. All of it has one `response_id`."""

    agent_name: str | None
    response_id: str
    clock: Clock
    _speaker: tuple[str | None, ...] = field(default=(), init=False)
    """Who told the last piece that named no message."""
    _message_id: str = field(default="", init=False)

    def whole(self, events: Iterable[WorkflowEvent[Any]]) -> AgentResponse[Any]:
        """All that was told as one answer. Raises AgentInvalidRequestException for pieces of answers."""
        messages: list[Message] = []
        usage: UsageDetails | None = None
        created_at: str | None = None
        raw: list[object] = []
        for event in events:
            if event.type not in TOLD:
                continue
            said = self._messages(event)
            messages += said
            data: object = event.data
            if isinstance(data, AgentResponse) and event.type != "request_info":
                response = cast("AgentResponse[Any]", data)
                usage = add_usage_details(usage, response.usage_details)
                created_at = max(filter(None, (created_at, response.created_at)), default=None)
                raw.append(response.raw_representation)
            elif said:
                raw.append(event if event.type == "request_info" else cast("object", data))
        return AgentResponse(
            messages=messages,
            response_id=self.response_id,
            created_at=created_at,
            usage_details=usage,
            raw_representation=raw,
        )

    def _messages(self, event: WorkflowEvent[Any]) -> list[Message]:
        if event.type == "request_info":
            return [self._message([content_of_request(event)], event.source_executor_id, event)]
        data: object = event.data
        match data:
            case AgentResponseUpdate():
                raise AgentInvalidRequestException(
                    f"executor {event.executor_id!r} yielded an AgentResponseUpdate, a piece of an answer, and nobody "
                    "reads a stream: let it yield an AgentResponse, or call run(..., stream=True)"
                )
            case AgentResponse():
                return list(cast("AgentResponse[Any]", data).messages)
            case Message():
                return [data]
            case _:
                if is_conversation(data):
                    return list(data)
                contents = contents_in(data)
                return [self._message(contents, event.executor_id, data)] if contents else []

    def _message(self, contents: Sequence[Content], author_name: str | None, raw: object) -> Message:
        return Message(
            "assistant",
            contents,
            author_name=author_name,
            message_id=self.clock.new_id(),
            raw_representation=raw,
        )

    def pieces(self, event: WorkflowEvent[Any]) -> list[AgentResponseUpdate]:
        """What is told of an event to whoever reads a stream."""
        if event.type not in TOLD:
            return []
        if event.type == "request_info":
            return [self._piece(Message("assistant", [content_of_request(event)]), self.agent_name, event)]
        data: object = event.data
        match data:
            case AgentResponseUpdate():
                return [self._piece_of(data, event.executor_id)]
            case AgentResponse():
                return self._pieces_of(cast("AgentResponse[Any]", data), event.executor_id)
            case _:
                return [self._piece(message, event.executor_id) for message in self._messages(event)]

    def _piece_of(self, update: AgentResponseUpdate, executor_id: str | None) -> AgentResponseUpdate:
        """The same piece, and whose it is. The executor may still hold its own: that one is not changed."""
        piece = AgentResponseUpdate(**update.stored())
        piece.contents = list(update.contents)
        piece.author_name = update.author_name or executor_id
        piece.message_id = update.message_id or self._unnamed(update, executor_id)
        piece.raw_representation = update.raw_representation
        return piece

    def _unnamed(self, update: AgentResponseUpdate, executor_id: str | None) -> str:
        """The message of a piece that names none: it is another one when another one speaks."""
        role = update.role or (self._speaker[-1] if self._speaker else None)
        speaker = (executor_id, update.author_name, update.response_id, role)
        if speaker != self._speaker:
            self._speaker, self._message_id = speaker, self.clock.new_id()
        return self._message_id

    def _pieces_of(self, response: AgentResponse[Any], executor_id: str | None) -> list[AgentResponseUpdate]:
        found = response.to_updates()
        for update, message in zip(found, response.messages, strict=True):
            update.author_name = update.author_name or executor_id
            update.response_id = update.response_id or self.response_id
            update.message_id = update.message_id or self.clock.new_id()
            update.created_at = update.created_at or self._now()
            update.raw_representation = message
        return found

    def _piece(self, message: Message, author_name: str | None, raw: object = None) -> AgentResponseUpdate:
        return AgentResponseUpdate(
            contents=list(message.contents),
            role=message.role,
            author_name=message.author_name or author_name,
            response_id=self.response_id,
            message_id=message.message_id or self.clock.new_id(),
            created_at=self._now(),
            raw_representation=message if raw is None else raw,
        )

    def _now(self) -> str:
        return self.clock.now().strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def is_conversation(data: object) -> TypeGuard[list[Message]]:
    """Whether something is a list of messages."""
    if not isinstance(data, list):
        return False
    found = cast("list[object]", data)
    return bool(found) and all(isinstance(each, Message) for each in found)


def contents_in(data: object) -> list[Content]:
    """Any value as contents: a list as those of its items, what is no content as a text."""
    if isinstance(data, list):
        return [content for each in cast("list[object]", data) for content in contents_in(each)]
    return [data if isinstance(data, Content) else Content.from_text(str(data))]


@mutable
class _Pieces:
    """The pieces of one answer: by message, and those that say of no message to be of it."""

    by_message: dict[str, list[AgentResponseUpdate]] = field(default_factory=dict[str, "list[AgentResponseUpdate]"])
    others: list[AgentResponseUpdate] = field(default_factory=list["AgentResponseUpdate"])

    def add(self, update: AgentResponseUpdate) -> None:
        """Take a piece in."""
        if update.message_id:
            self.by_message.setdefault(update.message_id, []).append(update)
        else:
            self.others.append(update)

    def wholes(self) -> list[AgentResponse[Any]]:
        """An answer for each message, in the order of time; what has no time comes last."""
        groups = [*self.by_message.values(), *([self.others] if self.others else [])]
        return sorted(
            (AgentResponse.from_updates(group) for group in groups), key=lambda each: _moment(each.created_at)
        )


def merged(updates: Sequence[AgentResponseUpdate], response_id: str) -> AgentResponse[Any]:
    """One answer: the answers in the order of their first pieces, each with its messages in the order of time.

    A result that says of no answer to be of it belongs to the answer with its call; what belongs to none comes last.
    """
    callers = _callers(updates)
    answers: dict[str, _Pieces] = {}
    strays: list[AgentResponseUpdate] = []
    for update in updates:
        owner = update.response_id or _caller_of(update, callers)
        if owner is None:
            strays.append(update)
        else:
            answers.setdefault(owner, _Pieces()).add(update)
    wholes = [whole for pieces in answers.values() for whole in pieces.wholes()]
    if strays:
        wholes.append(AgentResponse.from_updates(strays))
    return _joined(wholes, response_id)


def _callers(updates: Iterable[AgentResponseUpdate]) -> dict[str, str]:
    """By call: the answer that it stands in."""
    return {
        content.call_id: update.response_id
        for update in updates
        if update.response_id
        for content in update.contents
        if content.type == "function_call" and content.call_id
    }


def _caller_of(update: AgentResponseUpdate, callers: dict[str, str]) -> str | None:
    results = (content.call_id for content in update.contents if content.type == "function_result" and content.call_id)
    return next((callers[call_id] for call_id in results if call_id in callers), None)


def _joined(wholes: Iterable[AgentResponse[Any]], response_id: str) -> AgentResponse[Any]:
    messages: list[Message] = []
    usage: UsageDetails | None = None
    created: list[str] = []
    more: dict[str, Any] = {}
    for whole in wholes:
        messages += whole.messages
        if whole.usage_details:
            usage = add_usage_details(usage, whole.usage_details)
        if whole.created_at:
            created.append(whole.created_at)
        more.update(whole.additional_properties)
    return AgentResponse(
        messages=messages,
        response_id=response_id,
        created_at=max(created, key=_moment, default=None),
        usage_details=usage,
        additional_properties=more,
    )


def _moment(text: str | None) -> tuple[int, float, str]:
    """Where a time stands among others. One that can't be read stands behind those that can."""
    if not text:
        return (2, 0, "")
    try:
        return (0, datetime.fromisoformat(text).timestamp(), "")
    except ValueError:
        return (1, 0, text)
