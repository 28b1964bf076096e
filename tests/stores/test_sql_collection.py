"""The collection of parts in SQLite: beside commits, and killed at any point, it removes nothing that is needed."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sqlite3
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests import warm
from typing_extensions import override

from perdure.records import LatestOnly, Retention
from perdure.storage import SqliteDatabase, SqliteStore
from perdure.testing.stores import ManualClock, RunDriver, finished, raw_blob, text_blob

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from perdure.records import Blob
    from perdure.storage import Sync

COLLECTING = Path(__file__).with_name("collecting.py")
A, B = text_blob("a", raw_blob(b"leaf of a")), text_blob("b")
LEAF = raw_blob(b"leaf of a")


class Stopping(SqliteDatabase):
    """Stops the collection while it looks for parts, or before it removes any, until it may go on."""

    at = "looking"
    has_stopped = threading.Event()
    may_go_on = threading.Event()

    @override
    def execute(self, name: str, /, **parameters: object) -> sqlite3.Cursor:
        cursor = super().execute(name, **parameters)
        # It has begun to give its rows, and sees nothing of what comes later.
        if name == "unreachable" and self.at == "looking":
            self._stop()
        return cursor

    @override
    @contextlib.contextmanager
    def transaction(self, sync: Sync = "as chosen", *, alone: bool = False) -> Generator[None]:
        if self.at == "removing" and not alone and "collector" in threading.current_thread().name:
            self._stop()
        with super().transaction(sync, alone=alone):
            yield

    def _stop(self) -> None:
        self.has_stopped.set()
        assert self.may_go_on.wait(30)


@pytest.fixture
def stopping() -> type[Stopping]:
    class Fresh(Stopping):
        has_stopped = threading.Event()
        may_go_on = threading.Event()

    return Fresh


def hashes(path: Path) -> set[str]:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return {row[0] for row in connection.execute("SELECT hash FROM parts")}


@pytest.mark.parametrize("at", ["looking", "removing"])
async def test_a_value_that_comes_back_while_it_is_collected_stays(
    tmp_path: Path, stopping: type[Stopping], at: str
) -> None:
    path = tmp_path / "runs.db"
    stopping.at = at
    store = SqliteStore(path, retention=Retention(checkpoints=LatestOnly()), database=stopping)
    run = await RunDriver.start(store, ManualClock(), "r")
    forgotten = text_blob("never again")
    for value, *others in ((A, LEAF), (forgotten,), (B,)):
        await run.commit({"a": value}, *others)
    collection = asyncio.create_task(store.collect())
    assert await asyncio.to_thread(stopping.has_stopped.wait, 30)
    # Nobody waits for the collection, which can't go on.
    await run.note(finished("x", "", text_blob("noted")))
    for _ in range(3):
        await run.commit({"a": B})
    await run.commit({"a": A}, LEAF)
    stopping.may_go_on.set()
    assert await collection == 1
    assert (await store.blobs([A.hash])).keys() == {A.hash, LEAF.hash}
    assert forgotten.hash not in hashes(path)
    # What was forgotten meanwhile is for the next one.
    assert await store.collect() == 2
    assert hashes(path) == {A.hash, LEAF.hash}
    await store.close()


async def test_a_collection_that_nobody_asked_for_holds_up_no_commit(tmp_path: Path, stopping: type[Stopping]) -> None:
    store = SqliteStore(tmp_path / "runs.db", retention=Retention(checkpoints=LatestOnly()), database=stopping)
    run = await RunDriver.start(store, ManualClock(), "r")
    number = 0
    while not stopping.has_stopped.is_set():
        await run.commit({"a": text_blob(f"{number}")})
        number += 1
    for _ in range(10):
        await run.commit({"a": text_blob("while it lasts")})
    assert number >= 200
    stopping.may_go_on.set()
    # Closing waits for it.
    await store.close()
    assert len(hashes(store.path)) < number
    await store.close()


def started(path: Path, *, last: int) -> warm.Process:
    return warm.start(str(COLLECTING), str(path), str(last))


async def test_processes_that_are_killed_while_they_collect_lose_nothing(quick_path: Path) -> None:
    path = quick_path / "runs.db"
    store = SqliteStore(path, retention=Retention(checkpoints=LatestOnly()), durability="os")
    run = await RunDriver.start(store, ManualClock(), "r")
    values: Sequence[Blob] = [text_blob(f"value {number}") for number in range(450)]
    await run.commit({f"{number}": value for number, value in enumerate(values)})
    await run.commit()
    children = [started(path, last=last) for last in range(1, 10)]
    number = 0
    while any(child.poll() is None for child in children):
        # Each value comes and goes, and comes again.
        chosen = {f"{step}": values[(7 * number + step) % len(values)] for step in range(5)}
        await run.commit(chosen)
        number += 1
        await asyncio.sleep(0)
    ends = [child.wait() for child in children]
    assert ends.count(-signal.SIGKILL) >= len(children) // 2
    (manifest,) = await store.manifests(run_id="r")
    assert (await store.blobs(manifest.roots)).keys() == set(manifest.roots)
    await store.collect()
    assert hashes(path) == set(manifest.roots)
    await store.close()
