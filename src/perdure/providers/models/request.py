"""Requests in pydantic-ai's terms: messages, settings and tools."""

from __future__ import annotations

import mimetypes
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, cast

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_ai import messages as ai
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.native_tools import NATIVE_TOOL_TYPES, AbstractNativeTool
from pydantic_ai.output import OutputObjectDefinition
from pydantic_ai.settings import ModelSettings, ToolOrOutput
from pydantic_ai.tools import ToolDefinition
from pydantic_core import to_jsonable_python

from perdure.agents import UNKNOWN_MEDIA_TYPE, Content, Message, ResponseFormat, sendable_messages, sendable_name
from perdure.errors import ChatClientInvalidRequestException

# The tool by which a model answers if it has no JSON mode.
OUTPUT_TOOL: Final = "final_result"

_NAMES: Final = {"stop": "stop_sequences", "allow_multiple_tool_calls": "parallel_tool_calls"}
_NOT_SETTINGS: Final = frozenset(
    {
        *("model", "model_id", "tools", "tool_choice", "response_format", "instructions"),
        *("conversation_id", "store", "metadata", "user"),
    }
)


def to_settings(options: Mapping[str, Any], own: Mapping[str, Any]) -> ModelSettings:
    """Return the settings of a call: its options over the client's own. Unknown names are passed on."""
    found: dict[str, Any] = dict(own)
    for name, value in options.items():
        if value is not None and name not in _NOT_SETTINGS:
            found[_NAMES.get(name, name)] = value
    if isinstance(found.get("stop_sequences"), str):
        found["stop_sequences"] = [found["stop_sequences"]]
    if not options.get("tools"):
        found.pop("parallel_tool_calls", None)
    elif (choice := _choice(options.get("tool_choice"))) is not None:
        found["tool_choice"] = choice
    return cast("ModelSettings", found)


def _choice(choice: Any) -> Any:
    """Convert a tool choice."""
    if not isinstance(choice, Mapping):
        return choice
    given = cast("Mapping[str, Any]", choice)
    if name := given.get("required_function_name"):
        return [sendable_name(name)]
    allowed = [sendable_name(name) for name in given.get("allowed_tools") or ()]
    if not allowed:
        return given.get("mode")
    return allowed if given.get("mode") == "required" else ToolOrOutput(function_tools=allowed)


def to_parameters(options: Mapping[str, Any]) -> ModelRequestParameters:
    """Return tools and output format. The model's abilities decide between JSON and an output tool.

    Raises ChatClientInvalidRequestException.
    """
    tools = tools_in(options)
    functions = [definition for tool in tools if (definition := _definition(tool)) is not None]
    native = [_native(tool) for tool in tools if _definition(tool) is None]
    parameters = ModelRequestParameters(function_tools=functions, native_tools=native)
    output_format = _output_format(options.get("response_format"))
    if output_format is None:
        return parameters
    description = output_format.description or "Give the answer with this."
    output = replace(_tool_definition(OUTPUT_TOOL, output_format.json_schema, description), kind="output")
    return replace(parameters, output_mode="auto", output_object=output_format, output_tools=[output])


def tools_in(options: Mapping[str, Any]) -> Sequence[Any]:
    """Return the tools of a call."""
    tools = options.get("tools")
    return cast("Sequence[Any]", tools) if isinstance(tools, Sequence) else [] if tools is None else [tools]


def _definition(tool: Any) -> ToolDefinition | None:
    """Return the definition of a function tool; None for a tool that the provider runs."""
    if isinstance(tool, Mapping):
        described = cast("Mapping[str, Any]", tool)
        if described.get("type", "function") != "function":
            return None
        function = cast("Mapping[str, Any]", described.get("function") or described)
        schema: Mapping[str, Any] = function.get("parameters") or {"type": "object", "properties": {}}
        return _tool_definition(str(function.get("name")), schema, function.get("description"))
    if isinstance(tool, AbstractNativeTool):
        return None
    return _tool_definition(sendable_name(tool.name), tool.parameters(), tool.description)


def _tool_definition(name: str, schema: Mapping[str, Any], description: str | None) -> ToolDefinition:
    return ToolDefinition(name=name, parameters_json_schema=dict(schema), description=description or None)


def _native(tool: Any) -> AbstractNativeTool:
    if isinstance(tool, AbstractNativeTool):
        return tool
    given = dict(cast("Mapping[str, Any]", tool))
    kind = str(given.pop("type"))
    if kind not in NATIVE_TOOL_TYPES:
        raise ChatClientInvalidRequestException(
            f"there is no hosted tool of type {kind!r}; the types are {', '.join(sorted(NATIVE_TOOL_TYPES))}"
        )
    try:
        return TypeAdapter(NATIVE_TOOL_TYPES[kind]).validate_python({"kind": kind, **given})
    except ValidationError as error:
        raise ChatClientInvalidRequestException(f"the tool {kind!r} can't be made from {given!r}: {error}") from error


def _output_format(response_format: ResponseFormat) -> OutputObjectDefinition | None:
    """Read a pydantic model or a JSON schema, plain or wrapped as in OpenAI's API."""
    if isinstance(response_format, Mapping):
        if response_format.get("type") in {"text", "json_object"}:
            return None
        inner = cast("Mapping[str, Any]", response_format.get("json_schema") or response_format)
        schema = dict(cast("Mapping[str, Any]", inner.get("schema") or inner))
        name, description = inner.get("name") or schema.get("title"), inner.get("description")
    elif response_format is None:
        return None
    else:
        model = cast("type[BaseModel]", response_format)
        schema, name, description = model.model_json_schema(), model.__name__, None
    if schema.get("type") != "object":
        raise ChatClientInvalidRequestException(
            f"response_format {name!r} is a JSON schema of type {schema.get('type')!r}; models answer in objects; "
            "make it a field of one"
        )
    return OutputObjectDefinition(json_schema=schema, name=name, description=description or schema.get("description"))


_KEY: Final = "pydantic_ai"
_OF_PARTS: Final = ("id", "provider_name", "provider_details")
_OF_RESPONSES: Final = (
    "model_name",
    "provider_name",
    "provider_url",
    "canonical_system",
    "provider_response_id",
    "provider_details",
    "metadata",
)


def extras_of(found: ai.ModelResponsePart | ai.ModelResponse) -> dict[str, Any]:
    """Return data beyond the contents. Providers want it back: signatures are sent only to the one who made them."""
    names = _OF_RESPONSES if isinstance(found, ai.ModelResponse) else _OF_PARTS
    values = {name: getattr(found, name, None) for name in names}
    extras = {name: to_jsonable_python(value) for name, value in values.items() if value is not None}
    return {_KEY: extras} if extras else {}


def store_part(part: ai.ModelResponsePart) -> dict[str, Any]:
    """Store a part as a whole."""
    dumped = ai.ModelMessagesTypeAdapter.dump_python([ai.ModelResponse(parts=[part])], mode="json")
    return {_KEY: {"part": dumped[0]["parts"][0]}}


def _extras_in(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return the stored data in `additional_properties`."""
    found: Any = properties.get(_KEY)
    return dict(cast("dict[str, Any]", found)) if isinstance(found, dict) else {}


_SYSTEM: Final = frozenset({"system", "developer"})
# Contents that are not sent to a model.
_NOT_SENT: Final = frozenset(
    {"usage", "error", "function_approval_request", "function_approval_response", "oauth_consent_request"}
)

_URL_TYPES: Final = {"image": ai.ImageUrl, "audio": ai.AudioUrl, "video": ai.VideoUrl}


def to_model_messages(messages: Sequence[Message], *, provider: str) -> list[ai.ModelMessage]:
    """Convert messages. Consecutive messages to the model become one request.

    Raises ChatClientInvalidRequestException for a content that can't be sent.
    """
    messages = sendable_messages(messages)
    every = [content for message in messages for content in message.contents]
    # A result has only the id of its call, not the name.
    names = {each.call_id: each.name for each in every if each.type == "function_call" and each.call_id and each.name}
    found: list[ai.ModelMessage] = []
    pending: list[ai.ModelRequestPart] = []
    for message in messages:
        if message.role != "assistant":
            pending.extend(_request_parts(message, names, provider))
            continue
        parts = [part for content in message.contents if (part := _to_response_part(content)) is not None]
        if parts:
            if pending:
                found.append(ai.ModelRequest(parts=pending))
                pending = []
            found.append(ai.ModelResponse(parts=parts, **_extras_in(message.additional_properties)))
    return [*found, ai.ModelRequest(parts=pending)] if pending else found


def _request_parts(message: Message, names: Mapping[str, str], provider: str) -> list[ai.ModelRequestPart]:
    """Convert a message to the model. Results go first: providers expect them right after their calls."""
    results = [content for content in message.contents if content.type == "function_result"]
    others = [content for content in message.contents if content.type not in {*_NOT_SENT, "function_result"}]
    parts: list[ai.ModelRequestPart] = [_to_tool_return(content, names, provider) for content in results]
    if message.role in _SYSTEM:
        return [*parts, *[ai.SystemPromptPart(content.text) for content in others if content.text]]
    sent = [_to_user_content(content, provider) for content in others]
    if sent:
        parts.append(ai.UserPromptPart(sent[0] if len(sent) == 1 and isinstance(sent[0], str) else sent))
    return parts


def _to_tool_return(content: Content, names: Mapping[str, str], provider: str) -> ai.ToolReturnPart:
    call_id = content.call_id or ""
    name = names.get(call_id) or content.name or "unknown"
    if content.exception is not None:
        given = content.result if content.result is not None else f"Error: {content.exception}"
        return ai.ToolReturnPart(name, given, call_id, outcome="failed")
    if content.items:
        sent = [item for item in content.items if item.media_type != UNKNOWN_MEDIA_TYPE]
        return ai.ToolReturnPart(name, [_to_user_content(item, provider) for item in sent], call_id)
    return ai.ToolReturnPart(name, "" if content.result is None else content.result, call_id)


def _to_user_content(content: Content, provider: str) -> ai.UserContent:
    match content.type:
        case "text" | "text_reasoning":
            return content.text or ""
        case "data":
            return _to_binary(content)
        case "uri":
            return _to_url(content)
        case "hosted_file":
            return ai.UploadedFile(
                content.file_id or "", cast("Any", provider), media_type=content.media_type or "application/pdf"
            )
        case _:
            raise ChatClientInvalidRequestException(
                f"a {content.type!r} content can't be sent to a model of {provider!r}; "
                "use texts, data, URIs and hosted files"
            )


def _to_url(content: Content) -> ai.ImageUrl | ai.AudioUrl | ai.VideoUrl | ai.DocumentUrl:
    media_type = content.media_type or mimetypes.guess_type(content.uri or "")[0]
    if media_type is None:
        raise ChatClientInvalidRequestException(
            f"{content.uri!r} can't be sent, because its media type is unknown; "
            "set it: Content.from_uri(uri, media_type=...)"
        )
    url = _URL_TYPES.get(media_type.partition("/")[0], ai.DocumentUrl)
    return url(content.uri or "", media_type=media_type)


def _to_response_part(content: Content) -> ai.ModelResponsePart | None:
    extras = _extras_in(content.additional_properties)
    if "part" in extras:
        read = ai.ModelMessagesTypeAdapter.validate_python([{"kind": "response", "parts": [extras["part"]]}])
        return cast("ai.ModelResponse", read[0]).parts[0]
    match content.type:
        case "text":
            return ai.TextPart(content.text, **extras) if content.text else None
        case "text_reasoning":
            return ai.ThinkingPart(content.text or "", signature=content.protected_data, **extras)
        case "function_call" if not content.informational_only:
            arguments = dict(content.arguments) if isinstance(content.arguments, Mapping) else content.arguments
            return ai.ToolCallPart(content.name or "", arguments, content.call_id or "", **extras)
        case "data":
            return ai.FilePart(_to_binary(content), **extras)
        case _:
            return None


def _to_binary(content: Content) -> ai.BinaryContent:
    return ai.BinaryContent(content.data_bytes(), media_type=content.media_type or "application/octet-stream")
