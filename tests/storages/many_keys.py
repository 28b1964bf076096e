"""A run that keeps many keys in its state, and changes some of them with every superstep."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure import WorkflowBuilder, WorkflowContext, executor

if TYPE_CHECKING:
    from perdure import CheckpointStorage, Workflow

KEYS, LAST = 150, 9


@executor(id="keeper")
async def keep(number: int, ctx: WorkflowContext[int, dict[str, Any]]) -> None:
    """Keeps many keys. Each further message changes one there and back and one for good, and removes one."""
    if number == 1:
        ctx.state.import_state({f"key-{each:03}": f"value {each}" for each in range(KEYS)})
    else:
        ctx.set_state("key-000", "AB"[number % 2] * 50)
        ctx.set_state(f"key-{number:03}", f"changed {number}")
        ctx.state.delete(f"key-{100 + number:03}")
    if number < LAST:
        await ctx.send_message(number + 1)
    else:
        await ctx.yield_output(ctx.state.export_state())


EXPECTED = {
    **{f"key-{each:03}": f"value {each}" for each in range(KEYS) if not 102 <= each <= 100 + LAST},
    **{f"key-{each:03}": f"changed {each}" for each in range(2, LAST + 1)},
    "key-000": "AB"[LAST % 2] * 50,
}


def keeping(storage: CheckpointStorage) -> Workflow:
    builder = WorkflowBuilder(start_executor=keep, name="keeping", checkpoint_storage=storage)
    return builder.add_edge(keep, keep).build()


async def half_way(storage: CheckpointStorage, run_id: str = "r") -> None:
    """A run that was left after some of its supersteps."""
    stream = keeping(storage).run(1, run_id=run_id, stream=True)
    async for event in stream:
        if event.type == "superstep_completed" and event.iteration == 5:
            break
    await stream.aclose()
