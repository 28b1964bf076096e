"""What a chat completion says, whole or in pieces, as responses."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast

from perdure.agents import ChatResponse, ChatResponseUpdate, Content, Message, UsageDetails
from perdure.errors import ChatClientException
from perdure.providers.openai.request import REASONING_FIELD, REFUSAL

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from openai.types import CompletionUsage
    from openai.types.chat import ChatCompletion, ChatCompletionChunk

    from perdure.agents import ResponseFormat

_REASONING_TEXTS = ("reasoning_content", "reasoning")
_REASONING_DETAILS = "reasoning_details"


def response_of(completion: ChatCompletion, response_format: ResponseFormat = None) -> ChatResponse[Any]:
    """A whole answer."""
    messages = [
        Message("assistant", _contents_of(choice.message, completion.id), message_id=_message_id(completion.id, choice))
        for choice in completion.choices
    ]
    return ChatResponse(
        messages=messages,
        response_id=completion.id,
        model=completion.model,
        created_at=_moment(completion.created),
        finish_reason=finish_reason_of(completion.choices[0].finish_reason),
        usage_details=None if completion.usage is None else usage_of(completion.usage),
        response_format=response_format,
        raw_representation=completion,
    )


class Pieces:
    """A stream of chunks, as updates: calls are known by their place, tokens are told once, at the end."""

    def __init__(self) -> None:
        self._id = ""
        self._calls: dict[tuple[int, int], str] = {}
        self._details: list[dict[str, Any]] = []
        self._usage: CompletionUsage | None = None
        self._has_ended = False

    def update_of(self, chunk: ChatCompletionChunk) -> ChatResponseUpdate | None:
        """What a chunk says; None if that is nothing."""
        # Some servers count in every chunk, all tokens so far: the last count is the one that holds.
        self._usage = getattr(chunk, "usage", None) or self._usage
        # An answer has one id, whatever its pieces say: another one would begin another message.
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
            created_at=_moment(chunk.created),
            finish_reason=finish_reason_of(choice.finish_reason),
            raw_representation=chunk,
        )

    def rest(self) -> ChatResponseUpdate | None:
        """What is known at the end: the tokens, and what the server wants back.

        Raises ChatClientException if the stream has ended before the answer.
        """
        if not self._has_ended:
            raise ChatClientException(
                "the stream ended before the answer did, so nothing of it is kept; ask again, or see why the server, "
                "or something on the way to it, closes connections"
            )
        contents = [_sealed(self._details)] if self._details else []
        if self._usage is not None:
            contents.append(Content.from_usage(usage_of(self._usage), raw_representation=self._usage))
        return ChatResponseUpdate(contents=contents, role="assistant") if contents else None

    def _contents_of(self, delta: Any, choice: int) -> list[Content]:
        details = getattr(delta, _REASONING_DETAILS, None) or ()
        for detail in details:
            _take_in(self._details, detail)
        thoughts = [Content.from_text_reasoning(text=_words(details))] if details else _thoughts_of(delta)
        return [*thoughts, *_words_of(delta), *self._calls_of(delta, choice)]

    def _calls_of(self, delta: Any, choice: int) -> list[Content]:
        found: list[Content] = []
        for place, call in enumerate(delta.tool_calls or ()):
            index = place if call.index is None else call.index
            known = self._calls.get((choice, index))
            if known is None or (call.id and call.id != known):
                known = self._calls[choice, index] = call.id or _made_id(self._id, len(self._calls))
            function = call.function
            found.append(
                Content(
                    "function_call",
                    call_id=known,
                    name=(function.name or None) if function else None,
                    arguments=(function.arguments or "") if function else "",
                    raw_representation=call,
                )
            )
        return found


def usage_of(usage: CompletionUsage) -> UsageDetails:
    """Tokens, as they are counted here."""
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


def finish_reason_of(reason: str | None) -> str | None:
    """Why the model stopped. The wire had another name for calls once."""
    return "tool_calls" if reason == "function_call" else reason


def _contents_of(message: Any, response_id: str) -> list[Content]:
    contents = _texts_of(message)
    for place, call in enumerate(message.tool_calls or ()):
        function = getattr(call, "function", None)
        if function is not None:
            call_id = call.id or _made_id(response_id, place)
            contents.append(
                Content.from_function_call(
                    call_id, function.name, arguments=function.arguments or "", raw_representation=call
                )
            )
    return contents


def _texts_of(message: Any) -> list[Content]:
    details = getattr(message, _REASONING_DETAILS, None)
    if not details:
        return [*_thoughts_of(message), *_words_of(message)]
    sealed = _sealed(details)
    sealed.text = _words(details)
    return [sealed, *_words_of(message)]


def _words_of(said: Any) -> list[Content]:
    """What a message, or a piece of one, says and refuses."""
    contents: list[Content] = []
    if said.content:
        cited = [_citation(each) for each in getattr(said, "annotations", None) or ()]
        contents.append(Content.from_text(said.content, annotations=cited or None))
    if getattr(said, "refusal", None):
        contents.append(Content.from_text(said.refusal, additional_properties={REFUSAL: True}))
    return contents


def _citation(annotation: Any) -> dict[str, Any]:
    found = getattr(annotation, "url_citation", None)
    region = {
        "type": "text_span",
        "start_index": getattr(found, "start_index", None),
        "end_index": getattr(found, "end_index", None),
    }
    return {
        "type": "citation",
        "title": getattr(found, "title", None),
        "url": getattr(found, "url", None),
        "annotated_regions": [region],
    }


def _thoughts_of(said: Any) -> list[Content]:
    """Reasoning in words, which servers send under names of their own."""
    for field in _REASONING_TEXTS:
        text = getattr(said, field, None)
        if text and isinstance(text, str):
            return [Content.from_text_reasoning(text=text, additional_properties={REASONING_FIELD: field})]
    return []


def _sealed(details: Sequence[Mapping[str, Any]]) -> Content:
    """Reasoning that only the server can read; it wants it back as it was."""
    return Content.from_text_reasoning(
        protected_data=json.dumps(details), additional_properties={REASONING_FIELD: _REASONING_DETAILS}
    )


def _words(details: Sequence[Mapping[str, Any]]) -> str | None:
    return "".join([str(each.get("text") or each.get("summary") or "") for each in details]) or None


def _take_in(details: list[dict[str, Any]], piece: Mapping[str, Any]) -> None:
    """Add a piece of reasoning: texts of one place and kind go on, all else is as it was told last."""
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


def _made_id(response_id: str, place: int) -> str:
    """An id for a call that came without: the result has to name one."""
    return f"call_{response_id}_{place}"


def _message_id(answer: str, choice: Any) -> str:
    return f"{answer}.{choice.index}" if choice.index else answer


def _moment(seconds: int | None) -> str | None:
    return datetime.fromtimestamp(seconds, UTC).isoformat() if seconds else None
