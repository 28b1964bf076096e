"""Responses of pydantic-ai, complete or streamed, converted to ours."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from pydantic_ai.messages import (
    CompactionPart,
    FilePart,
    NativeToolCallPart,
    NativeToolReturnPart,
    PartDeltaEvent,
    PartEndEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    ToolCallPart,
    ToolCallPartDelta,
)

from perdure.agents import ChatResponse, Content, Message, UsageDetails
from perdure.providers.models.request import OUTPUT_TOOL, extras_of_part, extras_of_response, store_part

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic_ai.messages import ModelResponse, ModelResponsePart, ModelResponseStreamEvent
    from pydantic_ai.usage import RequestUsage

    from perdure.agents import ResponseFormat

_Arguments: TypeAlias = "str | Mapping[str, Any] | None"
_NATIVE: Final = {
    "web_search": "search_tool",
    "x_search": "search_tool",
    "file_search": "search_tool",
    "code_execution": "code_interpreter_tool",
    "image_generation": "image_generation_tool",
}
_FINISHED: Final = {"tool_call": "tool_calls"}


def to_response(found: ModelResponse, response_format: ResponseFormat = None) -> ChatResponse[Any]:
    """Convert a response. Data that the provider expects back is kept with it."""
    contents = [content for part in found.parts if (content := to_content(part)) is not None]
    if response_format is not None:
        contents = [_without_fences(content) for content in contents]
    message = Message(
        "assistant",
        contents,
        message_id=found.provider_response_id,
        additional_properties=extras_of_response(found),
        raw_representation=found,
    )
    return ChatResponse(
        messages=[message],
        response_id=found.provider_response_id,
        model=found.model_name,
        created_at=found.timestamp.isoformat(),
        finish_reason=to_finish_reason(found.finish_reason),
        usage_details=to_usage(found.usage),
        response_format=response_format,
        raw_representation=found,
    )


def to_content(part: ModelResponsePart) -> Content | None:
    """Convert a part of a response; None if it is empty."""
    match part:
        case TextPart():
            extras = extras_of_part(part)
            return Content.from_text(part.content, additional_properties=extras) if part.content or extras else None
        case ThinkingPart():
            return Content.from_text_reasoning(
                text=part.content or None, protected_data=part.signature, additional_properties=extras_of_part(part)
            )
        case ToolCallPart(tool_name=name) if name == OUTPUT_TOOL:
            return Content.from_text(_to_text(part.args))
        case ToolCallPart():
            return Content.from_function_call(
                part.tool_call_id, part.tool_name, arguments=part.args, additional_properties=extras_of_part(part)
            )
        case FilePart():
            data = part.content
            return Content.from_data(data.data, data.media_type, additional_properties=extras_of_part(part))
        case NativeToolCallPart():
            return _native(part, "call", {"arguments": part.args})
        case NativeToolReturnPart():
            return _native(part, "result", {})
        case CompactionPart():
            return Content.from_text_reasoning(text=part.content, additional_properties=store_part(part))
        case _:
            return Content.from_text(getattr(part, "content", None) or "", additional_properties=store_part(part))


def _native(part: NativeToolCallPart | NativeToolReturnPart, what: str, more: dict[str, Any]) -> Content:
    """Convert a call that the provider has made, or its result."""
    kind = _NATIVE.get(part.tool_name, "mcp_server_tool")
    return Content(
        f"{kind}_{what}",  # pyright: ignore[reportArgumentType] - each of them is a type of content
        call_id=part.tool_call_id,
        tool_name=part.tool_name,
        server_name=part.provider_name,
        additional_properties=store_part(part),
        **more,
    )


def _to_text(arguments: _Arguments) -> str:
    if arguments is None:
        return ""
    return arguments if isinstance(arguments, str) else json.dumps(arguments)


def _without_fences(content: Content) -> Content:
    """Remove code fences around JSON, which models without a JSON mode add."""
    text = (content.text or "").strip()
    if content.type != "text" or not (text.startswith("```") and text.endswith("```")):
        return content
    inner = text.removeprefix("```").removesuffix("```").removeprefix("json")
    return Content.from_text(inner.strip(), additional_properties=content.additional_properties)


def to_finish_reason(reason: str | None) -> str | None:
    """Convert a finish reason."""
    return None if reason is None else _FINISHED.get(reason, reason)


def to_usage(usage: RequestUsage) -> UsageDetails | None:
    """Convert token counts; None if there are none."""
    if not usage.input_tokens and not usage.output_tokens:
        return None
    counted = UsageDetails(
        input_token_count=usage.input_tokens,
        output_token_count=usage.output_tokens,
        total_token_count=usage.input_tokens + usage.output_tokens,
    )
    if usage.cache_write_tokens:
        counted["cache_creation_input_token_count"] = usage.cache_write_tokens
    if usage.cache_read_tokens:
        counted["cache_read_input_token_count"] = usage.cache_read_tokens
    if usage.output_reasoning_tokens:
        counted["reasoning_output_token_count"] = usage.output_reasoning_tokens
    return counted


class StreamContents:
    """Convert the events of a stream to contents. Data to keep with a part comes at its end."""

    def __init__(self) -> None:
        self._calls: dict[int, ToolCallPart] = {}

    def convert(self, event: ModelResponseStreamEvent) -> list[Content]:
        """Convert an event; an empty list if it has no content."""
        match event:
            case PartStartEvent():
                return self._start(event.index, event.part)
            case PartDeltaEvent():
                return self._continue(event)
            case PartEndEvent():
                return _end(event.part)
            case _:
                return []

    def _start(self, index: int, part: ModelResponsePart) -> list[Content]:
        match part:
            case TextPart():
                return [Content.from_text(part.content)] if part.content else []
            case ThinkingPart():
                return [Content.from_text_reasoning(text=part.content)] if part.content else []
            case ToolCallPart():
                self._calls[index] = part
                return [self._arguments(part, part.args)]
            case NativeToolCallPart():
                return []
            case _:
                content = to_content(part)
                return [] if content is None else [content]

    def _continue(self, event: PartDeltaEvent) -> list[Content]:
        match event.delta:
            case TextPartDelta(content_delta=text):
                return [Content.from_text(text)] if text else []
            case ThinkingPartDelta(content_delta=text):
                return [Content.from_text_reasoning(text=text)] if text else []
            case ToolCallPartDelta(args_delta=arguments) if event.index in self._calls:
                return [self._arguments(self._calls[event.index], arguments)] if arguments else []
            case _:
                return []

    @staticmethod
    def _arguments(part: ToolCallPart, arguments: _Arguments) -> Content:
        if part.tool_name == OUTPUT_TOOL:
            return Content.from_text(_to_text(arguments))
        return Content.from_function_call(part.tool_call_id, part.tool_name, arguments=arguments)


def _end(part: ModelResponsePart) -> list[Content]:
    extras = extras_of_part(part)
    match part:
        case TextPart() if extras:
            return [Content.from_text("", additional_properties=extras)]
        case ThinkingPart() if extras or part.signature:
            return [Content.from_text_reasoning(protected_data=part.signature, additional_properties=extras)]
        case ToolCallPart() if extras and part.tool_name != OUTPUT_TOOL:
            return [Content.from_function_call(part.tool_call_id, part.tool_name, additional_properties=extras)]
        case NativeToolCallPart():
            content = to_content(part)
            return [] if content is None else [content]
        case _:
            return []
