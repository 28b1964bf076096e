"""What going on with a run asks of its store: nothing twice."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, cast

from shapes import counting
from tests.inbox.meddling import meddled

from perdure.storages.shipped import StoreStorage
from perdure.stores.port import is_host_store

if TYPE_CHECKING:
    from conftest import Storage
    from perdure.stores.port import Store

GOES_ON = ["parts", "journal", "inbox", "commit", "inbox", "release"]
"""What is asked when the run is claimed and its head is read, if one superstep is left."""


class Asked:
    """A store that notes what it is asked for."""

    def __init__(self, inner: Store) -> None:
        self._inner = inner
        self.names: list[str] = []

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if inspect.iscoroutinefunction(found):
            self.names.append(name)
        return found


async def stopped(storage: Storage, first: int, *, commits: int) -> str:
    """Run "r", given a number and dropped after so many commits; its head."""
    stream = counting(storage).run(first, run_id="r", stream=True)
    seen = 0
    async for event in stream:
        seen += event.type == "checkpoint"
        if seen == commits:
            break
    await stream.aclose()
    head = await storage.get_latest(workflow_name="counting")
    assert head is not None
    return head.checkpoint_id


async def asked_by(storage: Storage, *, run_id: str | None = None, checkpoint_id: str | None = None) -> list[str]:
    """What a store is asked for by one that goes on with the last superstep of a run."""
    asked = Asked(storage.store)
    resumed = await counting(StoreStorage(cast("Store", asked))).run(run_id=run_id, checkpoint_id=checkpoint_id)
    assert resumed.get_outputs() == [[1, 2, 3]]
    return asked.names


async def test_going_on_from_a_checkpoint_reads_nothing_twice(storage: Storage) -> None:
    head = await stopped(storage, 1, commits=3)
    assert await asked_by(storage, checkpoint_id=head) == ["manifest", "run", "claim", *GOES_ON]


async def test_going_on_with_a_run_reads_nothing_twice(storage: Storage) -> None:
    await stopped(storage, 1, commits=3)
    assert await asked_by(storage, run_id="r") == ["run", "claim", "manifest", *GOES_ON]


async def test_a_checkpoint_that_was_read_is_not_taken_for_one_of_its_id_that_was_written_since(
    storage: Storage,
) -> None:
    head = await stopped(storage, 1, commits=2)

    async def begin_anew() -> None:
        assert is_host_store(storage.store)
        await storage.store.remove("r")
        assert await stopped(storage, 2, commits=2) == head

    resumed = await counting(meddled(storage, run=begin_anew)).run(checkpoint_id=head)
    assert resumed.get_outputs() == [[2, 3]]
