"""A live run is put back in time and goes on, and a new instance takes a run over from one of its checkpoints.

Shows: `restore` moves the head of this very run; the checkpoints that came later stay readable.
"""

import asyncio
from typing import Any

from perdure import (
    CheckpointInfo,
    Executor,
    InMemoryCheckpointStorage,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    handler,
)


class GuessNumber(Executor):
    """Halves the range of guesses until the number is found."""

    def __init__(self, number: int) -> None:
        super().__init__(id="guess")
        self._number = number
        self._guesses: list[int] = []

    @handler
    async def guess(self, bounds: tuple[int, int], ctx: WorkflowContext[tuple[int, int], list[int]]) -> None:
        low, high = bounds
        middle = (low + high) // 2
        self._guesses.append(middle)
        if middle == self._number:
            await ctx.yield_output(self._guesses)
        elif middle < self._number:
            await ctx.send_message((middle + 1, high))
        else:
            await ctx.send_message((low, middle - 1))

    async def on_checkpoint_save(self) -> dict[str, Any]:
        return {"guesses": self._guesses}

    async def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        self._guesses = state["guesses"]


def build_workflow() -> Workflow:
    guess = GuessNumber(42)
    return WorkflowBuilder(start_executor=guess, name="guess").add_edge(guess, guess).build()


async def main() -> None:
    storage = InMemoryCheckpointStorage()

    # Every commit is told as an event; the list is kept for later use.
    run = build_workflow().start((1, 100), checkpoint_storage=storage)
    checkpoints: list[CheckpointInfo] = []
    async for event in run.events():
        if event.type == "checkpoint":
            checkpoints.append(event.data)
        elif event.type == "output":
            print("completed with:", event.data)
    print(f"{len(checkpoints)} checkpoints, one before the first superstep and one after each")

    # Restore the 6th checkpoint directly on the same run.
    saved_checkpoint = checkpoints[5]
    await run.restore(saved_checkpoint.checkpoint_id)
    async for event in run.events():
        if event.type == "checkpoint":
            print(f"superstep {event.data.iteration_count} again, as {event.data.checkpoint_id.split('@')[1]}")
        elif event.type == "output":
            print("completed again with:", event.data)
    print("the run still is", "the same" if run.run_id == saved_checkpoint.run_id else "another")
    print(f"it has {len(await run.checkpoints())} checkpoints now")

    # Or rehydrate the checkpoint into a new instance: a run of its own.
    new_run = build_workflow().start(checkpoint_id=saved_checkpoint.checkpoint_id, checkpoint_storage=storage)
    result = await new_run.result()
    print("a new run completed with:", *result.get_outputs())
    print("that run is", "the same" if new_run.run_id == run.run_id else "another")


if __name__ == "__main__":
    asyncio.run(main())
