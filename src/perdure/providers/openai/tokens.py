"""Tokens of an Azure credential: fetched when they are needed, kept while they hold."""

from __future__ import annotations

import asyncio
import inspect
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

from perdure.agent_errors import ChatClientInvalidAuthException
from perdure.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

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
