"""A workflow pauses for a person, and a workflow built anew resumes from the checkpoint with the person's answer.

Shows: an open request is part of the checkpoint on every storage, and is told again to whoever resumes.
"""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from perdure import (
    CheckpointStorage,
    Executor,
    FileCheckpointStorage,
    InMemoryCheckpointStorage,
    SqliteCheckpointStorage,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowRunState,
    handler,
    response_handler,
)


@dataclass
class Review:
    draft: str


class Author(Executor):
    @handler
    async def write(self, topic: str, ctx: WorkflowContext) -> None:
        await ctx.request_info(Review(draft=f"All about {topic}"), str)

    @response_handler
    async def revise(self, review: Review, feedback: str, ctx: WorkflowContext[str, str]) -> None:
        if feedback == "approve":
            await ctx.yield_output(review.draft)
        else:
            await ctx.request_info(Review(draft=f"{review.draft}, {feedback}"), str)


def build_workflow(storage: CheckpointStorage) -> Workflow:
    return WorkflowBuilder(start_executor=Author("author"), checkpoint_storage=storage, name="review").build()


async def review(storage: CheckpointStorage) -> None:
    print(type(storage).__name__)

    # Workflow pauses for user input -> checkpoint is saved
    result = await build_workflow(storage).run("owls")

    # Process can restart -> resume from checkpoint with user's response
    for feedback in ("in two pages", "approve"):
        assert result.get_final_state() is WorkflowRunState.IDLE_WITH_PENDING_REQUESTS
        checkpoint = await storage.get_latest(workflow_name="review")
        assert checkpoint is not None, "the paused run has been checkpointed"
        [(request_id, request)] = checkpoint.pending_request_info_events.items()
        print(f"  {request.data.draft!r}? {feedback}!")
        result = await build_workflow(storage).run(
            checkpoint_id=checkpoint.checkpoint_id, responses={request_id: feedback}
        )
    print("  published:", *result.get_outputs())


async def main() -> None:
    with TemporaryDirectory() as directory:
        await review(InMemoryCheckpointStorage())
        await review(FileCheckpointStorage(Path(directory) / "checkpoints"))
        await review(SqliteCheckpointStorage(Path(directory) / "runs.db"))


if __name__ == "__main__":
    asyncio.run(main())
