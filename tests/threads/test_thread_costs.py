"""Reading a part of a thread costs that part."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.threads.test_session_stores import said

from perdure.storage import MemoryStore
from perdure.threads import SessionStore

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure.records import EventBatch


class Counting:
    """A store that counts the batches of events that were read from it."""

    def __init__(self, store: Any, read: list[int]) -> None:
        self._store = store
        self._read = read

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def tenant(self, name: str) -> Counting:
        """The view of a tenant, which counts with this one."""
        return Counting(self._store.tenant(name), self._read)

    async def events(self, run_id: str, *, after: int = 0, limit: int = 1000) -> Sequence[EventBatch]:
        """What the store says."""
        found: Sequence[EventBatch] = await self._store.events(run_id, after=after, limit=limit)
        self._read.append(len(found))
        return found


async def test_the_first_message_of_a_long_thread_is_read_without_the_others() -> None:
    read: list[int] = []
    store: Any = Counting(MemoryStore(), read)
    sessions = SessionStore(store)
    for number in range(50):
        await sessions.append("s", "t", said(str(number)))
    fork = await sessions.fork("s", "t", "u", from_message=2)
    read.clear()
    assert await sessions.messages("s", "t", until=1) == said("0")
    assert [event.sequence for event in await sessions.read("s", "t", after=48)] == [49, 50]
    assert fork.sequence == 2
    assert await sessions.messages("s", "u") == said("0", "1")
    assert sum(read) == 1 + 2 + 2
