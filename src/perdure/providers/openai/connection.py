"""Connections to OpenAI-compatible servers: SDK clients, credentials, and the translation of errors.

Error messages never contain a key.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import re
import threading
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast, runtime_checkable

import openai
from openai import BaseModel
from openai.resources.chat.completions import AsyncCompletions

from perdure import errors
from perdure.clock import Clock, SystemClock
from perdure.providers.openai.request import OpenAIContentFilterException
from perdure.secrets import Secret

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Generator

    from perdure.providers.openai.client import ServerSettings

# Tokens are replaced this long before they expire.
_EXPIRY_MARGIN = timedelta(minutes=5)


@runtime_checkable
class AzureCredential(Protocol):
    """A credential of `azure.identity`, sync or async."""

    def get_token(self, *scopes: str) -> Any:
        """Return a token with `token` and `expires_on`, or an awaitable of one."""


# A credential, or a function that returns a token.
Credential: TypeAlias = "AzureCredential | Callable[[], str | Awaitable[str]]"


class Tokens:
    """Provide valid tokens for requests on one event loop."""

    def __init__(self, credential: Credential, scope: str, clock: Clock | None = None) -> None:
        self._credential = credential
        self._scope = scope
        self._clock = clock or SystemClock()
        self._lock = asyncio.Lock()
        self._token = ""
        self._ends_at = datetime.min.replace(tzinfo=UTC)

    async def __call__(self) -> str:
        """Return a valid token. Raises ChatClientInvalidAuthException if the credential fails."""
        async with self._lock:
            if self._clock.now() + _EXPIRY_MARGIN < self._ends_at:
                return self._token
            try:
                await self._fetch()
            except Exception as error:
                raise errors.ChatClientInvalidAuthException(
                    f"the credential ({type(self._credential).__name__}) returned no token for {self._scope}: {error}; "
                    "sign in, or use another one",
                    error,
                ) from error
            return self._token

    async def _fetch(self) -> None:
        if isinstance(self._credential, AzureCredential):
            found = await _call(self._credential.get_token, self._scope)
            self._token = found.token
            self._ends_at = datetime.fromtimestamp(found.expires_on, UTC)
        else:
            # The lifetime is unknown, so the function is called each time.
            self._token = await _call(self._credential)


async def _call(function: Callable[..., Any], *args: str) -> Any:
    """Call a function. A sync one may run a program or call a server, so it gets a thread."""
    if inspect.iscoroutinefunction(function):
        return await function(*args)
    found = await asyncio.to_thread(function, *args)
    return await found if inspect.isawaitable(found) else found


AZURE_SCOPE = "https://cognitiveservices.azure.com/.default"
AZURE_API_VERSION = "2024-10-21"
# Sent to servers that need no key, because the SDK requires one.
_NO_KEY = "none"


def make_client(settings: ServerSettings) -> openai.AsyncOpenAI:
    """Create an SDK client. Missing settings are read from the environment.

    Raises ChatClientInvalidAuthException without a key.
    """
    given = {name: settings.get(name) for name in ("default_headers", "max_retries", "timeout")}
    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    # The SDK's own default closes itself when it is collected, in whatever loop runs then.
    options["http_client"] = openai.DefaultAsyncHttpxClient()
    endpoint, base_url, credential = _azure_endpoint(settings), settings.get("base_url"), settings.get("credential")
    variable = "OPENAI_API_KEY" if endpoint is None else "AZURE_OPENAI_API_KEY"
    tokens = None if credential is None else Tokens(credential, settings.get("credential_scope") or AZURE_SCOPE)
    key = tokens or _to_sdk_key(settings.get("api_key")) or os.environ.get(variable)
    if not key and endpoint is None and (base_url or os.environ.get("OPENAI_BASE_URL")):
        key = _NO_KEY
    if not key:
        raise errors.ChatClientInvalidAuthException(
            f"there is no API key; give api_key= or credential=, set {variable}, or set base_url= to a server that "
            "needs none"
        )
    if endpoint is None:
        return openai.AsyncOpenAI(api_key=key, base_url=base_url, organization=settings.get("org_id"), **options)
    if endpoint.rstrip("/").endswith("/openai/v1"):
        return openai.AsyncOpenAI(api_key=key, base_url=endpoint, **options)
    version = settings.get("api_version") or os.environ.get("OPENAI_API_VERSION")
    version = version or os.environ.get("AZURE_OPENAI_API_VERSION") or AZURE_API_VERSION
    options |= {"azure_endpoint": endpoint, "api_version": version}
    if tokens:
        return openai.AsyncAzureOpenAI(azure_ad_token_provider=tokens, **options)
    return openai.AsyncAzureOpenAI(api_key=key, **options)


def _azure_endpoint(settings: ServerSettings) -> str | None:
    endpoint = settings.get("azure_endpoint")
    if endpoint or settings.get("base_url"):
        return endpoint
    is_openai = settings.get("api_key") is not None or bool(os.environ.get("OPENAI_API_KEY"))
    # A credential means Azure; without one, OpenAI settings come first.
    is_azure = settings.get("credential") is not None or not is_openai
    return os.environ.get("AZURE_OPENAI_ENDPOINT") if is_azure else None


class Connections:
    """The SDK clients, one for each event loop, because a connection belongs to the loop that opened it."""

    def __init__(self, settings: ServerSettings, given: openai.AsyncOpenAI | None = None) -> None:
        self._settings = settings
        self._given = given
        # Create one now, so that missing settings raise here.
        first = given if given is not None else make_client(settings)
        self._spare = first if given is None else None
        self.base_url = first.base_url
        self._by_loop: dict[asyncio.AbstractEventLoop, tuple[openai.AsyncOpenAI, AsyncGenerator[None]]] = {}
        self._lock = threading.Lock()

    async def client(self) -> openai.AsyncOpenAI:
        """Return the client of the running loop."""
        if self._given is not None:
            return self._given
        loop = asyncio.get_running_loop()
        with self._lock:
            if loop in self._by_loop:
                return self._by_loop[loop][0]
            living = {other: entry for other, entry in self._by_loop.items() if not other.is_closed()}
            client, self._spare = self._spare or make_client(self._settings), None
            closer = _close_with_loop(client)
            self._by_loop = living | {loop: (client, closer)}
        await anext(closer)
        return client

    async def aclose(self) -> None:
        """Close the connections of the running loop. The next call opens new ones. A given client stays open."""
        with self._lock:
            entry = self._by_loop.pop(asyncio.get_running_loop(), None)
        if entry is not None:
            await entry[1].aclose()


async def _close_with_loop(client: openai.AsyncOpenAI) -> AsyncGenerator[None]:
    """Close a client when its event loop shuts down. A loop closes the generators that were started on it."""
    try:
        yield
    finally:
        await client.close()


def _to_sdk_key(given: Any) -> str | Callable[[], Awaitable[str]] | None:
    """Return a key as the SDK takes it: a str, or an async function that returns one."""
    if isinstance(given, Secret):
        return _to_sdk_key(given.value)  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
    if hasattr(given, "get_secret_value"):
        return str(given.get_secret_value())
    return partial(_call, given) if callable(given) else given


def known_parameters() -> frozenset[str]:
    """Return the parameters of a chat completion that this version of the SDK knows."""
    return frozenset(inspect.signature(AsyncCompletions.create).parameters) - {"self"}


_SECRETS = re.compile(r"(?i:bearer)\s+\S+|eyJ[\w-]+\.[\w-]+\.[\w-]*|sk-[\w-]{8,}")
_KEY_CHARACTERS_MIN = 6
_REQUEST_STATUSES = frozenset({400, 404, 405, 413, 415, 422})


@contextmanager
def translate_errors(client: openai.AsyncOpenAI) -> Generator[None]:
    """Translate errors of the SDK and of parsing to ours."""
    try:
        yield
    except (openai.OpenAIError, json.JSONDecodeError, UnicodeDecodeError) as error:
        text = without_secrets(str(error), client.api_key)
        # A traceback shows the cause, so an error that contains the key is left out.
        inner = error if text == str(error) else None
        kind, message = _translate(error, text, client)
        raise kind(f"{address_of(client)} {message}", inner) from inner


def require_completion(client: openai.AsyncOpenAI, found: object) -> None:
    """Raise ChatClientInvalidResponseException if the server sent something else, such as a proxy's page."""
    if not getattr(found, "choices", None):
        said = found.model_dump_json(exclude_none=True) if isinstance(found, BaseModel) else str(found)
        raise errors.ChatClientInvalidResponseException(
            f"{address_of(client)} sent {without_secrets(said, client.api_key)[:200]!r} instead of a chat completion; "
            "check that base_url names a server with a chat completions API"
        )


def _translate(error: Exception, text: str, client: openai.AsyncOpenAI) -> tuple[type[errors.ChatClientException], str]:
    """Return the kind of our error, and its message after the server's address."""
    match error:
        case openai.APITimeoutError():
            advice = "increase timeout= (in seconds) or max_retries= of the client"
            return errors.ChatClientException, f"did not answer in time, after {client.max_retries} retries; {advice}"
        case openai.APIConnectionError():
            reason = without_secrets(str(error.__cause__ or text), client.api_key)
            advice = "check that the server runs and base_url is right"
            return errors.ChatClientException, f"can't be reached, the connection failed: {reason}; {advice}"
        case openai.APIStatusError(status_code=401 | 403):
            return errors.ChatClientInvalidAuthException, f"said: {text}; check the key or the credential"
        case openai.APIStatusError() if _is_filtered(error):
            return OpenAIContentFilterException, f"said: {text}; rephrase the conversation"
        case openai.APIStatusError() if error.status_code in _REQUEST_STATUSES:
            return errors.ChatClientInvalidRequestException, f"said: {text}"
        case openai.APIStatusError():
            advice = f"after {client.max_retries} retries; set max_retries= of the client"
            return errors.ChatClientException, f"said: {text} ({advice})"
        case openai.OpenAIError() if not isinstance(error, openai.APIResponseValidationError):
            return errors.ChatClientException, f"failed: {text}"
        case _:
            return errors.ChatClientInvalidResponseException, f"sent a response that can't be parsed: {text}"


def _is_filtered(error: openai.APIStatusError) -> bool:
    body = cast("dict[str, Any]", error.body) if isinstance(error.body, dict) else {}
    within = body.get("innererror")
    reason = cast("dict[str, Any]", within).get("code") if isinstance(within, dict) else None
    return error.code == "content_filter" or reason == "ResponsibleAIPolicyViolation"


def without_secrets(text: str, key: object) -> str:
    """Remove secrets from a text of the server, which may quote the request."""
    if isinstance(key, str) and len(key) >= _KEY_CHARACTERS_MIN:
        text = text.replace(key, "***")
    return _SECRETS.sub("***", text)


def address_of(client: openai.AsyncOpenAI) -> str:
    """Return the server's address without path and credentials."""
    url = client.base_url
    return f"{url.scheme}://{url.host}" + (f":{url.port}" if url.port else "")
