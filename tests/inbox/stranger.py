"""A process that has the store and nothing else: no workflow, no types. It does one thing and tells how it went.

python -m tests.inbox.stranger sqlite PATH requests r
python -m tests.inbox.stranger file PATH respond r '{"q": "yes"}' ann
python -m tests.inbox.stranger file PATH send r '"hello"' listener
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sys
from typing import Any

from perdure import FileCheckpointStorage, SqliteCheckpointStorage
from perdure.errors import RequestError


async def main(kind: str, path: str, do: str, run_id: str, *rest: str) -> object:
    """What came of it."""
    open_ = SqliteCheckpointStorage if kind == "sqlite" else FileCheckpointStorage
    async with open_(path) as storage:
        match do, rest:
            case "requests", ():
                return [dataclasses.asdict(request) for request in await storage.requests(run_id)]
            case "respond", (responses, by):
                return await refusal(storage.respond(run_id, json.loads(responses), by=by))
            case "send", (message, target):
                return await storage.send(run_id, json.loads(message), target=target or None, by="a stranger")
            case _:
                raise ValueError(f"a stranger can't {do} {rest}")


async def refusal(work: Any) -> str | None:
    """What an answer was refused with, if it was."""
    try:
        await work
    except RequestError as error:
        return f"{type(error).__name__}: {error}"
    return None


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(main(*sys.argv[1:]))))
