"""A conversation in pydantic-ai's terms: what a model is sent."""

from __future__ import annotations

import mimetypes
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, cast

from pydantic_ai.messages import (
    AudioUrl,
    BinaryContent,
    DocumentUrl,
    FilePart,
    ImageUrl,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UploadedFile,
    UserPromptPart,
    VideoUrl,
)

from perdure.agent_errors import ChatClientInvalidRequestException
from perdure.providers.models.keeping import kept_in, part_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydantic_ai.messages import ModelMessage, ModelRequestPart, ModelResponsePart, UserContent

    from perdure.agents import Content, Message

_SYSTEM: Final = frozenset({"system", "developer"})
_UNSAID: Final = frozenset(
    {
        "usage",
        "error",
        "function_approval_request",
        "function_approval_response",
        "oauth_consent_request",
    }
)
"""Contents that are about a conversation, and are not sent with it."""

_LINKS: Final = {"image": ImageUrl, "audio": AudioUrl, "video": VideoUrl}


def conversation(messages: Sequence[Message], *, provider: str) -> list[ModelMessage]:
    """Messages as a model is sent them. What is said to it in a row is one request.

    Raises ChatClientInvalidRequestException if one can't be sent.
    """
    names = _tool_names(messages)
    found: list[ModelMessage] = []
    said: list[ModelRequestPart] = []
    for message in messages:
        if message.role != "assistant":
            said.extend(_said(message, names, provider))
            continue
        answer = _answer(message)
        if answer.parts:
            if said:
                found.append(ModelRequest(parts=said))
                said = []
            found.append(answer)
    return [*found, ModelRequest(parts=said)] if said else found


def _tool_names(messages: Sequence[Message]) -> dict[str, str]:
    """Which tool each call was of: a result only has the id of its call."""
    contents = [content for message in messages for content in message.contents]
    return {each.call_id: each.name for each in contents if each.type == "function_call" and each.call_id and each.name}


def _said(message: Message, names: Mapping[str, str], provider: str) -> list[ModelRequestPart]:
    """What was said to the model. Results go first: providers want them right behind their calls."""
    results = [content for content in message.contents if content.type == "function_result"]
    others = [content for content in message.contents if content.type not in {*_UNSAID, "function_result"}]
    parts: list[ModelRequestPart] = [_returned(content, names, provider) for content in results]
    if message.role in _SYSTEM:
        return [*parts, *[SystemPromptPart(content.text) for content in others if content.text]]
    sent = [_sent(content, provider) for content in others]
    if sent:
        parts.append(UserPromptPart(sent[0] if len(sent) == 1 and isinstance(sent[0], str) else sent))
    return parts


def _returned(content: Content, names: Mapping[str, str], provider: str) -> ToolReturnPart:
    call_id = content.call_id or ""
    name = names.get(call_id) or content.name or "unknown"
    if content.exception is not None:
        told = content.result if content.result is not None else f"Error: {content.exception}"
        return ToolReturnPart(name, told, call_id, outcome="failed")
    if content.items:
        return ToolReturnPart(name, [_sent(item, provider) for item in content.items], call_id)
    return ToolReturnPart(name, "" if content.result is None else content.result, call_id)


def _sent(content: Content, provider: str) -> UserContent:
    match content.type:
        case "text" | "text_reasoning":
            return content.text or ""
        case "data":
            return BinaryContent(content.data_bytes(), media_type=content.media_type or "application/octet-stream")
        case "uri":
            return _link(content)
        case "hosted_file":
            return UploadedFile(
                content.file_id or "", cast("Any", provider), media_type=content.media_type or "application/pdf"
            )
        case _:
            raise ChatClientInvalidRequestException(
                f"a content of type {content.type!r} can't be sent to a model of {provider!r}; "
                "texts, data, URIs and hosted files can"
            )


def _link(content: Content) -> ImageUrl | AudioUrl | VideoUrl | DocumentUrl:
    media_type = content.media_type or mimetypes.guess_type(content.uri or "")[0]
    if media_type is None:
        raise ChatClientInvalidRequestException(
            f"what stands at {content.uri!r} can't be sent, since its name does not say what it is; "
            "give its media_type: Content.from_uri(uri, media_type=...)"
        )
    url = _LINKS.get(media_type.partition("/")[0], DocumentUrl)
    return url(content.uri or "", media_type=media_type)


def _answer(message: Message) -> ModelResponse:
    """What the model has answered earlier, with who it was."""
    parts = [part for content in message.contents if (part := _part(content)) is not None]
    return ModelResponse(parts=parts, **kept_in(message.additional_properties))


def _part(content: Content) -> ModelResponsePart | None:
    kept = kept_in(content.additional_properties)
    if (whole := part_of(kept)) is not None:
        return whole
    match content.type:
        case "text":
            return TextPart(content.text, **kept) if content.text else None
        case "text_reasoning":
            return ThinkingPart(content.text or "", signature=content.protected_data, **kept)
        case "function_call":
            return _call(content, kept)
        case "data":
            data = BinaryContent(content.data_bytes(), media_type=content.media_type or "application/octet-stream")
            return FilePart(data, **kept)
        case _:
            return None


def _call(content: Content, kept: dict[str, Any]) -> ToolCallPart | None:
    if content.informational_only:
        return None
    given = content.arguments
    arguments = dict(given) if isinstance(given, Mapping) else given
    return ToolCallPart(content.name or "", arguments, content.call_id or "", **kept)
