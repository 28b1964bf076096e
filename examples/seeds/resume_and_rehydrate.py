"""Two ways back to a checkpoint: on the workflow that made it, and on one that has never run.

Shows: any checkpoint can be resumed from, not only the newest. Going on from an older one begins a new run beside the
first, whose history is never rewritten.
"""

import asyncio

from perdure import InMemoryCheckpointStorage, WorkflowBuilder, WorkflowContext, executor

checkpoint_storage = InMemoryCheckpointStorage()


@executor(id="start")
async def start_executor(text: str, ctx: WorkflowContext[str]) -> None:
    await ctx.send_message(text.strip())


@executor(id="b")
async def executor_b(text: str, ctx: WorkflowContext[str]) -> None:
    await ctx.send_message(text.capitalize())


@executor(id="c")
async def executor_c(text: str, ctx: WorkflowContext[str]) -> None:
    ctx.set_state("longest", max(text, ctx.get_state("longest", ""), key=len))


@executor(id="end")
async def end_executor(text: str, ctx: WorkflowContext[str, str]) -> None:
    await ctx.yield_output(f"{text}.")


async def main() -> None:
    # Build a workflow with checkpointing enabled.
    builder = WorkflowBuilder()
    builder.set_start_executor(start_executor)
    builder.add_edge(start_executor, executor_b)
    builder.add_edge(executor_b, executor_c)
    builder.add_edge(executor_b, end_executor)
    workflow = builder.with_checkpointing(checkpoint_storage).build()

    # Run the workflow: a second message on the same instance is the next turn of the same run.
    for text in ("  first things first  ", "  second thoughts  "):
        async for event in workflow.run_streaming(text):
            if event.type == "output":
                print("output:", event.data)

    # Access checkpoints from the storage.
    checkpoints = await checkpoint_storage.list_checkpoints()
    for number, checkpoint in enumerate(checkpoints, start=1):
        waiting = [message.data for sent in checkpoint.messages.values() for message in sent]
        print(f"checkpoint {number}: superstep {checkpoint.iteration_count}, waiting: {waiting}")

    # We want to resume from the 6th checkpoint: the second turn, after its first superstep.
    saved_checkpoint = checkpoints[5]
    async for event in workflow.run_stream_from_checkpoint(saved_checkpoint.checkpoint_id):
        if event.type == "output":
            print("resumed on the same instance:", event.data)

    builder = WorkflowBuilder()
    builder.set_start_executor(start_executor)
    builder.add_edge(start_executor, executor_b)
    builder.add_edge(executor_b, executor_c)
    builder.add_edge(executor_b, end_executor)
    # This workflow instance doesn't require checkpointing enabled.
    workflow = builder.build()

    async for event in workflow.run_stream_from_checkpoint(saved_checkpoint.checkpoint_id, checkpoint_storage):
        if event.type == "output":
            print("rehydrated in a new instance:", event.data)

    runs = {checkpoint.run_id for checkpoint in await checkpoint_storage.list_checkpoints()}
    untouched = await checkpoint_storage.list_checkpoints(run_id=saved_checkpoint.run_id)
    print(f"{len(runs)} runs: the first and two forks; the first still has its {len(untouched)} checkpoints")


if __name__ == "__main__":
    asyncio.run(main())
