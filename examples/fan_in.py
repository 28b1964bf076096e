"""Three readers work in parallel, and one summary gets all results, in a fixed order.

They take three, one and two supersteps. The results of the fast ones wait in the checkpoints: the run is interrupted
meanwhile, and nothing is lost.
"""

import asyncio
from dataclasses import dataclass

from perdure import Executor, InMemoryCheckpointStorage, Workflow, WorkflowBuilder, WorkflowContext, executor, handler


@dataclass(frozen=True)
class Reading:
    subject: str
    page: int


class Reader(Executor):
    def __init__(self, id: str, *, pages: int) -> None:  # noqa: A002 - the documented name
        super().__init__(id)
        self._pages = pages

    @handler
    async def read(self, reading: Reading, ctx: WorkflowContext[Reading | str]) -> None:
        # An edge carries what its target handles: a Reading comes back to this reader, a text goes to the summary.
        if reading.page < self._pages:
            await ctx.send_message(Reading(reading.subject, reading.page + 1))
        else:
            await ctx.send_message(f"the {self.id} reader on {reading.subject}")


@executor
async def library(subject: str, ctx: WorkflowContext[Reading]) -> None:
    await ctx.send_message(Reading(subject, page=1))


@executor
async def summary(findings: list[str], ctx: WorkflowContext[None, list[str]]) -> None:
    await ctx.yield_output(findings)


def build_workflow(storage: InMemoryCheckpointStorage) -> Workflow:
    readers = [Reader("slow", pages=3), Reader("fast", pages=1), Reader("steady", pages=2)]
    builder = WorkflowBuilder(start_executor=library, checkpoint_storage=storage, name="reading")
    builder.add_fan_out_edges(library, readers)
    builder.add_fan_in_edges(readers, summary)
    for reader in readers:
        builder.add_edge(reader, reader)
    return builder.build()


async def main() -> None:
    storage = InMemoryCheckpointStorage()
    async for event in build_workflow(storage).run("owls", stream=True):
        if event.type == "executor_completed":
            print(f"{event.executor_id} sends {event.data[0]}")
        elif event.type == "superstep_completed" and event.iteration == 3:
            print("-- interrupted: two findings wait for the third")
            break

    latest = await storage.get_latest(workflow_name="reading")
    assert latest is not None, "every superstep has left a checkpoint"
    result = await build_workflow(storage).run(checkpoint_id=latest.checkpoint_id)
    [findings] = result.get_outputs()
    print("the summary gets, in the order of its edges:", *findings, sep="\n  ")


if __name__ == "__main__":
    asyncio.run(main())
