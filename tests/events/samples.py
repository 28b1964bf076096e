"""Values, and a run that emits them, for the tests of the event log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import perdure  # noqa: F401 # pyright: ignore[reportUnusedImport] - makes its own types known to the codec
from perdure.checkpoint import EventReader, event_batch
from perdure.codec import Codec, CodedValues, Trust
from perdure.kernel import PendingEvent
from perdure.records import EventBatch, NewEvents
from perdure.testing.clock import ManualClock
from perdure.testing.stores import RunDriver

if TYPE_CHECKING:
    from collections.abc import AsyncIterable
    from typing import Self

    from perdure.events import WorkflowEvent
    from perdure.records import HeadStatus
    from perdure.storage import Store

LARGE = 30_000
"""More characters than stand in a document: they become a part."""


@dataclass(frozen=True)
class Cart:
    owner: str
    lines: list[str]


SHOP = Codec(Trust.of(allowed=[Cart]))
"""The codec of a program that knows carts."""

STRANGER = Codec(Trust.of())
"""The codec of one that does not."""

VALUES = CodedValues(SHOP)


def kept(value: object) -> object:
    """A value as an activation keeps it."""
    return VALUES.fix(value, "value")


def progress(*data: object) -> list[PendingEvent]:
    """An event of an executor's own for each."""
    return [PendingEvent("progress", kept(each), "worker") for each in data]


def batch_of(new: NewEvents | None, *, first: int = 1) -> EventBatch:
    """The batch that a store makes of the events of a commit."""
    assert new is not None
    return EventBatch("r", "r@0", first, new.count, new.data, new.refs)


def read_again(new: NewEvents | None, *, codec: Codec = SHOP, first: int = 1) -> list[WorkflowEvent[Any]]:
    """Events as they come back."""
    assert new is not None
    return EventReader(codec, batch_of(new, first=first), {blob.hash: blob.data for blob in new.blobs}).events()


def told_again(*told: PendingEvent, codec: Codec = SHOP) -> list[WorkflowEvent[Any]]:
    """Events that were written and read."""
    return read_again(event_batch(told, SHOP), codec=codec)


class Teller:
    """A run that tells what it is told to."""

    def __init__(self, run: RunDriver) -> None:
        self.run = run

    @classmethod
    async def start(cls, store: Store, run_id: str = "r", *, parent: str | None = None) -> Self:
        """A new run."""
        return cls(await RunDriver.start(store, ManualClock(), run_id, parent=parent))

    async def tell(self, *data: object, status: HeadStatus = "running") -> str:
        """A commit that tells an event for each; its id."""
        return await self.run.commit(events=event_batch(progress(*data), SHOP), status=status)


async def numbered(events: AsyncIterable[WorkflowEvent[Any]]) -> list[tuple[int | None, Any]]:
    """Of each event its number and its data."""
    return [(event.seq, event.data) async for event in events]
