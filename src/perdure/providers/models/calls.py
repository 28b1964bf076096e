"""Asking a model through pydantic-ai: once, or until an answer that the provider has paused is whole."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import replace
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
from perdure.data import frozen
from perdure.errors import (
    ChatClientException,
    ChatClientInvalidAuthException,
    ChatClientInvalidRequestException,
    ChatClientInvalidResponseException,
)
from perdure.providers.models.request import conversation, parameters_of, settings_of
from perdure.providers.models.response import Pieces, finish_reason_of, response_of, usage_of
from perdure.streams import ResponseStream

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator, Sequence
    from contextlib import AbstractAsyncContextManager

    from pydantic_ai.messages import ModelMessage, ModelResponse
    from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse
    from pydantic_ai.settings import ModelSettings

    from perdure.agents import ChatResponse, ChatStream, Message, ResponseFormat

_UNKNOWN: Final = frozenset({401, 403})
_UNREADABLE: Final = (UnexpectedModelBehavior, TypeError, ValueError, LookupError, AttributeError)
"""What libraries raise that read something else than they expect; they don't look out for all of it."""
_AGAIN_IN_VAIN: Final = frozenset({400, 404, 405, 413, 414, 415, 422})
_SECRET_LENGTH_MIN: Final = 8


@contextmanager
def refusing(model: str) -> Generator[None]:
    """Raise what the library finds wrong before a model is asked as a ChatClientInvalidRequestException."""
    try:
        yield
    except (UserError, ValueError) as error:
        raise ChatClientInvalidRequestException(f"model {model!r} can't be asked: {error}", error) from error


@contextmanager
def errors_of_ours(model: str, *, secret: str | None = None) -> Generator[None]:
    """Raise what a provider's library raises as a ChatClientException of the right kind, without the key."""
    try:
        yield
    except (AgentRunError, UserError, FallbackExceptionGroup, httpx2.HTTPError, *_UNREADABLE) as error:
        # Providers repeat what they were sent. Their library's error would show the key where ours does not.
        cause = None if _is_told(secret, error) else error
        raise _as_ours(error, cause, model=model, said=_hidden(_said(error), secret)) from cause


def _as_ours(error: Exception, cause: Exception | None, *, model: str, said: str) -> ChatClientException:
    status = error.status_code if isinstance(error, ModelHTTPError) else None
    number = "" if status is None else f" (HTTP {status})"
    if status in _UNKNOWN:
        return ChatClientInvalidAuthException(
            f"model {model!r}: the provider does not let this program in{number}: {said}; check the API key", cause
        )
    if isinstance(error, UserError) or status in _AGAIN_IN_VAIN:
        return ChatClientInvalidRequestException(f"model {model!r} did not take the request{number}: {said}", cause)
    if isinstance(error, _UNREADABLE) or isinstance(error.__cause__, ValueError):
        return ChatClientInvalidResponseException(f"model {model!r} gave what can't be read: {said}", cause)
    return ChatClientException(f"model {model!r} could not be asked{number}: {said}{_wish(error)}", cause)


def _said(error: BaseException) -> str:
    """What the provider said, without what the library puts around it."""
    if isinstance(error, FallbackExceptionGroup):
        return "; ".join([_said(each) for each in cast("tuple[Exception, ...]", error.exceptions)])
    body = error.body if isinstance(error, ModelAPIError) else None
    if isinstance(body, Mapping):
        told = cast("Mapping[str, Any]", body)
        inner = told.get("error")
        found = cast("Mapping[str, Any]", inner).get("message") if isinstance(inner, Mapping) else told.get("message")
        if isinstance(found, str):
            return found
    return str(error) or type(error).__name__


def _wish(error: BaseException) -> str:
    wait = getattr(error, "retry_after", None)
    if wait is None:
        return ""
    return f"; it asks to wait {wait:g} seconds: settings={{'max_retries': ...}} lets its library do that more often"


def _is_told(secret: str | None, error: BaseException) -> bool:
    """Whether an error, or what it comes from, has the key in its words."""
    if not secret or len(secret) < _SECRET_LENGTH_MIN:
        return False
    cause = error.__cause__ or error.__context__
    return secret in str(error) or (cause is not None and _is_told(secret, cause))


def _hidden(text: str, secret: str | None) -> str:
    """A text without the key, should a provider repeat it."""
    return text.replace(secret, "...") if secret and len(secret) >= _SECRET_LENGTH_MIN else text


_PAUSES_MAX: Final = 1000


def model_of(name: str | Model) -> Model:
    """The model of a name such as "anthropic:claude-opus-4-8". Raises ChatClientInvalidRequestException."""
    with refusing(str(name)):
        return infer_model(name)


@frozen
class Call:
    """One call of a model, in pydantic-ai's terms."""

    model: Model
    messages: list[ModelMessage]
    settings: ModelSettings
    parameters: ModelRequestParameters
    response_format: ResponseFormat

    @staticmethod
    def of(model: Model, messages: Sequence[Message], options: Mapping[str, Any], own: Mapping[str, Any]) -> Call:
        """What is to be asked. Raises ChatClientInvalidRequestException."""
        parameters = parameters_of(options)
        with refusing(model.model_name):
            said = model.prepare_messages(conversation(messages, provider=model.system), parameters)
        return Call(model, said, settings_of(options, own), parameters, options.get("response_format"))

    async def answer(self) -> ChatResponse[Any]:
        """The answer as a whole. Raises ChatClientException."""
        _use_this_loop(self.model)
        with errors_of_ours(self.model.model_name, secret=_secret(self.model)):
            found = await self._segment(None)
            for _ in range(_PAUSES_MAX):
                if found.state != "suspended":
                    break
                await self._wait(found)
                found = _joined(found, await self._segment(found))
            else:
                raise UnexpectedModelBehavior("it pauses its answer again and again")
        return response_of(found, self.response_format)

    def stream(self) -> ChatStream:
        """The answer in pieces. Raises ChatClientException when it is read."""
        whole: list[ModelResponse] = []
        return ResponseStream(self._told(whole), finalizer=lambda _: response_of(whole[0], self.response_format))

    async def _told(self, whole: list[ModelResponse]) -> AsyncGenerator[ChatResponseUpdate]:
        _use_this_loop(self.model)
        before: ModelResponse | None = None
        with errors_of_ours(self.model.model_name, secret=_secret(self.model)):
            for _ in range(_PAUSES_MAX):
                async with self._streamed(before) as stream:
                    pieces = Pieces()
                    async for event in stream:
                        if contents := pieces.of(event):
                            yield _update(stream, contents)
                    found = stream.get()
                self._require_end(found)
                found = found if before is None else _joined(before, found)
                if found.state != "suspended":
                    whole.append(found)
                    yield _last(found)
                    return
                before = found
                await self._wait(found)
            raise UnexpectedModelBehavior("it pauses its answer again and again")

    def _require_end(self, found: ModelResponse) -> None:
        """Raise if an answer broke off: a connection that is closed properly in the middle looks like an end."""
        has_reason = found.finish_reason is not None or "finish_reason" in (found.provider_details or {})
        is_over_wire = self.model.base_url is not None
        if found.state == "incomplete" or (is_over_wire and found.state == "complete" and not has_reason):
            raise ModelAPIError(self.model.model_name, "its answer broke off before it was whole")

    async def _segment(self, before: ModelResponse | None) -> ModelResponse:
        return await model_request(
            self.model, self._asked(before), model_settings=self.settings, model_request_parameters=self.parameters
        )

    def _streamed(self, before: ModelResponse | None) -> AbstractAsyncContextManager[StreamedResponse]:
        return model_request_stream(
            self.model, self._asked(before), model_settings=self.settings, model_request_parameters=self.parameters
        )

    def _asked(self, before: ModelResponse | None) -> list[ModelMessage]:
        return self.messages if before is None else [*self.messages, before]

    async def _wait(self, paused: ModelResponse) -> None:
        if delay := self.model.continuation_delay(paused):
            await SystemClock().sleep(delay)


def _joined(first: ModelResponse, second: ModelResponse) -> ModelResponse:
    """An answer that goes on. A provider that is asked again for the same one gives all of it."""
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


def _last(found: ModelResponse) -> ChatResponseUpdate:
    """The end of a stream: what was counted, and why it ended."""
    usage = usage_of(found.usage)
    return ChatResponseUpdate(
        contents=[] if usage is None else [Content.from_usage(usage)],
        role="assistant",
        response_id=found.provider_response_id,
        message_id=found.provider_response_id,
        model=found.model_name,
        created_at=found.timestamp.isoformat(),
        finish_reason=finish_reason_of(found.finish_reason),
    )


def _use_this_loop(model: Model) -> None:
    """Let a model that was last asked on another event loop open new connections, as the library's own agents do."""
    refresh = getattr(model, "_refresh_http_client", None)
    if callable(refresh):
        refresh()


def _secret(model: Model) -> str | None:
    """The key that a model is asked with, so that no error shows it."""
    found = getattr(getattr(model, "client", None), "api_key", None)
    return found if isinstance(found, str) else None
