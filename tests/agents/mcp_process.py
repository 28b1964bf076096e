"""A real MCP server in a process of its own, over HTTP."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Generator

SERVER = str(Path(__file__).with_name("mcp_server.py"))


class HttpServer:
    """A server in a process of its own. Its address outlives it: another may be started there."""

    def __init__(self, listener: socket.socket, notes: Path) -> None:
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
        self._listener = listener
        self.notes = notes
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        if self._process is not None:
            self._process.wait(30)
        number = self._listener.fileno()
        self._process = subprocess.Popen(
            [sys.executable, SERVER, "http", str(self.notes), str(number)], pass_fds=[number]
        )

    def kill(self) -> None:
        assert self._process is not None, "it was started"
        self._process.kill()
        self._process.wait(30)


@contextmanager
def http_server(notes: Path) -> Generator[HttpServer]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        server = HttpServer(listener, notes)
        server.start()
        try:
            yield server
        finally:
            server.kill()


def noted(notes: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in notes.read_text().splitlines()] if notes.exists() else []
