"""A process that holds claims under a lease, and does what could cost it the lease: a JSON order per line."""

from __future__ import annotations

import json
import os
import shutil
import sys
from typing import TYPE_CHECKING, Any

from child import Program, answer, say
from typing_extensions import override

from perdure.storage import FileStore, SqliteStore

if TYPE_CHECKING:
    from collections.abc import Callable


class Holder(Program):
    def __init__(self, kind: str, path: str, lease_seconds: float) -> None:
        super().__init__(kind, path)
        opened: Callable[..., FileStore | SqliteStore] = SqliteStore if kind == "sqlite" else FileStore
        self.store = opened(path, lease_seconds=lease_seconds)
        self._arguments = (kind, path, lease_seconds)

    @override
    async def do(self, order: dict[str, Any]) -> object:
        match order:
            case {"do": "block the event loop"}:
                say("blocked")
                # Nothing else runs in this loop until a line comes.
                return sys.stdin.readline()
            case {"do": "copy", "directory": directory, "to": target}:
                shutil.copytree(directory, target)
                return None
            case {"do": "open and close another storage", "run": run_id}:
                other = Holder(*self._arguments)
                await other.acquire(run_id, takeover=False)
                await other.runs[run_id].commit()
                await other.runs[run_id].release()
                await other.store.close()
                return None
            case {"do": "close"}:
                await self.store.close()
                return None
            case _:
                return await super().do(order)


def hold_in_a_fork(holder: Holder, run_id: str) -> object:
    """What a forked child, which lives as long as this process, gets when it claims a run."""
    reader, writer = os.pipe()
    end, _kept = os.pipe()
    if os.fork() == 0:
        os.close(_kept)
        os.write(writer, json.dumps(answer(holder, {"do": "claim", "run": run_id})).encode() + b"\n")
        os.read(end, 1)
        os._exit(0)
    with os.fdopen(reader) as stream:
        return json.loads(stream.readline())


def main() -> None:
    holder = Holder(sys.argv[1], sys.argv[2], float(sys.argv[3]))
    # Not by iteration, which reads ahead of what is blocked.
    while line := sys.stdin.readline():
        order = json.loads(line)
        if order["do"] == "hold in a fork":
            say(hold_in_a_fork(holder, order["run"]))
        else:
            say(answer(holder, order))


if __name__ == "__main__":
    main()
