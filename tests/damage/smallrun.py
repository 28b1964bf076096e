"""A small run that stopped in the middle of a superstep, and all that can be seen of it."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Never, NoReturn

import pytest
from tests.soak import IS_SOAK
from typing_extensions import override

from perdure import Executor, Workflow, WorkflowBuilder, WorkflowContext, handler
from perdure.errors import RunNotFoundError, WorkflowException
from perdure.records import Command, NewEvents
from perdure.testing.stores import ManualClock, RunDriver

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from perdure.records import EventBatch, JournalRecord, Manifest, RunRecord
    from perdure.storage import StoreStorage

LIMIT_SECONDS = 7200 if IS_SOAK else 120
RUN_ID = "errand"
TOLD_RUN_ID = "errand-told"
WORKFLOW = "errands"
_SHORT = 13


class NotYetError(Exception):
    """What ends the first life of the run."""


class Split(Executor):
    """Sends an order to all, and remembers it."""

    def __init__(self) -> None:
        super().__init__("split")
        self.orders: list[str] = []

    @handler
    async def split(self, order: str, ctx: WorkflowContext[str]) -> None:
        self.orders.append(order)
        ctx.set_state("order", order)
        await ctx.send_message(order)

    @override
    async def on_checkpoint_save(self) -> dict[str, Any]:
        return {"orders": self.orders}

    @override
    async def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        self.orders = state["orders"]


class Errand(Executor):
    """Does its part of the order, once."""

    def __init__(self, id: str, did: list[str], *, is_closed: bool) -> None:  # noqa: A002
        super().__init__(id)
        self._did = did
        self._is_closed = is_closed

    @handler
    async def go(self, order: str, ctx: WorkflowContext[Never, str]) -> None:
        if self._is_closed:
            raise NotYetError(self.id)
        self._did.append(self.id)
        ctx.set_state(self.id, order)
        await ctx.yield_output(f"{self.id}: {order}")


def errands(storage: StoreStorage, did: list[str], *, is_shop_closed: bool = False) -> Workflow:
    """Three errands side by side, of which the last can't be done while the shop is closed."""
    split = Split()
    places = [Errand(name, did, is_closed=is_shop_closed and name == "shop") for name in ("bank", "post", "shop")]
    return (
        WorkflowBuilder(start_executor=split, name=WORKFLOW, checkpoint_storage=storage)
        .add_fan_out_edges(split, places)
        .build()
    )


async def write_run(storage: StoreStorage) -> None:
    """A run of two supersteps: one is committed, and of the other two activations are in the journal."""
    did: list[str] = []
    with pytest.raises(NotYetError):
        await errands(storage, did, is_shop_closed=True).run("bread", run_id=RUN_ID)
    assert did == ["bank", "post"]
    assert len(await storage.store.journal(RUN_ID)) == 2


async def write_told_run(storage: StoreStorage) -> None:
    """A run with events, and with commands that wait. Its only part is one of the other run's."""
    order = (await storage.store.manifests(run_id=RUN_ID))[-1].toc["state//order"]
    run = await RunDriver.start(storage.store, ManualClock(), TOLD_RUN_ID)
    for events in (NewEvents(2, b"one, two"), NewEvents(1, b"three")):
        commit = run.next_commit(events=events)
        await run.write(replace(commit, manifest=replace(commit.manifest, toc={"order": order})))
    await run.post(Command("first", "errand", b"do"), Command("then", "errand", b"too", expects=("order", order)))
    await run.release()


@dataclass(frozen=True)
class Reading:
    """All that can be read of the two runs without going on with them."""

    runs: Sequence[RunRecord]
    head: dict[str, Any]
    latest: dict[str, Any] | None
    history: Sequence[dict[str, Any]]
    manifests: Sequence[Manifest]
    journal: Sequence[JournalRecord]
    inbox: Sequence[Command]
    events: Sequence[EventBatch]
    told: list[str]

    def differing(self, other: Reading) -> list[str]:
        """The names of what is not the same in both."""
        return [each.name for each in fields(self) if getattr(self, each.name) != getattr(other, each.name)]


async def read_runs(storage: StoreStorage) -> Reading:
    """The runs as the storage gives them, each value decoded. Raises what a reader would be told."""
    store = storage.store
    runs = [await store.run(run_id) or unknown(run_id) for run_id in (RUN_ID, TOLD_RUN_ID)]
    latest = await storage.get_latest(workflow_name=WORKFLOW)
    return Reading(
        runs=[replace(run, owner=None, halt=None, attempts=0) for run in runs],
        head=(await storage.load(runs[0].head or "")).to_dict(),
        latest=latest and latest.to_dict(),
        history=[each.to_dict() for each in await storage.list_checkpoints(run_id=RUN_ID)],
        manifests=list(await store.manifests(run_id=TOLD_RUN_ID)),
        journal=[each for run in runs for each in await store.journal(run.run_id)],
        inbox=[each for run in runs for each in await store.inbox(run.run_id)],
        events=[each for run in runs for each in await store.events(run.run_id)],
        told=[repr(event) async for event in storage.events(RUN_ID)],
    )


def unknown(run_id: str) -> NoReturn:
    """What going on with a run says that is not there."""
    raise RunNotFoundError(run_id)


@dataclass(frozen=True)
class Ending:
    """How the run ended when it was resumed."""

    outputs: Sequence[object]
    did: Sequence[str]


async def resume_run(storage: StoreStorage) -> Ending:
    """Go on to the end."""
    did: list[str] = []
    result = await errands(storage, did).run(run_id=RUN_ID)
    return Ending(result.get_outputs(), did)


async def noticed(storage: StoreStorage, undamaged: Reading) -> WorkflowException | None:
    """What whoever reads the runs, and then goes on with one, is told; None if all is as it ever was."""
    try:
        differing = undamaged.differing(await read_runs(storage))
        assert not differing, f"other than was written: {differing}"
        assert await resume_run(storage) == UNDISTURBED
    except WorkflowException as error:
        return error
    return None


UNDISTURBED = Ending(["bank: bread", "post: bread", "shop: bread"], ["shop"])


def flips(data: bytes, *, stride: int = 1) -> Iterator[bytes]:
    """The data with one byte changed, each of them in turn.

    If it is short, all bits one by one, or two of each byte if this is not the long form; else one of them.
    """
    bits = range(0, 8, 1 if IS_SOAK else 4) if len(data) <= _SHORT else range(1)
    for place in range(0, len(data), stride):
        for bit in bits:
            yield data[:place] + bytes([data[place] ^ (1 << (place + bit) % 8)]) + data[place + 1 :]


def cuts(data: bytes, *, stride: int = 1) -> Iterator[bytes]:
    """The data cut off at each length."""
    for length in range(0, len(data), stride):
        yield data[:length]


def stride(size: int, *, most: int) -> int:
    """How far apart places have to be, so that they are far fewer than that; all of them in the long form."""
    apart = -(-size // most)
    return 1 if IS_SOAK or apart <= 1 else 4 * apart
