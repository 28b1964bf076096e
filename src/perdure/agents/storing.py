"""How messages, responses and sessions stand in a checkpoint: their fields, without what a provider sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.agents.messages.content import Content
from perdure.agents.messages.message import Message
from perdure.agents.messages.responses import (
    AgentResponse,
    AgentResponseUpdate,
    ChatResponse,
    ChatResponseUpdate,
    stored_format,
)
from perdure.agents.sessions.session import AgentSession
from perdure.codec import register_type

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def _message_fields(message: Message) -> dict[str, Any]:
    found = {
        "role": message.role,
        "contents": message.contents,
        "author_name": message.author_name,
        "message_id": message.message_id,
        "additional_properties": message.additional_properties or None,
    }
    return {name: value for name, value in found.items() if value is not None}


def _message(found: Mapping[str, Any]) -> Message:
    return Message(**found)


def _response_fields(response: ChatResponse[Any] | AgentResponse[Any]) -> dict[str, Any]:
    wanted = stored_format(response.response_format)
    return response.stored() if wanted is None else {**response.stored(), "format": wanted}


def _stored(update: ChatResponseUpdate | AgentResponseUpdate) -> dict[str, Any]:
    return update.stored()


def _reading(cls: type[Any]) -> Callable[[Mapping[str, Any]], Any]:
    def response(found: Mapping[str, Any]) -> Any:
        read = cls.from_dict(found)
        read.response_format = found.get("format")
        return read

    return response


def _session_fields(session: AgentSession) -> dict[str, Any]:
    found = {"session_id": session.session_id, "service_session_id": session.service_session_id, "state": session.state}
    return {name: value for name, value in found.items() if value is not None}


def _session(found: Mapping[str, Any]) -> AgentSession:
    session = AgentSession(session_id=found["session_id"], service_session_id=found.get("service_session_id"))
    session.state.update(found["state"])
    return session


register_type(Content, name="perdure:Content", encode=Content.stored, decode=lambda found: Content(**found))
register_type(Message, name="perdure:Message", encode=_message_fields, decode=_message)
for _whole in (ChatResponse, AgentResponse):
    register_type(_whole, name=f"perdure:{_whole.__name__}", encode=_response_fields, decode=_reading(_whole))
for _piece in (ChatResponseUpdate, AgentResponseUpdate):
    register_type(_piece, name=f"perdure:{_piece.__name__}", encode=_stored, decode=_piece.from_dict)
register_type(AgentSession, name="perdure:AgentSession", encode=_session_fields, decode=_session)
