"""An agent writes, a person reviews, and between the two the process ends.

Shows: drafts and open reviews are part of the checkpoint; a new process continues, and calls the model only for new
work.
"""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from perdure import (
    Agent,
    AgentExecutor,
    AgentExecutorRequest,
    AgentExecutorResponse,
    Executor,
    FileCheckpointStorage,
    Message,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    handler,
    response_handler,
)
from perdure.testing import ScriptedChatClient

DRAFTS = ["Our new lamp is bright.", "Our new lamp is bright, and lasts for ten years."]


@dataclass
class Review:
    draft: str


class Brief(Executor):
    """Turn a wish into a task for the writer."""

    @handler
    async def prepare(self, wish: str, ctx: WorkflowContext[AgentExecutorRequest]) -> None:
        await ctx.send_message(AgentExecutorRequest([Message("user", [f"Write a release note: {wish}"])]))


class Gateway(Executor):
    """Ask a person about each draft."""

    @handler
    async def ask(self, written: AgentExecutorResponse, ctx: WorkflowContext) -> None:
        await ctx.request_info(Review(written.agent_response.text), str)

    @response_handler
    async def decide(self, review: Review, feedback: str, ctx: WorkflowContext[AgentExecutorRequest, str]) -> None:
        if feedback == "approve":
            await ctx.yield_output(f"published: {review.draft}")
        else:
            # The writer has its own history, so it knows its draft.
            await ctx.send_message(AgentExecutorRequest([Message("user", [f"Please change: {feedback}"])]))


def build_workflow(client: ScriptedChatClient, storage: FileCheckpointStorage) -> Workflow:
    brief, gateway = Brief("brief"), Gateway("gateway")
    writer = AgentExecutor(Agent(client, "You write release notes.", name="writer"))
    return (
        WorkflowBuilder(name="notes", start_executor=brief, checkpoint_storage=storage, output_from=[gateway])
        .add_edge(brief, writer)
        .add_edge(writer, gateway)
        .add_edge(gateway, writer)
        .build()
    )


async def life(directory: Path, feedback: str | None) -> None:
    """Run the program once, as a new process would: build everything, go as far as possible, and end."""
    client = ScriptedChatClient(DRAFTS)
    storage = FileCheckpointStorage(directory)
    workflow = build_workflow(client, storage)
    if feedback is None:
        result = await workflow.run("the lamp")
    else:
        checkpoint = await storage.get_latest(workflow_name="notes")
        assert checkpoint is not None, "the run has been checkpointed"
        [request_id] = checkpoint.pending_request_info_events
        print(f"  the person: {feedback}")
        result = await workflow.run(checkpoint_id=checkpoint.checkpoint_id, responses={request_id: feedback})
    for request in result.get_request_info_events():
        print(f"  for review: {request.data.draft}")
    print(*(f"  {output}" for output in result.get_outputs()), f"  calls of the model: {len(client.calls)}", sep="\n")


async def main() -> None:
    with TemporaryDirectory() as directory:
        for number, feedback in enumerate((None, "say how long it lasts", "approve"), start=1):
            print(f"life {number}")
            await life(Path(directory), feedback)


if __name__ == "__main__":
    asyncio.run(main())
