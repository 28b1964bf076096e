"""Options as the parameters of a chat completion."""

from __future__ import annotations

import inspect
import json
import mimetypes
import re
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias, cast
from urllib.parse import urlsplit

from perdure.agents import Content, expanded_tools, is_function_tool, normalize_tools
from perdure.errors import ChatClientInvalidRequestException
from perdure.providers.openai.settings import OpenAIChatOptions

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from perdure.agents import Message

Wire: TypeAlias = "dict[str, Any]"
"""A piece of a request, as JSON."""

REASONING_FIELD = "openai_reasoning_field"
"""Where a content says under which name the server sent it: it goes back under the same."""

REFUSAL = "refusal"
"""Whether a text is a refusal."""

_SOUNDS = {"audio/wav": "wav", "audio/x-wav": "wav", "audio/wave": "wav", "audio/mpeg": "mp3", "audio/mp3": "mp3"}
_NOT_IN_A_NAME = re.compile(r"[^a-zA-Z0-9_-]+")
_NAME_CHARACTERS_MAX = 64


def wire_messages(messages: Iterable[Message], *, instruction_role: str = "system") -> list[Wire]:
    """The conversation. Raises ChatClientInvalidRequestException if there is something that can't be sent."""
    sent: list[Wire] = []
    attached: list[Wire] = []
    for message in messages:
        results = [content for content in message.contents if content.type == "function_result"]
        if attached and not results:
            sent.append({"role": "user", "content": attached})
            attached = []
        sent += _spoken(message, instruction_role)
        for result in results:
            sent.append({"role": "tool", "tool_call_id": result.call_id or "", "content": result_text(result)})
            # A tool's message takes text alone, and nothing may stand between the results of one answer.
            attached += _attachments(result)
    return [*sent, {"role": "user", "content": attached}] if attached else sent


def wire_name(name: str) -> str:
    """A name as the wire allows it; empty if nothing of it is allowed."""
    return _NOT_IN_A_NAME.sub("_", name).strip("_")[:_NAME_CHARACTERS_MAX]


def _spoken(message: Message, instruction_role: str) -> list[Wire]:
    match message.role:
        case "system" | "developer":
            role = instruction_role if message.role == "system" else message.role
            text = _joined(message.contents)
            spoken: Wire = {"role": role, "content": text} if text else {}
        case "assistant":
            spoken = _answer(message)
        case "tool" if any(content.type == "function_result" for content in message.contents):
            spoken = {}
        case _:
            parts = [part for content in message.contents if (part := _part(content)) is not None]
            spoken = {"role": "user", "content": _as_short_as_possible(parts)} if parts else {}
    if spoken and (name := wire_name(message.author_name or "")):
        spoken["name"] = name
    return [spoken] if spoken else []


def _answer(message: Message) -> Wire:
    texts = [content for content in message.contents if content.type == "text"]
    said = _joined([content for content in texts if not content.additional_properties.get(REFUSAL)])
    refused = _joined([content for content in texts if content.additional_properties.get(REFUSAL)])
    calls = [_call(content) for content in message.contents if _is_own_call(content)]
    if not (said or refused or calls):
        return {}
    answer: Wire = {"role": "assistant", "content": said or None}
    if refused:
        answer["refusal"] = refused
    if calls:
        answer["tool_calls"] = calls
        # Servers that show what a model thinks want it back with the calls that it led to, and only there.
        answer |= _reasoning(message.contents)
    return answer


def _is_own_call(content: Content) -> bool:
    return content.type == "function_call" and not content.informational_only


def _call(content: Content) -> Wire:
    function = {"name": content.name or "", "arguments": _arguments(content)}
    return {"id": content.call_id or "", "type": "function", "function": function}


def _arguments(content: Content) -> str:
    """Always a JSON object: some servers read the calls of a conversation again, and fail at others."""
    if isinstance(content.arguments, str):
        try:
            if isinstance(json.loads(content.arguments), dict):
                return content.arguments
        except ValueError:
            pass
    return json.dumps(content.parse_arguments() or {}, default=str)


def _reasoning(contents: Sequence[Content]) -> Wire:
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


def result_text(content: Content) -> str:
    """What a tool gave, as text."""
    if content.items:
        text = _joined(content.items)
    elif content.result is None or isinstance(content.result, str):
        text = content.result or ""
    elif isinstance(content.result, Content):
        text = str(content.result)
    else:
        text = json.dumps(content.result, default=_plain, ensure_ascii=False)
    return text or (f"Error: {content.exception}" if content.exception else "")


def _attachments(result: Content) -> list[Wire]:
    given = [each for each in result.items or () if each.type in {"data", "uri", "hosted_file"}]
    if not given:
        return []
    parts = [part for content in given if (part := _part(content)) is not None]
    return [{"type": "text", "text": f"This came with the result of {result.call_id}:"}, *parts]


def _part(content: Content) -> Wire | None:
    """A piece of what a user says; None for what is no part of a conversation."""
    match content.type:
        case "text":
            return {"type": "text", "text": content.text} if content.text else None
        case "data" | "uri":
            return _medium(content)
        case "hosted_file":
            return {"type": "file", "file": {"file_id": content.file_id}}
        case _:
            return None


def _medium(content: Content) -> Wire:
    uri = content.uri or ""
    kind = content.media_type or mimetypes.guess_type(urlsplit(uri).path)[0] or ""
    if kind.startswith("image/"):
        detail = content.additional_properties.get("detail")
        return {"type": "image_url", "image_url": {"url": uri, **({"detail": detail} if detail else {})}}
    if content.type != "data":
        raise ChatClientInvalidRequestException(
            f"a chat completion takes images by their address, and nothing else; {uri[:80]!r} is of type {kind!r}; "
            "read it and give it as Content.from_data, or name its media_type if it is an image"
        )
    if kind in _SOUNDS:
        sound = {"data": uri.partition(";base64,")[2], "format": _SOUNDS[kind]}
        return {"type": "input_audio", "input_audio": sound}
    name = content.additional_properties.get("filename") or content.name
    return {
        "type": "file",
        "file": {"filename": name or f"file{mimetypes.guess_extension(kind) or ''}", "file_data": uri},
    }


def _as_short_as_possible(parts: list[Wire]) -> str | list[Wire]:
    """Texts alone as one text: not every server takes a list."""
    if all(part["type"] == "text" for part in parts):
        return "\n".join([part["text"] for part in parts])
    return parts


def _joined(contents: Iterable[Content]) -> str:
    return "\n".join([content.text for content in contents if content.type == "text" and content.text])


def _plain(value: Any) -> Any:
    if isinstance(value, Content):
        return value.to_dict()
    dump = getattr(value, "model_dump", None)
    return cast("Any", dump)(mode="json") if callable(dump) else str(value)


_RENAMED = {"allow_multiple_tool_calls": "parallel_tool_calls", "model_id": "model"}
_NEVER_SENT = frozenset(
    {"conversation_id", "instructions", "messages", "response_format", "stream", "tool_choice", "tools"}
)
"""Options that mean something to an agent alone, and those that are put in another way."""

_OF_OTHER_APIS = frozenset({"code_interpreter", "file_search", "image_generation", "mcp", "shell", "computer_use"})


def parameters_of(options: Mapping[str, Any], known: frozenset[str], *, is_openai: bool) -> Wire:
    """What is asked beside the conversation. `known` are the parameters that the SDK has; others go into the body.

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
        asked["response_format"] = wire_format(options["response_format"])
    if unknown:
        asked["extra_body"] = {**unknown, **asked.get("extra_body", {})}
    return asked


def unknown_options(options: Mapping[str, Any], known: Collection[str]) -> list[str]:
    """The names that neither we nor the SDK know, nor `OpenAIChatOptions`; what is misspelt is among them."""
    ours = {*known, *_RENAMED, *_NEVER_SENT, *OpenAIChatOptions.__optional_keys__}
    return [name for name, value in options.items() if value is not None and name not in ours]


def stream_parameters(options: Mapping[str, Any]) -> Wire:
    """What a stream is asked for: the tokens too, unless the options say otherwise."""
    told = options.get("stream_options", {"include_usage": True})
    return {"stream": True} if told is None else {"stream": True, "stream_options": told}


def _tools(options: Mapping[str, Any], asked: Wire) -> Wire:
    """The tools, and what belongs to them: without any, servers refuse it."""
    every = _wire_tools(expanded_tools(normalize_tools(options.get("tools"))))
    searches = [tool for tool in every if str(tool.get("type", "")).startswith("web_search")]
    found: Wire = {}
    if searches:
        found["web_search_options"] = {name: value for name, value in searches[0].items() if name != "type"}
    tools = [tool for tool in every if tool not in searches]
    if not tools:
        asked.pop("parallel_tool_calls", None)
        return found
    choice = options.get("tool_choice")
    return found | {"tools": tools} | ({} if choice is None else {"tool_choice": wire_choice(choice)})


def _wire_tools(tools: Iterable[Any]) -> list[Wire]:
    found: list[Wire] = []
    for tool in tools:
        if isinstance(tool, Mapping):
            hosted = dict(cast("Mapping[str, Any]", tool))
            if hosted.get("type") in _OF_OTHER_APIS:
                raise ChatClientInvalidRequestException(
                    f"chat completions have no tool {hosted['type']!r} that the provider runs; "
                    "give the agent a function or an MCP server in its place"
                )
            found.append(hosted)
        elif is_function_tool(tool):
            function = {"name": tool.name, "description": tool.description or "", "parameters": tool.parameters()}
            found.append({"type": "function", "function": function})
        else:
            raise ChatClientInvalidRequestException(
                f"{tool!r} is no tool that can be told to a model; give functions, tools made by @tool, or dicts"
            )
    return found


def wire_choice(choice: object) -> Any:
    """Whether tools may, must or must not be called, and which."""
    if not isinstance(choice, Mapping):
        return choice
    chosen = cast("Mapping[str, Any]", choice)
    if "mode" not in chosen:
        return dict(chosen)
    if name := chosen.get("required_function_name"):
        return {"type": "function", "function": {"name": name}}
    if allowed := chosen.get("allowed_tools"):
        tools = [{"type": "function", "function": {"name": name}} for name in allowed]
        return {"type": "allowed_tools", "allowed_tools": {"mode": chosen["mode"], "tools": tools}}
    return chosen["mode"]


def wire_format(response_format: object) -> Wire:
    """What an answer is to look like: a pydantic model, a JSON schema, or what the wire itself knows."""
    if inspect.isclass(response_format):
        return _strict_format(response_format)
    if not isinstance(response_format, Mapping):
        raise ChatClientInvalidRequestException(
            f"response_format is a pydantic model or a JSON schema, not {response_format!r}"
        )
    given = dict(cast("Mapping[str, Any]", response_format))
    if given.get("type") in {"json_schema", "json_object", "text"}:
        return given
    if isinstance(given.get("schema"), Mapping):
        named = {"name": wire_name(str(given.get("name") or "")) or "answer"}
        return {"type": "json_schema", "json_schema": given | named}
    name = wire_name(str(given.get("title") or "")) or "answer"
    return {"type": "json_schema", "json_schema": {"name": name, "schema": given}}


def _strict_format(model: type) -> Wire:
    import openai  # noqa: PLC0415 - it comes with an extra

    # The SDK knows what a strict schema is; this is its public way to one.
    function = openai.pydantic_function_tool(model)["function"]
    schema = {"name": wire_name(model.__name__) or "answer", "schema": function.get("parameters", {}), "strict": True}
    return {"type": "json_schema", "json_schema": schema}
