"""What a workflow tells, as what an agent answers: messages, or pieces of them."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any, TypeGuard, cast

from perdure.agent_errors import AgentInvalidRequestException
from perdure.agents import AgentResponse, AgentResponseUpdate, Content, Message, add_usage_details
from perdure.data import mutable
from perdure.workflows.agent_requests import content_of_request

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from perdure.agents import UsageDetails
    from perdure.clock import Clock
    from perdure.events import WorkflowEvent

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
