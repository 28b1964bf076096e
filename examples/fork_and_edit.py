"""Fork a finished run at an earlier checkpoint, with a change. The run itself does not change."""

import asyncio

from perdure import Edit, InMemoryCheckpointStorage, Workflow, WorkflowBuilder, WorkflowContext, executor


@executor
async def quote(euros: float, ctx: WorkflowContext[float]) -> None:
    ctx.set_state("discount", 0.1)
    await ctx.send_message(euros)


@executor
async def reduce(euros: float, ctx: WorkflowContext[float]) -> None:
    await ctx.send_message(euros * (1 - ctx.get_state("discount")))


@executor
async def invoice(euros: float, ctx: WorkflowContext[None, str]) -> None:
    await ctx.yield_output(f"{euros:.2f} euros")


def build_workflow(storage: InMemoryCheckpointStorage) -> Workflow:
    return (
        WorkflowBuilder(start_executor=quote, checkpoint_storage=storage, name="quote")
        .add_chain([quote, reduce, invoice])
        .build()
    )


async def main() -> None:
    run = build_workflow(InMemoryCheckpointStorage()).start(200.0)
    print("the run:              ", *(await run.result()).get_outputs())

    # After the first superstep the discount is known and not used yet.
    history = await run.checkpoints()
    quoted = next(checkpoint for checkpoint in history if checkpoint.iteration_count == 1)

    generous = await run.fork(quoted.checkpoint_id, edit=Edit(state={"discount": 0.5}))
    print("with half off:        ", *(await generous.result()).get_outputs())

    larger = await run.fork(quoted.checkpoint_id, edit=Edit(messages={"reduce": [1000.0]}))
    print("of another amount:    ", *(await larger.result()).get_outputs())

    # An edit is typed: a number can't become a text by mistake.
    try:
        await run.fork(quoted.checkpoint_id, edit=Edit(state={"discount": "half"}))
    except TypeError as error:
        print("refused:              ", error)

    print("checkpoints of the run:", len(history), "before,", len(await run.checkpoints()), "after")


if __name__ == "__main__":
    asyncio.run(main())
