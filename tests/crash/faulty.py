"""Storages and answers that break a promise each, so that the resume suite has something to find. Run as a script."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from perdure import Executor, WorkflowBuilder, WorkflowContext, WorkflowException, executor, handler, response_handler
from perdure.storages.shipped import StoreStorage
from perdure.stores.file import FileStore
from perdure.testing.resume import Subject, effect, main, returned
from perdure.testing.resume.subject import SHIPPED

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from perdure import Workflow
    from perdure.records import Command, JournalRecord, Manifest, RunRecord
    from perdure.stores.port import Store


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


def opening(fault: type[Faulty]) -> Callable[[Path], StoreStorage]:
    """Opens a storage with a fault."""
    return lambda directory: StoreStorage(cast("Store", fault(FileStore(directory))))


class Asker(Executor):
    """Does something, asks, and does something else."""

    @handler
    async def ask(self, text: str, ctx: WorkflowContext) -> None:
        for name in ("one", "two"):
            await ctx.step(name, effect, name)
            returned(name)
        await ctx.request_info(text, int)

    @response_handler
    async def tell(self, text: str, number: int, ctx: WorkflowContext[Any, str]) -> None:
        effect("three")
        await ctx.yield_output(f"{text} {number}")


def asking() -> Workflow:
    """A small workflow that has done nothing wrong."""
    return WorkflowBuilder(name="asking", start_executor=Asker("asker")).build()


@executor(id="moody")
async def moody(text: str, ctx: WorkflowContext[Any, str]) -> None:
    await ctx.yield_output(f"{text} in process {os.getpid()}")


def moody_workflow() -> Workflow:
    """A workflow whose outputs depend on the life."""
    return WorkflowBuilder(name="moody", start_executor=moody).build()


FAULTS = {"forgetful": opening(Forgetful), "gullible": opening(Gullible), "blind": opening(Blind)}

subject = Subject(
    build=asking, message="go", answer=lambda _: 1, rival=lambda _, number: number, storages={**SHIPPED, **FAULTS}
)
if os.environ.get("MOODY"):
    subject = Subject(build=moody_workflow, message="go")

if __name__ == "__main__":
    main(subject)
