"""A plan that a human must approve: the run waits in a directory of files, and goes on with the answer.

Shows: waiting for a person is a state of the run, not of a process; an answer takes effect once.
"""

import asyncio
import json
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from perdure import (
    AlreadyAnsweredError,
    CheckpointStorage,
    Executor,
    FileCheckpointStorage,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowRunState,
    handler,
    response_handler,
)

CHECKPOINT_DIR = Path("./checkpoints")


@dataclass
class PlanReviewResponse:
    is_approved: bool


@dataclass
class PlanReviewRequest:
    request_id: str
    plan: list[str]

    def approve(self) -> PlanReviewResponse:
        return PlanReviewResponse(is_approved=True)


class Planner(Executor):
    """Stands in for a model: it makes a plan, and follows it when it is approved."""

    @handler
    async def make_plan(self, task: str, ctx: WorkflowContext) -> None:
        request = PlanReviewRequest("review-1", plan=[f"research: {task}", f"write: {task}"])
        await ctx.request_info(request, PlanReviewResponse, request_id=request.request_id)

    @response_handler
    async def follow_plan(
        self, request: PlanReviewRequest, response: PlanReviewResponse, ctx: WorkflowContext[str, str]
    ) -> None:
        outcome = "done" if response.is_approved else "dropped"
        await ctx.yield_output("; ".join(f"{step} ({outcome})" for step in request.plan))


def build_workflow(storage: CheckpointStorage) -> Workflow:
    return WorkflowBuilder(start_executor=Planner("planner"), checkpoint_storage=storage, name="brief").build()


async def main() -> None:
    storage = FileCheckpointStorage(CHECKPOINT_DIR)
    workflow = build_workflow(storage)

    # Run until human review is needed.
    plan_request: PlanReviewRequest | None = None
    async for ev in workflow.run("Draft a brief", stream=True):
        if ev.type == "request_info" and isinstance(ev.data, PlanReviewRequest):
            plan_request = ev.data
        if ev.state == WorkflowRunState.IDLE_WITH_PENDING_REQUESTS:
            break
    assert plan_request is not None, "the planner asks before it acts"
    print("The plan:", plan_request.plan)

    # Much later, with a workflow and a storage made anew: only the files are left, and anybody can read them.
    storage = FileCheckpointStorage(CHECKPOINT_DIR)
    workflow = build_workflow(storage)
    checkpoint = await storage.get_latest(workflow_name=workflow.name)
    assert checkpoint is not None, "the run has been checkpointed"
    document = json.loads((CHECKPOINT_DIR / f"{checkpoint.checkpoint_id}.json").read_text())
    print("Waiting for:", list(document["pending_request_info_events"]))
    approval = plan_request.approve()

    async for ev in workflow.run(
        checkpoint_id=checkpoint.checkpoint_id, stream=True, responses={plan_request.request_id: approval}
    ):
        if ev.type == "output":
            print("Final result:", ev.data)

    # Whoever was late with the same answer is told so; the plan is not followed twice.
    try:
        await build_workflow(storage).run(
            checkpoint_id=checkpoint.checkpoint_id, responses={plan_request.request_id: approval}
        )
    except AlreadyAnsweredError as error:
        print("Refused:", error)


if __name__ == "__main__":
    with TemporaryDirectory() as scratch, chdir(scratch):
        asyncio.run(main())
