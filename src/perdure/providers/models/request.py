"""A conversation in pydantic-ai's terms: what a model is sent."""

from __future__ import annotations

import mimetypes
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, cast

from pydantic import TypeAdapter, ValidationError
from pydantic_ai.messages import (
    AudioUrl,
    BinaryContent,
    DocumentUrl,
    FilePart,
    ImageUrl,
    ModelMessagesTypeAdapter,
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
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.native_tools import NATIVE_TOOL_TYPES, AbstractNativeTool
from pydantic_ai.output import OutputObjectDefinition
from pydantic_ai.settings import ModelSettings, ToolOrOutput
from pydantic_ai.tools import ToolDefinition
from pydantic_core import to_jsonable_python

from perdure.errors import ChatClientInvalidRequestException

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic_ai.messages import ModelMessage, ModelRequestPart, ModelResponsePart, UserContent

    from perdure.agents import Content, Message, ResponseFormat

OUTPUT_TOOL: Final = "final_result"
"""The tool that a model is made to call with its answer, where it can't be made to answer in JSON."""

_NAMES: Final = {"stop": "stop_sequences", "allow_multiple_tool_calls": "parallel_tool_calls"}
_NO_SETTINGS: Final = frozenset(
    {
        "model",
        "model_id",
        "tools",
        "tool_choice",
        "response_format",
        "instructions",
        "conversation_id",
        "store",
        "metadata",
        "user",
    }
)


def settings_of(options: Mapping[str, Any], own: Mapping[str, Any]) -> ModelSettings:
    """Options as settings: those of a client, and over them those of a call. A name that we don't know is passed on."""
    found: dict[str, Any] = dict(own)
    for name, value in options.items():
        if value is not None and name not in _NO_SETTINGS:
            found[_NAMES.get(name, name)] = value
    if isinstance(found.get("stop_sequences"), str):
        found["stop_sequences"] = [found["stop_sequences"]]
    if not options.get("tools"):
        found.pop("parallel_tool_calls", None)
    elif (choice := _choice(options.get("tool_choice"))) is not None:
        found["tool_choice"] = choice
    return cast("ModelSettings", found)


def _choice(choice: Any) -> Any:
    """Whether the model may, has to or must not call tools, and which."""
    if not isinstance(choice, Mapping):
        return choice
    told = cast("Mapping[str, Any]", choice)
    if name := told.get("required_function_name"):
        return [name]
    allowed = told.get("allowed_tools")
    if not allowed:
        return told.get("mode")
    return list(allowed) if told.get("mode") == "required" else ToolOrOutput(function_tools=list(allowed))


def parameters_of(options: Mapping[str, Any]) -> ModelRequestParameters:
    """Tools, and what the answer is to look like. Whether by JSON or by a tool is left to what the model can do.

    Raises ChatClientInvalidRequestException.
    """
    tools = options.get("tools")
    each = cast("Sequence[Any]", tools) if isinstance(tools, Sequence) else [] if tools is None else [tools]
    functions = [definition for tool in each if (definition := _definition(tool)) is not None]
    native = [_native(tool) for tool in each if _definition(tool) is None]
    shape = _shape(options.get("response_format"))
    if shape is None:
        return ModelRequestParameters(function_tools=functions, native_tools=native)
    output = replace(
        _described(OUTPUT_TOOL, shape.json_schema, shape.description or "Give the answer with this."), kind="output"
    )
    return ModelRequestParameters(
        function_tools=functions,
        native_tools=native,
        output_mode="auto",
        output_object=shape,
        output_tools=[output],
    )


def _definition(tool: Any) -> ToolDefinition | None:
    """A tool that the model can have called; None of one that its provider runs."""
    if isinstance(tool, Mapping):
        described = cast("Mapping[str, Any]", tool)
        if described.get("type", "function") != "function":
            return None
        function = cast("Mapping[str, Any]", described.get("function") or described)
        schema: Mapping[str, Any] = function.get("parameters") or {"type": "object", "properties": {}}
        return _described(str(function.get("name")), schema, function.get("description"))
    if isinstance(tool, AbstractNativeTool):
        return None
    return _described(tool.name, tool.parameters(), tool.description)


def _described(name: str, schema: Mapping[str, Any], description: str | None) -> ToolDefinition:
    return ToolDefinition(name=name, parameters_json_schema=dict(schema), description=description or None)


def _native(tool: Any) -> AbstractNativeTool:
    if isinstance(tool, AbstractNativeTool):
        return tool
    told = dict(cast("Mapping[str, Any]", tool))
    kind = str(told.pop("type"))
    if kind not in NATIVE_TOOL_TYPES:
        raise ChatClientInvalidRequestException(
            f"there is no tool of type {kind!r} that a provider runs; there are: {', '.join(sorted(NATIVE_TOOL_TYPES))}"
        )
    try:
        return TypeAdapter(NATIVE_TOOL_TYPES[kind]).validate_python({"kind": kind, **told})
    except ValidationError as error:
        raise ChatClientInvalidRequestException(f"the tool {kind!r} can't be made of {told!r}: {error}") from error


def _shape(response_format: ResponseFormat) -> OutputObjectDefinition | None:
    if response_format is None:
        return None
    if isinstance(response_format, Mapping):
        return _shape_of_schema(response_format)
    model = cast("type[BaseModel]", response_format)
    schema = model.model_json_schema()
    return _object(schema, name=model.__name__, description=schema.get("description"))


def _shape_of_schema(told: Mapping[str, Any]) -> OutputObjectDefinition | None:
    """A JSON schema: by itself, or with the wrapping that OpenAI's wire format has."""
    if told.get("type") in {"text", "json_object"}:
        return None
    inner = cast("Mapping[str, Any]", told.get("json_schema") or told)
    schema = dict(cast("Mapping[str, Any]", inner.get("schema") or inner))
    name = inner.get("name") or schema.get("title")
    return _object(schema, name=name, description=inner.get("description") or schema.get("description"))


def _object(schema: dict[str, Any], *, name: str | None, description: str | None) -> OutputObjectDefinition:
    if schema.get("type") != "object":
        raise ChatClientInvalidRequestException(
            f"response_format {name!r} is a JSON schema of type {schema.get('type')!r}; models answer in objects: "
            "put it in a field of one"
        )
    return OutputObjectDefinition(json_schema=schema, name=name, description=description)


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


def kept_of_part(part: ModelResponsePart) -> dict[str, Any]:
    """What is kept of a part beside its text, its name or its arguments."""
    return _kept(part, _OF_PARTS)


def kept_of_response(response: ModelResponse) -> dict[str, Any]:
    """What is kept of a whole answer: who gave it, so that signatures are only sent back to them."""
    return _kept(response, _OF_RESPONSES)


def whole_part(part: ModelResponsePart) -> dict[str, Any]:
    """A part that a content can't say, all of it."""
    dumped = ModelMessagesTypeAdapter.dump_python([ModelResponse(parts=[part])], mode="json")
    return {_KEY: {"part": dumped[0]["parts"][0]}}


def part_of(kept: Mapping[str, Any]) -> ModelResponsePart | None:
    """The part that was kept as a whole; None if none was."""
    if "part" not in kept:
        return None
    read = ModelMessagesTypeAdapter.validate_python([{"kind": "response", "parts": [kept["part"]]}])
    return cast("ModelResponse", read[0]).parts[0]


def kept_in(properties: Mapping[str, Any]) -> dict[str, Any]:
    """What was kept of the thing that has these `additional_properties`."""
    found: Any = properties.get(_KEY)
    return dict(cast("dict[str, Any]", found)) if isinstance(found, dict) else {}


def _kept(found: object, names: tuple[str, ...]) -> dict[str, Any]:
    values = {name: getattr(found, name, None) for name in names}
    kept = {name: to_jsonable_python(value) for name, value in values.items() if value is not None}
    return {_KEY: kept} if kept else {}


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
