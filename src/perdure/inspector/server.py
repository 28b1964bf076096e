"""The inspector on this machine: a server on the loopback address with a random token."""

from __future__ import annotations

import socket
import webbrowser
from typing import TYPE_CHECKING

import uvicorn

from perdure.inspector.application import app
from perdure.inspector.guard import LOOPBACK

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.applications import Starlette

    from perdure.storage import StoreStorage


def local_app(storage: StoreStorage, token: str, *, read_only: bool = False, host: str = "127.0.0.1") -> Starlette:
    """Return the inspector for one person: whoever has the token may do everything."""
    hosts = LOOPBACK if host in LOOPBACK else None
    return app(storage, authorize=_allow, token=token, hosts=hosts, read_only=read_only)


def _allow(*_: object) -> bool:
    return True


async def serve(
    storage: StoreStorage,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    token: str | None = None,
    read_only: bool = False,
    opens_browser: bool = True,
    announce: Callable[[str], None] = print,
) -> None:
    """Serve the inspector until the process is told to stop. Announce its address, and open it in the browser.

    Port 0 takes any free port. Raises ValueError if `host` is not a loopback address and no `token` is given: on a
    network the person who starts the server must choose the secret, and put TLS in front of it.
    """
    if host not in LOOPBACK and token is None:
        raise ValueError(
            f"host {host!r} can be reached from the network; choose a secret with token=, and serve it behind TLS"
        )
    chosen = token or storage.clock.new_id()
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, port), family=family) as listening:
        name = f"[{host}]" if family == socket.AF_INET6 else host
        # Behind the number sign the token is never sent to a server, nor written to a log.
        address = f"http://{name}:{listening.getsockname()[1]}/#token={chosen}"
        announce(address)
        if opens_browser:
            webbrowser.open(address)
        inspector = local_app(storage, chosen, read_only=read_only, host=host)
        config = uvicorn.Config(inspector, log_level="warning", access_log=False, timeout_graceful_shutdown=1)
        await uvicorn.Server(config).serve([listening])
