"""What a superstep has noted is written before anything follows it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from typing_extensions import override

from perdure.checkpoint.codec import Codec
from perdure.checkpoint.trust import Trust
from perdure.runtime.journal import RunJournal
from perdure.stores.memory import MemoryStore
from perdure.testing.stores import new_run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure.records import Claim, JournalRecord


class SlowStore(MemoryStore):
    """Records nothing before it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.may_record = asyncio.Event()
        self.recorded: list[str] = []

    @override
    async def record(
        self, claim: Claim, *, head: str | None, records: Sequence[JournalRecord], durable: bool = True
    ) -> None:
        await self.may_record.wait()
        self.recorded.extend(record.key for record in records)


async def test_waiting_for_what_was_noted_goes_on_however_often_it_is_interrupted() -> None:
    store, codec = SlowStore(), Codec(Trust.of())
    claim = await store.claim("r", create=new_run("r"))
    journal = RunJournal(store, claim, codec)
    journal.note("done", lambda: codec.encode(1, path="x"))
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
