"""What goes wrong at a provider, as errors of ours."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, cast

import httpx2
from pydantic_ai.exceptions import (
    AgentRunError,
    FallbackExceptionGroup,
    ModelAPIError,
    ModelHTTPError,
    UnexpectedModelBehavior,
    UserError,
)

from perdure.agent_errors import (
    ChatClientException,
    ChatClientInvalidAuthException,
    ChatClientInvalidRequestException,
    ChatClientInvalidResponseException,
)

if TYPE_CHECKING:
    from collections.abc import Generator

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
