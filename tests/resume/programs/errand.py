"""A program with its own types that starts a run, or goes on with one. It writes what happened as JSON."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Never

from typing_extensions import override

from perdure import (
    Executor,
    FileCheckpointStorage,
    SqliteCheckpointStorage,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    handler,
    response_handler,
)


class Stage(Enum):
    """How far an errand is."""

    BEGUN = "begun"
    DONE = "done"


@dataclass
class Errand:
    """A message of a type that only this program has."""

    what: str
    stages: list[Stage] = field(default_factory=list[Stage])


@dataclass
class Permission:
    """What somebody outside is asked."""

    errand: Errand


class Runner(Executor):
    """Begins errands, asks for permission, and remembers."""

    def __init__(self) -> None:
        super().__init__("runner")
        self.done: list[Errand] = []

    @handler
    async def begin(self, what: str, ctx: WorkflowContext[Errand]) -> None:
        ctx.set_state("first", Errand(what))
        await ctx.send_message(Errand(what, [Stage.BEGUN]))

    @handler
    async def ask(self, errand: Errand, ctx: WorkflowContext[Never, str]) -> None:
        self.done.append(errand)
        await ctx.request_info(Permission(errand), bool)

    @response_handler
    async def go(self, permission: Permission, granted: bool, ctx: WorkflowContext[Never, str]) -> None:  # noqa: FBT001
        first = ctx.get_state("first")
        assert isinstance(first, Errand)
        self.done[0].stages.append(Stage.DONE)
        stages = "+".join(stage.value for stage in self.done[0].stages)
        await ctx.yield_output(f"{permission.errand.what} {granted} {stages} {first.what}")

    @override
    async def on_checkpoint_save(self) -> dict[str, Any]:
        return {"done": self.done}

    @override
    async def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        self.done = state["done"]


def build(kind: str, place: str, name: str | None = None) -> Workflow:
    """The workflow on a storage on disk, with a name or without."""
    storage = FileCheckpointStorage(place) if kind == "file" else SqliteCheckpointStorage(place)
    runner = Runner()
    builder = WorkflowBuilder(start_executor=runner, name=name, checkpoint_storage=storage)
    return builder.add_edge(runner, runner).build()


async def start(workflow: Workflow) -> None:
    """Run until permission is asked for."""
    await workflow.run("post", run_id="errand")


async def die(workflow: Workflow) -> None:
    """Run until the second checkpoint and be killed there."""
    commits = 0
    async for event in workflow.run("post", run_id="errand", stream=True):
        commits += event.type == "checkpoint"
        if commits == 2:
            os.kill(os.getpid(), signal.SIGKILL)


async def hold(workflow: Workflow) -> None:
    """Run until the first checkpoint, and stay there until the input ends."""
    async for event in workflow.run("post", run_id="errand", stream=True):
        if event.type == "checkpoint":
            sys.stdout.write("held\n")
            sys.stdout.flush()
            sys.stdin.read()
            break


async def answer(workflow: Workflow) -> None:
    """Find the newest checkpoint, answer what is asked there, and write the outcome."""
    storage = workflow.checkpoint_storage
    assert storage is not None
    head = await storage.get_latest(workflow_name=workflow.name)
    assert head is not None
    if not head.pending_request_info_events:
        await workflow.run(checkpoint_id=head.checkpoint_id)
        head = await storage.get_latest(workflow_name=workflow.name)
        assert head is not None
    (request_id,) = head.pending_request_info_events
    result = await build(*sys.argv[2:]).run(checkpoint_id=head.checkpoint_id, responses={request_id: True})
    sys.stdout.write(json.dumps({"outputs": result.get_outputs(), "run_id": head.run_id}))


def main() -> None:
    """Do what the command line says."""
    command = {"start": start, "die": die, "hold": hold, "answer": answer}[sys.argv[1]]
    asyncio.run(command(build(*sys.argv[2:])))


if __name__ == "__main__":
    main()
