"""The SDK's client: which server it asks, who it says it is, and one for each event loop."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import re
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast, runtime_checkable

import openai
from openai import BaseModel
from openai.resources.chat.completions import AsyncCompletions

from perdure.clock import SystemClock
from perdure.errors import (
    ChatClientException,
    ChatClientInvalidAuthException,
    ChatClientInvalidRequestException,
    ChatClientInvalidResponseException,
)
from perdure.providers.openai.settings import OpenAIContentFilterException
from perdure.secrets import Secret

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Mapping

    from perdure.clock import Clock

_MARGIN = timedelta(minutes=5)
"""How long before its end a token is replaced, so that it does not end on the way."""


@runtime_checkable
class AzureCredential(Protocol):
    """What `azure.identity` calls a credential, sync or async."""

    def get_token(self, *scopes: str) -> Any:
        """A token with `token` and `expires_on`, or an awaitable that gives one."""
        ...


Credential: TypeAlias = "AzureCredential | Callable[[], str | Awaitable[str]]"
"""A credential, or a function that gives a token."""


class Tokens:
    """The token of the moment, for whoever makes a request. It belongs to one event loop."""

    def __init__(self, credential: Credential, scope: str, clock: Clock | None = None) -> None:
        self._credential = credential
        self._scope = scope
        self._clock = clock or SystemClock()
        self._lock = asyncio.Lock()
        self._token = ""
        self._ends_at = datetime.min.replace(tzinfo=UTC)

    async def __call__(self) -> str:
        """A token that holds. Raises ChatClientInvalidAuthException if the credential gives none."""
        async with self._lock:
            if self._clock.now() + _MARGIN < self._ends_at:
                return self._token
            try:
                await self._fetch()
            except Exception as error:
                raise ChatClientInvalidAuthException(
                    f"the credential ({type(self._credential).__name__}) gave no token for {self._scope}: {error}; "
                    "sign in, or give another one",
                    error,
                ) from error
            return self._token

    async def _fetch(self) -> None:
        if isinstance(self._credential, AzureCredential):
            found = await _called(self._credential.get_token, self._scope)
            self._token = found.token
            self._ends_at = datetime.fromtimestamp(found.expires_on, UTC)
        else:
            # Nobody says how long it holds: a function that gives tokens knows itself, and is asked each time.
            self._token = await _called(self._credential)


async def _called(function: Callable[..., Any], *args: str) -> Any:
    """What a function gives. One that is not async may run a program or ask a server, so it has a thread."""
    if inspect.iscoroutinefunction(function):
        return await function(*args)
    found = await asyncio.to_thread(function, *args)
    return await found if inspect.isawaitable(found) else found


AZURE_SCOPE = "https://cognitiveservices.azure.com/.default"
AZURE_API_VERSION = "2024-10-21"
_NO_KEY = "none"
"""What is sent to a server that asks for no key: the SDK wants one."""


@dataclass(frozen=True, slots=True, repr=False)
class Target:
    """Which server is asked, and how. What is not given is looked for in the environment."""

    api_key: Any = None
    base_url: str | None = None
    org_id: str | None = None
    azure_endpoint: str | None = None
    api_version: str | None = None
    credential: Credential | None = None
    credential_scope: str | None = None
    default_headers: Mapping[str, str] | None = None
    max_retries: int | None = None
    timeout: float | None = None

    def client(self) -> openai.AsyncOpenAI:
        """A client of the SDK. Raises ChatClientInvalidAuthException if there is no key."""
        endpoint = self._azure_endpoint()
        if endpoint is None:
            return openai.AsyncOpenAI(
                api_key=self._key(), base_url=self.base_url, organization=self.org_id, **self._more()
            )
        if endpoint.rstrip("/").endswith("/openai/v1"):
            return openai.AsyncOpenAI(api_key=self._azure_key(), base_url=endpoint, **self._more())
        return self._azure(endpoint)

    def _more(self) -> dict[str, Any]:
        wished = {"default_headers": self.default_headers, "max_retries": self.max_retries, "timeout": self.timeout}
        return {name: value for name, value in wished.items() if value is not None}

    def _azure_endpoint(self) -> str | None:
        if self.azure_endpoint or self.base_url:
            return self.azure_endpoint
        is_openai = self.api_key is not None or bool(os.environ.get("OPENAI_API_KEY"))
        # A credential is Azure's; without it, what says OpenAI comes first.
        return os.environ.get("AZURE_OPENAI_ENDPOINT") if self.credential is not None or not is_openai else None

    def _azure(self, endpoint: str) -> openai.AsyncOpenAI:
        version = self.api_version or os.environ.get("OPENAI_API_VERSION") or os.environ.get("AZURE_OPENAI_API_VERSION")
        shared: dict[str, Any] = {
            "azure_endpoint": endpoint,
            "api_version": version or AZURE_API_VERSION,
            **self._more(),
        }
        if tokens := self._tokens():
            return openai.AsyncAzureOpenAI(azure_ad_token_provider=tokens, **shared)
        return openai.AsyncAzureOpenAI(api_key=self._azure_key(), **shared)

    def _tokens(self) -> Tokens | None:
        return None if self.credential is None else Tokens(self.credential, self.credential_scope or AZURE_SCOPE)

    def _azure_key(self) -> str | Callable[[], Awaitable[str]]:
        if tokens := self._tokens():
            return tokens
        key = _plain_key(self.api_key) or os.environ.get("AZURE_OPENAI_API_KEY")
        if not key:
            raise ChatClientInvalidAuthException(
                "there is no key for Azure; give credential= or api_key=, or set AZURE_OPENAI_API_KEY"
            )
        return key

    def _key(self) -> str | Callable[[], Awaitable[str]]:
        if tokens := self._tokens():
            return tokens
        if key := _plain_key(self.api_key) or os.environ.get("OPENAI_API_KEY"):
            return key
        if self.base_url or os.environ.get("OPENAI_BASE_URL"):
            return _NO_KEY
        raise ChatClientInvalidAuthException(
            "there is no API key; give api_key= or set OPENAI_API_KEY, or name the server that needs none by base_url="
        )


class Connections:
    """The SDK's clients. A connection belongs to the event loop that opened it, so each loop has its own client."""

    def __init__(self, target: Target, given: openai.AsyncOpenAI | None = None) -> None:
        self._target = target
        self._given = given
        # One is made at once: whoever has given too little hears of it now.
        first = given if given is not None else target.client()
        self._spare = first if given is None else None
        self.base_url = first.base_url
        self._by_loop: dict[asyncio.AbstractEventLoop, openai.AsyncOpenAI] = {}
        self._lock = threading.Lock()

    def client(self) -> openai.AsyncOpenAI:
        """The client of the loop that runs here."""
        if self._given is not None:
            return self._given
        loop = asyncio.get_running_loop()
        with self._lock:
            if loop not in self._by_loop:
                living = {other: client for other, client in self._by_loop.items() if not other.is_closed()}
                self._by_loop = living | {loop: self._spare or self._target.client()}
                self._spare = None
            return self._by_loop[loop]

    async def aclose(self) -> None:
        """Close the connections of the loop that runs here. The next call opens others. A given client stays open."""
        with self._lock:
            client = self._by_loop.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.close()


def _plain_key(given: Any) -> str | Callable[[], Awaitable[str]] | None:
    """A key as the SDK takes it: a text, or an async function that gives one."""
    if isinstance(given, Secret):
        return _plain_key(given.value)  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
    if hasattr(given, "get_secret_value"):
        return str(given.get_secret_value())
    if not callable(given):
        return given

    async def asked() -> str:
        found: Any = given()
        return await found if inspect.isawaitable(found) else found

    return asked


def known_parameters() -> frozenset[str]:
    """The parameters of a chat completion that this version of the SDK knows."""
    return frozenset(inspect.signature(AsyncCompletions.create).parameters) - {"self"}


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
