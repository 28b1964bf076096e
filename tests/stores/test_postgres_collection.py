"""The collection of parts in PostgreSQL: beside commits it removes nothing that is needed, and nobody waits for it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING

import pytest
from tests.postgres_server import needs_postgres, shared_server
from typing_extensions import override

from perdure.records import LatestOnly, Retention
from perdure.storage import PostgresStore
from perdure.storage.postgres.database import PostgresDatabase
from perdure.testing.stores import ManualClock, RunDriver, raw_blob, text_blob

if TYPE_CHECKING:
    from collections.abc import Generator

    from perdure.storage import Sync

pytestmark = needs_postgres

LEAF = raw_blob(b"leaf of a")
A, B = text_blob("a", LEAF), text_blob("b")


class Stopping(PostgresDatabase):
    """Stops a collection before it removes anything, until it may go on."""

    has_stopped = threading.Event()
    may_go_on = threading.Event()

    @override
    @contextlib.contextmanager
    def transaction(
        self, sync: Sync = "as chosen", *, alone: bool = False, lazy: bool = False, pipelined: bool = False
    ) -> Generator[None]:
        # Only a collection writes so.
        if sync == "later" and not alone:
            self.has_stopped.set()
            assert self.may_go_on.wait(30)
        with super().transaction(sync, alone=alone, lazy=lazy, pipelined=pipelined):
            yield


@pytest.fixture
def stopping() -> type[Stopping]:
    class Fresh(Stopping):
        has_stopped = threading.Event()
        may_go_on = threading.Event()

    return Fresh


async def test_a_value_that_comes_back_while_it_is_collected_stays(stopping: type[Stopping]) -> None:
    dsn, schema = shared_server().dsn, shared_server().fresh_schema()
    retention = Retention(checkpoints=LatestOnly())
    store = PostgresStore(dsn, schema=schema, retention=retention)
    run = await RunDriver.start(store, ManualClock(), "r")
    forgotten = text_blob("never again")
    for value, *others in ((A, LEAF), (forgotten,), (B,)):
        await run.commit({"a": value}, *others)
    collector = PostgresStore(dsn, schema=schema, database=stopping)
    collection = asyncio.create_task(collector.collect())
    assert await asyncio.to_thread(stopping.has_stopped.wait, 30)
    for _ in range(3):
        await run.commit({"a": B})
    await run.commit({"a": A}, LEAF)
    stopping.may_go_on.set()
    assert await collection == 1
    assert (await store.blobs([A.hash, forgotten.hash])).keys() == {A.hash, LEAF.hash}
    assert await store.collect() == 1
    assert (await store.blobs([A.hash, B.hash])).keys() == {A.hash, LEAF.hash}
    await collector.close()
    await store.close()
