"""Translation between a run and an agent: events become messages, messages become answers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
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
    UsageDetails,
    add_usage_details,
    share_conversation,
)
from perdure.errors import AgentInvalidRequestException, AgentInvalidResponseException
from perdure.events import WorkflowEvent
from perdure.graph import Graph, SwitchCaseEdgeGroup
from perdure.streams import without_discarded
from perdure.types import is_type_compatible

if TYPE_CHECKING:
    from perdure.clock import Clock
    from perdure.workflows.as_agent.agent import WorkflowAgent

REQUEST_INFO_FUNCTION_NAME = "request_info"

_PLAIN = (str, int, float, bool, type(None))


@dataclass
class RequestInfoFunctionArgs:
    """The arguments of the call that stands for a request. They contain the request object itself."""

    request_id: str
    request_event: WorkflowEvent[Any]

    def to_dict(self) -> dict[str, Any]:
        """Convert to a dict. The request in it stays an object."""
        return {"request_id": self.request_id, "request_event": self.request_event.to_dict()}

    @classmethod
    def from_dict(
        cls, payload: Mapping[str, Any], *, allowed_types: Mapping[str, type[Any]] | None = None
    ) -> RequestInfoFunctionArgs:
        """Read the output of `to_dict`. Raises ValueError if something is missing."""
        for name in ("request_id", "request_event"):
            if not payload.get(name):
                raise ValueError(
                    f"the arguments of a {REQUEST_INFO_FUNCTION_NAME!r} call need a request_id and a request_event; "
                    f"{name!r} is missing or empty"
                )
        return cls(
            payload["request_id"], WorkflowEvent.from_dict(payload["request_event"], allowed_types=allowed_types)
        )


def request_content(event: WorkflowEvent[Any]) -> Content:
    """Return a request as a content: an agent's question as it is, a text and everything else as a call."""
    data: object = event.data
    if isinstance(data, Content) and data.user_input_request and data.type != "text":
        return data
    arguments = RequestInfoFunctionArgs(event.request_id, event).to_dict()
    return Content.from_function_call(event.request_id, REQUEST_INFO_FUNCTION_NAME, arguments=arguments)


def answered_ids(messages: Iterable[Message]) -> list[str]:
    """Return the ids that the messages answer; an empty list if anything in them is not an answer."""
    found = [_answered_id(content) for message in messages for content in message.contents]
    return [] if None in found else [each for each in found if each is not None]


def find_answers(
    messages: Sequence[Message], pending: Mapping[str, WorkflowEvent[Any]], *, seen: Collection[str]
) -> dict[str, Any]:
    """Return the answers by request id. Messages without one answer the only request that takes them.

    `seen` are the requests that the caller knows: other requests need their id. Raises AgentInvalidResponseException if
    no request takes the messages, or several do.
    """
    found: dict[str, Any] = {}
    for content in (content for message in messages for content in message.contents):
        answered = _answered_id(content)
        if answered is not None:
            # A request may have been sent as a content with its own id.
            asked = (each for each in pending.values() if _is_question(each.data, answered))
            event = pending.get(answered) or next(asked, None)
            found[answered if event is None else event.request_id] = _answer(content, event)
    forms = plain_answers(messages)
    if not forms:
        return found
    takers: dict[str, Any] = {}
    for key, event in pending.items():
        fitting = [form for type_, form in forms if is_type_compatible(type_, event.response_type)]
        if fitting and key in seen and key not in found:
            takers[key] = fitting[0]
    if len(takers) != 1:
        asked = (f"{key!r} of executor {event.source_executor_id!r}" for key, event in pending.items())
        raise AgentInvalidResponseException(
            f"the workflow waits for answers to its requests {', '.join(asked)}, and a message without a request id is "
            f"an answer only if one request of the session takes it, but {len(takers)} do; answer with "
            "Content.from_function_result(request_id, result=...), or with request.to_function_approval_response(...)"
        )
    return {**found, **takers}


def plain_answers(messages: Sequence[Message]) -> list[tuple[object, object]]:
    """Return the forms of messages as an answer, each with its type. Contents that name a request are left out."""
    rests = [(message, [each for each in message.contents if _answered_id(each) is None]) for message in messages]
    plain = [message.with_contents(rest) for message, rest in rests if rest]
    forms: list[tuple[object, object]] = [(list[Message], plain)] if plain else []
    if len(plain) == 1:
        forms.insert(0, (Message, plain[0]))
    if plain and all(content.type == "text" for message in plain for content in message.contents):
        forms.insert(0, (str, "\n".join(message.text for message in plain)))
    return forms


def _answered_id(content: Content) -> str | None:
    ids = {"function_result": content.call_id, "function_approval_response": content.id}
    return ids.get(content.type)


def _is_question(data: object, content_id: str) -> bool:
    return isinstance(data, Content) and bool(data.user_input_request) and content_id in {data.id, data.call_id}


def _answer(content: Content, event: WorkflowEvent[Any] | None) -> Any:
    """Return the answer for the executor: the content if it asked for one, else the content's value.

    An answer without an open request stays as it is; whoever refuses it says why.
    """
    if event is not None and isinstance(content.result, Content):
        return content.result
    if event is None or content.type == "function_approval_response":
        return content
    data: object = event.data
    is_call = event.response_type is Content and isinstance(data, Content) and data.type != "text"
    return content if is_call else content.result


def to_plain_messages(messages: Iterable[Message]) -> list[Message]:
    """Return messages for a history, with objects in requests and answers converted to plain data."""
    return [message.with_contents([_plain_content(each) for each in message.contents]) for message in messages]


def _plain_content(content: Content) -> Content:
    if content.type == "function_call" and isinstance(content.arguments, Mapping):
        arguments = cast("Mapping[str, Any]", to_plain(content.arguments))
        return content if arguments == content.arguments else replace(content, arguments=arguments)
    if content.type == "function_result" and not isinstance(content.result, _PLAIN):
        return replace(content, result=to_plain(content.result))
    return content


def to_plain(value: Any) -> Any:
    """Convert a value to JSON types; anything unknown becomes its text."""
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, Content | Message):
        return to_plain(value.to_dict())
    if is_dataclass(value) and not isinstance(value, type):
        return to_plain(asdict(value))
    dump: Any = getattr(value, "model_dump", None)
    if callable(dump):
        return to_plain(dump(mode="json"))
    if isinstance(value, Mapping):
        return {str(key): to_plain(each) for key, each in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, Sequence | set | frozenset) and not isinstance(value, bytes):
        return [to_plain(each) for each in cast("Sequence[Any]", value)]
    return str(value)


@dataclass(frozen=True, slots=True)
class TurnInput:
    """The input of a turn: the conversation by history, and the new messages.

    Repeated messages are attributed to their history, so that a reader who knows them skips them.
    """

    before: Mapping[str, list[Message]]
    said: list[Message]
    counts: Mapping[str, int]
    """The length of each history that only grows, if the run remembers earlier messages."""

    @classmethod
    def of(cls, agent: WorkflowAgent, context: SessionContext, said: list[Message]) -> TurnInput:
        """Collect the input for an agent's workflow."""
        before = context.context_messages
        growing = [each.source_id for each in agent.context_providers if type(each) is InMemoryHistoryProvider]
        remembers = stores_own_output(agent) or _all_remember(agent.workflow.graph)
        return cls(before, said, {key: len(before[key]) for key in growing if key in before} if remembers else {})

    def since(self, heard: Mapping[str, int]) -> list[Message]:
        """Return the messages after those that a run has seen; all messages of a history that became shorter.

        A run that knows nothing yet has heard `{}`.
        """
        context = SessionContext(input_messages=[])
        for source_id, messages in self.before.items():
            known = heard.get(source_id, 0) if source_id in self.counts else 0
            context.extend_messages(source_id, share_conversation(messages[known if known <= len(messages) else 0 :]))
        return [*context.get_messages(), *self.said]


def stores_own_output(agent: WorkflowAgent) -> bool:
    """Return True if the start executor stores the conversation, including the workflow's own output."""
    return bool(getattr(agent.workflow.get_start_executor(), "keeps_conversation", False))


def _all_remember(graph: Graph) -> bool:
    """Return True if all executors are agents with sessions, and all of them see every turn.

    Another executor may know only what it is sent.
    """
    return all(map(AgentExecutor.remembers, graph.executors.values())) and not any(
        isinstance(group, SwitchCaseEdgeGroup)
        or getattr(group, "selection_func", None) is not None
        or any(edge.has_condition for edge in group.edges)
        for group in graph.groups
    )


RESPONSE_EVENTS = frozenset({"output", "intermediate", "data", "request_info", "attempt_discarded"})
"""The events that become part of a response, or take parts of it back."""


class DiscardingUpdate(AgentResponseUpdate):
    """An update without contents: it takes earlier updates of the stream back, those of a discarded attempt."""

    def __init__(self, event: WorkflowEvent[Any], discards: Sequence[AgentResponseUpdate]) -> None:
        super().__init__(contents=[], author_name=event.executor_id, raw_representation=event)
        self.discards = tuple(discards)


@dataclass(slots=True)
class ResponseBuilder:
    """Build the response of one call. All its parts have one `response_id`.

    Attributes:
        _speaker: The author of the last update without a message id.
        _given: By the identity of an event: the event, and the updates that were made of it.
    """

    agent_name: str | None
    response_id: str
    clock: Clock
    _speaker: tuple[str | None, ...] = field(default=(), init=False)
    _message_id: str = field(default="", init=False)
    _given: dict[int, tuple[WorkflowEvent[Any], list[AgentResponseUpdate]]] = field(default_factory=dict, init=False)  # pyright: ignore[reportUnknownVariableType]

    def complete(self, events: Iterable[WorkflowEvent[Any]]) -> AgentResponse[Any]:
        """Build a complete response. Raises AgentInvalidRequestException for stream updates."""
        messages: list[Message] = []
        usage: UsageDetails | None = None
        created_at: str | None = None
        raw: list[object] = []
        for event in without_discarded(events):
            if event.type not in RESPONSE_EVENTS:
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
            return [self._message([request_content(event)], event.source_executor_id, event)]
        data: object = event.data
        match data:
            case AgentResponseUpdate():
                raise AgentInvalidRequestException(
                    f"executor {event.executor_id!r} yielded an AgentResponseUpdate, but the call doesn't stream; "
                    "let it yield an AgentResponse, or call run(..., stream=True)"
                )
            case AgentResponse():
                return list(cast("AgentResponse[Any]", data).messages)
            case Message():
                return [data]
            case _:
                if is_conversation(data):
                    return list(data)
                contents = to_contents(data)
                return [self._message(contents, event.executor_id, data)] if contents else []

    def _message(self, contents: Sequence[Content], author_name: str | None, raw: object) -> Message:
        return Message(
            "assistant", contents, author_name=author_name, message_id=self.clock.new_id(), raw_representation=raw
        )

    def updates(self, event: WorkflowEvent[Any]) -> list[AgentResponseUpdate]:
        """Return the updates of an event."""
        if event.type not in RESPONSE_EVENTS:
            return []
        if event.type == "attempt_discarded":
            given = [self._given.pop(id(each), (each, []))[1] for each in event.discards]
            return [DiscardingUpdate(event, [update for updates in given for update in updates])]
        made = self._updates(event)
        self._given[id(event)] = (event, made)
        return made

    def _updates(self, event: WorkflowEvent[Any]) -> list[AgentResponseUpdate]:
        if event.type == "request_info":
            return [self._update(Message("assistant", [request_content(event)]), self.agent_name, event)]
        data: object = event.data
        match data:
            case AgentResponseUpdate():
                return [self._copy_update(data, event.executor_id)]
            case AgentResponse():
                return self._split(cast("AgentResponse[Any]", data), event.executor_id)
            case _:
                holds_messages = isinstance(data, Message) or is_conversation(data)
                return [
                    self._update(message, event.executor_id, message if holds_messages else data)
                    for message in self._messages(event)
                ]

    def _copy_update(self, update: AgentResponseUpdate, executor_id: str | None) -> AgentResponseUpdate:
        """Copy an update and name its author. The executor may still hold the original."""
        piece = AgentResponseUpdate(**update.stored_fields())
        piece.contents = list(update.contents)
        piece.author_name = update.author_name or executor_id
        piece.message_id = update.message_id or self._message_id_of(update, executor_id)
        piece.raw_representation = update.raw_representation
        return piece

    def _message_id_of(self, update: AgentResponseUpdate, executor_id: str | None) -> str:
        """Return the message id of an update without one. It changes when the speaker changes."""
        role = update.role or (self._speaker[-1] if self._speaker else None)
        speaker = (executor_id, update.author_name, update.response_id, role)
        if speaker != self._speaker:
            self._speaker, self._message_id = speaker, self.clock.new_id()
        return self._message_id

    def _split(self, response: AgentResponse[Any], executor_id: str | None) -> list[AgentResponseUpdate]:
        found = response.to_updates()
        for update, message in zip(found, response.messages, strict=True):
            update.author_name = update.author_name or executor_id
            update.response_id = update.response_id or self.response_id
            update.message_id = update.message_id or self.clock.new_id()
            update.created_at = update.created_at or self._now()
            update.raw_representation = message
        return found

    def _update(self, message: Message, author_name: str | None, raw: object) -> AgentResponseUpdate:
        return AgentResponseUpdate(
            contents=list(message.contents),
            role=message.role,
            author_name=message.author_name or author_name,
            response_id=self.response_id,
            message_id=message.message_id or self.clock.new_id(),
            created_at=self._now(),
            raw_representation=raw,
        )

    def _now(self) -> str:
        return self.clock.now().strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def is_conversation(data: object) -> TypeGuard[list[Message]]:
    """Return True for a non-empty list of messages."""
    if not isinstance(data, list):
        return False
    found = cast("list[object]", data)
    return bool(found) and all(isinstance(each, Message) for each in found)


def to_contents(data: object) -> list[Content]:
    """Convert any value to contents: lists item by item, other values as text."""
    if isinstance(data, list):
        return [content for each in cast("list[object]", data) for content in to_contents(each)]
    return [data if isinstance(data, Content) else Content.from_text(str(data))]


def merge_responses(updates: Sequence[AgentResponseUpdate], response_id: str) -> AgentResponse[Any]:
    """Merge interleaved updates: responses in the order of their first updates, each with its messages by time.

    A result without a response id belongs to the response with its call. Other updates without one come last.
    """
    callers = {
        content.call_id: update.response_id
        for update in updates
        for content in update.contents
        if content.type == "function_call" and content.call_id and update.response_id
    }
    groups: dict[str | None, dict[str | None, list[AgentResponseUpdate]]] = {}
    for update in updates:
        calls = (content.call_id for content in update.contents if content.type == "function_result")
        owner = update.response_id or next((callers[call_id] for call_id in calls if call_id in callers), None)
        message_id = (update.message_id or None) if owner else None
        groups.setdefault(owner, {}).setdefault(message_id, []).append(update)
    if None in groups:
        groups[None] = groups.pop(None)
    merged = AgentResponse[Any](messages=[], response_id=response_id)
    for by_message in groups.values():
        responses = [(id_ is None, AgentResponse.from_updates(group)) for id_, group in by_message.items()]
        for _, response in sorted(responses, key=lambda each: (_time_key(each[1].created_at), each[0])):
            merged.messages += response.messages
            merged.usage_details = add_usage_details(merged.usage_details, response.usage_details)
            times = [each for each in (merged.created_at, response.created_at) if each]
            merged.created_at = max(times, key=_time_key, default=None)
            merged.additional_properties.update(response.additional_properties)
    return merged


def _time_key(text: str | None) -> tuple[int, float, str]:
    """Return a sort key for a time. Unreadable times sort after readable ones, missing ones last."""
    if not text:
        return (2, 0, "")
    try:
        return (0, datetime.fromisoformat(text).timestamp(), "")
    except ValueError:
        return (1, 0, text)
