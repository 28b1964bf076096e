"""Chat completions and their stream chunks, converted to responses and updates."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import chain, count
from typing import TYPE_CHECKING, Any, cast

from perdure.agents import ChatResponse, ChatResponseUpdate, Content, Message, ResponseFormat, UsageDetails
from perdure.errors import AdditionItemMismatch, ChatClientException
from perdure.providers.openai.request import REASONING_FIELD, REFUSAL

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from openai.types import CompletionUsage
    from openai.types.chat import ChatCompletion, ChatCompletionChunk


_REASONING_TEXTS = ("reasoning_content", "reasoning")
_REASONING_DETAILS = "reasoning_details"


def to_response(completion: ChatCompletion, response_format: ResponseFormat = None) -> ChatResponse[Any]:
    """Convert a complete response."""
    messages = [
        Message("assistant", _contents_of(choice.message, completion.id), message_id=_message_id(completion.id, choice))
        for choice in completion.choices
    ]
    return ChatResponse(
        messages=messages,
        response_id=completion.id,
        model=completion.model,
        created_at=_to_time(completion.created),
        finish_reason=to_finish_reason(completion.choices[0].finish_reason),
        usage_details=None if completion.usage is None else to_usage(completion.usage),
        response_format=response_format,
        raw_representation=completion,
    )


class StreamUpdates:
    """Convert the chunks of a stream. Token counts come at the end."""

    def __init__(self) -> None:
        self._id = ""
        self._calls: list[_StreamedCall] = []
        self._details: list[dict[str, Any]] = []
        self._usage: CompletionUsage | None = None
        self._has_ended = False

    def convert(self, chunk: ChatCompletionChunk) -> ChatResponseUpdate | None:
        """Convert a chunk; None if it contains nothing."""
        # Some servers send running totals in every chunk: the last one counts.
        self._usage = getattr(chunk, "usage", None) or self._usage
        # Use one id for the whole response: another one would start another message.
        self._id = self._id or chunk.id
        if not chunk.choices:
            return None
        choice = chunk.choices[0]
        delta = cast("Any", choice.delta)
        contents = [] if delta is None else self._contents_of(delta, choice.index)
        self._has_ended = self._has_ended or bool(choice.finish_reason)
        if not contents and not choice.finish_reason:
            return None
        return ChatResponseUpdate(
            contents=contents,
            role="assistant",
            response_id=self._id,
            message_id=_message_id(self._id, choice),
            model=chunk.model,
            created_at=_to_time(chunk.created),
            finish_reason=to_finish_reason(choice.finish_reason),
            raw_representation=chunk,
        )

    def last_update(self) -> ChatResponseUpdate | None:
        """Return the last update: token counts, and reasoning that the server expects back.

        Raises ChatClientException if the stream ended before the response did.
        """
        if not self._has_ended:
            raise ChatClientException(
                "the stream ended before the response was complete; call again, or find out why the server or a proxy "
                "closes connections"
            )
        contents = [_sealed_reasoning(self._details)] if self._details else []
        if self._usage is not None:
            contents.append(Content.from_usage(to_usage(self._usage), raw_representation=self._usage))
        return ChatResponseUpdate(contents=contents, role="assistant") if contents else None

    def _contents_of(self, delta: Any, choice: int) -> list[Content]:
        details = getattr(delta, _REASONING_DETAILS, None) or ()
        for detail in details:
            _add_detail(self._details, detail)
        thoughts = [Content.from_text_reasoning(text=_detail_text(details))] if details else _reasoning_contents(delta)
        return [*thoughts, *_text_contents(delta), *self._calls_of(delta, choice)]

    def _calls_of(self, delta: Any, choice: int) -> list[Content]:
        found: list[Content] = []
        for place, call in enumerate(cast("Sequence[Any]", delta.tool_calls or ())):
            slot = (choice, call.index if isinstance(call.index, int) else place)
            piece = Content(
                "function_call",
                name=getattr(call.function, "name", None) or None,
                arguments=_arguments_of(call.function),
                raw_representation=call,
            )
            if (content := self._add_to_call(slot, call.id, piece)) is not None:
                found.append(content)
        return found

    def _add_to_call(self, slot: tuple[int, int], given_id: str | None, piece: Content) -> Content | None:
        """Add a piece to the call that it continues, or start a call. Return the piece with the call's id.

        Servers repeat ids, send them late or never, and give all calls the index 0. A piece continues the last call
        of its index whose id is not another one, unless the name is another or the arguments are already complete.
        """
        if piece.arguments and any(given_id and call.equals(given_id, piece) for call in self._calls):
            return None  # some servers send finished calls once more
        before = next((call for call in reversed(self._calls) if call.slot == slot and call.may_have(given_id)), None)
        if before is not None:
            try:
                before.joined += piece
            except AdditionItemMismatch:
                piece = replace(piece, name=piece.name or before.joined.name)
            else:
                before.given_id = before.given_id or given_id
                return replace(piece, call_id=before.joined.call_id)
        taken = {call.joined.call_id for call in self._calls}
        made = (_make_call_id(self._id, number) for number in count(slot[1]))
        call_id = next(each for each in chain([given_id] if given_id else [], made) if each not in taken)
        piece = replace(piece, call_id=call_id)
        self._calls.append(_StreamedCall(slot, given_id, piece))
        return piece


@dataclass(slots=True)
class _StreamedCall:
    """A call as far as it was received.

    `slot` has the indexes of the choice and of the call. `given_id` is the server's id; the call keeps the id that its
    first update had.
    """

    slot: tuple[int, int]
    given_id: str | None
    joined: Content

    def may_have(self, given_id: str | None) -> bool:
        """Return False if the server gave this call another id."""
        return not (given_id and self.given_id) or given_id == self.given_id

    def equals(self, given_id: str, whole: Content) -> bool:
        """Return True if `whole` is the same call."""
        known = (self.given_id, self.joined.name, self.joined.arguments)
        return known == (given_id, whole.name, whole.arguments)


def _arguments_of(function: Any) -> str | dict[str, Any]:
    """Return the arguments of a call. Some servers send an object instead of its JSON."""
    given = getattr(function, "arguments", None)
    if given is None or isinstance(given, str | dict):
        return cast("str | dict[str, Any]", given or "")
    return json.dumps(given)


def to_usage(usage: CompletionUsage) -> UsageDetails:
    """Convert token counts."""
    asked = usage.prompt_tokens_details
    answered = usage.completion_tokens_details
    counts = {
        "input_token_count": usage.prompt_tokens,
        "output_token_count": usage.completion_tokens,
        "total_token_count": usage.total_tokens,
        "cache_read_input_token_count": getattr(asked, "cached_tokens", None),
        "cache_creation_input_token_count": getattr(asked, "cache_write_tokens", None),
        "reasoning_output_token_count": getattr(answered, "reasoning_tokens", None),
    }
    return cast("UsageDetails", {name: count for name, count in counts.items() if count is not None})


def to_finish_reason(reason: str | None) -> str | None:
    """Convert a finish reason. The API had another name for calls once."""
    return "tool_calls" if reason == "function_call" else reason


def _contents_of(message: Any, response_id: str) -> list[Content]:
    details = getattr(message, _REASONING_DETAILS, None)
    thoughts = [_sealed_reasoning(details, _detail_text(details))] if details else _reasoning_contents(message)
    calls = [
        Content.from_function_call(
            call.id or _make_call_id(response_id, place),
            call.function.name,
            arguments=_arguments_of(call.function),
            raw_representation=call,
        )
        for place, call in enumerate(message.tool_calls or ())
        if getattr(call, "function", None) is not None
    ]
    return [*thoughts, *_text_contents(message), *calls]


def _text_contents(said: Any) -> list[Content]:
    """Return the text and the refusal of a message or chunk."""
    contents: list[Content] = []
    if said.content:
        cited = [_citation(each) for each in getattr(said, "annotations", None) or ()]
        contents.append(Content.from_text(said.content, annotations=cited or None))
    if getattr(said, "refusal", None):
        contents.append(Content.from_text(said.refusal, additional_properties={REFUSAL: True}))
    return contents


def _citation(annotation: Any) -> dict[str, Any]:
    found = getattr(annotation, "url_citation", None)
    of_text = {name: getattr(found, name, None) for name in ("start_index", "end_index")}
    of_source = {name: getattr(found, name, None) for name in ("title", "url")}
    return {"type": "citation", **of_source, "annotated_regions": [{"type": "text_span", **of_text}]}


def _reasoning_contents(said: Any) -> list[Content]:
    """Return reasoning text, which servers send under different names."""
    for field in _REASONING_TEXTS:
        text = getattr(said, field, None)
        if text and isinstance(text, str):
            return [Content.from_text_reasoning(text=text, additional_properties={REASONING_FIELD: field})]
    return []


def _sealed_reasoning(details: Sequence[Mapping[str, Any]], text: str | None = None) -> Content:
    """Return reasoning that only the server can read. It is sent back unchanged."""
    return Content.from_text_reasoning(
        text=text, protected_data=json.dumps(details), additional_properties={REASONING_FIELD: _REASONING_DETAILS}
    )


def _detail_text(details: Sequence[Mapping[str, Any]]) -> str | None:
    return "".join([str(each.get("text") or each.get("summary") or "") for each in details]) or None


def _add_detail(details: list[dict[str, Any]], piece: Mapping[str, Any]) -> None:
    """Add a part of reasoning details: texts of one index and type are joined, other fields replaced."""
    place = (piece.get("index"), piece.get("type"))
    last = next((each for each in details if (each.get("index"), each.get("type")) == place), None)
    if last is None or place[0] is None:
        details.append(dict(piece))
        return
    for name, value in piece.items():
        if name in {"text", "summary", "data"} and isinstance(value, str):
            last[name] = (last.get(name) or "") + value
        elif value is not None:
            last[name] = value


def _make_call_id(response_id: str, place: int) -> str:
    """Return an id for a call without one: its result has to name it."""
    return f"call_{response_id}_{place}"


def _message_id(answer: str, choice: Any) -> str:
    return f"{answer}.{choice.index}" if choice.index else answer


def _to_time(seconds: int | None) -> str | None:
    return datetime.fromtimestamp(seconds, UTC).isoformat() if seconds else None
