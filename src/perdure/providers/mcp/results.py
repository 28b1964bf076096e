"""What a server gives, as contents."""

from __future__ import annotations

import json
from typing import Any, TypeAlias

from mcp_types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    EmbeddedResource,
    GetPromptResult,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)

from perdure.agents import Content

_Block: TypeAlias = "TextContent | ImageContent | AudioContent | ResourceLink | EmbeddedResource"


def contents_of(result: CallToolResult) -> list[Content]:
    """What a tool gave. Structured content is told as JSON if there is nothing else."""
    contents = [_content_of(block) for block in result.content]
    if not contents and result.structured_content is not None:
        return [Content.from_text(json.dumps(result.structured_content, ensure_ascii=False))]
    return contents


def text_of(contents: list[Content]) -> str:
    """What contents say in words."""
    return "\n".join([content.text for content in contents if content.text])


def prompt_of(result: GetPromptResult) -> str:
    """What a prompt says, message by message."""
    return "\n".join([text_of([_content_of(message.content)]) for message in result.messages])


def _content_of(block: _Block) -> Content:
    match block:
        case TextContent():
            return Content.from_text(block.text)
        case ImageContent() | AudioContent():
            return _data(block.data, block.mime_type)
        case ResourceLink():
            named = {"name": block.name} if block.name else {}
            return Content.from_uri(str(block.uri), media_type=block.mime_type, additional_properties=named)
        case EmbeddedResource(resource=TextResourceContents() as found):
            return Content.from_text(found.text, additional_properties=_origin(found))
        case EmbeddedResource(resource=BlobResourceContents() as found):
            data = _data(found.blob, found.mime_type or "application/octet-stream")
            data.additional_properties.update(_origin(found))
            return data
        case _:
            return Content.from_text(json.dumps(block.model_dump(mode="json", by_alias=True, exclude_none=True)))


def _data(base64: str, media_type: str) -> Content:
    """Data as a server sends it: it is base64 there and here."""
    return Content.from_uri(f"data:{media_type};base64,{base64}", media_type=media_type)


def _origin(resource: TextResourceContents | BlobResourceContents) -> dict[str, Any]:
    return {"uri": str(resource.uri)}
