"""The example service as a real process, which may be killed and started again, and clients that put up with it."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import aclosing, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterable, Callable, Coroutine

ROOT = Path(__file__).parents[2]
_LISTENING = re.compile(r"running on (http://127\.0\.0\.1:\d+)")


class ServiceProcess:
    """One server after the other on one store, each on a port that is free when it starts."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self._log: list[str] = []
        self.url = ""

    def start(self) -> None:
        """Start a server, and wait until it listens."""
        command = [sys.executable, "-W", "error", "-m", "examples.service", "--port", "0"]
        command += ["--storage", f"sqlite:///{self._directory}/claims.db", "--bank", str(self._directory / "bank.db")]
        self._log = []
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._log.append(line)
            if found := _LISTENING.search(line):
                self.url = found[1]
                break
        else:
            raise AssertionError(f"the service did not start:\n{''.join(self._log)}")
        self._reader = threading.Thread(target=self._log.extend, args=[self._process.stderr])
        self._reader.start()

    def end(self, signum: signal.Signals) -> tuple[int, str]:
        """End the server by a signal: its exit code, and what it has logged."""
        process, reader = self._process, self._reader
        assert process is not None, "it was started"
        process.send_signal(signum)
        process.wait(60)
        if reader is not None:
            reader.join(60)
        if process.stderr is not None:
            process.stderr.close()
        self._process = None
        return process.returncode, "".join(self._log)

    def stop(self) -> None:
        """End the server if there is one."""
        if self._process is not None:
            self.end(signal.SIGKILL)

    def payments(self) -> list[tuple[str, int]]:
        """What the bank has paid: to whom and how much, once for each key."""
        with closing(sqlite3.connect(self._directory / "bank.db")) as book:
            return sorted(book.execute("SELECT employee, cents FROM payments"))


async def messages_of(lines: AsyncIterable[str]) -> AsyncGenerator[dict[str, str]]:
    """The messages of a stream of Server-Sent Events that came whole, each as its fields."""
    fields: dict[str, str] = {}
    async for line in lines:
        if line and not line.startswith(":"):
            name, _, value = line.partition(": ")
            fields[name] = value
        elif not line and fields:
            yield fields
            fields = {}


@dataclass
class Followed:
    """What a follower was told of a run, over all of its connections."""

    numbers: list[int] = field(default_factory=list[int])
    events: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    connections: int = 0
    end: dict[str, Any] | None = None


class Crowd:
    """Clients that try again whenever the service is gone, and who ends it in the meantime."""

    def __init__(self, service: ServiceProcess, http: httpx.AsyncClient) -> None:
        self._service = service
        self._http = http
        self._is_up = asyncio.Event()
        self._is_up.set()
        self._seen = 0
        self._more = asyncio.Condition()

    async def call(self, method: str, path: str, body: object = None) -> httpx.Response:
        """The reply of whichever server is the first to give one."""
        while True:
            await self._is_up.wait()
            try:
                return await self._http.request(method, self._service.url + path, json=body)
            except httpx.TransportError:
                continue

    async def follow(
        self,
        run_id: str,
        told: Callable[[dict[str, Any]], Coroutine[Any, Any, None]],
        *,
        hangs_up_after: int | None = None,
    ) -> Followed:
        """Follow a run to its end, and connect again with the last number whenever the connection is gone.

        `hangs_up_after` so many messages the follower itself hangs up.
        """
        followed = Followed()
        while followed.end is None:
            await self._is_up.wait()
            followed.connections += 1
            try:
                async with aclosing(self._messages(run_id, followed)) as messages:
                    count = 0
                    async for message in messages:
                        await self._take(message, followed, told)
                        count += 1
                        if count == hangs_up_after:
                            break
            except httpx.TransportError:
                continue
        return followed

    async def _messages(self, run_id: str, followed: Followed) -> AsyncGenerator[dict[str, str]]:
        headers = {"Last-Event-ID": str(followed.numbers[-1])} if followed.numbers else {}
        url = f"{self._service.url}/runs/{run_id}/events"
        async with self._http.stream("GET", url, headers=headers) as response:
            assert response.status_code == 200, await response.aread()
            async with aclosing(messages_of(response.aiter_lines())) as messages:
                async for message in messages:
                    yield message

    async def _take(
        self, message: dict[str, str], followed: Followed, told: Callable[[dict[str, Any]], Coroutine[Any, Any, None]]
    ) -> None:
        data = json.loads(message["data"])
        if message.get("event") == "end":
            followed.end = data
            return
        followed.numbers.append(int(message["id"]))
        followed.events.append(data)
        async with self._more:
            self._seen += 1
            self._more.notify_all()
        await told(data)

    async def until_seen(self, count: int) -> None:
        """Wait until so many events were told to all followers together."""
        async with self._more:
            await self._more.wait_for(lambda: self._seen >= count)

    async def replace_service(self, signum: signal.Signals) -> tuple[int, str]:
        """End the server by a signal and start another."""
        self._is_up.clear()
        ended = await asyncio.to_thread(self._service.end, signum)
        await asyncio.to_thread(self._service.start)
        self._is_up.set()
        return ended
