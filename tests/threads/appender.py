"""A process that does to a session store what it is told: a JSON order per line in, a JSON answer per line out.

Its arguments are the kind of store and its place: a path, or a DSN and a schema.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
from typing import TYPE_CHECKING, Any

from perdure.agents import Message
from perdure.storage import SqliteStore
from perdure.threads import FileSessionStore, PostgresSessionStore, SqliteSessionStore, ThreadError
from perdure.threads.thread import TENANT, ThreadName

if TYPE_CHECKING:
    from perdure.threads import SessionStore


class Program:
    def __init__(self, kind: str, *place: str) -> None:
        self.place = place
        self.sessions = _opened(kind, *place)

    async def do(self, order: dict[str, Any]) -> object:
        match order:
            case {"do": "append", "texts": texts, **how}:
                return await self.append(texts, **how)
            case {"do": "append on and on", "as": who}:
                for number in itertools.count():
                    say([who, number, await self.append([f"{who} {number}"], key=f"{who} {number}")])
            case {"do": "fork", "to": name}:
                return (await self.sessions.fork("s", "t", name, from_message=1)).sequence
            case {"do": "fork on and on"}:
                for number in itertools.count():
                    await self.sessions.fork("s", "t", f"f{number}")
                    await self.sessions.append("s", f"f{number}", [Message("user", [f"{number}"])], key="own")
                    say(number)
            case {"do": "hold"}:
                store = SqliteStore(self.place[0]).tenant(TENANT)
                await store.acquire(ThreadName("s", "t").run_id)
            case _:
                raise AssertionError(order)
        return None

    async def append(self, texts: list[str], **how: Any) -> int:
        messages = [Message("user", [text]) for text in texts]
        return await self.sessions.append("s", "t", messages, **how)


def _opened(kind: str, place: str, schema: str = "") -> SessionStore:
    match kind:
        case "file":
            return FileSessionStore(place)
        case "sqlite":
            return SqliteSessionStore(place)
        case _:
            return PostgresSessionStore(place, schema=schema)


def say(value: object) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def answer(program: Program, order: dict[str, Any]) -> object:
    try:
        # An event loop for each order: the store has to outlive it.
        return {"ok": asyncio.run(program.do(order))}
    except ThreadError as error:
        return {"error": type(error).__name__}


def main() -> None:
    program = Program(*sys.argv[1:])
    say("ready")
    for line in sys.stdin:
        say(answer(program, json.loads(line)))


if __name__ == "__main__":
    main()
