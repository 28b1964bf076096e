"""The SDK's client: which server it asks, who it says it is, and one for each event loop."""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import openai
from openai.resources.chat.completions import AsyncCompletions

from perdure.agent_errors import ChatClientInvalidAuthException
from perdure.providers.openai.tokens import Tokens
from perdure.secrets import Secret

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from perdure.providers.openai.tokens import Credential

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
