"""A gate for handlers in other processes: each tells who it is, and waits until the test lets it pass."""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Visit:
    """A handler that waits."""

    pid: int
    where: str
    message: Any
    _writer: asyncio.StreamWriter = field(repr=False, compare=False)

    def let_pass(self) -> None:
        """Let the handler go on."""
        self._writer.write(b"go\n")


class Porter:
    """Knows who waits at the gate, and who has been there."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, Any]] = []
        self._waiting: asyncio.Queue[Visit] = asyncio.Queue()

    async def arrival(self) -> Visit:
        """The next who comes."""
        return await asyncio.wait_for(self._waiting.get(), 60)

    async def welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take a visitor in, and keep the line open until he goes or dies."""
        pid, where, message = json.loads(await reader.readline())
        self.seen.append((where, message))
        self._waiting.put_nowait(Visit(pid, where, message, writer))
        await reader.read()
        writer.close()


@asynccontextmanager
async def gate_at(path: Path) -> AsyncGenerator[Porter]:
    """A gate at a place of the file system."""
    porter = Porter()
    server = await asyncio.start_unix_server(porter.welcome, path)
    try:
        yield porter
    finally:
        server.close()


async def pass_gate(path: Path, visit: tuple[int, str, Any]) -> None:
    """Wait at the gate, in a handler."""
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(json.dumps(visit).encode() + b"\n")
    try:
        await reader.readline()
    finally:
        writer.close()


def pass_gate_blocking(path: Path, visit: tuple[int, str, Any]) -> None:
    """The same, while nothing else in the event loop goes on."""
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(str(path))
        line.sendall(json.dumps(visit).encode() + b"\n")
        line.recv(3)
