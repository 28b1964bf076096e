"""Stores with one fault each, which the resume suite must find. Run as a script."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from tests.crash.servers import with_postgres

from perdure import (
    Executor,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowException,
    WorkflowExecutor,
    executor,
    handler,
    response_handler,
)
from perdure.storage import FileStore, StoreStorage
from perdure.testing.resume import SHIPPED, Kind, Subject, effect, main, returned

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from perdure import Workflow
    from perdure.records import Archive, Command, Commit, JournalRecord, Lease, Manifest, RunRecord
    from perdure.storage import Store
    from perdure.testing.resume import Chance


ACTIVATION = re.compile(r"(^|/)\d+\.\d+/[^/]+#\d+$")
"""The key of an activation's record: in which turn and superstep, and which call of which executor."""

TOP = 2


class Faulty:
    """A store like the one that it wraps, but for one fault."""

    def __init__(self, inner: FileStore) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class Forgetful(Faulty):
    """Knows nothing of what a superstep has finished before it is committed."""

    async def journal(self, run_id: str) -> Sequence[JournalRecord]:
        del run_id
        return ()


class Repeating(Faulty):
    """Loses the records of activations that have finished, and keeps all others."""

    async def journal(self, run_id: str) -> Sequence[JournalRecord]:
        return [record for record in await self.inner.journal(run_id) if not ACTIVATION.search(record.key)]


class Childless(Faulty):
    """Loses how far sub-workflows have come, and keeps all other records."""

    async def journal(self, run_id: str) -> Sequence[JournalRecord]:
        return [record for record in await self.inner.journal(run_id) if "/child" not in record.key]


class Rash(Faulty):
    """Commits without a look at what has come meanwhile."""

    async def commit(self, lease: Lease, commit: Commit) -> int:
        return await self.inner.commit(lease, replace(commit, taken=()))


class Gullible(Faulty):
    """Believes that every answer is the first."""

    async def post(self, run_id: str, command: Command) -> Command:
        return await self.inner.post(run_id, replace(command, id=f"{command.id}-{os.getpid()}"))


class Blind(Faulty):
    """Takes a run that it can't read for one that was never begun."""

    async def run(self, run_id: str) -> RunRecord | None:
        return await self.inner.run(run_id) if await self.manifests(run_id=run_id) else None

    async def manifests(self, **given: Any) -> Sequence[Manifest]:
        try:
            return await self.inner.manifests(**given)
        except WorkflowException:
            return ()


class Careless(Faulty):
    """Leaves behind what a superstep has finished when a run is exported."""

    async def archive(self, run_id: str) -> Archive:
        return replace(await self.inner.archive(run_id), journal=())


class Plain(Faulty):
    """Has nothing but the port of a store."""

    def __getattr__(self, name: str) -> Any:
        if name in {"archive", "close_run", "restore", "remove", "tenant"}:
            raise AttributeError(name)
        return super().__getattr__(name)


def opening(fault: type[Faulty]) -> Callable[[Path], StoreStorage]:
    """Opens a storage with a fault."""
    return lambda directory: StoreStorage(cast("Store", fault(FileStore(directory))))


def elsewhere(directory: Path) -> StoreStorage:
    """A storage whose files are not where the suite looks for them."""
    return StoreStorage(FileStore(directory.with_name("elsewhere")))


def flipped(directory: Path, chance: Chance) -> str | None:
    """Damage one of the checkpoints that are elsewhere."""
    path = chance.one_of(sorted(directory.with_name("elsewhere").glob("*.json")))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    return f"{path.name} was damaged"


class Asker(Executor):
    """Does something, asks, and does something else."""

    @handler
    async def ask(self, text: str, ctx: WorkflowContext) -> None:
        for name in ("one", "two"):
            await ctx.step(name, effect, name)
            returned(name)
        await ctx.request_info(text, int)

    @response_handler
    async def tell(self, text: str, number: int, ctx: WorkflowContext[int, str]) -> None:
        effect("three", ctx)
        await ctx.yield_output(f"{text} {number}")
        await ctx.send_message(0)


class Hand(Executor):
    """Does one thing."""

    @handler
    async def work(self, _: int, ctx: WorkflowContext[Any, str]) -> None:
        effect(self.id, ctx)
        await ctx.yield_output(f"{self.id} is done")


class Ladder(Executor):
    """Does one thing in each of three supersteps, and then waits for the disk."""

    @handler
    async def climb(self, rung: int, ctx: WorkflowContext[int, str]) -> None:
        effect(f"rung {rung}", ctx)
        await ctx.step("rest", str)
        await (ctx.send_message(rung + 1) if rung < TOP else ctx.yield_output("up"))


def asking() -> Workflow:
    """A small workflow that has done nothing wrong: it asks, then two hands and a sub-workflow work side by side."""
    asker, ladder = Asker("asker"), Ladder("ladder")
    inside = WorkflowBuilder(name="inside", start_executor=ladder).add_edge(ladder, ladder).build()
    sub = WorkflowExecutor(inside, "sub", allow_direct_output=True)
    builder = WorkflowBuilder(name="asking", start_executor=asker)
    return builder.add_fan_out_edges(asker, [Hand("left hand"), Hand("right hand"), sub]).build()


@executor(id="moody")
async def moody(text: str, ctx: WorkflowContext[Any, str]) -> None:
    await ctx.yield_output(f"{text} in process {os.getpid()}")


def moody_workflow() -> Workflow:
    """A workflow whose outputs depend on the life."""
    return WorkflowBuilder(name="moody", start_executor=moody).build()


FAULTS = {
    "forgetful": opening(Forgetful),
    "repeating": opening(Repeating),
    "childless": opening(Childless),
    "rash": opening(Rash),
    "gullible": opening(Gullible),
    "blind": opening(Blind),
    "careless": opening(Careless),
    "plain": opening(Plain),
    "elsewhere": elsewhere,
    "known": Kind(elsewhere, spoil=flipped),
}


def subject() -> Subject:
    """The workflow that asks, or the moody one, on stores with and without faults."""
    if os.environ.get("MOODY"):
        return Subject(build=moody_workflow, message="go")
    storages = with_postgres({**SHIPPED, **FAULTS})
    return Subject(build=asking, message="go", answer=lambda _: 1, rival=lambda _, number: number, storages=storages)


if __name__ == "__main__":
    main(subject())
