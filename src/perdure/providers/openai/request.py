"""Chat completion requests: their options, and messages, tools and options in the wire format."""

from __future__ import annotations

import base64
import inspect
import json
import mimetypes
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Generic, Literal, TypeAlias, cast
from urllib.parse import urlsplit

from perdure import agents
from perdure.errors import ChatClientContentFilterException, ChatClientInvalidRequestException


class OpenAIChatOptions(agents.ChatOptions[agents.ResponseModelT], Generic[agents.ResponseModelT], total=False):
    """Options of a chat completion: `OpenAIChatOptions[Model](response_format=Model)`.

    OpenAI and Azure get `max_tokens` as `max_completion_tokens`, other servers under its own name. An option that is
    not listed here is sent unchanged (in `extra_body`), for servers that know more.

    Attributes:
        stream_options: Options of a stream. By default token counts are included; None is for servers without this
            option.
        timeout: The timeout of this call in seconds, instead of the client's `timeout`.
    """

    max_completion_tokens: int
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"]
    verbosity: Literal["low", "medium", "high"]
    logprobs: bool
    top_logprobs: int
    prediction: dict[str, Any]
    modalities: list[Literal["text", "audio"]]
    audio: dict[str, Any]
    n: int
    service_tier: Literal["auto", "default", "flex", "scale", "priority"]
    prompt_cache_key: str
    safety_identifier: str
    web_search_options: dict[str, Any]
    stream_options: dict[str, Any] | None
    timeout: float
    extra_headers: dict[str, str]
    extra_query: dict[str, Any]
    extra_body: dict[str, Any]


class OpenAIContentFilterException(ChatClientContentFilterException, ChatClientInvalidRequestException):
    """The provider's content filter rejected the conversation. Sending it again fails again."""


# A part of a request, as JSON.
Wire: TypeAlias = "dict[str, Any]"

# Key in `additional_properties` of the field in which a server sent reasoning. It goes back in the same field.
REASONING_FIELD = "openai_reasoning_field"

# Key in `additional_properties` that marks a refusal.
REFUSAL = "refusal"

_AUDIO_FORMATS = {
    "audio/wav": "wav",
    "audio/x-wav": "wav",
    "audio/wave": "wav",
    "audio/mpeg": "mp3",
    "audio/mp3": "mp3",
}
_NOT_IN_A_NAME = re.compile(r"[^a-zA-Z0-9_-]+")
_NAME_CHARACTERS_MAX = 64


def to_wire_messages(messages: Iterable[agents.Message], *, instruction_role: str = "system") -> list[Wire]:
    """Convert a conversation. Raises ChatClientInvalidRequestException for a content that can't be sent."""
    sent: list[Wire] = []
    attached: list[Wire] = []
    for message in messages:
        results = [content for content in message.contents if content.type == "function_result"]
        if attached and not results:
            sent.append({"role": "user", "content": attached})
            attached = []
        sent += _convert_message(message, instruction_role)
        for result in results:
            sent.append({"role": "tool", "tool_call_id": result.call_id or "", "content": result_text(result)})
            # A tool message takes only text, and nothing may come between the results of one response.
            attached += _attachments(result)
    return [*sent, {"role": "user", "content": attached}] if attached else sent


def wire_name(name: str) -> str:
    """Return a name that the API accepts; empty if no character is allowed."""
    return _NOT_IN_A_NAME.sub("_", name).strip("_")[:_NAME_CHARACTERS_MAX]


def _convert_message(message: agents.Message, instruction_role: str) -> list[Wire]:
    match message.role:
        case "system" | "developer":
            role = instruction_role if message.role == "system" else message.role
            text = _text_of(message.contents)
            converted: Wire = {"role": role, "content": text} if text else {}
        case "assistant":
            converted = _convert_response(message)
        case "tool" if any(content.type == "function_result" for content in message.contents):
            converted = {}
        case _:
            parts = [part for content in message.contents if (part := _convert_content(content)) is not None]
            # Some servers take no list, so texts alone are joined.
            is_text = all(part["type"] == "text" for part in parts)
            content = "\n".join([part["text"] for part in parts]) if is_text else parts
            converted = {"role": "user", "content": content} if parts else {}
    if converted and (name := wire_name(message.author_name or "")):
        converted["name"] = name
    return [converted] if converted else []


def _convert_response(message: agents.Message) -> Wire:
    texts = [content for content in message.contents if content.type == "text"]
    said = _text_of([content for content in texts if not content.additional_properties.get(REFUSAL)])
    refused = _text_of([content for content in texts if content.additional_properties.get(REFUSAL)])
    calls = [_convert_call(content) for content in message.contents if agents.is_local_call(content)]
    if not (said or refused or calls):
        return {}
    answer: Wire = {"role": "assistant", "content": said or None}
    if refused:
        answer["refusal"] = refused
    if calls:
        answer["tool_calls"] = calls
        # Servers that send reasoning expect it back with the calls it led to, and only there.
        answer |= _reasoning(message.contents)
    return answer


def _convert_call(content: agents.Content) -> Wire:
    function = {"name": content.name or "", "arguments": _arguments(content)}
    return {"id": content.call_id or "", "type": "function", "function": function}


def _arguments(content: agents.Content) -> str:
    """Return the arguments as a JSON object. Some servers parse the calls of a conversation again and reject others."""
    if isinstance(content.arguments, str):
        try:
            if isinstance(json.loads(content.arguments), dict):
                return content.arguments
        except ValueError:
            pass
    return json.dumps(content.parse_arguments() or {}, default=str)


def _reasoning(contents: Sequence[agents.Content]) -> Wire:
    found: Wire = {}
    for content in contents:
        field = content.additional_properties.get(REASONING_FIELD)
        if content.type != "text_reasoning" or not field:
            continue
        if content.protected_data is not None:
            found[field] = [*found.get(field, ()), *json.loads(content.protected_data)]
        elif content.text:
            found[field] = found.get(field, "") + content.text
    return found


def result_text(content: agents.Content) -> str:
    """Return a tool's result as text."""
    if content.items:
        text = _text_of(content.items)
    elif content.result is None or isinstance(content.result, str):
        text = content.result or ""
    else:
        text = json.dumps(content.result, default=_to_plain, ensure_ascii=False)
    return text or (f"Error: {content.exception}" if content.exception else "")


def _attachments(result: agents.Content) -> list[Wire]:
    sent = (each for each in result.items or () if each.media_type != agents.UNKNOWN_MEDIA_TYPE)
    given = [each for each in sent if each.type in {"data", "uri", "hosted_file"}]
    parts = [part for content in given if (part := _convert_content(content)) is not None]
    return [{"type": "text", "text": f"This came with the result of {result.call_id}:"}, *parts] if parts else []


def _convert_content(content: agents.Content) -> Wire | None:
    """Convert a content of a user's message; None if it can't be sent."""
    match content.type:
        case "text":
            return {"type": "text", "text": content.text} if content.text else None
        case "data" | "uri":
            return _convert_media(content)
        case "hosted_file":
            return {"type": "file", "file": {"file_id": content.file_id}}
        case _:
            return None


def _convert_media(content: agents.Content) -> Wire:
    uri = content.uri or ""
    kind = content.media_type or mimetypes.guess_type(urlsplit(uri).path)[0] or ""
    if kind.startswith("image/"):
        detail = content.additional_properties.get("detail")
        return {"type": "image_url", "image_url": {"url": uri, **({"detail": detail} if detail else {})}}
    if content.type != "data":
        raise ChatClientInvalidRequestException(
            f"a chat completion takes only images by URL; {uri[:80]!r} has the type {kind!r}; "
            "load it and use Content.from_data, or set its media_type if it is an image"
        )
    if kind in _AUDIO_FORMATS:
        sound = {"data": uri.partition(";base64,")[2], "format": _AUDIO_FORMATS[kind]}
        return {"type": "input_audio", "input_audio": sound}
    name = content.additional_properties.get("filename") or content.name
    name = name or f"file{mimetypes.guess_extension(kind) or ''}"
    return {"type": "file", "file": {"filename": name, "file_data": uri}}


def _text_of(contents: Iterable[agents.Content]) -> str:
    return "\n".join([content.text for content in contents if content.type == "text" and content.text])


def _to_plain(value: Any) -> Any:
    if isinstance(value, agents.Content):
        return value.to_dict()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    dump = getattr(value, "model_dump", None)
    return cast("Any", dump)(mode="json") if callable(dump) else str(value)


_RENAMED = {"allow_multiple_tool_calls": "parallel_tool_calls", "model_id": "model"}
# Options that only an agent uses, and those that are converted separately.
_NEVER_SENT = frozenset(
    {"conversation_id", "instructions", "messages", "response_format", "stream", "tool_choice", "tools"}
)

_UNSUPPORTED_TOOLS = frozenset({"code_interpreter", "file_search", "image_generation", "mcp", "shell", "computer_use"})


def to_parameters(options: Mapping[str, Any], known: frozenset[str], *, is_openai: bool) -> Wire:
    """Return the parameters beside the messages. `known` are those of the SDK; all others go into the body.

    Raises ChatClientInvalidRequestException.
    """
    renamed = _RENAMED | ({"max_tokens": "max_completion_tokens"} if is_openai else {})
    asked: Wire = {}
    unknown: Wire = {}
    for name, value in options.items():
        if value is not None and name not in _NEVER_SENT:
            wire = renamed.get(name, name)
            (asked if wire in known else unknown)[wire] = value
    asked |= _tools(options, asked)
    if options.get("response_format") is not None:
        asked["response_format"] = to_wire_format(options["response_format"])
    if unknown:
        asked["extra_body"] = {**unknown, **asked.get("extra_body", {})}
    return asked


def find_unknown_options(options: Mapping[str, Any], known: Collection[str]) -> list[str]:
    """Return the options that neither we nor the SDK nor `OpenAIChatOptions` know. They may be misspelled."""
    ours = {*known, *_RENAMED, *_NEVER_SENT, *OpenAIChatOptions.__optional_keys__}
    return [name for name, value in options.items() if value is not None and name not in ours]


def stream_parameters(options: Mapping[str, Any]) -> Wire:
    """Return the parameters of a stream: it includes token counts unless the options say otherwise."""
    stream_options = options.get("stream_options", {"include_usage": True})
    return {"stream": True} if stream_options is None else {"stream": True, "stream_options": stream_options}


def tools_in(options: Mapping[str, Any]) -> list[Any]:
    """Return the tools of a call."""
    return agents.expand_tools(agents.normalize_tools(options.get("tools")))


def _tools(options: Mapping[str, Any], asked: Wire) -> Wire:
    """Return the tools and their options, which servers reject without tools."""
    every = _wire_tools(tools_in(options))
    searches = [tool for tool in every if str(tool.get("type", "")).startswith("web_search")]
    found: Wire = {}
    if searches:
        found["web_search_options"] = {name: value for name, value in searches[0].items() if name != "type"}
    tools = [tool for tool in every if tool not in searches]
    if not tools:
        asked.pop("parallel_tool_calls", None)
        return found
    choice = options.get("tool_choice")
    return found | {"tools": tools} | ({} if choice is None else {"tool_choice": to_wire_choice(choice)})


def _wire_tools(tools: Iterable[Any]) -> list[Wire]:
    found: list[Wire] = []
    for tool in tools:
        if isinstance(tool, Mapping):
            hosted = dict(cast("Mapping[str, Any]", tool))
            if hosted.get("type") in _UNSUPPORTED_TOOLS:
                raise ChatClientInvalidRequestException(
                    f"chat completions have no hosted tool {hosted['type']!r}; use a function or an MCP server instead"
                )
            found.append(hosted)
        elif agents.is_function_tool(tool):
            name, description = agents.sendable_name(tool.name), tool.description or ""
            function = {"name": name, "description": description, "parameters": tool.parameters()}
            found.append({"type": "function", "function": function})
        else:
            raise ChatClientInvalidRequestException(
                f"{tool!r} is not a tool; use functions, tools made by @tool, or dicts"
            )
    return found


def to_wire_choice(choice: object) -> Any:
    """Convert a tool choice."""
    if not isinstance(choice, Mapping):
        return choice
    chosen = cast("Mapping[str, Any]", choice)
    if "mode" not in chosen:
        return dict(chosen)
    if name := chosen.get("required_function_name"):
        return {"type": "function", "function": {"name": agents.sendable_name(name)}}
    if allowed := chosen.get("allowed_tools"):
        tools = [{"type": "function", "function": {"name": agents.sendable_name(name)}} for name in allowed]
        return {"type": "allowed_tools", "allowed_tools": {"mode": chosen["mode"], "tools": tools}}
    return chosen["mode"]


def to_wire_format(response_format: object) -> Wire:
    """Convert a response format: a pydantic model, a JSON schema, or the API's own format."""
    if inspect.isclass(response_format):
        import openai  # noqa: PLC0415 - it comes with an extra

        # The SDK's public way to a strict schema.
        function = openai.pydantic_function_tool(cast("Any", response_format))["function"]
        named: Wire = {"name": response_format.__name__, "schema": function.get("parameters", {}), "strict": True}
    elif not isinstance(response_format, Mapping):
        raise ChatClientInvalidRequestException(
            f"response_format must be a pydantic model or a JSON schema, not {response_format!r}"
        )
    else:
        given = dict(cast("Mapping[str, Any]", response_format))
        if given.get("type") in {"json_schema", "json_object", "text"}:
            return given
        is_named = isinstance(given.get("schema"), Mapping)
        named = given if is_named else {"name": given.get("title"), "schema": given}
    name = wire_name(str(named.get("name") or "")) or "answer"
    return {"type": "json_schema", "json_schema": {**named, "name": name}}
