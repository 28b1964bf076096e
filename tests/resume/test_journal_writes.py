"""Journal records are written before anything that follows them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from typing_extensions import override

from perdure.codec import Codec, Trust
from perdure.engine.journal import Journal, JournalLog
from perdure.storage import MemoryStore
from perdure.testing.stores import new_run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure.records import JournalRecord, Lease


class SlowStore(MemoryStore):
    """Records nothing before it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.may_record = asyncio.Event()
        self.recorded: list[str] = []
        self.writes = 0

    @override
    async def record(
        self, lease: Lease, *, head: str | None, records: Sequence[JournalRecord], durable: bool = True
    ) -> None:
        self.writes += 1
        await self.may_record.wait()
        self.recorded.extend(record.key for record in records)


async def test_waiting_for_what_was_noted_goes_on_however_often_it_is_interrupted() -> None:
    store, codec = SlowStore(), Codec(Trust.of())
    lease = await store.acquire("r", create=new_run("r"))
    log = JournalLog(store, lease, codec)
    journal = Journal(log)
    journal.record_soon("done", lambda: codec.encode(1, path="x"))
    waiting = asyncio.ensure_future(journal.settle())
    for _ in range(3):
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.sleep(0)
        assert not waiting.done()
    store.may_record.set()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert store.recorded == ["done"]
    await store.close()


async def test_what_many_have_noted_until_the_store_has_time_is_one_write() -> None:
    store, codec = SlowStore(), Codec(Trust.of())
    lease = await store.acquire("r", create=new_run("r"))
    log = JournalLog(store, lease, codec)
    journal = Journal(log)
    for number in range(100):
        journal.record_soon(f"first {number}", lambda: codec.encode(1, path="x"))
    await asyncio.sleep(0)
    for number in range(100):
        journal.record_soon(f"second {number}", lambda: codec.encode(1, path="x"))
        await asyncio.sleep(0)
    assert store.writes == 1
    store.may_record.set()
    await journal.settle()
    assert store.writes == 2
    assert store.recorded == [f"{which} {number}" for which in ("first", "second") for number in range(100)]
    await store.close()


async def test_what_was_noted_before_a_commit_is_void_after_it() -> None:
    store, codec = SlowStore(), Codec(Trust.of())
    lease = await store.acquire("r", create=new_run("r"))
    log = JournalLog(store, lease, codec)
    journal = Journal(log)
    journal.record_soon("void", lambda: codec.encode(1, path="x"))
    log.restart_at("r@1", None)
    journal.record_soon("done", lambda: codec.encode(1, path="x"))
    store.may_record.set()
    await journal.settle()
    assert store.recorded == ["done"]
    assert list(log.records) == ["done"]
    await store.close()
