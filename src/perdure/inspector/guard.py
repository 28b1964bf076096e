"""Protection of the inspector: allowed hosts, requests of its own pages alone, a token, and a strict content policy."""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse

if TYPE_CHECKING:
    from collections.abc import Collection

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})

# Pages run their own scripts alone. Images are those of the store, as data.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class Guard:
    """Refuse requests that do not come from the inspector's own page.

    `token` is required of every request for data. `hosts` are the names in the Host header that are allowed, with any
    port; None allows all, for a service that checks them itself.
    """

    def __init__(self, app: ASGIApp, *, token: str | None, hosts: Collection[str] | None) -> None:
        self.app = app
        self._token = token
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass an allowed request on, and add the headers that protect a page to every response."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        refusal = self._refusal(Headers(scope=scope), is_data="/api/" in scope["path"])
        if refusal is None:
            await self.app(scope, receive, send_with_headers)
        else:
            status, text = refusal
            body = {"schema": 1, "error": {"type": "Refused", "message": text}}
            await JSONResponse(body, status)(scope, receive, send_with_headers)

    def _refusal(self, headers: Headers, *, is_data: bool) -> tuple[int, str] | None:
        host = headers.get("host", "")
        if self._hosts is not None and host_name(host) not in self._hosts:
            return 421, f"host {host!r} is not allowed; open the inspector under the address that it printed"
        if not is_data:
            return None
        site, origin = headers.get("sec-fetch-site"), headers.get("origin")
        is_own_page = site == "same-origin" if site is not None else _is_of(origin, host)
        if not is_own_page:
            return 403, "only the inspector's own page may ask for data"
        given = headers.get("authorization", "").removeprefix("Bearer ")
        if self._token is not None and not hmac.compare_digest(given.encode(), self._token.encode()):
            return 401, "the token is missing or wrong; open the inspector with the whole address that it printed"
        return None


def host_name(host: str) -> str | None:
    """Return the name in a Host header without its port; None if it is no valid header."""
    try:
        parts = urlsplit(f"//{host}")
        _ = parts.port
    except ValueError:
        return None
    is_plain = parts.netloc == host and parts.username is None and not any(each in host for each in "/?#@\\")
    return parts.hostname if is_plain else None


def _is_of(origin: str | None, host: str) -> bool:
    return origin is not None and host != "" and urlsplit(origin).netloc.lower() == host.lower()
