"""Messages as chat completions take them."""

from __future__ import annotations

import json
import mimetypes
import re
from typing import TYPE_CHECKING, Any, TypeAlias, cast
from urllib.parse import urlsplit

from perdure.agent_errors import ChatClientInvalidRequestException
from perdure.agents import Content

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
