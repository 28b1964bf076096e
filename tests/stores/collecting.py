"""A process that collects the parts of a SQLite file, and is killed in the middle of it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING

from typing_extensions import override

from perdure.storage import SqliteDatabase, SqliteStore

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Generator
    from pathlib import Path

    from perdure.storage import Sync

_INSTRUCTIONS = 40
"""So many of SQLite's instructions later it is over."""


class Mortal(SqliteDatabase):
    """Lets its process be killed in the middle of the n-th thing that the collection does."""

    def __init__(self, path: Path, *, last: int) -> None:
        super().__init__(path)
        self._left = last

    def _live_on(self) -> None:
        if "collector" in threading.current_thread().name:
            self._left -= 1
            if self._left == 0:
                self._connection.set_progress_handler(die, _INSTRUCTIONS)

    @override
    def execute(self, name: str, /, **parameters: object) -> sqlite3.Cursor:
        self._live_on()
        return super().execute(name, **parameters)

    @override
    @contextlib.contextmanager
    def transaction(self, sync: Sync = "as chosen", *, alone: bool = False) -> Generator[None]:
        self._live_on()
        with super().transaction(sync, alone=alone):
            yield


def die() -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


async def collect(path: str, last: int) -> None:
    store = SqliteStore(path, database=functools.partial(Mortal, last=last))
    await store.collect()
    await store.close()


if __name__ == "__main__":
    asyncio.run(collect(sys.argv[1], int(sys.argv[2])))
