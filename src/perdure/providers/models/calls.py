"""Model calls through pydantic-ai, complete or streamed, the conversion of responses, and the translation of errors."""

from __future__ import annotations

import json
import traceback
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import httpx2
from pydantic_ai import exceptions, messages as ai
from pydantic_ai.direct import model_request, model_request_stream
from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse, infer_model

from perdure import agents, errors
from perdure.clock import SystemClock
from perdure.providers.models import request
from perdure.streams import ResponseStream

if TYPE_CHECKING:
    from pydantic_ai.settings import ModelSettings
    from pydantic_ai.usage import RequestUsage


T = TypeVar("T")

_NATIVE: Final = {
    "web_search": "search_tool",
    "x_search": "search_tool",
    "file_search": "search_tool",
    "code_execution": "code_interpreter_tool",
    "image_generation": "image_generation_tool",
}


def to_response(found: ai.ModelResponse, response_format: agents.ResponseFormat = None) -> agents.ChatResponse[Any]:
    """Convert a response. Data that the provider expects back is kept with it."""
    contents = [content for part in found.parts if (content := to_content(part)) is not None]
    if response_format is not None:
        contents = [_without_fences(content) for content in contents]
    message = agents.Message(
        "assistant",
        contents,
        message_id=found.provider_response_id,
        additional_properties=request.extras_of(found),
        raw_representation=found,
    )
    return agents.ChatResponse(
        messages=[message],
        response_id=found.provider_response_id,
        model=found.model_name,
        created_at=found.timestamp.isoformat(),
        finish_reason=to_finish_reason(found.finish_reason),
        usage_details=to_usage(found.usage),
        response_format=response_format,
        raw_representation=found,
    )


def to_content(part: ai.ModelResponsePart) -> agents.Content | None:
    """Convert a part of a response; None if it is empty."""
    match part:
        case ai.TextPart():
            extras = request.extras_of(part)
            return (
                agents.Content.from_text(part.content, additional_properties=extras) if part.content or extras else None
            )
        case ai.ThinkingPart():
            return agents.Content.from_text_reasoning(
                text=part.content or None, protected_data=part.signature, additional_properties=request.extras_of(part)
            )
        case ai.ToolCallPart(tool_name=name) if name == request.OUTPUT_TOOL:
            return agents.Content.from_text(_to_text(part.args))
        case ai.ToolCallPart():
            return agents.Content.from_function_call(
                part.tool_call_id, part.tool_name, arguments=part.args, additional_properties=request.extras_of(part)
            )
        case ai.FilePart():
            data = part.content
            return agents.Content.from_data(data.data, data.media_type, additional_properties=request.extras_of(part))
        case ai.NativeToolCallPart():
            return _native(part, "call", {"arguments": part.args})
        case ai.NativeToolReturnPart():
            return _native(part, "result", {})
        case ai.CompactionPart():
            return agents.Content.from_text_reasoning(text=part.content, additional_properties=request.store_part(part))
        case _:
            return agents.Content.from_text(
                getattr(part, "content", None) or "", additional_properties=request.store_part(part)
            )


def _native(part: ai.NativeToolCallPart | ai.NativeToolReturnPart, what: str, more: dict[str, Any]) -> agents.Content:
    """Convert a call that the provider has made, or its result."""
    kind = _NATIVE.get(part.tool_name, "mcp_server_tool")
    return agents.Content(
        f"{kind}_{what}",  # pyright: ignore[reportArgumentType] - each of them is a type of content
        call_id=part.tool_call_id,
        tool_name=part.tool_name,
        server_name=part.provider_name,
        additional_properties=request.store_part(part),
        **more,
    )


def _to_text(arguments: str | Mapping[str, Any] | None) -> str:
    if arguments is None:
        return ""
    return arguments if isinstance(arguments, str) else json.dumps(arguments)


def _without_fences(content: agents.Content) -> agents.Content:
    """Remove code fences around JSON, which models without a JSON mode add."""
    text = (content.text or "").strip()
    if content.type != "text" or not (text.startswith("```") and text.endswith("```")):
        return content
    inner = text.removeprefix("```").removesuffix("```").removeprefix("json")
    return agents.Content.from_text(inner.strip(), additional_properties=content.additional_properties)


def to_finish_reason(reason: str | None) -> str | None:
    """Convert a finish reason."""
    return "tool_calls" if reason == "tool_call" else reason


def to_usage(usage: RequestUsage) -> agents.UsageDetails | None:
    """Convert token counts; None if there are none."""
    if not usage.input_tokens and not usage.output_tokens:
        return None
    counts = {
        "input_token_count": usage.input_tokens,
        "output_token_count": usage.output_tokens,
        "total_token_count": usage.input_tokens + usage.output_tokens,
        "cache_creation_input_token_count": usage.cache_write_tokens or None,
        "cache_read_input_token_count": usage.cache_read_tokens or None,
        "reasoning_output_token_count": usage.output_reasoning_tokens or None,
    }
    return cast("agents.UsageDetails", {name: count for name, count in counts.items() if count is not None})


class StreamContents:
    """Convert the events of a stream to contents. Data to keep with a part comes at its end."""

    def __init__(self) -> None:
        self._calls: dict[int, ai.ToolCallPart] = {}

    def convert(self, event: ai.ModelResponseStreamEvent) -> agents.Content | None:
        """Convert an event; None if it has no content."""
        match event:
            case ai.PartStartEvent(part=ai.ToolCallPart() as part):
                self._calls[event.index] = part
                return _to_call(part, part.args)
            case (
                ai.PartStartEvent(part=ai.TextPart(content=text))
                | ai.PartDeltaEvent(delta=ai.TextPartDelta(content_delta=text))
            ):
                return agents.Content.from_text(text) if text else None
            case (
                ai.PartStartEvent(part=ai.ThinkingPart(content=text))
                | ai.PartDeltaEvent(delta=ai.ThinkingPartDelta(content_delta=text))
            ):
                return agents.Content.from_text_reasoning(text=text) if text else None
            case ai.PartDeltaEvent(delta=ai.ToolCallPartDelta(args_delta=arguments)) if event.index in self._calls:
                return _to_call(self._calls[event.index], arguments) if arguments else None
            case ai.PartStartEvent() if not isinstance(event.part, ai.NativeToolCallPart):
                return to_content(event.part)
            case ai.PartEndEvent():
                return _end(event.part)
            case _:
                return None


def _to_call(part: ai.ToolCallPart, arguments: str | Mapping[str, Any] | None) -> agents.Content:
    if part.tool_name == request.OUTPUT_TOOL:
        return agents.Content.from_text(_to_text(arguments))
    return agents.Content.from_function_call(part.tool_call_id, part.tool_name, arguments=arguments)


def _end(part: ai.ModelResponsePart) -> agents.Content | None:
    extras = request.extras_of(part)
    match part:
        case ai.TextPart() if extras:
            return agents.Content.from_text("", additional_properties=extras)
        case ai.ThinkingPart() if extras or part.signature:
            return agents.Content.from_text_reasoning(protected_data=part.signature, additional_properties=extras)
        case ai.ToolCallPart() if extras and part.tool_name != request.OUTPUT_TOOL:
            return agents.Content.from_function_call(part.tool_call_id, part.tool_name, additional_properties=extras)
        case ai.NativeToolCallPart():
            return to_content(part)
        case _:
            return None


_AUTH_STATUSES: Final = frozenset({401, 403})
# Errors of libraries that parse an unexpected response. They don't wrap all of them.
_PAUSES_MAX: Final = 1000
_PARSE_ERRORS: Final = (exceptions.UnexpectedModelBehavior, TypeError, ValueError, LookupError, AttributeError)
_REQUEST_STATUSES: Final = frozenset({400, 404, 405, 413, 414, 415, 422})
_SECRET_LENGTH_MIN: Final = 8


@contextmanager
def translate_setup_errors(model: str) -> Generator[None]:
    """Raise errors before the model is called as ChatClientInvalidRequestException."""
    try:
        yield
    except (exceptions.UserError, ValueError) as error:
        raise errors.ChatClientInvalidRequestException(f"model {model!r} can't be called: {error}", error) from error


@contextmanager
def translate_errors(model: str, *, secret: str | None = None) -> Generator[None]:
    """Raise errors of a provider's library as a ChatClientException of the right kind, without the key."""
    try:
        yield
    except (
        exceptions.AgentRunError,
        exceptions.UserError,
        exceptions.FallbackExceptionGroup,
        httpx2.HTTPError,
        *_PARSE_ERRORS,
    ) as error:
        message, cause = _message_of(error), error
        if secret and len(secret) >= _SECRET_LENGTH_MIN:
            message = message.replace(secret, "...")
            # Providers quote the request, so the library's error may contain the key. Then it is left out.
            cause = None if secret in "".join(traceback.format_exception(error)) else error
        raise _translate(error, cause, model=model, message=message) from cause


def _translate(error: Exception, cause: Exception | None, *, model: str, message: str) -> errors.ChatClientException:
    status = error.status_code if isinstance(error, exceptions.ModelHTTPError) else None
    number = "" if status is None else f" (HTTP {status})"
    if status in _AUTH_STATUSES:
        return errors.ChatClientInvalidAuthException(
            f"model {model!r}: the provider refused access{number}: {message}; check the API key", cause
        )
    if isinstance(error, exceptions.UserError) or status in _REQUEST_STATUSES:
        return errors.ChatClientInvalidRequestException(
            f"model {model!r} rejected the request{number}: {message}", cause
        )
    if isinstance(error, _PARSE_ERRORS) or isinstance(error.__cause__, ValueError):
        return errors.ChatClientInvalidResponseException(
            f"model {model!r} sent a response that can't be parsed: {message}", cause
        )
    if (wait := getattr(error, "retry_after", None)) is not None:
        message += f"; it asks to wait {wait:g} seconds: set settings={{'max_retries': ...}} to let its library retry"
    return errors.ChatClientException(f"the call of model {model!r} failed{number}: {message}", cause)


def _message_of(error: BaseException) -> str:
    """Return the provider's message without the library's additions."""
    if isinstance(error, exceptions.FallbackExceptionGroup):
        return "; ".join([_message_of(each) for each in cast("tuple[Exception, ...]", error.exceptions)])
    body = error.body if isinstance(error, exceptions.ModelAPIError) else None
    if isinstance(body, Mapping):
        fields = cast("Mapping[str, Any]", body)
        inner = fields.get("error")
        found = cast("Mapping[str, Any]", inner if isinstance(inner, Mapping) else fields).get("message")
        if isinstance(found, str):
            return found
    return str(error) or type(error).__name__


def find_model(name: str | Model) -> Model:
    """Return the model of a name such as "anthropic:claude-opus-4-8". Raises ChatClientInvalidRequestException."""
    with translate_setup_errors(str(name)):
        return infer_model(name)


@dataclass(frozen=True, slots=True)
class Call:
    """One model call in pydantic-ai's terms. `renamed` has the own names of tools by the names that were sent."""

    model: Model
    messages: list[ai.ModelMessage]
    settings: ModelSettings
    parameters: ModelRequestParameters
    response_format: agents.ResponseFormat
    renamed: Mapping[str, str]

    @staticmethod
    def of(
        model: Model, messages: Sequence[agents.Message], options: Mapping[str, Any], own: Mapping[str, Any]
    ) -> Call:
        """Prepare a call. Raises ChatClientInvalidRequestException."""
        parameters = request.to_parameters(options)
        with translate_setup_errors(model.model_name):
            message = model.prepare_messages(request.to_model_messages(messages, provider=model.system), parameters)
        renamed, response_format = agents.find_renamed_tools(request.tools_in(options)), options.get("response_format")
        return Call(model, message, request.to_settings(options, own), parameters, response_format, renamed)

    async def respond(self) -> agents.ChatResponse[Any]:
        """Return the complete response. Raises ChatClientException."""
        found: ai.ModelResponse | None = None
        with self._errors_translated():
            pauses = 0
            while found is None or found.state == "suspended":
                pauses = await self._wait(found, pauses)
                found = _join(found, await self._send(model_request, found))
            return self._to_response(found)

    def stream(self) -> agents.ChatStream:
        """Stream the response. Reading it raises ChatClientException."""
        final: list[ai.ModelResponse] = []
        return ResponseStream(self._updates(final), finalizer=lambda _: self._to_response(final[0]))

    def _to_response(self, found: ai.ModelResponse) -> agents.ChatResponse[Any]:
        response = to_response(found, self.response_format)
        for message in response.messages:
            message.contents = agents.restore_names(message.contents, self.renamed)
        return response

    async def _updates(self, final: list[ai.ModelResponse]) -> AsyncGenerator[agents.ChatResponseUpdate]:
        found: ai.ModelResponse | None = None
        with self._errors_translated():
            pauses = 0
            while found is None or found.state == "suspended":
                pauses = await self._wait(found, pauses)
                async with self._send(model_request_stream, found) as stream:
                    contents = StreamContents()
                    async for event in stream:
                        if (content := contents.convert(event)) is not None:
                            yield _update(stream, *agents.restore_names([content], self.renamed))
                    part = stream.get()
                # A connection that is closed in the middle looks like an end.
                has_reason = part.finish_reason is not None or "finish_reason" in (part.provider_details or {})
                is_over_wire = self.model.base_url is not None
                if part.state == "incomplete" or (is_over_wire and part.state == "complete" and not has_reason):
                    raise exceptions.ModelAPIError(self.model.model_name, "its response broke off")
                found = _join(found, part)
            final.append(found)
        usage = to_usage(found.usage)
        counts = [] if usage is None else [agents.Content.from_usage(usage)]
        created_at, finish_reason = found.timestamp.isoformat(), to_finish_reason(found.finish_reason)
        yield _update(found, *counts, created_at=created_at, finish_reason=finish_reason)

    @contextmanager
    def _errors_translated(self) -> Generator[None]:
        # Let a model that was used on another event loop open new connections, as pydantic-ai's agents do.
        refresh = getattr(self.model, "_refresh_http_client", None)
        if callable(refresh):
            refresh()
        key = getattr(getattr(self.model, "client", None), "api_key", None)
        with translate_errors(self.model.model_name, secret=key if isinstance(key, str) else None):
            yield

    def _send(self, send: Callable[..., T], before: ai.ModelResponse | None) -> T:
        messages = self.messages if before is None else [*self.messages, before]
        return send(self.model, messages, model_settings=self.settings, model_request_parameters=self.parameters)

    async def _wait(self, paused: ai.ModelResponse | None, pauses: int) -> int:
        if pauses > _PAUSES_MAX:
            raise exceptions.UnexpectedModelBehavior("it suspends its response again and again")
        if paused is not None and (delay := self.model.continuation_delay(paused)):
            await SystemClock().sleep(delay)
        return pauses + 1


def _join(first: ai.ModelResponse | None, second: ai.ModelResponse) -> ai.ModelResponse:
    """Join two segments of a response. A provider that is asked for the same one again sends all of it."""
    if first is None:
        return second
    if second.provider_response_id is not None and first.provider_response_id == second.provider_response_id:
        return second
    details = {**(first.provider_details or {}), **(second.provider_details or {})} or None
    return replace(
        second, parts=[*first.parts, *second.parts], usage=first.usage + second.usage, provider_details=details
    )


def _update(
    found: StreamedResponse | ai.ModelResponse, *contents: agents.Content, **more: Any
) -> agents.ChatResponseUpdate:
    return agents.ChatResponseUpdate(
        contents=contents,
        role="assistant",
        response_id=found.provider_response_id,
        message_id=found.provider_response_id,
        model=found.model_name,
        **more,
    )
