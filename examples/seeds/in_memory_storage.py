"""A storage is given to a single run of a workflow that was built without one.

Shows: every superstep leaves a checkpoint, and one before the first holds the input.
"""

import asyncio

from perdure import InMemoryCheckpointStorage, WorkflowBuilder, WorkflowContext, executor


@executor
async def greet(name: str, ctx: WorkflowContext[str]) -> None:
    await ctx.send_message(f"Hello, {name}")


@executor
async def shout(text: str, ctx: WorkflowContext[str, str]) -> None:
    await ctx.yield_output(text.upper())


async def main() -> None:
    workflow = WorkflowBuilder(start_executor=greet).add_edge(greet, shout).build()
    checkpoint_storage = InMemoryCheckpointStorage()

    # Awaiting a stream gives the stream; the workflow runs as far as it is read.
    stream = await workflow.run("Ada", checkpoint_storage=checkpoint_storage, stream=True)
    print(*(await stream.get_final_response()).get_outputs())

    checkpoints = await checkpoint_storage.list_checkpoints(workflow_name=workflow.name)
    print(f"Saved {len(checkpoints)} in-memory checkpoints")


if __name__ == "__main__":
    asyncio.run(main())
