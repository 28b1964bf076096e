"""Model calls through pydantic-ai, complete or streamed, and the translation of errors."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, cast

import httpx2
from pydantic_ai.direct import model_request, model_request_stream
from pydantic_ai.exceptions import (
    AgentRunError,
    FallbackExceptionGroup,
    ModelAPIError,
    ModelHTTPError,
    UnexpectedModelBehavior,
    UserError,
)
from pydantic_ai.models import infer_model

from perdure.agents import ChatResponseUpdate, Content
from perdure.clock import SystemClock
from perdure.errors import (
    ChatClientException,
    ChatClientInvalidAuthException,
    ChatClientInvalidRequestException,
    ChatClientInvalidResponseException,
)
from perdure.providers.models.request import to_model_messages, to_parameters, to_settings
from perdure.providers.models.response import StreamContents, to_finish_reason, to_response, to_usage
from perdure.streams import ResponseStream

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator, Sequence
    from contextlib import AbstractAsyncContextManager

    from pydantic_ai.messages import ModelMessage, ModelResponse
    from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse
    from pydantic_ai.settings import ModelSettings

    from perdure.agents import ChatResponse, ChatStream, Message, ResponseFormat

_AUTH_STATUSES: Final = frozenset({401, 403})
_PARSE_ERRORS: Final = (UnexpectedModelBehavior, TypeError, ValueError, LookupError, AttributeError)
"""Errors of libraries that parse an unexpected response. They don't wrap all of them."""
_REQUEST_STATUSES: Final = frozenset({400, 404, 405, 413, 414, 415, 422})
_SECRET_LENGTH_MIN: Final = 8


@contextmanager
def translate_setup_errors(model: str) -> Generator[None]:
    """Raise errors before the model is called as ChatClientInvalidRequestException."""
    try:
        yield
    except (UserError, ValueError) as error:
        raise ChatClientInvalidRequestException(f"model {model!r} can't be called: {error}", error) from error


@contextmanager
def translate_errors(model: str, *, secret: str | None = None) -> Generator[None]:
    """Raise errors of a provider's library as a ChatClientException of the right kind, without the key."""
    try:
        yield
    except (AgentRunError, UserError, FallbackExceptionGroup, httpx2.HTTPError, *_PARSE_ERRORS) as error:
        # Providers quote the request, so the library's error may contain the key. Then it is left out.
        cause = None if _contains(secret, error) else error
        raise _translate(error, cause, model=model, message=_without_secret(_message_of(error), secret)) from cause


def _translate(error: Exception, cause: Exception | None, *, model: str, message: str) -> ChatClientException:
    status = error.status_code if isinstance(error, ModelHTTPError) else None
    number = "" if status is None else f" (HTTP {status})"
    if status in _AUTH_STATUSES:
        return ChatClientInvalidAuthException(
            f"model {model!r}: the provider refused access{number}: {message}; check the API key", cause
        )
    if isinstance(error, UserError) or status in _REQUEST_STATUSES:
        return ChatClientInvalidRequestException(f"model {model!r} rejected the request{number}: {message}", cause)
    if isinstance(error, _PARSE_ERRORS) or isinstance(error.__cause__, ValueError):
        return ChatClientInvalidResponseException(
            f"model {model!r} sent a response that can't be parsed: {message}", cause
        )
    return ChatClientException(f"the call of model {model!r} failed{number}: {message}{_retry_hint(error)}", cause)


def _message_of(error: BaseException) -> str:
    """Return the provider's message without the library's additions."""
    if isinstance(error, FallbackExceptionGroup):
        return "; ".join([_message_of(each) for each in cast("tuple[Exception, ...]", error.exceptions)])
    body = error.body if isinstance(error, ModelAPIError) else None
    if isinstance(body, Mapping):
        body_fields = cast("Mapping[str, Any]", body)
        inner = body_fields.get("error")
        found = (
            cast("Mapping[str, Any]", inner).get("message")
            if isinstance(inner, Mapping)
            else body_fields.get("message")
        )
        if isinstance(found, str):
            return found
    return str(error) or type(error).__name__


def _retry_hint(error: BaseException) -> str:
    wait = getattr(error, "retry_after", None)
    if wait is None:
        return ""
    return f"; it asks to wait {wait:g} seconds: set settings={{'max_retries': ...}} to let its library retry"


def _contains(secret: str | None, error: BaseException) -> bool:
    """Return True if an error or its cause contains the key."""
    if not secret or len(secret) < _SECRET_LENGTH_MIN:
        return False
    cause = error.__cause__ or error.__context__
    return secret in str(error) or (cause is not None and _contains(secret, cause))


def _without_secret(text: str, secret: str | None) -> str:
    """Remove the key from a text."""
    return text.replace(secret, "...") if secret and len(secret) >= _SECRET_LENGTH_MIN else text


_PAUSES_MAX: Final = 1000


def find_model(name: str | Model) -> Model:
    """Return the model of a name such as "anthropic:claude-opus-4-8". Raises ChatClientInvalidRequestException."""
    with translate_setup_errors(str(name)):
        return infer_model(name)


@dataclass(frozen=True, slots=True)
class Call:
    """One model call in pydantic-ai's terms."""

    model: Model
    messages: list[ModelMessage]
    settings: ModelSettings
    parameters: ModelRequestParameters
    response_format: ResponseFormat

    @staticmethod
    def of(model: Model, messages: Sequence[Message], options: Mapping[str, Any], own: Mapping[str, Any]) -> Call:
        """Prepare a call. Raises ChatClientInvalidRequestException."""
        parameters = to_parameters(options)
        with translate_setup_errors(model.model_name):
            message = model.prepare_messages(to_model_messages(messages, provider=model.system), parameters)
        return Call(model, message, to_settings(options, own), parameters, options.get("response_format"))

    async def respond(self) -> ChatResponse[Any]:
        """Return the complete response. Raises ChatClientException."""
        _use_this_loop(self.model)
        with translate_errors(self.model.model_name, secret=_key_of(self.model)):
            found = await self._segment(None)
            for _ in range(_PAUSES_MAX):
                if found.state != "suspended":
                    break
                await self._wait(found)
                found = _join(found, await self._segment(found))
            else:
                raise UnexpectedModelBehavior("it suspends its response again and again")
        return to_response(found, self.response_format)

    def stream(self) -> ChatStream:
        """Stream the response. Reading it raises ChatClientException."""
        final: list[ModelResponse] = []
        return ResponseStream(self._updates(final), finalizer=lambda _: to_response(final[0], self.response_format))

    async def _updates(self, final: list[ModelResponse]) -> AsyncGenerator[ChatResponseUpdate]:
        _use_this_loop(self.model)
        before: ModelResponse | None = None
        with translate_errors(self.model.model_name, secret=_key_of(self.model)):
            for _ in range(_PAUSES_MAX):
                async with self._stream_segment(before) as stream:
                    contents_of = StreamContents()
                    async for event in stream:
                        if contents := contents_of.convert(event):
                            yield _update(stream, contents)
                    found = stream.get()
                self._require_end(found)
                found = found if before is None else _join(before, found)
                if found.state != "suspended":
                    final.append(found)
                    yield _last_update(found)
                    return
                before = found
                await self._wait(found)
            raise UnexpectedModelBehavior("it suspends its response again and again")

    def _require_end(self, found: ModelResponse) -> None:
        """Raise if the response is incomplete: a connection that is closed in the middle looks like an end."""
        has_reason = found.finish_reason is not None or "finish_reason" in (found.provider_details or {})
        is_over_wire = self.model.base_url is not None
        if found.state == "incomplete" or (is_over_wire and found.state == "complete" and not has_reason):
            raise ModelAPIError(self.model.model_name, "its response broke off")

    async def _segment(self, before: ModelResponse | None) -> ModelResponse:
        return await model_request(
            self.model, self._messages(before), model_settings=self.settings, model_request_parameters=self.parameters
        )

    def _stream_segment(self, before: ModelResponse | None) -> AbstractAsyncContextManager[StreamedResponse]:
        return model_request_stream(
            self.model, self._messages(before), model_settings=self.settings, model_request_parameters=self.parameters
        )

    def _messages(self, before: ModelResponse | None) -> list[ModelMessage]:
        return self.messages if before is None else [*self.messages, before]

    async def _wait(self, paused: ModelResponse) -> None:
        if delay := self.model.continuation_delay(paused):
            await SystemClock().sleep(delay)


def _join(first: ModelResponse, second: ModelResponse) -> ModelResponse:
    """Join two segments of a response. A provider that is asked for the same one again sends all of it."""
    if second.provider_response_id is not None and first.provider_response_id == second.provider_response_id:
        return second
    details = {**(first.provider_details or {}), **(second.provider_details or {})} or None
    return replace(
        second, parts=[*first.parts, *second.parts], usage=first.usage + second.usage, provider_details=details
    )


def _update(stream: StreamedResponse, contents: list[Content]) -> ChatResponseUpdate:
    return ChatResponseUpdate(
        contents=contents,
        role="assistant",
        response_id=stream.provider_response_id,
        message_id=stream.provider_response_id,
        model=stream.model_name,
    )


def _last_update(found: ModelResponse) -> ChatResponseUpdate:
    """Return the last update: token counts and finish reason."""
    usage = to_usage(found.usage)
    return ChatResponseUpdate(
        contents=[] if usage is None else [Content.from_usage(usage)],
        role="assistant",
        response_id=found.provider_response_id,
        message_id=found.provider_response_id,
        model=found.model_name,
        created_at=found.timestamp.isoformat(),
        finish_reason=to_finish_reason(found.finish_reason),
    )


def _use_this_loop(model: Model) -> None:
    """Let a model that was used on another event loop open new connections, as pydantic-ai's agents do."""
    refresh = getattr(model, "_refresh_http_client", None)
    if callable(refresh):
        refresh()


def _key_of(model: Model) -> str | None:
    """Return the model's key, so that no error shows it."""
    found = getattr(getattr(model, "client", None), "api_key", None)
    return found if isinstance(found, str) else None
