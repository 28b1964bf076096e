"""Serve until SIGTERM or SIGINT.

python -m examples.service --storage sqlite:///claims.db --port 8000
"""

import argparse
from socket import socket

import uvicorn
from starlette.applications import Starlette

from .app import make_app


class Server(uvicorn.Server):
    """Close the event streams on shutdown. Otherwise open streams would delay it."""

    def __init__(self, app: Starlette, *, host: str, port: int) -> None:
        super().__init__(uvicorn.Config(app, host=host, port=port))
        self._closing = app.state.closing

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        self._closing.set()
        await super().shutdown(sockets)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.service", description="A service for expense claims.")
    parser.add_argument("--storage", default="sqlite:///claims.db", help="where runs rest, as a URL (%(default)s)")
    parser.add_argument("--bank", default="bank.db", help="the file of the bank that pays (%(default)s)")
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen on (%(default)s)")
    parser.add_argument("--port", default=8000, type=int, help="the port, 0 for any that is free (%(default)s)")
    given = parser.parse_args()
    Server(make_app(given.storage, given.bank), host=given.host, port=given.port).run()


if __name__ == "__main__":
    main()
