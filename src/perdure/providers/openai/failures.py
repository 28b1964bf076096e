"""What goes wrong at a provider, as errors that say what to do. No key is ever in one."""

from __future__ import annotations

import json
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import openai
from openai import BaseModel

from perdure.agent_errors import (
    ChatClientException,
    ChatClientInvalidAuthException,
    ChatClientInvalidRequestException,
    ChatClientInvalidResponseException,
)
from perdure.providers.openai.content_filter import OpenAIContentFilterException

if TYPE_CHECKING:
    from collections.abc import Generator

_SECRETS = re.compile(r"(?i:bearer)\s+\S+|eyJ[\w-]+\.[\w-]+\.[\w-]*|sk-[\w-]{8,}")
_KEY_CHARACTERS_MIN = 6
_REQUEST_STATUSES = frozenset({400, 404, 405, 413, 415, 422})


@contextmanager
def told(client: openai.AsyncOpenAI) -> Generator[None]:
    """Let the SDK's errors, and those of reading an answer, be ours."""
    try:
        yield
    except openai.OpenAIError as error:
        text = without_secrets(str(error), client.api_key)
        # An error is shown with its cause. One that holds the key is not shown.
        raise failure_of(error, text, client) from (error if text == str(error) else None)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        text = without_secrets(str(error), client.api_key)
        raise ChatClientInvalidResponseException(f"the answer of {where(client)} can't be read: {text}") from None


def require_completion(client: openai.AsyncOpenAI, found: object) -> None:
    """Raise ChatClientInvalidResponseException if what came is no answer: a page of a proxy, an error in disguise."""
    if not getattr(found, "choices", None):
        said = (
            found
            if isinstance(found, str)
            else found.model_dump_json(exclude_none=True)
            if isinstance(found, BaseModel)
            else ""
        )
        raise ChatClientInvalidResponseException(
            f"{where(client)} gave no chat completion, but {without_secrets(said, client.api_key)[:200]!r}; "
            "see that base_url leads to a server that speaks this format"
        )


def failure_of(error: openai.OpenAIError, text: str, client: openai.AsyncOpenAI) -> ChatClientException:
    """What an error of the SDK means to whoever asked."""
    inner = error if text == str(error) else None
    match error:
        case openai.APITimeoutError():
            return ChatClientException(
                f"{where(client)} did not answer in time, after {client.max_retries} retries; "
                "set timeout= (in seconds) and max_retries= of the client if it needs longer",
                inner,
            )
        case openai.APIConnectionError():
            reason = without_secrets(str(error.__cause__ or text), client.api_key)
            return ChatClientException(
                f"the connection to {where(client)} failed: {reason}; see that the server runs and base_url is right",
                inner,
            )
        case openai.APIResponseValidationError():
            return ChatClientInvalidResponseException(f"{where(client)} gave what can't be read: {text}", inner)
        case openai.APIStatusError():
            return _refusal_of(error, text, client, inner)
        case _:
            return ChatClientException(f"{where(client)} failed: {text}", inner)


def _refusal_of(
    error: openai.APIStatusError, text: str, client: openai.AsyncOpenAI, inner: Exception | None
) -> ChatClientException:
    said = f"{where(client)} said: {text}"
    if error.status_code in {401, 403}:
        return ChatClientInvalidAuthException(f"{said}; see that the key or the credential is right", inner)
    if _is_filtered(error):
        return OpenAIContentFilterException(f"{said}; say it in other words", inner)
    if error.status_code in _REQUEST_STATUSES:
        return ChatClientInvalidRequestException(said, inner)
    tries = f"after {client.max_retries} retries; max_retries= of the client says how often it tries again"
    return ChatClientException(f"{said} ({tries})", inner)


def _is_filtered(error: openai.APIStatusError) -> bool:
    body = cast("dict[str, Any]", error.body) if isinstance(error.body, dict) else {}
    within = body.get("innererror")
    reason = cast("dict[str, Any]", within).get("code") if isinstance(within, dict) else None
    return error.code == "content_filter" or reason == "ResponsibleAIPolicyViolation"


def without_secrets(text: str, key: object) -> str:
    """A text of others, which may quote what they were sent."""
    if isinstance(key, str) and len(key) >= _KEY_CHARACTERS_MIN:
        text = text.replace(key, "***")
    return _SECRETS.sub("***", text)


def where(client: openai.AsyncOpenAI) -> str:
    """The server, without what else may stand in an address."""
    url = client.base_url
    return f"{url.scheme}://{url.host}" + (f":{url.port}" if url.port else "")
